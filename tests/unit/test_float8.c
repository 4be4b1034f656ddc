/* Single values: encodings, rounding, conversions (mxfp8.md 1, 2, 10, 11; vectors README 3). */
#include "numerics.h"

#include <math.h>

typedef uint8_t (*encoder)(float x, uint8_t byte);
typedef float (*decoder)(uint8_t code);

static uint64_t hash_encoder(encoder encode, int f16)
{
    uint64_t hash = FNV_START;
    for (uint32_t h = 0; h < 0x10000; h++)
        hash = fnv_byte(hash, encode(f16 ? moert_f16_to_float((uint16_t)h) : moert_bf16_to_float((uint16_t)h), 127));
    return hash;
}

static uint64_t hash_decoder(decoder decode)
{
    uint64_t hash = FNV_START;
    for (unsigned c = 0; c < 256; c++) {
        uint32_t u = moert_f32_bits(decode((uint8_t)c));
        uint8_t le[4] = {(uint8_t)u, (uint8_t)(u >> 8), (uint8_t)(u >> 16), (uint8_t)(u >> 24)};
        hash = fnv(hash, le, 4);
    }
    return hash;
}

/* The anchors of mxfp8.md 10 over all 16-bit patterns and all codes, in every floating-point environment. */
Test(float8, anchors)
{
    for (int env = 0; env < ENV_COUNT; env++) {
        uint64_t got[8];
        uint64_t want[] = {0xd8b2feb674a31125u, 0x55456763debf12a5u, 0x22c10a2b6f34bb85u, 0xd102d7d39f29d5a5u,
                           0xdad1d9c50f749ca5u, 0x6d2c8b41c3f0e5a5u, 0xfcb74a1850280f25u, 0x6c1e56b6fb09c905u};
        enter_environment(env);
        got[0] = hash_encoder(moert_e4m3_encode, 0);
        got[1] = hash_encoder(moert_e4m3_encode, 1);
        got[2] = hash_encoder(moert_e5m2_encode, 0);
        got[3] = hash_encoder(moert_e5m2_encode, 1);
        got[4] = hash_decoder(moert_e4m3_decode);
        got[5] = hash_decoder(moert_e8m0_decode);
        got[6] = hash_decoder(moert_e8m0_reciprocal);
        got[7] = hash_decoder(moert_e5m2_decode);
        enter_environment(ENV_PLAIN);
        for (int i = 0; i < 8; i++)
            cr_expect_eq(got[i], want[i], "anchor %d in environment %d is %016llx", i, env, (unsigned long long)got[i]);
    }
}

/* Nearest code by comparing exact distances: shares no step with the encoder. */
static uint8_t nearest_e4m3(float x)
{
    double a = fabs((double)x);
    uint8_t sign = signbit(x) ? 0x80 : 0, best = 0;

    if (isnan(x))
        return 0x7F;
    for (unsigned c = 1; c < 0x7F; c++) {
        double d = fabs((double)moert_e4m3_decode((uint8_t)c) - a), b = fabs((double)moert_e4m3_decode(best) - a);
        if (d < b || (d == b && c % 2 == 0))
            best = (uint8_t)c;
    }
    return isinf(x) ? (uint8_t)(sign | 0x7E) : (uint8_t)(sign | best);
}

Test(float8, sampled_against_distances)
{
    uint32_t x = SEED;
    for (int i = 0; i < 100000; i++) {
        uint32_t u = xorshift(&x);
        float v = moert_f32_of_bits(i % 2 ? u : (u & 0x807FFFFF) | (115 + (u >> 23) % 24) << 23);
        cr_assert_eq(moert_e4m3_encode(v, 127), nearest_e4m3(v), "%a", (double)v);
    }
}

/* Every 1024th part of the binary32 patterns: the scaled encoder equals the unscaled one on the scaled value. */
Test(float8, scaled_sample)
{
    for (uint64_t u = 0; u < 0x100000000u; u += 1021) {
        float x = moert_f32_of_bits((uint32_t)u);
        int e = (int)(u >> 23 & 255);
        for (int shift = -60; shift <= 60; shift += 24)
            if (e + shift > 0 && e + shift < 255 && e > 0 && e < 255) {
                float y = moert_f32_of_bits((uint32_t)u + ((uint32_t)shift << 23));
                uint8_t code = moert_e4m3_encode(x, 127);
                if (code != moert_e4m3_encode(y, (uint8_t)(127 + shift)))
                    cr_assert_fail("%a", (double)x);
            }
    }
}

