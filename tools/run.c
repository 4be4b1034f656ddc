/* tools/run.c: `moert run`: one expert layer on real input. The walk through the library in one place: open the
 * weights, ask the oracle, make and load the layer, run it, write the output, say what ran. */
#include "config.h"

#include "tools/files.h"
#include "tools/clock.h"
#include "tools/record.h"
#include "tools/source.h"
#include "tools/tensors.h"

#include <getopt.h>
#include <math.h>
#include <moert/float8.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LAYER,
    CONFIG,
    MODEL,
    LAYER_INDEX,
    INPUT,
    OUTPUT,
    BACKEND,
    DEVICE,
    POLICY,
    REPEAT,
    INPUT_TENSOR,
    IDS_TENSOR,
    WEIGHTS_TENSOR,
    LOGITS_TENSOR,
    COMPARE,
    TENSOR,
    MAX_ERROR
};

static const struct tool_option options[] = {
    [LAYER] = {"layer", "FILE.safetensors", "layer file"},
    [CONFIG] = {"config", "FILE.json", "description of the layer file, when its metadata hold none"},
    [MODEL] = {"model", "DIR", "checkpoint directory"},
    [LAYER_INDEX] = {"layer-index", "N", "decoder layer of the checkpoint"},
    [INPUT] = {"input", "FILE", "hidden_states and routing"},
    [OUTPUT] = {"output", "FILE", "output, topk_ids and topk_weights are written there"},
    [BACKEND] = {"backend", "NAME", "backend (name or alias) instead of the oracle's choice"},
    [DEVICE] = {"device", "ID", "only this device, as `moert info` names it"},
    [POLICY] = {"policy", "FILE", "rules file (not available yet)"},
    [REPEAT] = {"repeat", "N", "run N times; the times of all runs are kept (default 1)"},
    [INPUT_TENSOR] = {"input-tensor", "NAME",
                      "tensor of the input file that holds the hidden states (default hidden_states)"},
    [IDS_TENSOR] = {"ids-tensor", "NAME", "tensor that holds the expert ids (default topk_ids)"},
    [WEIGHTS_TENSOR] = {"weights-tensor", "NAME", "tensor that holds the router weights (default topk_weights)"},
    [LOGITS_TENSOR] = {"logits-tensor", "NAME", "tensor that holds the router logits (default router_logits)"},
    [COMPARE] = {"compare", "FILE", "compare the output with a tensor of this file"},
    [TENSOR] = {"tensor", "NAME", "the tensor of --compare (default output)"},
    [MAX_ERROR] = {"max-error", "X", "exit 1 when the relative Frobenius error of --compare exceeds X"},
    {NULL, NULL, NULL},
};

struct request {
    struct tool_source source;
    const char *input, *output, *backend, *device;
    const char *input_tensor, *ids_tensor, *weights_tensor, *logits_tensor;
    const char *compare, *compare_tensor;
    double max_error; /* negative: no limit */
    uint64_t repeat;
};

/* Everything one invocation holds. */
struct job {
    struct tool_input in, reference;
    struct moert_tensor expected;
    moert_context_t *context;
    moert_decision_t *decision;
    moert_layer_t *layer;
    moert_queue_t *queue;
    struct moert_layer_args args;
    double *times; /* ns, in order of the runs */
    struct moert_counters counters;
    uint64_t weight_bytes; /* touched by one run */
    double error, largest;
};

static int set_option(struct tool *tool, struct request *r, int option, const char *value)
{
    switch (option) {
    case LAYER: r->source.layer_path = value; return 0;
    case CONFIG: r->source.config_path = value; return 0;
    case MODEL: r->source.model_path = value; return 0;
    case LAYER_INDEX: r->source.index_text = value; return 0;
    case INPUT: r->input = value; return 0;
    case OUTPUT: r->output = value; return 0;
    case BACKEND: r->backend = value; return 0;
    case DEVICE: r->device = value; return 0;
    case POLICY: return tool_usage_error(tool, "--policy: rules files are not available in this version");
    case REPEAT: return tool_number(tool, "--repeat", value, 1, 1000000, &r->repeat);
    case INPUT_TENSOR: r->input_tensor = value; return 0;
    case IDS_TENSOR: r->ids_tensor = value; return 0;
    case WEIGHTS_TENSOR: r->weights_tensor = value; return 0;
    case LOGITS_TENSOR: r->logits_tensor = value; return 0;
    case COMPARE: r->compare = value; return 0;
    case TENSOR: r->compare_tensor = value; return 0;
    default:
        if (tool_real(tool, "--max-error", value, &r->max_error))
            return TOOL_USAGE;
        return r->max_error < 0 ? tool_usage_error(tool, "--max-error is %s; must not be negative", value) : 0;
    }
}

