/* core/io/json_fields.c: reading a JSON object by a table of its keys. */
#include "config.h"

#include "core/io/json_fields.h"

#include "core/base/error.h"
#include "core/base/text.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_KEYS 64 /* longest table, for the list of the nearest match */

moert_status_t moert_json_load(const char *json, const char *where, json_t **ret, struct moert_error *err)
{
    json_error_t error;
    enum json_error_code code;
    json_t *root = json_loads(json, JSON_REJECT_DUPLICATES, &error);

    if (!root) {
        code = json_error_code(&error);
        if (code == json_error_duplicate_key || code == json_error_numeric_overflow)
            return moert_fail(err, MOERT_E_VALUE, "field",
                              "%s:%d:%d: %s; expected each key once and numbers of 64 bits", where, error.line,
                              error.column, error.text);
        if (code == json_error_out_of_memory)
            return moert_fail(err, MOERT_E_NOMEM, "host-memory", "%s: no memory for the JSON text", where);
        return moert_fail(err, MOERT_E_FILE, "st-json", "%s:%d:%d: %s; expected a JSON object", where, error.line,
                          error.column, error.text);
    }
    if (!json_is_object(root)) {
        json_decref(root);
        return moert_fail(err, MOERT_E_FILE, "st-json", "%s: the JSON text is not an object", where);
    }
    *ret = root;
    return MOERT_OK;
}

moert_status_t moert_json_bad(const json_t *value, const struct moert_json_field *field,
                              const struct moert_json_source *source, const char *expected, struct moert_error *err)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    const char *shown = text ? text : "?";

    moert_fail(err, MOERT_E_VALUE, field->code ? field->code : "field", "%s: field \"%s%s\" is %.80s%s; expected %s",
               source->where, source->prefix, field->key, shown, strlen(shown) > 80 ? "..." : "", expected);
    free(text);
    return MOERT_E_VALUE;
}

static moert_status_t read_string(const json_t *value, const struct moert_json_field *field,
                                  const struct moert_json_source *source, char *ret, struct moert_error *err)
{
    char expected[64];
    size_t length;

    if (!json_is_string(value))
        return moert_json_bad(value, field, source, "a string", err);
    length = json_string_length(value);
    if (length >= field->room) {
        snprintf(expected, sizeof(expected), "at most %zu bytes, got %zu", field->room - 1, length);
        return moert_json_bad(value, field, source, expected, err);
    }
    memcpy(ret, json_string_value(value), length + 1);
    return MOERT_OK;
}

static moert_status_t read_name(const json_t *value, const struct moert_json_field *field,
                                const struct moert_json_source *source, uint32_t *ret, struct moert_error *err)
{
    const struct moert_json_names *names = field->names;
    struct moert_text known = {0};
    const char *list;
    char expected[256];
    uint32_t v;

    if (json_is_string(value) && !names->from_name(json_string_value(value), &v) && v < 32 &&
        (names->allowed >> v & 1)) {
        *ret = v;
        return MOERT_OK;
    }
    for (v = 0; v < names->count; v++) {
        if (!(names->allowed >> v & 1))
            continue;
        moert_text_add(&known, "%s", known.length ? ", " : "");
        for (const char *c = names->name(v); *c; c++)
            moert_text_add(&known, "%c", names->lower_case ? tolower((unsigned char)*c) : *c);
    }
    list = known.text && !known.failed ? known.text : "?";
    if (!json_is_string(value)) {
        snprintf(expected, sizeof(expected), "one of %s", list);
        moert_json_bad(value, field, source, expected, err);
    } else if (field->code && !strcmp(field->code, "scheme")) {
        moert_fail(err, MOERT_E_VALUE, field->code, "%s: %s%s \"%.80s\" is not supported; known: %s", source->where,
                   source->prefix, field->key, json_string_value(value), list);
    } else {
        moert_fail(err, MOERT_E_VALUE, field->code ? field->code : "field", "%s: unknown %s%s \"%.80s\"; known: %s",
                   source->where, source->prefix, field->key, json_string_value(value), list);
    }
    moert_text_free(&known);
    return MOERT_E_VALUE;
}

