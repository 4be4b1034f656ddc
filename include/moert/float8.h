/* SPDX-License-Identifier: Apache-2.0
 * moert/float8.h: single values of the small formats, by integer arithmetic (independent of rounding mode, FTZ, libm).
 * Definition: OCP OFP8 v1.0 (E4M3FN, E5M2) and OCP MX v1.0 (E8M0). All functions are pure and thread-safe. */
#ifndef MOERT_FLOAT8_H
#define MOERT_FLOAT8_H

#include <moert/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Decode: every code has an exact float value; NaN codes give 0x7FC00000. E8M0 255 is NaN, 0 is 2^-127. */
MOERT_API float moert_e4m3_decode(uint8_t code);
MOERT_API float moert_e5m2_decode(uint8_t code);
MOERT_API float moert_e8m0_decode(uint8_t byte);
/* 2^(127-byte); byte 255 gives NaN. */
MOERT_API float moert_e8m0_reciprocal(uint8_t byte);

/* Encode x * 2^(127-byte), nearest even, one rounding, saturating: overflow and Inf give the largest finite code of the
 * sign, NaN gives 0x7F. byte 127 encodes x itself; byte <= 254. */
MOERT_API uint8_t moert_e4m3_encode(float x, uint8_t byte);
MOERT_API uint8_t moert_e5m2_encode(float x, uint8_t byte);

/* Nearest-even conversion to 16-bit formats from float and, with a single rounding, from double; and back (exact).
 * NaN gives 0x7FC0 / 0x7E00, overflow gives Inf. */
MOERT_API uint16_t moert_bf16_from_float(float x);
MOERT_API uint16_t moert_bf16_from_double(double x);
MOERT_API float moert_bf16_to_float(uint16_t bits);
MOERT_API uint16_t moert_f16_from_float(float x);
MOERT_API uint16_t moert_f16_from_double(double x);
MOERT_API float moert_f16_to_float(uint16_t bits);
/* double -> float, nearest even, whatever the caller's rounding mode. */
MOERT_API float moert_f32_from_double(double x);

/* Element `index` of an array of F32, BF16, F16 or F64 as double (exact), and its store with one rounding. */
MOERT_API double moert_load(const void *data, moert_dtype_t dtype, uint64_t index);
MOERT_API void moert_store(void *data, moert_dtype_t dtype, uint64_t index, double value);

#ifdef __cplusplus
}
#endif
#endif
