/* core/io/safetensors.c: reads safetensors files: a JSON header names the tensors, the data follow in one piece. The
 * file is untrusted, so every length, offset, dtype and shape is checked here, once, before anything points into it
 * (layer.md 9.1). Memory used is bounded by the header's length, which is bounded by the file's. */
#include "config.h"

#include <moert/safetensors.h>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/io/safetensors.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Limit of the format's own library. */
#define HEADER_MAX 100000000u
#define PREFIX     8u /* bytes of the header length */

struct metadata {
    const char *key, *value;
};

struct moert_safetensors {
    char *path;
    struct moert_mapping mapping;
    json_t *header;                  /* owns every name and metadata string */
    struct moert_st_tensor *tensors; /* by offset */
    const struct moert_st_tensor **by_name;
    struct metadata *metadata; /* by key */
    uint64_t count, metadata_count;
};

/* What is needed while the header is taken apart. */
struct parse {
    moert_safetensors_t *file;
    uint64_t data_bytes; /* bytes after the header */
    struct moert_error *err;
};

static moert_status_t bad(const struct parse *p, const char *code, const char *tensor, const char *what)
{
    return moert_fail(p->err, MOERT_E_FILE, code, "%s: tensor \"%.200s\": %s", p->file->path, tensor, what);
}

static int tensor_before(const void *a, const void *b)
{
    const struct moert_st_tensor *x = a, *y = b;
    uintptr_t ox = (uintptr_t)x->data, oy = (uintptr_t)y->data;

    if (ox != oy)
        return ox < oy ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1; /* empty tensors in front of the one that starts there */
    return strcmp(x->name, y->name);
}

static int name_before(const void *a, const void *b)
{
    return strcmp((*(const struct moert_st_tensor *const *)a)->name, (*(const struct moert_st_tensor *const *)b)->name);
}

static int key_before(const void *a, const void *b)
{
    return strcmp(((const struct metadata *)a)->key, ((const struct metadata *)b)->key);
}

/* Names of the format exactly: moert_dtype_from_name alone would accept aliases. */
static int exact_dtype(const char *name, moert_dtype_t *ret)
{
    return !moert_dtype_from_name(name, ret) && !strcmp(moert_dtype_name(*ret), name);
}

static moert_status_t parse_dtype(const struct parse *p, const char *name, const json_t *info,
                                  struct moert_st_tensor *t)
{
    const json_t *v = json_object_get(info, "dtype");

    if (!v)
        return bad(p, "st-header", name, "\"dtype\" is missing");
    if (!json_is_string(v))
        return bad(p, "st-header", name, "\"dtype\" is not a string");
    if (!exact_dtype(json_string_value(v), &t->dtype))
        return moert_fail(
            p->err, MOERT_E_FILE, "st-header",
            "%s: tensor \"%.200s\": unknown dtype \"%.40s\"; known: F64, F32, BF16, F16, F8_E4M3, F8_E5M2, "
            "F8_E8M0, U8, I8, U16, I16, U32, I32, U64, I64, BOOL",
            p->file->path, name, json_string_value(v));
    return MOERT_OK;
}

static moert_status_t parse_shape(const struct parse *p, const char *name, const json_t *info,
                                  struct moert_st_tensor *t)
{
    const json_t *v = json_object_get(info, "shape");

    if (!v)
        return bad(p, "st-header", name, "\"shape\" is missing");
    if (!json_is_array(v))
        return bad(p, "st-header", name, "\"shape\" is not an array");
    if (json_array_size(v) > MOERT_ST_MAX_RANK)
        return moert_fail(p->err, MOERT_E_FILE, "st-header", "%s: tensor \"%.200s\" has %zu dimensions; at most %d",
                          p->file->path, name, json_array_size(v), MOERT_ST_MAX_RANK);
    t->rank = (uint32_t)json_array_size(v);
    for (uint32_t i = 0; i < t->rank; i++) {
        const json_t *n = json_array_get(v, i);
        if (!json_is_integer(n) || json_integer_value(n) < 0)
            return moert_fail(p->err, MOERT_E_FILE, "st-header",
                              "%s: tensor \"%.200s\": shape[%u] is not a whole number from 0", p->file->path, name, i);
        t->shape[i] = (uint64_t)json_integer_value(n);
    }
    return MOERT_OK;
}

