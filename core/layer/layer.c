/* core/layer/layer.c: a layer's life: made for a decision, asked about, destroyed. */
#include "config.h"

#include "core/layer/layer.h"

#include "core/base/checked.h"
#include "core/base/options.h"
#include "core/layer/chunk.h"
#include "core/oracle/decision.h"

#include <moert/routing.h>

#include <stdlib.h>
#include <string.h>

static const struct moert_device_ops *ops_of(const struct moert_layer *layer)
{
    return layer->device->driver->table->device;
}

moert_status_t moert_layer_refuse(const struct moert_layer *layer, struct moert_error *err, const char *ability)
{
    return moert_fail(err, MOERT_E_NO_BACKEND, "backend-refused", "%s cannot serve: %s have no need yes",
                      layer->backend->name, ability);
}

moert_status_t moert_layer_upload(struct moert_layer *layer, const void *host, uint64_t bytes, moert_drv_buffer **ret,
                                  struct moert_error *err)
{
    const struct moert_device_ops *ops = ops_of(layer);
    moert_drv_device *device = layer->device->handle;
    moert_drv_buffer *buffer = NULL;
    moert_drv_queue *queue = NULL;
    moert_status_t status = ops->buffer_alloc(device, MOERT_MEMORY_DEVICE, bytes, 256, &buffer, err);

    if (status)
        return status;
    status = ops->queue_create(device, 0, &queue, err);
    if (!status)
        status = ops->copy_in(queue, buffer, 0, host, bytes, err);
    if (!status)
        status = ops->queue_wait(queue, ops->queue_last(queue), UINT64_MAX, NULL, err);
    if (queue)
        ops->queue_destroy(queue);
    if (status)
        ops->buffer_free(device, buffer);
    else
        *ret = buffer;
    return status;
}

/* The description's map over the E routed ids, extended over the n fused shared ones (routing.md 2.4). */
static moert_status_t make_map(struct moert_layer *layer, struct moert_error *err)
{
    const struct moert_layer_config *c = &layer->config;
    uint32_t routed = c->num_local_experts - c->num_fused_shared;
    size_t length = (size_t)c->num_experts + c->num_fused_shared;

    if (!c->expert_map_length)
        return MOERT_OK;
    layer->map = malloc(length * sizeof(*layer->map));
    if (!layer->map)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for an expert map of %zu entries", length);
    memcpy(layer->map, c->expert_map, c->num_experts * sizeof(*layer->map));
    for (uint32_t i = 0; i < c->num_fused_shared; i++)
        layer->map[c->num_experts + i] = (int32_t)(routed + i);
    return moert_layer_upload(layer, layer->map, length * sizeof(*layer->map), &layer->map_buffer, err);
}

static moert_status_t check_abilities(const struct moert_layer *layer, struct moert_error *err)
{
    const struct moert_layer_config *c = &layer->config;
    int scaled = c->router.scale_at == MOERT_SCALE_AT_OUTPUT && c->router.scaling_factor != 1;

    if ((c->shared.intermediate_size || scaled) && !(layer->backend->flags & MOERT_BACKEND_F_SHARED))
        return moert_layer_refuse(layer, err, c->shared.intermediate_size ? "shared" : "output_scale");
    return MOERT_OK;
}

static moert_status_t fill(struct moert_layer *layer, const struct moert_layer_config *config, struct moert_error *err)
{
    moert_status_t status = moert_layer_config_copy(config, &layer->config, err);

    if (!status)
        status = moert_ctx_device_open(layer->context, layer->device_index, &layer->device, err);
    if (!status)
        status = check_abilities(layer, err);
    if (status)
        return status;
    layer->set = calloc(layer->config.num_local_experts, 1);
    if (!layer->set)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for %u experts",
                          layer->config.num_local_experts);
    status = make_map(layer, err);
    if (!status)
        status =
            layer->backend->ops->create(layer->device->handle, layer->backend, &layer->config, &layer->handle, err);
    if (!status && layer->config.shared.intermediate_size)
        status = moert_shared_create(layer, err);
    return status;
}

moert_status_t moert_layer_make(struct moert_context *context, const struct moert_layer_config *config,
                                const struct moert_backend *backend, uint32_t device, struct moert_layer **ret,
                                struct moert_error *err)
{
    struct moert_layer *layer = calloc(1, sizeof(*layer));
    moert_status_t status;

    if (!layer)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for a layer object");
    layer->context = context;
    layer->backend = backend;
    layer->device_index = device;
    layer->stats.size = sizeof(layer->stats);
    pthread_mutex_init(&layer->lock, NULL);
    status = moert_layer_prefix(config, err, fill(layer, config, err));
    if (status)
        moert_layer_destroy(layer);
    else
        *ret = layer;
    return status;
}

