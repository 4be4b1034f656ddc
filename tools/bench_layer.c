/* tools/bench_layer.c: `moert bench layer`: whole layers with made-up weights and fresh routing per instance. Instances
 * rotate, and the caches are flushed before the timed loop, so that weights are cold (performance.md 5). */
#include "config.h"

#include "tools/bench.h"
#include "tools/bench_weights.h"
#include "tools/tensors.h"

#include <moert/routing.h>
#include <moert/verify.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One (shape, format, backend): its layers and the buffers of a call. */
struct bed {
    struct tool *tool;
    const struct bench_request *request;
    const struct bench_machine *machine;
    const struct bench_shape *shape;
    moert_context_t *context;
    struct moert_layer_config config;
    moert_decision_t *decision;
    moert_layer_t **layers;
    uint64_t layer_count;
    moert_queue_t *queue;
    struct moert_device_desc device;
    const char *checked;
};

/* One token count: memory of a call and what the routing did. */
struct call {
    uint64_t tokens;
    struct moert_layer_args args;
    moert_buffer_t *x, *out;
    float *logits, *weights;
    int32_t *ids, *trace_ids;
    uint64_t *counts;
    double *samples;
    uint64_t sample_count, most;
    double touched; /* mean over the timed runs */
};

static double bytes_per_weight(moert_scheme_t scheme)
{
    switch (scheme) {
    case MOERT_SCHEME_LUT_B: return 0.390625;
    case MOERT_SCHEME_MXFP8: return 1.03125;
    case MOERT_SCHEME_F32: return 4;
    default: return 2;
    }
}

static double weights_per_expert(const struct bed *b)
{
    return (double)(moert_layer_config_n1(&b->config) + b->config.intermediate_size) * (double)b->config.hidden_size;
}

static void fill_config(struct bed *b, moert_scheme_t format)
{
    struct moert_layer_config *c = &b->config;
    uint64_t most = 1;

    moert_layer_config_init(c);
    snprintf(c->name, sizeof(c->name), "bench.%s", b->shape->name);
    c->hidden_size = b->shape->hidden;
    c->intermediate_size = b->shape->intermediate;
    c->num_experts = b->shape->experts;
    c->top_k = b->shape->top_k;
    c->weight_scheme = format;
    c->activation_scheme =
        format == MOERT_SCHEME_MXFP8 || format == MOERT_SCHEME_LUT_B ? MOERT_SCHEME_MXFP8 : MOERT_SCHEME_NONE;
    c->router.kind = MOERT_ROUTER_SOFTMAX;
    c->router.renormalize = 1;
    c->router.logits_dtype = MOERT_F32;
    if (b->shape->swigluoai) {
        c->activation = MOERT_ACT_SWIGLUOAI;
        c->w13_order = MOERT_W13_INTERLEAVED;
        c->has_bias = 1;
    }
    for (size_t i = 0; i < b->request->token_count; i++)
        most = b->request->tokens[i] > most ? b->request->tokens[i] : most;
    c->max_tokens = most;
}

/* Instances that keep the weights cold: enough that between two uses of one, four caches' worth of others is read; no
 * more than there are runs; as many as half of the free memory holds. */
static uint64_t wanted_instances(const struct bed *b)
{
    const struct bench_request *r = b->request;
    double layer = (double)moert_layer_config_weight_bytes(&b->config);
    double touched = weights_per_expert(b) * bytes_per_weight(b->config.weight_scheme) * b->config.top_k;
    double n = ceil(4 * (double)b->machine->cache / touched), runs = (double)(r->warmup + r->reps);
    double available = b->device.memory_free ? (double)b->device.memory_free : (double)b->machine->memory;

    if (n > runs)
        n = runs;
    if (available > 0 && n * layer > available / 2)
        n = floor(available / 2 / layer);
    if (r->instances)
        n = (double)r->instances;
    return n < 1 ? 1 : (uint64_t)n;
}

static int add_layer(struct bed *b)
{
    struct moert_error err = MOERT_ERROR_INIT;
    uint64_t instance = b->layer_count;
    moert_layer_t *layer = NULL;

    if (moert_layer_create(b->context, &b->config, b->decision, &layer, &err))
        return tool_error(b->tool, &err);
    b->layers[b->layer_count++] = layer;
    return bench_fill_layer(b->tool, layer, bench_mix(b->request->seed) ^ instance);
}

