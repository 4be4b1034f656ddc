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

static moert_status_t single_file(struct quant_run *run, const char *source, const char *destination,
                                  struct moert_error *err)
{
    moert_safetensors_t *in = NULL;
    moert_status_t status = moert_safetensors_open(source, 0, &in, err);

    if (!status)
        status = quant_check_patterns(run, (const moert_safetensors_t *const *)&in, 1, err);
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

    if (!o->decode && run->signal > 0)
        json_object_set_new(total, "snr_db", tool_json_real(10 * log10(run->signal / run->error)));
    return json_pack("{s:i, s:o, s:o, s:s, s:o, s:O}", "schema", 1, "source", tool_json_string(source), "destination",
                     tool_json_string(destination), "format",
                     o->decode ? moert_dtype_name(o->dtype) : moert_scheme_name(o->scheme), "total", total, "tensors",
                     run->rows);
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
    printf("%llu tensors, %s -> %s in %s", (unsigned long long)run->tensors, tool_bytes(run->bytes_in, in),
           tool_bytes(run->bytes_out, out), tool_time((double)time, took));
    if (!run->options->decode && run->signal > 0 && run->error > 0)
        printf(", signal to error %.2f dB", 10 * log10(run->signal / run->error));
    printf(": %s\n", destination);
}

int quant_main(struct tool *tool, const struct quant_options *options, const char *source, const char *destination,
               const char *report)
{
    struct quant_run run = {.tool = tool, .options = options, .rows = json_array()};
    struct moert_error err = MOERT_ERROR_INIT;
    uint64_t begin = tool_now();
    moert_status_t status = convert(&run, source, destination, &err);
    json_t *document = status ? NULL : summary(&run, source, destination, tool_now() - begin);
    int code;

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
