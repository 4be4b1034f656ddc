/* core/numerics/mxfp8_scales.c: named layouts of scale bytes (mxfp8.md 6). Canonical data is LINEAR; a driver arranges
 * the bytes as its matrix units read them. Sources: cuBLAS "d-block-scaling-factors-layout", FlashInfer, AITER
 * shuffle.py. */
#include <moert/mxfp8.h>

#include "core/base/checked.h"
#include "core/base/error.h"

#include <string.h>

struct layout {
    const char *name;
    uint32_t row_multiple, column_multiple; /* padding of M and C */
    uint64_t (*offset)(uint64_t C, uint64_t r, uint64_t c);
};

static uint64_t linear(uint64_t C, uint64_t r, uint64_t c)
{
    return r * C + c;
}

/* 512-byte blocks of 128 rows x 4 scales: the source of one tcgen05.cp.32x128b.warpx4. */
static uint64_t swz128x4(uint64_t C, uint64_t r, uint64_t c)
{
    return (r / 128 * ((C + 3) / 4) + c / 4) * 512 + r % 32 * 16 + r % 128 / 32 * 4 + c % 4;
}

static uint64_t swz8x4(uint64_t C, uint64_t r, uint64_t c)
{
    return (r / 8 * ((C + 3) / 4) + c / 4) * 32 + r % 8 * 4 + c % 4;
}

static uint64_t gfx950(uint64_t C, uint64_t r, uint64_t c)
{
    return r / 32 * 32 * ((C + 7) / 8 * 8) + c / 8 * 256 + c % 4 * 64 + r % 16 * 4 + c % 8 / 4 * 2 + r % 32 / 16;
}

static uint64_t n32k4(uint64_t C, uint64_t r, uint64_t c)
{
    return r / 32 * 32 * C + c / 4 * 128 + r % 32 * 4 + c % 4;
}

static const struct layout layouts[MOERT_SCALE_LAYOUT_COUNT] = {
    [MOERT_SCALES_LINEAR] = {"LINEAR", 1, 1, linear},
    [MOERT_SCALES_SWZ128X4] = {"SWZ128x4", 128, 4, swz128x4},
    [MOERT_SCALES_SWZ8X4] = {"SWZ8x4", 8, 4, swz8x4},
    [MOERT_SCALES_AITER_GFX950] = {"AITER_GFX950", 256, 8, gfx950},
    [MOERT_SCALES_AITER_N32K4] = {"AITER_N32K4", 32, 4, n32k4},
};

const char *moert_scale_layout_name(moert_scale_layout_t layout)
{
    return layout < MOERT_SCALE_LAYOUT_COUNT ? layouts[layout].name : NULL;
}

uint64_t moert_scale_offset(moert_scale_layout_t layout, uint64_t C, uint64_t r, uint64_t c)
{
    return layout < MOERT_SCALE_LAYOUT_COUNT ? layouts[layout].offset(C, r, c) : UINT64_MAX;
}

/* 1 and the size, or 0 when it does not fit. */
static int layout_bytes(const struct layout *l, uint64_t M, uint64_t C, uint64_t *ret)
{
    return moert_round_up(M, l->row_multiple, &M) && moert_round_up(C, l->column_multiple, &C) && moert_mul(M, C, ret);
}

uint64_t moert_scale_bytes(moert_scale_layout_t layout, uint64_t M, uint64_t C)
{
    uint64_t n;
    return layout < MOERT_SCALE_LAYOUT_COUNT && layout_bytes(&layouts[layout], M, C, &n) ? n : 0;
}

static moert_status_t check(moert_scale_layout_t layout, uint64_t M, uint64_t C, const void *from, const void *to,
                            struct moert_error *err)
{
    uint64_t n;

    if (layout >= MOERT_SCALE_LAYOUT_COUNT)
        return moert_fail(err, MOERT_E_VALUE, "field",
                          "scale layout %u is unknown; known: 0 LINEAR, 1 SWZ128x4, 2 SWZ8x4, 3 AITER_GFX950, "
                          "4 AITER_N32K4",
                          layout);
    if (!from || !to)
        return moert_fail_null(err, from ? "destination of scales" : "source of scales");
    if (layout == MOERT_SCALES_AITER_N32K4 && C % 4)
        return moert_fail(err, MOERT_E_SHAPE, "multiple",
                          "%llu scales per row are not a multiple of 4 (needed by AITER_N32K4)", (unsigned long long)C);
    if (!layout_bytes(&layouts[layout], M, C, &n))
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large", "scales [%llu,%llu] in %s exceed 64 bits",
                          (unsigned long long)M, (unsigned long long)C, layouts[layout].name);
    return MOERT_OK;
}

moert_status_t moert_scales_arrange(moert_scale_layout_t layout, uint64_t M, uint64_t C, const uint8_t *linear_scales,
                                    uint8_t *dst, struct moert_error *err)
{
    moert_status_t status = check(layout, M, C, linear_scales, dst, err);

    if (status)
        return status;
    memset(dst, 0, (size_t)moert_scale_bytes(layout, M, C)); /* padding is 00, never FF: 0 * NaN = NaN */
    for (uint64_t r = 0; r < M; r++)
        for (uint64_t c = 0; c < C; c++)
            dst[layouts[layout].offset(C, r, c)] = linear_scales[r * C + c];
    return MOERT_OK;
}

moert_status_t moert_scales_linearize(moert_scale_layout_t layout, uint64_t M, uint64_t C, const uint8_t *src,
                                      uint8_t *linear_scales, struct moert_error *err)
{
    moert_status_t status = check(layout, M, C, src, linear_scales, err);

    if (status)
        return status;
    for (uint64_t r = 0; r < M; r++)
        for (uint64_t c = 0; c < C; c++)
            linear_scales[r * C + c] = src[layouts[layout].offset(C, r, c)];
    return MOERT_OK;
}
