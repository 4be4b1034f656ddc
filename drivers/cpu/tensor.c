/* SPDX-License-Identifier: Apache-2.0
 * drivers/cpu/tensor.c: checks of the boundary's tensors, row access. */
#include "config.h"

#include "core/base/checked.h"
#include "core/base/error.h"
#include "drivers/cpu/internal.h"
#include "drivers/cpu/tensor.h"

#include <inttypes.h>
#include <stdio.h>

/* Names as safetensors has them; the order is that of moert_dtype_t. */
static const struct {
    const char *name;
    uint32_t size;
} dtypes[MOERT_DTYPE_COUNT] = {
    {"none", 0},    {"F32", 4},     {"BF16", 2}, {"F16", 2}, {"F64", 8},  {"F8_E4M3", 1},
    {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"U8", 1},   {"I8", 1},  {"I16", 2},  {"U16", 2},
    {"I32", 4},     {"U32", 4},     {"I64", 8},  {"U64", 8}, {"BOOL", 1},
};

uint32_t mcpu_dtype_size(moert_dtype_t dtype)
{
    return dtype < MOERT_DTYPE_COUNT ? dtypes[dtype].size : 0;
}

const char *mcpu_dtype_name(moert_dtype_t dtype)
{
    return dtype < MOERT_DTYPE_COUNT ? dtypes[dtype].name : "unknown";
}

