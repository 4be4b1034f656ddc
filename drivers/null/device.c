/* drivers/null/device.c: the device ops: memory, queues, copies. Every op here is mandatory; the optional ones (native
 * events, peer copies, graphs, pointer_classify) are left NULL. */
#include "config.h"

#include "drivers/null/null.h"

#include <string.h>

#define DEFAULT_ALIGNMENT 256u

static moert_status_t open_device(moert_drv *drv, uint32_t index, const struct moert_allocator *allocator,
                                  moert_drv_device **ret, struct moert_error *err)
{
    moert_drv_device *device;

    if (index > 0)
        return moert_fail(err, MOERT_E_VALUE, "size", "device %u of 1", index);
    device = drv->host->alloc(drv->host->ctx, sizeof(*device), 0);
    if (!device)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for the null device");
    *device = (moert_drv_device){.drv = drv, .allocator = allocator};
    *ret = device;
    return MOERT_OK;
}

static void close_device(moert_drv_device *device)
{
    device->drv->host->free(device->drv->host->ctx, device);
}

static moert_status_t info(moert_drv_device *device, struct moert_device_desc *ret, struct moert_error *err)
{
    (void)device;
    (void)err;
    mnull_describe(ret);
    return MOERT_OK;
}

/* ---- memory ---- */

/* The bytes of a buffer: the caller's allocator serves device memory when there is one. */
static void *take_bytes(moert_drv_device *device, moert_memory_kind_t kind, uint64_t bytes, uint64_t alignment,
                        uint32_t *ret_source)
{
    const struct moert_host *host = device->drv->host;
    const struct moert_allocator *allocator = device->allocator;

    if (kind == MOERT_MEMORY_DEVICE && allocator) {
        *ret_source = MNULL_FROM_ALLOCATOR;
        return (void *)(uintptr_t)allocator->alloc(allocator->ctx, 0, bytes, alignment, 0);
    }
    *ret_source = MNULL_FROM_HOST;
    return host->alloc(host->ctx, bytes, alignment);
}

static moert_status_t buffer_alloc(moert_drv_device *device, moert_memory_kind_t kind, uint64_t bytes,
                                   uint64_t alignment, moert_drv_buffer **ret, struct moert_error *err)
{
    const struct moert_host *host = device->drv->host;
    moert_drv_buffer *buffer = host->alloc(host->ctx, sizeof(*buffer), 0);

    if (!buffer)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for a buffer object");
    *buffer = (moert_drv_buffer){.bytes = bytes, .kind = kind};
    buffer->address =
        take_bytes(device, kind, bytes ? bytes : 1, alignment ? alignment : DEFAULT_ALIGNMENT, &buffer->source);
    if (!buffer->address) {
        host->free(host->ctx, buffer);
        return moert_fail(err, MOERT_E_NOMEM, "device-memory", "null: %llu bytes wanted", (unsigned long long)bytes);
    }
    *ret = buffer;
    return MOERT_OK;
}

/* All memory of this device is host memory, so a native address of any kind can be used as it is. A driver whose device
 * cannot reach host memory keeps the address and copies at use. */
static moert_status_t buffer_import(moert_drv_device *device, moert_memory_kind_t kind, uint64_t native, uint64_t bytes,
                                    moert_drv_buffer **ret, struct moert_error *err)
{
    const struct moert_host *host = device->drv->host;
    moert_drv_buffer *buffer = host->alloc(host->ctx, sizeof(*buffer), 0);

    if (!buffer)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for a buffer object");
    *buffer = (moert_drv_buffer){
        .address = (unsigned char *)(uintptr_t)native, .bytes = bytes, .kind = kind, .source = MNULL_IMPORTED};
    *ret = buffer;
    return MOERT_OK;
}

static void buffer_free(moert_drv_device *device, moert_drv_buffer *buffer)
{
    const struct moert_host *host = device->drv->host;

    if (buffer->source == MNULL_FROM_HOST)
        host->free(host->ctx, buffer->address);
    else if (buffer->source == MNULL_FROM_ALLOCATOR)
        device->allocator->free(device->allocator->ctx, 0, (uint64_t)(uintptr_t)buffer->address, 0);
    host->free(host->ctx, buffer);
}

static moert_status_t buffer_info(moert_drv_device *device, const moert_drv_buffer *buffer,
                                  struct moert_memory_info *ret, struct moert_error *err)
{
    (void)device;
    (void)err;
    *ret = (struct moert_memory_info){.size = ret->size,
                                      .kind = buffer->kind,
                                      .known = 1,
                                      .device_index = 0,
                                      .bytes = buffer->bytes,
                                      .native = (uint64_t)(uintptr_t)buffer->address,
                                      .host = buffer->address,
                                      .address = (uint64_t)(uintptr_t)buffer->address};
    return MOERT_OK;
}

