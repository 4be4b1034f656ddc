/* core/io/checkpoint_layer.c: one decoder layer of a checkpoint: how its experts are stored (names, quantised form),
 * whether every expert is there, and its description. */
#include "config.h"

#include "core/base/error.h"
#include "core/io/checkpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void moert_checkpoint_name(const moert_checkpoint_t *c, uint32_t number, const char *rest, char out[MOERT_NAME_MAX])
{
    snprintf(out, MOERT_NAME_MAX, "%slayers.%u.%s", c->base, number, rest);
}

static const struct moert_st_tensor *with_suffix(const moert_checkpoint_t *c, const char *x, const char *suffix)
{
    char name[MOERT_NAME_MAX + 32];
    snprintf(name, sizeof(name), "%s%s", x, suffix);
    return moert_checkpoint_tensor(c, name);
}

/* ------------------------------------------------------------------ quantised form */

static moert_status_t refuse(const moert_checkpoint_t *c, const char *x, const char *scheme, const char *why,
                             struct moert_error *err)
{
    return moert_fail(err, MOERT_E_VALUE, "scheme",
                      "%s: %.300s: weight_scheme \"%s\" is not supported (%s); known: bf16, f16, f32, mxfp8, lut-b",
                      c->path, x, scheme, why);
}

/* A layer file's own description names the scheme; a checkpoint must have a configuration that does. */
static int allows(const moert_checkpoint_t *c, enum moert_quant_form form, moert_scheme_t scheme)
{
    return c->family ? c->quant == form : c->layer.weight_scheme == scheme;
}

static moert_status_t lutb_scheme(const moert_checkpoint_t *c, const char *x, moert_scheme_t *ret,
                                  const char *ret_suffixes[2], struct moert_error *err)
{
    if (with_suffix(c, x, "_rowexp"))
        return refuse(c, x, "moert-lut-b-rowexp", "row exponents are not part of lut-b", err);
    if (!allows(c, MOERT_QUANT_LUT_B, MOERT_SCHEME_LUT_B))
        return refuse(c, x, c->quant_name[0] ? c->quant_name : "unknown",
                      "packed weights whose configuration does not say format \"lut-b\"", err);
    *ret = MOERT_SCHEME_LUT_B;
    ret_suffixes[0] = "_packed";
    ret_suffixes[1] = "_codebook";
    return MOERT_OK;
}

/* E4M3 codes: MXFP8 has byte scales. DeepSeek's block FP8 has F32 scales under one of the same names. */
static moert_status_t fp8_scheme(const moert_checkpoint_t *c, const char *x, moert_scheme_t *ret,
                                 const char *ret_suffixes[2], struct moert_error *err)
{
    static const char *const names[] = {"_scale", "_scale_inv"};

    for (size_t i = 0; i < 2; i++) {
        const struct moert_st_tensor *t = with_suffix(c, x, names[i]);
        if (!t)
            continue;
        if (t->dtype == MOERT_F32)
            return refuse(c, x, i ? "fp8-block" : "fp8", "scales are F32; mxfp8 has one U8 per 32 weights", err);
        if (!allows(c, MOERT_QUANT_MXFP8, MOERT_SCHEME_MXFP8))
            return refuse(c, x, c->quant_name[0] ? c->quant_name : "unknown",
                          "F8_E4M3 weights whose configuration does not say mxfp8", err);
        *ret = MOERT_SCHEME_MXFP8;
        ret_suffixes[0] = "";
        ret_suffixes[1] = names[i];
        return MOERT_OK;
    }
    return refuse(c, x, "fp8", "F8_E4M3 weights without a scale tensor", err);
}

