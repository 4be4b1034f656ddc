/* core/layer/config.c: the description of a layer: defaults, checks, sizes. The first station of every flow: nothing
 * below it (oracle, backends, run) sees a description that has not passed moert_layer_config_check. */
#include "core/base/checked.h"
#include "core/layer/describe.h"

#include <moert/activation.h>
#include <moert/routing.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Fields whose default depends on other fields hold a value without a name until moert_layer_config_check. */
#define UNSET_SCHEME ((moert_scheme_t)MOERT_SCHEME_COUNT)
#define UNSET_ORDER  ((moert_w13_order_t)MOERT_W13_ORDER_COUNT)

#define KNOWN_PARAMS                                                                                                   \
    (MOERT_PARAM_SWIGLU_LIMIT | MOERT_PARAM_SWIGLU_ALPHA | MOERT_PARAM_SWIGLU_BETA | MOERT_PARAM_SITU_BETA |           \
     MOERT_PARAM_SITU_LINEAR_BETA)

void moert_layer_config_init(struct moert_layer_config *config)
{
    if (!config)
        return;
    memset(config, 0, sizeof(*config));
    config->size = sizeof(*config);
    config->index = -1;
    config->dtype = MOERT_BF16;
    config->activation_scheme = UNSET_SCHEME;
    config->w13_order = UNSET_ORDER;
    config->max_tokens = 8192;
    config->router.size = sizeof(config->router);
    config->router.num_groups = 1;
    config->router.scaling_factor = 1;
    config->shared.size = sizeof(config->shared);
}

moert_status_t moert_layer_prefix(const struct moert_layer_config *config, struct moert_error *err,
                                  moert_status_t status)
{
    if (status && config->index >= 0)
        moert_prefix(err, status, "layer %.255s#%d: ", config->name, (int)config->index);
    else if (status) /* a layer without a number */
        moert_prefix(err, status, "layer%s%.255s: ", *config->name ? " " : "", config->name);
    return status;
}

static int is_quantised(moert_scheme_t scheme)
{
    return scheme == MOERT_SCHEME_MXFP8 || scheme == MOERT_SCHEME_LUT_B;
}

/* ------------------------------------------------------------------ single subjects of the check */

static moert_status_t check_struct(const struct moert_layer_config *c, struct moert_error *err)
{
    moert_status_t status = moert_check_size(err, "moert_layer_config", c->size, sizeof(*c));

    if (!status)
        status = moert_check_size(err, "moert_router_config", c->router.size, sizeof(c->router));
    if (!status)
        status = moert_check_size(err, "moert_shared_config", c->shared.size, sizeof(c->shared));
    if (status)
        return status;
    if (!memchr(c->name, 0, sizeof(c->name)))
        return moert_fail(err, MOERT_E_VALUE, "field", "name is longer than %zu bytes", sizeof(c->name) - 1);
    return MOERT_OK;
}

static moert_status_t check_sizes(const struct moert_layer_config *c, struct moert_error *err)
{
    const struct {
        const char *field;
        uint64_t value, max;
    } sizes[] = {
        {"hidden_size", c->hidden_size, INT64_MAX},
        {"intermediate_size", c->intermediate_size, INT64_MAX / 2},
        {"num_experts", c->num_experts, INT32_MAX}, /* ids are int32 */
        {"max_tokens", c->max_tokens, INT64_MAX},
    };

    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        if (!sizes[i].value)
            return MOERT_LAYER_FAIL(c, err, MOERT_E_VALUE, "size", "%s is 0; must be at least 1", sizes[i].field);
        if (sizes[i].value > sizes[i].max)
            return MOERT_LAYER_FAIL(c, err, MOERT_E_TOO_LARGE, "too-large", "%s %llu exceeds %llu", sizes[i].field,
                                    (unsigned long long)sizes[i].value, (unsigned long long)sizes[i].max);
    }
    if ((uint64_t)c->num_experts + c->num_fused_shared > INT32_MAX)
        return MOERT_LAYER_FAIL(c, err, MOERT_E_TOO_LARGE, "too-large",
                                "num_experts %u + num_fused_shared %u exceeds %d", c->num_experts, c->num_fused_shared,
                                INT32_MAX);
    return MOERT_OK;
}

