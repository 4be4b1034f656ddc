/* tools/quantize_checkpoint.c: a checkpoint directory converted shard by shard: each shard appears whole, a journal
 * beside them remembers which are done (--resume), the other files are copied, the index and config.json come last. */
#include "config.h"

#include "tools/files.h"
#include "tools/quantize_file.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* One directory's conversion. */
struct walk {
    struct quant_run *run;
    const char *source, *destination;
    json_t *journal;    /* {"options":.., "done":{shard:{"bytes","mtime","source_bytes","rows"}}} */
    json_t *weight_map; /* tensor -> shard of the output */
    uint64_t total_size;
};

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static moert_status_t write_json(const char *directory, const char *name, const json_t *json, struct moert_error *err)
{
    char *path = tool_path_join(directory, name), *text = json_dumps(json, JSON_INDENT(2));
    moert_status_t status = path && text ? MOERT_OK : tool_no_memory(err);
    size_t length = text ? strlen(text) : 0;

    if (!status) {
        text[length] = '\n'; /* over the terminator: the length is given */
        status = tool_file_write(path, text, length + 1, err);
    }
    free(path);
    free(text);
    return status;
}

/* ------------------------------------------------------------------ journal */

static json_t *globs_json(const char *const *globs, unsigned count)
{
    json_t *array = json_array();

    for (unsigned i = 0; i < count; i++)
        json_array_append_new(array, tool_json_string(globs[i]));
    return array;
}

/* Everything that decides the bytes of a shard. */
static json_t *options_json(const struct quant_options *o)
{
    return json_pack("{s:s, s:b, s:s, s:s, s:i, s:s, s:s, s:o, s:o}", "version", moert_version(), "decode", o->decode,
                     "format", moert_scheme_name(o->scheme), "fit", moert_lutb_fit_name(o->lutb.fit), "keep_zero",
                     (int)o->lutb.keep_zero, "scale_rule", moert_scale_rule_name(o->mxfp8.rule), "dtype",
                     o->dtype ? moert_dtype_name(o->dtype) : "", "include", globs_json(o->include, o->includes),
                     "exclude", globs_json(o->exclude, o->excludes));
}

static moert_status_t journal_begin(struct walk *w, struct moert_error *err)
{
    char *path = tool_path_join(w->destination, QUANT_JOURNAL);
    json_t *old, *options = options_json(w->run->options);
    moert_status_t status = MOERT_OK;

    if (!path || !options) {
        free(path);
        json_decref(options);
        return tool_no_memory(err);
    }
    json_object_set_new(options, "nan", json_integer((json_int_t)w->run->options->mxfp8.nonfinite));
    old = w->run->options->resume ? json_load_file(path, 0, NULL) : NULL;
    if (w->run->options->resume && !access(path, F_OK) && !json_is_object(json_object_get(old, "done"))) {
        status = tool_set_error(err, MOERT_E_OUTPUT, "output-write",
                                "%s is not a journal of an unfinished run; give --force to begin again", path);
    } else if (old && !json_equal(json_object_get(old, "options"), options)) {
        status = tool_set_error(
            err, MOERT_E_VALUE, "field",
            "%s: the interrupted run had other options; repeat them, or give --force to begin again", path);
    } else if (old) {
        w->journal = json_incref(old);
    } else {
        w->journal = json_pack("{s:O, s:{}}", "options", options, "done");
        status = w->journal ? write_json(w->destination, QUANT_JOURNAL, w->journal, err) : tool_no_memory(err);
    }
    json_decref(old);
    json_decref(options);
    free(path);
    return status;
}

static json_t *stamp(const struct stat *st)
{
    return json_pack("[I, I, I]", (json_int_t)st->st_size, (json_int_t)st->st_mtim.tv_sec,
                     (json_int_t)st->st_mtim.tv_nsec);
}

/* A shard counts as done when source and output are the files that the journal saw. */
static int is_done(const struct walk *w, const char *shard, const char *from, const char *to)
{
    const json_t *entry = json_object_get(json_object_get(w->journal, "done"), shard);
    struct stat in, out;
    json_t *a, *b;
    int same;

    if (!entry || stat(from, &in) || stat(to, &out))
        return 0;
    a = stamp(&in);
    b = stamp(&out);
    same = json_equal(json_object_get(entry, "source"), a) && json_equal(json_object_get(entry, "output"), b);
    json_decref(a);
    json_decref(b);
    return same;
}

