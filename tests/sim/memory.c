/* tests/sim/memory.c: device memory that faults when the host touches it. */
#include "config.h"

#include "tests/sim/sim.h"
#include "core/base/error.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define NATIVE_STEP 0x10000000ull /* natives are numbers far apart, no addresses */

static void link_in(moert_drv_device *device, moert_drv_buffer *b)
{
    pthread_mutex_lock(&device->lock);
    b->native = (device->index + 1) * 0x510000000000ull + ++device->next_native * NATIVE_STEP;
    b->next = device->buffers;
    device->buffers = b;
    if (b->kind == MOERT_MEMORY_DEVICE && b->owned)
        device->used += b->bytes;
    pthread_mutex_unlock(&device->lock);
}

static moert_status_t refuse(moert_drv_device *device, moert_memory_kind_t kind, uint64_t bytes,
                             struct moert_error *err)
{
    moert_status_t status = MOERT_OK;

    if (kind != MOERT_MEMORY_DEVICE)
        return MOERT_OK;
    if (bytes > SIM_MAX_BUFFER)
        return moert_fail(err, MOERT_E_TOO_LARGE, "device-memory", "sim:%u: %llu bytes wanted, largest buffer %u",
                          device->index, (unsigned long long)bytes, SIM_MAX_BUFFER);
    pthread_mutex_lock(&device->lock);
    device->allocations++;
    if (device->used + bytes > SIM_MEMORY ||
        (device->drv->fault == SIM_FAULT_ALLOC && device->allocations == device->drv->fault_count))
        status = moert_fail(err, MOERT_E_NOMEM, "device-memory", "sim:%u: %llu bytes wanted, %llu free", device->index,
                            (unsigned long long)bytes, (unsigned long long)(SIM_MEMORY - device->used));
    pthread_mutex_unlock(&device->lock);
    return status;
}

moert_status_t sim_buffer_alloc(moert_drv_device *device, moert_memory_kind_t kind, uint64_t bytes, uint64_t alignment,
                                moert_drv_buffer **ret, struct moert_error *err)
{
    moert_drv_buffer *b;
    moert_status_t status = sim_device_lost(device, err);

    (void)alignment; /* mmap's pages are aligned enough */
    if (!status)
        status = refuse(device, kind, bytes, err);
    if (status)
        return status;
    b = calloc(1, sizeof(*b));
    if (!b)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for a buffer");
    b->device = device;
    b->kind = kind;
    b->bytes = bytes;
    b->owned = 1;
    b->memory = mmap(NULL, bytes ? bytes : 1, kind == MOERT_MEMORY_DEVICE ? PROT_NONE : PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->memory == MAP_FAILED) {
        free(b);
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for %llu bytes", (unsigned long long)bytes);
    }
    link_in(device, b);
    *ret = b;
    return MOERT_OK;
}

/* The buffer that holds a native number, or NULL. Under the device's lock. */
static moert_drv_buffer *by_native(moert_drv_device *device, uint64_t native)
{
    for (moert_drv_buffer *b = device->buffers; b; b = b->next)
        if (b->owned && native >= b->native && native < b->native + (b->bytes ? b->bytes : 1))
            return b;
    return NULL;
}

moert_status_t sim_buffer_import(moert_drv_device *device, moert_memory_kind_t kind, uint64_t native, uint64_t bytes,
                                 moert_drv_buffer **ret, struct moert_error *err)
{
    moert_drv_buffer *b = calloc(1, sizeof(*b)), *whole;

    if (!b)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for a buffer");
    b->device = device;
    b->kind = kind;
    b->bytes = bytes;
    if (kind == MOERT_MEMORY_HOST) {
        b->memory = (uint8_t *)(uintptr_t)native;
    } else {
        pthread_mutex_lock(&device->lock);
        whole = by_native(device, native);
        if (whole && bytes <= whole->bytes - (native - whole->native))
            b->memory = whole->memory + (native - whole->native);
        pthread_mutex_unlock(&device->lock);
        if (!b->memory) {
            free(b);
            return moert_fail(err, MOERT_E_VALUE, "device-mismatch", "%#llx is no memory of sim:%u",
                              (unsigned long long)native, device->index);
        }
    }
    link_in(device, b);
    *ret = b;
    return MOERT_OK;
}

