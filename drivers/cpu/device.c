/* SPDX-License-Identifier: Apache-2.0
 * drivers/cpu/device.c: memory and queues. Every buffer is host memory; a queue completes its work before the op
 * returns, so its sequence number is all that it keeps. */
#include "config.h"

#include "core/base/error.h"
#include "drivers/cpu/internal.h"

#include <inttypes.h>
#include <string.h>

#define DEFAULT_ALIGNMENT 256

static void *host_alloc(const moert_drv *drv, uint64_t bytes, uint64_t alignment)
{
    return drv->host->alloc(drv->host->ctx, bytes, alignment);
}

static void host_free(const moert_drv *drv, void *pointer)
{
    drv->host->free(drv->host->ctx, pointer);
}

static moert_status_t no_memory(struct moert_error *err, uint64_t bytes)
{
    uint64_t total, available;

    mcpu_memory(&total, &available);
    return moert_fail(err, MOERT_E_NOMEM, "host-memory", "cpu: %" PRIu64 " bytes wanted, %" PRIu64 " free", bytes,
                      available);
}

/* ---- devices ---- */

static moert_status_t dev_open(moert_drv *drv, uint32_t index, const struct moert_allocator *allocator,
                               moert_drv_device **ret, struct moert_error *err)
{
    moert_drv_device *device;

    (void)allocator; /* it gives memory of devices that have their own; here that is the host's */
    if (!drv || !ret)
        return moert_fail_null(err, drv ? "ret" : "drv");
    if (index)
        return moert_fail(err, MOERT_E_VALUE, "device", "cpu:%u does not exist; the driver has one device, 0", index);
    device = host_alloc(drv, sizeof(*device), 64);
    if (!device)
        return no_memory(err, sizeof(*device));
    *device = (moert_drv_device){.drv = drv};
    *ret = device;
    return MOERT_OK;
}

static void dev_close(moert_drv_device *device)
{
    if (device)
        host_free(device->drv, device);
}

static moert_status_t dev_info(moert_drv_device *device, struct moert_device_desc *ret, struct moert_error *err)
{
    return mcpu_driver_ops.device_info(device->drv, 0, ret, err);
}

/* ---- buffers ---- */

static moert_status_t buffer_alloc(moert_drv_device *device, moert_memory_kind_t kind, uint64_t bytes,
                                   uint64_t alignment, moert_drv_buffer **ret, struct moert_error *err)
{
    moert_drv_buffer *buffer;
    uint8_t *data;

    if (!device || !ret)
        return moert_fail_null(err, device ? "ret" : "device");
    if (kind > MOERT_MEMORY_HOST)
        return moert_fail(err, MOERT_E_VALUE, "memory-kind", "memory kind %u does not exist; known: 0..2", kind);
    if (alignment & (alignment - 1))
        return moert_fail(err, MOERT_E_VALUE, "alignment", "alignment %" PRIu64 " is not a power of two", alignment);
    if (bytes > PTRDIFF_MAX)
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large", "cpu: buffer of %" PRIu64 " bytes, at most %td", bytes,
                          PTRDIFF_MAX);
    buffer = host_alloc(device->drv, sizeof(*buffer), 64);
    if (!buffer)
        return no_memory(err, sizeof(*buffer));
    data = host_alloc(device->drv, bytes ? bytes : 1, alignment ? alignment : DEFAULT_ALIGNMENT);
    if (!data) {
        host_free(device->drv, buffer);
        return no_memory(err, bytes);
    }
    *buffer = (moert_drv_buffer){.data = data, .bytes = bytes, .kind = kind, .owned = 1};
    *ret = buffer;
    return MOERT_OK;
}

static moert_status_t buffer_import(moert_drv_device *device, moert_memory_kind_t kind, uint64_t native, uint64_t bytes,
                                    moert_drv_buffer **ret, struct moert_error *err)
{
    moert_drv_buffer *buffer;

    if (!device || !ret)
        return moert_fail_null(err, device ? "ret" : "device");
    if (kind > MOERT_MEMORY_HOST)
        return moert_fail(err, MOERT_E_VALUE, "memory-kind", "memory kind %u does not exist; known: 0..2", kind);
    if (!native && bytes)
        return moert_fail_null(err, "native address");
    if (bytes > PTRDIFF_MAX || native > UINTPTR_MAX - bytes)
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large",
                          "cpu: %" PRIu64 " bytes at 0x%" PRIx64 " pass the end of the address space", bytes, native);
    buffer = host_alloc(device->drv, sizeof(*buffer), 64);
    if (!buffer)
        return no_memory(err, sizeof(*buffer));
    *buffer = (moert_drv_buffer){.data = (uint8_t *)(uintptr_t)native, .bytes = bytes, .kind = kind};
    *ret = buffer;
    return MOERT_OK;
}

static void buffer_free(moert_drv_device *device, moert_drv_buffer *buffer)
{
    if (!buffer)
        return;
    if (buffer->owned)
        host_free(device->drv, buffer->data);
    host_free(device->drv, buffer);
}

static moert_status_t check_memory_info(const struct moert_memory_info *ret, struct moert_error *err)
{
    if (!ret)
        return moert_fail_null(err, "ret");
    return moert_check_size(err, "moert_memory_info", ret->size, MCPU_SIZE_TO(struct moert_memory_info, host));
}

static moert_status_t buffer_info(moert_drv_device *device, const moert_drv_buffer *buffer,
                                  struct moert_memory_info *ret, struct moert_error *err)
{
    moert_status_t status = check_memory_info(ret, err);

