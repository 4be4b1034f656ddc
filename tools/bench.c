/* tools/bench.c: `moert bench`: options, named shapes, and the order of a run: limits before, the workload, limits
 * after. */
#include "config.h"

#include "tools/bench.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHAPE, TOKENS, FORMAT, ROUTING, BACKEND, REPS, WARMUP, OUTPUT, SEED, INSTANCES };

static const struct tool_option options[] = {
    [SHAPE] = {"shape", "NAME|H,I,E,K", "layer: a named shape or sizes; may be repeated (default tiny)"},
    [TOKENS] = {"tokens", "LIST", "token counts, separated by commas (layer: 1,8,64,512,4096)"},
    [FORMAT] = {"format", "LIST", "layer: weight formats of lut-b, mxfp8, bf16, f16, f32 (default lut-b,mxfp8,bf16)"},
    [ROUTING] = {"routing", "uniform|zipf:S|hot:F|trace:FILE",
                 "layer: which experts the tokens take (default uniform)"},
    [BACKEND] = {"backend", "NAME", "layer: backend instead of the oracle's choice; may be repeated"},
    [REPS] = {"reps", "N", "timed repetitions, fewer after two seconds (default 20)"},
    [WARMUP] = {"warmup", "N", "repetitions before (default 3)"},
    [OUTPUT] = {"output", "md|json|jsonl|csv|html", "form of the result (default md; html: not available yet)"},
    [SEED] = {"seed", "N", "seed of weights, inputs and routing (default 1)"},
    [INSTANCES] = {"instances", "N", "layer: layers that rotate (default: as many as cold caches need)"},
    {NULL, NULL, NULL},
};

/* performance.md 1 */
static const struct bench_shape named[] = {
    {"tiny", 256, 128, 16, 2, 0},
    {"qwen3-30b-a3b", 2048, 768, 128, 8, 0},
    {"qwen3-235b", 4096, 1536, 128, 8, 0},
    {"deepseek-v3-ep8", 7168, 2048, 32, 8, 0},
    {"deepseek-v3", 7168, 2048, 256, 8, 0},
    {"gpt-oss-20b", 2880, 2880, 32, 4, 1},
    {"gpt-oss-120b", 2880, 2880, 128, 4, 1},
    {"mixtral-8x7b", 4096, 14336, 8, 2, 0},
};
enum { NAMED = sizeof(named) / sizeof(*named) };

static const char *const whats[] = {"layer", "align", "quantize", "topk", "copy", NULL};
static const char *const outputs[] = {"md", "json", "jsonl", "csv", "html", NULL};

/* "H,I,E,K" into four numbers, or a name. */
static int add_shape(struct tool *tool, struct bench_request *r, const char *value)
{
    const char *names[NAMED + 1] = {NULL};
    unsigned long long n[4];
    int used = 0;

    if (r->shape_count == BENCH_LIST)
        return tool_usage_error(tool, "--shape: at most %d shapes", BENCH_LIST);
    if (sscanf(value, "%9llu,%9llu,%9llu,%9llu%n", n, n + 1, n + 2, n + 3, &used) == 4 && !value[used]) {
        r->shapes[r->shape_count++] = (struct bench_shape){value, n[0], n[1], (uint32_t)n[2], (uint32_t)n[3], 0};
        return 0;
    }
    for (int i = 0; i < NAMED; i++)
        names[i] = named[i].name;
    if (value[0] >= '0' && value[0] <= '9')
        return tool_usage_error(tool, "--shape takes a name or H,I,E,K, got \"%s\"", value);
    used = tool_word(tool, "--shape", value, names);
    if (used < 0)
        return TOOL_USAGE;
    r->shapes[r->shape_count++] = named[used];
    return 0;
}

/* Splits a comma-separated list, calls `add` for each word. */
static int each_word(struct tool *tool, struct bench_request *r, const char *option, const char *list,
                     int (*add)(struct tool *, struct bench_request *, const char *))
{
    char word[64];
    int status = 0;

    for (const char *p = list; !status; p++) {
        size_t n = strcspn(p, ",");
        if (!n || n >= sizeof(word))
            return tool_usage_error(tool, "%s takes a list separated by commas, got \"%s\"", option, list);
        memcpy(word, p, n);
        word[n] = 0;
        status = add(tool, r, word);
        p += n;
        if (!*p)
            break;
    }
    return status;
}

