/* SPDX-License-Identifier: Apache-2.0
 * drivers/cpu/ref/decode.c: one weight row of one expert, of any scheme, as E4M3 codes with scales or as values. */
#include "config.h"

#include "drivers/cpu/ref/ref.h"

#include <math.h>
#include <moert/lutb.h>

/* (8 + m) * 2^(e-10) * 512 for e >= 1, m * 2^-9 * 512 for e = 0. */
#define UNIT(s, e, m) ((s) * ((e) ? (8 + (m)) << ((e) ? (e)-1 : 0) : (m)))
#define UNITS8(s, e)                                                                                                   \
    UNIT(s, e, 0), UNIT(s, e, 1), UNIT(s, e, 2), UNIT(s, e, 3), UNIT(s, e, 4), UNIT(s, e, 5), UNIT(s, e, 6),           \
        UNIT(s, e, 7)
#define UNITS128(s)                                                                                                    \
    UNITS8(s, 0), UNITS8(s, 1), UNITS8(s, 2), UNITS8(s, 3), UNITS8(s, 4), UNITS8(s, 5), UNITS8(s, 6), UNITS8(s, 7),    \
        UNITS8(s, 8), UNITS8(s, 9), UNITS8(s, 10), UNITS8(s, 11), UNITS8(s, 12), UNITS8(s, 13), UNITS8(s, 14),         \
        UNITS8(s, 15)

const int32_t mref_e4m3_units[256] = {UNITS128(1), UNITS128(-1)};

static int is_nan_code(uint8_t code)
{
    return (code & 0x7f) == 0x7f;
}

double mref_pow2(int e)
{
    uint64_t bits = (uint64_t)(e + 1023) << 52;
    double value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

void mref_mark_nan_blocks(const uint8_t *codes, uint8_t *scales, uint64_t cols)
{
    for (uint64_t k = 0; k < cols; k++)
        if (is_nan_code(codes[k]))
            scales[k / MREF_BLOCK] = MREF_NAN_SCALE;
}

void mref_decode_values(const uint8_t *codes, const uint8_t *scales, uint64_t cols, double *values)
{
    for (uint64_t k = 0; k < cols; k++) {
        uint8_t scale = scales[k / MREF_BLOCK];
        /* code = units * 2^-9, scale = 2^(byte - 127) */
        values[k] = scale == MREF_NAN_SCALE || is_nan_code(codes[k])
                        ? (double)NAN
                        : mref_e4m3_units[codes[k]] * mref_pow2(scale - 127 - 9);
    }
}

uint64_t mref_row_bytes(uint64_t cols)
{
    uint64_t bytes = cols * sizeof(double) + cols + cols / MREF_BLOCK + 1;

    return bytes + (256 - bytes % 256) % 256;
}

struct mref_row mref_row(uint8_t *memory, uint64_t cols)
{
    void *values = memory; /* aligned to 256 */

    return (struct mref_row){
        .values = values,
        .integers = values,
        .codes = memory + cols * sizeof(double),
        .scales = memory + cols * sizeof(double) + cols,
    };
}

/* Row n of a lut-b matrix: of each tile (8 rows x 64 columns) the 24 bytes of row n % 8; eight indices of three bits
 * are three bytes, the first index lowest (lut-b.md). */
static void decode_lutb(const uint8_t *packed, const uint8_t *codebook, uint64_t n, uint64_t cols, uint8_t *codes)
{
    uint64_t tiles = cols / MOERT_LUTB_COLS, tile = n / MOERT_LUTB_ROWS * tiles;
    const uint8_t *bits = packed + tile * MOERT_LUTB_PACKED + n % MOERT_LUTB_ROWS * 24;
    const uint8_t *levels = codebook + tile * MOERT_LUTB_LEVELS;

    for (uint64_t t = 0; t < tiles; t++, bits += MOERT_LUTB_PACKED, levels += MOERT_LUTB_LEVELS)
        for (uint32_t g = 0; g < 8; g++) {
            uint32_t group = bits[3 * g] | (uint32_t)bits[3 * g + 1] << 8 | (uint32_t)bits[3 * g + 2] << 16;
            for (uint32_t i = 0; i < 8; i++)
                *codes++ = levels[group >> 3 * i & 7];
        }
}

static void decode_plain(const uint8_t *matrix, moert_dtype_t dtype, uint64_t n, uint64_t cols, double *values)
{
    uint32_t element = mcpu_dtype_size(dtype);
    const uint8_t *p = matrix + n * cols * element;

    for (uint64_t k = 0; k < cols; k++)
        values[k] = (double)mcpu_float_at(p + k * element, dtype);
}

void mref_decode_row(const struct mref_shape *shape, const uint8_t *expert, enum mref_part part, uint64_t n,
                     uint64_t cols, struct mref_row *row)
{
    const uint8_t *matrix = expert + shape->part[part].offset;
    const uint8_t *scales = expert + shape->part[part + 1].offset; /* the scales follow their matrix */

    switch (shape->weights) {
    case MOERT_SCHEME_LUT_B:
        decode_lutb(matrix, scales, n, cols, row->codes);
        memset(row->scales, 127, cols / MREF_BLOCK); /* 2^0: a codebook entry has no scale */
        break;
    case MOERT_SCHEME_MXFP8:
        memcpy(row->codes, matrix + n * cols, cols);
        memcpy(row->scales, scales + n * (cols / MREF_BLOCK), cols / MREF_BLOCK);
        break;
    case MOERT_SCHEME_BF16: decode_plain(matrix, MOERT_BF16, n, cols, row->values); return;
    case MOERT_SCHEME_F16: decode_plain(matrix, MOERT_F16, n, cols, row->values); return;
    default: decode_plain(matrix, MOERT_F32, n, cols, row->values); return;
    }
    mref_mark_nan_blocks(row->codes, row->scales, cols);
    if (mref_integer(shape))
        for (uint64_t k = 0; k < cols; k++)
            row->integers[k] = mref_e4m3_units[row->codes[k]];
    else
        mref_decode_values(row->codes, row->scales, cols, row->values);
}
