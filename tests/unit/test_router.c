/* tests/unit/test_router.c: router logits, top-k and weights against routing.md 2 (R01 to R20 and the rules of 2.2
 * to 2.4), its test table (C26 to C33, C40, C42) and tests/data/vectors/routing.safetensors. */
#include "config.h"

#include <moert/float8.h>
#include <moert/routing.h>

#include "unit/routing_vectors.h"

#include <float.h>
#include <math.h>

#define S  MOERT_ROUTER_SOFTMAX
#define TS MOERT_ROUTER_TOPK_SOFTMAX
#define SG MOERT_ROUTER_SIGMOID
#define TG MOERT_ROUTER_TOPK_SIGMOID
#define SP MOERT_ROUTER_SQRT_SOFTPLUS
#define GR MOERT_ROUTER_GROUPED
#define PLAIN                                                                                                          \
    {                                                                                                                  \
        2, 1, 0, -1                                                                                                    \
    }

/* One line of routing.md 2.5. */
static const struct {
    const char *name;
    moert_router_kind_t kind;
    uint32_t renormalize;
    moert_scoring_t scoring;
    uint32_t groups, kept;
    double factor;
    uint32_t experts, top_k;
    float logits[8];
    int has_bias;
    float bias[8];
    int32_t ids[4];
    float weights[4];
} table[] = {
    {"R01", S, 0, 0, 0, 0, 0, 4, 2, PLAIN, 0, {0}, {0, 1}, {0.643914282f, 0.236882821f}},
    {"R02", S, 1, 0, 0, 0, 0, 4, 2, PLAIN, 0, {0}, {0, 1}, {0.731058598f, 0.268941432f}},
    {"R02t", TS, 0, 0, 0, 0, 0, 4, 2, PLAIN, 0, {0}, {0, 1}, {0.731058598f, 0.268941432f}},
    {"R03", SG, 0, 0, 0, 0, 0, 4, 2, PLAIN, 0, {0}, {0, 1}, {0.880797088f, 0.731058598f}},
    {"R04", SG, 1, 0, 0, 0, 0, 4, 2, PLAIN, 0, {0}, {0, 1}, {0.546449125f, 0.453550905f}},
    {"R05", SG, 1, 0, 0, 0, 0, 4, 2, PLAIN, 1, {0, 0, 0, 1}, {3, 0}, {0.233915299f, 0.766084731f}},
    {"R06", SP, 0, 0, 0, 0, 0, 4, 2, PLAIN, 0, {0}, {0, 1}, {1.45839918f, 1.14597631f}},
    {"R07", SP, 1, 0, 0, 0, 1.5, 4, 2, PLAIN, 0, {0}, {0, 1}, {0.839970589f, 0.660029411f}},
    {"R08", SP, 1, 0, 0, 0, 1.5, 4, 2, PLAIN, 1, {0, 0, 0, 3}, {3, 0}, {0.416009128f, 1.08399081f}},
    {"R09", TG, 1, 0, 0, 0, 0, 3, 1, {0.5f, 2, -1}, 0, {0}, {1}, {0.880797088f}},
    {"R10",
     GR,
     1,
     MOERT_SCORING_SIGMOID,
     2,
     1,
     0,
     4,
     2,
     {2.19722462f, -2.19722462f, 0.405465096f, 0.2006707f},
     1,
     {0, 0, 0.2f, 0.2f},
     {2, 3},
     {0.521739125f, 0.478260875f}},
    {"R11",
     GR,
     1,
     MOERT_SCORING_SIGMOID,
     2,
     1,
     0,
     4,
     2,
     {2.19722462f, -2.19722462f, 0.405465096f, 0.2006707f},
     0,
     {0},
     {0, 1},
     {0.899999976f, 0.099999994f}},
    {"R12",
     GR,
     1,
     MOERT_SCORING_AUTO,
     2,
     1,
     2.5,
     4,
     2,
     {2.19722462f, -2.19722462f, 0.405465096f, 0.2006707f},
     1,
     {0, 0, 0.2f, 0.2f},
     {2, 3},
     {1.30434787f, 1.19565213f}},
    {"R13",
     GR,
     1,
     MOERT_SCORING_SIGMOID,
     4,
     2,
     2.5,
     8,
     3,
     {.1f, .9f, -.4f, 1.3f, .7f, .6f, -2, 2.2f},
     1,
     {.05f, -.1f, .3f, -.2f, 0, .1f, .6f, -.3f},
     {5, 6, 4},
     {1.12636971f, 0.207953617f, 1.16567659f}},
    {"R14", S, 1, 0, 0, 0, 0, 4, 2, {1, 1, 1, 1}, 0, {0}, {0, 1}, {0.5f, 0.5f}},
    {"R15", S, 1, 0, 0, 0, 0, 4, 2, {NAN, NAN, NAN, NAN}, 0, {0}, {0, 1}, {0, 0}},
    {"R16", S, 1, 0, 0, 0, 0, 4, 2, {NAN, 2, 1, -INFINITY}, 0, {0}, {1, 2}, {0.731058598f, 0.268941432f}},
    {"R16n", S, 0, 0, 0, 0, 0, 4, 2, {NAN, 2, 1, -INFINITY}, 0, {0}, {1, 2}, {0.731058598f, 0.268941432f}},
    {"R17", S, 1, 0, 0, 0, 0, 4, 2, {INFINITY, 2, INFINITY, 1}, 0, {0}, {0, 2}, {0.5f, 0.5f}},
    {"R18", S, 1, 0, 0, 0, 0, 4, 3, {-INFINITY, 3, -INFINITY, -INFINITY}, 0, {0}, {1, 0, 2}, {1, 0, 0}},
    {"R19", SG, 1, 0, 0, 0, 0, 4, 4, {-100, -100, -100, -100}, 0, {0}, {0, 1, 2, 3}, {.25f, .25f, .25f, .25f}},
    {"R19b", SG, 1, 0, 0, 0, 0, 4, 4, {-50, -50, -50, -50}, 0, {0}, {0, 1, 2, 3}, {.25f, .25f, .25f, .25f}},
    {"R19c", SP, 1, 0, 0, 0, 0, 4, 4, {-1e30f, -1e30f, -1e30f, -1e30f}, 0, {0}, {0, 1, 2, 3}, {.25f, .25f, .25f, .25f}},
    {"R20",
     GR,
     1,
     MOERT_SCORING_AUTO,
     2,
     1,
     0,
     4,
     2,
     {-.3f, -.1f, -.9f, -.8f},
     0,
     {0},
     {1, 0},
     {0.549834013f, 0.450165987f}},
};

