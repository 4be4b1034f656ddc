/* tools/quantize_file.c: streams one safetensors file into another by the steps of its plan: rows of a tensor go from
 * the mapping through a buffer to the writer, and pages that were read are given back, so that memory stays small
 * whatever the file's size. */
#include "config.h"

#include "tools/files.h"
#include "tools/quantize_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHUNK (32u << 20) /* bytes of source or output at a time */

uint64_t quant_bytes(const moert_safetensors_t *file)
{
    uint64_t n = 0;

    for (uint64_t i = 0; i < moert_safetensors_count(file); i++)
        n += moert_safetensors_at(file, i)->bytes;
    return n;
}

/* Whole pages inside [data, data + bytes) are not needed again. Advice: failure changes nothing. */
static void give_back(const void *data, uint64_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)data, end = begin + bytes;

    begin = (begin + page - 1) / page * page;
    end = end / page * page;
    if (begin < end)
        (void)madvise((void *)begin, end - begin, MADV_DONTNEED);
}

/* ------------------------------------------------------------------ header */

static moert_status_t declare_encoded(moert_st_writer_t *w, const struct quant_step *s, struct moert_error *err)
{
    const struct moert_st_tensor *t = s->tensor;
    int lutb = s->scheme == MOERT_SCHEME_LUT_B;
    uint32_t rank = t->rank + (lutb ? 1 : 0), last = rank - 1;
    uint64_t shape[MOERT_ST_MAX_RANK];
    size_t room = strlen(t->name) + 16;
    char *name = malloc(room);
    moert_status_t status;

    if (!name)
        return tool_no_memory(err);
    memcpy(shape, t->shape, sizeof(shape));
    if (lutb) {
        shape[last - 2] = t->shape[last - 2] / MOERT_LUTB_ROWS;
        shape[last - 1] = t->shape[last - 1] / MOERT_LUTB_COLS;
        shape[last] = MOERT_LUTB_PACKED;
    }
    snprintf(name, room, "%s%s", t->name, lutb ? "_packed" : "");
    status = moert_st_writer_declare(w, name, lutb ? MOERT_U8 : MOERT_F8_E4M3, rank, shape, err);
    shape[last] = lutb ? MOERT_LUTB_LEVELS : t->shape[last] / MOERT_MXFP8_BLOCK;
    snprintf(name, room, "%s%s", t->name, lutb ? "_codebook" : "_scale");
    if (!status)
        status = moert_st_writer_declare(w, name, lutb ? MOERT_F8_E4M3 : MOERT_U8, rank, shape, err);
    free(name);
    return status;
}

static moert_status_t declare_decoded(const struct quant_run *run, moert_st_writer_t *w, const struct quant_step *s,
                                      struct moert_error *err)
{
    const struct moert_st_tensor *t = s->tensor;
    uint32_t rank = t->rank;
    uint64_t shape[MOERT_ST_MAX_RANK];

    memcpy(shape, t->shape, sizeof(shape));
    if (s->scheme == MOERT_SCHEME_LUT_B) {
        rank--;
        shape[rank - 2] *= MOERT_LUTB_ROWS;
        shape[rank - 1] *= MOERT_LUTB_COLS;
    }
    return moert_st_writer_declare(w, s->name, run->options->dtype, rank, shape, err);
}

static moert_status_t declare(const struct quant_run *run, moert_st_writer_t *w, const struct quant_step *s,
                              struct moert_error *err)
{
    switch (s->action) {
    case QUANT_ENCODE: return declare_encoded(w, s, err);
    case QUANT_DECODE: return declare_decoded(run, w, s, err);
    case QUANT_DROP: return MOERT_OK;
    default:
        return moert_st_writer_declare(w, s->tensor->name, s->tensor->dtype, s->tensor->rank, s->tensor->shape, err);
    }
}

/* A layer file's description names the scheme of its experts; the activation scheme goes back to that scheme's default.
 */
