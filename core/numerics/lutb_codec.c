/* core/numerics/lutb_codec.c: LUT-B tiles: packing, assignment, encode and decode of matrices (moert/lutb.h, lut-b.md
 * 1-3). The fits of the codebook are in lutb_fit_*.c. */
#include "core/numerics/lutb.h"

#include <moert/float8.h>

#include "core/base/checked.h"
#include "core/base/error.h"

#include <math.h>

#define ROWS   MOERT_LUTB_ROWS
#define COLS   MOERT_LUTB_COLS
#define PACKED MOERT_LUTB_PACKED

static const char *const fit_names[MOERT_FIT_COUNT] = {
    [MOERT_FIT_OPTIMAL] = "optimal", [MOERT_FIT_MULTISTART] = "multistart", [MOERT_FIT_FARTHEST] = "farthest"};

const char *moert_lutb_fit_name(moert_lutb_fit_t fit)
{
    return fit < MOERT_FIT_COUNT ? fit_names[fit] : NULL;
}

int moert_lutb_fit_from_name(const char *name, moert_lutb_fit_t *ret)
{
    for (uint32_t i = 0; name && i < MOERT_FIT_COUNT; i++)
        if (!strcmp(name, fit_names[i])) {
            *ret = i;
            return 0;
        }
    return -1;
}

/* ------------------------------------------------------------------ one tile */

/* Eight indices are one 24-bit little-endian word, index k at bit 3k. */
void moert_lutb_pack(const uint8_t *indices, uint8_t *packed)
{
    for (unsigned i = 0; i < TILE / 8; i++, indices += 8, packed += 3) {
        uint32_t word = 0;
        for (unsigned k = 0; k < 8; k++)
            word |= (uint32_t)(indices[k] & 7) << 3 * k;
        packed[0] = (uint8_t)word;
        packed[1] = (uint8_t)(word >> 8);
        packed[2] = (uint8_t)(word >> 16);
    }
}

void moert_lutb_unpack(const uint8_t *packed, uint8_t *indices)
{
    for (unsigned i = 0; i < TILE / 8; i++, indices += 8, packed += 3) {
        uint32_t word = packed[0] | (uint32_t)packed[1] << 8 | (uint32_t)packed[2] << 16;
        for (unsigned k = 0; k < 8; k++)
            indices[k] = (uint8_t)(word >> 3 * k & 7);
    }
}

/* Index = number of boundaries strictly below the value. Boundaries of E4M3 entries are exact in binary32. */
void moert_lutb_assign(const float *tile, const float *codebook, uint8_t *indices)
{
    int32_t boundary[LEVELS - 1];

    for (int i = 0; i < LEVELS - 1; i++)
        boundary[i] = moert_lutb_key((codebook[i] + codebook[i + 1]) * 0.5f);
    for (unsigned p = 0; p < TILE; p++) {
        int32_t key = moert_lutb_key(tile[p]), n = 0;
        for (int i = 0; i < LEVELS - 1; i++)
            n += boundary[i] < key;
        indices[p] = (uint8_t)n;
    }
}

void moert_lutb_fit_tile(const float *x, const double *w, moert_lutb_fit_t fit, int keep_zero, uint8_t *codes)
{
    if (fit == MOERT_FIT_OPTIMAL)
        moert_lutb_fit_optimal(x, w, keep_zero, codes);
    else
        moert_lutb_fit_lloyd(x, fit, codes);
}

/* ------------------------------------------------------------------ encode */

/* The weight matrix of a call. */
struct matrix {
    const unsigned char *data;
    moert_dtype_t dtype;
    uint32_t element_size;
    uint64_t rows, cols, pitch; /* pitch in bytes */
};

static uint32_t load_bits(const struct matrix *m, uint64_t r, uint64_t c)
{
    const unsigned char *p = m->data + r * m->pitch + c * m->element_size;
    uint32_t u;
    uint16_t h;

    if (m->dtype == MOERT_F32) {
        memcpy(&u, p, sizeof(u));
        return u;
    }
    memcpy(&h, p, sizeof(h));
    return m->dtype == MOERT_BF16 ? (uint32_t)h << 16 : moert_f16_widen(h);
}

static moert_status_t check_tiling(uint64_t rows, uint64_t cols, struct moert_error *err)
{
    if (rows % ROWS || cols % COLS)
        return moert_fail(err, MOERT_E_SHAPE, "tensor-shape",
                          "weight is [%llu,%llu]; LUT-B needs N %% 8 = 0 and K %% 64 = 0", (unsigned long long)rows,
                          (unsigned long long)cols);
    return MOERT_OK;
}

static moert_status_t check_matrix(const void *w, moert_dtype_t dtype, uint64_t rows, uint64_t cols, uint64_t stride,
                                   struct matrix *ret, struct moert_error *err)
{
    struct matrix m = {w, dtype, dtype == MOERT_F32 ? 4 : 2, rows, cols, 0};
    moert_status_t status = check_tiling(rows, cols, err);
    uint64_t n;

