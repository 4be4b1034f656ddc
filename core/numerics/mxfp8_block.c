/* core/numerics/mxfp8_block.c: quantises one MXFP8 block (mxfp8.md 2-4) with integer arithmetic.
 *
 * Fast path: each element becomes a 16-bit "upper" pattern: the upper half of its binary32 pattern, with the lowest bit
 * set when anything was cut off. E4M3 keeps 3 fraction bits and upper patterns have 7, so the lowest one lies below the
 * rounding bit even for subnormal results: rounding from the upper pattern equals rounding from the value, and the
 * scale rules' thresholds (multiples of 2^19 in the fraction) compare alike. Eight lanes of 16 bits then do all the
 * work. Slow path, one element at a time: non-finite blocks, and tiny blocks whose elements may be binary32 subnormals.
 */
#include <moert/float8.h>

#include "core/numerics/mxfp8.h"

#include "core/base/error.h"
#include "core/numerics/bits.h"

#define BLOCK MOERT_MXFP8_BLOCK
/* From this scale byte on, every binary32 subnormal rounds to zero, as the fast path takes for granted. */
#define FAST_BYTE_MIN  16
#define UPPER_INF      (MOERT_F32_INF >> 16)
#define LANES          8
#define SCALED_464     0x468u     /* upper pattern of 464 less that of 2^(byte-127): above it 448 is not the nearest */
#define SCALED_464_F32 0x4680000u /* the same for binary32, exponent in steps of 1 << 23 */

typedef int16_t lanes __attribute__((vector_size(2 * LANES)));
typedef uint8_t bytes __attribute__((vector_size(LANES)));

uint8_t moert_scale_from_bits(uint32_t amax, uint32_t rule)
{
    uint32_t m = amax & 0x7FFFFF;
    int e = (int)(amax >> 23);

    switch (rule) {
    case MOERT_FLOOR: break;
    case MOERT_CEIL: e += m > 0; break;
    case MOERT_EVEN: e = (int)((amax + 0x80000) >> 23); break;
    case MOERT_T175: e = (int)((amax + 0x200000) >> 23); break;
    default: e += m > 0x600000; break; /* RCEIL: 448 = 1.75 * 2^8 */
    }
    return e < 8 ? 0 : (uint8_t)(e - 8);
}

moert_status_t moert_quantizer_init(struct moert_quantizer *ret, moert_dtype_t dtype,
                                    const struct moert_mxfp8_params *params, struct moert_error *err)
{
    struct moert_quantizer q = {.dtype = dtype, .element_size = dtype == MOERT_F32 ? 4 : 2};
    uint64_t amax_min;

    if (dtype != MOERT_F32 && dtype != MOERT_BF16 && dtype != MOERT_F16)
        return moert_fail(err, MOERT_E_DTYPE, "x-dtype", "dtype %u cannot be quantised to MXFP8; give F32, BF16 or F16",
                          dtype);
    if (params) {
        moert_status_t status = moert_check_size(err, "moert_mxfp8_params", params->size, sizeof(*params));
        if (status)
            return status;
        if (params->rule >= MOERT_SCALE_RULE_COUNT)
            return moert_fail(err, MOERT_E_VALUE, "field",
                              "scale rule %u is unknown; known: 0 rceil, 1 floor, 2 ceil, 3 even, 4 t175",
                              params->rule);
        if (params->nonfinite >= MOERT_NONFINITE_COUNT)
            return moert_fail(err, MOERT_E_VALUE, "field", "nonfinite policy %u is unknown; known: 0..%d",
                              params->nonfinite, MOERT_NONFINITE_COUNT - 1);
        if (params->flush_tiny > 1)
            return moert_fail(err, MOERT_E_VALUE, "field", "flush_tiny is %u; must be 0 or 1", params->flush_tiny);
        amax_min = moert_f64_bits(params->amax_min);
        if (amax_min > moert_f64_bits(0x1p127))
            return moert_fail(err, MOERT_E_VALUE, "field", "amax_min is %g; must be within 0..2^127", params->amax_min);
        q.rule = params->rule;
        q.nonfinite = params->nonfinite;
        q.flush_tiny = params->flush_tiny;
        q.amax_min = moert_f32_bits(moert_f32_from_double(params->amax_min));
    }
    *ret = q;
    return MOERT_OK;
}

