/* Activations: values and parameter rules of layer.md 2, golden vectors (README 7). */
#include "numerics.h"

#include <math.h>

static struct moert_activation_params resolved(moert_activation_t kind, uint32_t set, double limit, double alpha,
                                               double beta)
{
    struct moert_layer_config layer = {.size = sizeof(layer), .activation = kind, .params_set = set};
    struct moert_activation_params ret = {0};
    struct moert_error err = MOERT_ERROR_INIT;

    layer.swiglu_limit = limit;
    layer.swiglu_alpha = alpha;
    layer.swiglu_beta = beta;
    layer.situ_beta = alpha;
    layer.situ_linear_beta = beta;
    cr_assert_eq(moert_activation_resolve(&layer, &ret, &err), MOERT_OK, "%s", err.text);
    return ret;
}

Test(activation, values)
{
    static const struct {
        moert_activation_t kind;
        uint32_t set;
        double limit, alpha, beta, g, u, want;
    } cases[] = {{MOERT_ACT_SILU, 0, 0, 0, 0, 8, -9, -71.9758548},
                 {MOERT_ACT_SILU, MOERT_PARAM_SWIGLU_LIMIT, 7, 0, 0, 8, -9, -48.9553585},
                 {MOERT_ACT_SWIGLUOAI, 0, 0, 0, 0, 8, -9, -41.9997188},
                 {MOERT_ACT_SWIGLUSTEP, 0, 0, 0, 0, 8, -9, -49},
                 {MOERT_ACT_SILU, 0, 0, 0, 0, -1, 2, -0.537882843},
                 {MOERT_ACT_SWIGLUOAI, 0, 0, 0, 0, -1, 2, -0.462612702},
                 {MOERT_ACT_GELU, 0, 0, 0, 0, -1, 2, -0.317310508},
                 {MOERT_ACT_GELU_TANH, 0, 0, 0, 0, -1, 2, -0.317616019},
                 {MOERT_ACT_SITU, MOERT_PARAM_SITU_BETA, 0, 1, 0, -1, 2, -0.40964843},
                 {MOERT_ACT_SITU, MOERT_PARAM_SITU_BETA | MOERT_PARAM_SITU_LINEAR_BETA, 0, 1, 1.5, -1, 2, -0.267314545},
                 {MOERT_ACT_RELU2, 0, 0, 0, 0, 3, 2, 18},
                 {MOERT_ACT_RELU2, 0, 0, 0, 0, -3, 2, 0},
                 {MOERT_ACT_SWIGLUOAI_UNINTERLEAVE, MOERT_PARAM_SWIGLU_LIMIT, 7, 0, 0, 8, -9, -48.9553585}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct moert_activation_params p =
            resolved(cases[i].kind, cases[i].set, cases[i].limit, cases[i].alpha, cases[i].beta);
        double y = moert_activation_eval(&p, cases[i].g, cases[i].u);
        cr_expect(fabs(y - cases[i].want) <= 6e-9 * fabs(cases[i].want), "case %zu: %.9g, want %.9g", i, y,
                  cases[i].want);
    }
}

/* The row orders are different functions of the same bytes. */
Test(activation, orders)
{
    const float row[] = {1, 10, 2, 20}, swapped[] = {2, 20, 1, 10};
    float out[2];
    struct moert_activation_params p = resolved(MOERT_ACT_SWIGLUOAI, 0, 0, 0, 0);
    struct moert_error err = MOERT_ERROR_INIT;

    cr_assert_eq(moert_activation_apply(&p, MOERT_W13_INTERLEAVED, row, out, MOERT_F32, 1, 2, &err), MOERT_OK);
    cr_expect(fabsf(out[0] - 6.76636613f) < 1e-6f && fabsf(out[1] - 15.485269f) < 2e-6f, "%.9g %.9g", (double)out[0],
              (double)out[1]);
    cr_assert_eq(moert_activation_apply(&p, MOERT_W13_GATE_UP, row, out, MOERT_F32, 1, 2, &err), MOERT_OK);
    cr_expect(fabsf(out[0] - 2.5373873f) < 1e-6f && fabsf(out[1] - 55.999625f) < 5e-6f, "%.9g %.9g", (double)out[0],
              (double)out[1]);
    cr_assert_eq(moert_activation_apply(&p, MOERT_W13_UP_GATE, swapped, out, MOERT_F32, 1, 2, &err), MOERT_OK);
    cr_expect(fabsf(out[0] - 2.5373873f) < 1e-6f && fabsf(out[1] - 55.999625f) < 5e-6f);
}