static moert_status_t read_integer(const json_t *value, const struct moert_json_field *field,
                                   const struct moert_json_source *source, void *ret, struct moert_error *err)
{
    char expected[96];
    json_int_t v = json_integer_value(value);

    if (!json_is_integer(value)) {
        snprintf(expected, sizeof(expected), "an integer %lld..%lld", (long long)field->min, (long long)field->max);
        return moert_json_bad(value, field, source, expected, err);
    }
    if (v < field->min || v > field->max)
        return moert_fail(err, MOERT_E_VALUE, field->code ? field->code : "field",
                          "%s: %s%s is %lld; must be at %s %lld", source->where, source->prefix, field->key,
                          (long long)v, v < field->min ? "least" : "most",
                          (long long)(v < field->min ? field->min : field->max));
    if (field->kind == MOERT_JSON_I32)
        *(int32_t *)ret = (int32_t)v;
    else if (field->kind == MOERT_JSON_U32)
        *(uint32_t *)ret = (uint32_t)v;
    else
        *(uint64_t *)ret = (uint64_t)v;
    return MOERT_OK;
}

static moert_status_t read_value(const json_t *value, const struct moert_json_field *field,
                                 const struct moert_json_source *source, char *base, struct moert_error *err)
{
    void *ret = base + field->offset;
    struct moert_json_source inner = {source->where, NULL};
    char prefix[128];

    switch (field->kind) {
    case MOERT_JSON_STRING: return read_string(value, field, source, ret, err);
    case MOERT_JSON_NAME: return read_name(value, field, source, ret, err);
    case MOERT_JSON_BOOL:
        if (!json_is_boolean(value))
            return moert_json_bad(value, field, source, "true or false", err);
        *(uint32_t *)ret = json_is_true(value);
        return MOERT_OK;
    case MOERT_JSON_I32:
    case MOERT_JSON_U32:
    case MOERT_JSON_U64: return read_integer(value, field, source, ret, err);
    case MOERT_JSON_DOUBLE:
    case MOERT_JSON_POSITIVE:
        if (!json_is_number(value) || (field->kind == MOERT_JSON_POSITIVE && !(json_number_value(value) > 0)))
            return moert_json_bad(value, field, source,
                                  field->kind == MOERT_JSON_POSITIVE ? "a number above 0" : "a number", err);
        *(double *)ret = json_number_value(value);
        return MOERT_OK;
    case MOERT_JSON_OBJECT:
        if (!json_is_object(value))
            return moert_json_bad(value, field, source, "an object", err);
        snprintf(prefix, sizeof(prefix), "%s%s.", source->prefix, field->key);
        inner.prefix = prefix;
        return moert_json_read(value, field->fields, &inner, ret, err);
    case MOERT_JSON_OTHER: return field->read(value, field, source, base, err);
    }
    return moert_json_bad(value, field, source, "a known kind of value", err);
}

static const struct moert_json_field *find_field(const struct moert_json_field *fields, const char *key)
{
    for (; fields->key; fields++)
        if (!strcmp(fields->key, key))
            return fields;
    return NULL;
}

static moert_status_t unknown_key(const char *key, const struct moert_json_field *fields,
                                  const struct moert_json_source *source, struct moert_error *err)
{
    const char *list[MAX_KEYS + 1], *nearest;
    struct moert_text known = {0};
    size_t n = 0;

    for (; fields[n].key && n < MAX_KEYS; n++) {
        list[n] = fields[n].key;
        moert_text_add(&known, "%s%s", n ? ", " : "", fields[n].key);
    }
    list[n] = NULL;
    nearest = moert_text_nearest(key, list);
    if (nearest)
        moert_fail(err, MOERT_E_VALUE, "field", "%s: unknown field \"%s%.80s\"; did you mean \"%s%s\"?", source->where,
                   source->prefix, key, source->prefix, nearest);
    else
        moert_fail(err, MOERT_E_VALUE, "field", "%s: unknown field \"%s%.80s\"; known: %s", source->where,
                   source->prefix, key, known.text && !known.failed ? known.text : "");
    moert_text_free(&known);
    return MOERT_E_VALUE;
}

moert_status_t moert_json_read(const json_t *object, const struct moert_json_field *fields,
                               const struct moert_json_source *source, void *ret, struct moert_error *err)
{
    const char *key;
    json_t *value;
    moert_status_t status;

    /* All keys first: a misspelt required key is better told as unknown than as missing. */
    json_object_foreach((json_t *)(uintptr_t)object, key,
                        value) if (!find_field(fields, key)) return unknown_key(key, fields, source, err);
    for (const struct moert_json_field *f = fields; f->key; f++) {
        value = json_object_get(object, f->key);
        if (!value || json_is_null(value)) {
            if (f->flags & MOERT_JSON_F_REQUIRED)
                return moert_fail(err, MOERT_E_MISSING, "required", "%s: field \"%s%s\" is required", source->where,
                                  source->prefix, f->key);
            continue;
        }
        status = read_value(value, f, source, ret, err);
        if (status)
            return status;
        if (f->bit)
            *(uint32_t *)(void *)((char *)ret + f->bits_offset) |= f->bit;
    }
    return MOERT_OK;
}
