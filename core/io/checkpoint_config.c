/* core/io/checkpoint_config.c: config.json (and hf_quant_config.json) of a checkpoint: family, sizes, activation,
 * router, and what it says about quantised weights (layer.md 9.2). */
#include "config.h"

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/text.h"
#include "core/io/checkpoint.h"
#include "core/io/json_fields.h"

#include <moert/lutb.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------------ reading */

static moert_status_t load_json(const moert_checkpoint_t *c, const char *name, int optional, json_t **ret,
                                struct moert_error *err)
{
    struct moert_text path = {0};
    struct moert_mapping m = {0};
    char *text = NULL;
    moert_status_t status = MOERT_OK;

    moert_text_add(&path, "%s/%s", c->path, name);
    if (path.failed)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "%s: no memory", c->path);
    if (!optional || !access(path.text, F_OK))
        status = moert_file_map(path.text, 1, &m, err);
    if (!status && m.data) {
        text = calloc(1, m.size + 1);
        if (text) {
            memcpy(text, m.data, m.size);
            status = moert_json_load(text, path.text, ret, err);
        } else {
            status = moert_fail(err, MOERT_E_NOMEM, "host-memory", "%s: no memory", path.text);
        }
    }
    free(text);
    if (m.data)
        moert_file_unmap(&m);
    moert_text_free(&path);
    return status;
}

static moert_status_t bad_key(const moert_checkpoint_t *c, const char *key, const json_t *value, const char *expected,
                              struct moert_error *err)
{
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    moert_status_t status;

    if (value)
        status = moert_fail(err, MOERT_E_VALUE, "field", "%s/config.json: \"%s\" is %.200s; expected %s", c->path, key,
                            text ? text : "?", expected);
    else
        status = moert_fail(err, MOERT_E_MISSING, "required", "%s/config.json: field \"%s\" is required", c->path, key);
    free(text);
    return status;
}

/* First of up to three keys that is given; null counts as absent. */
static const json_t *first_key(const moert_checkpoint_t *c, const char *const keys[3], const char **ret_key)
{
    for (int i = 0; i < 3 && keys[i]; i++) {
        const json_t *value = json_object_get(c->model, keys[i]);
        *ret_key = keys[i];
        if (value && !json_is_null(value))
            return value;
    }
    *ret_key = keys[0];
    return NULL;
}

static moert_status_t get_size(const moert_checkpoint_t *c, const char *const keys[3], uint64_t max, uint64_t *ret,
                               struct moert_error *err)
{
    const char *key = NULL;
    const json_t *value = first_key(c, keys, &key);

    if (!json_is_integer(value) || json_integer_value(value) < 1 || (uint64_t)json_integer_value(value) > max)
        return bad_key(c, key, value, "a whole number from 1", err);
    *ret = (uint64_t)json_integer_value(value);
    return MOERT_OK;
}

static const json_t *optional_key(const moert_checkpoint_t *c, const char *key)
{
    const json_t *value = key ? json_object_get(c->model, key) : NULL;
    return json_is_null(value) ? NULL : value;
}

static moert_status_t get_optional_u32(const moert_checkpoint_t *c, const char *key, uint32_t *ret,
                                       struct moert_error *err)
{
    const json_t *value = optional_key(c, key);

    if (!value)
        return MOERT_OK;
    if (!json_is_integer(value) || json_integer_value(value) < 1 || json_integer_value(value) > INT32_MAX)
        return bad_key(c, key, value, "a whole number from 1", err);
    *ret = (uint32_t)json_integer_value(value);
    return MOERT_OK;
}

/* ------------------------------------------------------------------ quantisation */

static int is_text(const json_t *object, const char *key, const char *text)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value && !strcmp(value, text);
}

static int is_number(const json_t *object, const char *key, json_int_t number)
{
    const json_t *value = json_object_get(object, key);
    return json_is_integer(value) && json_integer_value(value) == number;
}

static moert_status_t unsupported(moert_checkpoint_t *c, const char *what, struct moert_error *err)
{
    return moert_fail(err, MOERT_E_VALUE, "scheme",
                      "%s/config.json: weight_scheme \"%s\" is not supported%s%s; known: bf16, f16, f32, mxfp8, lut-b",
                      c->path, c->quant_name, *what ? ": " : "", what);
}

/* lut-b.md 2: the tile is fixed by hardware. */
static moert_status_t check_lutb_group(moert_checkpoint_t *c, const json_t *weights, struct moert_error *err)
{
    const json_t *block = json_object_get(weights, "block_structure");

    if (!is_number(weights, "num_bits", 3) || !is_text(weights, "type", "codebook") ||
        !is_text(weights, "strategy", "block") || !json_is_true(json_object_get(weights, "symmetric")))
        return unsupported(c, "lut-b needs num_bits 3, type codebook, strategy block, symmetric", err);
    if (!json_is_array(block) || json_array_size(block) != 2 ||
        json_integer_value(json_array_get(block, 0)) != MOERT_LUTB_ROWS ||
        json_integer_value(json_array_get(block, 1)) != MOERT_LUTB_COLS)
        return unsupported(c, "lut-b needs block_structure [8,64]", err);
    c->quant = MOERT_QUANT_LUT_B;
    return MOERT_OK;
}