static struct moert_router_config config_of(moert_router_kind_t kind, uint32_t renormalize)
{
    return (struct moert_router_config){
        .size = sizeof(struct moert_router_config), .kind = kind, .renormalize = renormalize};
}

static struct moert_route_args args_of(uint32_t experts, uint32_t top_k, uint64_t tokens, const float *logits,
                                       int32_t *ids, float *weights)
{
    return (struct moert_route_args){.size = sizeof(struct moert_route_args),
                                     .num_experts = experts,
                                     .top_k = top_k,
                                     .tokens = tokens,
                                     .logits = logits,
                                     .logits_dtype = MOERT_F32,
                                     .ids = ids,
                                     .weights = weights};
}

Test(router, check_values)
{
    for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
        struct moert_router_config c = config_of(table[i].kind, table[i].renormalize);
        int32_t ids[4];
        float weights[4];
        struct moert_route_args a = args_of(table[i].experts, table[i].top_k, 1, table[i].logits, ids, weights);

        c.scoring = table[i].scoring;
        c.num_groups = table[i].groups;
        c.topk_groups = table[i].kept;
        c.scaling_factor = table[i].factor;
        a.correction_bias = table[i].has_bias ? table[i].bias : NULL;
        cr_assert_eq(moert_route(&c, &a, NULL), MOERT_OK, "%s", table[i].name);
        for (uint32_t j = 0; j < table[i].top_k; j++) {
            cr_expect_eq(ids[j], table[i].ids[j], "%s: id %u is %d", table[i].name, j, ids[j]);
            cr_expect_eq(weights[j], table[i].weights[j], "%s: weight %u is %.9g, expected %.9g", table[i].name, j,
                         (double)weights[j], (double)table[i].weights[j]);
        }
    }
}

