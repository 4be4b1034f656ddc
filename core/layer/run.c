/* core/layer/run.c: one call: stage the inputs, route, then chunk by chunk shared expert, backend and hook, and the way
 * back of host outputs (layer.md 4). */
#include "config.h"

#include "core/layer/layer.h"

#include "core/base/checked.h"

#include <moert/mxfp8.h>
#include <moert/routing.h>

#include <string.h>

static const struct moert_device_ops *ops_of(const struct moert_call *call)
{
    return call->stage.device->driver->table->device;
}

static uint32_t flags_of(const struct moert_call *call)
{
    return call->layer->backend->flags;
}

uint64_t moert_call_rows(const struct moert_call *call, enum moert_slot slot)
{
    int unreduced = (call->args->flags & MOERT_RUN_F_UNREDUCED) != 0;

    if (slot == MOERT_SLOT_INDEX || (slot == MOERT_SLOT_OUTPUT && unreduced))
        return call->slots;
    return slot >= MOERT_SLOT_DUMPS + 2 ? call->slots : 1; /* a1 codes and scales are per token */
}

/* ------------------------------------------------------------------ what a token needs */

/* Bytes of one token's rows of a tensor; the shape has been checked. */
static uint64_t token_bytes(const struct moert_tensor *t, uint64_t rows)
{
    uint64_t bytes = moert_tensor_given(t) ? rows * moert_dtype_size(t->dtype) : 0;

    for (uint32_t i = 1; i < t->rank && bytes; i++)
        bytes *= t->shape[i];
    return bytes;
}

/* Saturates where products do not fit: the cut then reports too-large. */
static struct moert_token_need need_of(const struct moert_call *call)
{
    const struct moert_layer_config *c = &call->layer->config;
    const struct moert_layer_args *a = call->args;
    const struct {
        const struct moert_tensor *tensor;
        enum moert_slot slot;
    } rows[] = {{&a->x, MOERT_SLOT_X},           {&a->x_scale, MOERT_SLOT_X_SCALE}, {&a->weights, MOERT_SLOT_WEIGHTS},
                {&a->logits, MOERT_SLOT_LOGITS}, {&a->output, MOERT_SLOT_OUTPUT},   {&a->index, MOERT_SLOT_INDEX}};
    struct moert_token_need need = moert_layer_need(call->layer);
    uint64_t hooked, index = call->slots * sizeof(int32_t);

    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        uint64_t bytes = token_bytes(rows[i].tensor, moert_call_rows(call, rows[i].slot));
        need.widest = bytes > need.widest ? bytes : need.widest;
    }
    if (!a->hook)
        return need;
    /* rows and indexes that a hook reads count against the workspace limit */
    if (!moert_mul(c->hidden_size * moert_dtype_size(c->dtype), call->slots, &hooked))
        hooked = UINT64_MAX;
    need.widest = hooked > need.widest ? hooked : need.widest;
    if (!moert_add(hooked, index, &need.memory))
        need.memory = UINT64_MAX;
    return need;
}

/* ------------------------------------------------------------------ inputs */

/* Padding is cut off here when the host can know it or computes from x; else the backend gets the count (one chunk, so
 * that it can). */
static moert_status_t take_count(struct moert_call *call, struct moert_error *err)
{
    const struct moert_layer_args *a = call->args;
    struct moert_token_need need = need_of(call);
    uint64_t chunk = 0, workspace;
    const void *host;
    int32_t count;
    moert_status_t status;

    call->real = call->tokens;
    if (!moert_tensor_given(&a->token_count))
        return MOERT_OK;
    status = moert_stage_add(&call->stage, MOERT_SLOT_TOKEN_COUNT, &a->token_count, MOERT_STAGE_IN, err);
    if (status)
        return status;
    if (a->token_count.buffer && (moert_tensor_given(&a->ids) || moert_call_backend_routes(call)) &&
        flags_of(call) & MOERT_BACKEND_F_DEVICE_COUNT &&
        !moert_layer_cut(call->layer, call->tokens, &need, &chunk, &workspace, NULL) && chunk >= call->tokens) {
        call->device_count = 1;
        return MOERT_OK;
    }
    status = moert_stage_read(&call->stage, MOERT_SLOT_TOKEN_COUNT, &host, err);
    if (status)
        return status;
    memcpy(&count, host, sizeof(count));
    if (count < 0)
        return moert_fail(err, MOERT_E_VALUE, "count", "token_count is %d; must be at least 0", (int)count);
    if ((uint64_t)count < call->real)
        call->real = (uint64_t)count;
    return MOERT_OK;
}

