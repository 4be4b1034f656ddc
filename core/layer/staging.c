/* core/layer/staging.c: the items of one call: how each tensor gets to the device and back. */
#include "config.h"

#include "core/layer/staging.h"

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/layer/chunk.h"

#include <string.h>

static const struct moert_device_ops *ops_of(const struct moert_stage *stage)
{
    return stage->device->driver->table->device;
}

static int shares_host(const struct moert_stage *stage)
{
    return (stage->device->desc.flags & MOERT_DEVICE_F_HOST_MEMORY) != 0;
}

static uint64_t item_bytes(const struct moert_item *item)
{
    return item->rank ? item->shape[0] * item->row_bytes : item->row_bytes;
}

static void describe(struct moert_item *item, moert_direction_t direction, moert_dtype_t dtype, uint32_t rank,
                     const uint64_t *shape)
{
    *item = (struct moert_item){.direction = direction, .dtype = dtype, .rank = rank};
    item->row_bytes = moert_dtype_size(dtype);
    for (uint32_t i = 0; i < rank; i++) {
        item->shape[i] = shape[i];
        if (i)
            item->row_bytes *= shape[i];
    }
}

/* Addresses that ops take without a copy: multiples of the element and of what the device asks for. */
static int is_aligned(const struct moert_stage *stage, uint64_t address, moert_dtype_t dtype)
{
    uint64_t device = stage->device->desc.alignment;

    return address % moert_dtype_size(dtype) == 0 && (!device || address % device == 0);
}

static int device_is_aligned(const struct moert_stage *stage, const struct moert_tensor *tensor)
{
    struct moert_memory_info info = {.size = sizeof(info)};
    uint64_t base = 0;

    if (!ops_of(stage)->buffer_info(stage->device->handle, tensor->buffer->handle, &info, NULL))
        base = info.host ? (uint64_t)(uintptr_t)info.host : info.address; /* a handle (cl_mem) says nothing */
    return is_aligned(stage, base + tensor->offset, tensor->dtype);
}

/* Copies between a strided device tensor and its dense copy, run by run, on the queue. */
static moert_status_t copy_device_runs(struct moert_stage *stage, struct moert_item *item, int gather,
                                       struct moert_error *err)
{
    const struct moert_tensor *t = &item->user;
    uint64_t run, count = 1, size = moert_dtype_size(t->dtype);
    uint32_t outer = moert_tensor_runs(t, &run);
    moert_status_t status = MOERT_OK;

    for (uint32_t i = 0; i < outer; i++)
        count *= t->shape[i];
    for (uint64_t i = 0; i < count && run && !status; i++) {
        uint64_t at = t->offset + (uint64_t)moert_tensor_run_offset(t, outer, i) * size, to = i * run * size;
        if (gather)
            status = ops_of(stage)->copy(stage->queue, item->buffer, to, t->buffer->handle, at, run * size, err);
        else
            status = ops_of(stage)->copy(stage->queue, t->buffer->handle, at, item->buffer, to, run * size, err);
    }
    stage->staged_bytes += count * run * size;
    return status;
}

static moert_status_t add_device(struct moert_stage *stage, enum moert_slot slot, struct moert_item *item,
                                 struct moert_error *err)
{
    moert_status_t status;

    item->buffer = item->user.buffer->handle;
    item->offset = item->user.offset;
    if (moert_tensor_is_dense(&item->user) && device_is_aligned(stage, &item->user))
        return MOERT_OK;
    status = moert_pool_device(stage, &stage->pool->device[slot], item_bytes(item), err);
    if (status)
        return status;
    item->buffer = stage->pool->device[slot].buffer;
    item->offset = 0;
    item->scattered = item->direction == MOERT_STAGE_OUT;
    return item->scattered ? MOERT_OK : copy_device_runs(stage, item, 1, err);
}

/* Makes host bytes visible to a device whose memory is host memory. What exceeds its largest buffer is copied chunk by
 * chunk instead. */