static moert_status_t journal_add(struct walk *w, const char *shard, const char *from, const char *to, json_t *rows,
                                  struct moert_error *err)
{
    struct stat in, out;

    if (stat(from, &in) || stat(to, &out))
        return tool_set_error(err, MOERT_E_OUTPUT, "output-write", "%s: %s", to, strerror(errno));
    json_object_set_new(json_object_get(w->journal, "done"), shard,
                        json_pack("{s:o, s:o, s:O}", "source", stamp(&in), "output", stamp(&out), "rows", rows));
    return write_json(w->destination, QUANT_JOURNAL, w->journal, err);
}

/* ------------------------------------------------------------------ shards */

static moert_status_t list_output(struct walk *w, const char *path, const char *shard, struct moert_error *err)
{
    moert_safetensors_t *out;
    moert_status_t status = moert_safetensors_open(path, 0, &out, err);

    if (status)
        return status;
    for (uint64_t i = 0; i < moert_safetensors_count(out); i++)
        json_object_set_new(w->weight_map, moert_safetensors_at(out, i)->name, json_string(shard));
    w->total_size += quant_bytes(out);
    moert_safetensors_close(out);
    return MOERT_OK;
}

/* Totals of a shard that an earlier run has done. */
static void recall(struct walk *w, const char *shard)
{
    const json_t *rows = json_object_get(json_object_get(json_object_get(w->journal, "done"), shard), "rows");

    for (size_t i = 0; i < json_array_size(rows); i++) {
        json_t *row = json_array_get(rows, i);
        w->run->tensors++;
        w->run->resumed++;
        w->run->unmeasured += !json_object_get(row, "squared_error");
        w->run->bytes_in += (uint64_t)json_integer_value(json_object_get(row, "bytes_in"));
        w->run->bytes_out += (uint64_t)json_integer_value(json_object_get(row, "bytes_out"));
        w->run->error += json_number_value(json_object_get(row, "squared_error"));
        w->run->signal += json_number_value(json_object_get(row, "squared_sum"));
        json_array_append(w->run->rows, row);
    }
    tool_note(w->run->tool, "%s is complete from an earlier run", shard);
}

static moert_status_t do_shard(struct walk *w, const moert_safetensors_t *in, struct moert_error *err)
{
    const char *from = moert_safetensors_path(in), *shard = base_name(from);
    char *to = tool_path_join(w->destination, shard);
    size_t rows_before = json_array_size(w->run->rows);
    moert_status_t status = MOERT_OK;

    if (!to)
        return tool_no_memory(err);
    if (is_done(w, shard, from, to)) {
        recall(w, shard);
        tool_progress_add(&w->run->progress, quant_bytes(in));
    } else {
        json_t *rows = json_array();
        status = quant_file(w->run, in, to, err);
        for (size_t i = rows_before; i < json_array_size(w->run->rows); i++)
            json_array_append(rows, json_array_get(w->run->rows, i));
        if (!status)
            status = journal_add(w, shard, from, to, rows, err);
        json_decref(rows);
    }
    if (!status)
        status = list_output(w, to, shard, err);
    free(to);
    return status;
}

/* ------------------------------------------------------------------ config.json and index */

/* Modules whose matrices stay as they are: the configuration's target is every Linear. */
static json_t *ignored_modules(const struct walk *w)
{
    const moert_checkpoint_t *c = w->run->checkpoint;
    json_t *array = json_array();

    for (uint32_t f = 0; f < moert_checkpoint_file_count(c); f++)
        for (uint64_t i = 0; i < moert_safetensors_count(moert_checkpoint_file(c, f)); i++) {
            const struct moert_st_tensor *t = moert_safetensors_at(moert_checkpoint_file(c, f), i);
            size_t n = strlen(t->name);
            if (t->rank == 2 && n > 7 && !strcmp(t->name + n - 7, ".weight") &&
                json_object_get(w->weight_map, t->name)) {
                char scale[1024];
                snprintf(scale, sizeof(scale), "%.1000s_scale", t->name);
                if (!json_object_get(w->weight_map, scale))
                    json_array_append_new(array, json_stringn(t->name, n - 7));
            }
        }
    return array;
}

