/* tools/verify_layer.c: one layer of a file or checkpoint, on a backend and on the reference, with made-up input. */
#include "config.h"

#include "tools/verify_layer.h"

#include "tools/bench.h"
#include "tools/tensors.h"

#include <moert/float8.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Both layers with the same weights. */
struct pair {
    struct moert_layer_config config;
    moert_decision_t *decision[2];
    moert_layer_t *layer[2];
    moert_queue_t *queue[2];
    struct moert_layer_args args;
};

static void skip(const struct tool_verify *v, const struct moert_layer_config *c, const char *reason)
{
    char name[300];
    struct moert_verify_result r = {.size = sizeof(r),
                                    .outcome = MOERT_VERIFY_SKIPPED,
                                    .backend = v->backend,
                                    .device = v->device,
                                    .op = "layer",
                                    .name = name,
                                    .step = "",
                                    .detail = reason,
                                    .seed = v->seed};

    snprintf(name, sizeof(name), "%s#%d", c->name, c->index);
    v->sink(v->sink_ctx, &r);
}

static moert_status_t open_layer(const struct tool_verify *v, struct pair *p, int which, struct moert_error *err)
{
    struct moert_select_options select = {.size = sizeof(select), .tokens = v->tokens};
    moert_status_t status;

    select.backend = which ? "cpu.reference" : v->backend;
    select.device = which ? NULL : v->device;
    status = moert_select(v->context, &p->config, &select, &p->decision[which], err);
    if (!status)
        status = moert_layer_create(v->context, &p->config, p->decision[which], &p->layer[which], err);
    if (!status)
        status = moert_checkpoint_load(v->checkpoint, v->number, p->layer[which], err);
    if (!status)
        status = moert_queue_create(v->context, moert_layer_device(p->layer[which]), 0, &p->queue[which], err);
    return status;
}

/* x about normal (sum of four uniforms, unit variance), ids distinct per token, weights positive with sum 1. */
static void fill_input(const struct tool_verify *v, const struct moert_layer_config *c, void *x, int32_t *ids,
                       float *weights)
{
    uint32_t columns = c->top_k + c->num_fused_shared;

    for (uint64_t i = 0; i < v->tokens * c->hidden_size; i++) {
        double sum = -2;
        for (uint64_t k = 0; k < 4; k++)
            sum += bench_uniform(v->seed, 1, i, k);
        moert_store(x, c->dtype, i, sum * 1.7320508075688772);
    }
    for (uint64_t t = 0; t < v->tokens; t++) {
        uint32_t first = (uint32_t)(bench_uniform(v->seed, 2, t, 0) * c->num_experts);
        for (uint32_t j = 0; j < columns; j++) {
            /* Consecutive experts from a random one on: distinct, and every expert is met. */
            ids[t * columns + j] =
                (int32_t)(j < c->top_k ? (first + j) % c->num_experts : c->num_experts + j - c->top_k);
            weights[t * columns + j] =
                j < c->top_k ? 2 * (float)(j + 1) / ((float)c->top_k * (float)(c->top_k + 1)) : 1;
        }
    }
}

static int make_input(struct tool *tool, const struct tool_verify *v, struct pair *p)
{
    const struct moert_layer_config *c = &p->config;
    const uint64_t x_shape[] = {v->tokens, c->hidden_size};
    const uint64_t slots[] = {v->tokens, (uint64_t)c->top_k + c->num_fused_shared};
    void *x = tool_alloc(tool, v->tokens, c->hidden_size * moert_dtype_size(c->dtype));
    int32_t *ids = x ? tool_alloc(tool, slots[0], slots[1] * sizeof(*ids)) : NULL;
    float *weights = ids ? tool_alloc(tool, slots[0], slots[1] * sizeof(*weights)) : NULL;

    p->args.x = moert_tensor_host(x, c->dtype, 2, x_shape);
    p->args.ids = moert_tensor_host(ids, MOERT_I32, 2, slots);
    p->args.weights = moert_tensor_host(weights, MOERT_F32, 2, slots);
    if (!weights)
        return TOOL_DEVICE;
    fill_input(v, c, x, ids, weights);
    return 0;
}

int tool_verify_layer(struct tool *tool, const struct tool_verify *v)
{
    struct pair p = {.args = {.size = sizeof(p.args)}};
    struct moert_error err = MOERT_ERROR_INIT;
    moert_status_t status = moert_checkpoint_layer_config(v->checkpoint, v->number, &p.config, &err);
    uint32_t failed = 0;
    int exit_status;

    if (status)
        return tool_error(tool, &err);
    status = open_layer(v, &p, 0, &err);
    if (status == MOERT_E_NO_BACKEND) {
        skip(v, &p.config, err.text);
        exit_status = 0;
        goto out;
    }
    if (!status)
        status = open_layer(v, &p, 1, &err);
    exit_status = status ? tool_error(tool, &err) : make_input(tool, v, &p);
    if (!exit_status && moert_verify_layer(p.layer[0], p.queue[0], p.layer[1], p.queue[1], &p.args, v->sink,
                                           v->sink_ctx, &failed, &err))
        exit_status = tool_error(tool, &err);
out:
    for (int i = 0; i < 2; i++) {
        moert_queue_destroy(p.queue[i]);
        moert_layer_destroy(p.layer[i]);
        moert_decision_destroy(p.decision[i]);
    }
    free(p.args.x.data);
    free(p.args.ids.data);
    free(p.args.weights.data);
    moert_layer_config_clear(&p.config);
    return exit_status;
}