static int add_tokens(struct tool *tool, struct bench_request *r, const char *word)
{
    if (r->token_count == BENCH_LIST)
        return tool_usage_error(tool, "--tokens: at most %d counts", BENCH_LIST);
    return tool_number(tool, "--tokens", word, 1, 1u << 24, &r->tokens[r->token_count++]);
}

static int add_format(struct tool *tool, struct bench_request *r, const char *word)
{
    static const char *const formats[] = {"lut-b", "mxfp8", "bf16", "f16", "f32", NULL};

    if (r->format_count == BENCH_LIST)
        return tool_usage_error(tool, "--format: at most %d formats", BENCH_LIST);
    if (tool_word(tool, "--format", word, formats) < 0)
        return TOOL_USAGE;
    moert_scheme_from_name(word, &r->formats[r->format_count++]);
    return 0;
}

static int set_routing(struct tool *tool, struct bench_request *r, const char *value)
{
    static const char *const kinds[] = {"uniform", "zipf", "hot", "trace", NULL};
    const char *colon = strchr(value, ':');
    char word[16];
    int kind;

    snprintf(word, sizeof(word), "%.*s", (int)strcspn(value, ":"), value);
    kind = tool_word(tool, "--routing", word, kinds);
    if (kind < 0)
        return TOOL_USAGE;
    r->routing = (struct bench_routing){.kind = (enum bench_routing_kind)kind, .text = value, .parameter = 1.1};
    if (kind == ROUTING_UNIFORM)
        return colon ? tool_usage_error(tool, "--routing uniform takes no parameter") : 0;
    if (kind == ROUTING_TRACE) {
        r->routing.path = colon ? colon + 1 : "";
        return *r->routing.path ? 0 : tool_usage_error(tool, "--routing trace needs a file: trace:FILE");
    }
    if (colon && tool_real(tool, "--routing", colon + 1, &r->routing.parameter))
        return TOOL_USAGE;
    if (kind == ROUTING_HOT && (!colon || r->routing.parameter < 0 || r->routing.parameter > 1))
        return tool_usage_error(tool, "--routing hot needs a fraction from 0 to 1: hot:F");
    return r->routing.parameter < 0 ? tool_usage_error(tool, "--routing zipf: S must not be negative") : 0;
}

static int set_output(struct tool *tool, struct bench_request *r, const char *value)
{
    int i = tool_word(tool, "--output", value, outputs);

    if (i < 0)
        return TOOL_USAGE;
    if (i > BENCH_CSV)
        return tool_usage_error(tool, "--output html is not available in this version; use md, json, jsonl or csv");
    r->output = (enum bench_output)i;
    return 0;
}

static int set_option(struct tool *tool, struct bench_request *r, int option, const char *value)
{
    switch (option) {
    case SHAPE: return add_shape(tool, r, value);
    case TOKENS: return each_word(tool, r, "--tokens", value, add_tokens);
    case FORMAT: return each_word(tool, r, "--format", value, add_format);
    case ROUTING: return set_routing(tool, r, value);
    case BACKEND:
        if (r->backend_count == BENCH_LIST)
            return tool_usage_error(tool, "--backend: at most %d names", BENCH_LIST);
        r->backends[r->backend_count++] = value;
        return 0;
    case REPS: return tool_number(tool, "--reps", value, 1, 100000, &r->reps);
    case WARMUP: return tool_number(tool, "--warmup", value, 0, 100000, &r->warmup);
    case OUTPUT: return set_output(tool, r, value);
    case SEED: return tool_number(tool, "--seed", value, 0, UINT64_MAX, &r->seed);
    default: return tool_number(tool, "--instances", value, 1, 1u << 20, &r->instances);
    }
}