Test(activation, gated_kinds)
{
    for (uint32_t k = 0; k < MOERT_ACT_COUNT; k++)
        cr_expect_eq(moert_activation_is_gated(k), k < MOERT_ACT_SILU_NO_MUL, "kind %u", k);
    cr_expect_eq(moert_activation_is_gated(99), 0);
}

/* Texts and codes of layer.md 7. */
Test(activation, refusals)
{
    static const struct {
        moert_activation_t kind;
        uint32_t set;
        double value;
        const char *code, *text;
    } cases[] = {
        {99, 0, 0, "activation", "unknown activation 99; known: silu, "},
        {MOERT_ACT_SWIGLUOAI_UNINTERLEAVE, 0, 0, "activation", "swigluoai_uninterleave needs swiglu_limit"},
        {MOERT_ACT_SITU, 0, 0, "activation", "situ needs situ_beta"},
        {MOERT_ACT_GELU, MOERT_PARAM_SWIGLU_LIMIT, 7, "activation-param", "gelu takes no swiglu_limit (got 7)"},
        {MOERT_ACT_SILU, MOERT_PARAM_SWIGLU_ALPHA, 1.702, "activation-param", "silu has swiglu_alpha fixed at 1"},
        {MOERT_ACT_SILU, MOERT_PARAM_SWIGLU_BETA, 1, "activation-param", "silu has swiglu_beta fixed at 0"},
        {MOERT_ACT_SWIGLUOAI, MOERT_PARAM_SWIGLU_ALPHA, 1, "activation-param",
         "swigluoai has swiglu_alpha fixed at 1.702"},
        {MOERT_ACT_SWIGLUOAI, MOERT_PARAM_SWIGLU_LIMIT, -1, "activation-param", "swiglu_limit is -1; must be above 0"},
        {MOERT_ACT_SILU, MOERT_PARAM_SWIGLU_LIMIT, INFINITY, "activation-param", "swiglu_limit is inf; must be finite"},
        {MOERT_ACT_RELU2_NO_MUL, MOERT_PARAM_SITU_BETA, 1, "activation-param", "relu2_no_mul takes no situ_beta"},
        {MOERT_ACT_SITU, MOERT_PARAM_SITU_BETA, 0, "activation-param", "situ_beta is 0; must be above 0"},
        {MOERT_ACT_SWIGLUSTEP, MOERT_PARAM_SWIGLU_BETA, 0, "activation-param", "swiglustep takes no swiglu_beta"}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct moert_layer_config layer = {.size = sizeof(layer), .activation = cases[i].kind};
        struct moert_activation_params p = {.kind = 77};
        struct moert_error err = MOERT_ERROR_INIT;
        double v = cases[i].value;
        layer.params_set = cases[i].set;
        layer.swiglu_limit = layer.swiglu_alpha = layer.swiglu_beta = layer.situ_beta = layer.situ_linear_beta = v;
        cr_expect_eq(moert_activation_resolve(&layer, &p, &err), MOERT_E_VALUE, "case %zu", i);
        cr_expect_str_eq(err.code, cases[i].code);
        cr_expect(!strncmp(err.text, cases[i].text, strlen(cases[i].text)), "%s", err.text);
        cr_expect_eq(p.kind, 77u, "written on failure");
        cr_expect_eq(moert_activation_resolve(&layer, &p, NULL), MOERT_E_VALUE);
    }
}

struct golden_case {
    const char *name;
    moert_activation_t kind;
    uint32_t set;
    double limit, alpha, beta;
    moert_w13_order_t order;
};

