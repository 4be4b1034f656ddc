/* tools/verify.c: `moert verify`: every ready backend against the reference, step by step (core/verify does the work).
 */
#include "config.h"

#include "tools/source.h"
#include "tools/verify_layer.h"

#include <moert/verify.h>

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BACKEND, OP, SEED, LAYER, CONFIG, MODEL, LAYER_INDEX, TOKENS };

static const struct tool_option options[] = {
    [BACKEND] = {"backend", "NAME", "name, alias or glob (\"opencl.*\"); may be repeated (default: all but opt-in ones)"},
    [OP] = {"op", "codec|align|topk|activation|combine|layer|contract",
            "only these cases; may be repeated or a list separated by commas"},
    [SEED] = {"seed", "N", "seed of the inputs (default: fixed)"},
    [LAYER] = {"layer", "FILE.safetensors", "compare on the weights of this layer file"},
    [CONFIG] = {"config", "FILE.json", "description of the layer file, when its metadata hold none"},
    [MODEL] = {"model", "DIR", "compare on the layers of this checkpoint"},
    [LAYER_INDEX] = {"layer-index", "N", "only this decoder layer of the checkpoint"},
    [TOKENS] = {"tokens", "N", "with --layer and --model: tokens of the made-up input (default 64)"},
    {NULL, NULL, NULL},
};

/* Bits in the order of the words. */
static const char *const op_names[] = {"codec", "align", "topk", "activation", "combine", "layer", "contract", NULL};

enum { MAX_GLOBS = 64 };
struct request {
    const char *globs[MAX_GLOBS];
    size_t glob_count;
    struct tool_source source;
    uint32_t ops;
    uint64_t seed, tokens;
};

/* Cases of one backend, device and op: one line of the summary. */
struct line {
    char backend[64], device[32], op[16];
    unsigned passed, failed, skipped;
    double worst; /* largest error in units of its bound; 0 where bytes must be equal */
    char where[256];
    uint64_t seed;
};

struct tally {
    struct tool *tool;
    struct line *lines;
    size_t line_count;
    json_t *results;
    unsigned passed, failed, skipped;
};

static int set_ops(struct tool *tool, struct request *r, const char *value)
{
    char word[32];

    for (const char *p = value;; p++) {
        size_t n = strcspn(p, ",");
        int i;
        snprintf(word, sizeof(word), "%.*s", (int)n, p);
        i = tool_word(tool, "--op", word, op_names);
        if (i < 0)
            return TOOL_USAGE;
        r->ops |= 1u << i;
        p += n;
        if (!*p)
            return 0;
    }
}

static int set_option(struct tool *tool, struct request *r, int option, const char *value)
{
    switch (option) {
    case BACKEND:
        if (r->glob_count == MAX_GLOBS)
            return tool_usage_error(tool, "--backend: at most %d names", MAX_GLOBS);
        r->globs[r->glob_count++] = value;
        return 0;
    case OP: return set_ops(tool, r, value);
    case SEED: return tool_number(tool, "--seed", value, 0, UINT64_MAX, &r->seed);
    case LAYER: r->source.layer_path = value; return 0;
    case CONFIG: r->source.config_path = value; return 0;
    case MODEL: r->source.model_path = value; return 0;
    case LAYER_INDEX: r->source.index_text = value; return 0;
    default: return tool_number(tool, "--tokens", value, 1, 65536, &r->tokens);
    }
}

/* ---- results ---- */

static struct line *line_of(struct tally *t, const struct moert_verify_result *r)
{
    struct line *grown;

    for (size_t i = 0; i < t->line_count; i++)
        if (!strcmp(t->lines[i].backend, r->backend) && !strcmp(t->lines[i].device, r->device) &&
            !strcmp(t->lines[i].op, r->op))
            return t->lines + i;
    grown = realloc(t->lines, (t->line_count + 1) * sizeof(*grown));
    if (!grown)
        return NULL;
    t->lines = grown;
    grown += t->line_count++;
    memset(grown, 0, sizeof(*grown));
    snprintf(grown->backend, sizeof(grown->backend), "%s", r->backend);
    snprintf(grown->device, sizeof(grown->device), "%s", r->device);
    snprintf(grown->op, sizeof(grown->op), "%s", r->op);
    return grown;
}

static void add_to_line(struct line *line, const struct moert_verify_result *r)
{
    double units = r->bound > 0 ? r->error / r->bound : r->error;

    line->seed = r->seed;
    if (r->outcome == MOERT_VERIFY_SKIPPED) {
        line->skipped++;
        return;
    }
    if (r->outcome == MOERT_VERIFY_FAILED)
        line->failed++;
    else
        line->passed++;
    if (!(units <= line->worst)) {
        line->worst = units;
        snprintf(line->where, sizeof(line->where), "%s", r->name);
    }
}