static int set_what(struct tool *tool, struct bench_request *r, int argc, char **argv)
{
    int i = 0;

    if (argc - optind > 1)
        return tool_usage_error(tool, "extra argument \"%s\"; one of layer, align, quantize, topk, copy is expected",
                                argv[optind + 1]);
    if (argc > optind)
        i = tool_word(tool, "bench", argv[optind], whats);
    if (i < 0)
        return TOOL_USAGE;
    r->what = whats[i];
    if (i && (r->shape_count || r->format_count || r->backend_count || r->routing.text || r->instances))
        return tool_usage_error(tool, "--shape, --format, --routing, --backend and --instances go with bench layer");
    return 0;
}

static void set_defaults(struct bench_request *r)
{
    static const uint64_t tokens[] = {1, 8, 64, 512, 4096};
    static const moert_scheme_t formats[] = {MOERT_SCHEME_LUT_B, MOERT_SCHEME_MXFP8, MOERT_SCHEME_BF16};

    if (!r->routing.text)
        r->routing.text = "uniform";
    if (strcmp(r->what, "layer"))
        return;
    if (!r->shape_count)
        r->shapes[r->shape_count++] = named[0];
    if (!r->token_count)
        for (size_t i = 0; i < sizeof(tokens) / sizeof(*tokens); i++)
            r->tokens[r->token_count++] = tokens[i];
    if (!r->format_count)
        for (size_t i = 0; i < sizeof(formats) / sizeof(*formats); i++)
            r->formats[r->format_count++] = formats[i];
}

static int execute(struct tool *tool, const struct bench_request *r)
{
    struct bench_machine machine;
    json_t *rows = json_array();
    int status, layer = !strcmp(r->what, "layer");

    bench_machine_describe(&machine);
    if (layer)
        bench_measure_limits(&machine, r->seed, &machine.before);
    if (layer)
        status = bench_layer(tool, r, &machine, rows);
    else if (!strcmp(r->what, "align"))
        status = bench_align(tool, r, rows);
    else if (!strcmp(r->what, "topk"))
        status = bench_topk(tool, r, rows);
    else if (!strcmp(r->what, "quantize"))
        status = bench_quantize(tool, r, rows);
    else
        status = bench_copy(tool, r, &machine, rows);
    if (!status && layer)
        bench_measure_limits(&machine, r->seed, &machine.after);
    if (!status) {
        bench_row_shares(rows, &machine);
        status = bench_print(tool, r, &machine, rows);
    }
    json_decref(rows);
    return status;
}

static int run(struct tool *tool, int argc, char **argv)
{
    struct bench_request *r = calloc(1, sizeof(*r));
    const char *value;
    int option = TOOL_OPERANDS, status = 0;

    if (!r)
        return tool_fail(tool, MOERT_E_NOMEM, "host-memory", "memory is out");
    r->reps = 20;
    r->warmup = 3;
    r->seed = 1;
    while (!status && (option = tool_option(tool, argc, argv, &value)) >= 0)
        status = set_option(tool, r, option, value);
    if (!status)
        status = option == TOOL_STOP ? tool->status : set_what(tool, r, argc, argv);
    if (!status && option != TOOL_STOP) {
        set_defaults(r);
        if (tool->json)
            r->output = BENCH_JSON;
        /* Errors become documents in every JSON form. */
        tool->json = r->output == BENCH_JSON;
        status = execute(tool, r);
    }
    free(r);
    return status;
}

const struct tool_command cmd_bench = {
    .name = "bench",
    .run = run,
    .help = "times of layers and single steps, beside the machine's own limits",
    .synopsis = "[layer|align|quantize|topk|copy] [--shape NAME|H,I,E,K]... [--tokens LIST]\n"
                "[--format LIST] [--routing uniform|zipf:S|hot:F|trace:FILE] [--backend NAME]...\n"
                "[--reps N] [--warmup N] [--seed N] [--output md|json|jsonl|csv] [--json]",
    .options = options,
    .details = "Shapes: tiny, qwen3-30b-a3b, qwen3-235b, deepseek-v3-ep8, deepseek-v3, gpt-oss-20b, gpt-oss-120b, "
               "mixtral-8x7b. Weights rotate so that caches do not flatter; a line is marked warm where they do. Rates "
               "stand beside the copy bandwidth and multiply-add rate measured in the same run.",
};