/* All 2^32 patterns: hash and the counts of mxfp8.md 10. A minute; MOERT_TEST_EXHAUSTIVE=1 asks for it. */
Test(float8, all_binary32)
{
    static const struct {
        uint8_t code;
        uint64_t count;
    } counts[] = {{0x00, 981467137},  {0x01, 12582911}, {0x02, 6291457},   {0x07, 2097151},
                  {0x08, 1572865},    {0x38, 1048577},  {0x77, 1048575},   {0x7D, 1048575},
                  {0x7E, 1000865793}, {0x7F, 16777214}, {0x80, 981467137}, {0xFF, 0}};
    uint64_t hash = FNV_START, scale_hash = FNV_START, have[256] = {0}, bytes[256] = {0};

    if (!exhaustive())
        cr_skip_test("set MOERT_TEST_EXHAUSTIVE=1");
    for (uint64_t u = 0; u < 0x100000000u; u++) {
        uint8_t code = moert_e4m3_encode(moert_f32_of_bits((uint32_t)u), 127);
        hash = fnv_byte(hash, code);
        have[code]++;
        if (u < 0x7F800000) {
            uint8_t byte = moert_mxfp8_scale_byte(moert_f32_of_bits((uint32_t)u), MOERT_RCEIL);
            scale_hash = fnv_byte(scale_hash, byte);
            bytes[byte]++;
        }
    }
    cr_expect_eq(hash, 0xdbe8daced26223a5u);
    cr_expect_eq(scale_hash, 0xf5481fd6ab0223d2u);
    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++)
        cr_expect_eq(have[counts[i].code], counts[i].count, "code %02X", counts[i].code);
    cr_expect_eq(bytes[0], 73400321u);
    cr_expect_eq(bytes[247], 2097151u);
    for (int i = 1; i < 247; i++)
        cr_expect_eq(bytes[i], 8388608u, "byte %d", i);
}

/* Rounding vectors of mxfp8.md 3 and cases 33-39 of section 11. */
Test(float8, rounding_vectors)
{
    static const struct {
        uint32_t bits;
        uint8_t code;
    } v[] = {{0x3A800000, 0x00}, {0x3A800001, 0x01}, {0x3B3FFFFF, 0x01}, {0x3B400000, 0x02}, {0x3C6FFFFF, 0x07},
             {0x3C700000, 0x08}, {0x3F880000, 0x38}, {0x3F880001, 0x39}, {0x3F980000, 0x3A}, {0x43E00000, 0x7E},
             {0x43E60000, 0x7E}, {0x43E80000, 0x7E}, {0x43E80001, 0x7E}, {0x7F800000, 0x7E}, {0xFF800000, 0xFE},
             {0x7FC00000, 0x7F}, {0xFFC00001, 0x7F}, {0x7F800001, 0x7F}, {0x80000000, 0x80}, {0xB089705F, 0x80}};
    static const struct {
        float x;
        uint8_t code;
    } truncation[] = {{400.199585f, 0x7D}, {272.156555f, 0x79}, {136.002075f, 0x71}};

    for (size_t i = 0; i < sizeof(v) / sizeof(*v); i++)
        cr_expect_eq(moert_e4m3_encode(moert_f32_of_bits(v[i].bits), 127), v[i].code, "%08X", v[i].bits);
    for (size_t i = 0; i < 3; i++)
        cr_expect_eq(moert_e4m3_encode(truncation[i].x, 127), truncation[i].code);
    for (unsigned c = 0; c < 256; c++)
        if ((c & 0x7F) != 0x7F)
            cr_expect_eq(moert_e4m3_encode(moert_e4m3_decode((uint8_t)c), 127), c, "enc(dec(%02X))", c);
    for (unsigned c = 0; c < 256; c++)
        if ((c & 0x7F) < 0x7C)
            cr_expect_eq(moert_e5m2_encode(moert_e5m2_decode((uint8_t)c), 127), c, "e5m2 enc(dec(%02X))", c);
    for (unsigned m = 1; m < 8; m++)
        cr_expect_eq(moert_e4m3_decode((uint8_t)m), (float)m / 512);
    cr_expect_eq(moert_f32_bits(moert_e4m3_decode(0x80)), 0x80000000u);
    cr_expect_eq(moert_e5m2_encode(INFINITY, 127), 0x7B);
    cr_expect_eq(moert_e5m2_encode(-INFINITY, 127), 0xFB);
    cr_expect_eq(moert_e5m2_encode(NAN, 127), 0x7F);
}