static void print_failure(const struct tool *tool, const struct moert_verify_result *r)
{
    int failed = r->outcome == MOERT_VERIFY_FAILED;
    static const char *const outcome[] = {"passed", "FAILED", "skipped"};

    if (!failed && !tool->verbose)
        return;
    fprintf(stderr, "moert: verify: %s on %s: %s %s: %s%s%s%s%s (error %.4g, bound %.4g, seed %llu)\n", r->backend,
            r->device, r->op, r->name, outcome[r->outcome < 3 ? r->outcome : 1], *r->step ? " at step " : "", r->step,
            *r->detail ? ": " : "", r->detail, r->error, r->bound, (unsigned long long)r->seed);
}

static void take_result(void *ctx, const struct moert_verify_result *r)
{
    static const char *const outcome[] = {"passed", "failed", "skipped"};
    struct tally *t = ctx;
    struct line *line = line_of(t, r);

    t->passed += r->outcome == MOERT_VERIFY_PASSED;
    t->failed += r->outcome == MOERT_VERIFY_FAILED;
    t->skipped += r->outcome == MOERT_VERIFY_SKIPPED;
    if (line)
        add_to_line(line, r);
    print_failure(t->tool, r);
    json_array_append_new(t->results, json_pack("{s:o, s:o, s:o, s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "backend",
                                                tool_json_string(r->backend), "device", tool_json_string(r->device),
                                                "op", tool_json_string(r->op), "name", tool_json_string(r->name),
                                                "outcome", outcome[r->outcome < 3 ? r->outcome : 1], "step",
                                                tool_json_string(r->step), "detail", tool_json_string(r->detail),
                                                "error", tool_json_real(r->error), "bound", tool_json_real(r->bound),
                                                "nrmse", tool_json_real(r->nrmse), "seed", tool_json_size(r->seed)));
}

static void print_summary(const struct tally *t)
{
    static const char *const heads[] = {"backend", "device", "op", "passed", "failed", "skipped", "worst", "where"};
    struct tool_table *table = tool_table_create(8, heads);

    for (unsigned c = 3; c < 7; c++)
        tool_table_right(table, c);
    for (size_t i = 0; i < t->line_count; i++) {
        const struct line *l = t->lines + i;
        tool_table_cell(table, "%s", l->backend);
        tool_table_cell(table, "%s", l->device);
        tool_table_cell(table, "%s", l->op);
        tool_table_cell(table, "%u", l->passed);
        tool_table_cell(table, "%u", l->failed);
        tool_table_cell(table, "%u", l->skipped);
        tool_table_cell(table, "%.3g", l->worst);
        tool_table_cell(table, "%s", l->where);
    }
    tool_table_print(t->tool, table, "");
    printf("\nworst: error in units of the bound of the backend's class; %u passed, %u failed, %u skipped\n", t->passed,
           t->failed, t->skipped);
}

static int report(struct tool *tool, const struct request *r, const struct tally *t)
{
    int status = 0;

    if (tool->json)
        status = tool_print_json(tool, json_pack("{s:o, s:i, s:i, s:i, s:O}", "seed", tool_json_size(r->seed), "passed",
                                                 (int)t->passed, "failed", (int)t->failed, "skipped", (int)t->skipped,
                                                 "results", t->results));
    else if (t->line_count && !tool->quiet)
        print_summary(t);
    if (status)
        return status;
    if (t->failed)
        return TOOL_NO;
    if (!t->passed) {
        tool_note(tool, "verify: nothing to test");
        return TOOL_NOTHING_TO_DO;
    }
    return TOOL_DONE;
}

/* ---- which backends ---- */

/* '*' and '?' over the whole name, case folded, '-' equal to '_'. */
static int matches(const char *glob, const char *name)
{
    for (; *glob; glob++, name++) {
        int g = *glob >= 'A' && *glob <= 'Z' ? *glob + 32 : *glob,
            n = *name >= 'A' && *name <= 'Z' ? *name + 32 : *name;
        if (g == '*') {
            do
                if (matches(glob + 1, name))
                    return 1;
            while (*name++);
            return 0;
        }
        if (!n || (g != '?' && (g == '-' ? '_' : g) != (n == '-' ? '_' : n)))
            return 0;
    }
    return !*name;
}

static int wanted(const struct request *r, const struct moert_backend_info *b)
{
    /* without a name: all that the oracle may choose by itself */
    int found = !r->glob_count && !(b->flags & MOERT_BACKEND_F_OPT_IN);

    for (size_t i = 0; i < r->glob_count; i++) {
        found |= matches(r->globs[i], b->name);
        for (const char *const *a = b->aliases; *a; a++)
            found |= matches(r->globs[i], *a);
    }
    return found;
}