static moert_status_t parse_offsets(const struct parse *p, const char *name, const json_t *info,
                                    struct moert_st_tensor *t)
{
    const json_t *v = json_object_get(info, "data_offsets");
    const uint8_t *data = p->file->mapping.data + (p->file->mapping.size - p->data_bytes);
    uint64_t begin, end, elements, bytes;

    if (!v)
        return bad(p, "st-header", name, "\"data_offsets\" is missing");
    if (!json_is_array(v) || json_array_size(v) != 2 || !json_is_integer(json_array_get(v, 0)) ||
        !json_is_integer(json_array_get(v, 1)) || json_integer_value(json_array_get(v, 0)) < 0 ||
        json_integer_value(json_array_get(v, 1)) < 0)
        return bad(p, "st-offsets", name, "\"data_offsets\" is not two whole numbers from 0");
    begin = (uint64_t)json_integer_value(json_array_get(v, 0));
    end = (uint64_t)json_integer_value(json_array_get(v, 1));
    if (begin > end)
        return moert_fail(p->err, MOERT_E_FILE, "st-offsets",
                          "%s: tensor \"%.200s\": data_offsets [%llu,%llu] run backwards", p->file->path, name,
                          (unsigned long long)begin, (unsigned long long)end);
    if (end > p->data_bytes)
        return moert_fail(p->err, MOERT_E_FILE, "st-offsets",
                          "%s: tensor \"%.200s\": data_offsets [%llu,%llu] exceed the %llu bytes of data",
                          p->file->path, name, (unsigned long long)begin, (unsigned long long)end,
                          (unsigned long long)p->data_bytes);
    if (!moert_product(t->shape, t->rank, &elements) || !moert_mul(elements, moert_dtype_size(t->dtype), &bytes))
        return bad(p, "st-offsets", name, "shape times element size exceeds 64 bits");
    if (bytes != end - begin)
        return moert_fail(p->err, MOERT_E_FILE, "st-offsets",
                          "%s: tensor \"%.200s\": shape and dtype need %llu bytes, data_offsets [%llu,%llu] hold %llu",
                          p->file->path, name, (unsigned long long)bytes, (unsigned long long)begin,
                          (unsigned long long)end, (unsigned long long)(end - begin));
    t->data = data + begin;
    t->bytes = bytes;
    return MOERT_OK;
}

static moert_status_t parse_tensor(const struct parse *p, const char *name, const json_t *info,
                                   struct moert_st_tensor *t)
{
    moert_status_t status;

    if (!json_is_object(info))
        return bad(p, "st-header", name, "entry is not an object");
    t->name = name;
    status = parse_dtype(p, name, info, t);
    if (!status)
        status = parse_shape(p, name, info, t);
    return status ? status : parse_offsets(p, name, info, t);
}

static moert_status_t parse_metadata(const struct parse *p, json_t *object)
{
    moert_safetensors_t *f = p->file;
    const char *key;
    json_t *value;

    if (!json_is_object(object))
        return moert_fail(p->err, MOERT_E_FILE, "st-header", "%s: __metadata__ is not an object", f->path);
    f->metadata = calloc(json_object_size(object) + 1, sizeof(*f->metadata));
    if (!f->metadata)
        return moert_fail(p->err, MOERT_E_NOMEM, "host-memory", "%s: no memory for the metadata", f->path);
    json_object_foreach(object, key, value)
    {
        if (!json_is_string(value))
            return moert_fail(p->err, MOERT_E_FILE, "st-header", "%s: __metadata__ \"%.200s\" is not a string", f->path,
                              key);
        f->metadata[f->metadata_count++] = (struct metadata){key, json_string_value(value)};
    }
    qsort(f->metadata, f->metadata_count, sizeof(*f->metadata), key_before);
    return MOERT_OK;
}

