/* tools/quantize.c: moert quantize: weights of a file or a checkpoint to MXFP8 or LUT-B (cli.md). */
#include "config.h"

#include "tools/quantize_file.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { FORMAT, FIT, KEEP_ZERO, CALIBRATE, SCALE_RULE, NONFINITE, INCLUDE, EXCLUDE, JOBS, REPORT, RESUME, FORCE };

static const struct tool_option options[] = {
    [FORMAT] = {"format", "mxfp8|lut-b", "number format of the output (required)"},
    [FIT] = {"fit", "optimal|multistart|farthest", "lut-b: how codebooks are found (default optimal)"},
    [KEEP_ZERO] = {"keep-zero", NULL, "lut-b: a level 0 in every tile, so that zeros stay exact"},
    [CALIBRATE] = {"calibrate", "TEXT", "not available in this version"},
    [SCALE_RULE] = {"scale-rule", "rceil|floor|ceil|even", "mxfp8: scale of a block (default rceil)"},
    [NONFINITE] = {"nan", "poison|contain|error", "mxfp8: what Inf and NaN do (default error)"},
    [INCLUDE] = {"include", "GLOB", "convert the tensors whose names match instead of the default set"},
    [EXCLUDE] = {"exclude", "GLOB", "leave the tensors whose names match as they are"},
    [JOBS] = {"jobs", "N", "threads (default: one per CPU); results do not depend on it"},
    [REPORT] = {"report", "FILE.json", "per tensor: signal to error, largest error, bits per weight, time"},
    [RESUME] = {"resume", NULL, "directories: keep the shards that an interrupted run with these options completed"},
    [FORCE] = {"force", NULL, "directories: replace the checkpoint in DST, which must be empty otherwise"},
    {NULL, NULL, NULL},
};

/* What was given, to find options of the other format. */
struct given {
    int fit, keep_zero, scale_rule, nonfinite;
};

static int add_glob(struct tool *tool, const char **list, unsigned *count, const char *value)
{
    if (*count == QUANT_GLOBS)
        return tool_usage_error(tool, "at most %d patterns of a kind", QUANT_GLOBS);
    list[(*count)++] = value;
    return 0;
}

static int take_format(struct tool *tool, struct quant_options *o, const char *value)
{
    static const char *const words[] = {"mxfp8", "lut-b", NULL};
    static const moert_scheme_t schemes[] = {MOERT_SCHEME_MXFP8, MOERT_SCHEME_LUT_B};
    int i = tool_word(tool, "--format", value, words);

    if (i < 0)
        return TOOL_USAGE;
    o->scheme = schemes[i];
    return 0;
}

static int take_fit(struct tool *tool, struct quant_options *o, const char *value)
{
    static const char *const words[] = {"optimal", "multistart", "farthest", NULL};
    static const moert_lutb_fit_t fits[] = {MOERT_FIT_OPTIMAL, MOERT_FIT_MULTISTART, MOERT_FIT_FARTHEST};
    int i = tool_word(tool, "--fit", value, words);

    if (i < 0)
        return TOOL_USAGE;
    o->lutb.fit = fits[i];
    return 0;
}

static int take_scale_rule(struct tool *tool, struct quant_options *o, const char *value)
{
    static const char *const words[] = {"rceil", "floor", "ceil", "even", NULL};
    static const moert_scale_rule_t rules[] = {MOERT_RCEIL, MOERT_FLOOR, MOERT_CEIL, MOERT_EVEN};
    int i = tool_word(tool, "--scale-rule", value, words);

    if (i < 0)
        return TOOL_USAGE;
    o->mxfp8.rule = rules[i];
    return 0;
}

static int take_nonfinite(struct tool *tool, struct quant_options *o, const char *value)
{
    static const char *const words[] = {"poison", "contain", "error", NULL};
    static const moert_nonfinite_t policies[] = {MOERT_NONFINITE_POISON, MOERT_NONFINITE_CONTAIN,
                                                 MOERT_NONFINITE_ERROR};
    int i = tool_word(tool, "--nan", value, words);

    if (i < 0)
        return TOOL_USAGE;
    o->mxfp8.nonfinite = policies[i];
    return 0;
}