/* lut-b.md 2 and layer.md 9.2. */
static json_t *quantization_config(const struct walk *w)
{
    json_t *weights, *input = json_null();
    const char *format;

    if (w->run->options->scheme == MOERT_SCHEME_LUT_B) {
        format = "lut-b";
        weights = json_pack("{s:i, s:s, s:s, s:[i, i], s:b, s:b}", "num_bits", 3, "type", "codebook", "strategy",
                            "block", "block_structure", MOERT_LUTB_ROWS, MOERT_LUTB_COLS, "symmetric", 1, "dynamic", 0);
    } else {
        format = "mxfp8-quantized";
        weights = json_pack("{s:i, s:s, s:s, s:i, s:b, s:b, s:s}", "num_bits", 8, "type", "float", "strategy", "group",
                            "group_size", MOERT_MXFP8_BLOCK, "symmetric", 1, "dynamic", 0, "scale_dtype", "uint8");
    }
    return json_pack("{s:s, s:s, s:{s:{s:[s], s:o, s:o}}, s:o}", "quant_method", "compressed-tensors", "format", format,
                     "config_groups", "group_0", "targets", "Linear", "weights", weights, "input_activations", input,
                     "ignore", ignored_modules(w));
}

static json_t *load_json(const char *directory, const char *name, struct moert_error *err)
{
    char *path = tool_path_join(directory, name);
    json_error_t json;
    json_t *object = path ? json_load_file(path, 0, &json) : NULL;

    if (!path)
        tool_no_memory(err);
    else if (!object)
        tool_set_error(err, MOERT_E_FILE, "st-json", "%s: %s (line %d)", path, json.text, json.line);
    free(path);
    return object;
}

static moert_status_t write_config(const struct walk *w, struct moert_error *err)
{
    json_t *config = load_json(w->source, "config.json", err);
    moert_status_t status;

    if (!config)
        return MOERT_E_FILE;
    if (w->run->options->decode)
        json_object_del(config, "quantization_config");
    else
        json_object_set_new(config, "quantization_config", quantization_config(w));
    status = write_json(w->destination, "config.json", config, err);
    json_decref(config);
    return status;
}

static moert_status_t write_index(const struct walk *w, struct moert_error *err)
{
    char *path = tool_path_join(w->source, QUANT_INDEX);
    int sharded = path && !access(path, F_OK);
    json_t *index, *metadata;
    moert_status_t status;

    free(path);
    if (!sharded)
        return MOERT_OK;
    index = load_json(w->source, QUANT_INDEX, err);
    if (!index)
        return MOERT_E_FILE;
    metadata = json_object_get(index, "metadata");
    if (!json_is_object(metadata)) {
        metadata = json_object();
        json_object_set_new(index, "metadata", metadata);
    }
    json_object_set_new(metadata, "total_size", tool_json_size(w->total_size));
    json_object_set(index, "weight_map", w->weight_map);
    status = write_json(w->destination, QUANT_INDEX, index, err);
    json_decref(index);
    return status;
}

static moert_status_t check_config(const struct walk *w, struct moert_error *err)
{
    json_t *config = load_json(w->source, "config.json", err);
    int quantised = config && json_is_object(json_object_get(config, "quantization_config"));

    json_decref(config);
    if (!config)
        return MOERT_E_FILE;
    if (quantised && !w->run->options->decode)
        return tool_set_error(err, MOERT_E_VALUE, "scheme",
                              "%s/config.json already has a quantization_config; dequantize first", w->source);
    return MOERT_OK;
}

/* ------------------------------------------------------------------ other files */

static int is_ours(const struct walk *w, const char *name)
{
    static const char *const names[] = {"config.json", QUANT_INDEX, QUANT_JOURNAL};

    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (!strcmp(name, names[i]))
            return 1;
    if (w->run->options->decode && !strcmp(name, "hf_quant_config.json"))
        return 1;
    for (uint32_t f = 0; f < moert_checkpoint_file_count(w->run->checkpoint); f++)
        if (!strcmp(name, base_name(moert_safetensors_path(moert_checkpoint_file(w->run->checkpoint, f)))))
            return 1;
    return 0;
}

