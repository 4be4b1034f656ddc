/* core/io/layer_json.c: the layer description of layer.md 1 as JSON: the object of `--config` and of the metadata key
 * `moert.layer`. One table of keys serves reading and writing. */
#include "config.h"

#include "core/io/layer_json.h"

#include "core/base/error.h"
#include "core/io/json_fields.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BIT(v)     (1u << (v))
#define ALL(count) (BIT(count) - 1)

static const struct moert_json_names dtypes = {moert_dtype_name, moert_dtype_from_name,
                                               BIT(MOERT_F32) | BIT(MOERT_BF16) | BIT(MOERT_F16), MOERT_DTYPE_COUNT, 1};
static const struct moert_json_names roles = {moert_role_name, moert_role_from_name, ALL(MOERT_ROLE_COUNT),
                                              MOERT_ROLE_COUNT, 0};
static const struct moert_json_names weight_schemes = {moert_scheme_name, moert_scheme_from_name,
                                                       ALL(MOERT_SCHEME_COUNT) & ~BIT(MOERT_SCHEME_NONE),
                                                       MOERT_SCHEME_COUNT, 0};
static const struct moert_json_names activation_schemes = {
    moert_scheme_name, moert_scheme_from_name, BIT(MOERT_SCHEME_NONE) | BIT(MOERT_SCHEME_MXFP8), MOERT_SCHEME_COUNT, 0};
static const struct moert_json_names activations = {moert_activation_name, moert_activation_from_name,
                                                    ALL(MOERT_ACT_COUNT), MOERT_ACT_COUNT, 0};
static const struct moert_json_names w13_orders = {moert_w13_order_name, moert_w13_order_from_name,
                                                   ALL(MOERT_W13_ORDER_COUNT), MOERT_W13_ORDER_COUNT, 0};
static const struct moert_json_names router_kinds = {moert_router_kind_name, moert_router_kind_from_name,
                                                     ALL(MOERT_ROUTER_KIND_COUNT), MOERT_ROUTER_KIND_COUNT, 0};
static const struct moert_json_names scorings = {moert_scoring_name, moert_scoring_from_name, ALL(MOERT_SCORING_COUNT),
                                                 MOERT_SCORING_COUNT, 0};
static const struct moert_json_names scale_ats = {moert_scale_at_name, moert_scale_at_from_name,
                                                  ALL(MOERT_SCALE_AT_COUNT), MOERT_SCALE_AT_COUNT, 0};

static moert_status_t read_map(const json_t *value, const struct moert_json_field *field,
                               const struct moert_json_source *source, void *ret, struct moert_error *err);

#define AT(field)   offsetof(struct moert_layer_config, field)
#define R_AT(field) offsetof(struct moert_router_config, field)
#define S_AT(field) offsetof(struct moert_shared_config, field)
#define REQUIRED    .flags = MOERT_JSON_F_REQUIRED | MOERT_JSON_F_ALWAYS
#define ALWAYS      .flags = MOERT_JSON_F_ALWAYS

#define STRING(k, at, n)                                                                                               \
    {                                                                                                                  \
        .key = k, .kind = MOERT_JSON_STRING, .offset = at, .room = n                                                   \
    }
#define NAME(k, at, n, ...)                                                                                            \
    {                                                                                                                  \
        .key = k, .kind = MOERT_JSON_NAME, .offset = at, .names = &(n), __VA_ARGS__                                    \
    }
#define BOOL(k, at)                                                                                                    \
    {                                                                                                                  \
        .key = k, .kind = MOERT_JSON_BOOL, .offset = at                                                                \
    }
#define I32(k, at, low)                                                                                                \
    {                                                                                                                  \
        .key = k, .kind = MOERT_JSON_I32, .offset = at, .min = low, .max = INT32_MAX                                   \
    }
/* Ids are int32, so counts of experts stay below 2^31. */
#define U32(k, at, low, ...)                                                                                           \
    {                                                                                                                  \
        .key = k, .kind = MOERT_JSON_U32, .offset = at, .min = low, .max = INT32_MAX, __VA_ARGS__                      \
    }