/* A plain name that nobody has is an error with the nearest; a glob may match nothing. */
static int check_names(struct tool *tool, const struct request *r, moert_context_t *context)
{
    struct moert_error err = MOERT_ERROR_INIT;
    uint32_t index;

    for (size_t i = 0; i < r->glob_count; i++)
        if (!strpbrk(r->globs[i], "*?") && moert_backend_find(context, r->globs[i], &index, &err))
            return tool_error(tool, &err);
    return 0;
}

/* ---- what is done with each ---- */

static int verify_cases(struct tally *t, const struct request *r, moert_context_t *context, const char *backend,
                        const char *device)
{
    struct moert_verify_options o = {.size = sizeof(o), .ops = r->ops ? r->ops : MOERT_VERIFY_ALL, .seed = r->seed};
    struct moert_error err = MOERT_ERROR_INIT;
    uint32_t failed = 0;

    if (moert_verify_backend(context, backend, device, &o, take_result, t, &failed, &err))
        return tool_error(t->tool, &err);
    return 0;
}

/* Every layer of the source, or the one that was named. */
static int verify_source(struct tally *t, struct request *r, moert_context_t *context, const char *backend,
                         const char *device)
{
    uint32_t count = moert_checkpoint_layer_count(r->source.checkpoint);
    int status = 0;

    for (uint32_t i = 0; !status && i < count; i++) {
        struct tool_verify v = {.context = context,
                                .checkpoint = r->source.checkpoint,
                                .backend = backend,
                                .device = device,
                                .seed = r->seed ? r->seed : 1,
                                .tokens = r->tokens,
                                .sink = take_result,
                                .sink_ctx = t};
        v.number = moert_checkpoint_layer_number(r->source.checkpoint, i);
        if (r->source.model_path && r->source.index_text && v.number != r->source.number)
            continue;
        status = tool_verify_layer(t->tool, &v);
    }
    return status;
}

static int verify_all(struct tally *t, struct request *r, moert_context_t *context)
{
    int status = check_names(t->tool, r, context), given = r->source.layer_path || r->source.model_path;

    for (uint32_t i = 0; !status && i < moert_backend_count(context); i++) {
        struct moert_backend_info b = {.size = sizeof(b)};
        if (moert_backend_get(context, i, &b, NULL) || !wanted(r, &b))
            continue;
        if (b.driver_state != MOERT_DRIVER_READY)
            tool_detail(t->tool, "verify: %s: driver %s is %s", b.name, b.driver,
                        moert_driver_state_name(b.driver_state));
        for (uint32_t k = 0; !status && b.driver_state == MOERT_DRIVER_READY && k < moert_device_count(context); k++) {
            struct moert_device_desc d = {.size = sizeof(d)};
            if (moert_device_get(context, k, &d, NULL) || strcmp(d.driver, b.driver))
                continue;
            status = given ? verify_source(t, r, context, b.name, d.id) : verify_cases(t, r, context, b.name, d.id);
        }
    }
    return status;
}

static int execute(struct tool *tool, struct request *r)
{
    struct tally t = {.tool = tool, .results = json_array()};
    moert_context_t *context = NULL;
    int status = 0;

    if (r->source.layer_path || r->source.model_path || r->source.config_path || r->source.index_text)
        status = tool_source_open(tool, &r->source, 0, 0);
    if (!status)
        status = tool_context(tool, &context);
    if (!status)
        status = verify_all(&t, r, context);
    if (!status)
        status = report(tool, r, &t);
    moert_context_destroy(context);
    json_decref(t.results);
    free(t.lines);
    return status;
}

static int run(struct tool *tool, int argc, char **argv)
{
    struct request r = {.tokens = 64};
    const char *value;
    int option = TOOL_OPERANDS, status = 0;

    while (!status && (option = tool_option(tool, argc, argv, &value)) >= 0)
        status = set_option(tool, &r, option, value);
    if (!status)
        status = option == TOOL_STOP ? tool->status : tool_operands(tool, argc, argv, 0, "");
    if (!status && option != TOOL_STOP)
        status = execute(tool, &r);
    tool_source_close(&r.source);
    return status;
}

const struct tool_command cmd_verify = {
    .name = "verify",
    .run = run,
    .help = "backends against the reference",
    .synopsis = "[--backend NAME]... [--op NAME]... [--seed N] [--json]\n"
                "[--layer FILE.safetensors [--config FILE.json] | --model DIR [--layer-index N]]",
    .options = options,
    .details = "Every ready backend is compared with cpu.reference; a failure names the first step (P0 to P6) out of "
               "bounds. Exit status 0: all within bounds; 1: a mismatch; 77: nothing to test.",
};
