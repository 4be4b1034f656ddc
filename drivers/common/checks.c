/* drivers/common/checks.c: from a capability table to the list of support checks (oracle.md 3). */
#include "drivers/common/checks.h"

#include <moert/base.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- one check ---- */

static struct moert_value value_int(uint64_t v)
{
    return (struct moert_value){.kind = MOERT_VALUE_INT, .integer = v > INT64_MAX ? INT64_MAX : (int64_t)v};
}

static struct moert_value value_bool(int v)
{
    return (struct moert_value){.kind = MOERT_VALUE_BOOL, .integer = !!v};
}

static struct moert_value value_string(const char *v)
{
    if (!v)
        return (struct moert_value){.kind = MOERT_VALUE_NULL};
    return (struct moert_value){.kind = MOERT_VALUE_STRING, .string = v};
}

static struct moert_value value_list(const char *const *v)
{
    return (struct moert_value){.kind = MOERT_VALUE_LIST, .list = v};
}

static const struct moert_value value_null = {.kind = MOERT_VALUE_NULL};

static int report(const struct moert_check_sink *sink, const char *code, const char *field, moert_verdict_t verdict,
                  moert_check_op_t op, struct moert_value have, struct moert_value need, const char *fix)
{
    struct moert_check check = {.size = sizeof(check),
                                .verdict = verdict,
                                .op = op,
                                .code = code,
                                .field = field,
                                .have = have,
                                .need = need,
                                .fix = verdict == MOERT_FAIL ? fix : NULL};

    sink->report(sink->ctx, &check);
    return verdict == MOERT_PASS;
}

static moert_verdict_t verdict(int passed)
{
    return passed ? MOERT_PASS : MOERT_FAIL;
}

int mdrv_check_at_most(const struct moert_check_sink *sink, const char *code, const char *field, uint64_t have,
                       uint64_t need, const char *fix)
{
    return report(sink, code, field, verdict(have <= need), MOERT_OP_LE, value_int(have), value_int(need), fix);
}

int mdrv_check_at_least(const struct moert_check_sink *sink, const char *code, const char *field, uint64_t have,
                        uint64_t need, const char *fix)
{
    return report(sink, code, field, verdict(have >= need), MOERT_OP_GE, value_int(have), value_int(need), fix);
}

int mdrv_check_multiple(const struct moert_check_sink *sink, const char *code, const char *field, uint64_t have,
                        uint64_t need)
{
    char fix[96];
    uint64_t rest = need ? have % need : 0;

    snprintf(fix, sizeof(fix), "pad %s to %" PRIu64, field, rest ? have + (need - rest) : have);
    return report(sink, code, field, verdict(!rest), MOERT_OP_MULTIPLE, value_int(have), value_int(need), fix);
}

static int in_list(const char *have, const char *const *set)
{
    for (; *set; set++)
        if (!strcmp(*set, have))
            return 1;
    return 0;
}

int mdrv_check_in(const struct moert_check_sink *sink, const char *code, const char *field, const char *have,
                  const char *const *set, const char *fix)
{
    /* A set of one is an equation, and reads like one. */
    if (set[0] && !set[1])
        return report(sink, code, field, verdict(!strcmp(set[0], have)), MOERT_OP_EQ, value_string(have),
                      value_string(set[0]), fix);
    return report(sink, code, field, verdict(in_list(have, set)), MOERT_OP_IN, value_string(have), value_list(set),
                  fix);
}

int mdrv_check_text(const struct moert_check_sink *sink, const char *code, const char *field, moert_verdict_t v,
                    moert_check_op_t op, const char *have, const char *need, const char *fix)
{
    return report(sink, code, field, v, op, value_string(have), value_string(need), fix);
}

/* ---- device ---- */

int mdrv_device_has(const struct moert_device_desc *device, const char *word)
{
    const char *at = device->features;
    size_t n = strlen(word);

    while (*at) {
        size_t length = strcspn(at, " ");
        if (length == n && !strncmp(at, word, n))
            return 1;
        at += length;
        at += strspn(at, " ");
    }
    return 0;
}

int mdrv_version_compare(const char *a, const char *b)
{
    while (*a || *b) {
        char *end_a, *end_b;
        unsigned long x = strtoul(a, &end_a, 10), y = strtoul(b, &end_b, 10);
        if (x != y)
            return x < y ? -1 : 1;
        a = *end_a ? end_a + 1 : end_a;
        b = *end_b ? end_b + 1 : end_b;
    }
    return 0;
}