static moert_status_t check_names(const struct moert_layer_config *c, struct moert_error *err)
{
    const struct {
        const char *field;
        uint32_t value;
    } flags[] = {
        {"has_bias", c->has_bias},
        {"apply_router_weight_on_input", c->apply_router_weight_on_input},
        {"router.renormalize", c->router.renormalize},
        {"shared.gated", c->shared.gated},
    };
    uint32_t unknown = c->params_set & ~(uint32_t)KNOWN_PARAMS;

    if (c->role >= MOERT_ROLE_COUNT)
        return MOERT_LAYER_FAIL(c, err, MOERT_E_VALUE, "field", "role is %u; known: main 0, draft 1, shared 2",
                                c->role);
    if (c->dtype != MOERT_BF16 && c->dtype != MOERT_F16 && c->dtype != MOERT_F32)
        return MOERT_LAYER_FAIL(c, err, MOERT_E_VALUE, "field", "dtype is %s; must be BF16, F16 or F32",
                                moert_dtype_name(c->dtype) ? moert_dtype_name(c->dtype) : "unknown");
    for (size_t i = 0; i < sizeof(flags) / sizeof(*flags); i++)
        if (flags[i].value > 1)
            return MOERT_LAYER_FAIL(c, err, MOERT_E_VALUE, "field", "%s is %u; must be 0 or 1", flags[i].field,
                                    flags[i].value);
    if (unknown)
        return MOERT_LAYER_FAIL(c, err, MOERT_E_USAGE, "flag", "unknown flag bit %d in params_set",
                                __builtin_ctz(unknown));
    return MOERT_OK;
}

static moert_status_t check_scheme(const struct moert_layer_config *c, const char *field, moert_scheme_t scheme,
                                   struct moert_error *err)
{
    const char *name = moert_scheme_name(scheme);

    if (scheme > MOERT_SCHEME_NONE && scheme < MOERT_SCHEME_COUNT)
        return MOERT_OK;
    return MOERT_LAYER_FAIL(c, err, MOERT_E_VALUE, "scheme",
                            "%s \"%s\" is not supported; known: bf16, f16, f32, mxfp8, lut-b", field,
                            name ? name : "unknown");
}

static moert_status_t check_schemes(struct moert_layer_config *c, struct moert_error *err)
{
    moert_status_t status = check_scheme(c, "weight_scheme", c->weight_scheme, err);
    const char *name;

    if (status)
        return status;
    if (c->activation_scheme == UNSET_SCHEME)
        c->activation_scheme = is_quantised(c->weight_scheme) ? MOERT_SCHEME_MXFP8 : MOERT_SCHEME_NONE;
    if (c->activation_scheme != MOERT_SCHEME_NONE && c->activation_scheme != MOERT_SCHEME_MXFP8) {
        name = moert_scheme_name(c->activation_scheme);
        return MOERT_LAYER_FAIL(c, err, MOERT_E_VALUE, "scheme",
                                "activation_scheme \"%s\" is not supported; known: none, mxfp8",
                                name ? name : "unknown");
    }
    if (!c->shared.intermediate_size)
        return MOERT_OK;
    if (c->shared.weight_scheme == MOERT_SCHEME_NONE)
        c->shared.weight_scheme = c->weight_scheme;
    return check_scheme(c, "shared.weight_scheme", c->shared.weight_scheme, err);
}

/* Blocks run along the reduction axis: H for w13, I for w2; lut-b tiles are 8 rows by 64 columns. */
static moert_status_t check_multiples(const struct moert_layer_config *c, struct moert_error *err)
{
    const uint64_t steps[MOERT_SCHEME_COUNT] = {[MOERT_SCHEME_MXFP8] = 32, [MOERT_SCHEME_LUT_B] = 64};
    const struct {
        const char *field;
        uint64_t value;
        moert_scheme_t scheme;
    } rows[] = {
        {"hidden_size", c->hidden_size, c->weight_scheme},
        {"intermediate_size", c->intermediate_size, c->weight_scheme},
        {"hidden_size", c->hidden_size, c->activation_scheme},
        {"intermediate_size", c->intermediate_size, c->activation_scheme},
        {"hidden_size", c->hidden_size, c->shared.intermediate_size ? c->shared.weight_scheme : MOERT_SCHEME_NONE},
        {"shared.intermediate_size", c->shared.intermediate_size, c->shared.weight_scheme},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        uint64_t step = rows[i].scheme < MOERT_SCHEME_COUNT ? steps[rows[i].scheme] : 0;
        if (step && rows[i].value % step)
            return MOERT_LAYER_FAIL(
                c, err, MOERT_E_SHAPE, "multiple", "%s %llu is not a multiple of %llu (needed by %s)", rows[i].field,
                (unsigned long long)rows[i].value, (unsigned long long)step, moert_scheme_name(rows[i].scheme));
    }
    return MOERT_OK;
}

