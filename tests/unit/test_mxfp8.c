/* MXFP8 blocks and scale layouts: tables of mxfp8.md 2-6, 10, 11 and the golden file (vectors README 2). */
#include "numerics.h"

#include <math.h>

#define FIRST 5 /* listed elements of a table row; the rest of the block is fill */

static struct moert_mxfp8_params rule_params(moert_scale_rule_t rule)
{
    struct moert_mxfp8_params p = {.size = sizeof(p), .rule = rule};
    return p;
}

static struct moert_mxfp8_params profile(const char *name)
{
    struct moert_mxfp8_params p = {0};
    struct moert_error err = MOERT_ERROR_INIT;
    cr_assert_eq(moert_mxfp8_profile(name, &p, &err), MOERT_OK, "%s", err.text);
    return p;
}

static uint8_t quantize_block(const float x[32], const struct moert_mxfp8_params *params, uint8_t codes[32])
{
    struct moert_error err = MOERT_ERROR_INIT;
    uint8_t byte = 0xEE;
    cr_assert_eq(moert_mxfp8_quantize(x, MOERT_F32, 1, 32, 0, params, codes, &byte, NULL, &err), MOERT_OK, "%s",
                 err.text);
    return byte;
}

/* A block of n listed values, then `fill`. */
static void make_block(float x[32], const float *values, int n, float fill)
{
    for (int i = 0; i < 32; i++)
        x[i] = i < n ? values[i] : fill;
}

/* ------------------------------------------------------------------ tables of the specification */

struct rule_row {
    int n;
    float x[4];
    struct {
        uint8_t byte, code[4];
    } want[4]; /* FLOOR, CEIL, EVEN, RCEIL */
};

#define SAME(b, ...)                                                                                                   \
    {                                                                                                                  \
        {b, __VA_ARGS__}, {b, __VA_ARGS__}, {b, __VA_ARGS__},                                                          \
        {                                                                                                              \
            b, __VA_ARGS__                                                                                             \
        }                                                                                                              \
    }
#define C(...)                                                                                                         \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }

/* mxfp8.md 3. */
static const struct rule_row rule_rows[] = {
    {1, {0x1p-126f}, SAME(0, C(0x40))},
    {1, {0x1p-130f}, SAME(0, C(0x20))},
    {1, {0x1p-133f}, SAME(0, C(0x08))},
    {1, {0x1p-149f}, SAME(0, C(0x00))},
    {1, {0x1.cp-119f}, {{0, C(0x7E)}, {1, C(0x76)}, {0, C(0x7E)}, {0, C(0x7E)}}},
    {1, {0x1.c00002p-119f}, {{0, C(0x7E)}, {1, C(0x76)}, {0, C(0x7E)}, {1, C(0x76)}}},
    {1, {0x1.c2p-119f}, {{0, C(0x7E)}, {1, C(0x76)}, {0, C(0x7E)}, {1, C(0x76)}}},
    {2, {448, 1}, {{127, C(0x7E, 0x38)}, {128, C(0x76, 0x30)}, {127, C(0x7E, 0x38)}, {127, C(0x7E, 0x38)}}},
    {2, {3.5f, 1}, {{120, C(0x7E, 0x70)}, {121, C(0x76, 0x68)}, {120, C(0x7E, 0x70)}, {120, C(0x7E, 0x70)}}},
    {2, {450, 1}, {{127, C(0x7E, 0x38)}, {128, C(0x76, 0x30)}, {127, C(0x7E, 0x38)}, {128, C(0x76, 0x30)}}},
    {2, {464, 1}, {{127, C(0x7E, 0x38)}, {128, C(0x76, 0x30)}, {127, C(0x7E, 0x38)}, {128, C(0x76, 0x30)}}},
    {2, {480, 1}, {{127, C(0x7E, 0x38)}, {128, C(0x77, 0x30)}, {127, C(0x7E, 0x38)}, {128, C(0x77, 0x30)}}},
    {2, {0x1.fffffep8f, 1}, {{127, C(0x7E, 0x38)}, {128, C(0x78, 0x30)}, {128, C(0x78, 0x30)}, {128, C(0x78, 0x30)}}},
    {2, {512, 1}, SAME(128, C(0x78, 0x30))},
    {1, {1}, SAME(119, C(0x78))},
    {2, {1.9375f, 1}, {{119, C(0x7E, 0x78)}, {120, C(0x78, 0x70)}, {120, C(0x78, 0x70)}, {120, C(0x78, 0x70)}}},
    {4, {1, 0x1p-17f, 0x1p-18f, -0x1p-19f}, SAME(119, C(0x78, 0x01, 0x00, 0x80))},
    {2, {300, 1}, {{127, C(0x79, 0x38)}, {128, C(0x71, 0x30)}, {127, C(0x79, 0x38)}, {127, C(0x79, 0x38)}}},
    {2, {150, 1}, {{126, C(0x79, 0x40)}, {127, C(0x71, 0x38)}, {126, C(0x79, 0x40)}, {126, C(0x79, 0x40)}}},
    {2, {0x1.fffffep127f, 1}, {{246, C(0x7E, 0)}, {247, C(0x78, 0)}, {247, C(0x78, 0)}, {247, C(0x78, 0)}}},
    {2, {65504, 1}, {{134, C(0x7E, 0x04)}, {135, C(0x78, 0x02)}, {135, C(0x78, 0x02)}, {135, C(0x78, 0x02)}}},
};