static void check_arch(const struct mdrv_caps *caps, const struct moert_device_desc *device,
                       const struct moert_check_sink *sink)
{
    char fix[64];

    if (!caps->archs) {
        report(sink, "arch", "device.arch", MOERT_PASS, MOERT_OP_NONE, value_string(device->arch), value_null, NULL);
        return;
    }
    snprintf(fix, sizeof(fix), "run on a %s device", caps->archs[0]);
    mdrv_check_in(sink, "arch", "device.arch", device->arch, caps->archs, fix);
}

static void check_features(const struct mdrv_caps *caps, const struct moert_device_desc *device,
                           const struct moert_check_sink *sink)
{
    for (const char *const *word = caps->features; word && *word; word++) {
        char fix[96];
        snprintf(fix, sizeof(fix), "run on a device that has %s", *word);
        report(sink, "feature", "device.features", verdict(mdrv_device_has(device, *word)), MOERT_OP_HAS,
               value_string(device->features), value_string(*word), fix);
    }
}

static void check_runtime(const struct mdrv_caps *caps, const struct moert_device_desc *device,
                          const struct moert_check_sink *sink)
{
    char fix[64];
    moert_verdict_t v;

    if (!caps->runtime_min)
        return;
    snprintf(fix, sizeof(fix), "runtime %s or later", caps->runtime_min);
    /* A description without a version (a what-if device) leaves the question open. */
    v = device->runtime[0] ? verdict(mdrv_version_compare(device->runtime, caps->runtime_min) >= 0) : MOERT_ABSTAIN;
    report(sink, "runtime", "device.runtime", v, MOERT_OP_GE, value_string(device->runtime),
           value_string(caps->runtime_min), fix);
}

/* ---- layer: sets ---- */

#define SET_MAX 32

/* A member of an enum against a set of bits, with names. Values that do not exist are in no set. */
static void check_set(const struct moert_check_sink *sink, const char *code, const char *field, uint32_t have,
                      uint32_t set, uint32_t count, const char *(*name)(uint32_t))
{
    const char *names[SET_MAX + 1];
    char unknown[24], fix[96];
    const char *have_name = have < count ? name(have) : NULL;
    size_t n = 0;

    for (uint32_t i = 0; i < count && i < SET_MAX; i++)
        if (set & MDRV_BIT(i) && name(i))
            names[n++] = name(i);
    names[n] = NULL;
    snprintf(unknown, sizeof(unknown), "%u", have);
    snprintf(fix, sizeof(fix), "%s %s", field, n ? names[0] : "that this backend does not have");
    mdrv_check_in(sink, code, field, have_name ? have_name : unknown, names, n ? fix : NULL);
}

/* Distinct weight schemes of the pairs, or the activation schemes of the pairs with this weight. */
static size_t scheme_names(const struct moert_backend *backend, moert_scheme_t weight, const char **names, size_t room)
{
    size_t n = 0;

    for (uint32_t i = 0; i < backend->scheme_count && n < room; i++) {
        const struct moert_scheme_pair *pair = &backend->schemes[i];
        const char *name = moert_scheme_name(weight ? pair->activation : pair->weight);
        names[n] = NULL;
        if (name && (!weight || pair->weight == weight) && !in_list(name, names))
            names[n++] = name;
    }
    names[n] = NULL;
    return n;
}

static void check_schemes(const struct moert_backend *backend, const struct moert_layer_config *layer,
                          const struct moert_check_sink *sink)
{
    const char *names[MOERT_SCHEME_COUNT + 1], *have = moert_scheme_name(layer->weight_scheme);
    char fix[64];
    size_t n = scheme_names(backend, MOERT_SCHEME_NONE, names, MOERT_SCHEME_COUNT);

    snprintf(fix, sizeof(fix), "weight_scheme %s", n ? names[0] : "none");
    mdrv_check_in(sink, "scheme", "weight_scheme", have ? have : "unknown", names, fix);
    if (layer->weight_scheme == MOERT_SCHEME_NONE)
        return;
    n = scheme_names(backend, layer->weight_scheme, names, MOERT_SCHEME_COUNT);
    if (!n) /* a foreign weight scheme: any partner would do */
        return;
    have = moert_scheme_name(layer->activation_scheme);
    snprintf(fix, sizeof(fix), "activation_scheme %s", names[0]);
    mdrv_check_in(sink, "scheme", "activation_scheme", have ? have : "unknown", names, fix);
}