/* MXFP8 codes as d, for a backend or a scheme that wants plain hidden states. */
static moert_status_t decode_x(struct moert_call *call, struct moert_error *err)
{
    struct moert_stage *stage = &call->stage;
    const struct moert_layer_config *c = &call->layer->config;
    const uint64_t shape[2] = {call->tokens, c->hidden_size};
    struct moert_item codes;
    const void *x, *scales;
    void *plain = NULL;
    moert_status_t status = moert_stage_read(stage, MOERT_SLOT_X, &x, err);

    if (!status)
        status = moert_stage_read(stage, MOERT_SLOT_X_SCALE, &scales, err);
    if (!status)
        status = moert_stage_own(stage, MOERT_SLOT_DECODED, c->dtype, 2, shape, &plain, err);
    if (!status)
        status = moert_mxfp8_dequantize(x, scales, shape[0], shape[1], plain, c->dtype, err);
    if (status)
        return status;
    codes = stage->items[MOERT_SLOT_X];
    stage->items[MOERT_SLOT_X] = stage->items[MOERT_SLOT_DECODED];
    stage->items[MOERT_SLOT_DECODED] = codes; /* still owns its import */
    stage->items[MOERT_SLOT_DECODED].direction = stage->items[MOERT_SLOT_X_SCALE].direction = MOERT_STAGE_NONE;
    stage->staged_bytes += shape[0] * shape[1] * moert_dtype_size(c->dtype);
    return MOERT_OK;
}

static moert_status_t take_x(struct moert_call *call, struct moert_error *err)
{
    const struct moert_layer_config *c = &call->layer->config;
    const struct moert_layer_args *a = call->args;
    moert_status_t status = moert_stage_add(&call->stage, MOERT_SLOT_X, &a->x, MOERT_STAGE_IN, err);

    if (!status)
        status = moert_stage_add(&call->stage, MOERT_SLOT_X_SCALE, &a->x_scale, MOERT_STAGE_IN, err);
    if (status || !moert_tensor_given(&a->x_scale))
        return status;
    if (flags_of(call) & MOERT_BACKEND_F_MXFP8_INPUT && c->activation_scheme == MOERT_SCHEME_MXFP8 &&
        !c->apply_router_weight_on_input)
        return MOERT_OK;
    return decode_x(call, err);
}

/* A caller's map on the device; its fused shared tail is the layer's (routing.md 2.4). */
static moert_status_t extend_device_map(struct moert_call *call, struct moert_error *err)
{
    const struct moert_layer_config *c = &call->layer->config;
    struct moert_stage *stage = &call->stage;
    struct moert_item *item = &stage->items[MOERT_SLOT_MAP];
    struct moert_pool_memory *whole = &stage->pool->slice[MOERT_SLOT_MAP], *tail = &stage->pool->host[MOERT_SLOT_MAP];
    uint64_t routed = (uint64_t)c->num_experts * sizeof(int32_t),
             fused = (uint64_t)c->num_fused_shared * sizeof(int32_t);
    moert_status_t status = moert_pool_device(stage, whole, routed + fused, err);

    if (!status)
        status = moert_pool_host(stage, tail, fused, err);
    if (status)
        return status;
    for (uint32_t i = 0; i < c->num_fused_shared; i++) /* the same at every call: no wait before it is written again */
        ((int32_t *)(void *)tail->host)[i] = (int32_t)(c->num_local_experts - c->num_fused_shared + i);
    status = ops_of(call)->copy(stage->queue, whole->buffer, 0, item->buffer, item->offset, routed, err);
    if (!status)
        status = ops_of(call)->copy_in(stage->queue, whole->buffer, routed, tail->host, fused, err);
    item->buffer = whole->buffer;
    item->offset = 0;
    item->shape[0] = c->num_experts + c->num_fused_shared;
    return status;
}