/* The listed elements may stand anywhere in the block. */
static void check_rule_row(const struct rule_row *row, int rule_index, int at)
{
    static const moert_scale_rule_t rules[] = {MOERT_FLOOR, MOERT_CEIL, MOERT_EVEN, MOERT_RCEIL};
    struct moert_mxfp8_params p = rule_params(rules[rule_index]);
    float x[32] = {0};
    uint8_t codes[32];

    for (int i = 0; i < row->n; i++)
        x[(at + i) % 32] = row->x[i];
    cr_expect_eq(quantize_block(x, &p, codes), row->want[rule_index].byte, "rule %u, first %a", p.rule,
                 (double)row->x[0]);
    for (int i = 0; i < 32; i++) {
        uint8_t want = i < row->n ? row->want[rule_index].code[i] : 0;
        cr_expect_eq(codes[(at + i) % 32], want, "rule %u, first %a, element %d is %02X", p.rule, (double)row->x[0], i,
                     codes[(at + i) % 32]);
    }
}

Test(mxfp8, rule_vectors)
{
    for (int env = 0; env < ENV_COUNT; env++) {
        enter_environment(env);
        for (size_t r = 0; r < sizeof(rule_rows) / sizeof(*rule_rows); r++)
            for (int rule = 0; rule < 4; rule++)
                check_rule_row(&rule_rows[r], rule, env * 7);
        enter_environment(ENV_PLAIN);
    }
}

struct block_case {
    int number; /* of mxfp8.md 11 */
    const char *profile;
    int n;
    float fill;
    float x[FIRST];
    uint8_t byte, code[FIRST], fill_code;
};

static const struct block_case block_cases[] = {
    {1, "moert", 5, 0, {6, 0x1p-6f, 0x1p-9f, 0x1p-10f, -0x1p-11f}, 121, {0x7C, 0x38, 0x20, 0x18, 0x90}, 0},
    {2, "moert", 0, 1, {0}, 119, {0}, 0x78},
    {3, "moert", 2, 0, {300, 1}, 127, {0x79, 0x38}, 0},
    {5, "moert", 2, 0, {1.9f, 0.5f}, 120, {0x77, 0x68}, 0},
    {5, "ocp", 2, 0, {1.9f, 0.5f}, 119, {0x7E, 0x70}, 0},
    {6, "moert", 2, 0, {632, 1}, 128, {0x7A, 0x30}, 0},
    {7, "moert", 2, 0, {450, 1}, 128, {0x76, 0x30}, 0},
    {8, "moert", 3, 0, {957, 896, 460}, 129, {0x77, 0x76, 0x6E}, 0},
    {8, "ocp", 3, 0, {957, 896, 460}, 128, {0x7E, 0x7E, 0x76}, 0},
    {9, "ocp", 2, 0, {0x1.fffffep19f, 1024}, 138, {0x7E, 0x30}, 0},
    {12, "moert", 0, 0x1.cp-119f, {0}, 0, {0}, 0x7E},
    {12, "moert", 0, 0x1.c2p-119f, {0}, 1, {0}, 0x76},
    {13, "moert", 0, 1e-36f, {0}, 0, {0}, 0x73},
    {15, "moert", 0, 0, {0}, 0, {0}, 0x00},
    {17, "moert", 0, -0.0f, {0}, 0, {0}, 0x80},
    {18, "moert", 0, 0x1p-130f, {0}, 0, {0}, 0x20},
    {18, "flashinfer", 0, 0x1p-130f, {0}, 0, {0}, 0x00},
    {18, "flashinfer", 0, -0x1p-130f, {0}, 0, {0}, 0x80},
    {19, "te", 1, 1, {-INFINITY}, 254, {0xFE}, 0x00},
    {24, "ocp", 0, 0x1p-126f, {0}, 0, {0}, 0x40},
    {32, "ocp", 2, 0, {480, 1}, 127, {0x7E, 0x38}, 0},
    /* mxfp8.md 4: the reference vectors and the other profiles */
    {0, "moert", 1, 1, {INFINITY}, 255, {0x7F}, 0x7F},
    {0, "moert", 1, 1, {-INFINITY}, 255, {0x7F}, 0x7F},
    {0, "moert", 1, 1, {NAN}, 255, {0x7F}, 0x7F},
    {0, "torchao", 1, 1, {NAN}, 255, {0x7F}, 0x7F},
    {0, "ocp", 1, 1, {NAN}, 255, {0x7F}, 0x7F},
    {0, "te", 1, 1, {INFINITY}, 254, {0x7E}, 0x00},
    {0, "te", 1, 1, {NAN}, 119, {0x7F}, 0x78},
    {0, "flashinfer", 1, 1, {INFINITY}, 254, {0x7E}, 0x00},
    {0, "flashinfer", 1, 1, {-INFINITY}, 254, {0x7E}, 0x00},
    {0, "flashinfer", 2, 1, {INFINITY, -1}, 254, {0x7E, 0x80}, 0x00},
    {0, "flashinfer", 1, 1, {NAN}, 119, {0x7E}, 0x78},
    {0, "vllm-rocm", 1, 1, {-INFINITY}, 254, {0xFE}, 0x00},
    {0, "vllm-rocm", 0, 0x1p-130f, {0}, 0, {0}, 0x20},
    {0, "vllm-torch", 1, 1, {INFINITY}, 254, {0x7E}, 0x00},
    {0, "vllm-torch", 1, 1, {NAN}, 255, {0x7F}, 0x7F},
    {0, "aiter-hip", 0, 0, {0}, 85, {0}, 0x00},
    {0, "aiter-hip", 1, 1, {INFINITY}, 255, {0x7F}, 0x00},
    {0, "aiter-hip", 1, 1, {NAN}, 119, {0x7F}, 0x78},
    {0, "aiter-triton", 2, 0, {448, 1}, 128, {0x76, 0x30}, 0},
    {0, "aiter-triton", 2, 0, {447, 1}, 127, {0x7E, 0x38}, 0},
    {0, "aiter-triton", 1, 1, {NAN}, 119, {0x7F}, 0x78},
};