static int open_bed(struct bed *b, const char *backend)
{
    struct moert_select_options select = {.size = sizeof(select), .backend = backend, .tokens = b->config.max_tokens};
    struct moert_error err = MOERT_ERROR_INIT;
    uint32_t device;
    uint64_t n;
    int status;

    if (moert_layer_config_check(&b->config, &err) || moert_select(b->context, &b->config, &select, &b->decision, &err))
        return tool_error(b->tool, &err);
    b->device.size = sizeof(b->device);
    if (moert_device_find(b->context, moert_decision_device(b->decision), &device, &err) ||
        moert_device_get(b->context, device, &b->device, &err) ||
        moert_queue_create(b->context, device, 0, &b->queue, &err))
        return tool_error(b->tool, &err);
    n = wanted_instances(b);
    b->layers = tool_alloc(b->tool, n, sizeof(moert_layer_t *));
    status = b->layers ? 0 : TOOL_DEVICE;
    while (!status && b->layer_count < n)
        status = add_layer(b);
    return status;
}

static void close_bed(struct bed *b)
{
    for (uint64_t i = 0; i < b->layer_count; i++)
        moert_layer_destroy(b->layers[i]);
    free(b->layers);
    moert_queue_destroy(b->queue);
    moert_decision_destroy(b->decision);
}

/* ---- a call ---- */

static int allocate_call(struct bed *b, struct call *c)
{
    const struct moert_layer_config *l = &b->config;
    const uint64_t x_shape[] = {c->tokens, l->hidden_size}, slots = c->tokens * l->top_k;
    uint64_t bytes = c->tokens * l->hidden_size * sizeof(uint16_t);
    struct moert_error err = MOERT_ERROR_INIT;
    uint32_t device = moert_layer_device(b->layers[0]);
    uint16_t *x = tool_alloc(b->tool, bytes, 1);
    int status = TOOL_DEVICE;

    c->logits = tool_alloc(b->tool, c->tokens, l->num_experts * sizeof(*c->logits));
    c->ids = tool_alloc(b->tool, slots, sizeof(*c->ids));
    c->weights = tool_alloc(b->tool, slots, sizeof(*c->weights));
    c->counts = tool_alloc(b->tool, l->num_experts, sizeof(*c->counts));
    c->samples = tool_alloc(b->tool, b->request->reps, sizeof(*c->samples));
    if (!x || !c->logits || !c->ids || !c->weights || !c->counts || !c->samples)
        goto out;
    bench_fill_bf16(x, bytes / sizeof(*x), bench_mix(b->request->seed ^ c->tokens), 127);
    if (moert_buffer_alloc(b->context, device, MOERT_MEMORY_DEVICE, bytes, 256, &c->x, &err) ||
        moert_buffer_alloc(b->context, device, MOERT_MEMORY_DEVICE, bytes, 256, &c->out, &err) ||
        moert_copy_in(b->queue, c->x, 0, x, bytes, &err) ||
        moert_queue_wait(b->queue, UINT64_MAX, UINT64_MAX, NULL, &err)) {
        status = tool_error(b->tool, &err);
        goto out;
    }
    c->args.x = moert_tensor_device(c->x, 0, MOERT_BF16, 2, x_shape);
    c->args.output = moert_tensor_device(c->out, 0, MOERT_BF16, 2, x_shape);
    status = 0;
out:
    free(x);
    return status;
}

static void free_call(struct call *c)
{
    moert_buffer_free(c->x);
    moert_buffer_free(c->out);
    free(c->logits);
    free(c->ids);
    free(c->weights);
    free(c->counts);
    free(c->samples);
    free(c->trace_ids);
}

/* The first T rows of topk_ids of a trace, repeated when it is shorter, in host memory. */
static int load_trace(struct bed *b, struct call *c)
{
    const char *path = b->request->routing.path;
    struct tool_input in = {0};
    struct moert_tensor ids;
    uint32_t k = b->config.top_k;
    int status = tool_input_open(b->tool, path, &in);

    if (!status)
        status = tool_input_ids(b->tool, &in, "topk_ids", &ids);
    if (!status && (ids.shape[1] != k || !ids.shape[0]))
        status =
            tool_fail(b->tool, MOERT_E_SHAPE, "ids-shape", "%s: topk_ids is [%llu,%llu], %s needs [T,%u] with T > 0",
                      path, (unsigned long long)ids.shape[0], (unsigned long long)ids.shape[1], b->shape->name, k);
    c->trace_ids = status ? NULL : tool_alloc(b->tool, c->tokens, k * sizeof(*c->trace_ids));
    if (!status && !c->trace_ids)
        status = TOOL_DEVICE;
    for (uint64_t t = 0; !status && t < c->tokens; t++)
        memcpy(c->trace_ids + t * k, (const int32_t *)ids.data + t % ids.shape[0] * k, k * sizeof(*c->trace_ids));
    tool_input_close(&in);
    return status;
}

