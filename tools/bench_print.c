/* tools/bench_print.c: rows of a benchmark as Markdown for people, JSON, JSON lines or CSV. */
#include "config.h"

#include "tools/bench.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void bench_row_times(json_t *row, const double *samples, uint64_t count)
{
    struct tool_statistics s = tool_statistics(samples, count);
    json_t *list = json_array();

    for (uint64_t i = 0; i < count; i++)
        json_array_append_new(list, json_integer((json_int_t)samples[i]));
    json_object_set_new(row, "median_ns", json_integer((json_int_t)s.median));
    json_object_set_new(row, "p5_ns", json_integer((json_int_t)s.p5));
    json_object_set_new(row, "p95_ns", json_integer((json_int_t)s.p95));
    json_object_set_new(row, "min_ns", json_integer((json_int_t)s.min));
    json_object_set_new(row, "samples_ns", list);
}

static double number(const json_t *row, const char *key)
{
    return json_number_value(json_object_get(row, key));
}

static json_t *ratio(double value, double limit)
{
    return limit > 0 ? tool_json_real(value / limit) : json_null();
}

void bench_row_shares(json_t *rows, const struct bench_machine *m)
{
    double copy = (m->before.copy + m->after.copy) / 2;
    double rate = (m->before.multiply_adds + m->after.multiply_adds) / 2;

    for (size_t i = 0; i < json_array_size(rows); i++) {
        json_t *row = json_array_get(rows, i);
        double floor_ns;
        if (!json_is_true(json_object_get(row, "host_device")) || !(copy > 0) || !(rate > 0)) {
            json_object_del(row, "host_device");
            continue;
        }
        json_object_del(row, "host_device");
        floor_ns = fmax(number(row, "bytes") / copy, number(row, "operations") / rate) * 1e9;
        json_object_set_new(row, "copy_share", ratio(number(row, "bytes_per_s"), copy));
        json_object_set_new(row, "multiply_add_share", ratio(number(row, "operations_per_s"), rate));
        json_object_set_new(row, "floor_ns", tool_json_real(floor_ns));
        json_object_set_new(row, "floor_share", ratio(floor_ns, number(row, "median_ns")));
    }
}

static json_t *limits_json(const struct bench_limits *l)
{
    return json_pack("{s:o, s:o, s:o}", "copy_bytes_per_s", tool_json_real(l->copy), "read_bytes_per_s",
                     tool_json_real(l->read), "multiply_add_operations_per_s", tool_json_real(l->multiply_adds));
}

static json_t *machine_json(const struct bench_machine *m)
{
    return json_pack("{s:o, s:i, s:o, s:o, s:o, s:o, s:o, s:s}", "cpu", tool_json_string(m->cpu), "threads",
                     (int)m->threads, "load", tool_json_real(m->load), "last_level_cache", tool_json_size(m->cache),
                     "memory_available", tool_json_size(m->memory), "before", limits_json(&m->before), "after",
                     limits_json(&m->after), "compiler", __VERSION__);
}

/* ---- Markdown ---- */

enum form { TEXT, COUNT, ONE_DIGIT, MICROSECONDS, GIGA, TERA, MEGA, PERCENT, YES };
struct column {
    const char *bench, *key, *heading;
    enum form form;
};