Test(mxfp8, reported_cases_and_profiles)
{
    for (int env = 0; env < ENV_COUNT; env++)
        for (size_t i = 0; i < sizeof(block_cases) / sizeof(*block_cases); i++) {
            const struct block_case *c = &block_cases[i];
            struct moert_mxfp8_params p = profile(c->profile);
            float x[32];
            uint8_t codes[32], byte;
            make_block(x, c->x, c->n, c->fill);
            enter_environment(env);
            byte = quantize_block(x, &p, codes);
            enter_environment(ENV_PLAIN);
            cr_expect_eq(byte, c->byte, "row %zu (%s, case %d): byte %u", i, c->profile, c->number, byte);
            for (int k = 0; k < 32; k++)
                cr_expect_eq(codes[k], k < c->n ? c->code[k] : c->fill_code, "row %zu (%s, case %d): code %d is %02X",
                             i, c->profile, c->number, k, codes[k]);
        }
}

/* Section 3, scale bytes alone; cases 10, 11 and 14; T175 differs from RCEIL at 448 * 2^k only, 247 bf16 values. */
Test(mxfp8, scale_bytes)
{
    unsigned differ = 0;

    cr_expect_eq(moert_mxfp8_scale_byte(moert_f32_of_bits(0x40600001), MOERT_RCEIL), 121);
    cr_expect_eq(moert_mxfp8_scale_byte(moert_f32_of_bits(0x43FFFFFF), MOERT_FLOOR), 127);
    cr_expect_eq(moert_mxfp8_scale_byte(0x1.fp127f, MOERT_EVEN), 247);
    cr_expect_eq(moert_mxfp8_scale_byte(0x1.cp127f, MOERT_T175), 247);
    for (uint32_t h = 0; h < 0x7F80; h++) {
        float amax = moert_bf16_to_float((uint16_t)h);
        int is_448 = (h & 0x7F) == 0x60;
        uint8_t rceil = moert_mxfp8_scale_byte(amax, MOERT_RCEIL), t175 = moert_mxfp8_scale_byte(amax, MOERT_T175);
        differ += rceil != t175;
        cr_assert(rceil == t175 || (is_448 && t175 == rceil + 1), "%04X", h);
    }
    cr_expect_eq(differ, 247u);
    for (uint64_t u = 0; u < 0x7F800000; u += 1023) { /* the definition: the smallest e with 448 * 2^e >= amax */
        float amax = moert_f32_of_bits((uint32_t)u);
        uint8_t b = moert_mxfp8_scale_byte(amax, MOERT_RCEIL);
        cr_assert(448 * ldexp(1, b - 127) >= (double)amax && (b == 0 || 448 * ldexp(1, b - 128) < (double)amax), "%a",
                  (double)amax);
    }
}

/* ------------------------------------------------------------------ anchors */

static uint64_t block_anchor(moert_dtype_t dtype, moert_scale_rule_t rule, unsigned *largest)
{
    struct moert_mxfp8_params p = rule_params(rule);
    uint32_t x = SEED;
    uint64_t hash = FNV_START;

    for (uint32_t k = 0; k < 1024; k++) {
        uint32_t u[32];
        uint16_t h[32];
        uint8_t codes[32], byte;
        for (int i = 0; i < 32; i++) {
            uint32_t v = xorshift(&x);
            u[i] = (v & 0x807FFFFF) | (100 + k % 32 + (v >> 8 & 15)) << 23;
            h[i] = (uint16_t)(u[i] >> 16);
        }
        cr_assert_eq(
            moert_mxfp8_quantize(dtype == MOERT_F32 ? (void *)u : h, dtype, 1, 32, 0, &p, codes, &byte, NULL, NULL),
            MOERT_OK);
        hash = fnv(fnv_byte(hash, byte), codes, 32);
        for (int i = 0; i < 32; i++)
            *largest += (codes[i] & 0x7F) == 0x7E;
    }
    return hash;
}

Test(mxfp8, block_anchors)
{
    static const struct {
        moert_dtype_t dtype;
        moert_scale_rule_t rule;
        uint64_t hash;
        unsigned largest;
    } cases[] = {{MOERT_F32, MOERT_RCEIL, 0x4006eb2dee9af0d8u, 90},
                 {MOERT_F32, MOERT_FLOOR, 0x64027779a0194d47u, 777},
                 {MOERT_BF16, MOERT_RCEIL, 0x2b6f4cf0b1f21ab9u, 107},
                 {MOERT_BF16, MOERT_FLOOR, 0xd098707b77eb2119u, 777}};

    for (int env = 0; env < ENV_COUNT; env++)
        for (int i = 0; i < 4; i++) {
            unsigned largest = 0;
            enter_environment(env);
            uint64_t hash = block_anchor(cases[i].dtype, cases[i].rule, &largest);
            enter_environment(ENV_PLAIN);
            cr_expect_eq(hash, cases[i].hash, "case %d environment %d", i, env);
            cr_expect_eq(largest, cases[i].largest);
        }
}

/* The block functions agree with the single-value ones for every rule, dtype and exponent. */
Test(mxfp8, blocks_equal_single_values)
{
    uint32_t x = SEED;

    for (int n = 0; n < 60000; n++) {
        struct moert_mxfp8_params p = rule_params((uint32_t)n % MOERT_SCALE_RULE_COUNT);
        moert_dtype_t dtype = n % 3 == 0 ? MOERT_F32 : n % 3 == 1 ? MOERT_BF16 : MOERT_F16;
        uint32_t base = xorshift(&x) % 254, u[32], amax = 0;
        uint16_t h[32];
        uint8_t codes[32], byte;
        for (int i = 0; i < 32; i++) {
            uint32_t v = xorshift(&x), e = base + (v >> 8) % 16;
            u[i] = (v & 0x807FFFFF) | (e > 254 ? 254 : e) << 23;
            if ((v >> 24) % 4 == 0)
                u[i] &= 0xFFF00000; /* ties and zeros */
            e = dtype == MOERT_F16 ? (v % 0x7C00 >> (v >> 28)) | (v >> 16 & 0x8000) : u[i] >> 16;
            h[i] = (uint16_t)e;
            if (dtype != MOERT_F32)
                u[i] = dtype == MOERT_BF16 ? (uint32_t)h[i] << 16 : moert_f32_bits(moert_f16_to_float(h[i]));
            amax = (u[i] & 0x7FFFFFFF) > amax ? u[i] & 0x7FFFFFFF : amax;
        }
        cr_assert_eq(
            moert_mxfp8_quantize(dtype == MOERT_F32 ? (void *)u : h, dtype, 1, 32, 0, &p, codes, &byte, NULL, NULL),
            MOERT_OK);
        cr_assert_eq(byte, moert_mxfp8_scale_byte(moert_f32_of_bits(amax), p.rule));
        for (int i = 0; i < 32; i++)
            cr_assert_eq(codes[i], moert_e4m3_encode(moert_f32_of_bits(u[i]), byte), "%08X byte %u", u[i], byte);
    }
}

