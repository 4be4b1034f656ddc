/* core/io/json_fields.h: a JSON object read into a struct by a table of its keys. Used for layer descriptions
 * (layer_json.c) and described devices (core/oracle/describe.c).
 *
 * Unknown keys are refused with the nearest known one, duplicates are refused, numbers are range-checked; every error
 * names the source, the key with its path ("router.kind"), the value found and what is expected. JSON null counts as
 * "not given". */
#ifndef MOERT_IO_JSON_FIELDS_H
#define MOERT_IO_JSON_FIELDS_H

#include <moert/base.h>

#include <jansson.h>

/* Names of an enum's values; `allowed` is a bit set of the values that this key takes (all enums here have < 32). */
struct moert_json_names {
    const char *(*name)(uint32_t value);
    int (*from_name)(const char *name, uint32_t *ret);
    uint32_t allowed;
    uint32_t count;      /* values to list in messages: 0..count-1 */
    uint32_t lower_case; /* written in lower case (dtypes: "bf16") */
};

enum moert_json_kind {
    MOERT_JSON_STRING, /* char[room] */
    MOERT_JSON_NAME,   /* uint32_t, by `names` */
    MOERT_JSON_BOOL,   /* uint32_t 0 or 1 */
    MOERT_JSON_I32,
    MOERT_JSON_U32,
    MOERT_JSON_U64,
    MOERT_JSON_DOUBLE,   /* finite */
    MOERT_JSON_POSITIVE, /* double above 0 */
    MOERT_JSON_OBJECT,   /* nested struct, by `fields` */
    MOERT_JSON_OTHER     /* by `read` */
};

enum {
    MOERT_JSON_F_REQUIRED = 1u << 0,
    MOERT_JSON_F_ALWAYS = 1u << 1 /* written even when it has its initial value */
};

struct moert_json_source {
    const char *where;  /* "cfg.json" */
    const char *prefix; /* "" or "router." */
};

struct moert_json_field {
    const char *key; /* NULL ends a table */
    enum moert_json_kind kind;
    uint32_t flags;
    size_t offset;
    size_t room;      /* STRING */
    const char *code; /* of a bad value; NULL: "field" */
    int64_t min, max; /* integers */
    const struct moert_json_names *names;
    const struct moert_json_field *fields;
    uint32_t bit; /* when given, sets this bit of the uint32_t at bits_offset */
    size_t bits_offset;
    moert_status_t (*read)(const json_t *value, const struct moert_json_field *field,
                           const struct moert_json_source *source, void *ret, struct moert_error *err);
};

/* Text -> object. Errors: st-json (syntax, not an object), field (duplicate key, number beyond 64 bits). The caller
 * releases *ret with json_decref. */
moert_status_t moert_json_load(const char *json, const char *where, json_t **ret, struct moert_error *err);

/* Fills the fields of `ret` that the object gives and leaves the others alone. On failure `ret` may be partly filled.
 */
moert_status_t moert_json_read(const json_t *object, const struct moert_json_field *fields,
                               const struct moert_json_source *source, void *ret, struct moert_error *err);

/* `WHERE: field "router.kind" is VALUE; expected EXPECTED` under `field->code`. */
moert_status_t moert_json_bad(const json_t *value, const struct moert_json_field *field,
                              const struct moert_json_source *source, const char *expected, struct moert_error *err);

#endif