/* The tensors, in order, must cover the data exactly. */
static moert_status_t check_cover(const struct parse *p)
{
    const moert_safetensors_t *f = p->file;
    const uint8_t *data = f->mapping.data + (f->mapping.size - p->data_bytes);
    const struct moert_st_tensor *before = NULL;
    uint64_t at = 0;

    for (uint64_t i = 0; i < f->count; i++) {
        const struct moert_st_tensor *t = &f->tensors[i];
        uint64_t begin = (uint64_t)((const uint8_t *)t->data - data);
        if (begin < at)
            return moert_fail(p->err, MOERT_E_FILE, "st-offsets",
                              "%s: tensor \"%.200s\" begins at %llu, inside \"%.200s\" that ends at %llu", f->path,
                              t->name, (unsigned long long)begin, before ? before->name : "", (unsigned long long)at);
        if (begin > at)
            return moert_fail(p->err, MOERT_E_FILE, "st-offsets",
                              "%s: %llu bytes before tensor \"%.200s\" (offset %llu) belong to no tensor", f->path,
                              (unsigned long long)(begin - at), t->name, (unsigned long long)begin);
        at += t->bytes;
        before = t;
    }
    if (at != p->data_bytes)
        return moert_fail(p->err, MOERT_E_FILE, "st-offsets",
                          "%s: the last %llu of %llu bytes of data belong to no tensor", f->path,
                          (unsigned long long)(p->data_bytes - at), (unsigned long long)p->data_bytes);
    return MOERT_OK;
}

static moert_status_t parse_header(const struct parse *p)
{
    moert_safetensors_t *f = p->file;
    size_t entries = json_object_size(f->header);
    moert_status_t status = MOERT_OK;
    const char *name;
    json_t *value;

    f->tensors = calloc(entries + 1, sizeof(*f->tensors));
    f->by_name = calloc(entries + 1, sizeof(*f->by_name));
    if (!f->tensors || !f->by_name)
        return moert_fail(p->err, MOERT_E_NOMEM, "host-memory", "%s: no memory for %zu tensors", f->path, entries);
    json_object_foreach(f->header, name, value)
    {
        if (!strcmp(name, "__metadata__"))
            status = parse_metadata(p, value);
        else
            status = parse_tensor(p, name, value, &f->tensors[f->count++]);
        if (status)
            return status;
    }
    qsort(f->tensors, f->count, sizeof(*f->tensors), tensor_before);
    for (uint64_t i = 0; i < f->count; i++)
        f->by_name[i] = &f->tensors[i];
    qsort(f->by_name, f->count, sizeof(const struct moert_st_tensor *), name_before);
    return check_cover(p);
}