/* ---- queues ----
 * Work is done when its op returns: legal for a driver, and the simplest one. Numbers still count every piece of work.
 */

static moert_status_t queue_create(moert_drv_device *device, uint64_t native, moert_drv_queue **ret,
                                   struct moert_error *err)
{
    const struct moert_host *host = device->drv->host;
    moert_drv_queue *queue = host->alloc(host->ctx, sizeof(*queue), 0);

    if (!queue)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for a queue");
    *queue = (moert_drv_queue){.device = device, .native = native};
    *ret = queue;
    return MOERT_OK;
}

static void queue_destroy(moert_drv_queue *queue)
{
    const struct moert_host *host = queue->device->drv->host;

    host->free(host->ctx, queue);
}

static uint64_t queue_native(const moert_drv_queue *queue)
{
    return queue->native;
}

static uint64_t queue_last(const moert_drv_queue *queue)
{
    return queue->last;
}

static moert_status_t queue_query(moert_drv_queue *queue, uint64_t sequence, uint32_t *ret_done,
                                  struct moert_error *err)
{
    (void)err;
    *ret_done = sequence <= queue->last;
    return MOERT_OK;
}

static moert_status_t queue_wait(moert_drv_queue *queue, uint64_t sequence, uint64_t timeout_ns, uint32_t *ret_done,
                                 struct moert_error *err)
{
    (void)timeout_ns;
    (void)err;
    if (ret_done)
        *ret_done = sequence <= queue->last;
    return MOERT_OK;
}

/* The other queue has done its work already. */
static moert_status_t queue_wait_queue(moert_drv_queue *queue, moert_drv_queue *other, uint64_t sequence,
                                       struct moert_error *err)
{
    (void)queue;
    (void)other;
    (void)sequence;
    (void)err;
    return MOERT_OK;
}

/* ---- copies ---- */

static moert_status_t copy_in(moert_drv_queue *queue, moert_drv_buffer *dst, uint64_t offset, const void *host,
                              uint64_t bytes, struct moert_error *err)
{
    moert_status_t status = mdrv_range_check(offset, bytes, dst->bytes, err);

    if (status)
        return status;
    if (bytes)
        memcpy(dst->address + offset, host, bytes);
    queue->last++;
    return MOERT_OK;
}

static moert_status_t copy_out(moert_drv_queue *queue, void *host, moert_drv_buffer *src, uint64_t offset,
                               uint64_t bytes, struct moert_error *err)
{
    moert_status_t status = mdrv_range_check(offset, bytes, src->bytes, err);

    if (status)
        return status;
    if (bytes)
        memcpy(host, src->address + offset, bytes);
    queue->last++;
    return MOERT_OK;
}

static moert_status_t copy(moert_drv_queue *queue, moert_drv_buffer *dst, uint64_t dst_offset, moert_drv_buffer *src,
                           uint64_t src_offset, uint64_t bytes, struct moert_error *err)
{
    moert_status_t status = mdrv_range_check(dst_offset, bytes, dst->bytes, err);

    if (!status)
        status = mdrv_range_check(src_offset, bytes, src->bytes, err);
    if (status)
        return status;
    if (bytes)
        memmove(dst->address + dst_offset, src->address + src_offset, bytes);
    queue->last++;
    return MOERT_OK;
}

static moert_status_t fill(moert_drv_queue *queue, moert_drv_buffer *dst, uint64_t offset, uint8_t value,
                           uint64_t bytes, struct moert_error *err)
{
    moert_status_t status = mdrv_range_check(offset, bytes, dst->bytes, err);

    if (status)
        return status;
    if (bytes)
        memset(dst->address + offset, value, bytes);
    queue->last++;
    return MOERT_OK;
}

const struct moert_device_ops mnull_device_ops = {.size = sizeof(mnull_device_ops),
                                                  .open = open_device,
                                                  .close = close_device,
                                                  .info = info,
                                                  .buffer_alloc = buffer_alloc,
                                                  .buffer_import = buffer_import,
                                                  .buffer_free = buffer_free,
                                                  .buffer_info = buffer_info,
                                                  .queue_create = queue_create,
                                                  .queue_destroy = queue_destroy,
                                                  .queue_native = queue_native,
                                                  .queue_last = queue_last,
                                                  .queue_query = queue_query,
                                                  .queue_wait = queue_wait,
                                                  .queue_wait_queue = queue_wait_queue,
                                                  .copy_in = copy_in,
                                                  .copy_out = copy_out,
                                                  .copy = copy,
                                                  .fill = fill};