moert_status_t moert_checkpoint_scheme(const moert_checkpoint_t *c, const char *x, moert_scheme_t *ret,
                                       const char *ret_suffixes[2], struct moert_error *err)
{
    const struct moert_st_tensor *t = moert_checkpoint_tensor(c, x);

    ret_suffixes[0] = ret_suffixes[1] = "";
    if (with_suffix(c, x, "_packed"))
        return lutb_scheme(c, x, ret, ret_suffixes, err);
    if (with_suffix(c, x, "_blocks"))
        return refuse(c, x, "mxfp4", "4-bit blocks", err);
    if (!t)
        return moert_checkpoint_missing(c, x, err);
    switch (t->dtype) {
    case MOERT_BF16: *ret = MOERT_SCHEME_BF16; return MOERT_OK;
    case MOERT_F16: *ret = MOERT_SCHEME_F16; return MOERT_OK;
    case MOERT_F32: *ret = MOERT_SCHEME_F32; return MOERT_OK;
    case MOERT_F8_E4M3: return fp8_scheme(c, x, ret, ret_suffixes, err);
    default:
        return moert_fail(err, MOERT_E_DTYPE, "tensor-dtype", "%s: %.300s is %s, expected BF16, F16, F32 or F8_E4M3",
                          c->path, x, moert_dtype_name(t->dtype));
    }
}

/* ------------------------------------------------------------------ where the experts are */

/* Is there any tensor whose name begins so? */
static int any_with_prefix(const moert_checkpoint_t *c, const char *prefix)
{
    uint64_t i = moert_checkpoint_lower_bound(c, prefix);
    return i < c->tensor_count && !strncmp(c->tensors[i].tensor->name, prefix, strlen(prefix));
}

static int any_named(const moert_checkpoint_t *c, const char *prefix, const char *rest)
{
    char name[2 * MOERT_NAME_MAX];
    snprintf(name, sizeof(name), "%s%s", prefix, rest);
    return any_with_prefix(c, name);
}

static void set_single(struct moert_experts *x, const char *const names[3])
{
    for (int i = 0; i < 3; i++)
        x->names[i] = names[i];
    x->stacked = 0;
}

/* Names of expert 0's gate decide between a family's two sets. */
static void choose_projections(const moert_checkpoint_t *c, const char *const sets[2][3], struct moert_experts *x)
{
    char gate[64];

    for (int i = 0; i < 2 && sets[i][0]; i++) {
        snprintf(gate, sizeof(gate), "0.%s.weight", sets[i][0]);
        if (any_named(c, x->prefix, gate)) {
            set_single(x, sets[i]);
            return;
        }
    }
    set_single(x, sets[0]);
}

int moert_checkpoint_fused_transposed(const moert_checkpoint_t *c)
{
    return c->family->fused && c->family->transposed >= 0 ? c->family->transposed : c->options.fused_transposed;
}

static moert_status_t fused_order(const moert_checkpoint_t *c, const struct moert_layer_config *layer,
                                  struct moert_experts *x, struct moert_error *err)
{
    const struct moert_st_tensor *t = with_suffix(c, x->prefix, "gate_up_proj");
    uint64_t h = layer->hidden_size, n1 = 2 * layer->intermediate_size;
    int order = moert_checkpoint_fused_transposed(c);

    if (!t) /* a quantised form: only [N,K] can be one */
        return MOERT_OK;
    if (order >= 0) {
        x->transposed = order && t->dtype != MOERT_F8_E4M3;
        return MOERT_OK;
    }
    if (t->rank != 3)
        return moert_fail(err, MOERT_E_SHAPE, "tensor-shape", "%s: %.300s has rank %u, expected 3", c->path, t->name,
                          t->rank);
    return moert_fail(err, MOERT_E_VALUE, "tensor-ambiguous",
                      "%s: gate_up_proj [%llu,%llu,%llu] %s; give \"fused_transposed\"", c->path,
                      (unsigned long long)t->shape[0], (unsigned long long)t->shape[1], (unsigned long long)t->shape[2],
                      h == n1 ? "fits both orders" : "of a family without a rule");
}