#define U64(k, at, low, ...)                                                                                           \
    {                                                                                                                  \
        .key = k, .kind = MOERT_JSON_U64, .offset = at, .min = low, .max = INT64_MAX, __VA_ARGS__                      \
    }
#define POSITIVE(k, at)                                                                                                \
    {                                                                                                                  \
        .key = k, .kind = MOERT_JSON_POSITIVE, .offset = at                                                            \
    }
#define PARAM(k, at, b)                                                                                                \
    {                                                                                                                  \
        .key = k, .kind = MOERT_JSON_DOUBLE, .offset = at, .code = "activation-param", .bit = b,                       \
        .bits_offset = AT(params_set)                                                                                  \
    }
#define OBJECT(k, at, f)                                                                                               \
    {                                                                                                                  \
        .key = k, .kind = MOERT_JSON_OBJECT, .offset = at, .fields = f                                                 \
    }

static const struct moert_json_field router_fields[] = {
    NAME("kind", R_AT(kind), router_kinds, REQUIRED),
    BOOL("renormalize", R_AT(renormalize)),
    NAME("scoring", R_AT(scoring), scorings, ),
    U32("num_groups", R_AT(num_groups), 1, .code = "groups"),
    U32("topk_groups", R_AT(topk_groups), 1, .code = "groups"),
    POSITIVE("scaling_factor", R_AT(scaling_factor)),
    NAME("scale_at", R_AT(scale_at), scale_ats, ),
    NAME("logits_dtype", R_AT(logits_dtype), dtypes, ),
    POSITIVE("shared_weight", R_AT(shared_weight)),
    {.key = NULL},
};

static const struct moert_json_field shared_fields[] = {
    U64("intermediate_size", S_AT(intermediate_size), 1, REQUIRED, .code = "size"),
    BOOL("gated", S_AT(gated)),
    NAME("weight_scheme", S_AT(weight_scheme), weight_schemes, .code = "scheme"),
    {.key = NULL},
};

static const struct moert_json_field layer_fields[] = {
    STRING("name", AT(name), sizeof(((struct moert_layer_config *)0)->name)),
    I32("index", AT(index), -1),
    NAME("role", AT(role), roles, ),
    U64("hidden_size", AT(hidden_size), 1, REQUIRED, .code = "size"),
    U64("intermediate_size", AT(intermediate_size), 1, REQUIRED, .code = "size"),
    U32("num_experts", AT(num_experts), 1, REQUIRED, .code = "size"),
    U32("num_local_experts", AT(num_local_experts), 1, .code = "size"),
    U32("top_k", AT(top_k), 1, REQUIRED, .code = "topk-range"),
    U32("num_fused_shared", AT(num_fused_shared), 0, ),
    NAME("dtype", AT(dtype), dtypes, ALWAYS),
    NAME("weight_scheme", AT(weight_scheme), weight_schemes, REQUIRED, .code = "scheme"),
    NAME("activation_scheme", AT(activation_scheme), activation_schemes, .code = "scheme"),
    NAME("activation", AT(activation), activations, ALWAYS, .code = "activation"),
    PARAM("swiglu_limit", AT(swiglu_limit), MOERT_PARAM_SWIGLU_LIMIT),
    PARAM("swiglu_alpha", AT(swiglu_alpha), MOERT_PARAM_SWIGLU_ALPHA),
    PARAM("swiglu_beta", AT(swiglu_beta), MOERT_PARAM_SWIGLU_BETA),
    PARAM("situ_beta", AT(situ_beta), MOERT_PARAM_SITU_BETA),
    PARAM("situ_linear_beta", AT(situ_linear_beta), MOERT_PARAM_SITU_LINEAR_BETA),
    NAME("w13_order", AT(w13_order), w13_orders, .code = "order"),
    BOOL("has_bias", AT(has_bias)),
    BOOL("apply_router_weight_on_input", AT(apply_router_weight_on_input)),
    {.key = "expert_map", .kind = MOERT_JSON_OTHER, .offset = AT(expert_map), .code = "map", .read = read_map},
    OBJECT("router", AT(router), router_fields),
    OBJECT("shared", AT(shared), shared_fields),
    U64("max_tokens", AT(max_tokens), 1, ALWAYS, .code = "size"),
    {.key = NULL},
};