/* depth 0: the checkpoint's own directory. Caches of tools (names with a leading dot) are left behind. */
static moert_status_t copy_others(const struct walk *w, const char *from, const char *to, unsigned depth,
                                  struct moert_error *err)
{
    DIR *directory = opendir(from);
    const struct dirent *entry;
    moert_status_t status = MOERT_OK;

    if (!directory)
        return tool_set_error(err, MOERT_E_FILE, "file-missing", "%s: %s", from, strerror(errno));
    while (!status && (entry = readdir(directory))) {
        char *a, *b;
        struct stat st;
        if (entry->d_name[0] == '.' || (!depth && is_ours(w, entry->d_name)))
            continue;
        a = tool_path_join(from, entry->d_name);
        b = tool_path_join(to, entry->d_name);
        if (!a || !b)
            status = tool_no_memory(err);
        else if (!stat(a, &st) && S_ISREG(st.st_mode))
            status = tool_file_copy(a, b, err);
        else if (!stat(a, &st) && S_ISDIR(st.st_mode) && depth < 8) {
            status = quant_make_directory(b, err);
            if (!status)
                status = copy_others(w, a, b, depth + 1, err);
        }
        free(a);
        free(b);
    }
    closedir(directory);
    return status;
}

/* ------------------------------------------------------------------ the walk */

/* Counts what will be converted, so that faults of any shard show before the first one is written. */
static moert_status_t check_plans(struct walk *w, struct moert_error *err)
{
    const moert_checkpoint_t *c = w->run->checkpoint;
    uint32_t files = moert_checkpoint_file_count(c);
    const moert_safetensors_t **list = calloc(files + 1, sizeof(*list));
    json_t *seen = json_object();
    uint64_t converted = 0;
    moert_status_t status = list ? MOERT_OK : tool_no_memory(err);

    for (uint32_t f = 0; f < files && !status; f++) {
        struct quant_step *steps;
        list[f] = moert_checkpoint_file(c, f);
        status = quant_plan(w->run, list[f], &steps, err);
        if (status)
            break;
        converted += quant_count(steps, moert_safetensors_count(list[f]));
        status = quant_check_layers(w->run, list[f], steps, seen, err);
        quant_plan_free(steps, moert_safetensors_count(list[f]));
    }
    if (!status)
        status = quant_check_patterns(w->run, list, files, err);
    if (!status)
        status = quant_check_any(w->run, NULL, w->source, converted, err);
    json_decref(seen);
    free(list);
    return status;
}

static moert_status_t walk(struct walk *w, struct moert_error *err)
{
    const moert_checkpoint_t *c = w->run->checkpoint;
    uint64_t total = 0;
    char *journal;
    moert_status_t status = journal_begin(w, err);

    for (uint32_t f = 0; f < moert_checkpoint_file_count(c); f++)
        total += quant_bytes(moert_checkpoint_file(c, f));
    tool_progress_begin(&w->run->progress, w->run->tool, w->run->options->decode ? "dequantize" : "quantize", total);
    for (uint32_t f = 0; f < moert_checkpoint_file_count(c) && !status; f++)
        status = do_shard(w, moert_checkpoint_file(c, f), err);
    tool_progress_end(&w->run->progress);
    if (!status)
        status = copy_others(w, w->source, w->destination, 0, err);
    if (!status)
        status = write_index(w, err);
    if (!status)
        status = write_config(w, err);
    journal = tool_path_join(w->destination, QUANT_JOURNAL);
    if (!status && journal)
        unlink(journal);
    free(journal);
    return status;
}

moert_status_t quant_checkpoint(struct quant_run *run, const char *source, const char *destination,
                                struct moert_error *err)
{
    struct walk w = {.run = run, .source = source, .destination = destination, .weight_map = json_object()};
    int lock = -1;
    moert_status_t status = moert_checkpoint_open(source, NULL, &run->checkpoint, err);

    if (!status)
        status = check_config(&w, err);
    if (!status)
        status = check_plans(&w, err);
    if (!status)
        status = quant_target_open(run, source, destination, &lock, err);
    if (!status)
        status = walk(&w, err);
    if (lock >= 0)
        close(lock);
    moert_checkpoint_close(run->checkpoint);
    run->checkpoint = NULL;
    json_decref(w.journal);
    json_decref(w.weight_map);
    return status;
}
