/* core/numerics/activation.c: activations of the expert MLP (moert/activation.h, layer.md 2) in binary64, by the
 * functions of exact_math.h, so that a host's libm decides no bit. The formulas are evaluated as the specification writes
 * them: 1 + erf and 1 + tanh cancel for large negative gates, and the expected values hold that (gelu_tanh of -8 is -0). */
#include <moert/activation.h>
#include <moert/float8.h>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/numerics/exact_math.h"

#define ALPHA_OAI   1.702
#define LIMIT_OAI   7.0
#define SQRT_HALF   0x1.6a09e667f3bcdp-1 /* 1/sqrt(2) */
#define SQRT_2_PI   0x1.9884533d43651p-1 /* sqrt(2/pi) */
#define GELU_CUBIC  0.044715
#define LARGEST     0x1.fffffffffffffp1023
#define LIMIT       MOERT_PARAM_SWIGLU_LIMIT
#define ALPHA       MOERT_PARAM_SWIGLU_ALPHA
#define BETA        MOERT_PARAM_SWIGLU_BETA
#define SITU_BETA   MOERT_PARAM_SITU_BETA
#define SITU_LINEAR MOERT_PARAM_SITU_LINEAR_BETA

/* NaN stays NaN. */
static inline double at_most(double x, double limit)
{
    return x > limit ? limit : x;
}

static inline double clip(double x, double limit)
{
    return x > limit ? limit : x < -limit ? -limit : x;
}

static inline double square_of_positive(double x)
{
    return x > 0 ? x * x : x != x ? x : 0;
}

static inline double silu(double x)
{
    return x * moert_logistic(x);
}

static inline double gelu(double x)
{
    return 0.5 * x * (1 + moert_erf(x * SQRT_HALF));
}

static inline double gelu_tanh(double x)
{
    return 0.5 * x * (1 + moert_tanh(SQRT_2_PI * (x + GELU_CUBIC * x * x * x)));
}

/* ------------------------------------------------------------------ one function per kind */

typedef double (*function)(const struct moert_activation_params *p, double g, double u);

static double eval_silu(const struct moert_activation_params *p, double g, double u)
{
    if (p->limit > 0) {
        g = at_most(g, p->limit);
        u = clip(u, p->limit);
    }
    return silu(g) * u;
}

static double eval_gelu(const struct moert_activation_params *p, double g, double u)
{
    (void)p;
    return gelu(g) * u;
}

static double eval_gelu_tanh(const struct moert_activation_params *p, double g, double u)
{
    (void)p;
    return gelu_tanh(g) * u;
}

/* swigluoai is this with alpha 1.702, beta 1, and another row order. */
static double eval_swigluoai(const struct moert_activation_params *p, double g, double u)
{
    g = at_most(g, p->limit);
    return (clip(u, p->limit) + p->beta) * (g * moert_logistic(p->alpha * g));
}

static double eval_swiglustep(const struct moert_activation_params *p, double g, double u)
{
    return at_most(silu(g), p->limit) * clip(u, p->limit);
}

static double eval_situ(const struct moert_activation_params *p, double g, double u)
{
    if (p->situ_linear_beta > 0)
        u = p->situ_linear_beta * moert_tanh(u / p->situ_linear_beta);
    return p->situ_beta * moert_tanh(g / p->situ_beta) * moert_logistic(g) * u;
}

static double eval_relu2(const struct moert_activation_params *p, double g, double u)
{
    (void)p;
    return square_of_positive(g) * u;
}

static double eval_silu_no_mul(const struct moert_activation_params *p, double g, double u)
{
    (void)p;
    (void)u;
    return silu(g);
}

static double eval_gelu_no_mul(const struct moert_activation_params *p, double g, double u)
{
    (void)p;
    (void)u;
    return gelu(g);
}

static double eval_gelu_tanh_no_mul(const struct moert_activation_params *p, double g, double u)
{
    (void)p;
    (void)u;
    return gelu_tanh(g);
}

static double eval_relu2_no_mul(const struct moert_activation_params *p, double g, double u)
{
    (void)p;
    (void)u;
    return square_of_positive(g);
}

/* What a kind computes and which parameters it takes (layer.md 2). */
struct kind {
    const char *name;
    function eval;
    int gated;
    uint32_t accepts, requires;
    struct moert_activation_params defaults;
};

