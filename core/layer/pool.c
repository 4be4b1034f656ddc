/* core/layer/pool.c: memory of one queue of one layer. It only grows, so that calls after the first (or after warm-up)
 * allocate nothing. */
#include "config.h"

#include "core/base/error.h"
#include "core/layer/staging.h"

#include <stdlib.h>

static const struct moert_device_ops *ops_of(const struct moert_ctx_device *device)
{
    return device->driver->table->device;
}

static void release(struct moert_ctx_device *device, struct moert_pool_memory *memory)
{
    if (memory->buffer)
        ops_of(device)->buffer_free(device->handle, memory->buffer);
    else
        free(memory->host);
    *memory = (struct moert_pool_memory){0};
}

/* Work that is still pending may use the old memory. */
static moert_status_t retire(struct moert_stage *stage, struct moert_pool_memory *memory, struct moert_error *err)
{
    const struct moert_device_ops *ops = ops_of(stage->device);
    moert_status_t status;

    if (!memory->bytes)
        return MOERT_OK;
    status = ops->queue_wait(stage->queue, ops->queue_last(stage->queue), UINT64_MAX, NULL, err);
    if (!status)
        release(stage->device, memory);
    return status;
}

moert_status_t moert_stage_check_capture(const struct moert_stage *stage, const char *what, struct moert_error *err)
{
    if (!stage->capturing)
        return MOERT_OK;
    return moert_fail(err, MOERT_E_USAGE, "state", "the queue is being captured, and this call %s", what);
}

static moert_status_t check_growth(const struct moert_stage *stage, struct moert_error *err)
{
    return moert_stage_check_capture(stage, "needs more memory; call moert_layer_warm_up first, with as many tokens",
                                     err);
}

moert_status_t moert_pool_device(struct moert_stage *stage, struct moert_pool_memory *memory, uint64_t bytes,
                                 struct moert_error *err)
{
    moert_status_t status;

    if (memory->bytes >= bytes && memory->buffer)
        return MOERT_OK;
    status = check_growth(stage, err);
    if (!status)
        status = retire(stage, memory, err);
    if (!status)
        status = ops_of(stage->device)
                     ->buffer_alloc(stage->device->handle, MOERT_MEMORY_DEVICE, bytes, 256, &memory->buffer, err);
    if (status)
        return status;
    memory->bytes = bytes;
    stage->allocations++;
    return MOERT_OK;
}

/* Memory that the device copies from without a stop, when the driver has such memory with an address. */
static int alloc_pinned(struct moert_ctx_device *device, struct moert_pool_memory *memory, uint64_t bytes)
{
    struct moert_memory_info info = {.size = sizeof(info)};
    moert_drv_buffer *buffer = NULL;

    if (ops_of(device)->buffer_alloc(device->handle, MOERT_MEMORY_PINNED, bytes, 256, &buffer, NULL))
        return 0;
    if (ops_of(device)->buffer_info(device->handle, buffer, &info, NULL) || !info.host) {
        ops_of(device)->buffer_free(device->handle, buffer);
        return 0;
    }
    memory->buffer = buffer;
    memory->host = info.host;
    return 1;
}

moert_status_t moert_pool_host(struct moert_stage *stage, struct moert_pool_memory *memory, uint64_t bytes,
                               struct moert_error *err)
{
    moert_status_t status;

    if (memory->bytes >= bytes && memory->host)
        return MOERT_OK;
    status = check_growth(stage, err);
    if (!status)
        status = retire(stage, memory, err);
    if (status)
        return status;
    if (!alloc_pinned(stage->device, memory, bytes)) {
        if (bytes <= SIZE_MAX - 256)
            memory->host = aligned_alloc(256, ((size_t)bytes + 255) / 256 * 256);
        if (!memory->host)
            return moert_fail(err, MOERT_E_NOMEM, "host-memory", "%llu bytes of staging memory wanted",
                              (unsigned long long)bytes);
    }
    memory->bytes = bytes;
    stage->allocations++;
    return MOERT_OK;
}

void moert_pool_free(struct moert_ctx_device *device, struct moert_pool *pool)
{
    release(device, &pool->workspace);
    for (int i = 0; i < MOERT_SLOT_COUNT; i++) {
        release(device, &pool->device[i]);
        release(device, &pool->slice[i]);
        release(device, &pool->host[i]);
    }
    free(pool);
}
