/* core/layer/hook.c: the post-GEMM2 hook (layer.md 5): the backend leaves unweighted rows in memory of the pool, the
 * caller's function does weighting and combine in the backend's place, once per chunk, in order. */
#include "config.h"

#include "core/layer/layer.h"

struct moert_tensor moert_layer_wrap(const struct moert_layer *layer, const struct moert_drv_tensor *tensor,
                                     struct moert_buffer *buffer)
{
    uint64_t bytes = moert_dtype_size(tensor->dtype);

    if (!tensor->buffer)
        return (struct moert_tensor){0};
    for (uint32_t i = 0; i < tensor->rank; i++)
        bytes *= tensor->shape[i];
    *buffer = (struct moert_buffer){.context = layer->context,
                                    .device = layer->device_index,
                                    .handle = tensor->buffer,
                                    .bytes = tensor->offset + bytes};
    return moert_tensor_device(buffer, tensor->offset, tensor->dtype, tensor->rank, tensor->shape);
}

/* Dense memory of the pool as a tensor. */
static moert_status_t pool_tensor(struct moert_call *call, enum moert_slot slot, moert_dtype_t dtype, uint32_t rank,
                                  const uint64_t *shape, struct moert_drv_tensor *ret, struct moert_error *err)
{
    struct moert_pool_memory *memory = &call->stage.pool->device[slot];
    uint64_t bytes = moert_dtype_size(dtype);
    moert_status_t status;

    for (uint32_t i = 0; i < rank; i++)
        bytes *= shape[i];
    status = moert_pool_device(&call->stage, memory, bytes, err);
    if (!status)
        *ret = moert_drv_dense(memory->buffer, 0, dtype, rank, shape);
    return status;
}

moert_status_t moert_hook_rows(struct moert_call *call, uint64_t count, struct moert_run_args *run,
                               struct moert_error *err)
{
    const struct moert_layer_config *c = &call->layer->config;
    const uint64_t rows[2] = {count * call->slots, c->hidden_size}, per_slot[2] = {count, call->slots};
    moert_status_t status = pool_tensor(call, MOERT_SLOT_ROWS, c->dtype, 2, rows, &run->output, err);

    if (!status)
        status = pool_tensor(call, MOERT_SLOT_INDEX, MOERT_I32, 1, rows, &run->index, err);
    if (!status && call->backend_routes && !run->out_weights.buffer) /* the hook is to see the weights */
        status = pool_tensor(call, MOERT_SLOT_OUT_WEIGHTS, MOERT_F32, 2, per_slot, &run->out_weights, err);
    run->flags = MOERT_RUN_F_UNREDUCED | MOERT_RUN_F_UNWEIGHTED;
    run->output_scale = 1;
    return status;
}

moert_status_t moert_hook_call(struct moert_call *call, uint64_t first, uint64_t count,
                               const struct moert_run_args *run, const struct moert_drv_tensor *out,
                               struct moert_error *err)
{
    const struct moert_layer *layer = call->layer;
    const struct moert_layer_config *c = &layer->config;
    struct moert_buffer rows, weights, index, shared, output;
    struct moert_drv_tensor matrix = run->index;
    struct moert_unreduced u = {.size = sizeof(u), .route_major = 1};
    struct moert_tensor to = moert_layer_wrap(layer, out, &output);
    moert_status_t status;

    matrix = moert_drv_dense(matrix.buffer, matrix.offset, MOERT_I32, 2, (uint64_t[]){count, call->slots});
    u.rows = moert_layer_wrap(layer, &run->output, &rows);
    u.weights = moert_layer_wrap(layer, run->logits.buffer ? &run->out_weights : &run->weights, &weights);
    u.index = moert_layer_wrap(layer, &matrix, &index);
    u.shared = moert_layer_wrap(layer, &run->shared, &shared);
    u.row_count = count * call->slots;
    u.token_offset = first;
    u.tokens = count;
    u.top_k = call->slots;
    u.dtype = c->dtype;
    u.hidden_size = c->hidden_size;
    u.scaling_factor = c->router.scale_at == MOERT_SCALE_AT_OUTPUT ? c->router.scaling_factor : 1;
    u.queue = call->queue;
    u.native_stream = moert_queue_native(call->queue);
    if (err)
        err->text[0] = err->code[0] = 0;
    status = call->args->hook(call->args->hook_ctx, &u, &to, err);
    if (status && err && !err->text[0])
        moert_fail(err, status, "hook", "the post-GEMM2 hook returned %s", moert_status_name(status));
    return status;
}