static int is_mxfp8_group(const json_t *weights)
{
    return is_number(weights, "num_bits", 8) && is_text(weights, "type", "float") &&
           is_text(weights, "strategy", "group") && is_number(weights, "group_size", 32) &&
           json_is_true(json_object_get(weights, "symmetric")) &&
           (is_text(weights, "scale_dtype", "uint8") || is_text(weights, "scale_dtype", "torch.uint8"));
}

static moert_status_t read_compressed_tensors(moert_checkpoint_t *c, const json_t *q, struct moert_error *err)
{
    const char *format = json_string_value(json_object_get(q, "format"));
    json_t *groups = json_object_get(q, "config_groups"), *group;
    const char *name;

    snprintf(c->quant_name, sizeof(c->quant_name), "%s", format ? format : "compressed-tensors");
    c->quant = MOERT_QUANT_OTHER;
    if (format && !strcmp(format, "moert-lut-b-rowexp"))
        return unsupported(c, "row exponents are not part of lut-b", err);
    json_object_foreach(groups, name, group)
    {
        const json_t *weights = json_object_get(group, "weights");
        if (format && !strcmp(format, "lut-b")) {
            moert_status_t status = check_lutb_group(c, weights, err);
            if (status)
                return status;
        } else if (is_mxfp8_group(weights)) {
            c->quant = MOERT_QUANT_MXFP8;
        }
    }
    if (format && !strcmp(format, "lut-b") && c->quant != MOERT_QUANT_LUT_B)
        return unsupported(c, "config_groups has no weights", err);
    return MOERT_OK;
}

static moert_status_t read_quantization(moert_checkpoint_t *c, const json_t *q, struct moert_error *err)
{
    const char *method = json_string_value(json_object_get(q, "quant_method"));
    const char *algorithm = json_string_value(json_object_get(q, "quant_algo"));

    if (algorithm && strstr(algorithm, "MXFP8")) {
        c->quant = MOERT_QUANT_MXFP8;
        return MOERT_OK;
    }
    if (method && !strcmp(method, "compressed-tensors"))
        return read_compressed_tensors(c, q, err);
    snprintf(c->quant_name, sizeof(c->quant_name), "%s", method ? method : algorithm ? algorithm : "unknown");
    c->quant = method && !strcmp(method, "mxfp8") ? MOERT_QUANT_MXFP8 : MOERT_QUANT_OTHER;
    return MOERT_OK;
}

/* ModelOpt's own file; its loaders need these two fields, so a file without them is not one. */
static moert_status_t read_modelopt(moert_checkpoint_t *c, struct moert_error *err)
{
    static const char *const needed[] = {"kv_cache_quant_algo", "exclude_modules"};
    json_t *file = NULL;
    const json_t *q;
    moert_status_t status = load_json(c, "hf_quant_config.json", 1, &file, err);

    if (status || !file)
        return status;
    q = json_object_get(file, "quantization");
    if (!json_is_object(q))
        status = moert_fail(err, MOERT_E_MISSING, "required",
                            "%s/hf_quant_config.json: field \"quantization\" is required", c->path);
    for (size_t i = 0; i < 2 && !status; i++)
        if (!json_object_get(q, needed[i]))
            status = moert_fail(err, MOERT_E_MISSING, "required",
                                "%s/hf_quant_config.json: field \"quantization.%s\" is required", c->path, needed[i]);
    if (!status)
        status = read_quantization(c, q, err);
    json_decref(file);
    return status;
}

/* ------------------------------------------------------------------ the whole file */

moert_status_t moert_checkpoint_read_config(moert_checkpoint_t *c, struct moert_error *err)
{
    const json_t *text, *q;
    const char *type;
    moert_status_t status = load_json(c, "config.json", 0, &c->config, err);

    if (status)
        return status;
    text = json_object_get(c->config, "text_config");
    c->model = json_is_object(text) && !json_object_get(c->config, "hidden_size") ? text : c->config;
    type = json_string_value(json_object_get(c->config, "model_type"));
    if (!type)
        return bad_key(c, "model_type", json_object_get(c->config, "model_type"), "a string", err);
    snprintf(c->model_type, sizeof(c->model_type), "%s", type);
    c->family = moert_family_find(type);
    if (c->options.fused_transposed < 0 && json_is_boolean(json_object_get(c->config, "fused_transposed")))
        c->options.fused_transposed = json_is_true(json_object_get(c->config, "fused_transposed"));
    q = json_object_get(c->config, "quantization_config");
    if (!json_is_object(q))
        q = json_object_get(c->model, "quantization_config");
    return json_is_object(q) ? read_quantization(c, q, err) : read_modelopt(c, err);
}