/* ---- layer: activation ---- */

static int is_gated(moert_activation_t kind)
{
    return kind < MOERT_ACT_COUNT && (MDRV_GATED_ACTIVATIONS & MDRV_BIT(kind));
}

static const struct {
    uint32_t bit;
    const char *name;
} params[] = {
    {MOERT_PARAM_SWIGLU_LIMIT, "swiglu_limit"},         {MOERT_PARAM_SWIGLU_ALPHA, "swiglu_alpha"},
    {MOERT_PARAM_SWIGLU_BETA, "swiglu_beta"},           {MOERT_PARAM_SITU_BETA, "situ_beta"},
    {MOERT_PARAM_SITU_LINEAR_BETA, "situ_linear_beta"},
};

static double param_value(const struct moert_layer_config *layer, uint32_t bit)
{
    switch (bit) {
    case MOERT_PARAM_SWIGLU_LIMIT: return layer->swiglu_limit;
    case MOERT_PARAM_SWIGLU_ALPHA: return layer->swiglu_alpha;
    case MOERT_PARAM_SWIGLU_BETA: return layer->swiglu_beta;
    case MOERT_PARAM_SITU_BETA: return layer->situ_beta;
    default: return layer->situ_linear_beta;
    }
}

static const char *param_name(uint32_t bit)
{
    for (size_t i = 0; i < sizeof(params) / sizeof(*params); i++)
        if (params[i].bit == bit)
            return params[i].name;
    return "activation parameter";
}

static void check_param(const struct mdrv_param_rule *rule, const struct moert_layer_config *layer,
                        const struct moert_check_sink *sink)
{
    int set = (layer->params_set & rule->param) != 0;
    double have = param_value(layer, rule->param);
    char have_text[32] = "unset", need_text[32] = "unset", fix[96];
    int passed = rule->rule == MDRV_PARAM_UNSET ? !set : set && have >= rule->value && have <= rule->value;

    if (set)
        snprintf(have_text, sizeof(have_text), "%.9g", have);
    if (rule->rule == MDRV_PARAM_EQUALS)
        snprintf(need_text, sizeof(need_text), "%.9g", rule->value);
    snprintf(fix, sizeof(fix), "%s %s", param_name(rule->param), need_text);
    report(sink, "activation-param", param_name(rule->param), verdict(passed), MOERT_OP_EQ, value_string(have_text),
           value_string(need_text), fix);
}

/* Unset parameters that the kind cannot do without or cannot take are a fault of the description; the core refuses them
 * before any backend is asked. Here: what this backend fixes. */
static void check_params(const struct mdrv_caps *caps, const struct moert_layer_config *layer,
                         const struct moert_check_sink *sink)
{
    uint32_t asked = 0, known = 0;

    for (size_t i = 0; i < sizeof(params) / sizeof(*params); i++)
        known |= params[i].bit;
    if (layer->params_set & ~known) {
        report(sink, "activation-param", "params_set", MOERT_ABSTAIN, MOERT_OP_LE, value_int(layer->params_set),
               value_int(known), NULL);
        asked = 1;
    }
    for (uint32_t i = 0; i < caps->param_rule_count; i++)
        if (caps->param_rules[i].kind == layer->activation) {
            check_param(&caps->param_rules[i], layer, sink);
            asked = 1;
        }
    if (!asked)
        report(sink, "activation-param", "params_set", MOERT_PASS, MOERT_OP_NONE, value_int(layer->params_set),
               value_null, NULL);
}

static void check_activation(const struct mdrv_caps *caps, const struct moert_layer_config *layer,
                             const struct moert_check_sink *sink)
{
    int gated = is_gated(layer->activation), both = (caps->activations & ~MDRV_GATED_ACTIVATIONS) != 0;

    report(sink, "act-and-mul", "activation", verdict(gated || both), both ? MOERT_OP_NONE : MOERT_OP_EQ,
           value_bool(gated), both ? value_null : value_bool(1), "a gated activation");
    check_set(sink, "activation", "activation", layer->activation, caps->activations, MOERT_ACT_COUNT,
              moert_activation_name);
    check_params(caps, layer, sink);
    if (gated)
        check_set(sink, "w13-order", "w13_order", layer->w13_order, caps->w13_orders, MOERT_W13_ORDER_COUNT,
                  moert_w13_order_name);
}