    (void)device;
    if (status)
        return status;
    ret->kind = buffer->kind;
    ret->known = buffer->owned;
    ret->device_index = 0;
    ret->bytes = buffer->bytes;
    ret->native = (uint64_t)(uintptr_t)buffer->data;
    ret->host = buffer->data;
    if (MOERT_HAS(ret, address))
        ret->address = ret->native;
    return MOERT_OK;
}

/* ---- queues ---- */

static moert_status_t queue_create(moert_drv_device *device, uint64_t native, moert_drv_queue **ret,
                                   struct moert_error *err)
{
    moert_drv_queue *queue;

    if (!device || !ret)
        return moert_fail_null(err, device ? "ret" : "device");
    if (native)
        return moert_fail(err, MOERT_E_VALUE, "native-queue",
                          "cpu: native queue 0x%" PRIx64 " given; the CPU has none, 0 is needed", native);
    queue = host_alloc(device->drv, sizeof(*queue), 64);
    if (!queue)
        return no_memory(err, sizeof(*queue));
    *queue = (moert_drv_queue){.device = device};
    *ret = queue;
    return MOERT_OK;
}

static void queue_destroy(moert_drv_queue *queue)
{
    if (queue)
        host_free(queue->device->drv, queue);
}

static uint64_t queue_native(const moert_drv_queue *queue)
{
    (void)queue;
    return 0;
}

static uint64_t queue_last(const moert_drv_queue *queue)
{
    return queue->last;
}

/* A number that was never given out would be waited for in vain. */
static moert_status_t check_sequence(const moert_drv_queue *queue, uint64_t sequence, struct moert_error *err)
{
    if (sequence <= queue->last)
        return MOERT_OK;
    return moert_fail(err, MOERT_E_VALUE, "sequence", "sequence %" PRIu64 " was not enqueued; the last is %" PRIu64,
                      sequence, queue->last);
}

static moert_status_t queue_query(moert_drv_queue *queue, uint64_t sequence, uint32_t *ret_done,
                                  struct moert_error *err)
{
    moert_status_t status = check_sequence(queue, sequence, err);

    if (status)
        return status;
    if (!ret_done)
        return moert_fail_null(err, "ret_done");
    *ret_done = 1;
    return MOERT_OK;
}

static moert_status_t queue_wait(moert_drv_queue *queue, uint64_t sequence, uint64_t timeout_ns, uint32_t *ret_done,
                                 struct moert_error *err)
{
    moert_status_t status = check_sequence(queue, sequence, err);

    (void)timeout_ns;
    if (!status && ret_done)
        *ret_done = 1;
    return status;
}

static moert_status_t queue_wait_queue(moert_drv_queue *queue, moert_drv_queue *other, uint64_t sequence,
                                       struct moert_error *err)
{
    (void)queue;
    return check_sequence(other, sequence, err);
}

/* ---- copies ---- */

static moert_status_t check_range(const moert_drv_buffer *buffer, uint64_t offset, uint64_t bytes, const char *what,
                                  struct moert_error *err)
{
    if (!buffer)
        return moert_fail_null(err, what);
    if (offset <= buffer->bytes && bytes <= buffer->bytes - offset)
        return MOERT_OK;
    return moert_fail(err, MOERT_E_VALUE, "range",
                      "%s: %" PRIu64 " bytes at offset %" PRIu64 " of a buffer of %" PRIu64 " bytes", what, bytes,
                      offset, buffer->bytes);
}

static moert_status_t copy_in(moert_drv_queue *queue, moert_drv_buffer *dst, uint64_t offset, const void *host,
                              uint64_t bytes, struct moert_error *err)
{
    moert_status_t status = check_range(dst, offset, bytes, "destination", err);

    if (status)
        return status;
    if (bytes && !host)
        return moert_fail_null(err, "host");
    if (bytes)
        memmove(dst->data + offset, host, bytes);
    queue->last++;
    return MOERT_OK;
}

static moert_status_t copy_out(moert_drv_queue *queue, void *host, moert_drv_buffer *src, uint64_t offset,
                               uint64_t bytes, struct moert_error *err)
{
    moert_status_t status = check_range(src, offset, bytes, "source", err);

    if (status)
        return status;
    if (bytes && !host)
        return moert_fail_null(err, "host");
    if (bytes)
        memmove(host, src->data + offset, bytes);
    queue->last++;
    return MOERT_OK;
}

static moert_status_t copy(moert_drv_queue *queue, moert_drv_buffer *dst, uint64_t dst_offset, moert_drv_buffer *src,
                           uint64_t src_offset, uint64_t bytes, struct moert_error *err)
{
    moert_status_t status = check_range(src, src_offset, bytes, "source", err);

    if (status)
        return status;
    return copy_in(queue, dst, dst_offset, bytes ? src->data + src_offset : NULL, bytes, err);
}

static moert_status_t fill(moert_drv_queue *queue, moert_drv_buffer *dst, uint64_t offset, uint8_t value,
                           uint64_t bytes, struct moert_error *err)
{
    moert_status_t status = check_range(dst, offset, bytes, "destination", err);

    if (status)
        return status;
    if (bytes)
        memset(dst->data + offset, value, bytes);
    queue->last++;
    return MOERT_OK;
}

static moert_status_t copy_peer(moert_drv_queue *queue, moert_drv_buffer *dst, uint64_t dst_offset,
                                moert_drv_device *src_device, moert_drv_buffer *src, uint64_t src_offset,
                                uint64_t bytes, struct moert_error *err)
{
    (void)src_device;
    return copy(queue, dst, dst_offset, src, src_offset, bytes, err);
}

const struct moert_device_ops mcpu_device_ops = {
    .size = sizeof(struct moert_device_ops),
    .open = dev_open,
    .close = dev_close,
    .info = dev_info,
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
    .fill = fill,
    .copy_peer = copy_peer,
};