/* Case 20: ends of E8M0. */
Test(float8, e8m0_ends)
{
    cr_expect_eq(moert_f32_bits(moert_e8m0_reciprocal(0)), 0x7F000000u);
    cr_expect_eq(moert_f32_bits(moert_e8m0_reciprocal(254)), 0x00400000u);
    cr_expect_eq(moert_f32_bits(moert_e8m0_reciprocal(255)), 0x7FC00000u);
    cr_expect_eq(moert_f32_bits(moert_e8m0_decode(0)), 0x00400000u);
    cr_expect_eq(moert_f32_bits(moert_e8m0_decode(255)), 0x7FC00000u);
    cr_expect_eq(moert_f16_from_float(moert_e8m0_decode(103)), 0x0001); /* case 22 */
    cr_expect_eq(moert_f16_from_float(moert_e8m0_decode(112)), 0x0200);
    cr_expect_eq(moert_f16_from_float(moert_e8m0_decode(102)), 0x0000);
    cr_expect_eq(moert_f16_from_float(moert_e8m0_decode(143)), 0x7C00);
    cr_expect_eq(moert_bf16_from_float(moert_e8m0_decode(0)), 0x0040);
}

static int same_value(float a, float b)
{
    return isnan(a) ? isnan(b) : moert_f32_bits(a) == moert_f32_bits(b);
}

Test(float8, golden_tables)
{
    static const struct {
        const char *field;
        decoder decode;
    } decoders[] = {{"e4m3fn.decode", moert_e4m3_decode},
                    {"e5m2.decode", moert_e5m2_decode},
                    {"e8m0.decode", moert_e8m0_decode},
                    {"e8m0.reciprocal", moert_e8m0_reciprocal}};
    moert_safetensors_t *file = golden_open("tables");

    for (size_t i = 0; i < 4; i++) {
        const struct moert_st_tensor *t = golden(file, "table", decoders[i].field);
        cr_assert_eq(elements(t), 256u);
        for (unsigned c = 0; c < 256; c++) {
            float want;
            memcpy(&want, (const char *)t->data + 4 * c, 4);
            cr_expect(same_value(decoders[i].decode((uint8_t)c), want), "%s %02X", decoders[i].field, c);
        }
    }
    moert_safetensors_close(file);
}

Test(float8, golden_conversions)
{
    moert_safetensors_t *file = golden_open("tables");
    const struct moert_st_tensor *x = golden(file, "f32", "x");
    const uint8_t *e4m3 = golden(file, "f32", "e4m3_sat")->data, *e5m2 = golden(file, "f32", "e5m2_sat")->data;
    const struct moert_st_tensor *bf16 = golden(file, "f32", "bf16"), *f16 = golden(file, "f32", "f16");

    cr_assert_eq(elements(x), 4096u);
    for (uint64_t i = 0; i < 4096; i++) {
        uint16_t b, h;
        float v;
        memcpy(&v, (const char *)x->data + 4 * i, 4);
        memcpy(&b, (const char *)bf16->data + 2 * i, 2);
        memcpy(&h, (const char *)f16->data + 2 * i, 2);
        cr_expect_eq(moert_e4m3_encode(v, 127), e4m3[i], "e4m3 of %08X", moert_f32_bits(v));
        cr_expect_eq(moert_e5m2_encode(v, 127), e5m2[i], "e5m2 of %08X", moert_f32_bits(v));
        cr_expect_eq(moert_bf16_from_float(v), b, "bf16 of %08X", moert_f32_bits(v));
        cr_expect_eq(moert_f16_from_float(v), h, "f16 of %08X", moert_f32_bits(v));
    }
    moert_safetensors_close(file);
}

Test(float8, golden_all_16_bit)
{
    moert_safetensors_t *file = golden_open("tables");
    const uint8_t *bf16 = golden(file, "all", "bf16.e4m3_sat")->data, *f16 = golden(file, "all", "f16.e4m3_sat")->data;
    const uint8_t *byte = golden(file, "all", "bf16.rceil_byte")->data;
    uint64_t hash = FNV_START;

    for (uint32_t h = 0; h < 0x10000; h++) {
        cr_assert_eq(moert_e4m3_encode(moert_bf16_to_float((uint16_t)h), 127), bf16[h], "bf16 %04X", h);
        cr_assert_eq(moert_e4m3_encode(moert_f16_to_float((uint16_t)h), 127), f16[h], "f16 %04X", h);
    }
    for (uint32_t h = 0; h < 0x7F80; h++) {
        uint8_t b = moert_mxfp8_scale_byte(moert_bf16_to_float((uint16_t)h), MOERT_RCEIL);
        hash = fnv_byte(hash, b);
        cr_assert_eq(b, byte[h], "amax %04X", h);
    }
    cr_expect_eq(hash, 0x8e52a9a643a475b2u);
    moert_safetensors_close(file);
}

/* ------------------------------------------------------------------ conversions from binary64 */

/* Checks `got` against its neighbours: nearer than both, and even on a tie. max: pattern of the largest finite value.
 */
