/* core/loader/device.c: devices of a context: description, opening at first use, whose memory an address is. */
#include "config.h"

#include "core/base/error.h"
#include "core/loader/loader.h"

#include <string.h>

/* With the lock held. */
static moert_status_t open_locked(struct moert_context *context, struct moert_ctx_device *device,
                                  struct moert_error *err)
{
    moert_drv_device *handle = NULL;
    moert_status_t status;

    if (device->handle)
        return MOERT_OK;
    status = device->driver->table->device->open(device->driver->handle, device->index_in_driver, context->allocator,
                                                 &handle, err);
    if (!status && !handle)
        status = moert_fail(err, MOERT_E_INTERNAL, "device-call", "driver %s opened %s and returned nothing",
                            device->driver->name, device->desc.id);
    if (!status)
        device->handle = handle;
    return status;
}

moert_status_t moert_ctx_device_open(struct moert_context *context, uint32_t index, struct moert_ctx_device **ret,
                                     struct moert_error *err)
{
    moert_status_t status = moert_ctx_check_process(context, err);

    if (status)
        return status;
    pthread_mutex_lock(&context->lock);
    if (index >= context->device_count)
        status = moert_fail(err, MOERT_E_VALUE, "size", "device %u of %u", index, context->device_count);
    else
        status = open_locked(context, context->devices[index], err);
    if (!status)
        *ret = context->devices[index];
    pthread_mutex_unlock(&context->lock);
    return status;
}

/* The driver's fresh numbers into a description whose names are settled. */
static void refresh(struct moert_ctx_device *device, struct moert_device_desc *desc)
{
    struct moert_device_desc now = {.size = sizeof(now)};

    *desc = device->desc;
    if (!device->handle || device->driver->table->device->info(device->handle, &now, NULL))
        return;
    desc->memory_total = now.memory_total;
    desc->memory_free = now.memory_free;
    desc->flags = now.flags | MOERT_DEVICE_F_PRESENT;
}

moert_status_t moert_device_get(moert_context_t *context, uint32_t index, struct moert_device_desc *ret,
                                struct moert_error *err)
{
    moert_status_t status = MOERT_OK;
    struct moert_device_desc desc;
    uint32_t size;

    if (!context)
        return moert_fail_null(err, "context");
    if (!ret)
        return moert_fail_null(err, "ret");
    size = ret->size;
    status = moert_check_size(err, "moert_device_desc", size, sizeof(*ret));
    if (status)
        return status;
    pthread_mutex_lock(&context->lock);
    if (index >= context->device_count)
        status = moert_fail(err, MOERT_E_VALUE, "size", "device %u of %u", index, context->device_count);
    else
        refresh(context->devices[index], &desc);
    pthread_mutex_unlock(&context->lock);
    if (status)
        return status;
    *ret = desc;
    ret->size = size;
    return MOERT_OK;
}

/* Asks one device of a driver; *ret_device is the context's index of the owner. With the lock held. */
static moert_status_t classify(struct moert_context *context, uint32_t index, uint64_t native, uint32_t *ret_device,
                               struct moert_memory_info *info, struct moert_error *err)
{
    struct moert_ctx_device *device = context->devices[index];
    moert_status_t status = open_locked(context, device, err);

    if (!status)
        status = device->driver->table->device->pointer_classify(device->handle, native, info, err);
    if (status || !info->known)
        return status;
    for (uint32_t i = 0; i < context->device_count; i++)
        if (context->devices[i]->driver == device->driver &&
            context->devices[i]->index_in_driver == info->device_index) {
            *ret_device = i;
            return MOERT_OK;
        }
    return moert_fail(err, MOERT_E_INTERNAL, "device-call",
                      "driver %s says that %#llx is on its device %u of unknown id", device->driver->name,
                      (unsigned long long)native, info->device_index);
}

/* 1 when an earlier device of the same driver was asked already: a driver knows all of its memory. */
static int asked_before(const struct moert_context *context, uint32_t index)
{
    for (uint32_t i = 0; i < index; i++)
        if (context->devices[i]->driver == context->devices[index]->driver)
            return 1;
    return 0;
}

moert_status_t moert_pointer_classify(moert_context_t *context, uint64_t native, uint32_t *ret_device,
                                      struct moert_memory_info *ret, struct moert_error *err)
{
    struct moert_memory_info info = {.size = sizeof(info)};
    moert_status_t status;
    uint32_t owner = 0, size;

    if (!context || !ret || !ret_device)
        return moert_fail_null(err, !context ? "context" : ret ? "ret_device" : "ret");
    size = ret->size;
    status = moert_check_size(err, "moert_memory_info", size, sizeof(*ret));
    if (!status)
        status = moert_ctx_check_process(context, err);
    if (status)
        return status;
    pthread_mutex_lock(&context->lock);
    for (uint32_t i = 0; i < context->device_count && !status && !info.known; i++)
        if (MOERT_DRV_OP(context->devices[i]->driver->table->device, pointer_classify) && !asked_before(context, i))
            status = classify(context, i, native, &owner, &info, err);
    pthread_mutex_unlock(&context->lock);
    if (status)
        return status;
    if (!info.known) {
        info = (struct moert_memory_info){.kind = MOERT_MEMORY_HOST};
        info.host = (void *)(uintptr_t)native;
    }
    *ret = info;
    ret->size = size;
    *ret_device = owner;
    return MOERT_OK;
}