/* Own top-k by full comparison: expert e has as many experts before it as have a larger key, or an equal one and a
 * lower id. */
static uint32_t rank_of(const double *keys, uint32_t experts, uint32_t e)
{
    uint32_t rank = 0;

    for (uint32_t i = 0; i < experts; i++)
        rank += keys[i] > keys[e] || (keys[i] == keys[e] && i < e);
    return rank;
}

/* C30: every E and K, with ties, with and without bias; weights by the C library's exp in long double. */
Test(router, c30_every_size_equals_the_reference)
{
    float logits[256], bias[256], weights[16];
    double keys[256];
    int32_t ids[16];

    for (uint32_t experts = 8; experts <= 256; experts++)
        for (uint32_t k = 1; k <= 16 && k <= experts; k++)
            for (int with_bias = 0; with_bias < 2; with_bias++) {
                struct moert_router_config c = config_of(MOERT_ROUTER_SIGMOID, 0);
                struct moert_route_args a = args_of(experts, k, 1, logits, ids, weights);

                if (experts > 40 && (experts + k) % 5)
                    continue;
                for (uint32_t e = 0; e < experts; e++) {
                    uint64_t r = mix(e * 977 + k * 31 + experts);
                    logits[e] = (float)((int)(r % 64) - 32) / 8; /* few values: many ties */
                    bias[e] = with_bias ? (float)((int)(r >> 32 & 7) - 4) / 4 : 0;
                    keys[e] = with_bias ? (double)(1 / (1 + expl(-(long double)logits[e]))) + (double)bias[e]
                                        : (double)logits[e];
                }
                a.correction_bias = with_bias ? bias : NULL;
                cr_assert_eq(moert_route(&c, &a, NULL), MOERT_OK);
                for (uint32_t j = 0; j < k; j++) {
                    long double s = 1 / (1 + expl(-(long double)logits[ids[j]]));
                    uint32_t rank = rank_of(keys, experts, (uint32_t)ids[j]);

                    cr_assert(fabsl((long double)weights[j] - s) <= 1.2e-7L * s, "E %u K %u weight %u", experts, k, j);
                    if (!with_bias)
                        cr_assert_eq(rank, j, "E %u K %u slot %u: expert %d has rank %u", experts, k, j, ids[j], rank);
                    else /* equal keys of the reference may differ by rounding: compare keys, not ranks */
                        cr_assert(rank == j || fabs(keys[ids[j]] - keys[ids[j ? j - 1 : 0]]) < 1e-12,
                                  "E %u K %u slot %u: expert %d has rank %u", experts, k, j, ids[j], rank);
                }
            }
}

Test(router, c31_scale_at)
{
    struct moert_router_config c = config_of(MOERT_ROUTER_SOFTMAX, 1);
    static const float logits[2] = {1, 0};
    int32_t id;
    float weight;
    struct moert_route_args a = args_of(2, 1, 1, logits, &id, &weight);

    c.scaling_factor = 2.5;
    cr_assert_eq(moert_route(&c, &a, NULL), MOERT_OK);
    cr_expect_eq(weight, 2.5f);
    c.scale_at = MOERT_SCALE_AT_OUTPUT;
    cr_assert_eq(moert_route(&c, &a, NULL), MOERT_OK);
    cr_expect_eq(weight, 1);
    c.scale_at = MOERT_SCALE_AT_ROUTER; /* C32 */
    c.scaling_factor = 1.5;
    cr_assert_eq(moert_route(&c, &a, NULL), MOERT_OK);
    cr_expect_eq(weight, 1.5f);
}

