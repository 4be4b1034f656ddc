/* core/numerics/float8.c: E4M3, E5M2 and E8M0 values one at a time (moert/float8.h). The quantiser's blocks are in
 * mxfp8.c. */
#include <moert/float8.h>

#include "core/numerics/bits.h"

/* binary32 pattern of an E4M3 magnitude c = 0..127: subnormals m * 2^-9 are normalised by hand. */
#define E4M3_SUBNORMAL(m)                                                                                              \
    ((m) == 0 ? 0u : (m) < 2 ? 118u << 23 : (m) < 4 ? 119u << 23 | ((m)&1u) << 22 : 120u << 23 | ((m)&3u) << 21)
#define E4M3_MAGNITUDE(c)                                                                                              \
    ((c) == 0x7F ? MOERT_F32_NAN : (c) < 8 ? E4M3_SUBNORMAL(c) : ((c) / 8u + 120u) << 23 | ((c) % 8u) << 20)
#define E4M3(c)    ((c) == 0xFF ? MOERT_F32_NAN : ((c) / 128u) << 31 | E4M3_MAGNITUDE((c) % 128u))
#define E4M3_4(c)  E4M3((c)), E4M3((c) + 1u), E4M3((c) + 2u), E4M3((c) + 3u)
#define E4M3_16(c) E4M3_4((c)), E4M3_4((c) + 4u), E4M3_4((c) + 8u), E4M3_4((c) + 12u)
#define E4M3_64(c) E4M3_16((c)), E4M3_16((c) + 16u), E4M3_16((c) + 32u), E4M3_16((c) + 48u)

const uint32_t moert_e4m3_table[256] = {E4M3_64(0u), E4M3_64(64u), E4M3_64(128u), E4M3_64(192u)};

/* What tells the two element formats apart for the encoder. */
struct element {
    int min_exponent; /* of the smallest normal value */
    int mantissa;     /* bits */
    uint8_t largest;  /* largest finite code */
};

static const struct element e4m3 = {-6, 3, 0x7E};
static const struct element e5m2 = {-14, 2, 0x7B};

/* Rounds once, to nearest even, straight from the input: no intermediate format, no division. */
static inline uint8_t encode(uint32_t u, int byte, const struct element *format)
{
    uint32_t sign = (u >> 24) & 0x80, a = u & 0x7FFFFFFF, m = a & 0x7FFFFF, n, rest, half;
    int e = (int)(a >> 23), drop = 23 - format->mantissa;

    if (a > MOERT_F32_INF)
        return 0x7F;
    if (a == MOERT_F32_INF)
        return (uint8_t)(sign | format->largest);
    if (e) {
        m |= 0x800000;
    } else {
        if (!m)
            return (uint8_t)sign;
        for (e = 1; !(m & 0x800000); e--)
            m <<= 1;
    }
    e -= byte; /* exponent of the scaled value */
    if (e < format->min_exponent)
        drop += format->min_exponent - e;
    if (drop > 24)
        return (uint8_t)sign;
    n = m >> drop;
    rest = m & ((1u << drop) - 1);
    half = 1u << (drop - 1);
    n += rest > half || (rest == half && (n & 1));
    if (e >= format->min_exponent) /* the leading one of m counts as exponent 1, and a carry goes where it belongs */
        n += (uint32_t)(e - format->min_exponent) << format->mantissa;
    return (uint8_t)(sign | (n > format->largest ? format->largest : n));
}

uint8_t moert_e4m3_from_bits(uint32_t u, int byte)
{
    return encode(u, byte, &e4m3);
}

uint8_t moert_e5m2_from_bits(uint32_t u, int byte)
{
    return encode(u, byte, &e5m2);
}

uint8_t moert_e4m3_encode(float x, uint8_t byte)
{
    return encode(moert_f32_bits(x), byte, &e4m3);
}

uint8_t moert_e5m2_encode(float x, uint8_t byte)
{
    return encode(moert_f32_bits(x), byte, &e5m2);
}

float moert_e4m3_decode(uint8_t code)
{
    return moert_f32_of_bits(moert_e4m3_table[code]);
}

/* E5M2 is the upper half of binary16. */
float moert_e5m2_decode(uint8_t code)
{
    if ((code & 0x7F) > 0x7C)
        return moert_f32_of_bits(MOERT_F32_NAN);
    return moert_f32_of_bits(moert_f16_widen((uint16_t)(code << 8)));
}

float moert_e8m0_decode(uint8_t byte)
{
    return moert_f32_of_bits(byte == 255 ? MOERT_F32_NAN : byte == 0 ? 0x00400000u : (uint32_t)byte << 23);
}

float moert_e8m0_reciprocal(uint8_t byte)
{
    return moert_f32_of_bits(byte == 255 ? MOERT_F32_NAN : byte == 254 ? 0x00400000u : (uint32_t)(254 - byte) << 23);
}