static moert_status_t check_decision(const struct moert_context *context, const moert_decision_t *decision,
                                     struct moert_error *err)
{
    if (decision->failed)
        return moert_fail(err, MOERT_E_NO_BACKEND, "state", "the decision has no winner");
    if (decision->what_if)
        return moert_fail(err, MOERT_E_NO_BACKEND, "state",
                          "the decision is for a described device; a layer needs one that is present");
    if (decision->backend >= context->backend_count || decision->device >= context->device_count)
        return moert_fail(err, MOERT_E_USAGE, "state", "the decision was made in another context");
    if (context->backends[decision->backend]->driver != context->devices[decision->device]->driver)
        return moert_fail(err, MOERT_E_INTERNAL, "drift", "decision: backend %s is not of the driver of %s",
                          context->backends[decision->backend]->table->name,
                          context->devices[decision->device]->desc.id);
    return MOERT_OK;
}

moert_status_t moert_layer_create(moert_context_t *context, const struct moert_layer_config *layer,
                                  const moert_decision_t *decision, moert_layer_t **ret, struct moert_error *err)
{
    struct moert_layer_config complete;
    moert_status_t status;

    if (!context || !layer || !decision || !ret)
        return moert_fail_null(err, !context ? "context" : !layer ? "layer" : !decision ? "decision" : "ret");
    status = moert_check_size(err, "moert_layer_config", layer->size, sizeof(*layer));
    if (status)
        return status;
    complete = *layer;
    status = moert_layer_config_check(&complete, err);
    if (!status)
        status = moert_layer_prefix(layer, err, check_decision(context, decision, err));
    if (status)
        return status;
    return moert_layer_make(context, &complete, context->backends[decision->backend]->table, decision->device, ret,
                            err);
}

void moert_layer_destroy(moert_layer_t *layer)
{
    if (!layer)
        return;
    moert_layer_destroy(layer->shared);
    if (layer->handle)
        layer->backend->ops->release(layer->handle);
    while (layer->pools) {
        struct moert_pool *next = layer->pools->next;
        moert_pool_free(layer->device, layer->pools);
        layer->pools = next;
    }
    if (layer->map_buffer)
        ops_of(layer)->buffer_free(layer->device->handle, layer->map_buffer);
    if (layer->bias_buffer)
        ops_of(layer)->buffer_free(layer->device->handle, layer->bias_buffer);
    pthread_mutex_destroy(&layer->lock);
    moert_layer_config_clear(&layer->config);
    free(layer->set);
    free(layer->map);
    free(layer->router_weight);
    free(layer->router_bias);
    free(layer->correction_bias);
    free(layer->shared_gate);
    free(layer);
}

const struct moert_layer_config *moert_layer_get_config(const moert_layer_t *layer)
{
    return layer ? &layer->config : NULL;
}

const char *moert_layer_backend(const moert_layer_t *layer)
{
    return layer ? layer->backend->name : NULL;
}

uint32_t moert_layer_device(const moert_layer_t *layer)
{
    return layer ? layer->device_index : 0;
}

uint32_t moert_layer_backend_flags(const moert_layer_t *layer)
{
    return layer ? layer->backend->flags : 0;
}

/* ------------------------------------------------------------------ pools and chunks */

moert_status_t moert_layer_pool(struct moert_layer *layer, const moert_queue_t *queue, struct moert_pool **ret,
                                struct moert_error *err)
{
    struct moert_pool *pool;

    pthread_mutex_lock(&layer->lock);
    for (pool = layer->pools; pool && pool->queue_id != queue->id;)
        pool = pool->next;
    if (!pool) {
        pool = calloc(1, sizeof(*pool));
        if (pool) {
            pool->queue_id = queue->id;
            pool->next = layer->pools;
            layer->pools = pool;
        }
    }
    pthread_mutex_unlock(&layer->lock);
    if (!pool)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for the pool of a queue");
    *ret = pool;
    return MOERT_OK;
}

struct demand {
    const struct moert_layer *layer;
    uint64_t memory; /* bytes per token beside the workspace */
};

static moert_status_t workspace_of(void *ctx, uint64_t tokens, uint64_t *ret, struct moert_error *err)
{
    const struct demand *d = ctx;
    struct moert_workspace w = {.size = sizeof(w)};
    moert_status_t status = d->layer->backend->ops->workspace(d->layer->backend, &d->layer->device->desc,
                                                              &d->layer->config, tokens, &w, err);
    uint64_t more;

    if (status)
        return status;
    if (!moert_mul(tokens, d->memory, &more) || !moert_add(w.bytes, more, ret))
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large", "the workspace of %llu tokens exceeds 64 bits",
                          (unsigned long long)tokens);
    return MOERT_OK;
}

struct moert_token_need moert_layer_need(const struct moert_layer *layer)
{
    const struct moert_layer_config *c = &layer->config;
    uint64_t row = c->hidden_size * moert_dtype_size(c->dtype), slots = (uint64_t)c->top_k + c->num_fused_shared;