/* ------------------------------------------------------------------ slow path */

static void widen(const struct moert_quantizer *q, const void *x, uint32_t u[BLOCK])
{
    uint16_t h[BLOCK];

    if (q->dtype == MOERT_F32) {
        memcpy(u, x, BLOCK * sizeof(*u));
        return;
    }
    memcpy(h, x, sizeof(h));
    for (unsigned i = 0; i < BLOCK; i++)
        u[i] = q->dtype == MOERT_BF16 ? (uint32_t)h[i] << 16 : moert_f16_widen(h[i]);
}

/* Blocks with NaN or Inf: what each policy makes of one element, the block's byte being settled. */
static uint8_t special_element(const struct moert_quantizer *q, uint32_t u, int byte, int block_has_inf)
{
    uint32_t a = u & 0x7FFFFFFF;
    uint8_t sign = (uint8_t)(u >> 24 & 0x80);

    if (q->nonfinite == MOERT_NONFINITE_SATURATE_POS) {
        if (a > MOERT_F32_INF || a == MOERT_F32_INF)
            return 0x7E;
        if (block_has_inf)
            return sign;
    }
    if (byte == 0xFF) /* aiter-hip with an Inf */
        return a >= MOERT_F32_INF ? 0x7F : 0x00;
    if (q->flush_tiny && byte == 0 && a <= MOERT_F32_INF)
        return sign;
    return moert_e4m3_from_bits(u, byte);
}

static uint8_t special_byte(const struct moert_quantizer *q, uint32_t amax, int has_nan, int has_inf)
{
    switch (q->nonfinite) {
    case MOERT_NONFINITE_CONTAIN:
    case MOERT_NONFINITE_SATURATE_POS: break;
    case MOERT_NONFINITE_NAN_BLOCK:
        if (has_nan)
            return 0xFF;
        break;
    case MOERT_NONFINITE_INF_BLOCK:
        if (has_inf)
            return 0xFF;
        break;
    default: return 0xFF;
    }
    return has_inf ? 254 : moert_scale_from_bits(amax, q->rule);
}

static uint8_t slow_block(const struct moert_quantizer *q, const void *x, uint8_t codes[BLOCK], uint64_t *saturated)
{
    uint32_t u[BLOCK], amax = q->amax_min;
    int has_nan = 0, has_inf = 0;
    uint8_t byte;

    widen(q, x, u);
    for (unsigned i = 0; i < BLOCK; i++) {
        uint32_t a = u[i] & 0x7FFFFFFF;
        has_nan |= a > MOERT_F32_INF;
        has_inf |= a == MOERT_F32_INF;
        if (a < MOERT_F32_INF && a > amax)
            amax = a;
    }
    byte = has_nan || has_inf ? special_byte(q, amax, has_nan, has_inf) : moert_scale_from_bits(amax, q->rule);
    if (byte == 0xFF && q->nonfinite != MOERT_NONFINITE_INF_BLOCK) {
        memset(codes, 0x7F, BLOCK);
        return byte;
    }
    for (unsigned i = 0; i < BLOCK; i++) {
        uint32_t a = u[i] & 0x7FFFFFFF;
        codes[i] = special_element(q, u[i], byte, has_inf);
        *saturated += a < MOERT_F32_INF && (int64_t)a - ((int64_t)byte << 23) > SCALED_464_F32;
    }
    return byte;
}

/* ------------------------------------------------------------------ fast path */

/* A plain loop of constant length: compilers turn it into vector shifts and packs. */
static inline void upper_f32(const void *x, lanes h[BLOCK / LANES])
{
    uint32_t u[BLOCK];
    int16_t upper[BLOCK];

    memcpy(u, x, sizeof(u));
    for (unsigned i = 0; i < BLOCK; i++)
        upper[i] = (int16_t)(u[i] >> 16 | ((u[i] & 0xFFFF) != 0));
    memcpy(h, upper, sizeof(upper));
}