void sim_buffer_free(moert_drv_device *device, moert_drv_buffer *buffer)
{
    pthread_mutex_lock(&device->lock);
    for (moert_drv_buffer **at = &device->buffers; *at; at = &(*at)->next)
        if (*at == buffer) {
            *at = buffer->next;
            break;
        }
    if (buffer->kind == MOERT_MEMORY_DEVICE && buffer->owned)
        device->used -= buffer->bytes;
    pthread_mutex_unlock(&device->lock);
    if (buffer->owned)
        munmap(buffer->memory, buffer->bytes ? buffer->bytes : 1);
    free(buffer);
}

moert_status_t sim_buffer_info(moert_drv_device *device, const moert_drv_buffer *buffer, struct moert_memory_info *ret,
                               struct moert_error *err)
{
    uint32_t size = ret->size;

    (void)err;
    *ret = (struct moert_memory_info){.size = size,
                                      .kind = buffer->kind,
                                      .known = 1,
                                      .device_index = device->index,
                                      .bytes = buffer->bytes,
                                      .native = buffer->kind == MOERT_MEMORY_DEVICE ? buffer->native : 0,
                                      .host = buffer->kind == MOERT_MEMORY_DEVICE ? NULL : buffer->memory};
    return MOERT_OK;
}

moert_status_t sim_pointer_classify(moert_drv_device *device, uint64_t native, struct moert_memory_info *ret,
                                    struct moert_error *err)
{
    moert_drv_buffer *b;
    uint32_t size = ret->size;

    (void)err;
    *ret = (struct moert_memory_info){.size = size, .kind = MOERT_MEMORY_HOST, .device_index = device->index};
    pthread_mutex_lock(&device->lock);
    b = by_native(device, native);
    if (b) {
        ret->known = 1;
        ret->kind = b->kind;
        ret->bytes = b->bytes - (native - b->native);
        ret->native = native;
    }
    pthread_mutex_unlock(&device->lock);
    return MOERT_OK;
}

/* Imported device memory shares pages with its owner: the pages are opened for all and closed by the last user, so the
 * count is kept per page range at the owner. Work on one owner is rare enough that one lock serves. */
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;

static moert_drv_buffer *owner(moert_drv_buffer *b)
{
    moert_drv_buffer *o = b;

    if (b->owned || b->kind != MOERT_MEMORY_DEVICE)
        return b;
    pthread_mutex_lock(&b->device->lock);
    for (o = b->device->buffers; o; o = o->next)
        if (o->owned && b->memory >= o->memory && b->memory < o->memory + o->bytes)
            break;
    pthread_mutex_unlock(&b->device->lock);
    return o ? o : b;
}

uint8_t *sim_open(moert_drv_buffer *b)
{
    moert_drv_buffer *o = owner(b);

    pthread_mutex_lock(&open_lock);
    if (o->kind == MOERT_MEMORY_DEVICE && o->owned && o->users++ == 0)
        mprotect(o->memory, o->bytes ? o->bytes : 1, PROT_READ | PROT_WRITE);
    pthread_mutex_unlock(&open_lock);
    return b->memory;
}

void sim_close(moert_drv_buffer *b)
{
    moert_drv_buffer *o = owner(b);

    pthread_mutex_lock(&open_lock);
    if (o->kind == MOERT_MEMORY_DEVICE && o->owned && --o->users == 0)
        mprotect(o->memory, o->bytes ? o->bytes : 1, PROT_NONE);
    pthread_mutex_unlock(&open_lock);
}