/* ------------------------------------------------------------------ properties */

/* Cases 25-27 and 30: NaN or Inf anywhere, either sign. */
Test(mxfp8, nonfinite_anywhere)
{
    static const uint32_t planted[] = {0x7FC00000, 0xFFC00000, 0x7F800001, 0x7F800000, 0xFF800000};
    struct moert_mxfp8_params te = profile("te");
    uint32_t seed = SEED;

    for (int at = 0; at < 32; at++)
        for (int v = 0; v < 5; v++) {
            float x[32];
            uint8_t codes[32];
            make_block(x, NULL, 0, 1);
            x[at] = moert_f32_of_bits(planted[v]);
            cr_expect_eq(quantize_block(x, NULL, codes), 255);
            for (int i = 0; i < 32; i++)
                cr_expect_eq(codes[i], 0x7F);
            cr_expect_eq(quantize_block(x, &te, codes), v < 3 ? 119 : 254);
            for (int i = 0; i < 32; i++)
                cr_expect_eq(codes[i], i != at ? (v < 3 ? 0x78 : 0x00) : v < 3 ? 0x7F : v == 3 ? 0x7E : 0xFE);
        }
    for (int n = 0; n < 3000; n++) {
        float x[32];
        uint8_t codes[32];
        unsigned bad = xorshift(&seed) % 4;
        for (int i = 0; i < 32; i++)
            x[i] = bell(&seed, 100);
        for (unsigned k = 0; k < bad; k++)
            x[xorshift(&seed) % 32] = moert_f32_of_bits(planted[xorshift(&seed) % 5]);
        cr_assert_eq(quantize_block(x, NULL, codes) == 255, bad > 0);
    }
}

/* Scaling by 2^j moves the byte by j; permutation moves codes; negation flips bit 7 only. */
Test(mxfp8, symmetries)
{
    uint32_t seed = SEED;

    for (int n = 0; n < 2000; n++) {
        float x[32], y[32];
        uint8_t codes[32], other[32], byte;
        int j = (int)(xorshift(&seed) % 40) - 20, turn = (int)(xorshift(&seed) % 32);
        for (int i = 0; i < 32; i++)
            x[i] = bell(&seed, ldexp(1, (int)(xorshift(&seed) % 12)));
        byte = quantize_block(x, NULL, codes);
        for (int i = 0; i < 32; i++)
            y[i] = ldexpf(x[i], j);
        cr_assert_eq(quantize_block(y, NULL, other), byte + j);
        cr_assert_eq(first_difference(codes, other, 32), 32u);
        for (int i = 0; i < 32; i++)
            y[i] = -x[(i + turn) % 32];
        cr_assert_eq(quantize_block(y, NULL, other), byte);
        for (int i = 0; i < 32; i++)
            cr_assert_eq(other[i], codes[(i + turn) % 32] ^ 0x80);
    }
}

/* Values survive a second pass; bytes and codes too unless the largest code is exactly 76 with byte > 0. */
Test(mxfp8, idempotence)
{
    uint32_t seed = SEED;
    unsigned moved = 0;

    for (int n = 0; n < 3000; n++) {
        float x[32], y[32], z[32];
        uint8_t codes[32], again[32], byte, byte2, largest = 0;
        for (int i = 0; i < 32; i++)
            x[i] = bell(&seed, 1000);
        byte = quantize_block(x, NULL, codes);
        cr_assert_eq(moert_mxfp8_dequantize(codes, &byte, 1, 32, y, MOERT_F32, NULL), MOERT_OK);
        byte2 = quantize_block(y, NULL, again);
        cr_assert_eq(moert_mxfp8_dequantize(again, &byte2, 1, 32, z, MOERT_F32, NULL), MOERT_OK);
        cr_assert_eq(first_difference(y, z, sizeof(y)), sizeof(y));
        for (int i = 0; i < 32; i++)
            largest = (codes[i] & 0x7F) > largest ? codes[i] & 0x7F : largest;
        moved += byte2 != byte;
        cr_assert_eq(byte2 != byte, largest == 0x76);
    }
    cr_expect_gt(moved, 0u, "the exception never occurred");
}

/* Case 42: rows of powers of two; the block runs along the last axis. */
Test(mxfp8, axis)
{
    float x[32 * 32];
    uint8_t codes[32 * 32], bytes[32];

    for (int r = 0; r < 32; r++)
        for (int c = 0; c < 32; c++)
            x[r * 32 + c] = ldexpf(1, r);
    cr_assert_eq(moert_mxfp8_quantize(x, MOERT_F32, 32, 32, 0, NULL, codes, bytes, NULL, NULL), MOERT_OK);
    for (int r = 0; r < 32; r++)
        cr_expect_eq(bytes[r], 119 + r);
    for (int i = 0; i < 32 * 32; i++)
        cr_expect_eq(codes[i], 0x78);
}