/* Subnormal binary16 values are reported, not converted. */
static inline lanes upper_f16(const void *x, lanes *subnormal)
{
    lanes h, a, r;

    memcpy(&h, x, sizeof(h));
    a = h & 0x7FFF;
    *subnormal |= (a < 0x400) & (a > 0);
    r = (a >> 3) + (112 << 7);
    r |= ((a & 7) != 0) & 1;
    r |= (a >= 0x7C00) & 0x7F80;
    return (r & (a > 0)) | (h & (int16_t)-0x8000);
}

/* Upper patterns of a block; 0 when the fast path cannot take it. */
static inline int upper_block(const struct moert_quantizer *q, const unsigned char *x, lanes h[BLOCK / LANES])
{
    lanes subnormal = {0};
    uint64_t any[2];

    if (q->dtype == MOERT_F32)
        upper_f32(x, h);
    else if (q->dtype == MOERT_BF16)
        memcpy(h, x, 2 * BLOCK);
    else
        for (unsigned i = 0; i < BLOCK / LANES; i++)
            h[i] = upper_f16(x + 2 * LANES * i, &subnormal);
    memcpy(any, &subnormal, sizeof(any));
    return !(any[0] | any[1]);
}

static inline lanes larger(lanes a, lanes b)
{
    lanes mask = a > b;
    return (a & mask) | (b & ~mask);
}

static inline uint32_t largest(const lanes h[BLOCK / LANES])
{
    lanes m = larger(larger(h[0] & 0x7FFF, h[1] & 0x7FFF), larger(h[2] & 0x7FFF, h[3] & 0x7FFF));
    int16_t a = 0;

    for (unsigned i = 0; i < LANES; i++)
        if (m[i] > a)
            a = m[i];
    return (uint32_t)a;
}

/* E4M3 codes of upper patterns. ex: exponent above the subnormals, kept >= 0; each step below 0 shifts the significand,
 * whose six spare low bits lose nothing up to a shift of 4; from 5 on the result is 0. */
static inline lanes encode_lanes(lanes h, int16_t byte)
{
    lanes a = h & 0x7FFF, ex = (a >> 7) - (int16_t)(byte - 6), below = ex < 0, shift = -ex & below;
    lanes m = ((a & 0x7F) | 0x80) << 6, n, over;

    m -= (m - (m >> 1)) & -(shift & 1);
    m -= (m - (m >> 2)) & -(shift >> 1 & 1);
    m -= (m - (m >> 4)) & -(shift >> 2 & 1);
    m &= ~(shift > 4);
    n = (m + 0x1FF + (m >> 10 & 1)) >> 10;
    n += (ex & ~below) << 3;
    over = n > 0x7E;
    n = (n & ~over) | (over & 0x7E);
    return n | (h >> 8 & 0x80);
}

static uint64_t count_cut(const lanes h[BLOCK / LANES], int byte)
{
    uint64_t n = 0;

    for (unsigned i = 0; i < BLOCK; i++)
        n += (h[i / LANES][i % LANES] & 0x7FFF) - (byte << 7) > (int)SCALED_464;
    return n;
}

uint8_t moert_quantizer_block(const struct moert_quantizer *q, const void *x, unsigned n, uint8_t codes[BLOCK],
                              uint64_t *saturated)
{
    unsigned char padded[BLOCK * 4] = {0};
    lanes h[BLOCK / LANES];
    uint32_t amax;
    uint8_t byte;

    if (n < BLOCK) {
        memcpy(padded, x, (size_t)n * q->element_size);
        x = padded;
    }
    if (!upper_block(q, x, h))
        return slow_block(q, x, codes, saturated);
    amax = largest(h) << 16;
    if (amax >= MOERT_F32_INF)
        return slow_block(q, x, codes, saturated);
    byte = moert_scale_from_bits(amax > q->amax_min ? amax : q->amax_min, q->rule);
    if (byte < FAST_BYTE_MIN)
        return slow_block(q, x, codes, saturated);
    for (unsigned i = 0; i < BLOCK / LANES; i++) {
        bytes b = __builtin_convertvector(encode_lanes(h[i], byte), bytes);
        memcpy(codes + LANES * i, &b, sizeof(b));
    }
    if (q->rule == MOERT_FLOOR || q->rule == MOERT_EVEN)
        *saturated += count_cut(h, byte);
    return byte;
}