static moert_status_t find_checkpoint_experts(const moert_checkpoint_t *c, const struct moert_layer_config *layer,
                                              uint32_t number, struct moert_experts *x, struct moert_error *err)
{
    int fused, single;

    moert_checkpoint_name(c, number, c->family->experts, x->prefix);
    fused = any_named(c, x->prefix, "gate_up_proj");
    single = any_named(c, x->prefix, "0.");
    if (fused && single)
        return moert_fail(err, MOERT_E_VALUE, "tensor-ambiguous",
                          "%s: both fused and per-expert names present for layer %u", c->path, number);
    if (!fused && (single || !c->family->fused)) {
        choose_projections(c, c->family->projections, x);
        return MOERT_OK;
    }
    x->stacked = 1;
    x->names[0] = "gate_up_proj";
    x->names[2] = "down_proj";
    x->biases[0] = "gate_up_proj_bias";
    x->biases[1] = "down_proj_bias";
    if (!c->family->fused && c->options.fused_transposed < 0) /* a per-expert family kept fused */
        return moert_fail(err, MOERT_E_VALUE, "tensor-ambiguous",
                          "%s: %s has fused experts in layer %u; give \"fused_transposed\"", c->path, c->model_type,
                          number);
    if (!c->family->fused)
        x->transposed = c->options.fused_transposed;
    return c->family->fused ? fused_order(c, layer, x, err) : MOERT_OK;
}

/* A layer file may use per-expert names: below the description's name, else below the only prefix that has them. */
static int find_single_prefix(const moert_checkpoint_t *c, struct moert_experts *x)
{
    static const char *const marks[] = {"0.gate_proj.weight", "0.w1.weight", "0.up_proj.weight"};
    static const char *const below[] = {".", ".experts."};

    for (size_t f = 0; f < 2 && c->layer.name[0]; f++) {
        snprintf(x->prefix, sizeof(x->prefix), "%s%s", c->layer.name, below[f]);
        if (any_named(c, x->prefix, "0."))
            return 1;
    }
    for (uint64_t i = 0; i < c->tensor_count; i++)
        for (size_t m = 0; m < 3; m++) {
            const char *name = c->tensors[i].tensor->name, *at = strstr(name, marks[m]);
            if (at && (at == name || at[-1] == '.') && at - name < MOERT_NAME_MAX) {
                snprintf(x->prefix, sizeof(x->prefix), "%.*s", (int)(at - name), name);
                return 1;
            }
        }
    return 0;
}

static moert_status_t find_layer_experts(const moert_checkpoint_t *c, struct moert_experts *x, struct moert_error *err)
{
    static const char *const sets[2][3] = {{"gate_proj", "up_proj", "down_proj"}, {"w1", "w3", "w2"}};
    int stacked = any_with_prefix(c, "w13_weight") || any_with_prefix(c, "w2_weight");
    int single = find_single_prefix(c, x);
    moert_status_t status;

    if (stacked && single)
        return moert_fail(err, MOERT_E_VALUE, "tensor-ambiguous",
                          "%s: both fused and per-expert names present for layer %d", c->path, (int)c->layer.index);
    if (!stacked && !single) {
        status = moert_checkpoint_missing(c, "w13_weight", err);
        return moert_prefix(err, status,
                            "%s: no tensor \"w13_weight\" nor per-expert names under \"%.255s\": ", c->path,
                            c->layer.name);
    }
    if (single) {
        choose_projections(c, sets, x);
        return MOERT_OK;
    }
    x->stacked = 1;
    x->prefix[0] = 0;
    x->names[0] = "w13_weight";
    x->names[2] = "w2_weight";
    x->biases[0] = "w13_bias";
    x->biases[1] = "w2_bias";
    return MOERT_OK;
}

/* Experts beyond E in a file of per-expert names. */
static moert_status_t check_extra(const moert_checkpoint_t *c, const struct moert_experts *x, uint32_t experts,
                                  struct moert_error *err)
{
    size_t length = strlen(x->prefix);

