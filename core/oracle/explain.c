/* core/oracle/explain.c: the explain record of oracle.md 10 (schema: doc/explain.schema.json) from a trail. Made when
 * it is first read, because a selection inside a program seldom needs it.
 *
 * Strings of drivers need not be UTF-8; bytes that are not are written as '?'. Integers and lists stay what they are.
 */
#include "config.h"

#include "core/oracle/trail.h"

#include "core/io/layer_json.h"

#include <jansson.h>
#include <sha2.h>
#include <stdlib.h>
#include <string.h>

static const char *const verdict_names[] = {"pass", "fail", "abstain"};
static const char *const op_names[] = {"none", "eq", "in", "ge", "le", "lt", "multiple", "has"};
static const char *const candidate_names[] = {"eligible", "chosen", "refused", "removed", "not-provided"};
static const char *const level_names[] = {"static", "measured", "platform", "model", "user"};
static const char *const phase_names[] = {"decode", "prefill"};

static json_t *text_json(const char *text)
{
    json_t *string;
    char *clean;

    if (!text)
        return json_null();
    string = json_string(text);
    if (string)
        return string;
    clean = strdup(text);
    for (char *c = clean; c && *c; c++)
        if ((unsigned char)*c > 126)
            *c = '?';
    string = clean ? json_string(clean) : NULL;
    free(clean);
    return string;
}

static json_t *bytes_json(uint64_t v)
{
    return json_integer(v > INT64_MAX ? INT64_MAX : (json_int_t)v);
}

static json_t *list_json(const char *const *list)
{
    json_t *array = json_array();

    for (; array && list && *list; list++)
        if (json_array_append_new(array, text_json(*list))) {
            json_decref(array);
            return NULL;
        }
    return array;
}

static json_t *value_json(const struct moert_value *v)
{
    switch (v->kind) {
    case MOERT_VALUE_INT: return json_integer(v->integer);
    case MOERT_VALUE_BOOL: return json_boolean(v->integer);
    case MOERT_VALUE_STRING: return text_json(v->string);
    case MOERT_VALUE_LIST: return list_json(v->list);
    default: return json_null();
    }
}