    if (status)
        return status;
    if (dtype != MOERT_F32 && dtype != MOERT_BF16 && dtype != MOERT_F16)
        return moert_fail(err, MOERT_E_DTYPE, "tensor-dtype",
                          "dtype %u cannot be encoded to LUT-B; give F32, BF16 or F16", dtype);
    if (!stride)
        stride = cols;
    if (stride < cols)
        return moert_fail(err, MOERT_E_SHAPE, "tensor-shape", "row pitch %llu is below the %llu columns",
                          (unsigned long long)stride, (unsigned long long)cols);
    if (!moert_mul(stride, m.element_size, &m.pitch) || !moert_mul(rows, m.pitch, &n) || n > SIZE_MAX)
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large", "%llu rows of %llu elements exceed the address space",
                          (unsigned long long)rows, (unsigned long long)stride);
    *ret = m;
    return MOERT_OK;
}

static moert_status_t check_finite(const struct matrix *m, struct moert_error *err)
{
    for (uint64_t r = 0; r < m->rows; r++)
        for (uint64_t c = 0; c < m->cols; c++) {
            uint32_t u = load_bits(m, r, c);
            if ((u & 0x7FFFFFFF) >= MOERT_F32_INF)
                return moert_fail(err, MOERT_E_VALUE, "nonfinite",
                                  "weight [%llu,%llu] is %s; LUT-B needs finite values", (unsigned long long)r,
                                  (unsigned long long)c,
                                  u << 1 > MOERT_F32_INF << 1 ? "NaN"
                                  : u >> 31                   ? "-Inf"
                                                              : "Inf");
        }
    return MOERT_OK;
}

static moert_status_t check_params(const struct moert_lutb_params *params, uint64_t cols, struct moert_error *err)
{
    moert_status_t status = moert_check_size(err, "moert_lutb_params", params->size, sizeof(*params));

    if (status)
        return status;
    if (params->fit >= MOERT_FIT_COUNT)
        return moert_fail(err, MOERT_E_VALUE, "field", "fit %u is unknown; known: 0 optimal, 1 multistart, 2 farthest",
                          params->fit);
    if (params->keep_zero > 1)
        return moert_fail(err, MOERT_E_VALUE, "field", "keep_zero is %u; must be 0 or 1", params->keep_zero);
    if (params->fit != MOERT_FIT_OPTIMAL && (params->keep_zero || params->channel_weights))
        return moert_fail(err, MOERT_E_VALUE, "field", "fit %s takes no %s; only optimal does", fit_names[params->fit],
                          params->keep_zero ? "keep_zero" : "channel weights");
    for (uint64_t c = 0; params->channel_weights && c < cols; c++)
        if (!(params->channel_weights[c] >= 0 && params->channel_weights[c] <= 0x1.fffffffffffffp1023))
            return moert_fail(err, MOERT_E_VALUE, "nonfinite", "channel_weights[%llu] is %g; must be finite and >= 0",
                              (unsigned long long)c, params->channel_weights[c]);
    return MOERT_OK;
}

static void account(const float *x, const float *levels, const uint8_t *indices, struct moert_lutb_stats *stats)
{
    stats->tiles++;
    for (unsigned p = 0; p < TILE; p++) {
        double v = (double)x[p], d = (double)levels[indices[p]] - v, a = d < 0 ? -d : d;
        stats->squared_error += d * d;
        stats->squared_sum += v * v;
        stats->max_error = a > stats->max_error ? a : stats->max_error;
        stats->saturated += v > 448 || v < -448;
    }
}

static void encode_tile(const struct matrix *m, uint64_t tile_row, uint64_t tile_col,
                        const struct moert_lutb_params *params, uint8_t *packed, uint8_t *codes,
                        struct moert_lutb_stats *stats)
{
    const double *channel = params && params->channel_weights ? params->channel_weights + tile_col * COLS : NULL;
    float x[TILE], levels[LEVELS];
    double weights[TILE];
    uint8_t indices[TILE];

    for (unsigned p = 0; p < TILE; p++) {
        x[p] = moert_f32_of_bits(load_bits(m, tile_row * ROWS + p / COLS, tile_col * COLS + p % COLS));
        if (channel)
            weights[p] = channel[p % COLS];
    }
    moert_lutb_fit_tile(x, channel ? weights : NULL, params ? params->fit : MOERT_FIT_OPTIMAL,
                        params && params->keep_zero, codes);
    for (int i = 0; i < LEVELS; i++)
        levels[i] = moert_e4m3_decode(codes[i]);
    moert_lutb_assign(x, levels, indices);
    moert_lutb_pack(indices, packed);
    if (stats)
        account(x, levels, indices, stats);
}

moert_status_t moert_lutb_encode(const void *w, moert_dtype_t dtype, uint64_t rows, uint64_t cols, uint64_t stride,
                                 const struct moert_lutb_params *params, uint8_t *packed, uint8_t *codebook,
                                 struct moert_lutb_stats *stats, struct moert_error *err)
{
    struct matrix m;
    moert_status_t status = check_matrix(w, dtype, rows, cols, stride, &m, err);