static void format_shape(char *out, size_t size, const uint64_t *shape, uint32_t rank)
{
    size_t n = (size_t)snprintf(out, size, "[");

    for (uint32_t i = 0; i < rank && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%" PRIu64, i ? "," : "", shape[i]);
    if (n < size)
        snprintf(out + n, size - n, "]");
}

static moert_status_t fail_shape(const struct moert_drv_tensor *tensor, const struct mcpu_want *want,
                                 struct moert_error *err)
{
    char have[128], need[128], code[32];

    format_shape(have, sizeof(have), tensor->shape, tensor->rank <= MOERT_MAX_RANK ? tensor->rank : 0);
    format_shape(need, sizeof(need), want->shape, want->rank);
    snprintf(code, sizeof(code), "%s-shape", want->code);
    return moert_fail(err, MOERT_E_SHAPE, code, "%s is %s, expected %s", want->name, have, need);
}

static moert_status_t fail_dtype(const struct moert_drv_tensor *tensor, const struct mcpu_want *want,
                                 struct moert_error *err)
{
    char need[128], code[32];
    size_t n = 0;

    need[0] = 0;
    for (uint32_t i = 0; i < MOERT_DTYPE_COUNT && n < sizeof(need); i++)
        if (want->dtypes & MCPU_DTYPE(i))
            n += (size_t)snprintf(need + n, sizeof(need) - n, "%s%s", n ? " or " : "", dtypes[i].name);
    snprintf(code, sizeof(code), "%s-dtype", want->code);
    return moert_fail(err, MOERT_E_DTYPE, code, "%s is %s, expected %s", want->name, mcpu_dtype_name(tensor->dtype),
                      need);
}

/* Elements must not share an address when they are written: taken by size, each stride passes what the smaller ones
 * span. */
static int strides_are_disjoint(const struct moert_drv_tensor *t)
{
    uint64_t span = 0; /* elements between the first and the last of the axes seen so far */
    uint32_t used = 0;

    for (uint32_t round = 0; round < t->rank; round++) {
        uint32_t best = MOERT_MAX_RANK;
        uint64_t stride = 0;
        for (uint32_t i = 0; i < t->rank; i++) {
            uint64_t s = (uint64_t)(t->strides[i] < 0 ? -t->strides[i] : t->strides[i]);
            if (!(used & 1u << i) && (best == MOERT_MAX_RANK || s < stride)) {
                best = i;
                stride = s;
            }
        }
        used |= 1u << best;
        if (t->shape[best] < 2)
            continue;
        if (stride <= span)
            return 0;
        span += stride * (t->shape[best] - 1);
    }
    return 1;
}

/* Byte distances of the lowest and of the end of the highest element from the tensor's offset. 0 when they overflow. */
static int extent(const struct moert_drv_tensor *t, uint64_t element, uint64_t *below, uint64_t *above)
{
    *below = 0;
    *above = element;
    for (uint32_t i = 0; i < t->rank; i++) {
        uint64_t span, stride;
        if (t->strides[i] == INT64_MIN)
            return 0;
        stride = (uint64_t)(t->strides[i] < 0 ? -t->strides[i] : t->strides[i]);
        if (!moert_mul(stride, t->shape[i] - 1, &span) || !moert_mul(span, element, &span) || span > INT64_MAX ||
            !moert_add(t->strides[i] < 0 ? *below : *above, span, t->strides[i] < 0 ? below : above))
            return 0;
    }
    return 1;
}

static moert_status_t check_place(const struct moert_drv_tensor *t, const struct mcpu_want *want,
                                  struct moert_error *err)
{
    uint64_t below, above, end, dense = 1;

    for (uint32_t i = 0; i < t->rank; i++)
        if (!t->shape[i])
            return MOERT_OK;
    if (!extent(t, mcpu_dtype_size(t->dtype), &below, &above) || below > t->offset ||
        !moert_add(t->offset, above, &end) || end > t->buffer->bytes)
        return moert_fail(err, MOERT_E_VALUE, "range",
                          "%s at offset %" PRIu64 " reaches past its buffer of %" PRIu64 " bytes", want->name,
                          t->offset, t->buffer->bytes);
    if (want->writes && !strides_are_disjoint(t))
        return moert_fail(err, MOERT_E_SHAPE, "strides", "%s is written and has strides under which elements overlap",
                          want->name);
    for (uint32_t i = t->rank; want->dense && i-- > 0; dense *= t->shape[i])
        if (t->shape[i] > 1 && t->strides[i] != (int64_t)dense)
            return moert_fail(err, MOERT_E_SHAPE, "strides", "%s has stride %" PRId64 " on axis %u, expected %" PRIu64,
                              want->name, t->strides[i], i, dense);
    return MOERT_OK;
}

moert_status_t mcpu_tensor(const struct moert_drv_tensor *tensor, const struct mcpu_want *want, uint8_t **ret,
                           struct moert_error *err)
{
    moert_status_t status;

    if (!tensor || !tensor->buffer)
        return moert_fail_null(err, want->name);
    if (tensor->dtype >= MOERT_DTYPE_COUNT || !(want->dtypes & MCPU_DTYPE(tensor->dtype)))
        return fail_dtype(tensor, want, err);
    if (tensor->rank != want->rank)
        return fail_shape(tensor, want, err);
    for (uint32_t i = 0; i < want->rank; i++)
        if (tensor->shape[i] != want->shape[i])
            return fail_shape(tensor, want, err);
    status = check_place(tensor, want, err);
    if (status)
        return status;
    *ret = tensor->buffer->data + tensor->offset;
    return MOERT_OK;
}

moert_status_t mcpu_matrix(const struct moert_drv_tensor *tensor, const struct mcpu_want *want, struct mcpu_matrix *ret,
                           struct moert_error *err)
{
    uint8_t *data;
    moert_status_t status = mcpu_tensor(tensor, want, &data, err);
    uint32_t last = want->rank - 1;
    int64_t element;

    if (status)
        return status;
    element = (int64_t)mcpu_dtype_size(tensor->dtype);
    /* The stride of an axis of one element means nothing: 0 keeps the products small. */
    *ret = (struct mcpu_matrix){
        .data = data,
        .dtype = tensor->dtype,
        .element = (uint32_t)element,
        .rows = last ? tensor->shape[0] : 1,
        .cols = tensor->shape[last],
        .row_pitch = last && tensor->shape[0] > 1 ? tensor->strides[0] * element : 0,
        .col_pitch = tensor->shape[last] > 1 ? tensor->strides[last] * element : 0,
    };
    return MOERT_OK;
}

struct mcpu_matrix mcpu_dense(void *data, moert_dtype_t dtype, uint64_t rows, uint64_t cols)
{
    uint32_t element = mcpu_dtype_size(dtype);

    return (struct mcpu_matrix){
        .data = data,
        .dtype = dtype,
        .element = element,
        .rows = rows,
        .cols = cols,
        .row_pitch = (int64_t)(cols * element),
        .col_pitch = (int64_t)element,
    };
}

void mcpu_row_to_float(const struct mcpu_matrix *m, uint64_t r, float *out)
{
    for (uint64_t c = 0; c < m->cols; c++)
        out[c] = mcpu_get(m, r, c);
}

void mcpu_copy_row(const struct mcpu_matrix *dst, uint64_t dst_row, const struct mcpu_matrix *src, uint64_t src_row)
{
    if (src->col_pitch == (int64_t)src->element && dst->col_pitch == (int64_t)src->element) {
        memcpy(mcpu_at(dst, dst_row, 0), mcpu_at(src, src_row, 0), src->cols * src->element);
        return;
    }
    for (uint64_t c = 0; c < src->cols; c++)
        memcpy(mcpu_at(dst, dst_row, c), mcpu_at(src, src_row, c), src->element);
}
