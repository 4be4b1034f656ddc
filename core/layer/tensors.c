/* core/layer/tensors.c: strides of tensors: extent, density, and copies between a strided tensor and a dense array. */
#include "core/base/checked.h"
#include "core/layer/staging.h"

#include <string.h>

int moert_tensor_given(const struct moert_tensor *tensor)
{
    return tensor->data || tensor->buffer;
}

int moert_tensor_is_dense(const struct moert_tensor *tensor)
{
    int64_t dense = 1;

    for (uint32_t i = tensor->rank; i-- > 0;) {
        if (tensor->shape[i] > 1 && tensor->strides[i] != dense)
            return 0;
        dense = (int64_t)((uint64_t)dense * tensor->shape[i]);
    }
    return 1;
}

int moert_tensor_extent(const struct moert_tensor *tensor, uint64_t *ret_below, uint64_t *ret_above)
{
    uint64_t below = 0, above = 1, size = moert_dtype_size(tensor->dtype), elements;

    if (tensor->rank > MOERT_MAX_RANK || !moert_product(tensor->shape, tensor->rank, &elements))
        return 0;
    if (elements >
        INT64_MAX / (size ? size : 1)) /* strides of 0 reach further than memory does; a dense copy does not */
        return 0;
    for (uint32_t i = 0; i < tensor->rank && elements; i++) {
        int64_t stride = tensor->strides[i];
        uint64_t step = stride < 0 ? 0 - (uint64_t)stride : (uint64_t)stride, span;
        if (tensor->shape[i] < 2)
            continue;
        if (!moert_mul(tensor->shape[i] - 1, step, &span) ||
            !moert_add(stride < 0 ? below : above, span, stride < 0 ? &below : &above))
            return 0;
    }
    return moert_mul(below, size, ret_below) && moert_mul(elements ? above : 0, size, ret_above) &&
           *ret_below <= INT64_MAX && *ret_above <= INT64_MAX;
}

/* Splits a tensor into runs that are dense in memory: the trailing axes without gaps. */
uint32_t moert_tensor_runs(const struct moert_tensor *tensor, uint64_t *ret_run)
{
    uint32_t outer = tensor->rank;
    uint64_t run = 1;

    while (outer > 0 && (tensor->shape[outer - 1] == 1 || tensor->strides[outer - 1] == (int64_t)run))
        run *= tensor->shape[--outer];
    *ret_run = run;
    return outer;
}

int64_t moert_tensor_run_offset(const struct moert_tensor *tensor, uint32_t outer, uint64_t index)
{
    int64_t offset = 0;

    for (uint32_t i = outer; i-- > 0;) {
        offset += (int64_t)(index % tensor->shape[i]) * tensor->strides[i];
        index /= tensor->shape[i];
    }
    return offset;
}

static void copy_runs(const struct moert_tensor *tensor, uint8_t *dense, int gather)
{
    int64_t size = (int64_t)moert_dtype_size(tensor->dtype);
    uint64_t run, count = 1;
    uint32_t outer = moert_tensor_runs(tensor, &run);

    for (uint32_t i = 0; i < outer; i++)
        count *= tensor->shape[i];
    for (uint64_t i = 0; i < count && run; i++) {
        uint8_t *at = (uint8_t *)tensor->data + moert_tensor_run_offset(tensor, outer, i) * size;
        uint8_t *to = dense + i * run * (uint64_t)size;
        memcpy(gather ? to : at, gather ? at : to, run * (uint64_t)size);
    }
}

void moert_gather(const struct moert_tensor *tensor, uint8_t *dense)
{
    copy_runs(tensor, dense, 1);
}

void moert_scatter(const struct moert_tensor *tensor, const uint8_t *dense)
{
    copy_runs(tensor, (uint8_t *)(uintptr_t)dense, 0);
}

struct moert_drv_tensor moert_drv_dense(moert_drv_buffer *buffer, uint64_t offset, moert_dtype_t dtype, uint32_t rank,
                                        const uint64_t *shape)
{
    struct moert_drv_tensor t = {.buffer = buffer, .offset = offset, .dtype = dtype, .rank = rank};
    int64_t stride = 1;

    for (uint32_t i = rank; i-- > 0;) {
        t.shape[i] = shape[i];
        t.strides[i] = stride;
        stride = (int64_t)((uint64_t)stride * shape[i]);
    }
    return t;
}