    if (status)
        return status;
    if (rows && cols && (!w || !packed || !codebook))
        return moert_fail_null(err, !w ? "weight" : !packed ? "packed" : "codebook");
    if (stats && (status = moert_check_size(err, "moert_lutb_stats", stats->size, sizeof(*stats))))
        return status;
    if ((params && (status = check_params(params, cols, err))) || (status = check_finite(&m, err)))
        return status;
    for (uint64_t i = 0; i < rows / ROWS; i++)
        for (uint64_t k = 0; k < cols / COLS; k++, packed += PACKED, codebook += LEVELS)
            encode_tile(&m, i, k, params, packed, codebook, stats);
    return MOERT_OK;
}

/* ------------------------------------------------------------------ decode */

/* The tile's eight levels in the output type, as bit patterns; every finite entry is exact in each. */
static void level_patterns(const uint8_t *codes, moert_dtype_t dtype, uint32_t patterns[LEVELS])
{
    for (int i = 0; i < LEVELS; i++) {
        float value = moert_e4m3_decode(codes[i]);
        switch (dtype) {
        case MOERT_F32: patterns[i] = moert_f32_bits(value); break;
        case MOERT_BF16: patterns[i] = moert_bf16_from_float(value); break;
        case MOERT_F16: patterns[i] = moert_f16_from_float(value); break;
        default: patterns[i] = codes[i]; break;
        }
    }
}

static void decode_tile(const uint8_t *packed, const uint8_t *codes, moert_dtype_t dtype, uint32_t element_size,
                        unsigned char *out, uint64_t pitch)
{
    uint32_t patterns[LEVELS];
    uint8_t indices[TILE];

    level_patterns(codes, dtype, patterns);
    moert_lutb_unpack(packed, indices);
    for (unsigned r = 0; r < ROWS; r++, out += pitch) {
        const uint8_t *row = indices + r * COLS;
        uint32_t wide[COLS];
        uint16_t half[COLS];
        switch (element_size) {
        case 4:
            for (unsigned c = 0; c < COLS; c++)
                wide[c] = patterns[row[c]];
            memcpy(out, wide, sizeof(wide));
            break;
        case 2:
            for (unsigned c = 0; c < COLS; c++)
                half[c] = (uint16_t)patterns[row[c]];
            memcpy(out, half, sizeof(half));
            break;
        default:
            for (unsigned c = 0; c < COLS; c++)
                out[c] = (uint8_t)patterns[row[c]];
            break;
        }
    }
}

moert_status_t moert_lutb_decode(const uint8_t *packed, const uint8_t *codebook, uint64_t rows, uint64_t cols,
                                 void *out, moert_dtype_t dtype, struct moert_error *err)
{
    uint32_t size = dtype == MOERT_F32 ? 4 : dtype == MOERT_F8_E4M3 ? 1 : 2;
    uint64_t tiles_across = cols / COLS, pitch, bytes;
    moert_status_t status = check_tiling(rows, cols, err);

    if (status)
        return status;
    if (dtype != MOERT_F32 && dtype != MOERT_BF16 && dtype != MOERT_F16 && dtype != MOERT_F8_E4M3)
        return moert_fail(err, MOERT_E_DTYPE, "out-dtype",
                          "LUT-B cannot be decoded to dtype %u; give F32, BF16, F16 or F8_E4M3", dtype);
    if (!moert_mul(cols, size, &pitch) || !moert_mul(rows, pitch, &bytes) || bytes > SIZE_MAX)
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large", "[%llu,%llu] elements exceed the address space",
                          (unsigned long long)rows, (unsigned long long)cols);
    if (bytes && (!packed || !codebook || !out))
        return moert_fail_null(err, !packed ? "packed" : !codebook ? "codebook" : "out");
    for (uint64_t i = 0; i < rows / ROWS; i++)
        for (uint64_t k = 0; k < tiles_across; k++, packed += PACKED, codebook += LEVELS)
            decode_tile(packed, codebook, dtype, size, (unsigned char *)out + i * ROWS * pitch + k * COLS * size,
                        pitch);
    return MOERT_OK;
}

moert_status_t moert_lutb_check_codebook(const uint8_t *codebook, uint64_t tiles, struct moert_error *err)
{
    if (tiles && !codebook)
        return moert_fail_null(err, "codebook");
    for (uint64_t t = 0; t < tiles; t++)
        for (int i = 0; i < LEVELS; i++)
            if ((codebook[t * LEVELS + (uint64_t)i] & 0x7F) == 0x7F)
                return moert_fail(err, MOERT_E_VALUE, "nonfinite",
                                  "entry %d of the codebook of tile %llu is NaN (code %02X); entries must be finite", i,
                                  (unsigned long long)t, codebook[t * LEVELS + (uint64_t)i]);
    return MOERT_OK;
}