static moert_status_t take_host_map(struct moert_call *call, struct moert_error *err)
{
    const struct moert_layer_config *c = &call->layer->config;
    uint32_t n = c->num_fused_shared, routed = c->num_local_experts - n;
    const uint64_t length = (uint64_t)c->num_experts + n;
    const void *map;
    void *own = NULL;
    moert_status_t status = moert_stage_read(&call->stage, MOERT_SLOT_SCRATCH, &map, err);

    if (!status)
        status = moert_expert_map_check(map, c->num_experts, c->num_experts, routed, err);
    if (!status)
        status = moert_stage_own(&call->stage, MOERT_SLOT_MAP, MOERT_I32, 1, &length, &own, err);
    if (status)
        return status;
    memcpy(own, map, c->num_experts * sizeof(int32_t));
    for (uint32_t i = 0; i < n; i++)
        ((int32_t *)own)[c->num_experts + i] = (int32_t)(routed + i);
    return MOERT_OK;
}

static moert_status_t take_map(struct moert_call *call, struct moert_error *err)
{
    const struct moert_tensor *map = &call->args->expert_map;
    struct moert_stage *stage = &call->stage;
    int on_host = map->data != NULL;
    moert_status_t status;

    if (!moert_tensor_given(map))
        return MOERT_OK;
    if (on_host && stage->items[MOERT_SLOT_SCRATCH].direction)
        return moert_fail(err, MOERT_E_INTERNAL, "drift", "the scratch of a call is used twice");
    status = moert_stage_add(stage, on_host ? MOERT_SLOT_SCRATCH : MOERT_SLOT_MAP, map, MOERT_STAGE_IN, err);
    if (status)
        return status;
    if (!on_host)
        return call->layer->config.num_fused_shared ? extend_device_map(call, err) : MOERT_OK;
    status = take_host_map(call, err);
    if (stage->items[MOERT_SLOT_SCRATCH].imported)
        ops_of(call)->buffer_free(stage->device->handle, stage->items[MOERT_SLOT_SCRATCH].imported);
    stage->items[MOERT_SLOT_SCRATCH] = (struct moert_item){0}; /* the ids may need it */
    return status;
}

/* ------------------------------------------------------------------ outputs */

static moert_status_t take_outputs(struct moert_call *call, struct moert_error *err)
{
    const struct moert_layer_args *a = call->args;
    const struct moert_layer_dumps *u = &call->dumps;
    const struct moert_tensor *dumps[] = {&u->a1_codes, &u->a1_scales, &u->c1, &u->c2, &u->a2_codes, &u->a2_scales,
                                          &u->c3,       &u->y1,        &u->s1, &u->y2, &u->s2};
    const struct {
        enum moert_slot slot;
        const struct moert_tensor *tensor;
    } outputs[] = {{MOERT_SLOT_OUTPUT, &a->output},
                   {MOERT_SLOT_INDEX, a->flags & MOERT_RUN_F_UNREDUCED ? &a->index : &(struct moert_tensor){0}},
                   {MOERT_SLOT_OUT_IDS, &a->out_ids},
                   {MOERT_SLOT_OUT_WEIGHTS, &a->out_weights}};
    moert_status_t status = MOERT_OK;

    for (size_t i = 0; i < sizeof(outputs) / sizeof(*outputs) && !status; i++)
        status = moert_stage_add(&call->stage, outputs[i].slot, outputs[i].tensor, MOERT_STAGE_OUT, err);
    for (uint32_t i = 0; i < sizeof(dumps) / sizeof(*dumps) && !status; i++)
        status = moert_stage_add(&call->stage, MOERT_SLOT_DUMPS + i, dumps[i], MOERT_STAGE_OUT, err);
    return status;
}