/* Cases 31 and 47: what lies beyond the columns or rows is never looked at. */
Test(mxfp8, pitch_and_tail)
{
    float x[5 * 72];
    uint8_t codes[5 * 64], bytes[10], padded[5 * 64], padded_bytes[10];
    uint32_t seed = SEED;

    for (int i = 0; i < 5 * 72; i++)
        x[i] = i % 72 < 40 ? bell(&seed, 50) : NAN;
    memset(padded, 0x7E, sizeof(padded));
    cr_assert_eq(moert_mxfp8_quantize_padded(x, MOERT_F32, 5, 40, 72, NULL, padded, padded_bytes, NULL, NULL),
                 MOERT_OK);
    for (int i = 0; i < 5 * 72; i++)
        if (i % 72 >= 40)
            x[i] = 0;
    cr_assert_eq(moert_mxfp8_quantize(x, MOERT_F32, 5, 64, 72, NULL, codes, bytes, NULL, NULL), MOERT_OK);
    cr_expect_eq(first_difference(codes, padded, sizeof(codes)), sizeof(codes));
    cr_expect_eq(first_difference(bytes, padded_bytes, sizeof(bytes)), sizeof(bytes));
    for (int r = 0; r < 5; r++)
        for (int c = 40; c < 64; c++)
            cr_expect_eq(padded[r * 64 + c], 0);
}

Test(mxfp8, statistics)
{
    struct moert_mxfp8_params floor_rule = rule_params(MOERT_FLOOR);
    struct moert_mxfp8_stats stats = {.size = sizeof(stats)};
    float x[128] = {464, 465, -480, 448, 511}; /* 464 is halfway to 480 and rounds to 448: not cut */
    uint8_t codes[128], bytes[4];

    x[64] = NAN;
    x[96] = 0x1.ep-119f; /* byte 0: the slow path counts alike */
    cr_assert_eq(moert_mxfp8_quantize(x, MOERT_F32, 1, 128, 0, &floor_rule, codes, bytes, &stats, NULL), MOERT_OK);
    cr_expect_eq(stats.blocks, 4u);
    cr_expect_eq(stats.poisoned_blocks, 1u);
    cr_expect_eq(stats.saturated, 4u, "%llu", (unsigned long long)stats.saturated);
    cr_assert_eq(moert_mxfp8_quantize(x, MOERT_F32, 1, 128, 0, NULL, codes, bytes, &stats, NULL), MOERT_OK);
    cr_expect_eq(stats.blocks, 8u, "added, not set");
    cr_expect_eq(stats.saturated, 4u, "RCEIL never cuts");
}

/* ------------------------------------------------------------------ dequantise */

/* Vectors of section 5, cases 23, 28 and 29. */
Test(mxfp8, dequantize_vectors)
{
    static const struct {
        uint8_t byte, code;
        uint32_t f32;
        uint16_t bf16;
    } v[] = {{0, 0x08, 0x00010000, 0x0001},   {0, 0x01, 0x00002000, 0x0000},   {0, 0x7E, 0x04600000, 0x0460},
             {247, 0x78, 0x7F800000, 0x7F80}, {254, 0x38, 0x7F000000, 0x7F00}, {255, 0x00, 0x7FC00000, 0x7FC0},
             {134, 0x38, 0x43000000, 0x4300}, {128, 0x01, 0x3B800000, 0x3B80}, {128, 0x00, 0x00000000, 0x0000},
             {127, 0x7F, 0x7FC00000, 0x7FC0}, {0, 0xFF, 0x7FC00000, 0x7FC0},   {9, 0x01, 0x00400000, 0x0040},
             {10, 0x01, 0x00800000, 0x0080},  {246, 0x7E, 0x7F600000, 0x7F60}, {0, 0x80, 0x80000000, 0x8000},
             {134, 0x7E, 0x47600000, 0x4760}};
    struct moert_error err = MOERT_ERROR_INIT;

    for (int env = 0; env < ENV_COUNT; env++)
        for (size_t i = 0; i < sizeof(v) / sizeof(*v); i++) {
            uint8_t codes[32];
            uint32_t f32[32];
            uint16_t bf16[32];
            memset(codes, v[i].code, 32);
            enter_environment(env);
            moert_status_t a = moert_mxfp8_dequantize(codes, &v[i].byte, 1, 32, f32, MOERT_F32, &err);
            moert_status_t b = moert_mxfp8_dequantize(codes, &v[i].byte, 1, 32, bf16, MOERT_BF16, &err);
            enter_environment(ENV_PLAIN);
            cr_assert(a == MOERT_OK && b == MOERT_OK);
            for (int k = 0; k < 32; k += 31) {
                cr_expect_eq(f32[k], v[i].f32, "(%u,%02X) = %08X", v[i].byte, v[i].code, f32[k]);
                cr_expect_eq(bf16[k], v[i].bf16, "(%u,%02X) = bf16 %04X", v[i].byte, v[i].code, bf16[k]);
            }
        }
}

/* Every code with every byte against binary64, in the three output types. */
Test(mxfp8, dequantize_all)
{
    for (unsigned byte = 0; byte < 256; byte++)
        for (unsigned first = 0; first < 256; first += 32) {
            uint8_t codes[32], b = (uint8_t)byte;
            float f32[32];
            uint16_t bf16[32], f16[32];
            for (unsigned i = 0; i < 32; i++)
                codes[i] = (uint8_t)(first + i);
            cr_assert_eq(moert_mxfp8_dequantize(codes, &b, 1, 32, f32, MOERT_F32, NULL), MOERT_OK);
            cr_assert_eq(moert_mxfp8_dequantize(codes, &b, 1, 32, bf16, MOERT_BF16, NULL), MOERT_OK);
            cr_assert_eq(moert_mxfp8_dequantize(codes, &b, 1, 32, f16, MOERT_F16, NULL), MOERT_OK);
            for (int i = 0; i < 32; i++) {
                double v = byte == 255 ? (double)NAN : ldexp((double)moert_e4m3_decode(codes[i]), (int)byte - 127);
                cr_assert_eq(moert_f32_bits(f32[i]), moert_f32_bits(moert_f32_from_double(v)), "(%u,%02X)", byte,
                             codes[i]);
                cr_assert_eq(bf16[i], moert_bf16_from_double(v), "(%u,%02X)", byte, codes[i]);
                cr_assert_eq(f16[i], moert_f16_from_double(v), "(%u,%02X)", byte, codes[i]);
            }
        }
}

