/* core/layer/shared.c: a separate shared expert: a dense expert every token passes, run as a layer of one expert whose
 * output is added to the routed sum (routing.md 2.4). */
#include "config.h"

#include "core/layer/layer.h"

#include "core/numerics/exact_math.h"

#include <moert/float8.h>

#include <string.h>

static void describe(const struct moert_layer_config *main, struct moert_layer_config *ret)
{
    moert_scheme_t scheme = main->shared.weight_scheme;
    int quantised = scheme == MOERT_SCHEME_MXFP8 || scheme == MOERT_SCHEME_LUT_B;
    int main_quantised = main->weight_scheme == MOERT_SCHEME_MXFP8 || main->weight_scheme == MOERT_SCHEME_LUT_B;
    size_t room = sizeof(ret->name) - sizeof(".shared"), length = strnlen(main->name, room);

    *ret = *main;
    memcpy(ret->name + length, ".shared", sizeof(".shared"));
    ret->role = MOERT_ROLE_SHARED;
    ret->intermediate_size = main->shared.intermediate_size;
    ret->num_experts = ret->num_local_experts = ret->top_k = 1;
    ret->num_fused_shared = 0;
    ret->weight_scheme = scheme;
    ret->activation_scheme = !quantised       ? MOERT_SCHEME_NONE
                             : main_quantised ? main->activation_scheme
                                              : MOERT_SCHEME_MXFP8;
    ret->has_bias = ret->apply_router_weight_on_input = 0;
    ret->expert_map = NULL;
    ret->expert_map_length = 0;
    ret->router = (struct moert_router_config){.size = sizeof(ret->router), .num_groups = 1, .scaling_factor = 1};
    ret->shared = (struct moert_shared_config){.size = sizeof(ret->shared)};
}

static void count_failures(void *ctx, const struct moert_check *check)
{
    *(uint32_t *)ctx += check->verdict == MOERT_FAIL;
}

static int supports(const struct moert_layer *layer, const struct moert_backend *backend,
                    const struct moert_layer_config *config)
{
    uint32_t failures = 0;
    struct moert_check_sink sink = {.size = sizeof(sink), .ctx = &failures, .report = count_failures};

    backend->ops->supports(backend, &layer->device->desc, config, &sink);
    return !failures;
}

/* The layer's own backend, else the first of its device's driver that may be chosen. */
static const struct moert_backend *choose(const struct moert_layer *layer, const struct moert_layer_config *config)
{
    const struct moert_context *context = layer->context;

    if (supports(layer, layer->backend, config))
        return layer->backend;
    for (uint32_t i = 0; i < context->backend_count; i++) {
        const struct moert_backend *b = context->backends[i]->table;
        if (context->backends[i]->driver == layer->device->driver && !(b->flags & MOERT_BACKEND_F_OPT_IN) &&
            supports(layer, b, config))
            return b;
    }
    return NULL;
}

moert_status_t moert_shared_create(struct moert_layer *layer, struct moert_error *err)
{
    struct moert_layer_config config;
    const struct moert_backend *backend;
    moert_status_t status;

    describe(&layer->config, &config);
    status = moert_layer_config_check(&config, err);
    if (status)
        return status;
    backend = choose(layer, &config);
    if (!backend)
        return moert_fail(err, MOERT_E_NO_BACKEND, "backend-refused",
                          "no backend of %s serves the shared expert (%s, intermediate_size %llu)",
                          layer->device->desc.id, moert_scheme_name(config.weight_scheme),
                          (unsigned long long)config.intermediate_size);
    return moert_layer_make(layer->context, &config, backend, layer->device_index, &layer->shared, err);
}

/* sigmoid(x . gate) per token: binary64, ascending, one rounding to f32. */
static void gate_weights(const struct moert_call *call, float *weights)
{
    const struct moert_layer *layer = call->layer;
    uint64_t h = layer->config.hidden_size;

    for (uint64_t t = 0; t < call->real; t++) {
        double logit = 0;
        for (uint64_t k = 0; k < h; k++)
            logit += moert_load(call->host_x, call->host_x_dtype, t * h + k) *
                     moert_load(layer->shared_gate, layer->shared_gate_dtype, k);
        weights[t] = moert_f32_from_double(1 / (1 + moert_exp(-logit)));
    }
}