static moert_status_t view(struct moert_call *call, enum moert_slot slot, uint64_t first, uint64_t count,
                           struct moert_drv_tensor *ret, struct moert_error *err)
{
    uint64_t rows = moert_call_rows(call, slot);

    return moert_stage_view(&call->stage, slot, first * rows, count * rows, ret, err);
}

static moert_status_t view_dumps(struct moert_call *call, uint64_t count, struct moert_run_dumps *ret,
                                 struct moert_error *err)
{
    struct moert_drv_tensor *to[] = {&ret->a1_codes, &ret->a1_scales, &ret->c1, &ret->c2,
                                     &ret->a2_codes, &ret->a2_scales, &ret->c3, &ret->y1,
                                     &ret->s1,       &ret->y2,        &ret->s2};
    moert_status_t status = MOERT_OK;

    ret->size = sizeof(*ret);
    for (uint32_t i = 0; i < sizeof(to) / sizeof(*to) && !status; i++)
        status = view(call, MOERT_SLOT_DUMPS + i, 0, count, to[i], err);
    return status;
}

/* ------------------------------------------------------------------ one chunk */

static moert_status_t view_inputs(struct moert_call *call, uint64_t first, uint64_t count, struct moert_run_args *run,
                                  struct moert_error *err)
{
    const struct moert_layer *layer = call->layer;
    const struct moert_layer_config *c = &layer->config;
    const uint64_t ids = (uint64_t)c->num_experts + c->num_fused_shared, experts = c->num_experts;
    const struct {
        enum moert_slot slot;
        struct moert_drv_tensor *to;
    } parts[] = {{MOERT_SLOT_X, &run->x},
                 {MOERT_SLOT_X_SCALE, &run->x_scale},
                 {MOERT_SLOT_IDS, &run->ids},
                 {MOERT_SLOT_WEIGHTS, &run->weights}};
    moert_status_t status = MOERT_OK;

    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts) && !status; i++)
        status = moert_stage_view(&call->stage, parts[i].slot, first, count, parts[i].to, err);
    if (!status && call->backend_routes)
        status = moert_stage_view(&call->stage, MOERT_SLOT_LOGITS, first, count, &run->logits, err);
    if (!status && call->backend_routes && layer->bias_buffer)
        run->correction_bias = moert_drv_dense(layer->bias_buffer, 0, MOERT_F32, 1, &experts);
    if (!status && call->device_count)
        status = moert_stage_view(&call->stage, MOERT_SLOT_TOKEN_COUNT, 0, 1, &run->token_count, err);
    if (!status && call->stage.items[MOERT_SLOT_MAP].direction)
        status = moert_stage_view(&call->stage, MOERT_SLOT_MAP, 0, ids, &run->expert_map, err);
    else if (!status && layer->map_buffer)
        run->expert_map = moert_drv_dense(layer->map_buffer, 0, MOERT_I32, 1, &ids);
    return status;
}

/* The routing used, for the caller: copied from the inputs unless the backend makes it. */
static moert_status_t view_routing(struct moert_call *call, uint64_t first, uint64_t count, struct moert_run_args *run,
                                   struct moert_error *err)
{
    struct moert_drv_tensor ids, weights;
    uint64_t bytes = count * call->slots * sizeof(int32_t);
    moert_status_t status = view(call, MOERT_SLOT_OUT_IDS, first, count, &ids, err);

    if (!status)
        status = view(call, MOERT_SLOT_OUT_WEIGHTS, first, count, &weights, err);
    if (status)
        return status;
    if (call->backend_routes) {
        run->out_ids = ids;
        run->out_weights = weights;
        return MOERT_OK;
    }
    if (ids.buffer)
        status = ops_of(call)->copy(call->queue->handle, ids.buffer, ids.offset, run->ids.buffer, run->ids.offset,
                                    bytes, err);
    if (!status && weights.buffer)
        status = ops_of(call)->copy(call->queue->handle, weights.buffer, weights.offset, run->weights.buffer,
                                    run->weights.offset, bytes, err);
    return status;
}

