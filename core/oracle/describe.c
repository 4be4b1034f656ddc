/* core/oracle/describe.c: a device that is not here, read from JSON (oracle.md 6). */
#include "config.h"

#include <moert/oracle.h>

#include "core/base/error.h"
#include "core/io/json_fields.h"

#include <stdio.h>
#include <string.h>

/* What the file says beyond the description itself. */
struct described {
    struct moert_device_desc desc;
    uint32_t schema, count;
};

static const char *kind_name(uint32_t v)
{
    static const char *const names[] = {"cpu", "gpu", "accelerator"};
    return v < 3 ? names[v] : NULL;
}

static int kind_from_name(const char *name, uint32_t *ret)
{
    for (uint32_t v = 0; v < 3; v++)
        if (!strcmp(kind_name(v), name)) {
            *ret = v;
            return 0;
        }
    return -1;
}

static const struct moert_json_names kinds = {kind_name, kind_from_name, 7, 3, 0};

/* ["lutb_mma","fp8"] -> "lutb_mma fp8" */
static moert_status_t read_features(const json_t *value, const struct moert_json_field *field,
                                    const struct moert_json_source *source, void *ret, struct moert_error *err)
{
    struct described *d = ret;
    size_t used = 0;

    if (!json_is_array(value))
        return moert_json_bad(value, field, source, "a list of words", err);
    for (size_t i = 0; i < json_array_size(value); i++) {
        const char *word = json_string_value(json_array_get(value, i));
        size_t n = word ? strlen(word) : 0;
        if (!n || strpbrk(word, " \t\r\n"))
            return moert_json_bad(value, field, source, "a list of words without blanks", err);
        if (used + n + 2 > sizeof(d->desc.features))
            return moert_json_bad(value, field, source, "at most 511 bytes in all", err);
        used +=
            (size_t)snprintf(d->desc.features + used, sizeof(d->desc.features) - used, "%s%s", used ? " " : "", word);
    }
    return MOERT_OK;
}

static moert_status_t read_flags(const json_t *value, const struct moert_json_field *field,
                                 const struct moert_json_source *source, void *ret, struct moert_error *err)
{
    static const struct {
        const char *name;
        uint32_t flag;
    } flags[] = {{"binary64", MOERT_DEVICE_F_BINARY64}, {"host-memory", MOERT_DEVICE_F_HOST_MEMORY}};
    struct described *d = ret;

    if (!json_is_array(value))
        return moert_json_bad(value, field, source, "a list of \"binary64\", \"host-memory\"", err);
    d->desc.flags = 0;
    for (size_t i = 0; i < json_array_size(value); i++) {
        const char *word = json_string_value(json_array_get(value, i));
        uint32_t flag = 0;
        for (size_t j = 0; word && j < sizeof(flags) / sizeof(*flags); j++)
            if (!strcmp(flags[j].name, word))
                flag = flags[j].flag;
        if (!flag)
            return moert_json_bad(value, field, source, "a list of \"binary64\", \"host-memory\"", err);
        d->desc.flags |= flag;
    }
    return MOERT_OK;
}

#define AT(f) offsetof(struct described, desc.f)
#define TEXT(f, ...)                                                                                                   \
    {                                                                                                                  \
        .key = #f, .kind = MOERT_JSON_STRING, .offset = AT(f), .room = sizeof(((struct described *)0)->desc.f),        \
        __VA_ARGS__                                                                                                    \
    }
#define BYTES(f)                                                                                                       \
    {                                                                                                                  \
        .key = #f, .kind = MOERT_JSON_U64, .offset = AT(f), .max = INT64_MAX                                           \
    }
#define REQUIRED .flags = MOERT_JSON_F_REQUIRED

static const struct moert_json_field device_fields[] = {
    {.key = "schema",
     .kind = MOERT_JSON_U32,
     .offset = offsetof(struct described, schema),
     .min = 1,
     .max = 1,
     REQUIRED},
    TEXT(id, REQUIRED),
    TEXT(driver, REQUIRED),
    TEXT(arch, REQUIRED),
    TEXT(name, ),
    TEXT(uuid, ),
    TEXT(pci, ),
    TEXT(runtime, ),
    BYTES(memory_total),
    BYTES(memory_free),
    BYTES(max_buffer),
    BYTES(alignment),
    {.key = "compute_units", .kind = MOERT_JSON_U32, .offset = AT(compute_units), .max = UINT32_MAX},
    {.key = "kind", .kind = MOERT_JSON_NAME, .offset = AT(kind), .names = &kinds},
    {.key = "features", .kind = MOERT_JSON_OTHER, .read = read_features},
    {.key = "flags", .kind = MOERT_JSON_OTHER, .read = read_flags},
    /* Equal devices answer alike, so one candidate stands for all of them. */
    {.key = "count", .kind = MOERT_JSON_U32, .offset = offsetof(struct described, count), .min = 1, .max = 65536},
    {.key = NULL},
};

moert_status_t moert_device_desc_parse(const char *json, const char *where, struct moert_device_desc *ret,
                                       struct moert_error *err)
{
    struct moert_json_source source = {where ? where : "device description", ""};
    /* A GPU with binary64 unless the file says otherwise. */
    struct described d = {.desc = {.size = sizeof(d.desc), .kind = MOERT_DEVICE_GPU, .flags = MOERT_DEVICE_F_BINARY64}};
    json_t *root = NULL;
    moert_status_t status;

    if (!json || !ret)
        return moert_fail_null(err, json ? "ret" : "json");
    status = moert_json_load(json, source.where, &root, err);
    if (!status)
        status = moert_json_read(root, device_fields, &source, &d, err);
    json_decref(root);
    if (status)
        return status;
    if (!d.desc.id[0] || strchr(d.desc.id, '@') || !d.desc.driver[0] || !d.desc.arch[0])
        return moert_fail(err, MOERT_E_VALUE, "field",
                          "%s: id \"%s\", driver \"%s\", arch \"%s\"; none may be empty and the id has no @",
                          source.where, d.desc.id, d.desc.driver, d.desc.arch);
    if (d.desc.memory_total && d.desc.memory_free > d.desc.memory_total)
        return moert_fail(err, MOERT_E_VALUE, "field", "%s: memory_free %llu exceeds memory_total %llu", source.where,
                          (unsigned long long)d.desc.memory_free, (unsigned long long)d.desc.memory_total);
    *ret = d.desc;
    return MOERT_OK;
}