/* ---- layer: sizes and switches ---- */

static void check_sizes(const struct mdrv_caps *caps, const struct moert_layer_config *layer,
                        const struct moert_check_sink *sink)
{
    uint64_t experts = (uint64_t)layer->num_experts + layer->num_fused_shared;
    uint64_t slots = (uint64_t)layer->top_k + layer->num_fused_shared;

    mdrv_check_multiple(sink, "hidden-multiple", "hidden_size", layer->hidden_size,
                        caps->hidden_multiple ? caps->hidden_multiple : 1);
    mdrv_check_multiple(sink, "intermediate-multiple", "intermediate_size", layer->intermediate_size,
                        caps->intermediate_multiple ? caps->intermediate_multiple : 1);
    if (caps->experts_max)
        mdrv_check_at_most(sink, "experts-max", "num_experts", experts, caps->experts_max, "fewer experts per layer");
    if (caps->topk_max)
        mdrv_check_at_most(sink, "topk-max", "top_k", slots, caps->topk_max, "fewer experts per token");
    if (caps->tokens_max) {
        char fix[64];
        snprintf(fix, sizeof(fix), "max_tokens %" PRIu64, caps->tokens_max);
        mdrv_check_at_most(sink, "tokens-max", "max_tokens", layer->max_tokens, caps->tokens_max, fix);
    }
}

/* A feature that the layer may want: passes when it is there or not wanted. */
static void check_switch(const struct moert_check_sink *sink, const char *code, const char *field, int wanted, int has,
                         const char *fix)
{
    report(sink, code, field, verdict(has || !wanted), has ? MOERT_OP_NONE : MOERT_OP_EQ, value_bool(wanted),
           has ? value_null : value_bool(0), fix);
}

static void check_router(const struct moert_backend *backend, const struct mdrv_caps *caps,
                         const struct moert_layer_config *layer, const struct moert_check_sink *sink)
{
    /* Without F_ROUTES the core routes and hands over ids: every kind is served. */
    if (!(backend->flags & MOERT_BACKEND_F_ROUTES)) {
        report(sink, "routing-method", "router.kind", MOERT_PASS, MOERT_OP_NONE,
               value_string(moert_router_kind_name(layer->router.kind)), value_null, NULL);
        return;
    }
    check_set(sink, "routing-method", "router.kind", layer->router.kind, caps->routers, MOERT_ROUTER_KIND_COUNT,
              moert_router_kind_name);
    if (layer->router.logits_dtype != MOERT_DTYPE_NONE)
        check_set(sink, "logits-dtype", "router.logits_dtype", layer->router.logits_dtype, caps->logits_dtypes,
                  MOERT_DTYPE_COUNT, moert_dtype_name);
}

/* A description of a later minor: what it says in its tail is unknown here. */
static void check_tail(const struct moert_layer_config *layer, const struct moert_check_sink *sink)
{
    const unsigned char *bytes = (const unsigned char *)layer;

    for (size_t i = sizeof(*layer); i < layer->size; i++)
        if (bytes[i]) {
            report(sink, "unknown-field", "layer.size", MOERT_ABSTAIN, MOERT_OP_LE, value_int(layer->size),
                   value_int(sizeof(*layer)), NULL);
            return;
        }
}

void mdrv_caps_report(const struct moert_backend *backend, const struct mdrv_caps *caps,
                      const struct moert_device_desc *device, const struct moert_layer_config *layer,
                      const struct moert_check_sink *sink)
{
    check_arch(caps, device, sink);
    check_features(caps, device, sink);
    check_runtime(caps, device, sink);
    check_schemes(backend, layer, sink);
    check_set(sink, "dtype", "dtype", layer->dtype, caps->dtypes, MOERT_DTYPE_COUNT, moert_dtype_name);
    check_activation(caps, layer, sink);
    check_switch(sink, "bias", "has_bias", layer->has_bias != 0, caps->bias != 0, "has_bias false");
    check_sizes(caps, layer, sink);
    check_switch(sink, "map-kind", "expert_map", layer->expert_map_length != 0, caps->expert_map != 0, "no expert_map");
    check_router(backend, caps, layer, sink);
    check_switch(sink, "input-weight", "apply_router_weight_on_input", layer->apply_router_weight_on_input != 0,
                 caps->input_weight != 0, "apply_router_weight_on_input false");
    check_tail(layer, sink);
}