/* Reads the length and the JSON text. */
static moert_status_t load_header(moert_safetensors_t *f, struct parse *p)
{
    const struct moert_mapping *m = &f->mapping;
    uint64_t length = 0;
    json_error_t json;

    if (m->size < PREFIX)
        return moert_fail(p->err, MOERT_E_FILE, "st-header",
                          "%s: file has %llu bytes; a safetensors file has at least 10", f->path,
                          (unsigned long long)m->size);
    for (unsigned i = 0; i < PREFIX; i++)
        length |= (uint64_t)m->data[i] << (8 * i);
    if (length > HEADER_MAX && length <= m->size - PREFIX)
        return moert_fail(p->err, MOERT_E_FILE, "st-header", "%s: header length %llu exceeds the limit of %u bytes",
                          f->path, (unsigned long long)length, HEADER_MAX);
    if (length > m->size - PREFIX)
        return moert_fail(p->err, MOERT_E_FILE, "st-header", "%s: header length %llu exceeds the file (%llu bytes)",
                          f->path, (unsigned long long)length, (unsigned long long)m->size);
    if (!length)
        return moert_fail(p->err, MOERT_E_FILE, "st-header", "%s: header length is 0; a JSON object is needed",
                          f->path);
    f->header = json_loadb((const char *)m->data + PREFIX, length, JSON_REJECT_DUPLICATES, &json);
    if (!f->header) {
        if (json_error_code(&json) == json_error_duplicate_key)
            return moert_fail(p->err, MOERT_E_FILE, "st-duplicate", "%s: header: %s; a name may occur once", f->path,
                              json.text);
        if (json_error_code(&json) == json_error_out_of_memory)
            return moert_fail(p->err, MOERT_E_NOMEM, "host-memory", "%s: no memory for the header", f->path);
        return moert_fail(p->err, MOERT_E_FILE, "st-json", "%s: header is not JSON: %s (byte %d)", f->path, json.text,
                          json.position);
    }
    if (!json_is_object(f->header))
        return moert_fail(p->err, MOERT_E_FILE, "st-json", "%s: header is not a JSON object", f->path);
    p->data_bytes = m->size - PREFIX - length;
    return MOERT_OK;
}

moert_status_t moert_safetensors_open(const char *path, uint32_t flags, moert_safetensors_t **ret,
                                      struct moert_error *err)
{
    moert_safetensors_t *f;
    struct parse p;
    moert_status_t status;

    if (!path || !ret)
        return moert_fail_null(err, path ? "ret" : "path");
    if (flags & ~(uint32_t)MOERT_ST_OPEN_READ)
        return moert_fail(err, MOERT_E_USAGE, "flag", "unknown flag bits %#x in moert_safetensors_open", flags);
    f = calloc(1, sizeof(*f));
    if (f)
        f->path = strdup(path);
    if (!f || !f->path) {
        free(f);
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "%s: no memory", path);
    }
    p = (struct parse){f, 0, err};
    status = moert_file_map(path, flags & MOERT_ST_OPEN_READ, &f->mapping, err);
    if (!status)
        status = load_header(f, &p);
    if (!status)
        status = parse_header(&p);
    if (status) {
        moert_safetensors_close(f);
        return status;
    }
    *ret = f;
    return MOERT_OK;
}

void moert_safetensors_close(moert_safetensors_t *f)
{
    if (!f)
        return;
    json_decref(f->header);
    if (f->mapping.data)
        moert_file_unmap(&f->mapping);
    free(f->tensors);
    free(f->by_name);
    free(f->metadata);
    free(f->path);
    free(f);
}

const char *moert_safetensors_path(const moert_safetensors_t *file)
{
    return file->path;
}

uint64_t moert_safetensors_count(const moert_safetensors_t *file)
{
    return file->count;
}

const struct moert_st_tensor *moert_safetensors_at(const moert_safetensors_t *file, uint64_t index)
{
    return index < file->count ? &file->tensors[index] : NULL;
}

const struct moert_st_tensor *moert_safetensors_find(const moert_safetensors_t *file, const char *name)
{
    struct moert_st_tensor probe = {.name = name};
    const struct moert_st_tensor *key = &probe, *const * found;

    found = bsearch(&key, file->by_name, file->count, sizeof(key), name_before);
    return found ? *found : NULL;
}

const char *moert_safetensors_metadata(const moert_safetensors_t *file, const char *key)
{
    struct metadata probe = {key, NULL}, *found = NULL;

    if (file->metadata_count)
        found = bsearch(&probe, file->metadata, file->metadata_count, sizeof(probe), key_before);
    return found ? found->value : NULL;
}

const char *moert_safetensors_metadata_key(const moert_safetensors_t *file, uint64_t index)
{
    return index < file->metadata_count ? file->metadata[index].key : NULL;
}