    for (uint64_t i = moert_checkpoint_lower_bound(c, x->prefix); i < c->tensor_count; i++) {
        const char *name = c->tensors[i].tensor->name;
        char *end;
        unsigned long long e;
        if (strncmp(name, x->prefix, length))
            break;
        if (name[length] < '0' || name[length] > '9')
            continue;
        errno = 0;
        e = strtoull(name + length, &end, 10);
        if (*end == '.' && (errno || e >= experts))
            return moert_fail(err, MOERT_E_VALUE, "tensor-extra", "%s: expert %llu in the file, num_experts is %u",
                              c->path, e, experts);
    }
    return MOERT_OK;
}

static moert_status_t check_single(const moert_checkpoint_t *c, const struct moert_layer_config *layer,
                                   const struct moert_experts *x, uint32_t experts, struct moert_error *err)
{
    char name[2 * MOERT_NAME_MAX];
    int gated = moert_layer_config_n1(layer) != layer->intermediate_size;

    for (uint32_t e = 0; e < experts; e++)
        for (int p = gated ? 0 : 1; p < 3; p++) {
            snprintf(name, sizeof(name), "%s%u.%s.weight%s", x->prefix, e, x->names[p], x->suffixes[0]);
            if (!moert_checkpoint_tensor(c, name))
                return moert_checkpoint_missing(c, name, err);
        }
    return check_extra(c, x, experts, err);
}

moert_status_t moert_checkpoint_experts(const moert_checkpoint_t *c, const struct moert_layer_config *layer,
                                        uint32_t number, struct moert_experts *ret, struct moert_error *err)
{
    struct moert_experts x = {0};
    uint32_t experts = c->family ? layer->num_experts : layer->num_local_experts;
    char first[2 * MOERT_NAME_MAX];
    moert_status_t status;

    status = c->family ? find_checkpoint_experts(c, layer, number, &x, err) : find_layer_experts(c, &x, err);
    if (status)
        return status;
    if (x.stacked)
        snprintf(first, sizeof(first), "%s%s", x.prefix, x.names[0]);
    else
        snprintf(first, sizeof(first), "%s0.%s.weight", x.prefix,
                 x.names[moert_layer_config_n1(layer) == layer->intermediate_size]);
    status = moert_checkpoint_scheme(c, first, &x.scheme, x.suffixes, err);
    if (!status && !x.stacked)
        status = check_single(c, layer, &x, experts, err);
    if (!status && !x.stacked && layer->w13_order == MOERT_W13_INTERLEAVED)
        status = moert_fail(err, MOERT_E_VALUE, "order",
                            "%s: w13_order \"interleaved\" with separate gate and up tensors; use gate_up", c->path);
    if (!status)
        *ret = x;
    return status;
}

/* ------------------------------------------------------------------ description */

static moert_status_t describe_shared(const moert_checkpoint_t *c, uint32_t number, struct moert_layer_config *ret,
                                      struct moert_error *err)
{
    char x[MOERT_NAME_MAX + 32], name[2 * MOERT_NAME_MAX];
    const char *suffixes[2];
    const struct moert_st_tensor *t;
    moert_status_t status;

    if (!c->family->shared)
        return MOERT_OK;
    moert_checkpoint_name(c, number, c->family->shared, x);
    if (!any_with_prefix(c, x))
        return MOERT_OK;
    snprintf(x + strlen(x), 32, "gate_proj.weight");
    status = moert_checkpoint_scheme(c, x, &ret->shared.weight_scheme, suffixes, err);
    if (status)
        return status;
    snprintf(name, sizeof(name), "%s%s", x, suffixes[0]);
    t = moert_checkpoint_tensor(c, name);
    if (!t)
        return moert_checkpoint_missing(c, name, err);
    if (t->rank < 2)
        return moert_fail(err, MOERT_E_SHAPE, "tensor-shape", "%s: %.300s has rank %u, expected 2", c->path, name,
                          t->rank);
    ret->shared.intermediate_size = ret->shared.weight_scheme == MOERT_SCHEME_LUT_B ? 8 * t->shape[0] : t->shape[0];
    ret->shared.gated = c->family->shared_gate != NULL;
    return MOERT_OK;
}