static int check_request(struct tool *tool, const struct request *r)
{
    if (!r->input)
        return tool_usage_error(tool, "--input FILE is needed");
    if (!r->output)
        return tool_usage_error(tool, "--output FILE is needed");
    if (tool_same_file(r->output, r->input) ||
        (r->source.layer_path && tool_same_file(r->output, r->source.layer_path)) ||
        (r->compare && tool_same_file(r->output, r->compare)))
        return tool_usage_error(tool, "--output %s is one of the inputs", r->output);
    if (!r->compare && (r->compare_tensor || r->max_error >= 0))
        return tool_usage_error(tool, "--tensor and --max-error go with --compare FILE");
    if (r->logits_tensor && (r->ids_tensor || r->weights_tensor))
        return tool_usage_error(tool, "--logits-tensor excludes --ids-tensor and --weights-tensor");
    return 0;
}

/* ---- input ---- */

/* Ids with weights, or logits, or neither (the layer's own router). Names that were given must exist. */
static int read_routing(struct tool *tool, const struct request *r, struct job *job)
{
    const char *ids = r->ids_tensor ? r->ids_tensor : "topk_ids";
    const char *weights = r->weights_tensor ? r->weights_tensor : "topk_weights";
    const char *logits = r->logits_tensor ? r->logits_tensor : "router_logits";
    int named = r->ids_tensor || r->weights_tensor, status = 0;

    if (named || (!r->logits_tensor && tool_input_has(&job->in, ids))) {
        status = tool_input_ids(tool, &job->in, ids, &job->args.ids);
        if (!status)
            status = tool_input_tensor(tool, &job->in, weights, tool_f32_dtype, 2, &job->args.weights);
    } else if (r->logits_tensor || tool_input_has(&job->in, logits))
        status = tool_input_tensor(tool, &job->in, logits, tool_float_dtypes, 2, &job->args.logits);
    if (!status && tool_input_has(&job->in, "expert_map"))
        status = tool_input_tensor(tool, &job->in, "expert_map", tool_i32_dtype, 1, &job->args.expert_map);
    return status;
}

static int read_input(struct tool *tool, const struct request *r, struct job *job)
{
    const char *x = r->input_tensor ? r->input_tensor : "hidden_states";
    int status = tool_input_open(tool, r->input, &job->in);

    if (!status)
        status = tool_input_tensor(tool, &job->in, x, tool_float_dtypes, 2, &job->args.x);
    if (!status)
        status = read_routing(tool, r, job);
    return status;
}

/* The reference is read before the run: a missing one should not cost the run. */
static int read_reference(struct tool *tool, const struct request *r, struct job *job)
{
    const char *name = r->compare_tensor ? r->compare_tensor : "output";
    const struct moert_tensor *x = &job->args.x;
    int status;

    if (!r->compare)
        return 0;
    status = tool_input_open(tool, r->compare, &job->reference);
    if (!status)
        status = tool_input_tensor(tool, &job->reference, name, tool_float_dtypes, 2, &job->expected);
    if (!status && (job->expected.shape[0] != x->shape[0] || job->expected.shape[1] != x->shape[1]))
        status = tool_fail(tool, MOERT_E_SHAPE, "tensor-shape", "%s: \"%s\" is [%llu,%llu], the output [%llu,%llu]",
                           r->compare, name, (unsigned long long)job->expected.shape[0],
                           (unsigned long long)job->expected.shape[1], (unsigned long long)x->shape[0],
                           (unsigned long long)x->shape[1]);
    return status;
}

