/* tools/dequantize.c: moert dequantize: MXFP8 and LUT-B weights back to BF16 or F32 (cli.md). */
#include "config.h"

#include "tools/quantize_file.h"

#include <getopt.h>
#include <unistd.h>

enum { DTYPE, JOBS, RESUME, FORCE };

static const struct tool_option options[] = {
    [DTYPE] = {"dtype", "bf16|f32", "of the weights (default bf16)"},
    [JOBS] = {"jobs", "N", "threads (default: one per CPU); results do not depend on it"},
    [RESUME] = {"resume", NULL, "directories: keep the shards that an interrupted run with these options completed"},
    [FORCE] = {"force", NULL, "directories: replace the checkpoint in DST, which must be empty otherwise"},
    {NULL, NULL, NULL},
};

static int take(struct tool *tool, int option, const char *value, struct quant_options *o)
{
    static const char *const words[] = {"bf16", "f32", NULL};
    static const moert_dtype_t dtypes[] = {MOERT_BF16, MOERT_F32};
    uint64_t jobs;
    int i;

    switch (option) {
    case DTYPE:
        i = tool_word(tool, "--dtype", value, words);
        if (i < 0)
            return TOOL_USAGE;
        o->dtype = dtypes[i];
        return 0;
    case JOBS:
        if (tool_number(tool, "--jobs", value, 1, 256, &jobs))
            return TOOL_USAGE;
        o->jobs = (unsigned)jobs;
        return 0;
    case RESUME: o->resume = 1; return 0;
    default: o->force = 1; return 0;
    }
}

static int run(struct tool *tool, int argc, char **argv)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    struct quant_options o = {.decode = 1,
                              .dtype = MOERT_BF16,
                              .jobs = cpus < 1     ? 1
                                      : cpus > 256 ? 256
                                                   : (unsigned)cpus};
    const char *value;
    int option;

    while ((option = tool_option(tool, argc, argv, &value)) >= 0)
        if (take(tool, option, value, &o))
            return TOOL_USAGE;
    if (option == TOOL_STOP)
        return tool->status;
    if (o.resume && o.force)
        return tool_usage_error(tool, "--resume goes on with what is there, --force replaces it; give one of them");
    if (tool_operands(tool, argc, argv, 2, "SRC DST"))
        return TOOL_USAGE;
    return quant_main(tool, &o, argv[optind], argv[optind + 1], NULL);
}

const struct tool_command cmd_dequantize = {
    "dequantize",
    run,
    "turn MXFP8 and LUT-B weights back into BF16 or F32",
    "SRC DST [--dtype bf16|f32] [--jobs N] [--resume | --force]",
    options,
    "SRC is a safetensors file or a checkpoint directory; DST is the same kind. X with X_scale, and X_packed with "
    "X_codebook, become X; everything else is copied byte for byte.",
};
