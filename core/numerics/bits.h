/* core/numerics/bits.h: bit patterns of the formats, shared by the codecs. Integer arithmetic only, so that no result
 * depends on rounding mode, FTZ or DAZ. Internal; also for the drivers' own tests. */
#ifndef MOERT_NUMERICS_BITS_H
#define MOERT_NUMERICS_BITS_H

#include <stdint.h>
#include <string.h>

#define MOERT_F32_NAN  0x7FC00000u
#define MOERT_F32_INF  0x7F800000u
#define MOERT_BF16_NAN 0x7FC0u
#define MOERT_F16_NAN  0x7E00u

/* E4M3 code -> binary32 pattern, NaN as MOERT_F32_NAN (float8.c). */
extern const uint32_t moert_e4m3_table[256];

static inline uint32_t moert_f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof(u));
    return u;
}

static inline float moert_f32_of_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof(x));
    return x;
}

static inline uint64_t moert_f64_bits(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof(u));
    return u;
}

static inline double moert_f64_of_bits(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof(x));
    return x;
}

/* binary16 -> binary32 pattern, exact; the payload of a NaN is kept. */
static inline uint32_t moert_f16_widen(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, m = h & 0x3FF, e = (h >> 10) & 31;

    if (e == 31)
        return sign | MOERT_F32_INF | m << 13;
    if (e)
        return sign | (e + 112) << 23 | m << 13;
    if (!m)
        return sign;
    for (e = 113; !(m & 0x400); e--)
        m <<= 1;
    return sign | e << 23 | (m & 0x3FF) << 13;
}

/* binary32 -> binary64 pattern, exact; NaN becomes the canonical one. */
static inline uint64_t moert_f32_widen(uint32_t u)
{
    uint64_t sign = (uint64_t)(u >> 31) << 63, m = u & 0x7FFFFF, e = (u >> 23) & 255;

    if (e == 255)
        return m ? 0x7FF8000000000000u : sign | 0x7FF0000000000000u;
    if (!e && !m)
        return sign;
    if (!e)
        for (e = 1; !(m & 0x800000); e--)
            m <<= 1;
    return sign | (uint64_t)(e + 896) << 52 | (m & 0x7FFFFF) << 29;
}

/* x * 2^(127-byte) -> E4M3, nearest even, saturating; u = bits of x. Any byte 0..254. Definition: mxfp8.md 2. */
uint8_t moert_e4m3_from_bits(uint32_t u, int byte);
uint8_t moert_e5m2_from_bits(uint32_t u, int byte);

/* Scale byte of a largest magnitude (bits without sign, finite). */
uint8_t moert_scale_from_bits(uint32_t amax, uint32_t rule);

#endif
