/* tests/unit/oracle_world.h: a context with test drivers, a selection, and its record as a JSON tree. */
#ifndef TESTS_UNIT_ORACLE_WORLD_H
#define TESTS_UNIT_ORACLE_WORLD_H

#include "unit/oracle_fakes.h"

#include <criterion/criterion.h>
#include <jansson.h>

struct answer {
    moert_status_t status;
    struct moert_error err;
    moert_decision_t *decision;
    json_t *record;
};

/* Warnings are read in the record. */
static inline void no_log(void *ctx, moert_log_level_t level, const char *message)
{
    (void)ctx;
    (void)level;
    (void)message;
}

static inline moert_context_t *make_context(const struct moert_driver *const *drivers)
{
    struct moert_context_options o = {.size = sizeof(o), .flags = MOERT_CONTEXT_F_NO_MODULES, .log = no_log};
    struct moert_error err = MOERT_ERROR_INIT;
    moert_context_t *context = NULL;

    cr_assert(!moert_context_create(&o, &context, &err), "%s", err.text);
    for (; drivers && *drivers; drivers++)
        cr_assert(!moert_context_register(context, *drivers, &err), "%s", err.text);
    return context;
}

static inline struct moert_layer_config make_layer(void)
{
    struct moert_layer_config c;

    moert_layer_config_init(&c);
    strcpy(c.name, "model.layers.3.mlp.experts");
    c.index = 3;
    c.hidden_size = 256;
    c.intermediate_size = 128;
    c.num_experts = 8;
    c.top_k = 2;
    c.weight_scheme = MOERT_SCHEME_MXFP8;
    c.max_tokens = 32;
    return c;
}

static inline struct answer ask(moert_context_t *context, const struct moert_layer_config *layer,
                                const struct moert_select_options *options)
{
    struct answer a = {.err = MOERT_ERROR_INIT};
    const char *json;

    a.status = moert_select(context, layer, options, &a.decision, &a.err);
    if (!a.decision)
        return a;
    json = moert_decision_json(a.decision);
    cr_assert(json);
    cr_expect(json == moert_decision_json(a.decision));
    a.record = json_loads(json, JSON_REJECT_DUPLICATES, NULL);
    cr_assert(a.record, "%s", json);
    return a;
}

static inline struct answer ask_for(moert_context_t *context, const struct moert_layer_config *layer,
                                    const char *backend)
{
    struct moert_select_options o = {.size = sizeof(o), .backend = backend};
    return ask(context, layer, &o);
}

static inline void answer_free(struct answer *a)
{
    json_decref(a->record);
    moert_decision_destroy(a->decision);
    *a = (struct answer){0};
}

static inline const json_t *candidate(const struct answer *a, const char *id)
{
    const json_t *list = json_object_get(a->record, "candidates");

    for (size_t i = 0; i < json_array_size(list); i++)
        if (!strcmp(json_string_value(json_object_get(json_array_get(list, i), "id")), id))
            return json_array_get(list, i);
    return NULL;
}

static inline const char *text_of(const json_t *object, const char *key)
{
    const char *s = json_string_value(json_object_get(object, key));
    return s ? s : "(none)";
}

static inline const json_t *check(const struct answer *a, const char *id, const char *code)
{
    const json_t *list = json_object_get(candidate(a, id), "checks");

    for (size_t i = 0; i < json_array_size(list); i++)
        if (!strcmp(text_of(json_array_get(list, i), "code"), code))
            return json_array_get(list, i);
    return NULL;
}

static inline size_t fails(const struct answer *a, const char *id)
{
    const json_t *list = json_object_get(candidate(a, id), "checks");
    size_t n = 0;

    for (size_t i = 0; i < json_array_size(list); i++)
        n += !strcmp(text_of(json_array_get(list, i), "verdict"), "fail");
    return n;
}

static inline const json_t *decided_by(const struct answer *a)
{
    const json_t *buckets = json_object_get(json_object_get(a->record, "decision"), "buckets");
    return json_object_get(json_array_get(buckets, 0), "decided_by");
}

#endif
