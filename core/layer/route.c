/* core/layer/route.c: where a call's ids and weights come from: the caller, a backend that routes, or the core's router
 * on the host, from the caller's logits or the layer's own gate. */
#include "config.h"

#include "core/layer/layer.h"

#include "core/base/checked.h"

#include <moert/mxfp8.h>
#include <moert/routing.h>

moert_status_t moert_call_host_x(struct moert_call *call, struct moert_error *err)
{
    struct moert_stage *stage = &call->stage;
    struct moert_pool_memory *memory = &stage->pool->host[MOERT_SLOT_ROWS];
    uint64_t h = call->layer->config.hidden_size;
    const void *x, *scales;
    moert_status_t status;

    if (call->host_x)
        return MOERT_OK;
    status = moert_stage_read(stage, MOERT_SLOT_X, &x, err);
    call->host_x_dtype = stage->items[MOERT_SLOT_X].dtype;
    if (!status && stage->items[MOERT_SLOT_X_SCALE].direction) {
        status = moert_stage_read(stage, MOERT_SLOT_X_SCALE, &scales, err);
        if (!status)
            status = moert_pool_host(stage, memory, call->tokens * h * sizeof(float), err);
        if (!status)
            status = moert_mxfp8_dequantize(x, scales, call->tokens, h, memory->host, MOERT_F32, err);
        x = memory->host;
        call->host_x_dtype = MOERT_F32; /* code * 2^k: exact */
    }
    if (!status)
        call->host_x = x;
    return status;
}

/* I64 ids of the caller as I32. What does not fit is no expert, as every id outside [0,E). */
static moert_status_t narrow_ids(struct moert_call *call, struct moert_error *err)
{
    struct moert_stage *stage = &call->stage;
    const uint64_t shape[2] = {call->tokens, call->slots};
    const void *wide;
    void *narrow = NULL;
    moert_status_t status = moert_stage_add(stage, MOERT_SLOT_SCRATCH, &call->args->ids, MOERT_STAGE_IN, err);

    if (!status)
        status = moert_stage_read(stage, MOERT_SLOT_SCRATCH, &wide, err);
    if (!status)
        status = moert_stage_own(stage, MOERT_SLOT_IDS, MOERT_I32, 2, shape, &narrow, err);
    if (status)
        return status;
    for (uint64_t s = 0; s < shape[0] * shape[1]; s++) {
        int64_t id = ((const int64_t *)wide)[s];
        ((int32_t *)narrow)[s] = id < 0 || id > INT32_MAX ? -1 : (int32_t)id;
    }
    stage->staged_bytes += shape[0] * shape[1] * sizeof(int32_t);
    return MOERT_OK;
}

static moert_status_t take_given(struct moert_call *call, struct moert_error *err)
{
    const struct moert_layer_args *a = call->args;
    moert_status_t status;

    if (a->ids.dtype == MOERT_I64)
        status = narrow_ids(call, err);
    else
        status = moert_stage_add(&call->stage, MOERT_SLOT_IDS, &a->ids, MOERT_STAGE_IN, err);
    return status ? status : moert_stage_add(&call->stage, MOERT_SLOT_WEIGHTS, &a->weights, MOERT_STAGE_IN, err);
}

/* Logits of the layer's own gate, on the host, in the dtype of layer.md 9.2. */
static moert_status_t own_logits(struct moert_call *call, const void **ret, struct moert_error *err)
{
    const struct moert_layer *layer = call->layer;
    struct moert_pool_memory *memory = &call->stage.pool->host[MOERT_SLOT_LOGITS];
    uint64_t bytes = call->real * layer->router_columns * moert_dtype_size(layer->logits_dtype);
    moert_status_t status = moert_call_host_x(call, err);

    if (!status)
        status = moert_pool_host(&call->stage, memory, bytes, err);
    if (!status)
        status = moert_router_logits(call->host_x, call->host_x_dtype, layer->router_weight, layer->router_dtype,
                                     layer->router_bias, call->real, layer->config.hidden_size, layer->router_columns,
                                     memory->host, layer->logits_dtype, err);
    *ret = memory->host;
    return status;
}

static moert_status_t route_on_host(struct moert_call *call, const void *logits, moert_dtype_t dtype,
                                    struct moert_error *err)
{
    const struct moert_layer_config *c = &call->layer->config;
    const uint64_t shape[2] = {call->real, call->slots};
    struct moert_route_args route = {.size = sizeof(route),
                                     .num_experts = c->num_experts,
                                     .top_k = c->top_k,
                                     .num_fused_shared = c->num_fused_shared,
                                     .tokens = call->real,
                                     .logits = logits,
                                     .logits_dtype = dtype,
                                     .shared_columns = call->logits_columns > c->num_experts,
                                     .correction_bias = call->layer->correction_bias};
    void *ids = NULL, *weights = NULL;
    moert_status_t status = moert_stage_own(&call->stage, MOERT_SLOT_IDS, MOERT_I32, 2, shape, &ids, err);

    if (!status)
        status = moert_stage_own(&call->stage, MOERT_SLOT_WEIGHTS, MOERT_F32, 2, shape, &weights, err);
    if (status)
        return status;
    route.ids = ids;
    route.weights = weights;
    status = moert_route(&c->router, &route, err);
    call->rows_nonfinite = route.rows_nonfinite;
    return status;
}

/* A backend routes when it can, the device has binary64 and the logits are there already. */
int moert_call_backend_routes(const struct moert_call *call)
{
    return !moert_tensor_given(&call->args->ids) && call->layer->backend->flags & MOERT_BACKEND_F_ROUTES &&
           call->args->logits.buffer && call->layer->device->desc.flags & MOERT_DEVICE_F_BINARY64;
}

moert_status_t moert_call_route(struct moert_call *call, struct moert_error *err)
{
    const struct moert_layer_args *a = call->args;
    const void *logits = NULL;
    moert_status_t status;

    if (moert_tensor_given(&a->ids))
        return take_given(call, err);
    if (!moert_tensor_given(&a->logits)) {
        status = own_logits(call, &logits, err);
        return status ? status : route_on_host(call, logits, call->layer->logits_dtype, err);
    }
    status = moert_stage_add(&call->stage, MOERT_SLOT_LOGITS, &a->logits, MOERT_STAGE_IN, err);
    if (status)
        return status;
    call->backend_routes = moert_call_backend_routes(call);
    if (call->backend_routes)
        return MOERT_OK;
    status = moert_stage_read(&call->stage, MOERT_SLOT_LOGITS, &logits, err);
    return status ? status : route_on_host(call, logits, a->logits.dtype, err);
}