static moert_status_t import_host(struct moert_stage *stage, struct moert_item *item, struct moert_error *err)
{
    uint64_t largest = stage->device->desc.max_buffer;
    moert_status_t status;

    if (!shares_host(stage) || (largest && item_bytes(item) > largest))
        return MOERT_OK;
    status = ops_of(stage)->buffer_import(stage->device->handle, MOERT_MEMORY_HOST, (uint64_t)(uintptr_t)item->host,
                                          item_bytes(item), &item->imported, err);
    if (!status)
        item->buffer = item->imported;
    return status;
}

static moert_status_t add_host(struct moert_stage *stage, enum moert_slot slot, struct moert_item *item,
                               struct moert_error *err)
{
    int aligned = !shares_host(stage) || is_aligned(stage, (uint64_t)(uintptr_t)item->user.data, item->dtype);
    moert_status_t status = moert_stage_check_capture(stage, "has host tensors; only device tensors can be used", err);

    if (status)
        return status;
    stage->must_wait = 1;
    item->host = item->user.data;
    if (!moert_tensor_is_dense(&item->user) || !aligned) {
        status = moert_pool_host(stage, &stage->pool->host[slot], item_bytes(item), err);
        if (status)
            return status;
        item->host = stage->pool->host[slot].host;
        item->scattered = item->direction == MOERT_STAGE_OUT;
        if (!item->scattered)
            moert_gather(&item->user, item->host);
        stage->staged_bytes += item_bytes(item);
    }
    return import_host(stage, item, err);
}

moert_status_t moert_stage_add(struct moert_stage *stage, enum moert_slot slot, const struct moert_tensor *tensor,
                               moert_direction_t direction, struct moert_error *err)
{
    struct moert_item *item = &stage->items[slot];

    if (!moert_tensor_given(tensor))
        return MOERT_OK;
    describe(item, direction, tensor->dtype, tensor->rank, tensor->shape);
    item->user = *tensor;
    if (!item_bytes(item))
        return MOERT_OK;
    return tensor->buffer ? add_device(stage, slot, item, err) : add_host(stage, slot, item, err);
}

moert_status_t moert_stage_own(struct moert_stage *stage, enum moert_slot slot, moert_dtype_t dtype, uint32_t rank,
                               const uint64_t *shape, void **ret_host, struct moert_error *err)
{
    struct moert_item *item = &stage->items[slot];
    moert_status_t status;

    status = moert_stage_check_capture(stage, "is routed or converted on the host", err);
    if (status)
        return status;
    describe(item, MOERT_STAGE_IN, dtype, rank, shape);
    status = moert_pool_host(stage, &stage->pool->host[slot], item_bytes(item), err);
    if (status)
        return status;
    stage->must_wait = 1;
    item->host = stage->pool->host[slot].host;
    if (shares_host(stage) && stage->pool->host[slot].buffer)
        item->buffer = stage->pool->host[slot].buffer;
    else
        status = import_host(stage, item, err);
    if (!status)
        *ret_host = item->host;
    return status;
}

/* Rows that cannot be used where they are: host memory of another kind, or a slice that lost its alignment. */
static moert_status_t slice(struct moert_stage *stage, enum moert_slot slot, uint64_t at, uint64_t bytes,
                            struct moert_error *err)
{
    struct moert_pool_memory *memory = &stage->pool->slice[slot];
    struct moert_item *item = &stage->items[slot];
    moert_status_t status = moert_pool_device(stage, memory, bytes, err);

    item->sliced = 1;
    if (status || item->direction == MOERT_STAGE_OUT)
        return status;
    stage->staged_bytes += bytes;
    if (item->buffer)
        return ops_of(stage)->copy(stage->queue, memory->buffer, 0, item->buffer, item->offset + at, bytes, err);
    return ops_of(stage)->copy_in(stage->queue, memory->buffer, 0, item->host + at, bytes, err);
}

moert_status_t moert_stage_view(struct moert_stage *stage, enum moert_slot slot, uint64_t first, uint64_t count,
                                struct moert_drv_tensor *ret, struct moert_error *err)
{
    struct moert_item *item = &stage->items[slot];
    uint64_t at = moert_element_offset(first, item->row_bytes, 0), bytes = count * item->row_bytes;
    uint64_t shape[MOERT_MAX_RANK] = {0};
    moert_dtype_t dtype = item->dtype == MOERT_F8_E8M0 ? MOERT_U8 : item->dtype;
    moert_status_t status = MOERT_OK;

