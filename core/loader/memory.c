/* core/loader/memory.c: buffers: memory of a device, allocated or imported. A handle of the driver with its owner. */
#include "config.h"

#include "core/base/error.h"
#include "core/loader/loader.h"

#include <stdlib.h>
#include <unistd.h>

static const struct moert_device_ops *ops_of(const struct moert_buffer *buffer)
{
    return buffer->context->devices[buffer->device]->driver->table->device;
}

static moert_drv_device *device_of(const struct moert_buffer *buffer)
{
    return buffer->context->devices[buffer->device]->handle;
}

static moert_status_t check_arguments(const moert_context_t *context, moert_memory_kind_t kind,
                                      moert_buffer_t *const *ret, struct moert_error *err)
{
    if (!context)
        return moert_fail_null(err, "context");
    if (!ret)
        return moert_fail_null(err, "ret");
    if (kind > MOERT_MEMORY_HOST)
        return moert_fail(err, MOERT_E_VALUE, "size", "memory kind %u; device 0, pinned 1 and host 2 exist", kind);
    return MOERT_OK;
}

/* The object around a driver's handle; frees the handle when there is no memory for it. */
static moert_status_t wrap(moert_context_t *context, uint32_t index, moert_drv_buffer *handle, uint64_t bytes,
                           moert_buffer_t **ret, struct moert_error *err)
{
    struct moert_ctx_device *device = context->devices[index];
    struct moert_buffer *buffer;

    if (!handle)
        return moert_fail(err, MOERT_E_INTERNAL, "device-call", "driver %s made a buffer and returned nothing",
                          device->driver->name);
    buffer = malloc(sizeof(*buffer));
    if (!buffer) {
        device->driver->table->device->buffer_free(device->handle, handle);
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for a buffer object");
    }
    *buffer = (struct moert_buffer){.context = context, .device = index, .handle = handle, .bytes = bytes};
    *ret = buffer;
    return MOERT_OK;
}

moert_status_t moert_buffer_alloc(moert_context_t *context, uint32_t device, moert_memory_kind_t kind, uint64_t bytes,
                                  uint64_t alignment, moert_buffer_t **ret, struct moert_error *err)
{
    moert_status_t status = check_arguments(context, kind, ret, err);
    struct moert_ctx_device *d = NULL;
    moert_drv_buffer *handle = NULL;

    if (!status && (alignment & (alignment - 1)))
        status = moert_fail(err, MOERT_E_VALUE, "size", "alignment %llu is not a power of two",
                            (unsigned long long)alignment);
    if (!status)
        status = moert_ctx_device_open(context, device, &d, err);
    if (!status && d->desc.max_buffer && kind == MOERT_MEMORY_DEVICE && bytes > d->desc.max_buffer)
        status = moert_fail(err, MOERT_E_TOO_LARGE, "too-large", "%s: a buffer of %llu bytes; %llu are possible",
                            d->desc.id, (unsigned long long)bytes, (unsigned long long)d->desc.max_buffer);
    if (!status)
        status = d->driver->table->device->buffer_alloc(d->handle, kind, bytes, alignment, &handle, err);
    return status ? status : wrap(context, device, handle, bytes, ret, err);
}

moert_status_t moert_buffer_import(moert_context_t *context, uint32_t device, moert_memory_kind_t kind, uint64_t native,
                                   uint64_t bytes, moert_buffer_t **ret, struct moert_error *err)
{
    moert_status_t status = check_arguments(context, kind, ret, err);
    struct moert_ctx_device *d = NULL;
    moert_drv_buffer *handle = NULL;

    if (!status && !native && bytes)
        status = moert_fail_null(err, "native");
    if (!status)
        status = moert_ctx_device_open(context, device, &d, err);
    if (!status)
        status = d->driver->table->device->buffer_import(d->handle, kind, native, bytes, &handle, err);
    return status ? status : wrap(context, device, handle, bytes, ret, err);
}

void moert_buffer_free(moert_buffer_t *buffer)
{
    if (!buffer)
        return;
    if (buffer->context->owner_pid == getpid())
        ops_of(buffer)->buffer_free(device_of(buffer), buffer->handle);
    free(buffer);
}

moert_status_t moert_buffer_info(const moert_buffer_t *buffer, struct moert_memory_info *ret, struct moert_error *err)
{
    struct moert_memory_info info = {.size = sizeof(info)};
    moert_status_t status;
    uint32_t size;

    if (!buffer)
        return moert_fail_null(err, "buffer");
    if (!ret)
        return moert_fail_null(err, "ret");
    size = ret->size;
    status = moert_check_size(err, "moert_memory_info", size, sizeof(*ret));
    if (!status)
        status = ops_of(buffer)->buffer_info(device_of(buffer), buffer->handle, &info, err);
    if (status)
        return status;
    *ret = info;
    ret->size = size;
    return MOERT_OK;
}
