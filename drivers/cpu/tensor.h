/* SPDX-License-Identifier: Apache-2.0
 * drivers/cpu/tensor.h: tensors of the boundary as addresses. A matrix may have any strides and any alignment; every
 * element that its shape names has been checked to lie inside its buffer. */
#ifndef MOERT_DRIVERS_CPU_TENSOR_H
#define MOERT_DRIVERS_CPU_TENSOR_H

#include <moert/float8.h>
#include <moert/driver.h>

#include <string.h>

/* [rows, cols] elements of `dtype`; element (r,c) is at data + r*row_pitch + c*col_pitch bytes. data NULL: not given.
 */
struct mcpu_matrix {
    uint8_t *data;
    moert_dtype_t dtype;
    uint32_t element; /* bytes */
    uint64_t rows, cols;
    int64_t row_pitch, col_pitch;
};

/* What a tensor must be. `dtypes` is a set of MCPU_DTYPE bits; code is that of layer.md 7 ("x" gives x-shape, x-dtype).
 */
struct mcpu_want {
    const char *name;
    const char *code;
    uint32_t dtypes;
    uint32_t rank;
    uint64_t shape[MOERT_MAX_RANK];
    uint32_t dense;  /* 1: row-major without gaps */
    uint32_t writes; /* 1: it is written, so no two elements may share an address */
};

#define MCPU_DTYPE(d) (1u << (d))
#define MCPU_FLOATS   (MCPU_DTYPE(MOERT_F32) | MCPU_DTYPE(MOERT_BF16) | MCPU_DTYPE(MOERT_F16))

/* Bytes of an element of the dtypes that this driver meets, 0 for others; and their names. */
uint32_t mcpu_dtype_size(moert_dtype_t dtype);
const char *mcpu_dtype_name(moert_dtype_t dtype);

static inline int mcpu_given(const struct moert_drv_tensor *tensor)
{
    return tensor->buffer != NULL;
}

/* Checks dtype, rank, shape, strides and range, and gives the address of element 0. Errors: null, *-dtype, *-shape,
 * range (VALUE). */
moert_status_t mcpu_tensor(const struct moert_drv_tensor *tensor, const struct mcpu_want *want, uint8_t **ret,
                           struct moert_error *err);

/* A tensor of rank 2, or 1 (one row), as a matrix. */
moert_status_t mcpu_matrix(const struct moert_drv_tensor *tensor, const struct mcpu_want *want, struct mcpu_matrix *ret,
                           struct moert_error *err);

/* A dense matrix over memory of our own. */
struct mcpu_matrix mcpu_dense(void *data, moert_dtype_t dtype, uint64_t rows, uint64_t cols);

static inline uint8_t *mcpu_at(const struct mcpu_matrix *m, uint64_t r, uint64_t c)
{
    return m->data + (int64_t)r * m->row_pitch + (int64_t)c * m->col_pitch;
}

static inline float mcpu_float_at(const uint8_t *p, moert_dtype_t dtype)
{
    uint16_t half;
    float f;

    if (dtype == MOERT_F32) {
        memcpy(&f, p, sizeof(f));
        return f;
    }
    memcpy(&half, p, sizeof(half));
    return dtype == MOERT_BF16 ? moert_bf16_to_float(half) : moert_f16_to_float(half);
}

/* Element as float; F32, BF16, F16: exact. */
static inline float mcpu_get(const struct mcpu_matrix *m, uint64_t r, uint64_t c)
{
    return mcpu_float_at(mcpu_at(m, r, c), m->dtype);
}

/* rd: one rounding from double straight to the dtype; F64 is stored as it is. */
static inline void mcpu_put(const struct mcpu_matrix *m, uint64_t r, uint64_t c, double value)
{
    uint8_t *p = mcpu_at(m, r, c);
    uint16_t half;
    float f;

    switch (m->dtype) {
    case MOERT_F64: memcpy(p, &value, sizeof(value)); return;
    case MOERT_F32:
        f = moert_f32_from_double(value);
        memcpy(p, &f, sizeof(f));
        return;
    case MOERT_BF16: half = moert_bf16_from_double(value); break;
    default: half = moert_f16_from_double(value); break;
    }
    memcpy(p, &half, sizeof(half));
}

/* Row r as floats, exactly; and bytes of row r of matrices that have the same element size. */
void mcpu_row_to_float(const struct mcpu_matrix *m, uint64_t r, float *out);
void mcpu_copy_row(const struct mcpu_matrix *dst, uint64_t dst_row, const struct mcpu_matrix *src, uint64_t src_row);

static inline int32_t mcpu_int_at(const struct mcpu_matrix *m, uint64_t r, uint64_t c)
{
    int32_t v;

    memcpy(&v, mcpu_at(m, r, c), sizeof(v));
    return v;
}

#endif