Test(router, c33_fused_shared_slots)
{
    struct moert_router_config c = config_of(MOERT_ROUTER_SIGMOID, 0);
    float logits[4], weights[5];
    static const double scores[4] = {.1, .5, .2, .4};
    static const int32_t want[4] = {1, 3, 2, 4};
    int32_t ids[5];
    struct moert_route_args a = args_of(4, 3, 1, logits, ids, weights);

    for (int e = 0; e < 4; e++)
        logits[e] = (float)log(scores[e] / (1 - scores[e]));
    a.num_fused_shared = 1;
    cr_assert_eq(moert_route(&c, &a, NULL), MOERT_OK);
    cr_expect_arr_eq(ids, want, sizeof(want));
    cr_expect_eq(weights[3], 1);
    c.renormalize = 1; /* never renormalised, never scaled by the router */
    c.scaling_factor = 2.5;
    cr_assert_eq(moert_route(&c, &a, NULL), MOERT_OK);
    cr_expect_float_eq(weights[0] + weights[1] + weights[2], 2.5f, 1e-6f);
    cr_expect_eq(weights[3], 1);
    c.scale_at = MOERT_SCALE_AT_OUTPUT; /* net factor 1 */
    cr_assert_eq(moert_route(&c, &a, NULL), MOERT_OK);
    cr_expect_eq(weights[3], 0.4f);
    c.shared_weight = 0.75;
    cr_assert_eq(moert_route(&c, &a, NULL), MOERT_OK);
    cr_expect_eq(weights[3], 0.75f);
}

Test(router, shared_columns_give_sigmoid_weights)
{
    struct moert_router_config c = config_of(MOERT_ROUTER_SOFTMAX, 1);
    static const float logits[2][8] = {{2, 1, 0, 0.5f, -1, 99}, {0, 1, 2, NAN, INFINITY, 99}};
    static const int32_t want[2][4] = {{0, 1, 3, 4}, {2, 1, 3, 4}};
    int32_t ids[8];
    float weights[8];
    struct moert_route_args a = args_of(3, 2, 2, logits[0], ids, weights);

    a.num_fused_shared = 2;
    a.shared_columns = 1;
    a.logits_stride = 8;
    cr_assert_eq(moert_route(&c, &a, NULL), MOERT_OK);
    cr_expect_arr_eq(ids, want, sizeof(want));
    cr_expect_eq(weights[2], 0.62245934f);
    cr_expect_eq(weights[3], 0.26894143f);
    cr_expect_eq(weights[0], 0.731058598f);
    cr_expect_eq(weights[6], 0);
    cr_expect_eq(weights[7], 1);
    cr_expect_eq(a.rows_nonfinite, 1u);
}

Test(router, padding_rows_of_every_kind)
{
    static const float logits[3][4] = {PLAIN, PLAIN, {NAN, 0, 0, 0}};
    static const uint8_t padding[3] = {0, 1, 1};
    int32_t ids[9];
    float weights[9];

    for (uint32_t kind = MOERT_ROUTER_SOFTMAX; kind < MOERT_ROUTER_KIND_COUNT; kind++) {
        struct moert_router_config c = config_of(kind, 1);
        struct moert_route_args a = args_of(4, 2, 3, logits[0], ids, weights);

        a.is_padding = padding;
        a.num_fused_shared = 1;
        cr_assert_eq(moert_route(&c, &a, NULL), MOERT_OK);
        cr_expect_eq(ids[0], 0);
        cr_expect_eq(ids[2], 4);
        for (int i = 3; i < 9; i++) {
            cr_expect_eq(ids[i], -1);
            cr_expect_eq(weights[i], 0);
        }
        cr_expect_eq(a.rows_nonfinite, 0u);
    }
}

Test(router, rows_nonfinite_counts_rows)
{
    struct moert_router_config c = config_of(MOERT_ROUTER_SOFTMAX, 1);
    static const float logits[4][4] = {PLAIN, {NAN, NAN, INFINITY, 0}, {-INFINITY, 0, 0, 0}, {INFINITY, 0, 0, 0}};
    int32_t ids[8];
    float weights[8];
    struct moert_route_args a = args_of(4, 2, 4, logits[0], ids, weights);

    a.rows_nonfinite = 10;
    cr_assert_eq(moert_route(&c, &a, NULL), MOERT_OK);
    cr_expect_eq(a.rows_nonfinite, 12u);
}