/* ---- the layer ---- */

static int no_backend(struct tool *tool, const struct job *job, const struct moert_error *err)
{
    if (tool->json && job->decision) {
        json_t *record = json_loads(moert_decision_json(job->decision), 0, NULL);
        tool_print_json(tool,
                        json_pack("{s:{s:s?, s:s, s:o, s:i}, s:o?}", "error", "status", moert_status_name(err->status),
                                  "code", err->code, "text", tool_json_string(err->text), "exit",
                                  moert_status_exit_code(err->status), "decision", record));
    }
    return tool_error(tool, err);
}

static int make_layer(struct tool *tool, struct request *r, struct job *job)
{
    struct moert_select_options select = {.size = sizeof(select), .backend = r->backend, .device = r->device};
    struct moert_layer_config *config = &r->source.config;
    struct moert_error err = MOERT_ERROR_INIT;
    uint32_t device;

    select.tokens = job->args.x.shape[0];
    /* A checkpoint says nothing of the caller's activations: d follows the hidden states. */
    if (r->source.model_path)
        config->dtype = job->args.x.dtype;
    if (moert_layer_config_check(config, &err) ||
        (r->device && moert_device_find(job->context, r->device, &device, &err)))
        return tool_error(tool, &err);
    if (moert_select(job->context, config, &select, &job->decision, &err))
        return no_backend(tool, job, &err);
    if (moert_layer_create(job->context, config, job->decision, &job->layer, &err) ||
        moert_checkpoint_load(r->source.checkpoint, r->source.number, job->layer, &err) ||
        moert_queue_create(job->context, moert_layer_device(job->layer), 0, &job->queue, &err))
        return tool_error(tool, &err);
    return 0;
}

static int make_outputs(struct tool *tool, const struct request *r, struct job *job)
{
    const struct moert_layer_config *c = moert_layer_get_config(job->layer);
    const uint64_t routed[] = {job->args.x.shape[0], (uint64_t)c->top_k + c->num_fused_shared};
    struct moert_layer_args *a = &job->args;
    void *out = tool_alloc(tool, tool_elements(&a->x), moert_dtype_size(a->x.dtype));
    int32_t *ids = out ? tool_alloc(tool, routed[0], routed[1] * sizeof(*ids)) : NULL;
    float *weights = ids ? tool_alloc(tool, routed[0], routed[1] * sizeof(*weights)) : NULL;

    a->output = moert_tensor_host(out, a->x.dtype, 2, a->x.shape);
    a->out_ids = moert_tensor_host(ids, MOERT_I32, 2, routed);
    a->out_weights = moert_tensor_host(weights, MOERT_F32, 2, routed);
    job->times = weights ? tool_alloc(tool, r->repeat, sizeof(*job->times)) : NULL;
    return job->times ? 0 : TOOL_DEVICE;
}

static int run_layer(struct tool *tool, const struct request *r, struct job *job)
{
    struct moert_error err = MOERT_ERROR_INIT;
    uint32_t done = 0;

    job->counters.size = sizeof(job->counters);
    for (uint64_t i = 0; i < r->repeat; i++) {
        double start = tool_clock();
        if (moert_layer_run(job->layer, job->queue, &job->args, &err) ||
            moert_queue_wait(job->queue, UINT64_MAX, UINT64_MAX, &done, &err))
            return tool_error(tool, &err);
        job->times[i] = tool_clock() - start;
    }
    if (moert_layer_counters(job->layer, &job->counters, &err))
        return tool_error(tool, &err);
    job->weight_bytes = job->counters.weight_bytes / r->repeat;
    return 0;
}

/* ---- what came out ---- */

/* Relative Frobenius error ||out - expected|| / ||expected||; 0 for two zero matrices, Inf against a zero reference. */
static void compare(struct job *job)
{
    const struct moert_tensor *out = &job->args.output, *want = &job->expected;
    double difference = 0, norm = 0;

    for (uint64_t i = 0; i < tool_elements(want); i++) {
        double y = moert_load(out->data, out->dtype, i), r = moert_load(want->data, want->dtype, i);
        double d = fabs(y - r);
        difference += d * d;
        norm += r * r;
        if (!(d <= job->largest))
            job->largest = d;
    }
    job->error = difference > 0 || isnan(difference) ? sqrt(difference / norm) : 0;
}