static moert_status_t check_order(struct moert_layer_config *c, struct moert_error *err)
{
    if (c->w13_order == UNSET_ORDER)
        c->w13_order = c->activation == MOERT_ACT_SWIGLUOAI ? MOERT_W13_INTERLEAVED : MOERT_W13_GATE_UP;
    if (c->w13_order > UNSET_ORDER)
        return MOERT_LAYER_FAIL(c, err, MOERT_E_VALUE, "order",
                                "w13_order is %u; known: gate_up 0, up_gate 1, interleaved 2", c->w13_order);
    if (c->w13_order != MOERT_W13_GATE_UP && !moert_activation_is_gated(c->activation))
        return MOERT_LAYER_FAIL(c, err, MOERT_E_VALUE, "order", "w13_order \"%s\" with non-gated %s",
                                moert_w13_order_name(c->w13_order), moert_activation_name(c->activation));
    return MOERT_OK;
}

static moert_status_t check_factor(const struct moert_layer_config *c, const char *field, double value,
                                   struct moert_error *err)
{
    if (isfinite(value) && value > 0)
        return MOERT_OK;
    return MOERT_LAYER_FAIL(c, err, MOERT_E_VALUE, "field", "router.%s is %g; must be finite and above 0", field,
                            value);
}

/* K, groups and factors. Whether a correction bias comes is not known here: moert_layer_set_dense asks again. */
static moert_status_t check_router(struct moert_layer_config *c, struct moert_error *err)
{
    struct moert_router_config *r = &c->router;
    moert_status_t status;

    if (!r->num_groups)
        r->num_groups = 1;
    if (!r->topk_groups && r->kind == MOERT_ROUTER_GROUPED)
        r->topk_groups = r->num_groups;
    if (r->scaling_factor == 0)
        r->scaling_factor = 1;
    status = moert_router_check(r, c->num_experts, c->top_k, 0, err);
    if (status)
        return moert_layer_prefix(c, err, status);
    status = check_factor(c, "scaling_factor", r->scaling_factor, err);
    if (status || !c->num_fused_shared)
        return status;
    if (r->shared_weight == 0) /* net factor 1 (routing.md 2.4) */
        r->shared_weight = r->scale_at == MOERT_SCALE_AT_OUTPUT ? 1 / r->scaling_factor : 1;
    return check_factor(c, "shared_weight", r->shared_weight, err);
}

static moert_status_t check_experts(struct moert_layer_config *c, struct moert_error *err)
{
    uint32_t all = c->num_experts + c->num_fused_shared, fused = c->num_fused_shared;

    if (!c->num_local_experts)
        c->num_local_experts = all;
    if (c->num_local_experts < fused || c->num_local_experts > all)
        return MOERT_LAYER_FAIL(c, err, MOERT_E_SHAPE, "experts",
                                "w13_weight has %u experts, the router %u with %u fused shared; %u..%u are possible",
                                c->num_local_experts, c->num_experts, fused, fused ? fused : 1, all);
    if (!c->expert_map_length && c->num_local_experts != all)
        return MOERT_LAYER_FAIL(c, err, MOERT_E_SHAPE, "experts",
                                "w13_weight has %u experts, the router %u%s, and there is no expert map",
                                c->num_local_experts, all, fused ? " with the fused shared ones" : "");
    if (!c->expert_map_length)
        return MOERT_OK;
    if (!c->expert_map)
        return moert_layer_prefix(c, err, moert_fail_null(err, "expert_map"));
    return moert_layer_prefix(
        c, err,
        moert_expert_map_check(c->expert_map, c->expert_map_length, c->num_experts, c->num_local_experts - fused, err));
}

static moert_status_t check_input_weight(const struct moert_layer_config *c, struct moert_error *err)
{
    if (!c->apply_router_weight_on_input)
        return MOERT_OK;
    if (c->top_k != 1)
        return MOERT_LAYER_FAIL(c, err, MOERT_E_VALUE, "input-weight",
                                "apply_router_weight_on_input needs top_k 1, got %u", c->top_k);
    if (c->num_fused_shared)
        return MOERT_LAYER_FAIL(c, err, MOERT_E_VALUE, "input-weight",
                                "apply_router_weight_on_input needs num_fused_shared 0, got %u", c->num_fused_shared);
    return MOERT_OK;
}

static moert_status_t check_activation(const struct moert_layer_config *c, struct moert_error *err)
{
    struct moert_activation_params params;

    return moert_layer_prefix(c, err, moert_activation_resolve(c, &params, err));
}