/* Case 4 and the seed's round trip: what comes back is the stored code times the stored scale. */
Test(mxfp8, round_trip)
{
    static const moert_dtype_t dtypes[] = {MOERT_F32, MOERT_BF16, MOERT_F16};
    uint32_t seed = SEED;

    for (int d = 0; d < 3; d++) {
        unsigned char x[64 * 4], out[64 * 4];
        uint8_t codes[64], bytes[2];
        uint16_t bf16[64];
        for (uint64_t i = 0; i < 64; i++)
            moert_store(x, dtypes[d], i, i == 0 ? 300 : i == 1 ? 1 : (double)bell(&seed, 2000));
        cr_assert_eq(moert_mxfp8_qdq(x, dtypes[d], 2, 32, NULL, out, NULL), MOERT_OK);
        cr_assert_eq(moert_mxfp8_quantize(x, dtypes[d], 2, 32, 0, NULL, codes, bytes, NULL, NULL), MOERT_OK);
        cr_assert_eq(moert_mxfp8_dequantize(codes, bytes, 2, 32, bf16, MOERT_BF16, NULL), MOERT_OK);
        for (uint64_t i = 0; i < 64; i++)
            cr_expect_eq(moert_load(out, dtypes[d], i), (double)moert_bf16_to_float(bf16[i]));
        cr_expect_eq(moert_load(out, dtypes[d], 0), 288.0);
        cr_assert_eq(moert_mxfp8_qdq(x, dtypes[d], 2, 32, NULL, x, NULL), MOERT_OK, "in place");
        cr_expect_eq(first_difference(x, out, 64 * (dtypes[d] == MOERT_F32 ? 4u : 2u)),
                     64 * (dtypes[d] == MOERT_F32 ? 4u : 2u));
    }
}

/* ------------------------------------------------------------------ layouts */

Test(mxfp8, layout_vectors)
{
    static const uint64_t v[][7] = {{0, 1, 1, 1, 1, 64, 1},
                                    {0, 4, 4, 512, 32, 2, 128},
                                    {1, 0, 8, 16, 4, 4, 4},
                                    {31, 0, 248, 496, 220, 61, 124},
                                    {32, 0, 256, 4, 256, 256, 256},
                                    {33, 2, 266, 22, 262, 388, 262},
                                    {64, 0, 512, 8, 512, 512, 512},
                                    {96, 3, 771, 15, 771, 960, 771},
                                    {127, 3, 1019, 511, 991, 1021, 895},
                                    {128, 0, 1024, 1024, 1024, 1024, 1024},
                                    {129, 5, 1037, 1553, 1061, 1094, 1157},
                                    {200, 7, 1607, 1675, 1635, 1762, 1699}};

    for (size_t i = 0; i < sizeof(v) / sizeof(*v); i++)
        for (uint32_t l = 0; l < MOERT_SCALE_LAYOUT_COUNT; l++)
            cr_expect_eq(moert_scale_offset(l, 8, v[i][0], v[i][1]), v[i][2 + l], "%s (%llu,%llu)",
                         moert_scale_layout_name(l), (unsigned long long)v[i][0], (unsigned long long)v[i][1]);
    cr_expect_eq(moert_scale_bytes(MOERT_SCALES_SWZ128X4, 130, 5), 2048u);
    cr_expect_eq(moert_scale_bytes(MOERT_SCALES_AITER_GFX950, 130, 5), 2048u);
    cr_expect_eq(moert_scale_bytes(MOERT_SCALES_LINEAR, 130, 5), 650u);
    cr_expect_eq(moert_scale_bytes(MOERT_SCALES_SWZ128X4, 33, 4), 512u); /* case 48 */
    cr_expect_eq(moert_scale_offset(MOERT_SCALES_SWZ128X4, 4, 32, 0), 4u);
    cr_expect_eq(moert_scale_bytes(MOERT_SCALES_SWZ128X4, 16, 4), 512u);              /* case 43: batch 1 at 512 */
    cr_expect_eq(moert_scale_offset(MOERT_SCALES_SWZ128X4, 4, 16, 0), 256u);          /* case 41 */
    cr_expect_eq(moert_scale_offset(MOERT_SCALES_AITER_GFX950, 12, 32, 0), 512u);     /* case 46 */
    cr_expect_eq(moert_scale_offset(MOERT_SCALES_LINEAR, 1024, 65536, 0), 67108864u); /* case 45 */
    cr_expect_eq(moert_scale_offset(MOERT_SCALES_LINEAR, 1u << 20, 1u << 20, 0), 1ull << 40);
}

