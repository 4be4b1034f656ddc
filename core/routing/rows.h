/* core/routing/rows.h: rows of F32, BF16 or F16 elements as binary32: widening, accumulation, the one rounding on the
 * way out. The loops behind router logits and combine. Pure. */
#ifndef MOERT_ROUTING_ROWS_H
#define MOERT_ROUTING_ROWS_H

#include <moert/base.h>

/* F32, BF16 or F16: the dtypes the functions below take. */
int moert_row_dtype(moert_dtype_t dtype);

/* out[i] = element first + i, exact. */
void moert_row_widen(const void *data, moert_dtype_t dtype, uint64_t first, uint64_t count, float *out);

/* acc[i] += element first + i, times *weight when given: the product is rounded to f32 before it is added. */
void moert_row_add(float *acc, const void *data, moert_dtype_t dtype, uint64_t first, uint64_t count,
                   const float *weight);

/* element first + i = acc[i], nearest even. */
void moert_row_narrow(const float *acc, uint64_t count, void *data, moert_dtype_t dtype, uint64_t first);

#endif