static moert_status_t describe_activation(const moert_checkpoint_t *c, struct moert_layer_config *ret,
                                          struct moert_error *err)
{
    const char *name = c->family->activation;
    const json_t *value = optional_key(c, "hidden_act"), *limit;

    if (!name && value) {
        name = json_string_value(value);
        if (!name)
            return bad_key(c, "hidden_act", value, "a string", err);
    }
    if (!name)
        name = "silu";
    if (moert_activation_from_name(name, &ret->activation))
        return moert_fail(err, MOERT_E_VALUE, "activation", "%s/config.json: unknown activation \"%.100s\"", c->path,
                          name);
    limit = optional_key(c, "swiglu_limit");
    if (limit && !json_is_number(limit))
        return bad_key(c, "swiglu_limit", limit, "a number", err);
    if (limit) {
        ret->swiglu_limit = json_number_value(limit);
        ret->params_set |= MOERT_PARAM_SWIGLU_LIMIT;
    }
    return MOERT_OK;
}

static moert_status_t describe_scoring(const moert_checkpoint_t *c, struct moert_router_config *ret,
                                       struct moert_error *err)
{
    const struct moert_family_router *row = &c->family->routing;
    const json_t *value = optional_key(c, row->scoring_key);
    const char *name = json_string_value(value);

    ret->scoring = row->scoring;
    if (!value)
        return MOERT_OK;
    if (name && !strcmp(name, "sqrtsoftplus")) /* as its configuration writes it */
        name = "sqrt-softplus";
    if (!name || moert_scoring_from_name(name, &ret->scoring))
        return bad_key(c, row->scoring_key, value, "softmax, sigmoid or sqrt-softplus", err);
    return MOERT_OK;
}

static moert_status_t describe_router(const moert_checkpoint_t *c, struct moert_router_config *ret,
                                      struct moert_error *err)
{
    const struct moert_family_router *row = &c->family->routing;
    const json_t *renormalize = optional_key(c, row->renormalize_key), *factor = optional_key(c, row->factor_key);
    moert_status_t status = describe_scoring(c, ret, err);

    if (status)
        return status;
    ret->kind = row->kind;
    ret->logits_dtype = row->logits_dtype;
    ret->renormalize = row->renormalize;
    if (renormalize && !json_is_boolean(renormalize))
        return bad_key(c, row->renormalize_key, renormalize, "true or false", err);
    if (renormalize)
        ret->renormalize = json_is_true(renormalize);
    if (factor && (!json_is_number(factor) || !(json_number_value(factor) > 0)))
        return bad_key(c, row->factor_key, factor, "a number above 0", err);
    if (factor) {
        ret->scaling_factor = json_number_value(factor);
        ret->scale_at = MOERT_SCALE_AT_OUTPUT;
    }
    if (is_text(c->model, "topk_method", "greedy")) /* DeepSeek-V2-Lite: plain top-k, groups are not used */
        return MOERT_OK;
    status = get_optional_u32(c, row->groups_key, &ret->num_groups, err);
    return status ? status : get_optional_u32(c, row->topk_groups_key, &ret->topk_groups, err);
}

static moert_status_t describe_dtype(const moert_checkpoint_t *c, struct moert_layer_config *ret,
                                     struct moert_error *err)
{
    const json_t *value = optional_key(c, "torch_dtype");
    const char *name;

    if (!value)
        value = optional_key(c, "dtype");
    if (!value)
        return MOERT_OK;
    name = json_string_value(value);
    if (name && !strncmp(name, "torch.", 6))
        name += 6;
    if (!name || moert_dtype_from_name(name, &ret->dtype))
        return bad_key(c, "torch_dtype", value, "bfloat16, float16 or float32", err);
    return MOERT_OK;
}

moert_status_t moert_checkpoint_describe(const moert_checkpoint_t *c, struct moert_layer_config *ret,
                                         struct moert_error *err)
{
    static const char *const hidden[3] = {"hidden_size"}, *const top_k[3] = {"num_experts_per_tok"},
                             *const experts[3] = {"num_experts", "num_local_experts", "n_routed_experts"};
    const char *const intermediate[3] = {c->family->intermediate_keys[0], c->family->intermediate_keys[1]};
    uint64_t e = 0, k = 0;
    moert_status_t status = get_size(c, hidden, INT64_MAX, &ret->hidden_size, err);

    if (!status)
        status = get_size(c, intermediate, INT64_MAX, &ret->intermediate_size, err);
    if (!status)
        status = get_size(c, experts, INT32_MAX, &e, err);
    if (!status)
        status = get_size(c, top_k, INT32_MAX, &k, err);
    if (!status)
        status = describe_dtype(c, ret, err);
    if (!status)
        status = describe_activation(c, ret, err);
    if (!status)
        status = describe_router(c, &ret->router, err);
    ret->num_experts = (uint32_t)e;
    ret->top_k = (uint32_t)k;
    ret->w13_order = c->family->order;
    ret->apply_router_weight_on_input = c->family->weight_on_input;
    return status;
}