static char *new_description(const struct quant_run *run, const char *old)
{
    json_t *layer = json_loads(old, 0, NULL);
    const char *scheme = moert_scheme_name(run->options->scheme);
    char *text = NULL;

    if (run->options->decode)
        scheme = run->options->dtype == MOERT_F32 ? "f32" : "bf16";
    if (json_is_object(layer) && !json_object_set_new(layer, "weight_scheme", json_string(scheme))) {
        json_object_del(layer, "activation_scheme");
        text = json_dumps(layer, JSON_COMPACT);
    }
    json_decref(layer);
    return text;
}

static int converts_experts(const struct quant_step *steps, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        if ((steps[i].action == QUANT_ENCODE || steps[i].action == QUANT_DECODE) &&
            (!strncmp(steps[i].tensor->name, "w13_weight", 10) || strstr(steps[i].tensor->name, ".0.")))
            return 1;
    return 0;
}

static moert_status_t copy_metadata(const struct quant_run *run, const moert_safetensors_t *in,
                                    const struct quant_step *steps, moert_st_writer_t *w, struct moert_error *err)
{
    moert_status_t status = MOERT_OK;
    const char *key;

    for (uint64_t i = 0; (key = moert_safetensors_metadata_key(in, i)) && !status; i++) {
        const char *value = moert_safetensors_metadata(in, key);
        char *changed = NULL;
        if (!strcmp(key, "moert.layer") && converts_experts(steps, moert_safetensors_count(in)))
            changed = new_description(run, value);
        status = moert_st_writer_metadata(w, key, changed ? changed : value, err);
        free(changed);
    }
    return status;
}

/* ------------------------------------------------------------------ data */

static moert_status_t copy_data(struct quant_run *run, const struct quant_step *s, moert_st_writer_t *w,
                                struct moert_error *err)
{
    const uint8_t *data = s->tensor->data;
    moert_status_t status = MOERT_OK;

    for (uint64_t at = 0; at < s->tensor->bytes && !status;) {
        uint64_t n = s->tensor->bytes - at < CHUNK ? s->tensor->bytes - at : CHUNK;
        status = moert_st_writer_append(w, data + at, n, err);
        give_back(data + at, n);
        tool_progress_add(&run->progress, n);
        at += n;
    }
    return status;
}

static uint64_t rows_per_chunk(const uint64_t bytes[3])
{
    uint64_t widest = bytes[0] > bytes[1] ? bytes[0] : bytes[1], rows = widest ? CHUNK / widest / 8 * 8 : 8;
    return rows ? rows : 8;
}

static void note_result(struct quant_run *run, const struct quant_step *s, const struct quant_stats *stats,
                        uint64_t bytes_in, uint64_t bytes_out, uint64_t time)
{
    const struct moert_st_tensor *t = s->tensor;
    double weights = (double)s->rows * (double)s->cols, bytes = (double)(run->options->decode ? bytes_in : bytes_out);
    json_t *row, *shape = json_array();

    run->tensors++;
    run->bytes_in += bytes_in;
    run->bytes_out += bytes_out;
    run->error += stats->error;
    run->signal += stats->signal;
    for (uint32_t i = 0; i < t->rank; i++)
        json_array_append_new(shape, tool_json_size(t->shape[i]));
    row = json_pack("{s:o, s:o, s:s, s:s, s:o, s:o, s:o, s:o}", "name", tool_json_string(s->name ? s->name : t->name),
                    "shape", shape, "format", moert_scheme_name(s->scheme), "dtype", moert_dtype_name(t->dtype),
                    "bits_per_weight", tool_json_real(weights > 0 ? 8 * bytes / weights : 0), "time_ns",
                    tool_json_size(time), "bytes_in", tool_json_size(bytes_in), "bytes_out", tool_json_size(bytes_out));
    if (!run->options->decode && (run->options->measure || s->scheme == MOERT_SCHEME_LUT_B)) {
        json_object_set_new(row, "snr_db", tool_json_real(10 * log10(stats->signal / stats->error)));
        json_object_set_new(row, "max_error", tool_json_real(stats->max_error));
        json_object_set_new(row, "squared_error", tool_json_real(stats->error));
        json_object_set_new(row, "squared_sum", tool_json_real(stats->signal));
    } else {
        run->unmeasured++;
    }
    if (!run->options->decode) {
        json_object_set_new(row, "saturated", tool_json_size(stats->saturated));
        json_object_set_new(row, "poisoned_blocks", tool_json_size(stats->poisoned));
    }
    json_array_append_new(run->rows, row);
}