static moert_status_t check_all(struct moert_layer_config *c, struct moert_error *err)
{
    moert_status_t status = check_sizes(c, err);

    if (!status)
        status = check_names(c, err);
    if (!status)
        status = check_schemes(c, err);
    if (!status)
        status = check_multiples(c, err);
    if (!status)
        status = check_activation(c, err);
    if (!status)
        status = check_order(c, err);
    if (!status)
        status = check_router(c, err);
    if (!status)
        status = check_experts(c, err);
    if (!status)
        status = check_input_weight(c, err);
    if (!status && moert_layer_config_weight_bytes(c) == UINT64_MAX)
        status = MOERT_LAYER_FAIL(c, err, MOERT_E_TOO_LARGE, "too-large",
                                  "%u experts of hidden_size %llu and intermediate_size %llu exceed 2^64 bytes",
                                  c->num_local_experts, (unsigned long long)c->hidden_size,
                                  (unsigned long long)c->intermediate_size);
    return status;
}

moert_status_t moert_layer_config_check(struct moert_layer_config *config, struct moert_error *err)
{
    struct moert_layer_config resolved;
    moert_status_t status;

    if (!config)
        return moert_fail_null(err, "config");
    status = check_struct(config, err);
    if (status)
        return status;
    resolved = *config;
    status = check_all(&resolved, err);
    if (!status)
        *config = resolved;
    return status;
}

/* ------------------------------------------------------------------ copies and sizes */

moert_status_t moert_layer_config_copy(const struct moert_layer_config *config, struct moert_layer_config *ret,
                                       struct moert_error *err)
{
    int32_t *map = NULL;
    moert_status_t status;
    size_t bytes;

    if (!config || !ret)
        return moert_fail_null(err, config ? "ret" : "config");
    status = moert_check_size(err, "moert_layer_config", config->size, sizeof(*config));
    if (status)
        return status;
    if (config->expert_map_length && !config->expert_map)
        return moert_fail_null(err, "expert_map");
    bytes = (size_t)config->expert_map_length * sizeof(*map);
    if (bytes) {
        map = malloc(bytes);
        if (!map)
            return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for an expert map of %u entries",
                              config->expert_map_length);
        memcpy(map, config->expert_map, bytes);
    }
    *ret = *config;
    ret->size = sizeof(*ret);
    ret->expert_map = map;
    return MOERT_OK;
}

void moert_layer_config_clear(struct moert_layer_config *config)
{
    if (!config)
        return;
    free((void *)(uintptr_t)config->expert_map);
    config->expert_map = NULL;
    config->expert_map_length = 0;
}

uint64_t moert_layer_config_n1(const struct moert_layer_config *config)
{
    if (!config)
        return 0;
    return config->intermediate_size * (moert_activation_is_gated(config->activation) ? 2 : 1);
}

uint64_t moert_layer_config_weight_bytes(const struct moert_layer_config *config)
{
    /* bytes = elements * times / per: mxfp8 32 codes + 1 scale, lut-b 192 + 8 bytes per tile of 512 */
    static const struct {
        uint64_t times, per;
    } ratios[MOERT_SCHEME_COUNT] = {
        [MOERT_SCHEME_BF16] = {2, 1},    [MOERT_SCHEME_F16] = {2, 1},       [MOERT_SCHEME_F32] = {4, 1},
        [MOERT_SCHEME_MXFP8] = {33, 32}, [MOERT_SCHEME_LUT_B] = {200, 512},
    };
    uint64_t experts, per_expert, n1, elements, bytes;
    moert_scheme_t scheme;

    if (!config)
        return 0;
    scheme = config->weight_scheme < MOERT_SCHEME_COUNT ? config->weight_scheme : MOERT_SCHEME_NONE;
    if (!ratios[scheme].per)
        return 0;
    experts = config->num_local_experts;
    if (!experts)
        experts = (uint64_t)config->num_experts + config->num_fused_shared;
    n1 = moert_layer_config_n1(config);
    if (!moert_add(n1, config->intermediate_size, &n1) || !moert_mul(n1, config->hidden_size, &per_expert) ||
        !moert_mul(per_expert, experts, &elements))
        return UINT64_MAX;
    if (elements / ratios[scheme].per > UINT64_MAX / ratios[scheme].times - 1)
        return UINT64_MAX;
    bytes = elements / ratios[scheme].per * ratios[scheme].times;
    return bytes + elements % ratios[scheme].per * ratios[scheme].times / ratios[scheme].per;
}