/* Columns by kind of row; at most 100 characters wide in sum. */
static const struct column columns[] = {
    {"layer", "shape", "shape", TEXT},
    {"layer", "tokens", "T", COUNT},
    {"layer", "format", "format", TEXT},
    {"layer", "backend", "backend", TEXT},
    {"layer", "median_ns", "us", MICROSECONDS},
    {"layer", "p95_ns", "p95", MICROSECONDS},
    {"layer", "min_ns", "min", MICROSECONDS},
    {"layer", "bytes_per_s", "GB/s", GIGA},
    {"layer", "copy_share", "copy", PERCENT},
    {"layer", "operations_per_s", "TFLOP/s", TERA},
    {"layer", "multiply_add_share", "fma", PERCENT},
    {"layer", "touched_experts", "experts", ONE_DIGIT},
    {"layer", "warm", "warm", YES},
    {"align", "tokens", "tokens", COUNT},
    {"align", "top_k", "K", COUNT},
    {"align", "num_experts", "experts", COUNT},
    {"align", "block_size", "block", COUNT},
    {"align", "median_ns", "us", MICROSECONDS},
    {"align", "p95_ns", "p95", MICROSECONDS},
    {"align", "min_ns", "min", MICROSECONDS},
    {"align", "slots_per_s", "M slots/s", MEGA},
    {"topk", "tokens", "tokens", COUNT},
    {"topk", "top_k", "K", COUNT},
    {"topk", "num_experts", "experts", COUNT},
    {"topk", "median_ns", "us", MICROSECONDS},
    {"topk", "p95_ns", "p95", MICROSECONDS},
    {"topk", "min_ns", "min", MICROSECONDS},
    {"topk", "tokens_per_s", "M tokens/s", MEGA},
    {"quantize", "tokens", "rows", COUNT},
    {"quantize", "columns", "columns", COUNT},
    {"quantize", "dtype", "from", TEXT},
    {"quantize", "median_ns", "us", MICROSECONDS},
    {"quantize", "p95_ns", "p95", MICROSECONDS},
    {"quantize", "min_ns", "min", MICROSECONDS},
    {"quantize", "elements_per_s", "G elements/s", GIGA},
    {"copy", "what", "what", TEXT},
    {"copy", "threads", "threads", COUNT},
    {"copy", "median_ns", "us", MICROSECONDS},
    {"copy", "min_ns", "min", MICROSECONDS},
    {"copy", "bytes_per_s", "GB/s", GIGA},
    {"copy", "operations_per_s", "TFLOP/s", TERA},
};
enum { COLUMNS = sizeof(columns) / sizeof(*columns) };

static void cell_text(const json_t *row, const struct column *column, char *text, size_t size)
{
    const json_t *value = json_object_get(row, column->key);
    double v = json_number_value(value);

    if (!value || json_is_null(value)) {
        snprintf(text, size, "-");
        return;
    }
    switch (column->form) {
    case TEXT: snprintf(text, size, "%s", json_string_value(value)); break;
    case COUNT: snprintf(text, size, "%.0f", v); break;
    case ONE_DIGIT: snprintf(text, size, "%.1f", v); break;
    case MICROSECONDS: snprintf(text, size, "%.*f", v < 1e5 ? 1 : 0, v / 1e3); break;
    case GIGA: snprintf(text, size, "%.2f", v / 1e9); break;
    case TERA: snprintf(text, size, "%.4f", v / 1e12); break;
    case MEGA: snprintf(text, size, "%.1f", v / 1e6); break;
    case PERCENT: snprintf(text, size, "%.1f%%", v * 100); break;
    default: snprintf(text, size, "%s", json_is_true(value) ? "warm" : "-"); break;
    }
}

static void print_table(const char *bench, const json_t *rows)
{
    int width[COLUMNS] = {0};
    char text[128];

    for (size_t i = 0; i <= json_array_size(rows); i++)
        for (int c = 0; c < COLUMNS; c++) {
            if (i)
                cell_text(json_array_get(rows, i - 1), columns + c, text, sizeof(text));
            else
                snprintf(text, sizeof(text), "%s", columns[c].heading);
            if ((int)strlen(text) > width[c])
                width[c] = (int)strlen(text);
        }
    for (size_t i = 0; i <= json_array_size(rows); i++) {
        for (int c = 0; c < COLUMNS; c++) {
            if (strcmp(columns[c].bench, bench))
                continue;
            if (i)
                cell_text(json_array_get(rows, i - 1), columns + c, text, sizeof(text));
            else
                snprintf(text, sizeof(text), "%s", columns[c].heading);
            printf(columns[c].form == TEXT ? "|%-*s" : "|%*s", width[c], text);
        }
        printf("|\n");
        for (int c = 0; !i && c < COLUMNS; c++)
            if (!strcmp(columns[c].bench, bench))
                printf("|%.*s%s", width[c] - 1, "--------------------------------------------------------------",
                       columns[c].form == TEXT ? "-" : ":");
        if (!i)
            printf("|\n");
    }
}