    if (!item->direction) {
        *ret = (struct moert_drv_tensor){0};
        return MOERT_OK;
    }
    memcpy(shape, item->shape, sizeof(shape));
    shape[0] = count;
    item->sliced = 0;
    if (!item->buffer || (at && !is_aligned(stage, at, item->dtype)))
        status = slice(stage, slot, at, bytes, err);
    if (status)
        return status;
    if (item->sliced)
        *ret = moert_drv_dense(stage->pool->slice[slot].buffer, 0, dtype, item->rank, shape);
    else
        *ret = moert_drv_dense(item->buffer, item->offset + at, dtype, item->rank, shape);
    return MOERT_OK;
}

moert_status_t moert_stage_back(struct moert_stage *stage, enum moert_slot slot, uint64_t first, uint64_t count,
                                struct moert_error *err)
{
    struct moert_item *item = &stage->items[slot];
    uint64_t at = moert_element_offset(first, item->row_bytes, 0), bytes = count * item->row_bytes;
    moert_drv_buffer *from = stage->pool->slice[slot].buffer;

    if (!item->sliced || item->direction != MOERT_STAGE_OUT)
        return MOERT_OK;
    stage->staged_bytes += bytes;
    if (item->buffer)
        return ops_of(stage)->copy(stage->queue, item->buffer, item->offset + at, from, 0, bytes, err);
    return ops_of(stage)->copy_out(stage->queue, item->host + at, from, 0, bytes, err);
}

moert_status_t moert_stage_fill(struct moert_stage *stage, enum moert_slot slot, uint64_t first, uint64_t count,
                                uint8_t value, struct moert_error *err)
{
    struct moert_item *item = &stage->items[slot];
    uint64_t at = moert_element_offset(first, item->row_bytes, 0), bytes = count * item->row_bytes;

    if (!item->direction || !bytes)
        return MOERT_OK;
    if (item->buffer)
        return ops_of(stage)->fill(stage->queue, item->buffer, item->offset + at, value, bytes, err);
    memset(item->host + at, value, bytes);
    return MOERT_OK;
}

static moert_status_t wait(struct moert_stage *stage, struct moert_error *err)
{
    const struct moert_device_ops *ops = ops_of(stage);

    return ops->queue_wait(stage->queue, ops->queue_last(stage->queue), UINT64_MAX, NULL, err);
}

moert_status_t moert_stage_read(struct moert_stage *stage, enum moert_slot slot, const void **ret,
                                struct moert_error *err)
{
    struct moert_item *item = &stage->items[slot];
    moert_status_t status;

    if (!item->host) {
        status = moert_stage_check_capture(stage, "has to be read by the host", err);
        if (!status)
            status = moert_pool_host(stage, &stage->pool->host[slot], item_bytes(item), err);
        if (!status)
            status = ops_of(stage)->copy_out(stage->queue, stage->pool->host[slot].host, item->buffer, item->offset,
                                             item_bytes(item), err);
        if (!status)
            status = wait(stage, err);
        if (status)
            return status;
        stage->staged_bytes += item_bytes(item);
        item->host = stage->pool->host[slot].host; /* views still use item->buffer */
    }
    *ret = item->host;
    return MOERT_OK;
}

moert_status_t moert_stage_finish(struct moert_stage *stage, moert_status_t status, struct moert_error *err)
{
    for (int i = 0; i < MOERT_SLOT_COUNT && !status; i++)
        if (stage->items[i].scattered && stage->items[i].user.buffer)
            status = copy_device_runs(stage, &stage->items[i], 0, err);
    if (stage->must_wait) {
        moert_status_t waited = wait(stage, status ? NULL : err);
        if (!status)
            status = waited;
    }
    for (int i = 0; i < MOERT_SLOT_COUNT; i++) {
        struct moert_item *item = &stage->items[i];
        if (!status && item->scattered && item->user.data)
            moert_scatter(&item->user, item->host);
        if (item->imported)
            ops_of(stage)->buffer_free(stage->device->handle, item->imported);
        item->imported = NULL;
    }
    return status;
}