static int take_jobs(struct tool *tool, struct quant_options *o, const char *value)
{
    uint64_t jobs;

    if (tool_number(tool, "--jobs", value, 1, 256, &jobs))
        return TOOL_USAGE;
    o->jobs = (unsigned)jobs;
    return 0;
}

static int take_report(struct tool *tool, struct quant_options *o, const char *value, const char **report)
{
    const char *dot = strrchr(value, '.');

    if (!dot || strcmp(dot, ".json"))
        return tool_usage_error(tool, "--report %s: only FILE.json is available in this version", value);
    o->measure = 1;
    *report = value;
    return 0;
}

static int take(struct tool *tool, int option, const char *value, struct quant_options *o, struct given *given,
                const char **report)
{
    switch (option) {
    case FORMAT: return take_format(tool, o, value);
    case FIT: given->fit = 1; return take_fit(tool, o, value);
    case KEEP_ZERO:
        given->keep_zero = 1;
        o->lutb.keep_zero = 1;
        return 0;
    case CALIBRATE: return tool_usage_error(tool, "--calibrate is not available in this version; leave it out");
    case SCALE_RULE: given->scale_rule = 1; return take_scale_rule(tool, o, value);
    case NONFINITE: given->nonfinite = 1; return take_nonfinite(tool, o, value);
    case INCLUDE: return add_glob(tool, o->include, &o->includes, value);
    case EXCLUDE: return add_glob(tool, o->exclude, &o->excludes, value);
    case JOBS: return take_jobs(tool, o, value);
    case REPORT: return take_report(tool, o, value, report);
    case RESUME: o->resume = 1; return 0;
    default: o->force = 1; return 0;
    }
}

static int check_together(struct tool *tool, const struct quant_options *o, const struct given *given)
{
    if (!o->scheme)
        return tool_usage_error(tool, "--format mxfp8 or --format lut-b is required");
    if (o->scheme == MOERT_SCHEME_MXFP8 && (given->fit || given->keep_zero))
        return tool_usage_error(tool, "%s belongs to --format lut-b", given->fit ? "--fit" : "--keep-zero");
    if (o->scheme == MOERT_SCHEME_LUT_B && given->scale_rule)
        return tool_usage_error(tool, "--scale-rule belongs to --format mxfp8; lut-b has no scale");
    if (o->scheme == MOERT_SCHEME_LUT_B && given->nonfinite && o->mxfp8.nonfinite != MOERT_NONFINITE_ERROR)
        return tool_usage_error(tool, "lut-b cannot hold Inf or NaN: only --nan error");
    if (o->lutb.keep_zero && o->lutb.fit != MOERT_FIT_OPTIMAL)
        return tool_usage_error(tool, "--keep-zero needs --fit optimal");
    if (o->resume && o->force)
        return tool_usage_error(tool, "--resume goes on with what is there, --force replaces it; give one of them");
    return 0;
}

static int run(struct tool *tool, int argc, char **argv)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    struct quant_options o = {.jobs = cpus < 1 ? 1 : cpus > 256 ? 256 : (unsigned)cpus};
    const char *value, *report = NULL;
    struct given given = {0};
    int option;

    o.lutb.size = sizeof(o.lutb);
    o.mxfp8 = (struct moert_mxfp8_params){sizeof(o.mxfp8), MOERT_RCEIL, MOERT_NONFINITE_ERROR, 0, 0};
    while ((option = tool_option(tool, argc, argv, &value)) >= 0)
        if (take(tool, option, value, &o, &given, &report))
            return TOOL_USAGE;
    if (option == TOOL_STOP)
        return tool->status;
    if (check_together(tool, &o, &given) || tool_operands(tool, argc, argv, 2, "SRC DST"))
        return TOOL_USAGE;
    return quant_main(tool, &o, argv[optind], argv[optind + 1], report);
}

const struct tool_command cmd_quantize = {
    "quantize",
    run,
    "quantise the weights of a file or a checkpoint to MXFP8 or LUT-B",
    "SRC DST --format mxfp8|lut-b [OPTION]...",
    options,
    "SRC is a safetensors file or a checkpoint directory; DST is the same kind. Of a directory the routed experts are "
    "converted and everything else is copied byte for byte; of a file every floating tensor with two or more "
    "dimensions, "
    "of a layer file (metadata moert.layer) its expert weights. X becomes X and X_scale (mxfp8), or X_packed and "
    "X_codebook (lut-b).",
};