static moert_status_t bring_back(struct moert_call *call, uint64_t first, uint64_t count, struct moert_error *err)
{
    moert_status_t status = MOERT_OK;

    for (uint32_t slot = 0; slot < MOERT_SLOT_COUNT && !status; slot++) {
        uint64_t rows = moert_call_rows(call, slot);
        status = moert_stage_back(&call->stage, slot, first * rows, count * rows, err);
    }
    return status;
}

static moert_status_t run_chunk(struct moert_call *call, uint64_t first, uint64_t count, struct moert_error *err)
{
    const struct moert_layer *layer = call->layer;
    const struct moert_router_config *router = &layer->config.router;
    const struct moert_layer_args *a = call->args;
    struct moert_run_args run = {.size = sizeof(run), .flags = a->flags, .tokens = count, .output_scale = 1};
    struct moert_run_dumps dumps = {0};
    struct moert_drv_tensor out = {0};
    moert_status_t status = view_inputs(call, first, count, &run, err);

    if (!status && layer->shared && !(a->flags & MOERT_RUN_F_UNREDUCED))
        status = moert_shared_run(call, first, count, &run, &run.shared, err);
    if (!status)
        status = view(call, MOERT_SLOT_OUTPUT, first, count, &out, err);
    if (!status)
        status = view_routing(call, first, count, &run, err);
    if (!status && a->dumps)
        status = view_dumps(call, count, &dumps, err);
    if (status)
        return status;
    run.dumps = a->dumps ? &dumps : NULL;
    run.workspace = call->stage.pool->workspace.buffer;
    run.workspace_bytes = call->workspace_bytes;
    if (!(a->flags & MOERT_RUN_F_UNREDUCED) && router->scale_at == MOERT_SCALE_AT_OUTPUT)
        run.output_scale = router->scaling_factor;
    run.output = out;
    if (a->hook)
        status = moert_hook_rows(call, count, &run, err);
    else
        status = view(call, MOERT_SLOT_INDEX, first, count, &run.index, err);
    if (!status)
        status = layer->backend->ops->run(layer->handle, call->queue->handle, &run, err);
    if (!status && a->hook)
        status = moert_hook_call(call, first, count, &run, &out, err);
    return status ? status : bring_back(call, first, count, err);
}

/* ------------------------------------------------------------------ after the chunks */

/* Padding rows: +0, ids -1, index -1. */
static moert_status_t fill_padding(struct moert_call *call, struct moert_error *err)
{
    static const struct {
        enum moert_slot slot;
        uint8_t value;
    } outputs[] = {
        {MOERT_SLOT_OUTPUT, 0}, {MOERT_SLOT_INDEX, 0xFF}, {MOERT_SLOT_OUT_IDS, 0xFF}, {MOERT_SLOT_OUT_WEIGHTS, 0}};
    moert_status_t status = MOERT_OK;

    for (size_t i = 0; i < sizeof(outputs) / sizeof(*outputs) && !status; i++) {
        uint64_t rows = moert_call_rows(call, outputs[i].slot);
        status = moert_stage_fill(&call->stage, outputs[i].slot, call->real * rows, (call->tokens - call->real) * rows,
                                  outputs[i].value, err);
    }
    return status;
}