static const struct golden_case golden_cases[] = {
    {"silu", MOERT_ACT_SILU, 0, 0, 0, 0, MOERT_W13_GATE_UP},
    {"gelu", MOERT_ACT_GELU, 0, 0, 0, 0, MOERT_W13_GATE_UP},
    {"gelu_tanh", MOERT_ACT_GELU_TANH, 0, 0, 0, 0, MOERT_W13_GATE_UP},
    {"silu_clamp", MOERT_ACT_SILU, MOERT_PARAM_SWIGLU_LIMIT, 7, 0, 0, MOERT_W13_GATE_UP},
    {"swigluoai", MOERT_ACT_SWIGLUOAI, 0, 0, 0, 0, MOERT_W13_INTERLEAVED},
    {"swigluoai_uninterleave", MOERT_ACT_SWIGLUOAI_UNINTERLEAVE,
     MOERT_PARAM_SWIGLU_LIMIT | MOERT_PARAM_SWIGLU_ALPHA | MOERT_PARAM_SWIGLU_BETA, 7, 1.702, 1, MOERT_W13_GATE_UP},
    {"swiglustep", MOERT_ACT_SWIGLUSTEP, 0, 0, 0, 0, MOERT_W13_GATE_UP},
    {"situ", MOERT_ACT_SITU, MOERT_PARAM_SITU_BETA, 0, 1, 0, MOERT_W13_GATE_UP},
    {"situ_2", MOERT_ACT_SITU, MOERT_PARAM_SITU_BETA | MOERT_PARAM_SITU_LINEAR_BETA, 0, 2, 3, MOERT_W13_GATE_UP},
    {"silu_no_mul", MOERT_ACT_SILU_NO_MUL, 0, 0, 0, 0, 0},
    {"gelu_no_mul", MOERT_ACT_GELU_NO_MUL, 0, 0, 0, 0, 0},
    {"gelu_tanh_no_mul", MOERT_ACT_GELU_TANH_NO_MUL, 0, 0, 0, 0, 0},
    {"gelu_new", MOERT_ACT_GELU_TANH_NO_MUL, 0, 0, 0, 0, 0},
    {"relu2_no_mul", MOERT_ACT_RELU2_NO_MUL, 0, 0, 0, 0, 0},
};

/* |g u'| of the tolerance: the factors after clamping, u' with its +1 or +beta. */
static double factors(const struct golden_case *c, const float *row, uint64_t i, uint64_t d)
{
    int interleaved = c->order == MOERT_W13_INTERLEAVED;
    double g = (double)row[interleaved ? 2 * i : i], u = 1, limit = 7;

    if (c->kind == MOERT_ACT_RELU2_NO_MUL)
        return 0;
    if (moert_activation_is_gated(c->kind))
        u = (double)row[interleaved ? 2 * i + 1 : d + i];
    if (c->limit > 0 || c->kind == MOERT_ACT_SWIGLUOAI || c->kind == MOERT_ACT_SWIGLUSTEP) {
        g = c->kind == MOERT_ACT_SWIGLUSTEP ? g : fmin(g, limit);
        u = fmax(fmin(u, limit), -limit);
    }
    if (c->kind == MOERT_ACT_SWIGLUOAI || c->kind == MOERT_ACT_SWIGLUOAI_UNINTERLEAVE)
        u += 1;
    return fabs(g * u);
}

static void check_f32(const moert_safetensors_t *file, const struct golden_case *c,
                      const struct moert_activation_params *p)
{
    const struct moert_st_tensor *x = golden(file, c->name, "x"), *want = golden(file, c->name, "out_f32");
    uint64_t rows = want->shape[0], d = want->shape[1], width = x->shape[1];
    float *out = malloc(want->bytes), *in = malloc(x->bytes);
    struct moert_error err = MOERT_ERROR_INIT;

    memcpy(in, x->data, x->bytes);
    cr_assert_eq(moert_activation_apply(p, c->order, in, out, MOERT_F32, rows, d, &err), MOERT_OK, "%s", err.text);
    for (uint64_t i = 0; i < rows * d; i++) {
        float ref;
        memcpy(&ref, (const char *)want->data + 4 * i, 4);
        double tolerance = 0x1p-20 * fabs((double)ref) + 0x1p-21 * factors(c, in + i / d * width, i % d, d) + 0x1p-126;
        cr_expect(fabs((double)out[i] - (double)ref) <= tolerance, "%s[%llu]: %.9g, want %.9g", c->name,
                  (unsigned long long)i, (double)out[i], (double)ref);
    }
    free(out);
    free(in);
}