static moert_status_t describe(const moert_checkpoint_t *c, uint32_t number, struct moert_layer_config *ret,
                               struct moert_error *err)
{
    struct moert_experts experts;
    char name[MOERT_NAME_MAX];
    moert_status_t status;

    moert_checkpoint_name(c, number, c->family->experts, name);
    name[strlen(name) - 1] = 0; /* the dot */
    snprintf(ret->name, sizeof(ret->name), "%.255s", name);
    ret->index = (int32_t)number;
    status = moert_checkpoint_describe(c, ret, err);
    if (!status)
        status = moert_checkpoint_experts(c, ret, number, &experts, err);
    if (status)
        return status;
    ret->weight_scheme = experts.scheme;
    if (experts.stacked && experts.biases[0]) {
        snprintf(name, sizeof(name), "%.255s.%s", ret->name, experts.biases[0]);
        ret->has_bias = moert_checkpoint_tensor(c, name) != NULL;
    }
    status = describe_shared(c, number, ret, err);
    return status ? status : moert_layer_config_check(ret, err);
}

static moert_status_t unknown_layer(const moert_checkpoint_t *c, uint32_t number, struct moert_error *err)
{
    char range[64] = "none";

    if (c->layer_count)
        snprintf(range, sizeof(range), "%u layers from %u to %u", c->layer_count, c->layers[0],
                 c->layers[c->layer_count - 1]);
    return moert_fail(err, MOERT_E_MISSING, "tensor-missing",
                      "%s: layer %u has no routed experts; layers with experts: %s", c->path, number, range);
}

static int has_layer(const moert_checkpoint_t *c, uint32_t number)
{
    for (uint32_t i = 0; i < c->layer_count; i++)
        if (c->layers[i] == number)
            return 1;
    return 0;
}

moert_status_t moert_checkpoint_layer_config(moert_checkpoint_t *c, uint32_t number, struct moert_layer_config *ret,
                                             struct moert_error *err)
{
    struct moert_layer_config config;
    moert_status_t status;

    if (!c || !ret)
        return moert_fail_null(err, c ? "ret" : "checkpoint");
    if (!has_layer(c, number))
        return unknown_layer(c, number, err);
    if (!c->family)
        return moert_layer_config_copy(&c->layer, ret, err);
    moert_layer_config_init(&config);
    status = describe(c, number, &config, err);
    if (!status)
        *ret = config;
    return status;
}

/* ------------------------------------------------------------------ names, for tools */

static int is_single_weight(const moert_checkpoint_t *c, const char *rest)
{
    char *end;

    if (*rest < '0' || *rest > '9')
        return 0;
    (void)strtoul(rest, &end, 10);
    if (*end != '.')
        return 0;
    for (int s = 0; s < 2 && c->family->projections[s][0]; s++)
        for (int p = 0; p < 3; p++) {
            size_t n = strlen(c->family->projections[s][p]);
            if (!strncmp(end + 1, c->family->projections[s][p], n) && !strcmp(end + 1 + n, ".weight"))
                return 1;
        }
    return 0;
}

int moert_checkpoint_is_expert_weight(const moert_checkpoint_t *c, const char *tensor)
{
    char prefix[96];
    char *end;
    const char *rest;

    if (!c || !tensor || !c->family)
        return 0;
    snprintf(prefix, sizeof(prefix), "%slayers.", c->base);
    if (strncmp(tensor, prefix, strlen(prefix)))
        return 0;
    rest = tensor + strlen(prefix);
    if (*rest < '0' || *rest > '9')
        return 0;
    (void)strtoul(rest, &end, 10);
    if (*end != '.' || strncmp(end + 1, c->family->experts, strlen(c->family->experts)))
        return 0;
    rest = end + 1 + strlen(c->family->experts);
    return !strcmp(rest, "gate_up_proj") || !strcmp(rest, "down_proj") || is_single_weight(c, rest);
}
