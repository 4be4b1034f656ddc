/* core/routing/rows.c: rows of 16- and 32-bit floats as binary32 (rows.h). */
#include "config.h"

#include "core/routing/rows.h"
#include "core/numerics/bits.h"

#include <moert/float8.h>

#include <string.h>

/* Elements widened at a time: small enough for the stack and the first-level cache. */
#define ROW_STEP 256

int moert_row_dtype(moert_dtype_t dtype)
{
    return dtype == MOERT_F32 || dtype == MOERT_BF16 || dtype == MOERT_F16;
}

void moert_row_widen(const void *data, moert_dtype_t dtype, uint64_t first, uint64_t count, float *out)
{
    const uint16_t *half = (const uint16_t *)data + first;

    if (dtype == MOERT_F32)
        memcpy(out, (const float *)data + first, count * sizeof(*out));
    else if (dtype == MOERT_BF16)
        for (uint64_t i = 0; i < count; i++)
            out[i] = moert_f32_of_bits((uint32_t)half[i] << 16);
    else
        for (uint64_t i = 0; i < count; i++)
            out[i] = moert_f32_of_bits(moert_f16_widen(half[i]));
}

static void add(float *acc, const float *row, uint64_t count, const float *weight)
{
    if (!weight) {
        for (uint64_t i = 0; i < count; i++)
            acc[i] += row[i];
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        float product = row[i] * *weight; /* rounded here: the build forbids contraction */
        acc[i] += product;
    }
}

void moert_row_add(float *acc, const void *data, moert_dtype_t dtype, uint64_t first, uint64_t count,
                   const float *weight)
{
    float wide[ROW_STEP];

    if (dtype == MOERT_F32) {
        add(acc, (const float *)data + first, count, weight);
        return;
    }
    for (uint64_t i = 0; i < count; i += ROW_STEP) {
        uint64_t n = count - i < ROW_STEP ? count - i : ROW_STEP;
        moert_row_widen(data, dtype, first + i, n, wide);
        add(acc + i, wide, n, weight);
    }
}

void moert_row_narrow(const float *acc, uint64_t count, void *data, moert_dtype_t dtype, uint64_t first)
{
    uint16_t *half = (uint16_t *)data + first;

    if (dtype == MOERT_F32)
        memcpy((float *)data + first, acc, count * sizeof(*acc));
    else if (dtype == MOERT_BF16)
        for (uint64_t i = 0; i < count; i++)
            half[i] = moert_bf16_from_float(acc[i]);
    else
        for (uint64_t i = 0; i < count; i++)
            half[i] = moert_f16_from_float(acc[i]);
}