static moert_status_t read_map(const json_t *value, const struct moert_json_field *field,
                               const struct moert_json_source *source, void *ret, struct moert_error *err)
{
    struct moert_layer_config *config = ret;
    size_t length = json_array_size(value), i;
    int32_t *map;

    if (!json_is_array(value) || !length || length > INT32_MAX)
        return moert_json_bad(value, field, source, "a list of one local expert id (or -1) per expert", err);
    map = malloc(length * sizeof(*map));
    if (!map)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "%s: no memory for an expert map of %zu entries",
                          source->where, length);
    for (i = 0; i < length; i++) {
        json_t *entry = json_array_get(value, i);
        json_int_t v = json_integer_value(entry);
        if (!json_is_integer(entry) || v < INT32_MIN || v > INT32_MAX)
            break;
        map[i] = (int32_t)v;
    }
    if (i < length) {
        char *text = json_dumps(json_array_get(value, i), JSON_ENCODE_ANY | JSON_COMPACT);
        moert_fail(err, MOERT_E_VALUE, "map", "%s: expert_map[%zu] is %.80s; expected a 32-bit integer", source->where,
                   i, text ? text : "?");
        free(text);
        free(map);
        return MOERT_E_VALUE;
    }
    config->expert_map = map;
    config->expert_map_length = (uint32_t)length;
    return MOERT_OK;
}

moert_status_t moert_layer_config_parse(const char *json, const char *where, struct moert_layer_config *ret,
                                        struct moert_error *err)
{
    struct moert_json_source source = {where ? where : "layer description", ""};
    struct moert_layer_config config;
    json_t *root = NULL;
    moert_status_t status;

    if (!json || !ret)
        return moert_fail_null(err, json ? "ret" : "json");
    moert_layer_config_init(&config);
    status = moert_json_load(json, source.where, &root, err);
    if (!status)
        status = moert_json_read(root, layer_fields, &source, &config, err);
    json_decref(root);
    if (status)
        moert_layer_config_clear(&config);
    else
        *ret = config;
    return status;
}

/* ------------------------------------------------------------------ writing */

static moert_status_t write_fields(const char *base, const char *initial, const struct moert_json_field *fields,
                                   json_t *object, struct moert_error *err);

static json_t *name_value(const struct moert_json_field *f, uint32_t v)
{
    const char *name = f->names->name(v);
    char lower[32];
    size_t i;

    if (!f->names->lower_case)
        return json_string(name);
    for (i = 0; name[i] && i < sizeof(lower) - 1; i++)
        lower[i] = (char)(name[i] >= 'A' && name[i] <= 'Z' ? name[i] - 'A' + 'a' : name[i]);
    lower[i] = 0;
    return json_string(lower);
}

static json_t *map_value(const struct moert_layer_config *config)
{
    json_t *list = json_array();

    for (uint32_t i = 0; list && i < config->expert_map_length; i++)
        if (json_array_append_new(list, json_integer(config->expert_map[i]))) {
            json_decref(list);
            list = NULL;
        }
    return list;
}

