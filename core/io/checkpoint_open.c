/* core/io/checkpoint_open.c: opens a checkpoint directory or a layer file: maps every shard, indexes the tensors by
 * name, lists the layers that have experts. */
#include "config.h"

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/text.h"
#include "core/io/checkpoint.h"
#include "core/io/json_fields.h"
#include "core/io/safetensors.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SINGLE_FILE "model.safetensors"
#define INDEX_FILE  "model.safetensors.index.json"

static moert_status_t no_memory(const moert_checkpoint_t *c, struct moert_error *err)
{
    return moert_fail(err, MOERT_E_NOMEM, "host-memory", "%s: no memory", c->path);
}

/* ------------------------------------------------------------------ tensors by name */

static int name_before(const void *a, const void *b)
{
    const struct moert_named_tensor *x = a, *y = b;
    int order = strcmp(x->tensor->name, y->tensor->name);
    return order ? order : (x->file > y->file) - (x->file < y->file);
}

uint64_t moert_checkpoint_lower_bound(const moert_checkpoint_t *c, const char *prefix)
{
    uint64_t low = 0, high = c->tensor_count;

    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (strcmp(c->tensors[middle].tensor->name, prefix) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct moert_st_tensor *moert_checkpoint_tensor(const moert_checkpoint_t *c, const char *name)
{
    uint64_t i = moert_checkpoint_lower_bound(c, name);

    return i < c->tensor_count && !strcmp(c->tensors[i].tensor->name, name) ? c->tensors[i].tensor : NULL;
}

moert_status_t moert_checkpoint_missing(const moert_checkpoint_t *c, const char *name, struct moert_error *err)
{
    const char **list = calloc(c->tensor_count + 1, sizeof(*list)), *nearest = NULL;
    uint64_t count = c->tensor_count < 50000 ? c->tensor_count : 50000; /* bounds the search in hostile files */
    moert_status_t status;

    for (uint64_t i = 0; list && i < count; i++)
        list[i] = c->tensors[i].tensor->name;
    if (list)
        nearest = moert_text_nearest(name, list);
    status = moert_fail(err, MOERT_E_MISSING, "tensor-missing", "%s: no tensor \"%.300s\"%s%.300s%s", c->path, name,
                        nearest ? "; nearest: \"" : "", nearest ? nearest : "", nearest ? "\"" : "");
    free(list);
    return status;
}

moert_status_t moert_checkpoint_get(const moert_checkpoint_t *c, const char *name, moert_dtype_t dtype, uint32_t rank,
                                    const uint64_t *shape, const struct moert_st_tensor **ret, struct moert_error *err)
{
    const struct moert_st_tensor *t = moert_checkpoint_tensor(c, name);
    moert_status_t status;

    if (!t)
        return moert_checkpoint_missing(c, name, err);
    status = moert_st_check(c->path, t, dtype, rank, shape, err);
    if (!status)
        *ret = t;
    return status;
}

static moert_status_t index_tensors(moert_checkpoint_t *c, struct moert_error *err)
{
    uint64_t total = 0, at = 0;

    for (uint32_t f = 0; f < c->file_count; f++)
        total += moert_safetensors_count(c->files[f]);
    c->tensors = calloc(total + 1, sizeof(*c->tensors));
    if (!c->tensors)
        return no_memory(c, err);
    for (uint32_t f = 0; f < c->file_count; f++)
        for (uint64_t i = 0; i < moert_safetensors_count(c->files[f]); i++)
            c->tensors[at++] = (struct moert_named_tensor){moert_safetensors_at(c->files[f], i), f};
    qsort(c->tensors, total, sizeof(*c->tensors), name_before);
    c->tensor_count = total;
    for (uint64_t i = 1; i < total; i++)
        if (!strcmp(c->tensors[i - 1].tensor->name, c->tensors[i].tensor->name))
            return moert_fail(err, MOERT_E_FILE, "st-duplicate", "%s: tensor \"%.300s\" is in %s and in %s", c->path,
                              c->tensors[i].tensor->name, moert_safetensors_path(c->files[c->tensors[i - 1].file]),
                              moert_safetensors_path(c->files[c->tensors[i].file]));
    return MOERT_OK;
}

/* ------------------------------------------------------------------ files of a directory */

static moert_status_t open_file(moert_checkpoint_t *c, const char *name, struct moert_error *err)
{
    struct moert_text path = {0};
    moert_safetensors_t **grown = realloc(c->files, (c->file_count + 1) * sizeof(*grown));
    moert_status_t status;

    if (!grown)
        return no_memory(c, err);
    c->files = grown;
    moert_text_add(&path, "%s/%s", c->path, name);
    if (path.failed)
        status = no_memory(c, err);
    else if (access(path.text, F_OK) && errno == ENOENT)
        status =
            moert_fail(err, MOERT_E_MISSING, "file-missing", "%s: %s is named by the index and absent", c->path, name);
    else
        status = moert_safetensors_open(path.text, 0, &c->files[c->file_count], err);
    if (!status)
        c->file_count++;
    moert_text_free(&path);
    return status;
}

static int string_before(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A shard is a file of the directory itself: the index may not lead out of it. */
static moert_status_t check_weight_map(const moert_checkpoint_t *c, json_t *map, const char **names, size_t *ret_count,
                                       struct moert_error *err)
{
    const char *tensor;
    json_t *value;
    size_t n = 0, kept = 0;

    json_object_foreach(map, tensor, value)
    {
        const char *file = json_string_value(value);
        if (!file || !*file || strchr(file, '/') || *file == '.')
            return moert_fail(err, MOERT_E_FILE, "st-json",
                              "%s/" INDEX_FILE ": \"%.300s\" is in %s%.200s; a plain file name is expected", c->path,
                              tensor, file ? "" : "no file", file ? file : "");
        names[n++] = file;
    }
    qsort(names, n, sizeof(*names), string_before);
    for (size_t i = 0; i < n; i++)
        if (!i || strcmp(names[kept - 1], names[i]))
            names[kept++] = names[i];
    *ret_count = kept;
    return MOERT_OK;
}

static moert_status_t check_promises(const moert_checkpoint_t *c, json_t *map, struct moert_error *err)
{
    const char *tensor;
    json_t *value;

    json_object_foreach(map, tensor, value)
    {
        uint64_t i = moert_checkpoint_lower_bound(c, tensor);
        const char *path, *slash;
        if (i == c->tensor_count || strcmp(c->tensors[i].tensor->name, tensor))
            return moert_fail(err, MOERT_E_MISSING, "tensor-missing",
                              "%s/" INDEX_FILE ": tensor \"%.300s\" is not in %.200s", c->path, tensor,
                              json_string_value(value));
        path = moert_safetensors_path(c->files[c->tensors[i].file]);
        slash = strrchr(path, '/');
        if (strcmp(slash ? slash + 1 : path, json_string_value(value)))
            return moert_fail(err, MOERT_E_FILE, "tensor-missing",
                              "%s/" INDEX_FILE ": tensor \"%.300s\" is in %s, not in %.200s", c->path, tensor, path,
                              json_string_value(value));
    }
    return MOERT_OK;
}

static moert_status_t open_shards(moert_checkpoint_t *c, const char *index_text, struct moert_error *err)
{
    json_t *index = NULL, *map;
    const char **names = NULL;
    size_t count = 0;
    moert_status_t status = moert_json_load(index_text, INDEX_FILE, &index, err);

    if (status)
        return moert_prefix(err, status, "%s/", c->path);
    map = json_object_get(index, "weight_map");
    if (!json_is_object(map) || !json_object_size(map)) {
        status = moert_fail(err, MOERT_E_FILE, "st-json",
                            "%s/" INDEX_FILE ": \"weight_map\" is not an object with entries", c->path);
        goto out;
    }
    names = calloc(json_object_size(map), sizeof(*names));
    status = names ? check_weight_map(c, map, names, &count, err) : no_memory(c, err);
    for (size_t i = 0; i < count && !status; i++)
        status = open_file(c, names[i], err);
    if (!status)
        status = index_tensors(c, err);
    if (!status)
        status = check_promises(c, map, err);
out:
    free(names);
    json_decref(index);
    return status;
}

/* One whole file as text. Missing: *ret NULL when `optional`. */
static moert_status_t read_text(const moert_checkpoint_t *c, const char *name, int optional, char **ret,
                                struct moert_error *err)
{
    struct moert_text path = {0};
    struct moert_mapping m;
    moert_status_t status;

    *ret = NULL;
    moert_text_add(&path, "%s/%s", c->path, name);
    if (path.failed)
        return no_memory(c, err);
    if (optional && access(path.text, F_OK) && (errno == ENOENT || errno == ENOTDIR)) {
        moert_text_free(&path);
        return MOERT_OK;
    }
    status = moert_file_map(path.text, 1, &m, err);
    moert_text_free(&path);
    if (status)
        return status;
    *ret = calloc(1, m.size + 1);
    if (*ret)
        memcpy(*ret, m.data, m.size);
    moert_file_unmap(&m);
    return *ret ? MOERT_OK : no_memory(c, err);
}

static moert_status_t open_files(moert_checkpoint_t *c, struct moert_error *err)
{
    struct moert_text single = {0};
    char *index = NULL;
    moert_status_t status = read_text(c, INDEX_FILE, 1, &index, err);
    int exists;

    if (status)
        return status;
    if (index) {
        status = open_shards(c, index, err);
        free(index);
        return status;
    }
    moert_text_add(&single, "%s/" SINGLE_FILE, c->path);
    exists = !single.failed && !access(single.text, F_OK);
    moert_text_free(&single);
    if (!exists)
        return moert_fail(err, MOERT_E_MISSING, "index-missing", "%s has neither " SINGLE_FILE " nor " INDEX_FILE,
                          c->path);
    status = open_file(c, SINGLE_FILE, err);
    return status ? status : index_tensors(c, err);
}

/* ------------------------------------------------------------------ layers */

/* Text models call the decoder "model."; multimodal ones put it below another name. */
static void find_base(moert_checkpoint_t *c)
{
    static const char *const bases[] = {"model.", "language_model.model.", "model.language_model.", ""};

    for (size_t i = 0; i < sizeof(bases) / sizeof(*bases); i++) {
        char prefix[96];
        uint64_t at;
        snprintf(c->base, sizeof(c->base), "%s", bases[i]);
        snprintf(prefix, sizeof(prefix), "%slayers.", bases[i]);
        at = moert_checkpoint_lower_bound(c, prefix);
        if (at < c->tensor_count && !strncmp(c->tensors[at].tensor->name, prefix, strlen(prefix)))
            return;
    }
    snprintf(c->base, sizeof(c->base), "model.");
}

static int number_before(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Number of the layer when `name` is a tensor of its experts, else -1. */
static int64_t expert_layer(const moert_checkpoint_t *c, const char *prefix, const char *name)
{
    char *end;
    unsigned long number;

    name += strlen(prefix);
    if (*name < '0' || *name > '9')
        return -1;
    errno = 0;
    number = strtoul(name, &end, 10);
    if (errno || number > INT32_MAX || *end != '.' || strncmp(end + 1, c->family->experts, strlen(c->family->experts)))
        return -1;
    return (int64_t)number;
}

static moert_status_t list_layers(moert_checkpoint_t *c, struct moert_error *err)
{
    char prefix[96];
    uint32_t kept = 0;

    snprintf(prefix, sizeof(prefix), "%slayers.", c->base);
    c->layers = calloc(c->tensor_count + 1, sizeof(*c->layers));
    if (!c->layers)
        return no_memory(c, err);
    for (uint64_t i = moert_checkpoint_lower_bound(c, prefix); i < c->tensor_count; i++) {
        int64_t number;
        if (strncmp(c->tensors[i].tensor->name, prefix, strlen(prefix)))
            break;
        number = expert_layer(c, prefix, c->tensors[i].tensor->name);
        if (number >= 0 && (!c->layer_count || c->layers[c->layer_count - 1] != (uint32_t)number))
            c->layers[c->layer_count++] = (uint32_t)number;
    }
    qsort(c->layers, c->layer_count, sizeof(*c->layers), number_before);
    for (uint32_t i = 0; i < c->layer_count; i++)
        if (!i || c->layers[kept - 1] != c->layers[i])
            c->layers[kept++] = c->layers[i];
    c->layer_count = kept;
    return MOERT_OK;
}

/* ------------------------------------------------------------------ public */

static moert_status_t begin(const char *path, const struct moert_checkpoint_options *options, moert_checkpoint_t **ret,
                            struct moert_error *err)
{
    moert_checkpoint_t *c;
    moert_status_t status = MOERT_OK;

    if (options)
        status = moert_check_size(err, "moert_checkpoint_options", options->size, sizeof(*options));
    if (status)
        return status;
    c = calloc(1, sizeof(*c));
    if (!c || !(c->path = strdup(path))) {
        free(c);
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "%s: no memory", path);
    }
    c->options.fused_transposed = -1;
    if (options)
        c->options = *options;
    *ret = c;
    return MOERT_OK;
}

moert_status_t moert_checkpoint_open(const char *directory, const struct moert_checkpoint_options *options,
                                     moert_checkpoint_t **ret, struct moert_error *err)
{
    moert_checkpoint_t *c = NULL;
    moert_status_t status;

    if (!directory || !ret)
        return moert_fail_null(err, directory ? "ret" : "directory");
    status = begin(directory, options, &c, err);
    if (status)
        return status;
    status = moert_checkpoint_read_config(c, err);
    if (!status)
        status = open_files(c, err);
    if (!status) {
        find_base(c);
        status = list_layers(c, err);
    }
    if (status) {
        moert_checkpoint_close(c);
        return status;
    }
    *ret = c;
    return MOERT_OK;
}

/* The description: --config, else metadata; nothing is guessed (layer.md 9.1). */
static moert_status_t read_layer(moert_checkpoint_t *c, struct moert_error *err)
{
    const char *json = moert_safetensors_metadata(c->files[0], "moert.layer"), *where = c->path;
    struct moert_mapping m = {0};
    char *text = NULL;
    moert_status_t status = MOERT_OK;

    if (c->options.layer_config) {
        where = c->options.layer_config;
        status = moert_file_map(where, 1, &m, err);
        if (status)
            return status;
        text = calloc(1, m.size + 1);
        if (text)
            memcpy(text, m.data, m.size);
        moert_file_unmap(&m);
        if (!text)
            return no_memory(c, err);
        json = text;
    }
    if (!json)
        return moert_fail(err, MOERT_E_MISSING, "required",
                          "%s: metadata key \"moert.layer\" is required, or a description by --config", c->path);
    status = moert_layer_config_parse(json, where, &c->layer, err);
    free(text);
    return status;
}

static moert_status_t layer_file_map(moert_checkpoint_t *c, struct moert_error *err)
{
    const struct moert_st_tensor *t = moert_checkpoint_tensor(c, "expert_map");
    uint64_t shape[] = {c->layer.num_experts};
    int32_t *map;
    moert_status_t status;

    if (!t || c->layer.expert_map)
        return MOERT_OK;
    status = moert_st_check(c->path, t, MOERT_I32, 1, shape, err);
    if (status)
        return status;
    map = malloc(t->bytes ? t->bytes : 1);
    if (!map)
        return no_memory(c, err);
    memcpy(map, t->data, t->bytes);
    c->layer.expert_map = map;
    c->layer.expert_map_length = c->layer.num_experts;
    return MOERT_OK;
}

moert_status_t moert_checkpoint_open_layer(const char *file, const struct moert_checkpoint_options *options,
                                           moert_checkpoint_t **ret, struct moert_error *err)
{
    moert_checkpoint_t *c = NULL;
    moert_status_t status;

    if (!file || !ret)
        return moert_fail_null(err, file ? "ret" : "file");
    status = begin(file, options, &c, err);
    if (status)
        return status;
    c->files = calloc(1, sizeof(moert_safetensors_t *));
    c->layers = calloc(1, sizeof(*c->layers));
    status = c->files && c->layers ? moert_safetensors_open(file, 0, &c->files[0], err) : no_memory(c, err);
    if (!status) {
        c->file_count = 1;
        status = index_tensors(c, err);
    }
    if (!status)
        status = read_layer(c, err);
    if (!status)
        status = layer_file_map(c, err);
    if (!status && moert_checkpoint_tensor(c, "w13_bias") && moert_checkpoint_tensor(c, "w2_bias"))
        c->layer.has_bias = 1;
    if (!status)
        status = moert_layer_config_check(&c->layer, err);
    if (status) {
        moert_checkpoint_close(c);
        return status;
    }
    c->layer_count = 1;
    c->layers[0] = c->layer.index < 0 ? 0 : (uint32_t)c->layer.index;
    snprintf(c->model_type, sizeof(c->model_type), "layer");
    *ret = c;
    return MOERT_OK;
}

void moert_checkpoint_close(moert_checkpoint_t *c)
{
    if (!c)
        return;
    for (uint32_t i = 0; i < c->file_count; i++)
        moert_safetensors_close(c->files[i]);
    moert_layer_config_clear(&c->layer);
    json_decref(c->config);
    free(c->files);
    free(c->tensors);
    free(c->layers);
    free(c->path);
    free(c);
}

const char *moert_checkpoint_family(const moert_checkpoint_t *checkpoint)
{
    return checkpoint->model_type;
}

uint32_t moert_checkpoint_layer_count(const moert_checkpoint_t *checkpoint)
{
    return checkpoint->layer_count;
}

uint32_t moert_checkpoint_layer_number(const moert_checkpoint_t *checkpoint, uint32_t index)
{
    return index < checkpoint->layer_count ? checkpoint->layers[index] : 0;
}

uint32_t moert_checkpoint_file_count(const moert_checkpoint_t *checkpoint)
{
    return checkpoint->file_count;
}

const moert_safetensors_t *moert_checkpoint_file(const moert_checkpoint_t *checkpoint, uint32_t index)
{
    return index < checkpoint->file_count ? checkpoint->files[index] : NULL;
}