/* Each layout is a bijection of the padded matrix, and back is the inverse. */
Test(mxfp8, layouts_invert)
{
    static const uint64_t sizes[][2] = {{1, 4}, {33, 4}, {130, 12}, {257, 8}, {300, 24}};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        for (uint32_t l = 0; l < MOERT_SCALE_LAYOUT_COUNT; l++) {
            uint64_t M = sizes[i][0], C = sizes[i][1], n = moert_scale_bytes(l, M, C), nonzero = 0;
            uint8_t *linear = malloc(M * C), *back = malloc(M * C), *arranged = malloc(n);
            for (uint64_t k = 0; k < M * C; k++)
                linear[k] = (uint8_t)(1 + k * 7 % 255);
            memset(arranged, 0xEE, n);
            cr_assert_eq(moert_scales_arrange(l, M, C, linear, arranged, NULL), MOERT_OK);
            cr_assert_eq(moert_scales_linearize(l, M, C, arranged, back, NULL), MOERT_OK);
            cr_expect_eq(first_difference(linear, back, M * C), M * C);
            for (uint64_t k = 0; k < n; k++)
                nonzero += arranged[k] != 0;
            cr_expect_eq(nonzero, M * C, "%s: padding must be 00", moert_scale_layout_name(l));
            free(linear);
            free(back);
            free(arranged);
        }
}

/* Case 40. */
Test(mxfp8, swizzled_values)
{
    uint8_t linear[128 * 8], out[1024];

    for (int r = 0; r < 128; r++)
        for (int c = 0; c < 8; c++)
            linear[r * 8 + c] = (uint8_t)((7 * r + 37 * c) % 251);
    cr_assert_eq(moert_scales_arrange(MOERT_SCALES_SWZ128X4, 128, 8, linear, out, NULL), MOERT_OK);
    cr_expect(out[512] == 148 && out[16] == 7 && out[4] == 224 && out[22] == 54);
}

/* ------------------------------------------------------------------ golden file */

static void check_codes(const char *name, const char *mode, const struct moert_st_tensor *x,
                        const struct moert_st_tensor *q, const struct moert_st_tensor *s,
                        const struct moert_mxfp8_params *params)
{
    uint64_t rows = x->shape[0], cols = x->shape[1], n = rows * cols, bad;
    uint8_t *codes = malloc(n), *scales = malloc(n / 32);
    struct moert_error err = MOERT_ERROR_INIT;

    cr_assert_eq(moert_mxfp8_quantize(x->data, x->dtype, rows, cols, 0, params, codes, scales, NULL, &err), MOERT_OK,
                 "%s", err.text);
    bad = first_difference(scales, s->data, n / 32);
    cr_expect_eq(bad, n / 32, "%s.%s: scale %llu", name, mode, (unsigned long long)bad);
    bad = first_difference(codes, q->data, n);
    cr_expect_eq(bad, n, "%s.%s: code %llu is %02X", name, mode, (unsigned long long)bad, bad < n ? codes[bad] : 0);
    free(codes);
    free(scales);
}

static int equal_f32(uint32_t a, uint32_t b)
{
    uint32_t inf = 0x7F800000;
    return (a & 0x7FFFFFFF) > inf ? (b & 0x7FFFFFFF) > inf : a == b || ((a | b) & 0x7FFFFFFF) == 0;
}

static void check_values(const moert_safetensors_t *file, const char *name)
{
    const struct moert_st_tensor *q = golden(file, name, "rceil.q"), *s = golden(file, name, "rceil.s");
    const struct moert_st_tensor *f = golden(file, name, "rceil.deq_f32"),
                                 *b = golden_find(file, name, "rceil.deq_bf16");
    uint64_t n = elements(q);
    uint32_t *f32 = malloc(4 * n);
    uint16_t *bf16 = malloc(2 * n);

    cr_assert_eq(moert_mxfp8_dequantize(q->data, s->data, q->shape[0], q->shape[1], f32, MOERT_F32, NULL), MOERT_OK);
    cr_assert_eq(moert_mxfp8_dequantize(q->data, s->data, q->shape[0], q->shape[1], bf16, MOERT_BF16, NULL), MOERT_OK);
    for (uint64_t i = 0; i < n; i++) {
        uint32_t want;
        uint16_t half = bf16[i]; /* top_binade has no bf16 */
        memcpy(&want, (const char *)f->data + 4 * i, 4);
        if (b)
            memcpy(&half, (const char *)b->data + 2 * i, 2);
        cr_expect(equal_f32(f32[i], want), "%s f32 %llu: %08X, want %08X", name, (unsigned long long)i, f32[i], want);
        cr_expect(equal_f32((uint32_t)bf16[i] << 16, (uint32_t)half << 16), "%s bf16 %llu", name,
                  (unsigned long long)i);
    }
    free(f32);
    free(bf16);
}

Test(mxfp8, golden_quantise)
{
    static const char *const names[] = {
        "gauss_f32", "heavy_f32",     "gauss_bf16",    "wide_bf16",      "gauss_f16",     "one_block_f32", "worked_f32",
        "ties_f32",  "threshold_f32", "subnormal_f32", "threshold_bf16", "threshold_f16", "top_binade_f32"};
    static const char *const modes[] = {"rceil", "floor", "ceil", "even"};
    static const moert_scale_rule_t rules[] = {MOERT_RCEIL, MOERT_FLOOR, MOERT_CEIL, MOERT_EVEN};
    moert_safetensors_t *file = golden_open("mxfp8_quant");
    unsigned checked = 0;

    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        for (int m = 0; m < 4; m++) {
            struct moert_mxfp8_params p = rule_params(rules[m]);
            char q[32], s[32];
            snprintf(q, sizeof(q), "%s.q", modes[m]);
            snprintf(s, sizeof(s), "%s.s", modes[m]);
            if (!golden_find(file, names[i], q))
                continue; /* top_binade has no `even` */
            check_codes(names[i], modes[m], golden(file, names[i], "x"), golden(file, names[i], q),
                        golden(file, names[i], s), &p);
            checked++;
        }
        check_values(file, names[i]);
    }
    cr_expect_eq(checked, 13u * 4 - 1);
    moert_safetensors_close(file);
}