static uint32_t u32_at(const char *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

/* Bytes of a field's value, to compare it with the initial one. */
static size_t value_size(const struct moert_json_field *f)
{
    switch (f->kind) {
    case MOERT_JSON_STRING: return 1; /* "" or not */
    case MOERT_JSON_U64: return sizeof(uint64_t);
    case MOERT_JSON_DOUBLE:
    case MOERT_JSON_POSITIVE: return sizeof(double);
    default: return sizeof(uint32_t);
    }
}

/* Is the value to be written: always, or given, or different from the initial one? Values without a name are markers
 * of "resolve later" and are left out. */
static int is_given(const char *base, const char *initial, const struct moert_json_field *f)
{
    const char *p = base + f->offset;

    if (f->kind == MOERT_JSON_NAME && !f->names->name(u32_at(p)))
        return 0;
    if (f->kind == MOERT_JSON_NAME && (u32_at(p) >= 32 || !(f->names->allowed >> u32_at(p) & 1)))
        return 0;
    if (f->bit)
        return (u32_at(base + f->bits_offset) & f->bit) != 0;
    if (f->kind == MOERT_JSON_OTHER)
        return ((const struct moert_layer_config *)(const void *)base)->expert_map_length != 0;
    if (f->kind == MOERT_JSON_OBJECT)
        return 1; /* decided by what is in it */
    return (f->flags & MOERT_JSON_F_ALWAYS) || memcmp(p, initial + f->offset, value_size(f));
}

static moert_status_t write_value(const char *base, const char *initial, const struct moert_json_field *f, json_t **ret,
                                  struct moert_error *err)
{
    const void *p = base + f->offset;
    moert_status_t status;
    double real;

    switch (f->kind) {
    case MOERT_JSON_STRING: *ret = json_string(p); break;
    case MOERT_JSON_NAME: *ret = name_value(f, u32_at(p)); break;
    case MOERT_JSON_BOOL: *ret = json_boolean(u32_at(p)); break;
    case MOERT_JSON_I32: *ret = json_integer(*(const int32_t *)p); break;
    case MOERT_JSON_U32: *ret = json_integer(*(const uint32_t *)p); break;
    case MOERT_JSON_U64: *ret = json_integer((json_int_t) * (const uint64_t *)p); break;
    case MOERT_JSON_OTHER: *ret = map_value((const void *)base); break;
    case MOERT_JSON_DOUBLE:
    case MOERT_JSON_POSITIVE:
        memcpy(&real, p, sizeof(real));
        if (!isfinite(real))
            return moert_fail(err, MOERT_E_VALUE, f->code ? f->code : "field", "%s is %g; must be finite", f->key,
                              real);
        *ret = json_real(real);
        break;
    case MOERT_JSON_OBJECT:
        *ret = json_object();
        status = *ret ? write_fields(p, initial + f->offset, f->fields, *ret, err) : MOERT_OK;
        if (status) {
            json_decref(*ret);
            return status;
        }
        break;
    }
    return *ret ? MOERT_OK : moert_fail(err, MOERT_E_VALUE, "field", "%s is not UTF-8, or memory is out", f->key);
}

static moert_status_t write_fields(const char *base, const char *initial, const struct moert_json_field *fields,
                                   json_t *object, struct moert_error *err)
{
    for (const struct moert_json_field *f = fields; f->key; f++) {
        json_t *value = NULL;
        moert_status_t status;

        if (!is_given(base, initial, f))
            continue;
        status = write_value(base, initial, f, &value, err);
        if (status)
            return status;
        if (json_object_set_new(object, f->key, value))
            return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for the JSON object");
    }
    return MOERT_OK;
}

moert_status_t moert_layer_config_to_json(const struct moert_layer_config *config, json_t **ret,
                                          struct moert_error *err)
{
    struct moert_layer_config initial;
    json_t *object = json_object();
    moert_status_t status;

    if (!object)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for the JSON object");
    moert_layer_config_init(&initial);
    status = write_fields((const char *)config, (const char *)&initial, layer_fields, object, err);
    if (status) {
        json_decref(object);
        return status;
    }
    if (config->router.kind == MOERT_ROUTER_GIVEN && json_object_size(json_object_get(object, "router")) == 1)
        json_object_del(object, "router");
    if (!config->shared.intermediate_size)
        json_object_del(object, "shared");
    *ret = object;
    return MOERT_OK;
}

moert_status_t moert_layer_config_format(const struct moert_layer_config *config, char **ret, struct moert_error *err)
{
    json_t *object = NULL;
    moert_status_t status;
    char *text;

    if (!config || !ret)
        return moert_fail_null(err, config ? "ret" : "config");
    status = moert_check_size(err, "moert_layer_config", config->size, sizeof(*config));
    if (!status)
        status = moert_layer_config_to_json(config, &object, err);
    if (status)
        return status;
    text = json_dumps(object, JSON_COMPACT);
    json_decref(object);
    if (!text)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for the JSON text");
    *ret = text;
    return MOERT_OK;
}