static void check_bf16(const moert_safetensors_t *file, const struct golden_case *c,
                       const struct moert_activation_params *p)
{
    const struct moert_st_tensor *x = golden(file, c->name, "b.x"), *want = golden(file, c->name, "b.out");
    uint64_t rows = want->shape[0], d = want->shape[1];
    uint16_t *out = malloc(want->bytes);
    struct moert_error err = MOERT_ERROR_INIT;

    cr_assert_eq(moert_activation_apply(p, c->order, x->data, out, MOERT_BF16, rows, d, &err), MOERT_OK);
    for (uint64_t i = 0; i < rows * d; i++) {
        uint16_t ref;
        memcpy(&ref, (const char *)want->data + 2 * i, 2);
        cr_expect(out[i] == ref || ((out[i] | ref) & 0x7FFF) == 0, "%s[%llu]: %04X, want %04X", c->name,
                  (unsigned long long)i, out[i], ref);
    }
    free(out);
}

Test(activation, golden)
{
    moert_safetensors_t *file = golden_open("activation");

    for (size_t i = 0; i < sizeof(golden_cases) / sizeof(*golden_cases); i++) {
        const struct golden_case *c = &golden_cases[i];
        struct moert_activation_params p = resolved(c->kind, c->set, c->limit, c->alpha, c->beta);
        check_f32(file, c, &p);
        check_bf16(file, c, &p);
    }
    moert_safetensors_close(file);
}

Test(activation, nan_and_bad_calls)
{
    struct moert_activation_params p;
    struct moert_error err = MOERT_ERROR_INIT;
    float x[2] = {1, 2}, y[2];

    for (uint32_t k = 0; k < MOERT_ACT_COUNT; k++) {
        p = resolved(k,
                     k == MOERT_ACT_SITU                     ? MOERT_PARAM_SITU_BETA
                     : k == MOERT_ACT_SWIGLUOAI_UNINTERLEAVE ? MOERT_PARAM_SWIGLU_LIMIT
                                                             : 0,
                     7, 1, 0);
        cr_expect(isnan(moert_activation_eval(&p, (double)NAN, 1)), "kind %u drops NaN", k);
        cr_expect(!moert_activation_is_gated(k) || isnan(moert_activation_eval(&p, 1, (double)NAN)), "kind %u", k);
    }
    p = resolved(MOERT_ACT_SILU, 0, 0, 0, 0);
    cr_expect_eq(moert_activation_apply(&p, 3, x, y, MOERT_F32, 1, 1, &err), MOERT_E_VALUE);
    cr_expect_eq(moert_activation_apply(&p, 0, x, y, MOERT_U8, 1, 1, &err), MOERT_E_DTYPE);
    cr_expect_eq(moert_activation_apply(&p, 0, NULL, y, MOERT_F32, 1, 1, &err), MOERT_E_USAGE);
    cr_expect_eq(moert_activation_apply(&p, 0, x, NULL, MOERT_F32, 1, 1, NULL), MOERT_E_USAGE);
    cr_expect_eq(moert_activation_apply(&p, 0, x, y, MOERT_F32, UINT64_MAX / 2, 4, &err), MOERT_E_TOO_LARGE);
    cr_expect_eq(moert_activation_apply(&p, 0, NULL, NULL, MOERT_F32, 0, 4, &err), MOERT_OK);
    p.kind = 99;
    cr_expect_eq(moert_activation_apply(&p, 0, x, y, MOERT_F32, 1, 1, &err), MOERT_E_VALUE);
}