/* Codes (or values) go out chunk by chunk; scales or codebooks wait in memory for the end of the tensor: they are a
 * small part of it. */
static moert_status_t convert(struct quant_run *run, const struct quant_step *s, moert_st_writer_t *w,
                              struct moert_error *err)
{
    uint64_t bytes[3], chunk, begin = tool_now();
    struct quant_stats stats = {0};
    uint8_t *out, *out2 = NULL;
    int encode = s->action == QUANT_ENCODE;
    moert_status_t status = MOERT_OK;

    quant_row_bytes(run, s, bytes);
    chunk = rows_per_chunk(bytes);
    if (chunk > s->rows)
        chunk = s->rows;
    out = malloc(chunk * bytes[1] + 1); /* never of size 0 */
    if (encode)
        out2 = malloc(s->rows * bytes[2] + 1);
    if (!out || (encode && !out2))
        status = tool_no_memory(err);
    for (uint64_t row = 0; row < s->rows && s->cols && !status;) {
        uint64_t n = s->rows - row < chunk ? s->rows - row : chunk;
        status = quant_work(run, s, row, n, out, encode ? out2 + row * bytes[2] : NULL, &stats, err);
        if (!status)
            status = moert_st_writer_append(w, out, n * bytes[1], err);
        give_back((const uint8_t *)s->tensor->data + row * bytes[0], n * bytes[0]);
        tool_progress_add(&run->progress, n * bytes[0]);
        row += n;
    }
    if (!status && encode)
        status = moert_st_writer_append(w, out2, s->rows * bytes[2], err);
    free(out);
    free(out2);
    if (!status)
        note_result(run, s, &stats, s->tensor->bytes + (s->partner ? s->partner->bytes : 0),
                    s->rows * (bytes[1] + (encode ? bytes[2] : 0)), tool_now() - begin);
    return status;
}

/* ------------------------------------------------------------------ whole file */

static moert_status_t write_steps(struct quant_run *run, const moert_safetensors_t *in, const struct quant_step *steps,
                                  moert_st_writer_t *w, struct moert_error *err)
{
    uint64_t count = moert_safetensors_count(in);
    moert_status_t status = copy_metadata(run, in, steps, w, err);

    for (uint64_t i = 0; i < count && !status; i++)
        status = declare(run, w, &steps[i], err);
    if (!status)
        status = moert_st_writer_begin(w, err);
    for (uint64_t i = 0; i < count && !status; i++) {
        if (steps[i].action == QUANT_COPY)
            status = copy_data(run, &steps[i], w, err);
        else if (steps[i].action != QUANT_DROP)
            status = convert(run, &steps[i], w, err);
    }
    return status ? status : moert_st_writer_commit(w, err);
}

moert_status_t quant_file(struct quant_run *run, const moert_safetensors_t *in, const char *path,
                          struct moert_error *err)
{
    struct quant_step *steps = NULL;
    moert_st_writer_t *w = NULL;
    moert_status_t status = quant_plan(run, in, &steps, err);

    if (!status)
        status = moert_st_writer_create(path, &w, err);
    if (!status)
        status = write_steps(run, in, steps, w, err);
    moert_st_writer_destroy(w);
    quant_plan_free(steps, moert_safetensors_count(in));
    return status;
}