/* C26: whatever the logits, ids are distinct and in range, weights finite. A bad logit never outranks a bias. */
Test(router, c26_nonfinite_logits_of_every_kind)
{
    static const float values[6] = {NAN, INFINITY, -INFINITY, 0, FLT_MAX, -FLT_MAX};
    static const float bias[6] = {0, -5, 5, 0.5f, -0.5f, 1};
    float logits[6], weights[3];
    int32_t ids[3];

    for (uint32_t kind = MOERT_ROUTER_SOFTMAX; kind < MOERT_ROUTER_KIND_COUNT; kind++)
        for (uint32_t code = 0; code < 46656; code += 7) {
            struct moert_router_config c = config_of(kind, code & 1);
            struct moert_route_args a = args_of(6, 3, 1, logits, ids, weights);

            for (uint32_t i = 0, v = code; i < 6; i++, v /= 6)
                logits[i] = values[v % 6];
            a.correction_bias = code & 2 ? bias : NULL;
            if (kind == MOERT_ROUTER_GROUPED) {
                c.num_groups = 2;
                c.topk_groups = 1;
            }
            cr_assert_eq(moert_route(&c, &a, NULL), MOERT_OK);
            cr_assert(ids[0] != ids[1] && ids[0] != ids[2] && ids[1] != ids[2]);
            for (int j = 0; j < 3; j++) {
                cr_assert(ids[j] >= 0 && ids[j] < 6);
                cr_assert(isfinite(weights[j]), "kind %u code %u: weight %g", kind, code, (double)weights[j]);
                if (isnan(logits[ids[j]]) || logits[ids[j]] == -INFINITY)
                    cr_assert_eq(weights[j], 0, "kind %u code %u", kind, code);
            }
        }
}

/* Weights come from unbiased scores; the key of a -Inf logit is its bias. */
Test(router, bias_moves_only_the_choice)
{
    struct moert_router_config c = config_of(MOERT_ROUTER_SIGMOID, 0);
    static const float logits[3] = {0, -INFINITY, 0}, bias[3] = {-1, 0.25f, 0.25f};
    int32_t ids[2];
    float weights[2];
    struct moert_route_args a = args_of(3, 2, 1, logits, ids, weights);

    a.correction_bias = bias;
    cr_assert_eq(moert_route(&c, &a, NULL), MOERT_OK);
    cr_expect_eq(ids[0], 2);
    cr_expect_eq(ids[1], 1);
    cr_expect_eq(weights[0], 0.5f);
    cr_expect_eq(weights[1], 0);
}

Test(router, ties_between_groups_take_the_lower)
{
    struct moert_router_config c = config_of(MOERT_ROUTER_GROUPED, 1);
    static const float logits[8] = {1, 0, 3, 0, 3, 0, 3, 0};
    static const int32_t want[3] = {2, 4, 3};
    int32_t ids[3];
    float weights[3];
    struct moert_route_args a = args_of(8, 3, 1, logits, ids, weights);

    c.num_groups = 4;
    c.topk_groups = 2;
    cr_assert_eq(moert_route(&c, &a, NULL), MOERT_OK);
    cr_expect_arr_eq(ids, want, sizeof(want));
}

Test(router, errors)
{
    static const struct {
        uint32_t groups, kept, experts, top_k;
        int bias;
        const char *code, *text;
    } cases[] = {
        {0, 0, 0, 1, 0, "size", "num_experts is 0"},
        {0, 0, 8, 0, 0, "topk-range", "top_k is 0; allowed 1..8"},
        {0, 0, 8, 9, 0, "topk-range", "top_k 9 exceeds the 8 experts; allowed 1..8"},
        {4, 2, 16, 9, 0, "topk-range",
         "top_k 9 exceeds the 8 experts that can be selected (2 groups of 4); allowed 1..8"},
        {7, 1, 64, 1, 0, "groups", "64 experts do not divide into 7 groups"},
        {8, 9, 64, 1, 0, "groups", "topk_groups 9 of 8"},
        {8, 1, 8, 1, 1, "groups", "correction bias needs groups of at least 2"},
    };
    struct moert_error err = MOERT_ERROR_INIT;
    struct moert_router_config c = config_of(MOERT_ROUTER_GROUPED, 1);

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        c.num_groups = cases[i].groups;
        c.topk_groups = cases[i].kept;
        cr_expect_eq(moert_router_check(&c, cases[i].experts, cases[i].top_k, cases[i].bias, &err), MOERT_E_VALUE);
        cr_expect_str_eq(err.code, cases[i].code);
        cr_expect(strstr(err.text, cases[i].text) != NULL, "%s", err.text);
    }
    cr_expect_eq(moert_router_check(&c, 8, 1, 0, NULL), MOERT_OK, "groups of one without bias");
    cr_expect_eq(moert_router_check(NULL, 8, 1, 0, NULL), MOERT_E_USAGE);
    c.kind = 99;
    cr_expect_eq(moert_router_check(&c, 8, 1, 0, &err), MOERT_E_VALUE);
    cr_expect_str_eq(err.code, "field");
}