    return (struct moert_token_need){.widest = row > slots * sizeof(int32_t) ? row : slots * sizeof(int32_t)};
}

typedef moert_status_t (*cut_fn)(const struct moert_chunk_limits *limits, uint64_t tokens, uint64_t *ret_chunk,
                                 uint64_t *ret_workspace, struct moert_error *err);

/* Limits of the device and of the options around one of the two cuts of chunk.h. */
static moert_status_t cut(const struct moert_layer *layer, uint64_t tokens, const struct moert_token_need *need,
                          cut_fn how, uint64_t *ret_chunk, uint64_t *ret_workspace, struct moert_error *err)
{
    struct demand demand = {layer, need->memory};
    struct moert_chunk_limits limits = {.layer = &layer->config,
                                        .block_size = layer->backend->block_size ? layer->backend->block_size : 1,
                                        .workspace_max = moert_config_number(MOERT_CFG_WORKSPACE_MAX),
                                        .workspace = workspace_of,
                                        .ctx = &demand};
    uint64_t bytes = 0, chunk = 0, largest = layer->device->desc.max_buffer;
    moert_status_t status;

    if (largest && largest < limits.workspace_max) /* the workspace is one buffer */
        limits.workspace_max = largest;
    if (largest && need->widest)
        limits.tokens_max = largest / need->widest;
    if (largest && need->widest > largest)
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large",
                          "the rows of one token need %llu bytes, %s has buffers "
                          "of up to %llu",
                          (unsigned long long)need->widest, layer->device->desc.id, (unsigned long long)largest);
    status = how(&limits, tokens, &chunk, &bytes, err);
    if (status)
        return status;
    *ret_chunk = chunk;
    *ret_workspace = bytes - chunk * need->memory;
    return MOERT_OK;
}

moert_status_t moert_layer_cut(const struct moert_layer *layer, uint64_t tokens, const struct moert_token_need *need,
                               uint64_t *ret_chunk, uint64_t *ret_workspace, struct moert_error *err)
{
    return cut(layer, tokens, need, moert_chunk_tokens, ret_chunk, ret_workspace, err);
}

moert_status_t moert_layer_most(const struct moert_layer *layer, uint64_t tokens, const struct moert_token_need *need,
                                uint64_t *ret_tokens, uint64_t *ret_workspace, struct moert_error *err)
{
    return cut(layer, tokens, need, moert_chunk_most, ret_tokens, ret_workspace, err);
}

moert_status_t moert_layer_chunk(const moert_layer_t *layer, uint64_t tokens, uint64_t *ret_chunk,
                                 uint64_t *ret_workspace, struct moert_error *err)
{
    struct moert_token_need need;
    uint64_t chunk = 0, workspace = 0;
    moert_status_t status = MOERT_OK;

    if (!layer || !ret_chunk || !ret_workspace)
        return moert_fail_null(err, !layer ? "layer" : ret_chunk ? "ret_workspace" : "ret_chunk");
    need = moert_layer_need(layer);
    if (tokens)
        status =
            moert_layer_prefix(&layer->config, err, moert_layer_cut(layer, tokens, &need, &chunk, &workspace, err));
    if (status)
        return status;
    *ret_chunk = chunk;
    *ret_workspace = workspace;
    return MOERT_OK;
}

/* ------------------------------------------------------------------ counters */

moert_status_t moert_layer_counters(moert_layer_t *layer, struct moert_counters *ret, struct moert_error *err)
{
    struct moert_counters counters = {.size = sizeof(counters)};
    moert_status_t status;
    uint32_t size;

    if (!layer || !ret)
        return moert_fail_null(err, layer ? "ret" : "layer");
    size = ret->size;
    status = moert_check_size(err, "moert_counters", size, sizeof(*ret));
    if (!status)
        status = layer->backend->ops->counters(layer->handle, &counters, err);
    if (status)
        return moert_layer_prefix(&layer->config, err, status);
    *ret = counters;
    ret->size = size;
    return MOERT_OK;
}

moert_status_t moert_layer_stats(const moert_layer_t *layer, struct moert_layer_stats *ret, struct moert_error *err)
{
    moert_layer_t *l = (moert_layer_t *)(uintptr_t)layer; /* the lock is not part of the value */
    moert_status_t status;
    uint32_t size;

    if (!layer || !ret)
        return moert_fail_null(err, layer ? "ret" : "layer");
    size = ret->size;
    status = moert_check_size(err, "moert_layer_stats", size, sizeof(*ret));
    if (status)
        return moert_layer_prefix(&layer->config, err, status);
    pthread_mutex_lock(&l->lock);
    *ret = l->stats;
    pthread_mutex_unlock(&l->lock);
    ret->size = size;
    return MOERT_OK;
}
