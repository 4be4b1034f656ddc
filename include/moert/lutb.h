/* SPDX-License-Identifier: Apache-2.0
 * moert/lutb.h: LUT-B: 3-bit weights with one 8-entry E4M3 codebook per tile of 8 rows x 64 columns (200 bytes, 3.125 bits
 * per weight). Format: compressed-tensors pull request 801 and vLLM's lut_b_utils. Pure functions, thread-safe. */
#ifndef MOERT_LUTB_H
#define MOERT_LUTB_H

#include <moert/base.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MOERT_LUTB_ROWS 8
#define MOERT_LUTB_COLS 64
#define MOERT_LUTB_TILE 512
#define MOERT_LUTB_PACKED 192 /* index bytes per tile */
#define MOERT_LUTB_LEVELS 8   /* codebook entries per tile */

typedef uint32_t moert_lutb_fit_t;
enum { MOERT_FIT_OPTIMAL = 0, MOERT_FIT_MULTISTART = 1, MOERT_FIT_FARTHEST = 2, MOERT_FIT_COUNT = 3 };
MOERT_API const char *moert_lutb_fit_name(moert_lutb_fit_t fit);
MOERT_API int moert_lutb_fit_from_name(const char *name, moert_lutb_fit_t *ret);

/* One tile: indices[512] of 0..7 (position p = row*64 + column) <-> packed[192]. Higher bits of an index are ignored. */
MOERT_API void moert_lutb_pack(const uint8_t *indices, uint8_t *packed);
MOERT_API void moert_lutb_unpack(const uint8_t *packed, uint8_t *indices);

/* Options of an encoder call. All zero: optimal fit, no weights. */
struct moert_lutb_params {
    uint32_t size;
    moert_lutb_fit_t fit;
    uint32_t keep_zero; /* optimal only: a level 0 in every tile */
    uint32_t reserved32;
    /* optimal only: importance of input channel k, [cols], finite and >= 0; NULL: 1 everywhere. */
    const double *channel_weights;
};

struct moert_lutb_stats {
    uint32_t size;
    uint32_t reserved32;
    uint64_t tiles;
    uint64_t saturated;   /* elements beyond +-448 */
    double squared_error; /* sum of (decoded - x)^2 */
    double squared_sum;   /* sum of x^2 */
    double max_error;     /* largest |decoded - x| */
};

/* w [rows,cols] F32/BF16/F16 (row pitch `stride` elements, 0 = cols), rows % 8 = 0, cols % 64 = 0 (else MOERT_E_SHAPE) ->
 * packed [rows/8, cols/64, 192], codebook [rows/8, cols/64, 8]. Non-finite input: MOERT_E_VALUE with its position. */
MOERT_API moert_status_t moert_lutb_encode(const void *w, moert_dtype_t dtype, uint64_t rows, uint64_t cols,
                                           uint64_t stride, const struct moert_lutb_params *params, uint8_t *packed,
                                           uint8_t *codebook, struct moert_lutb_stats *stats, struct moert_error *err);

/* One tile against a given codebook (ascending float entries): indices of the nearest level, ties to the lower entry. */
MOERT_API void moert_lutb_assign(const float *tile, const float *codebook, uint8_t *indices);
/* One tile's codebook: values x[512], weights w[512] or NULL -> 8 ascending E4M3 codes. Input finite. */
MOERT_API void moert_lutb_fit_tile(const float *x, const double *w, moert_lutb_fit_t fit, int keep_zero, uint8_t *codes);

/* packed, codebook -> out [rows,cols] F32/BF16/F16, exact, or F8_E4M3 (the codes). NaN codes decode to NaN. */
MOERT_API moert_status_t moert_lutb_decode(const uint8_t *packed, const uint8_t *codebook, uint64_t rows, uint64_t cols,
                                           void *out, moert_dtype_t dtype, struct moert_error *err);

/* MOERT_E_VALUE naming tile and entry when a codebook [tiles,8] holds a NaN code; loaders call it. */
MOERT_API moert_status_t moert_lutb_check_codebook(const uint8_t *codebook, uint64_t tiles, struct moert_error *err);

#ifdef __cplusplus
}
#endif
#endif