Test(router, call_errors)
{
    struct moert_error err = MOERT_ERROR_INIT;
    struct moert_router_config c = config_of(MOERT_ROUTER_SIGMOID, 1);
    float bias[18] = {0}, logits[18] = {0}, weights[2] = {9, 9};
    int32_t ids[2] = {9, 9};
    struct moert_route_args a = args_of(18, 2, 1, logits, ids, weights);

    bias[17] = NAN;
    a.correction_bias = bias;
    cr_expect_eq(moert_route(&c, &a, &err), MOERT_E_VALUE);
    cr_expect_str_eq(err.code, "nonfinite-bias");
    cr_expect(strstr(err.text, "correction_bias[17] is NaN") != NULL, "%s", err.text);
    a.correction_bias = NULL;
    a.logits_stride = 17;
    cr_expect_eq(moert_route(&c, &a, &err), MOERT_E_SHAPE);
    a.logits_stride = 0;
    a.logits_dtype = MOERT_F8_E4M3;
    cr_expect_eq(moert_route(&c, &a, &err), MOERT_E_DTYPE);
    a.logits_dtype = MOERT_F32;
    a.logits = NULL;
    cr_expect_eq(moert_route(&c, &a, &err), MOERT_E_USAGE);
    a.logits = logits;
    a.tokens = UINT64_MAX / 16;
    cr_expect_eq(moert_route(&c, &a, &err), MOERT_E_TOO_LARGE);
    a.tokens = 1;
    c.kind = MOERT_ROUTER_GIVEN;
    cr_expect_eq(moert_route(&c, &a, &err), MOERT_E_VALUE);
    c.kind = MOERT_ROUTER_SIGMOID;
    c.scaling_factor = NAN;
    cr_expect_eq(moert_route(&c, &a, &err), MOERT_E_VALUE);
    cr_expect_eq(ids[0], 9, "written on failure");
    a.tokens = 0; /* C40 */
    c.scaling_factor = 0;
    a.logits = NULL;
    a.ids = NULL;
    a.weights = NULL;
    cr_expect_eq(moert_route(&c, &a, &err), MOERT_OK);
}

static void check_weights(const char *name, const float *have, const float *want, uint64_t count, double relative)
{
    for (uint64_t i = 0; i < count; i++)
        cr_expect(fabs((double)have[i] - (double)want[i]) <= relative * fabs((double)want[i]) + 1e-12,
                  "%s: weight %lu is %.9g, expected %.9g", name, i, (double)have[i], (double)want[i]);
}

/* Arguments and description of a case of routing.safetensors; grouped when it has groups. */
static void load_case(const moert_safetensors_t *f, const char *name, struct moert_router_config *c,
                      struct moert_route_args *a)
{
    static const moert_router_kind_t kinds[] = {S, SG, SP};
    static const moert_scoring_t scorings[] = {MOERT_SCORING_SOFTMAX, MOERT_SCORING_SIGMOID,
                                               MOERT_SCORING_SQRT_SOFTPLUS};
    const struct moert_st_tensor *logits = field_of(f, name, "logits");
    int scoring = int_param(f, name, "scoring_id", -1);

    cr_assert(scoring >= 0 && scoring < 3, "%s", name);
    *c = config_of(kinds[scoring], (uint32_t)int_param(f, name, "renorm", 0));
    if (int_param(f, name, "n_group", 1) > 1) {
        c->kind = MOERT_ROUTER_GROUPED;
        c->scoring = scorings[scoring];
        c->num_groups = (uint32_t)int_param(f, name, "n_group", 1);
        c->topk_groups = (uint32_t)int_param(f, name, "topk_group", 1);
    }
    c->scaling_factor = (double)float_param(f, name, "scale", 1);
    *a = args_of((uint32_t)int_param(f, name, "E", 0), (uint32_t)int_param(f, name, "k", 0), logits->shape[0],
                 logits->data, NULL, NULL);
    a->logits_dtype = logits->dtype;
    a->correction_bias = data_of(f, name, "bias");
    a->num_fused_shared = (uint32_t)int_param(f, name, "n_shared", 0);
    c->shared_weight = (double)float_param(f, name, "shared_w", 0);
}