static int write_output(struct tool *tool, const struct request *r, const struct job *job)
{
    const struct tool_output_tensor tensors[] = {
        {"output", job->args.output},
        {"topk_ids", job->args.out_ids},
        {"topk_weights", job->args.out_weights},
    };
    return tool_write_tensors(tool, r->output, tensors, 3);
}

static json_t *counters_json(const struct job *job)
{
    const struct moert_counters *c = &job->counters;
    struct moert_layer_stats stats = {.size = sizeof(stats)};
    json_t *implementations = json_array();

    for (uint32_t i = 0; i < c->implementations && i < MOERT_MAX_IMPLEMENTATIONS; i++)
        json_array_append_new(implementations,
                              json_pack("{s:o, s:o, s:o}", "name", tool_json_string(c->by_implementation[i].name),
                                        "runs", tool_json_size(c->by_implementation[i].runs), "tokens",
                                        tool_json_size(c->by_implementation[i].tokens)));
    moert_layer_stats(job->layer, &stats, NULL);
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "implementations", implementations,
                     "weight_bytes", tool_json_size(c->weight_bytes), "blocks", tool_json_size(c->blocks),
                     "poisoned_blocks", tool_json_size(c->poisoned_blocks), "calls", tool_json_size(stats.calls),
                     "chunks", tool_json_size(stats.chunks), "staged_bytes", tool_json_size(stats.staged_bytes),
                     "allocations", tool_json_size(stats.allocations), "rows_nonfinite",
                     tool_json_size(stats.rows_nonfinite));
}

static int print_json(struct tool *tool, const struct request *r, const struct job *job)
{
    const struct moert_layer_config *c = moert_layer_get_config(job->layer);
    struct tool_statistics s = tool_statistics(job->times, r->repeat);
    json_t *samples = json_array();
    json_t *document;

    for (uint64_t i = 0; i < r->repeat; i++)
        json_array_append_new(samples, json_integer((json_int_t)job->times[i]));
    document = json_pack(
        "{s:s, s:s, s:s, s:s?, s:s?, s:o, s:{s:I, s:I, s:I, s:I, s:o}, s:o, s:o, s:o, s:o?}", "backend",
        moert_decision_backend(job->decision), "device", moert_decision_device(job->decision), "class",
        moert_class_name(moert_decision_class(job->decision)), "weight_scheme", moert_scheme_name(c->weight_scheme),
        "dtype", moert_dtype_name(c->dtype), "tokens", tool_json_size(job->args.x.shape[0]), "time_ns", "median",
        (json_int_t)s.median, "p95", (json_int_t)s.p95, "min", (json_int_t)s.min, "max", (json_int_t)s.max, "samples",
        samples, "weight_bytes", tool_json_size(job->weight_bytes), "counters", counters_json(job), "output",
        tool_json_string(r->output), "decision", json_loads(moert_decision_json(job->decision), 0, NULL));
    if (document && r->compare)
        json_object_set_new(document, "compare",
                            json_pack("{s:o, s:s, s:o, s:o, s:o}", "file", tool_json_string(r->compare), "tensor",
                                      r->compare_tensor ? r->compare_tensor : "output", "relative_error",
                                      tool_json_real(job->error), "max_abs_error", tool_json_real(job->largest),
                                      "limit", r->max_error >= 0 ? tool_json_real(r->max_error) : json_null()));
    return tool_print_json(tool, document);
}

