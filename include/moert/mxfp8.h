/* SPDX-License-Identifier: Apache-2.0
 * moert/mxfp8.h: MXFP8 blocks: 32 E4M3 codes along the last axis with one E8M0 scale byte (value = code * 2^(byte-127)).
 * Definition: OCP MX v1.0; scale rules and NaN policies by name. Pure functions, thread-safe. */
#ifndef MOERT_MXFP8_H
#define MOERT_MXFP8_H

#include <moert/base.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MOERT_MXFP8_BLOCK 32

/* What a quantiser call met. Added to, never cleared, by the functions below. */
struct moert_mxfp8_stats {
    uint32_t size;
    uint32_t reserved32;
    uint64_t blocks;
    uint64_t poisoned_blocks; /* scale byte 255 */
    uint64_t saturated;       /* finite elements cut to +-448: those above 464 times the scale (FLOOR and EVEN) */
};

/* Parameters of a named profile: moert, torchao, ocp, te, vllm-rocm, vllm-torch, flashinfer, aiter-hip, aiter-triton.
 * MOERT_E_VALUE for other names (the text lists them). */
MOERT_API moert_status_t moert_mxfp8_profile(const char *name, struct moert_mxfp8_params *ret, struct moert_error *err);

/* Scale byte of a block whose largest magnitude is `amax` (finite, >= 0) under a rule, clamped to 0..254. */
MOERT_API uint8_t moert_mxfp8_scale_byte(float amax, moert_scale_rule_t rule);

/* x [rows,cols] F32/BF16/F16, row pitch `x_stride` elements (0 = cols) -> codes [rows,cols], scales [rows,cols/32].
 * cols % 32 != 0 is MOERT_E_SHAPE. params NULL: RCEIL, POISON, KEEP. stats may be NULL. No overlap. */
MOERT_API moert_status_t moert_mxfp8_quantize(const void *x, moert_dtype_t dtype, uint64_t rows, uint64_t cols,
                                              uint64_t x_stride, const struct moert_mxfp8_params *params,
                                              uint8_t *codes, uint8_t *scales, struct moert_mxfp8_stats *stats,
                                              struct moert_error *err);

/* The same for any cols: missing elements of the last block count as +0 and their codes are 00.
 * codes [rows, C*32], scales [rows, C], C = ceil(cols/32). */
MOERT_API moert_status_t moert_mxfp8_quantize_padded(const void *x, moert_dtype_t dtype, uint64_t rows, uint64_t cols,
                                                     uint64_t x_stride, const struct moert_mxfp8_params *params,
                                                     uint8_t *codes, uint8_t *scales, struct moert_mxfp8_stats *stats,
                                                     struct moert_error *err);

/* codes [rows,cols], scales [rows,cols/32] -> out [rows,cols] F32/BF16/F16, one rounding. Scale 255 gives NaN. */
MOERT_API moert_status_t moert_mxfp8_dequantize(const uint8_t *codes, const uint8_t *scales, uint64_t rows,
                                                uint64_t cols, void *out, moert_dtype_t dtype, struct moert_error *err);

/* The seed's mxfp8_qdq: quantise, dequantise to BF16, cast to x's dtype. out may be x. */
MOERT_API moert_status_t moert_mxfp8_qdq(const void *x, moert_dtype_t dtype, uint64_t rows, uint64_t cols,
                                         const struct moert_mxfp8_params *params, void *out, struct moert_error *err);

/* Layouts of scale bytes (mxfp8.md 6). */
typedef uint32_t moert_scale_layout_t;
enum {
    MOERT_SCALES_LINEAR = 0,
    MOERT_SCALES_SWZ128X4 = 1,
    MOERT_SCALES_SWZ8X4 = 2,
    MOERT_SCALES_AITER_GFX950 = 3,
    MOERT_SCALES_AITER_N32K4 = 4,
    MOERT_SCALE_LAYOUT_COUNT = 5
};
MOERT_API const char *moert_scale_layout_name(moert_scale_layout_t layout);
/* Byte offset of scale (r,c) in a matrix with C scales per row, and the buffer's size for M rows.
 * Unknown layout or a size beyond 64 bits: offset UINT64_MAX, size 0. AITER_N32K4 is defined for C % 4 = 0 only. */
MOERT_API uint64_t moert_scale_offset(moert_scale_layout_t layout, uint64_t C, uint64_t r, uint64_t c);
MOERT_API uint64_t moert_scale_bytes(moert_scale_layout_t layout, uint64_t M, uint64_t C);
/* linear [M,C] -> dst (moert_scale_bytes), padding 00; and back. Codes: `field`, `multiple`, `too-large`. */
MOERT_API moert_status_t moert_scales_arrange(moert_scale_layout_t layout, uint64_t M, uint64_t C,
                                              const uint8_t *linear, uint8_t *dst, struct moert_error *err);
MOERT_API moert_status_t moert_scales_linearize(moert_scale_layout_t layout, uint64_t M, uint64_t C, const uint8_t *src,
                                                uint8_t *linear, struct moert_error *err);

#ifdef __cplusplus
}
#endif
#endif