Test(router, vector_files)
{
    moert_safetensors_t *f = open_vectors("routing.safetensors");
    int cases = 0;
    char name[128];

    for (uint64_t i = 0; i < moert_safetensors_count(f); i++) {
        struct moert_router_config c;
        struct moert_route_args a;
        const int32_t *hash;
        moert_status_t status;
        uint64_t n;

        if (!case_with_field(f, i, "topk_ids", name, sizeof(name)))
            continue;
        load_case(f, name, &c, &a);
        n = a.tokens * (a.top_k + a.num_fused_shared);
        a.ids = fenced(n);
        a.weights = malloc(n * sizeof(float));
        hash = data_of(f, name, "table");
        if (hash)
            status = moert_route_hash(&c, &a, hash, field_of(f, name, "table")->shape[0], data_of(f, name, "input_ids"),
                                      NULL);
        else
            status = moert_route(&c, &a, NULL);
        cr_assert_eq(status, MOERT_OK, "%s", name);
        cr_expect_arr_eq(a.ids, data_of(f, name, "topk_ids"), n * 4, "%s: ids", name);
        check_weights(name, a.weights, data_of(f, name, "topk_w"), n, strcmp(name, "sigmoid_low") ? 1e-5 : 1e-4);
        free_fenced(a.ids, n);
        free(a.weights);
        cases++;
    }
    cr_assert_geq(cases, 19, "%d cases", cases);
    moert_safetensors_close(f);
}

/* `skip` of route_nonfinite is moert's rule for rows without +Inf. */
Test(router, vector_files_nonfinite)
{
    moert_safetensors_t *f = open_vectors("routing.safetensors");
    const char *name = "nonfinite_softmax";
    struct moert_router_config c;
    struct moert_route_args a;
    const float *logits = data_of(f, name, "logits");
    const int32_t *want_ids = data_of(f, name, "skip.topk_ids");
    const float *want = data_of(f, name, "skip.topk_w");
    int32_t ids[5 * 2];
    float weights[5 * 2];
    int compared = 0;

    cr_assert(logits && want_ids && want);
    load_case(f, name, &c, &a);
    if (!a.num_experts)
        a.num_experts = 8;
    cr_assert_eq(a.tokens, 5u);
    cr_assert_eq(a.top_k, 2u);
    a.ids = ids;
    a.weights = weights;
    cr_assert_eq(moert_route(&c, &a, NULL), MOERT_OK);
    for (uint32_t t = 0; t < 5; t++) {
        int has_inf = 0;
        for (uint32_t e = 0; e < 8; e++)
            has_inf |= logits[t * 8 + e] == INFINITY;
        if (has_inf)
            continue;
        cr_expect_arr_eq(ids + t * 2, want_ids + t * 2, 8, "row %u", t);
        check_weights(name, weights + t * 2, want + t * 2, 2, 1e-5);
        compared++;
    }
    cr_expect_geq(compared, 2);
    moert_safetensors_close(f);
}

