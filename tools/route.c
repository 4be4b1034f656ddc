/* tools/route.c: `moert route`: router logits of a file to expert ids and weights (routing.md 2). */
#include "config.h"

#include "tools/files.h"
#include "tools/tensors.h"

#include <moert/routing.h>

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUTER, TOP_K, NUM_GROUPS, TOPK_GROUPS, SCORING, SCALE, RENORMALIZE };

static const struct tool_option options[] = {
    [ROUTER] = {"router", "KIND",
                "softmax, softmax-renorm, topk-softmax, sigmoid, topk-sigmoid, sqrt-softplus or grouped"},
    [TOP_K] = {"top-k", "K", "experts per token"},
    [NUM_GROUPS] = {"num-groups", "G", "grouped: number of groups of experts (default 1)"},
    [TOPK_GROUPS] = {"topk-groups", "N", "grouped: groups that are kept (default all)"},
    [SCORING] = {"scoring", "softmax|sigmoid|sqrt-softplus",
                 "grouped: score of a logit (default: sigmoid with a correction bias, else softmax)"},
    [SCALE] = {"scaling-factor", "F", "factor of the weights (default 1)"},
    [RENORMALIZE] = {"renormalize", NULL, "weights of the selected experts sum to 1"},
    {NULL, NULL, NULL},
};

static const char *const kinds[] = {"softmax",      "softmax-renorm", "topk-softmax", "sigmoid",
                                    "topk-sigmoid", "sqrt-softplus",  "grouped",      NULL};
static const char *const scorings[] = {"softmax", "sigmoid", "sqrt-softplus", NULL};

struct request {
    struct moert_router_config router;
    const char *kind;
    uint64_t top_k;
};

static int set_kind(struct tool *tool, struct request *r, const char *value)
{
    int i = tool_word(tool, "--router", value, kinds);

    if (i < 0)
        return TOOL_USAGE;
    r->kind = kinds[i];
    if (!strcmp(value, "softmax-renorm")) {
        r->router.renormalize = 1;
        value = "softmax";
    }
    moert_router_kind_from_name(value, &r->router.kind);
    return 0;
}

static int set_option(struct tool *tool, struct request *r, int option, const char *value)
{
    uint64_t n = 0;
    int status = 0;

    switch (option) {
    case ROUTER: return set_kind(tool, r, value);
    case TOP_K: return tool_number(tool, "--top-k", value, 0, UINT32_MAX, &r->top_k);
    case NUM_GROUPS:
        status = tool_number(tool, "--num-groups", value, 1, UINT32_MAX, &n);
        r->router.num_groups = (uint32_t)n;
        return status;
    case TOPK_GROUPS:
        status = tool_number(tool, "--topk-groups", value, 1, UINT32_MAX, &n);
        r->router.topk_groups = (uint32_t)n;
        return status;
    case SCORING:
        if (tool_word(tool, "--scoring", value, scorings) < 0)
            return TOOL_USAGE;
        moert_scoring_from_name(value, &r->router.scoring);
        return 0;
    case SCALE: return tool_real(tool, "--scaling-factor", value, &r->router.scaling_factor);
    default: r->router.renormalize = 1; return 0;
    }
}

static int check_request(struct tool *tool, const struct request *r)
{
    int grouped = r->router.kind == MOERT_ROUTER_GROUPED;

    if (!r->kind)
        return tool_usage_error(tool, "--router KIND is needed");
    if (r->top_k == UINT64_MAX)
        return tool_usage_error(tool, "--top-k K is needed");
    if (!grouped && (r->router.num_groups || r->router.topk_groups || r->router.scoring))
        return tool_usage_error(tool, "--num-groups, --topk-groups and --scoring go with --router grouped, not %s",
                                r->kind);
    return 0;
}

static int report(struct tool *tool, const struct request *r, const struct moert_route_args *args, const char *out)
{
    if (tool->json)
        return tool_print_json(tool, json_pack("{s:o, s:i, s:i, s:s, s:o, s:o}", "tokens", tool_json_size(args->tokens),
                                               "num_experts", (int)args->num_experts, "top_k", (int)args->top_k,
                                               "router", r->kind, "rows_nonfinite",
                                               tool_json_size(args->rows_nonfinite), "output", tool_json_string(out)));
    if (!tool->quiet)
        printf("%llu tokens, %u experts, top %u, %s: %s\n", (unsigned long long)args->tokens, args->num_experts,
               args->top_k, r->kind, out);
    if (args->rows_nonfinite)
        tool_note(tool, "%llu rows of logits held NaN or +Inf", (unsigned long long)args->rows_nonfinite);
    return 0;
}