/* Ids 0 and weights 1 for `count` tokens, kept in the pool. */
static moert_status_t make_constants(struct moert_call *call, uint64_t count, struct moert_error *err)
{
    struct moert_stage *stage = &call->stage;
    const struct moert_device_ops *ops = stage->device->driver->table->device;
    struct moert_pool *pool = stage->pool;
    struct moert_pool_memory *ids = &pool->device[MOERT_SLOT_SHARED_IDS];
    struct moert_pool_memory *weights = &pool->device[MOERT_SLOT_SHARED_WEIGHTS],
                             *host = &pool->host[MOERT_SLOT_SHARED];
    moert_status_t status;

    if (pool->ones >= count)
        return MOERT_OK;
    pool->ones = 0; /* growing loses what was there, also when it fails half way */
    status = moert_pool_device(stage, ids, count * sizeof(int32_t), err);
    if (!status)
        status = ops->fill(stage->queue, ids->buffer, 0, 0, count * sizeof(int32_t), err);
    if (!status)
        status = moert_pool_device(stage, weights, count * sizeof(float), err);
    if (!status)
        status = moert_pool_host(stage, host, count * sizeof(float), err);
    if (status)
        return status;
    for (uint64_t i = 0; i < count; i++)
        ((float *)(void *)host->host)[i] = 1;
    status = ops->copy_in(stage->queue, weights->buffer, 0, host->host, count * sizeof(float), err);
    if (!status)
        status = ops->queue_wait(stage->queue, ops->queue_last(stage->queue), UINT64_MAX, NULL, err);
    if (!status)
        pool->ones = count;
    return status;
}

moert_status_t moert_shared_reserve(struct moert_call *call, struct moert_error *err)
{
    const struct moert_layer_config *c = &call->layer->config;
    struct moert_pool_memory *out = &call->stage.pool->device[MOERT_SLOT_SHARED];
    uint64_t count = call->chunk < call->real ? call->chunk : call->real;
    moert_status_t status = make_constants(call, count, err);

    if (!status)
        status = moert_pool_device(&call->stage, out, count * c->hidden_size * moert_dtype_size(c->dtype), err);
    if (!status && c->shared.gated)
        status = moert_pool_host(&call->stage, &call->stage.pool->host[MOERT_SLOT_SHARED_WEIGHTS],
                                 call->real * sizeof(float), err);
    return status;
}

moert_status_t moert_shared_prepare(struct moert_call *call, struct moert_error *err)
{
    const struct moert_layer *layer = call->layer;
    const uint64_t shape[2] = {call->real, 1};
    void *weights = NULL;
    moert_status_t status;

    if (!layer->shared || call->args->flags & MOERT_RUN_F_UNREDUCED)
        return MOERT_OK;
    status = moert_shared_reserve(call, err);
    if (status || !layer->config.shared.gated)
        return status;
    status = moert_call_host_x(call, err);
    if (!status)
        status = moert_stage_own(&call->stage, MOERT_SLOT_SHARED_WEIGHTS, MOERT_F32, 2, shape, &weights, err);
    if (!status)
        gate_weights(call, weights);
    return status;
}

moert_status_t moert_shared_run(struct moert_call *call, uint64_t first, uint64_t count,
                                const struct moert_run_args *run, struct moert_drv_tensor *ret, struct moert_error *err)
{
    const struct moert_layer *layer = call->layer;
    struct moert_pool *pool = call->stage.pool;
    const uint64_t column[2] = {count, 1}, rows[2] = {count, layer->config.hidden_size};
    struct moert_layer_args args = {.size = sizeof(args)};
    struct moert_buffer x, x_scale, ids, weights, output;
    struct moert_drv_tensor t;
    moert_status_t status = MOERT_OK;

    args.x = moert_layer_wrap(layer, &run->x, &x);
    args.x_scale = moert_layer_wrap(layer, &run->x_scale, &x_scale);
    t = moert_drv_dense(pool->device[MOERT_SLOT_SHARED_IDS].buffer, 0, MOERT_I32, 2, column);
    args.ids = moert_layer_wrap(layer, &t, &ids);
    if (layer->config.shared.gated)
        status = moert_stage_view(&call->stage, MOERT_SLOT_SHARED_WEIGHTS, first, count, &t, err);
    else
        t = moert_drv_dense(pool->device[MOERT_SLOT_SHARED_WEIGHTS].buffer, 0, MOERT_F32, 2, column);
    args.weights = moert_layer_wrap(layer, &t, &weights);
    *ret = moert_drv_dense(pool->device[MOERT_SLOT_SHARED].buffer, 0, layer->config.dtype, 2, rows);
    args.output = moert_layer_wrap(layer, ret, &output);
    return status ? status : moert_layer_run(layer->shared, call->queue, &args, err);
}