/* Routing of one run: logits of fresh draws (ids only for the statistics), or the trace's ids with equal weights. */
static int prepare_routing(struct bed *b, struct call *c, uint64_t run)
{
    const struct moert_layer_config *l = &b->config;
    const uint64_t logits_shape[] = {c->tokens, l->num_experts}, slots_shape[] = {c->tokens, l->top_k};
    struct moert_route_args route = {.size = sizeof(route),
                                     .num_experts = l->num_experts,
                                     .top_k = l->top_k,
                                     .tokens = c->tokens,
                                     .logits = c->logits,
                                     .logits_dtype = MOERT_F32,
                                     .ids = c->ids,
                                     .weights = c->weights};
    struct moert_error err = MOERT_ERROR_INIT;

    if (b->request->routing.kind == ROUTING_TRACE) {
        memcpy(c->ids, c->trace_ids, c->tokens * l->top_k * sizeof(*c->ids));
        for (uint64_t s = 0; s < c->tokens * l->top_k; s++)
            c->weights[s] = 1 / (float)l->top_k;
        c->args.ids = moert_tensor_host(c->ids, MOERT_I32, 2, slots_shape);
        c->args.weights = moert_tensor_host(c->weights, MOERT_F32, 2, slots_shape);
        return 0;
    }
    bench_routing_logits(&b->request->routing, b->request->seed, run, c->tokens, l->num_experts, l->top_k, c->logits);
    c->args.logits = moert_tensor_host(c->logits, MOERT_F32, 2, logits_shape);
    return moert_route(&l->router, &route, &err) ? tool_error(b->tool, &err) : 0;
}

static int time_call(struct bed *b, struct call *c)
{
    const struct bench_request *r = b->request;
    struct moert_error err = MOERT_ERROR_INIT;
    double begin, start, touched_sum = 0;
    uint64_t touched, most;
    uint32_t done = 0;

    bench_flush_caches(4 * b->machine->cache);
    begin = tool_clock();
    for (uint64_t i = 0; i < r->warmup + r->reps; i++) {
        int status = prepare_routing(b, c, i);
        if (status)
            return status;
        start = tool_clock();
        if (moert_layer_run(b->layers[i % b->layer_count], b->queue, &c->args, &err) ||
            moert_queue_wait(b->queue, UINT64_MAX, UINT64_MAX, &done, &err))
            return tool_error(b->tool, &err);
        if (i < r->warmup)
            continue;
        c->samples[c->sample_count++] = tool_clock() - start;
        bench_routing_count(c->ids, c->tokens * b->config.top_k, b->config.num_experts, c->counts, &touched, &most);
        touched_sum += (double)touched;
        c->most = most > c->most ? most : c->most;
        if (c->sample_count >= 3 && tool_clock() - begin > 2e9)
            break;
    }
    c->touched = touched_sum / (double)c->sample_count;
    return 0;
}

/* ---- correct first ---- */

static void keep_outcome(void *ctx, const struct moert_verify_result *result)
{
    struct bed *b = ctx;
    if (result->outcome == MOERT_VERIFY_FAILED)
        tool_note(b->tool, "%s: step %s: %s", moert_decision_backend(b->decision), result->step, result->detail);
}

/* The first instance against the reference on at most 16 tokens; the reference is checked by `moert verify`. */
static int check_first(struct bed *b, struct call *c)
{
    struct moert_select_options select = {.size = sizeof(select), .backend = "cpu.reference"};
    struct moert_error err = MOERT_ERROR_INIT;
    moert_decision_t *decision = NULL;
    moert_layer_t *reference = NULL;
    moert_queue_t *queue = NULL;
    uint32_t failed = 0;
    int status = 0;

    if (!strcmp(moert_decision_backend(b->decision), "cpu.reference")) {
        b->checked = "definition";
        return 0;
    }
    status = prepare_routing(b, c, 0);
    if (status)
        return status;
    if (moert_select(b->context, &b->config, &select, &decision, &err) ||
        moert_layer_create(b->context, &b->config, decision, &reference, &err) ||
        moert_queue_create(b->context, moert_layer_device(reference), 0, &queue, &err))
        status = tool_error(b->tool, &err);
    if (!status)
        status = bench_fill_layer(b->tool, reference, bench_mix(b->request->seed));
    if (!status &&
        moert_verify_layer(b->layers[0], b->queue, reference, queue, &c->args, keep_outcome, b, &failed, &err))
        status = tool_error(b->tool, &err);
    if (!status)
        b->checked = failed ? "out of bounds" : "within bounds";
    moert_queue_destroy(queue);
    moert_layer_destroy(reference);
    moert_decision_destroy(decision);
    return status;
}