static const struct kind kinds[MOERT_ACT_COUNT] = {
    [MOERT_ACT_SILU] = {"silu", eval_silu, 1, LIMIT | ALPHA | BETA, 0, {.alpha = 1}},
    [MOERT_ACT_GELU] = {"gelu", eval_gelu, 1, 0, 0, {0}},
    [MOERT_ACT_GELU_TANH] = {"gelu_tanh", eval_gelu_tanh, 1, 0, 0, {0}},
    [MOERT_ACT_SWIGLUOAI] =
        {"swigluoai", eval_swigluoai, 1, LIMIT | ALPHA | BETA, 0, {.limit = LIMIT_OAI, .alpha = ALPHA_OAI, .beta = 1}},
    [MOERT_ACT_SWIGLUOAI_UNINTERLEAVE] =
        {"swigluoai_uninterleave", eval_swigluoai, 1, LIMIT | ALPHA | BETA, LIMIT, {.alpha = 1}},
    [MOERT_ACT_SWIGLUSTEP] = {"swiglustep", eval_swiglustep, 1, LIMIT, 0, {.limit = LIMIT_OAI}},
    [MOERT_ACT_SITU] = {"situ", eval_situ, 1, SITU_BETA | SITU_LINEAR, SITU_BETA, {0}},
    [MOERT_ACT_RELU2] = {"relu2", eval_relu2, 1, 0, 0, {0}},
    [MOERT_ACT_SILU_NO_MUL] = {"silu_no_mul", eval_silu_no_mul, 0, 0, 0, {0}},
    [MOERT_ACT_GELU_NO_MUL] = {"gelu_no_mul", eval_gelu_no_mul, 0, 0, 0, {0}},
    [MOERT_ACT_GELU_TANH_NO_MUL] = {"gelu_tanh_no_mul", eval_gelu_tanh_no_mul, 0, 0, 0, {0}},
    [MOERT_ACT_RELU2_NO_MUL] = {"relu2_no_mul", eval_relu2_no_mul, 0, 0, 0, {0}},
};

/* ------------------------------------------------------------------ parameters */

static const struct {
    const char *name;
    uint32_t bit;
    size_t layer_offset, params_offset;
    int positive; /* must be > 0, else only finite; situ_linear_beta 0 means none */
} fields[] = {
    {"swiglu_limit", LIMIT, offsetof(struct moert_layer_config, swiglu_limit),
     offsetof(struct moert_activation_params, limit), 1},
    {"swiglu_alpha", ALPHA, offsetof(struct moert_layer_config, swiglu_alpha),
     offsetof(struct moert_activation_params, alpha), 0},
    {"swiglu_beta", BETA, offsetof(struct moert_layer_config, swiglu_beta),
     offsetof(struct moert_activation_params, beta), 0},
    {"situ_beta", SITU_BETA, offsetof(struct moert_layer_config, situ_beta),
     offsetof(struct moert_activation_params, situ_beta), 1},
    {"situ_linear_beta", SITU_LINEAR, offsetof(struct moert_layer_config, situ_linear_beta),
     offsetof(struct moert_activation_params, situ_linear_beta), 0},
};
#define FIELDS (sizeof(fields) / sizeof(*fields))

static moert_status_t unknown_kind(moert_activation_t kind, struct moert_error *err)
{
    return moert_fail(err, MOERT_E_VALUE, "activation",
                      "unknown activation %u; known: silu, gelu, gelu_tanh, swigluoai, swigluoai_uninterleave, "
                      "swiglustep, situ, relu2, silu_no_mul, gelu_no_mul, gelu_tanh_no_mul, relu2_no_mul",
                      kind);
}

/* One parameter that the layer gives. silu and swigluoai accept alpha and beta only at the value they have anyway. */
static moert_status_t resolve_field(const struct kind *kind, size_t i, double value, double *ret,
                                    struct moert_error *err)
{
    int fixed = (fields[i].bit & (ALPHA | BETA)) && kind != &kinds[MOERT_ACT_SWIGLUOAI_UNINTERLEAVE];