Test(router, hash_routing)
{
    struct moert_router_config c = config_of(MOERT_ROUTER_SOFTMAX, 1);
    struct moert_error err = MOERT_ERROR_INIT;
    static const float logits[2][4] = {PLAIN, PLAIN}, bias[4] = {9, 9, 9, 9};
    static const int32_t rows[3][2] = {{3, 0}, {2, 2}, {1, 7}}, tokens[2] = {0, 2}, beyond[2] = {0, 3};
    static const uint8_t padding[2] = {0, 1};
    int32_t ids[4];
    float weights[4];
    struct moert_route_args a = args_of(4, 2, 2, logits[0], ids, weights);

    a.correction_bias = bias; /* weights are unbiased */
    cr_assert_eq(moert_route_hash(&c, &a, rows[0], 3, tokens, NULL), MOERT_OK);
    cr_expect_eq(ids[0], 3);
    cr_expect_eq(ids[1], 0);
    cr_expect_eq(weights[0], 0.0474258736f);
    cr_expect_eq(weights[1], 0.952574134f);
    cr_expect_eq(weights[2], 1);
    cr_expect_eq(weights[3], 0, "7 is no expert");
    ids[0] = 55;
    cr_expect_eq(moert_route_hash(&c, &a, rows[0], 3, beyond, &err), MOERT_E_VALUE);
    cr_expect_eq(ids[0], 55, "written on failure");
    a.is_padding = padding;
    cr_expect_eq(moert_route_hash(&c, &a, rows[0], 3, beyond, &err), MOERT_OK);
    cr_expect_eq(ids[2], -1);
    cr_expect_eq(moert_route_hash(&c, &a, NULL, 3, tokens, &err), MOERT_E_USAGE);
}

/* Ascending k in binary64, one rounding: a sum that any other order gets wrong, and odd sizes against a plain loop. */
Test(router, logits_in_ascending_order)
{
    /* third row: lost in f32, kept in binary64; fourth: only ascending order keeps the 1 */
    static const float x[4][3] = {{1e17f, 1, -1e17f}, {0, 0, 0}, {0x1p24f, 1, -0x1p24f}, {1e17f, -1e17f, 1}};
    static const float ones[3] = {1, 1, 1}, bias[1] = {0.5f}, want[4] = {0, 0, 1, 1};
    float y[4];

    cr_assert_eq(moert_router_logits(x, MOERT_F32, ones, MOERT_F32, NULL, 4, 3, 1, y, MOERT_F32, NULL), MOERT_OK);
    for (int t = 0; t < 4; t++)
        cr_expect_eq(y[t], want[t], "row %d: %g", t, (double)y[t]);
    cr_assert_eq(moert_router_logits(x, MOERT_F32, ones, MOERT_F32, bias, 1, 3, 1, y, MOERT_F32, NULL), MOERT_OK);
    cr_expect_eq(y[0], 0.5f);
}

Test(router, logits_of_odd_sizes)
{
    enum { T = 19, H = 37, E = 13 };
    uint16_t x[T * H], w[E * H], bias[E], have[T * E];
    static const moert_dtype_t dtypes[2] = {MOERT_BF16, MOERT_F16};

    for (int d = 0; d < 2; d++) {
        for (int i = 0; i < T * H; i++)
            moert_store(x, dtypes[d], (uint64_t)i, ((double)(mix((uint64_t)i) % 2001) - 1000) / 256);
        for (int i = 0; i < E * H; i++)
            moert_store(w, dtypes[1 - d], (uint64_t)i, ((double)(mix((uint64_t)i + 9999) % 2001) - 1000) / 512);
        for (int e = 0; e < E; e++)
            moert_store(bias, dtypes[1 - d], (uint64_t)e, e - 6);
        cr_assert_eq(moert_router_logits(x, dtypes[d], w, dtypes[1 - d], bias, T, H, E, have, dtypes[d], NULL),
                     MOERT_OK);
        for (uint64_t t = 0; t < T; t++)
            for (uint64_t e = 0; e < E; e++) {
                double sum = 0;
                uint16_t want;
                for (uint64_t k = 0; k < H; k++)
                    sum += moert_load(x, dtypes[d], t * H + k) * moert_load(w, dtypes[1 - d], e * H + k);
                moert_store(&want, dtypes[d], 0, sum + moert_load(bias, dtypes[1 - d], e));
                cr_expect_eq(have[t * E + e], want, "%lu,%lu", t, e);
            }
    }
    cr_expect_eq(moert_router_logits(x, MOERT_I32, w, MOERT_F16, NULL, T, H, E, have, MOERT_BF16, NULL), MOERT_E_DTYPE);
    cr_expect_eq(moert_router_logits(NULL, MOERT_F32, NULL, MOERT_F32, NULL, 0, H, E, NULL, MOERT_F32, NULL), MOERT_OK);
    cr_expect_eq(moert_router_logits(NULL, MOERT_F32, w, MOERT_F32, NULL, 1, H, E, have, MOERT_F32, NULL),
                 MOERT_E_USAGE);
}
