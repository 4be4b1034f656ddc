/* tools/align.c: `moert align`: slots grouped by expert and padded to blocks (routing.md 3). */
#include "config.h"

#include "tools/files.h"
#include "tools/tensors.h"

#include <moert/routing.h>

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCK_SIZE, NUM_EXPERTS, IGNORE_INVALID, PAD };

static const struct tool_option options[] = {
    [BLOCK_SIZE] = {"block-size", "B", "rows per block"},
    [NUM_EXPERTS] = {"num-experts", "E", "experts of the id space: ids 0..E-1 are valid, all others mean no expert"},
    [IGNORE_INVALID] = {"ignore-invalid", NULL, "with an expert map: local experts only, blocks carry local ids"},
    [PAD] = {"pad-sorted-ids", NULL, "make sorted_token_ids a whole number of blocks long"},
    {NULL, NULL, NULL},
};

/* Inputs, sizes and outputs of one call. */
struct job {
    struct moert_align_params params;
    struct moert_tensor ids, map;
    struct moert_align_sizes sizes;
    int32_t *sorted, *expert_ids, total;
};

static int read_inputs(struct tool *tool, struct tool_input *in, struct job *job)
{
    int status = tool_input_ids(tool, in, "topk_ids", &job->ids);

    if (!status && job->ids.shape[1] > UINT32_MAX)
        status = tool_fail(tool, MOERT_E_TOO_LARGE, "too-large", "topk_ids has %llu columns",
                           (unsigned long long)job->ids.shape[1]);
    if (!status && tool_input_has(in, "expert_map"))
        status = tool_input_tensor(tool, in, "expert_map", tool_i32_dtype, 1, &job->map);
    return status;
}

static int check_map(struct tool *tool, const struct job *job)
{
    struct moert_error err = MOERT_ERROR_INIT;

    /* No layer is known here: local ids may be anything below E. */
    if (job->map.data && moert_expert_map_check(job->map.data, job->map.shape[0], job->params.num_experts,
                                                job->params.num_experts, &err))
        return tool_error(tool, &err);
    return 0;
}

static int compute(struct tool *tool, struct job *job)
{
    struct moert_error err = MOERT_ERROR_INIT;
    uint64_t slots = tool_elements(&job->ids);

    if (moert_align_sizes(slots, &job->params, &job->sizes, &err))
        return tool_error(tool, &err);
    job->sorted = tool_alloc(tool, job->sizes.sorted, sizeof(*job->sorted));
    job->expert_ids = job->sorted ? tool_alloc(tool, job->sizes.expert_ids, sizeof(*job->expert_ids)) : NULL;
    if (!job->expert_ids)
        return TOOL_DEVICE;
    if (moert_align(job->ids.data, job->ids.shape[0], (uint32_t)job->ids.shape[1], job->map.data, &job->params,
                    job->sorted, job->expert_ids, &job->total, NULL, &err))
        return tool_error(tool, &err);
    return 0;
}

static int report(struct tool *tool, const struct job *job, const char *out)
{
    uint64_t slots = tool_elements(&job->ids);

    if (tool->json)
        return tool_print_json(tool, json_pack("{s:o, s:o, s:i, s:i, s:s, s:b, s:i, s:o, s:o, s:o}", "tokens",
                                               tool_json_size(job->ids.shape[0]), "slots", tool_json_size(slots),
                                               "num_experts", (int)job->params.num_experts, "block_size",
                                               (int)job->params.block_size, "mode",
                                               job->params.ignore_invalid ? "ignore-invalid" : "default", "expert_map",
                                               job->map.data != NULL, "num_tokens_post_padded", (int)job->total,
                                               "sorted_token_ids", tool_json_size(job->sizes.sorted), "expert_ids",
                                               tool_json_size(job->sizes.expert_ids), "output", tool_json_string(out)));
    if (!tool->quiet)
        printf("%llu slots, %u experts, block %u: %d rows in %d blocks: %s\n", (unsigned long long)slots,
               job->params.num_experts, job->params.block_size, job->total,
               job->total / (int32_t)job->params.block_size, out);
    return 0;
}

static int align(struct tool *tool, struct job *job, const char *in_path, const char *out_path)
{
    const uint64_t one = 1;
    struct tool_input in = {0};
    int status = tool_same_file(in_path, out_path) ? tool_usage_error(tool, "%s is input and output", out_path)
                                                   : tool_input_open(tool, in_path, &in);

    if (!status)
        status = read_inputs(tool, &in, job);
    if (!status)
        status = check_map(tool, job);
    if (!status)
        status = compute(tool, job);
    if (!status) {
        const struct tool_output_tensor tensors[] = {
            {"sorted_token_ids", moert_tensor_host(job->sorted, MOERT_I32, 1, &job->sizes.sorted)},
            {"expert_ids", moert_tensor_host(job->expert_ids, MOERT_I32, 1, &job->sizes.expert_ids)},
            {"num_tokens_post_padded", moert_tensor_host(&job->total, MOERT_I32, 1, &one)},
        };
        status = tool_write_tensors(tool, out_path, tensors, 3);
    }
    if (!status)
        status = report(tool, job, out_path);
    free(job->sorted);
    free(job->expert_ids);
    tool_input_close(&in);
    return status;
}

static int run(struct tool *tool, int argc, char **argv)
{
    struct job job = {.params = {.size = sizeof(job.params)}};
    uint64_t block = 0, experts = 0;
    const char *value;
    int option, status = 0, has_block = 0, has_experts = 0;

    while ((option = tool_option(tool, argc, argv, &value)) >= 0) {
        switch (option) {
        case BLOCK_SIZE:
            status = tool_number(tool, "--block-size", value, 0, INT32_MAX, &block);
            has_block = 1;
            break;
        case NUM_EXPERTS:
            status = tool_number(tool, "--num-experts", value, 0, INT32_MAX, &experts);
            has_experts = 1;
            break;
        case IGNORE_INVALID: job.params.ignore_invalid = 1; break;
        default: job.params.pad_sorted_ids = 1; break;
        }
        if (status)
            return status;
    }
    if (option == TOOL_STOP)
        return tool->status;
    status = tool_operands(tool, argc, argv, 2, "IN OUT");
    if (!status && !has_block)
        status = tool_usage_error(tool, "--block-size B is needed");
    if (!status && !has_experts)
        status = tool_usage_error(tool, "--num-experts E is needed");
    if (status)
        return status;
    if (!block)
        return tool_fail(tool, MOERT_E_VALUE, "size", "block size is 0; must be at least 1");
    if (!experts)
        return tool_fail(tool, MOERT_E_VALUE, "size", "num_experts is 0; must be at least 1");
    job.params.block_size = (uint32_t)block;
    job.params.num_experts = (uint32_t)experts;
    return align(tool, &job, argv[optind], argv[optind + 1]);
}

const struct tool_command cmd_align = {
    .name = "align",
    .run = run,
    .help = "slots grouped by expert, padded to blocks",
    .synopsis = "IN OUT --block-size B --num-experts E [--ignore-invalid] [--pad-sorted-ids]\n"
                "[--json]",
    .options = options,
    .details = "IN holds topk_ids I32 or I64 [T,K] and optionally expert_map I32 [E] (local expert or -1). OUT gets "
               "sorted_token_ids, expert_ids and num_tokens_post_padded, all I32.",
};