    if (!(kind->accepts & fields[i].bit))
        return moert_fail(err, MOERT_E_VALUE, "activation-param", "%s takes no %s (got %.9g)", kind->name,
                          fields[i].name, value);
    if (!(value >= -LARGEST && value <= LARGEST))
        return moert_fail(err, MOERT_E_VALUE, "activation-param", "%s is %g; must be finite", fields[i].name, value);
    if (fields[i].positive && !(value > 0))
        return moert_fail(err, MOERT_E_VALUE, "activation-param", "%s is %.9g; must be above 0", fields[i].name, value);
    if (fields[i].bit == SITU_LINEAR && value < 0)
        return moert_fail(err, MOERT_E_VALUE, "activation-param", "%s is %.9g; must be 0 (none) or above",
                          fields[i].name, value);
    if (fixed && (value < *ret || value > *ret))
        return moert_fail(err, MOERT_E_VALUE, "activation-param", "%s has %s fixed at %g (got %.9g)", kind->name,
                          fields[i].name, *ret, value);
    *ret = value;
    return MOERT_OK;
}

moert_status_t moert_activation_resolve(const struct moert_layer_config *layer, struct moert_activation_params *ret,
                                        struct moert_error *err)
{
    struct moert_activation_params params;
    const struct kind *kind;

    if (!layer || !ret)
        return moert_fail_null(err, layer ? "ret" : "layer");
    if (layer->activation >= MOERT_ACT_COUNT)
        return unknown_kind(layer->activation, err);
    kind = &kinds[layer->activation];
    params = kind->defaults;
    params.kind = layer->activation;
    for (size_t i = 0; i < FIELDS; i++) {
        double *target = (double *)((char *)&params + fields[i].params_offset);
        double value = *(const double *)((const char *)layer + fields[i].layer_offset);
        moert_status_t status = MOERT_OK;
        if (layer->params_set & fields[i].bit)
            status = resolve_field(kind, i, value, target, err);
        else if (kind->requires & fields[i].bit)
            status = moert_fail(err, MOERT_E_VALUE, "activation", "%s needs %s", kind->name, fields[i].name);
        if (status)
            return status;
    }
    *ret = params;
    return MOERT_OK;
}

/* ------------------------------------------------------------------ evaluation */

int moert_activation_is_gated(moert_activation_t kind)
{
    return kind < MOERT_ACT_COUNT && kinds[kind].gated;
}

double moert_activation_eval(const struct moert_activation_params *params, double gate, double up)
{
    return kinds[params->kind < MOERT_ACT_COUNT ? params->kind : MOERT_ACT_SILU].eval(params, gate, up);
}

/* Where gate and up of one row lie, in elements: element i at first + i * step. */
struct places {
    uint64_t gate, up, step, width;
};

static struct places find_halves(int gated, moert_w13_order_t order, uint64_t n)
{
    if (!gated)
        return (struct places){0, 0, 1, n};
    switch (order) {
    case MOERT_W13_UP_GATE: return (struct places){n, 0, 1, 2 * n};
    case MOERT_W13_INTERLEAVED: return (struct places){0, 1, 2, 2 * n};
    default: return (struct places){0, n, 1, 2 * n};
    }
}

moert_status_t moert_activation_apply(const struct moert_activation_params *params, moert_w13_order_t order,
                                      const void *c1, void *c2, moert_dtype_t dtype, uint64_t rows,
                                      uint64_t intermediate_size, struct moert_error *err)
{
    struct places at;
    uint64_t n;
    function eval;

    if (!params)
        return moert_fail_null(err, "params");
    if (params->kind >= MOERT_ACT_COUNT)
        return unknown_kind(params->kind, err);
    if (order >= MOERT_W13_ORDER_COUNT)
        return moert_fail(err, MOERT_E_VALUE, "order",
                          "w13_order %u is unknown; known: 0 gate_up, 1 up_gate, 2 interleaved", order);
    if (dtype != MOERT_F32 && dtype != MOERT_BF16 && dtype != MOERT_F16)
        return moert_fail(err, MOERT_E_DTYPE, "x-dtype", "activations of dtype %u; give F32, BF16 or F16", dtype);
    if (!moert_mul(rows, intermediate_size, &n) || !moert_mul(n, 8, &n) || n > SIZE_MAX)
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large", "%llu rows of %llu exceed the address space",
                          (unsigned long long)rows, (unsigned long long)intermediate_size);
    if (n && (!c1 || !c2))
        return moert_fail_null(err, c1 ? "c2" : "c1");
    at = find_halves(kinds[params->kind].gated, order, intermediate_size);
    eval = kinds[params->kind].eval;
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t i = 0; i < intermediate_size; i++) {
            double g = moert_load(c1, dtype, r * at.width + at.gate + i * at.step);
            double u = moert_load(c1, dtype, r * at.width + at.up + i * at.step);
            moert_store(c2, dtype, r * intermediate_size + i, eval(params, g, u));
        }
    return MOERT_OK;
}