/* The correction bias, F32 [E], into args; absent is fine. */
static int read_bias(struct tool *tool, struct tool_input *in, struct moert_route_args *args)
{
    struct moert_tensor bias;
    int status;

    if (!tool_input_has(in, "correction_bias"))
        return 0;
    status = tool_input_tensor(tool, in, "correction_bias", tool_f32_dtype, 1, &bias);
    if (!status && bias.shape[0] != args->num_experts)
        status = tool_fail(tool, MOERT_E_SHAPE, "tensor-shape",
                           "%s: correction_bias is [%llu], router_logits has %u experts",
                           moert_safetensors_path(in->file), (unsigned long long)bias.shape[0], args->num_experts);
    if (!status)
        args->correction_bias = bias.data;
    return status;
}

static int route(struct tool *tool, const struct request *r, const char *in_path, const char *out_path)
{
    struct moert_route_args args = {.size = sizeof(args)};
    struct moert_error err = MOERT_ERROR_INIT;
    struct tool_input in = {0};
    struct moert_tensor logits;
    int status = tool_same_file(in_path, out_path) ? tool_usage_error(tool, "%s is input and output", out_path)
                                                   : tool_input_open(tool, in_path, &in);

    if (!status)
        status = tool_input_tensor(tool, &in, "router_logits", tool_float_dtypes, 2, &logits);
    if (!status && logits.shape[1] > INT32_MAX)
        status = tool_fail(tool, MOERT_E_TOO_LARGE, "too-large", "%s: router_logits has %llu experts; at most %d",
                           in_path, (unsigned long long)logits.shape[1], INT32_MAX);
    if (status)
        goto out;
    args.tokens = logits.shape[0];
    args.num_experts = (uint32_t)logits.shape[1];
    args.top_k = (uint32_t)r->top_k;
    args.logits = logits.data;
    args.logits_dtype = logits.dtype;
    status = read_bias(tool, &in, &args);
    if (!status && moert_router_check(&r->router, args.num_experts, args.top_k, args.correction_bias != NULL, &err))
        status = tool_error(tool, &err);
    if (status)
        goto out;
    args.ids = tool_alloc(tool, args.tokens, args.top_k * sizeof(*args.ids));
    args.weights = args.ids ? tool_alloc(tool, args.tokens, args.top_k * sizeof(*args.weights)) : NULL;
    status = args.weights ? 0 : TOOL_DEVICE;
    if (!status && moert_route(&r->router, &args, &err))
        status = tool_error(tool, &err);
    if (!status) {
        const uint64_t shape[] = {args.tokens, args.top_k};
        const struct tool_output_tensor tensors[] = {
            {"topk_ids", moert_tensor_host(args.ids, MOERT_I32, 2, shape)},
            {"topk_weights", moert_tensor_host(args.weights, MOERT_F32, 2, shape)},
        };
        status = tool_write_tensors(tool, out_path, tensors, 2);
    }
    if (!status)
        status = report(tool, r, &args, out_path);
out:
    free(args.ids);
    free(args.weights);
    tool_input_close(&in);
    return status;
}

static int run(struct tool *tool, int argc, char **argv)
{
    struct request r = {.router = {.size = sizeof(r.router)}, .top_k = UINT64_MAX};
    const char *value;
    int option, status;

    while ((option = tool_option(tool, argc, argv, &value)) >= 0) {
        status = set_option(tool, &r, option, value);
        if (status)
            return status;
    }
    if (option == TOOL_STOP)
        return tool->status;
    status = tool_operands(tool, argc, argv, 2, "IN OUT");
    if (!status)
        status = check_request(tool, &r);
    return status ? status : route(tool, &r, argv[optind], argv[optind + 1]);
}

const struct tool_command cmd_route = {
    .name = "route",
    .run = run,
    .help = "expert ids and weights from router logits",
    .synopsis = "IN OUT --router KIND --top-k K [--num-groups G --topk-groups N] [--scoring KIND]\n"
                "[--scaling-factor F] [--renormalize] [--json]",
    .options = options,
    .details = "IN holds router_logits [T,E] (F32, BF16 or F16) and, when the router has one, correction_bias F32 [E]. "
               "OUT gets topk_ids I32 [T,K] and topk_weights F32 [T,K].",
};