static void print_text(const struct request *r, const struct job *job)
{
    const struct moert_layer_config *c = moert_layer_get_config(job->layer);
    struct tool_statistics s = tool_statistics(job->times, r->repeat);
    char time[32], least[32], bytes[32];

    printf("backend    %s (%s), %s\n", moert_decision_backend(job->decision),
           moert_class_name(moert_decision_class(job->decision)), moert_decision_reason(job->decision));
    printf("device     %s\n", moert_decision_device(job->decision));
    printf("layer      %s weights, %s activations, hidden %llu, %u experts, top %u\n",
           moert_scheme_name(c->weight_scheme),
           c->activation_scheme ? moert_scheme_name(c->activation_scheme) : moert_dtype_name(c->dtype),
           (unsigned long long)c->hidden_size, c->num_experts, c->top_k);
    printf("tokens     %llu\n", (unsigned long long)job->args.x.shape[0]);
    printf("time       %s", tool_time(s.median, time));
    if (r->repeat > 1)
        printf(" median of %llu, %s least", (unsigned long long)r->repeat, tool_time(s.min, least));
    printf("\nweights    %s touched\n", tool_bytes(job->weight_bytes, bytes));
    if (r->compare)
        printf("error      %.3g relative to %s of %s\n", job->error, r->compare_tensor ? r->compare_tensor : "output",
               r->compare);
    printf("output     %s\n", r->output);
}

static int report(struct tool *tool, const struct request *r, const struct job *job)
{
    int status = 0;

    if (tool->json)
        status = print_json(tool, r, job);
    else if (!tool->quiet)
        print_text(r, job);
    /* Written so that NaN is above every limit. */
    if (!status && r->max_error >= 0 && !(job->error <= r->max_error)) {
        fprintf(stderr, "moert: run: relative error %.3g exceeds %.3g\n", job->error, r->max_error);
        status = TOOL_NO;
    }
    return status;
}

static void release(struct job *job)
{
    moert_queue_destroy(job->queue);
    moert_layer_destroy(job->layer);
    moert_decision_destroy(job->decision);
    moert_context_destroy(job->context);
    free(job->args.output.data);
    free(job->args.out_ids.data);
    free(job->args.out_weights.data);
    free(job->times);
    tool_input_close(&job->in);
    tool_input_close(&job->reference);
}

static int execute(struct tool *tool, struct request *r)
{
    struct job job = {.args = {.size = sizeof(job.args)}};
    int status = tool_source_open(tool, &r->source, 0, 1);

    if (!status)
        status = read_input(tool, r, &job);
    if (!status)
        status = read_reference(tool, r, &job);
    if (!status)
        status = tool_context(tool, &job.context);
    if (!status)
        status = make_layer(tool, r, &job);
    if (!status)
        status = make_outputs(tool, r, &job);
    if (!status)
        status = run_layer(tool, r, &job);
    if (!status)
        status = write_output(tool, r, &job);
    if (!status && r->compare)
        compare(&job);
    if (!status)
        status = report(tool, r, &job);
    release(&job);
    return status;
}

static int run(struct tool *tool, int argc, char **argv)
{
    struct request r = {.max_error = -1, .repeat = 1};
    const char *value;
    int option, status = 0;

    while (!status && (option = tool_option(tool, argc, argv, &value)) >= 0)
        status = set_option(tool, &r, option, value);
    if (!status)
        status = option == TOOL_STOP ? tool->status : tool_operands(tool, argc, argv, 0, "");
    if (!status && option != TOOL_STOP)
        status = check_request(tool, &r);
    if (!status && option != TOOL_STOP)
        status = execute(tool, &r);
    tool_source_close(&r.source);
    return status;
}

const struct tool_command cmd_run = {
    .name = "run",
    .run = run,
    .help = "one expert layer on real input",
    .synopsis = "(--layer FILE.safetensors [--config FILE.json] | --model DIR --layer-index N)\n"
                "--input FILE --output FILE [--backend NAME] [--device ID] [--repeat N]\n"
                "[--input-tensor NAME] [--ids-tensor NAME --weights-tensor NAME | --logits-tensor NAME]\n"
                "[--compare FILE [--tensor NAME] [--max-error X]] [--json]",
    .options = options,
    .details =
        "The input file holds hidden_states [T,H] (F32, BF16 or F16) and topk_ids [T,K] with topk_weights F32 "
        "[T,K], or router_logits [T,E], or neither: then the layer's own router is used. When it holds both, the "
        "ids are used. Optional: expert_map I32 [E]. With --model the output dtype follows hidden_states.",
};