static int is_nearest(double x, uint16_t got, uint16_t max, float (*decode)(uint16_t))
{
    uint16_t a = got & 0x7FFF;
    double v = fabs(x), self = (double)decode(a), below, above;

    if ((got >> 15) != (signbit(x) != 0))
        return 0;
    if (a > max) /* Inf: at or beyond half a step above the largest */
        return v >= (double)decode(max) + ((double)decode(max) - (double)decode((uint16_t)(max - 1))) / 2;
    above = a == max ? 2 * self - (double)decode((uint16_t)(max - 1)) : (double)decode((uint16_t)(a + 1));
    below = a ? (double)decode((uint16_t)(a - 1)) : -above;
    if (v > (self + above) / 2 || v < (self + below) / 2)
        return 0;
    return !(v == (self + above) / 2 || v == (self + below) / 2) || a % 2 == 0;
}

static double hard_double(uint32_t *x, int spread)
{
    uint64_t m = (uint64_t)xorshift(x) << 32 | xorshift(x);
    int e = 1023 - spread + (int)(xorshift(x) % (unsigned)(2 * spread));
    switch (xorshift(x) % 4) {
    case 0: m &= ~0u; break;                                /* low bits set: just off a tie */
    case 1: m = (m & 0x000FF80000000000u) | (m & 1); break; /* ties of the 16-bit formats, or an ulp off */
    case 2: m = (m & 0x000FFFFFF0000000u) | (m & 1); break; /* ties of binary32 */
    default: break;
    }
    return moert_f64_of_bits((m & 0x800FFFFFFFFFFFFFu) | (uint64_t)e << 52);
}

Test(float8, double_to_16_bit)
{
    uint32_t x = SEED;
    for (int i = 0; i < 200000; i++) {
        double v = hard_double(&x, 30), w = hard_double(&x, 150);
        cr_assert(is_nearest(v, moert_f16_from_double(v), 0x7BFF, moert_f16_to_float), "%a", v);
        cr_assert(is_nearest(w, moert_bf16_from_double(w), 0x7F7F, moert_bf16_to_float), "%a", w);
    }
    /* one rounding: through binary32 these would come out one step lower or higher */
    cr_expect_eq(moert_bf16_from_double(0x1.010000001p+0), 0x3F81);
    cr_expect_eq(moert_bf16_from_double(0x1.01p+0), 0x3F80);
    cr_expect_eq(moert_f16_from_double(0x1.002000001p+0), 0x3C01);
    cr_expect_eq(moert_f16_from_double(0x1p-25), 0x0000);
    cr_expect_eq(moert_f16_from_double(0x1.000000001p-25), 0x0001);
    cr_expect_eq(moert_bf16_from_double((double)NAN), 0x7FC0);
    cr_expect_eq(moert_f16_from_double(-(double)NAN), 0x7E00);
    cr_expect_eq(moert_f16_from_double(-65520.0), 0xFC00);
    cr_expect_eq(moert_f16_from_double(65519.0), 0x7BFF);
    cr_expect_eq(moert_bf16_from_double(0x1p-1074), 0x0000);
    cr_expect_eq(moert_bf16_from_double(-0x1p-1074), 0x8000);
}

/* The hardware's conversion is the reference, in its default mode. */
Test(float8, double_to_float)
{
    uint32_t x = SEED;
    for (int i = 0; i < 200000; i++) {
        double v = hard_double(&x, 160);
        volatile float want = (float)v;
        cr_assert_eq(moert_f32_bits(moert_f32_from_double(v)), moert_f32_bits(want), "%a", v);
    }
}

Test(float8, load_and_store)
{
    unsigned char data[64], *odd = data + 1; /* files give any alignment */
    static const double values[] = {0.0, -0.0, 1.5, -3.0, 0x1p-14, 65504, 0x1p-24};
    static const moert_dtype_t dtypes[] = {MOERT_F32, MOERT_BF16, MOERT_F16, MOERT_F64};

    for (int d = 0; d < 4; d++)
        for (uint64_t i = 0; i < 7; i++) {
            double want = dtypes[d] == MOERT_BF16 && i == 5 ? 65536 : values[i];
            moert_store(odd, dtypes[d], i, values[i]);
            cr_expect_eq(moert_f64_bits(moert_load(odd, dtypes[d], i)), moert_f64_bits(want), "dtype %u value %g",
                         dtypes[d], values[i]);
        }
    enter_environment(ENV_FLUSH);
    moert_store(odd, MOERT_F32, 0, 0x1p-149);
    double tiny = moert_load(odd, MOERT_F32, 0);
    enter_environment(ENV_PLAIN);
    cr_expect_eq(moert_f64_bits(tiny), moert_f64_bits(0x1p-149), "subnormal lost under FTZ/DAZ");
}