static void print_limits(const char *when, const struct bench_limits *l)
{
    printf("%s: copy %.2f GB/s (read + written), read %.2f GB/s, multiply-add %.4f TFLOP/s (F32)\n", when,
           l->copy / 1e9, l->read / 1e9, l->multiply_adds / 1e12);
}

static void print_md(const struct bench_request *r, const struct bench_machine *m, const json_t *rows)
{
    char cache[32];

    printf("moert %s bench %s, seed %llu, compiler %s\n\n%s, %u threads, last-level cache %s, load %.2f\n%s",
           moert_version(), r->what, (unsigned long long)r->seed, __VERSION__, m->cpu, m->threads,
           tool_bytes(m->cache, cache), m->load,
           m->load > 0.3 * m->threads ? "the machine is busy: figures are disturbed\n" : "");
    if (!strcmp(r->what, "layer")) {
        print_limits("before", &m->before);
        print_limits("after ", &m->after);
        printf("routing %s; copy and fma: share of the machine's own limits\n", r->routing.text);
    }
    printf("\n");
    print_table(r->what, rows);
}

/* ---- the other forms ---- */

/* A field as CSV, quoted where it must be. */
static void print_field(const json_t *value)
{
    const char *text = json_string_value(value);

    if (!text) {
        char *dump =
            value && !json_is_null(value) ? json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(12)) : NULL;
        printf("%s", dump ? dump : "");
        moert_free(dump);
        return;
    }
    if (!strpbrk(text, ",\"\n")) {
        printf("%s", text);
        return;
    }
    putchar('"');
    for (; *text; text++)
        printf(*text == '"' ? "\"\"" : "%c", *text);
    putchar('"');
}

static void print_csv(const json_t *rows)
{
    json_t *head = json_object();
    const char *key;
    json_t *value;
    int first = 1;

    for (size_t i = 0; i < json_array_size(rows); i++)
        json_object_update_missing(head, json_array_get(rows, i));
    json_object_del(head, "samples_ns");
    json_object_foreach(head, key, value)
    {
        printf("%s%s", first ? "" : ",", key);
        first = 0;
    }
    printf("\n");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        first = 1;
        json_object_foreach(head, key, value)
        {
            printf("%s", first ? "" : ",");
            print_field(json_object_get(json_array_get(rows, i), key));
            first = 0;
        }
        printf("\n");
    }
    json_decref(head);
}

static int print_lines(struct tool *tool, const json_t *rows)
{
    for (size_t i = 0; i < json_array_size(rows); i++) {
        json_t *line = json_pack("{s:i}", "schema", 1);
        if (!line || json_object_update(line, json_array_get(rows, i)) ||
            json_dumpf(line, stdout, JSON_COMPACT | JSON_REAL_PRECISION(12))) {
            json_decref(line);
            return tool_fail(tool, MOERT_E_NOMEM, "host-memory", "memory is out");
        }
        printf("\n");
        json_decref(line);
    }
    tool->json_printed = 1;
    return 0;
}

int bench_print(struct tool *tool, const struct bench_request *r, const struct bench_machine *m, json_t *rows)
{
    switch (r->output) {
    case BENCH_JSON:
        return tool_print_json(tool,
                               json_pack("{s:s, s:s, s:o, s:o, s:O}", "bench", r->what, "version", moert_version(),
                                         "seed", tool_json_size(r->seed), "machine", machine_json(m), "results", rows));
    case BENCH_JSONL: return print_lines(tool, rows);
    case BENCH_CSV: print_csv(rows); return 0;
    default: print_md(r, m, rows); return 0;
    }
}
