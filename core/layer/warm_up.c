/* core/layer/warm_up.c: memory before the first run, so that runs allocate nothing. */
#include "config.h"

#include "core/layer/layer.h"

/* The slots that calls may use on a queue, with bytes per token on the device (host tensors of a device with memory of
 * its own) and on the host (ids and weights that the core routes). */
static moert_status_t reserve(struct moert_layer *layer, struct moert_stage *stage, uint64_t chunk, uint64_t tokens,
                              struct moert_error *err)
{
    const struct moert_layer_config *c = &layer->config;
    uint64_t row = c->hidden_size * moert_dtype_size(c->dtype), slots = (uint64_t)c->top_k + c->num_fused_shared;
    uint64_t logits = layer->router_weight ? layer->router_columns * moert_dtype_size(layer->logits_dtype) : 0;
    int reads_x = layer->router_weight || layer->shared_gate; /* the core computes from x on the host */
    int shares = (layer->device->desc.flags & MOERT_DEVICE_F_HOST_MEMORY) != 0;
    const struct {
        enum moert_slot slot;
        uint64_t device, host;
    } rows[] = {
        {MOERT_SLOT_X, shares ? 0 : row, reads_x ? row : 0},
        {MOERT_SLOT_IDS, shares ? 0 : slots * 4, c->router.kind == MOERT_ROUTER_GIVEN ? 0 : slots * 4},
        {MOERT_SLOT_WEIGHTS, shares ? 0 : slots * 4, c->router.kind == MOERT_ROUTER_GIVEN ? 0 : slots * 4},
        {MOERT_SLOT_LOGITS, 0, logits},
        {MOERT_SLOT_OUTPUT, shares ? 0 : row, 0},
    };
    moert_status_t status = MOERT_OK;

    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows) && !status; i++) {
        if (rows[i].device)
            status = moert_pool_device(stage, &stage->pool->slice[rows[i].slot], chunk * rows[i].device, err);
        if (!status && rows[i].host)
            status = moert_pool_host(stage, &stage->pool->host[rows[i].slot], tokens * rows[i].host, err);
    }
    return status;
}

static moert_status_t warm_up(struct moert_layer *layer, moert_queue_t *queue, struct moert_stage *stage,
                              uint64_t tokens, struct moert_error *err)
{
    struct moert_layer_args none = {.size = sizeof(none)};
    struct moert_call call = {.layer = layer, .queue = queue, .args = &none, .tokens = tokens, .real = tokens};
    struct moert_token_need need = moert_layer_need(layer);
    uint64_t workspace = 0;
    moert_status_t status = moert_layer_most(layer, tokens, &need, &call.chunk, &workspace, err);

    if (!status)
        status = moert_pool_device(stage, &stage->pool->workspace, workspace, err);
    if (!status)
        status = reserve(layer, stage, call.chunk, tokens, err);
    if (!status && layer->shared) {
        call.stage = *stage;
        status = moert_shared_reserve(&call, err);
        *stage = call.stage;
    }
    if (!status && layer->shared)
        status = moert_layer_warm_up(layer->shared, queue, call.chunk, err);
    if (!status && MOERT_DRV_OP(layer->backend->ops, warm_up))
        status = layer->backend->ops->warm_up(layer->handle, queue->handle, call.chunk, err);
    return status;
}

moert_status_t moert_layer_warm_up(moert_layer_t *layer, moert_queue_t *queue, uint64_t max_tokens,
                                   struct moert_error *err)
{
    struct moert_stage stage = {0};
    moert_status_t status;

    if (!layer || !queue)
        return moert_fail_null(err, layer ? "queue" : "layer");
    status = moert_layer_check_queue(layer, queue, err);
    if (status || !max_tokens)
        return moert_layer_prefix(&layer->config, err, status);
    stage.device = layer->device;
    stage.queue = queue->handle;
    status = moert_layer_pool(layer, queue, &stage.pool, err);
    if (!status)
        status = warm_up(layer, queue, &stage, max_tokens, err);
    pthread_mutex_lock(&layer->lock);
    layer->stats.allocations += stage.allocations;
    pthread_mutex_unlock(&layer->lock);
    return moert_layer_prefix(&layer->config, err, status);
}
