/* tools/quantize_run.c: quantize and dequantize once the options are known: file or directory, report, summary. */
#include "config.h"

#include "tools/files.h"
#include "tools/quantize_file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static moert_status_t check_plan(const struct quant_run *run, const moert_safetensors_t *in, struct moert_error *err)
{
    uint64_t count = moert_safetensors_count(in);
    json_t *seen = json_object();
    struct quant_step *steps = NULL;
    moert_status_t status = quant_plan(run, in, &steps, err);

    if (!status)
        status = quant_check_any(run, in, moert_safetensors_path(in), quant_count(steps, count), err);
    if (!status)
        status = quant_check_layers(run, in, steps, seen, err);
    quant_plan_free(steps, count);
    json_decref(seen);
    return status;
}

static moert_status_t single_file(struct quant_run *run, const char *source, const char *destination,
                                  struct moert_error *err)
{
    moert_safetensors_t *in = NULL;
    moert_status_t status = moert_safetensors_open(source, 0, &in, err);

    if (!status)
        status = quant_check_patterns(run, (const moert_safetensors_t *const *)&in, 1, err);
    if (!status)
        status = check_plan(run, in, err);
    if (!status) {
        tool_progress_begin(&run->progress, run->tool, run->options->decode ? "dequantize" : "quantize",
                            quant_bytes(in));
        status = quant_file(run, in, destination, err);
        tool_progress_end(&run->progress);
    }
    moert_safetensors_close(in);
    return status;
}

static moert_status_t convert(struct quant_run *run, const char *source, const char *destination,
                              struct moert_error *err)
{
    struct stat in, out;

    if (stat(source, &in))
        return tool_set_error(err, MOERT_E_MISSING, "file-missing", "%s: %s", source, strerror(errno));
    if (S_ISDIR(in.st_mode))
        return quant_checkpoint(run, source, destination, err);
    if (!stat(destination, &out) && S_ISDIR(out.st_mode))
        return tool_set_error(err, MOERT_E_OUTPUT, "output-write", "%s is a directory, %s a file", destination, source);
    if (tool_same_file(source, destination))
        return tool_set_error(err, MOERT_E_USAGE, "overlap", "%s and %s are the same file; give another DST", source,
                              destination);
    return single_file(run, source, destination, err);
}

static json_t *summary(const struct quant_run *run, const char *source, const char *destination, uint64_t time)
{
    const struct quant_options *o = run->options;
    json_t *total = json_pack("{s:o, s:o, s:o, s:o}", "tensors", tool_json_size(run->tensors), "bytes_in",
                              tool_json_size(run->bytes_in), "bytes_out", tool_json_size(run->bytes_out), "time_ns",
                              tool_json_size(time));

    if (run->resumed) /* the time is this run's alone */
        json_object_set_new(total, "resumed_tensors", tool_json_size(run->resumed));
    if (!o->decode && run->signal > 0 && !run->unmeasured)
        json_object_set_new(total, "snr_db", tool_json_real(10 * log10(run->signal / run->error)));
    return json_pack("{s:i, s:o, s:o, s:s, s:o, s:O}", "schema", 1, "source", tool_json_string(source), "destination",
                     tool_json_string(destination), "format",
                     o->decode ? moert_dtype_name(o->dtype) : moert_scheme_name(o->scheme), "total", total, "tensors",
                     run->rows);
}

/* Looked at before the work; the directory of the output may come into being by it. */
static moert_status_t check_report(const char *path, const char *source, const char *destination,
                                   struct moert_error *err)
{
    const char *slash = strrchr(path, '/');
    char *parent = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    size_t n = strlen(destination);
    struct stat st;
    moert_status_t status = MOERT_OK;

    while (n > 1 && destination[n - 1] == '/')
        n--;
    if (!parent)
        return tool_no_memory(err);
    if (!strcmp(path, destination) || tool_same_file(path, source) || tool_same_file(path, destination))
        status = tool_set_error(err, MOERT_E_USAGE, "overlap", "--report %s is SRC or DST; give another file", path);
    else if (!stat(path, &st) && !S_ISREG(st.st_mode))
        status = tool_set_error(err, MOERT_E_OUTPUT, "output-write", "--report %s: not a regular file", path);
    else if (stat(source, &st) || !S_ISDIR(st.st_mode) || access(destination, F_OK) == 0 || strlen(parent) != n ||
             strncmp(parent, destination, n))
        status = access(slash ? parent : ".", W_OK | X_OK)
                     ? tool_set_error(err, MOERT_E_OUTPUT, "output-write", "--report %s: %s", path, strerror(errno))
                     : MOERT_OK;
    free(parent);
    return status;
}

static moert_status_t write_report(const char *path, const json_t *document, struct moert_error *err)
{
    char *text = json_dumps(document, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    moert_status_t status = text ? tool_file_write(path, text, strlen(text), err) : tool_no_memory(err);

    free(text);
    return status;
}

static void print_summary(const struct quant_run *run, const char *destination, uint64_t time)
{
    char in[32], out[32], took[32];

    if (run->tool->quiet)
        return;
    printf("%llu tensors", (unsigned long long)run->tensors);
    if (run->resumed)
        printf(" (%llu of them by an earlier run)", (unsigned long long)run->resumed);
    printf(", %s -> %s in %s", tool_bytes(run->bytes_in, in), tool_bytes(run->bytes_out, out),
           tool_time((double)time, took));
    if (!run->options->decode && run->signal > 0 && run->error > 0 && !run->unmeasured)
        printf(", signal to error %.2f dB", 10 * log10(run->signal / run->error));
    printf(": %s\n", destination);
}

int quant_main(struct tool *tool, const struct quant_options *options, const char *source, const char *destination,
               const char *report)
{
    struct quant_run run = {.tool = tool, .options = options, .rows = json_array()};
    struct moert_error err = MOERT_ERROR_INIT;
    uint64_t begin = tool_now();
    moert_status_t status = report ? check_report(report, source, destination, &err) : MOERT_OK;
    json_t *document;
    int code;

    if (!status)
        status = convert(&run, source, destination, &err);
    document = status ? NULL : summary(&run, source, destination, tool_now() - begin);
    if (run.resumed && options->measure && run.unmeasured)
        tool_note(tool, "%llu tensors were not measured by the earlier run: no signal to error ratio of the whole",
                  (unsigned long long)run.unmeasured);
    if (!status && report)
        status = write_report(report, document, &err);
    if (status)
        code = tool_error(tool, &err);
    else if (tool->json)
        code = tool_print_json(tool, json_incref(document));
    else {
        print_summary(&run, destination, tool_now() - begin);
        code = TOOL_DONE;
    }
    json_decref(document);
    json_decref(run.rows);
    return code;
}