static int check_bed(struct bed *b)
{
    struct call c = {.args = {.size = sizeof(c.args)}, .tokens = b->config.max_tokens < 16 ? b->config.max_tokens : 16};
    int status = allocate_call(b, &c);

    if (!status && b->request->routing.kind == ROUTING_TRACE)
        status = load_trace(b, &c);
    if (!status)
        status = check_first(b, &c);
    free_call(&c);
    return status;
}

/* ---- rows ---- */

static json_t *make_row(const struct bed *b, const struct call *c)
{
    const struct moert_layer_config *l = &b->config;
    double weights = c->touched * weights_per_expert(b), bytes = weights * bytes_per_weight(l->weight_scheme);
    double operations = 2 * weights_per_expert(b) * (double)c->tokens * l->top_k;
    double median = tool_statistics(c->samples, c->sample_count).median;
    double traffic = 2 * (double)c->tokens * (double)l->hidden_size * 2 +
                     2 * (double)c->tokens * l->top_k * (double)l->intermediate_size * 2;
    int cold = (double)b->layer_count * bytes >= 4 * (double)b->machine->cache ||
               b->layer_count >= b->request->warmup + b->request->reps;
    json_t *row =
        json_pack("{s:s, s:s, s:o, s:o, s:i, s:i, s:o, s:s, s:s, s:s, s:s, s:s, s:s}", "bench", "layer", "shape",
                  b->shape->name, "hidden_size", tool_json_size(l->hidden_size), "intermediate_size",
                  tool_json_size(l->intermediate_size), "num_experts", (int)l->num_experts, "top_k", (int)l->top_k,
                  "tokens", tool_json_size(c->tokens), "format", moert_scheme_name(l->weight_scheme), "routing",
                  b->request->routing.text, "backend", moert_decision_backend(b->decision), "device", b->device.id,
                  "class", moert_class_name(moert_decision_class(b->decision)), "checked", b->checked);

    json_object_update_new(
        row, json_pack("{s:s, s:o, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b}", "steps",
                       b->request->routing.kind == ROUTING_TRACE ? "align to combine" : "top-k to combine", "instances",
                       tool_json_size(b->layer_count), "warm", !cold, "touched_experts", tool_json_real(c->touched),
                       "rows_per_expert_mean", tool_json_real((double)c->tokens * l->top_k / c->touched),
                       "rows_per_expert_max", tool_json_size(c->most), "weight_bytes", tool_json_size((uint64_t)bytes),
                       "bytes", tool_json_size((uint64_t)(bytes + traffic)), "bytes_per_s",
                       tool_json_real(bytes / median * 1e9), "operations_per_s",
                       tool_json_real(operations / median * 1e9), "host_device", b->device.kind == MOERT_DEVICE_CPU));
    json_object_set_new(row, "operations", tool_json_real(operations));
    bench_row_times(row, c->samples, c->sample_count);
    return row;
}

static int bench_tokens(struct bed *b, uint64_t tokens, json_t *rows)
{
    struct call c = {.args = {.size = sizeof(c.args)}, .tokens = tokens};
    int status = allocate_call(b, &c);

    tool_detail(b->tool, "bench: %s, %s, %llu tokens", b->shape->name, moert_scheme_name(b->config.weight_scheme),
                (unsigned long long)tokens);
    if (!status && b->request->routing.kind == ROUTING_TRACE)
        status = load_trace(b, &c);
    if (!status)
        status = time_call(b, &c);
    if (!status)
        json_array_append_new(rows, make_row(b, &c));
    free_call(&c);
    return status;
}

static int bench_one(const struct bed *model, moert_scheme_t format, const char *backend, json_t *rows)
{
    struct bed b = *model;
    int status;

    fill_config(&b, format);
    status = open_bed(&b, backend);
    if (!status)
        status = check_bed(&b);
    for (size_t t = 0; !status && t < b.request->token_count; t++)
        status = bench_tokens(&b, b.request->tokens[t], rows);
    close_bed(&b);
    return status;
}

int bench_layer(struct tool *tool, const struct bench_request *r, const struct bench_machine *machine, json_t *rows)
{
    struct bed b = {.tool = tool, .request = r, .machine = machine, .checked = "not checked"};
    size_t backends = r->backend_count ? r->backend_count : 1;
    int status = tool_context(tool, &b.context);

    for (size_t s = 0; !status && s < r->shape_count; s++)
        for (size_t f = 0; !status && f < r->format_count; f++)
            for (size_t n = 0; !status && n < backends; n++) {
                b.shape = r->shapes + s;
                status = bench_one(&b, r->formats[f], r->backend_count ? r->backends[n] : NULL, rows);
            }
    moert_context_destroy(b.context);
    return status;
}
