/* core/numerics/convert.c: conversions between binary64, binary32, bfloat16 and binary16, and typed element access
 * (moert/float8.h). Every narrowing rounds once, to nearest even. */
#include <moert/float8.h>

#include "core/numerics/bits.h"

/* binary64 pattern -> a format with `exponent` and `mantissa` bits: sign, exponent, fraction as one integer. */
static inline uint32_t narrow(uint64_t u, int exponent, int mantissa, uint32_t nan)
{
    int bias = (1 << (exponent - 1)) - 1, e = (int)(u >> 52 & 0x7FF) - 1023, drop = 52 - mantissa;
    uint32_t sign = (uint32_t)(u >> 63) << (exponent + mantissa), infinity = ((1u << exponent) - 1) << mantissa, n;
    uint64_t m = (u & 0xFFFFFFFFFFFFFu) | 1ull << 52, rest, half;

    if (e == 1024)
        return m << 12 ? nan : sign | infinity;
    if (e > bias)
        return sign | infinity;
    if (e < 1 - bias)
        drop += 1 - bias - e;
    if (drop > 53) /* below half the smallest subnormal; binary64 subnormals and zero come here too */
        return sign;
    n = (uint32_t)(m >> drop);
    rest = m & ((1ull << drop) - 1);
    half = 1ull << (drop - 1);
    n += rest > half || (rest == half && (n & 1));
    if (e >= 1 - bias)
        n +=
            (uint32_t)(e + bias - 1) << mantissa; /* a carry out of the fraction makes the next exponent, or infinity */
    return sign | n;
}

uint16_t moert_bf16_from_float(float x)
{
    uint32_t u = moert_f32_bits(x);

    if ((u & 0x7FFFFFFF) > MOERT_F32_INF)
        return MOERT_BF16_NAN;
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

uint16_t moert_bf16_from_double(double x)
{
    return (uint16_t)narrow(moert_f64_bits(x), 8, 7, MOERT_BF16_NAN);
}

float moert_bf16_to_float(uint16_t bits)
{
    return moert_f32_of_bits((uint32_t)bits << 16);
}

uint16_t moert_f16_from_float(float x)
{
    return (uint16_t)narrow(moert_f32_widen(moert_f32_bits(x)), 5, 10, MOERT_F16_NAN);
}

uint16_t moert_f16_from_double(double x)
{
    return (uint16_t)narrow(moert_f64_bits(x), 5, 10, MOERT_F16_NAN);
}

float moert_f16_to_float(uint16_t bits)
{
    return moert_f32_of_bits(moert_f16_widen(bits));
}

float moert_f32_from_double(double x)
{
    return moert_f32_of_bits(narrow(moert_f64_bits(x), 8, 23, MOERT_F32_NAN));
}

/* memcpy: data of files has any alignment. */
double moert_load(const void *data, moert_dtype_t dtype, uint64_t index)
{
    const unsigned char *p = data;
    uint64_t u64;
    uint32_t u32;
    uint16_t u16;

    switch (dtype) {
    case MOERT_F32: memcpy(&u32, p + 4 * index, sizeof(u32)); return moert_f64_of_bits(moert_f32_widen(u32));
    case MOERT_BF16:
        memcpy(&u16, p + 2 * index, sizeof(u16));
        return moert_f64_of_bits(moert_f32_widen((uint32_t)u16 << 16));
    case MOERT_F16:
        memcpy(&u16, p + 2 * index, sizeof(u16));
        return moert_f64_of_bits(moert_f32_widen(moert_f16_widen(u16)));
    case MOERT_F64: memcpy(&u64, p + 8 * index, sizeof(u64)); return moert_f64_of_bits(u64);
    default: return moert_f64_of_bits(0x7FF8000000000000u);
    }
}

void moert_store(void *data, moert_dtype_t dtype, uint64_t index, double value)
{
    unsigned char *p = data;
    uint32_t u32;
    uint16_t u16;

    switch (dtype) {
    case MOERT_F32:
        u32 = narrow(moert_f64_bits(value), 8, 23, MOERT_F32_NAN);
        memcpy(p + 4 * index, &u32, sizeof(u32));
        break;
    case MOERT_BF16:
        u16 = moert_bf16_from_double(value);
        memcpy(p + 2 * index, &u16, sizeof(u16));
        break;
    case MOERT_F16:
        u16 = moert_f16_from_double(value);
        memcpy(p + 2 * index, &u16, sizeof(u16));
        break;
    case MOERT_F64: memcpy(p + 8 * index, &value, sizeof(value)); break;
    default: break; /* other dtypes are refused by every caller */
    }
}