static json_t *checks_json(const struct moert_oracle_checks *checks)
{
    json_t *array = json_array();

    for (uint32_t i = 0; array && i < checks->count; i++) {
        const struct moert_check *c = &checks->items[i];
        json_t *check = json_pack("{so ss so ss so so so}", "code", text_json(c->code), "verdict",
                                  verdict_names[c->verdict], "field", text_json(c->field), "op", op_names[c->op],
                                  "have", value_json(&c->have), "need", value_json(&c->need), "fix", text_json(c->fix));
        if (json_array_append_new(array, check)) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

static json_t *driver_json(const struct moert_oracle_candidate *c)
{
    const struct moert_ctx_driver *d = c->driver;

    if (!c->driver_name)
        return json_null();
    return json_pack("{so so so so ss}", "name", text_json(c->driver_name), "path", text_json(d ? d->path : ""),
                     "version", text_json(d ? d->version : ""), "sha256", text_json(d ? d->sha256 : ""), "state",
                     d && moert_driver_state_name(d->state) ? moert_driver_state_name(d->state) : "not installed");
}

static json_t *device_json(const struct moert_oracle_device *d)
{
    if (!d)
        return json_null();
    return json_pack("{so so so sb}", "id", text_json(d->desc.id), "arch", text_json(d->desc.arch), "name",
                     text_json(d->desc.name), "present", d->index != MOERT_NO_INDEX);
}

static json_t *removed_json(const struct moert_oracle_candidate *c)
{
    if (!c->removed_by.code)
        return json_null();
    return json_pack("{ss so ss}", "level", level_names[c->removed_by.level], "rule", text_json(c->removed_by.rule),
                     "code", c->removed_by.code);
}

static json_t *cost_json(const struct moert_oracle_candidate *c)
{
    if (!c->has_cost)
        return json_null();
    return json_pack("{so so so}", "weights", bytes_json(c->weights), "workspace", bytes_json(c->workspace), "load_ns",
                     bytes_json(c->load_ns));
}

static json_t *candidate_json(const struct moert_oracle_candidate *c)
{
    const struct moert_backend *t = c->table;
    int opt_in = t && (t->flags & MOERT_BACKEND_F_OPT_IN);

    return json_pack("{so so so so ss sb so so so so so so so}", "id", text_json(c->id), "backend",
                     text_json(c->backend), "aliases", list_json(t ? t->aliases : NULL), "class",
                     text_json(t ? moert_class_name(t->numeric_class) : NULL), "verdict", candidate_names[c->verdict],
                     "auto", t && !opt_in, "auto_reason", text_json(opt_in ? t->auto_reason : NULL), "driver",
                     driver_json(c), "device", device_json(c->device), "checks", checks_json(&c->checks), "removed_by",
                     removed_json(c), "cost", cost_json(c), "measured", json_null());
}

static json_t *candidates_json(const struct moert_oracle_trail *trail)
{
    json_t *array = json_array();

    for (uint32_t i = 0; array && i < trail->candidate_count; i++)
        if (json_array_append_new(array, candidate_json(trail->candidates[i]))) {
            json_decref(array);
            return NULL;
        }
    return array;
}

/* Backends that could serve and are never chosen by themselves; one entry per backend. */
static json_t *opt_in_json(const struct moert_oracle_trail *trail)
{
    json_t *array = json_array();
    const char *last = NULL;

    for (uint32_t i = 0; array && i < trail->candidate_count; i++) {
        const struct moert_oracle_candidate *c = trail->candidates[i];
        if (!c->table || !(c->table->flags & MOERT_BACKEND_F_OPT_IN) || c->checks.fails ||
            c->verdict == MOERT_CANDIDATE_CHOSEN || (last && !strcmp(last, c->backend)))
            continue;
        last = c->backend;
        if (json_array_append_new(array, json_pack("{so so}", "backend", text_json(c->backend), "reason",
                                                   text_json(c->table->auto_reason)))) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

/* The layer without what tells it from its equals. */
static json_t *config_json(const struct moert_layer_config *layer)
{
    struct moert_layer_config plain = *layer;
    json_t *config = NULL;

    plain.name[0] = 0;
    plain.index = -1;
    plain.role = MOERT_ROLE_MAIN;
    return moert_layer_config_to_json(&plain, &config, NULL) ? NULL : config;
}

static void digest_text(const char *text, char ret[SHA256_DIGEST_STRING_LENGTH])
{
    SHA256Data((const uint8_t *)text, strlen(text), ret);
}

/* No rules file is read yet: the digest of no rules is that of the empty text. */
static json_t *rules_json(void)
{
    char digest[SHA256_DIGEST_STRING_LENGTH];

    digest_text("", digest);
    return json_pack("{ss s[] s[]}", "digest", digest, "files", "dead");
}

static json_t *question_json(const struct moert_oracle_question *q)
{
    json_t *layer = json_pack("{so si ss}", "name", text_json(q->layer.name), "index", q->layer.index, "role",
                              moert_role_name(q->layer.role));

    return json_pack("{so so ss so si si ss so}", "layer", layer, "config", config_json(&q->layer), "phase",
                     phase_names[q->phase], "tokens", q->tokens ? bytes_json(q->tokens) : json_null(), "rank", 0,
                     "world", 1, "policy", q->policy, "rules", rules_json());
}

static json_t *bucket_json(const struct moert_oracle_trail *trail)
{
    json_t *decided = json_pack("{ss so so}", "level", level_names[trail->level], "rule", text_json(trail->rule),
                                "detail", text_json(trail->detail));

    return json_pack("{si so so so}", "tokens_min", 1, "tokens_max", bytes_json(trail->question.layer.max_tokens),
                     "candidate", text_json(trail->winner->id), "decided_by", decided);
}

static json_t *decision_json(const struct moert_oracle_trail *trail)
{
    json_t *fallback = json_null(), *warnings;

    if (!trail->winner)
        return json_null();
    if (trail->fallback_from)
        fallback = json_pack("{so so}", "from", text_json(trail->fallback_from->id), "reason",
                             text_json(trail->fallback_reason));
    warnings = json_array();
    for (uint32_t i = 0; warnings && i < trail->warning_count; i++)
        json_array_append_new(warnings, text_json(trail->warnings[i]));
    return json_pack("{s[o] ss sb so si so}", "buckets", bucket_json(trail), "class",
                     moert_class_name(trail->winner->table->numeric_class), "class_crossed", trail->class_crossed,
                     "fallback", fallback, "layouts", 1, "warnings", warnings);
}

/* SHA-256 of the canonical JSON (sorted keys, no blanks) of what a measured result depends on (oracle.md 7): not the
 * device's UUID, so that equal cards agree. */
static json_t *fingerprint_json(const struct moert_oracle_trail *trail)
{
    const struct moert_oracle_candidate *c = trail->winner;
    char digest[SHA256_DIGEST_STRING_LENGTH];
    json_t *device, *object;
    char *text;

    device = c ? json_pack("{so so so}", "arch", text_json(c->device->desc.arch), "name",
                           text_json(c->device->desc.name), "runtime", text_json(c->device->desc.runtime))
               : json_null();
    object = json_pack("{so so so s[io] so ss ss}", "device", device, "driver",
                       text_json(c && c->driver ? c->driver->sha256 : ""), "layer", config_json(&trail->question.layer),
                       "bucket", 1, bytes_json(trail->question.layer.max_tokens), "rules", rules_json(), "version",
                       moert_version(), "policy", trail->question.policy);
    text = object ? json_dumps(object, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    json_decref(object);
    if (!text)
        return NULL;
    digest_text(text, digest);
    free(text);
    return json_string(digest);
}

static json_t *error_json(const struct moert_oracle_trail *trail)
{
    if (trail->winner)
        return json_null();
    return json_pack("{so so}", "code", text_json(trail->error_code), "text", text_json(trail->error_text));
}

char *moert_oracle_explain(const struct moert_oracle_trail *trail)
{
    const char *status = !trail->winner ? "failed" : trail->winner->device->index == MOERT_NO_INDEX ? "what-if" : "ok";
    json_t *record;
    char *text;

    record = json_pack("{si ss ss ss so so so so so so so}", "schema", 1, "kind", "moert.explain", "version",
                       moert_version(), "status", status, "question", question_json(&trail->question), "candidates",
                       candidates_json(trail), "decision", decision_json(trail), "opt_in", opt_in_json(trail),
                       "agreement", json_null(), "fingerprint", fingerprint_json(trail), "error", error_json(trail));
    text = record ? json_dumps(record, JSON_COMPACT) : NULL;
    json_decref(record);
    return text;
}