/* A backend numbers the slots of its chunk; the caller's numbers are those of the call. */
static moert_status_t renumber_index(struct moert_call *call, struct moert_error *err)
{
    struct moert_item *item = &call->stage.items[MOERT_SLOT_INDEX];
    struct moert_pool_memory *copy = &call->stage.pool->host[MOERT_SLOT_SCRATCH];
    const struct moert_device_ops *ops = ops_of(call);
    moert_drv_queue *queue = call->queue->handle;
    uint64_t slots = call->real * call->slots, bytes = slots * sizeof(int32_t);
    moert_status_t status = MOERT_OK;
    int32_t *index;

    if (!(call->args->flags & MOERT_RUN_F_UNREDUCED) || call->chunk >= call->real)
        return MOERT_OK;
    status = moert_stage_check_capture(&call->stage, "has unreduced rows in several chunks", err);
    if (status)
        return status;
    if (item->buffer) {
        status = moert_pool_host(&call->stage, copy, bytes, err);
        if (!status)
            status = ops->copy_out(queue, copy->host, item->buffer, item->offset, bytes, err);
    }
    if (!status)
        status = ops->queue_wait(queue, ops->queue_last(queue), UINT64_MAX, NULL, err);
    if (status)
        return status;
    index = (int32_t *)(void *)(item->buffer ? copy->host : item->host);
    for (uint64_t s = 0; s < slots; s++)
        if (index[s] >= 0)
            index[s] += (int32_t)(s / call->slots / call->chunk * call->chunk * call->slots);
    if (!item->buffer)
        return MOERT_OK;
    call->stage.must_wait = 1;
    return ops->copy_in(queue, item->buffer, item->offset, copy->host, bytes, err);
}

static moert_status_t prepare(struct moert_call *call, struct moert_error *err)
{
    struct moert_token_need need = need_of(call);
    moert_status_t status = take_count(call, err);

    if (!status)
        status = take_x(call, err);
    if (!status)
        status = take_map(call, err);
    if (!status && call->real)
        status = moert_layer_cut(call->layer, call->real, &need, &call->chunk, &call->workspace_bytes, err);
    if (!status && call->args->dumps && call->chunk < call->real)
        status =
            moert_fail(err, MOERT_E_USAGE, "workspace", "dumps need one chunk; %llu tokens are cut into chunks of %llu",
                       (unsigned long long)call->real, (unsigned long long)call->chunk);
    if (!status && call->real)
        status = moert_call_route(call, err);
    if (!status && call->real)
        status = moert_shared_prepare(call, err);
    if (!status)
        status = moert_pool_device(&call->stage, &call->stage.pool->workspace, call->workspace_bytes, err);
    return status ? status : take_outputs(call, err);
}

static moert_status_t execute(struct moert_call *call, uint64_t *chunks, struct moert_error *err)
{
    moert_status_t status = prepare(call, err);

    for (uint64_t first = 0; first < call->real && !status; first += call->chunk) {
        uint64_t count = call->real - first < call->chunk ? call->real - first : call->chunk;
        status = run_chunk(call, first, count, err);
        *chunks += !status;
    }
    if (!status)
        status = fill_padding(call, err);
    return status ? status : renumber_index(call, err);
}

static void count_call(struct moert_call *call, uint64_t chunks)
{
    struct moert_layer *layer = call->layer;

    pthread_mutex_lock(&layer->lock);
    layer->stats.calls++;
    layer->stats.chunks += chunks;
    layer->stats.staged_bytes += call->stage.staged_bytes;
    layer->stats.allocations += call->stage.allocations;
    layer->stats.rows_nonfinite += call->rows_nonfinite;
    pthread_mutex_unlock(&layer->lock);
}

moert_status_t moert_layer_run(moert_layer_t *layer, moert_queue_t *queue, const struct moert_layer_args *args,
                               struct moert_error *err)
{
    struct moert_call call = {.layer = layer, .queue = queue, .args = args};
    uint64_t chunks = 0;
    moert_status_t status;

    if (!layer || !queue || !args)
        return moert_fail_null(err, !layer ? "layer" : queue ? "args" : "queue");
    status = moert_call_check(&call, err);
    if (status || !call.tokens)
        return moert_layer_prefix(&layer->config, err, status);
    call.stage.device = layer->device;
    call.stage.queue = queue->handle;
    call.stage.capturing = moert_queue_capture_state(queue) == MOERT_CAPTURE_ACTIVE;
    status = moert_layer_pool(layer, queue, &call.stage.pool, err);
    if (!status) {
        status = execute(&call, &chunks, err);
        status = moert_stage_finish(&call.stage, status, err);
        count_call(&call, chunks);
    }
    return moert_layer_prefix(&layer->config, err, status);
}