Test(mxfp8, golden_nonfinite)
{
    static const char *const names[] = {"nonfinite_f32", "nonfinite_bf16"};
    moert_safetensors_t *file = golden_open("mxfp8_quant");
    struct moert_mxfp8_params te = profile("te");

    for (int i = 0; i < 2; i++) {
        const struct moert_st_tensor *x = golden(file, names[i], "x");
        check_codes(names[i], "poison", x, golden(file, names[i], "poison.q"), golden(file, names[i], "poison.s"),
                    NULL);
        check_codes(names[i], "contain", x, golden(file, names[i], "contain.q"), golden(file, names[i], "contain.s"),
                    &te);
    }
    moert_safetensors_close(file);
}

Test(mxfp8, golden_swizzle)
{
    static const char *const names[] = {"swizzle_m33c4", "swizzle_m130c12", "swizzle_m1c1", "swizzle_m257c5"};
    moert_safetensors_t *file = golden_open("mxfp8_quant");

    for (int i = 0; i < 4; i++) {
        const struct moert_st_tensor *s = golden(file, names[i], "s"), *want = golden(file, names[i], "swz128x4");
        uint64_t n = moert_scale_bytes(MOERT_SCALES_SWZ128X4, s->shape[0], s->shape[1]);
        uint8_t *out = malloc(n);
        cr_assert_eq(n, want->bytes);
        cr_assert_eq(moert_scales_arrange(MOERT_SCALES_SWZ128X4, s->shape[0], s->shape[1], s->data, out, NULL),
                     MOERT_OK);
        cr_expect_eq(first_difference(out, want->data, n), n, "%s", names[i]);
        free(out);
    }
    moert_safetensors_close(file);
}

/* ------------------------------------------------------------------ refusals */

Test(mxfp8, refusals)
{
    float x[64] = {0};
    uint8_t codes[64] = {0xAA}, bytes[2] = {0xBB};
    struct moert_mxfp8_params p = rule_params(MOERT_RCEIL), strict = p;
    struct moert_error err = MOERT_ERROR_INIT;

    cr_expect_eq(moert_mxfp8_quantize(x, MOERT_F32, 1, 40, 0, NULL, codes, bytes, NULL, &err), MOERT_E_SHAPE);
    cr_expect_str_eq(err.code, "multiple");
    cr_expect(strstr(err.text, "40") && strstr(err.text, "32"), "%s", err.text);
    cr_expect_eq(moert_mxfp8_dequantize(codes, bytes, 1, 40, x, MOERT_F32, &err), MOERT_E_SHAPE);
    cr_expect_eq(moert_mxfp8_quantize(x, MOERT_U8, 1, 32, 0, NULL, codes, bytes, NULL, &err), MOERT_E_DTYPE);
    cr_expect_eq(moert_mxfp8_dequantize(codes, bytes, 1, 32, x, MOERT_F64, &err), MOERT_E_DTYPE);
    cr_expect_eq(moert_mxfp8_quantize(NULL, MOERT_F32, 1, 32, 0, NULL, codes, bytes, NULL, &err), MOERT_E_USAGE);
    cr_expect_eq(moert_mxfp8_quantize(x, MOERT_F32, 2, 64, 32, NULL, codes, bytes, NULL, &err), MOERT_E_SHAPE);
    cr_expect_eq(moert_mxfp8_quantize(x, MOERT_F32, UINT64_MAX / 64, 64, 0, NULL, codes, bytes, NULL, &err),
                 MOERT_E_TOO_LARGE);
    cr_expect_eq(moert_mxfp8_quantize_padded(x, MOERT_F32, 1, UINT64_MAX - 3, 0, NULL, codes, bytes, NULL, &err),
                 MOERT_E_TOO_LARGE);
    cr_expect_eq(moert_mxfp8_dequantize(codes, bytes, UINT64_MAX / 32, 64, x, MOERT_F32, &err), MOERT_E_TOO_LARGE);
    p.rule = 9;
    cr_expect_eq(moert_mxfp8_quantize(x, MOERT_F32, 1, 32, 0, &p, codes, bytes, NULL, &err), MOERT_E_VALUE);
    p.rule = 0;
    p.amax_min = -1;
    cr_expect_eq(moert_mxfp8_quantize(x, MOERT_F32, 1, 32, 0, &p, codes, bytes, NULL, &err), MOERT_E_VALUE);
    p.size = 4;
    cr_expect_eq(moert_mxfp8_quantize(x, MOERT_F32, 1, 32, 0, &p, codes, bytes, NULL, &err), MOERT_E_USAGE);
    strict.nonfinite = MOERT_NONFINITE_ERROR;
    x[37] = -INFINITY;
    cr_expect_eq(moert_mxfp8_quantize(x, MOERT_F32, 2, 32, 0, &strict, codes, bytes, NULL, &err), MOERT_E_VALUE);
    cr_expect(strstr(err.text, "[1,5]") && strstr(err.text, "-Inf"), "%s", err.text);
    cr_expect(codes[0] == 0xAA && bytes[0] == 0xBB, "written on failure");
    cr_expect_eq(moert_mxfp8_profile("nvidia", &p, &err), MOERT_E_VALUE);
    cr_expect(strstr(err.text, "flashinfer") != NULL, "%s", err.text);
    cr_expect_eq(moert_scales_arrange(7, 1, 4, codes, bytes, &err), MOERT_E_VALUE);
    cr_expect_eq(moert_scales_arrange(MOERT_SCALES_AITER_N32K4, 1, 5, codes, bytes, &err), MOERT_E_SHAPE);
    cr_expect_eq(moert_scales_arrange(MOERT_SCALES_LINEAR, UINT64_MAX, 5, codes, bytes, NULL), MOERT_E_TOO_LARGE);
    cr_expect_eq(moert_scale_bytes(MOERT_SCALES_SWZ128X4, UINT64_MAX - 3, 1), 0u);
    cr_expect_null(moert_scale_layout_name(7));
    cr_expect_eq(moert_mxfp8_quantize(NULL, MOERT_F32, 0, 32, 0, NULL, NULL, NULL, NULL, NULL), MOERT_OK);
}
