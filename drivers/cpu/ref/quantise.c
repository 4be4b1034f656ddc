/* SPDX-License-Identifier: Apache-2.0
 * drivers/cpu/ref/quantise.c: P0 and P1 of a token, P4 of a slot. Row-local: no row looks at another. */
#include "config.h"

#include "drivers/cpu/ref/ref.h"

#include <moert/mxfp8.h>

/* Value after one rounding to d. */
static float round_to(moert_dtype_t dtype, double value)
{
    uint8_t bytes[4];
    struct mcpu_matrix one = mcpu_dense(bytes, dtype, 1, 1);

    mcpu_put(&one, 0, 0, value);
    return mcpu_get(&one, 0, 0);
}

static int token_is_used(const struct mref_run *run, uint64_t token)
{
    for (uint32_t j = 0; j < run->shape->slots; j++)
        if (run->expert[token * run->shape->slots + j] >= 0)
            return 1;
    return 0;
}

static uint64_t count_poisoned(const uint8_t *scales, uint64_t blocks)
{
    uint64_t n = 0;

    for (uint64_t b = 0; b < blocks; b++)
        n += scales[b] == MREF_NAN_SCALE;
    return n;
}

static void dump_codes(const struct mcpu_matrix *to_codes, const struct mcpu_matrix *to_scales, uint64_t r,
                       uint8_t *codes, uint8_t *scales, uint64_t cols)
{
    struct mcpu_matrix from_codes = mcpu_dense(codes, MOERT_U8, 1, cols);
    struct mcpu_matrix from_scales = mcpu_dense(scales, MOERT_U8, 1, cols / MREF_BLOCK);

    if (to_codes->data)
        mcpu_copy_row(to_codes, r, &from_codes, 0);
    if (to_scales->data)
        mcpu_copy_row(to_scales, r, &from_scales, 0);
}

/* A row's codes become what the GEMM reads: exact values, unless it multiplies the codes themselves. */
static void finish_codes(const struct mref_run *run, struct mref_rows *rows, uint64_t r)
{
    uint8_t *codes = rows->codes + r * rows->cols, *scales = rows->scales + r * (rows->cols / MREF_BLOCK);

    mref_mark_nan_blocks(codes, scales, rows->cols);
    if (!mref_integer(run->shape))
        mref_decode_values(codes, scales, rows->cols, rows->wide + r * rows->cols);
}

/* P0: x, or rd(x * rd(w)) with the router weight on the input; the product of two values of d is exact in double. */
static void load_token(const struct mref_run *run, uint64_t token, float *row)
{
    const struct mref_shape *shape = run->shape;

    mcpu_row_to_float(&run->x, token, row);
    if (shape->input_weight) {
        double w = (double)round_to(shape->dtype, (double)mcpu_get(&run->weights, token, 0));
        for (uint64_t k = 0; k < shape->hidden; k++)
            row[k] = round_to(shape->dtype, (double)row[k] * w);
    }
}

void mref_quantise_tokens(void *ctx, uint64_t begin, uint64_t end, uint32_t thread)
{
    struct mref_run *run = ctx;
    uint64_t cols = run->shape->hidden, blocks = cols / MREF_BLOCK, poisoned = 0;
    void *memory = mref_scratch(run, thread);
    float *row = memory;

    for (uint64_t t = begin; t < end; t++) {
        uint8_t *codes = run->a1.codes + t * cols, *scales = run->a1.scales + t * blocks;
        int used = token_is_used(run, t);
        if (!used && run->shape->input_weight)
            continue; /* the weight of a slot that is not local is never read */
        if (run->x_scale.data) {
            struct mcpu_matrix to_codes = mcpu_dense(codes, MOERT_F8_E4M3, 1, cols);
            struct mcpu_matrix to_scales = mcpu_dense(scales, MOERT_U8, 1, blocks);
            mcpu_copy_row(&to_codes, 0, &run->x, t);
            mcpu_copy_row(&to_scales, 0, &run->x_scale, t);
        } else {
            load_token(run, t, row);
            if (run->shape->activations == MOERT_SCHEME_NONE) {
                for (uint64_t k = 0; k < cols; k++)
                    run->a1.wide[t * cols + k] = (double)row[k];
                continue;
            }
            /* Cannot fail: the layer was refused unless H is a multiple of 32. */
            (void)moert_mxfp8_quantize(row, MOERT_F32, 1, cols, 0, NULL, codes, scales, NULL, NULL);
        }
        dump_codes(&run->dump.a1_codes, &run->dump.a1_scales, t, codes, scales, cols);
        finish_codes(run, &run->a1, t);
        if (used)
            poisoned += count_poisoned(scales, blocks);
    }
    atomic_fetch_add(&run->poisoned, poisoned);
}

void mref_quantise_slot(struct mref_run *run, uint64_t slot)
{
    uint64_t cols = run->shape->inner, blocks = cols / MREF_BLOCK;
    uint8_t *codes = run->a2.codes + slot * cols, *scales = run->a2.scales + slot * blocks;

    if (run->shape->activations == MOERT_SCHEME_NONE) {
        for (uint64_t k = 0; k < cols; k++)
            run->a2.wide[slot * cols + k] = (double)mcpu_get(&run->c2, slot, k);
        return;
    }
    (void)moert_mxfp8_quantize(mcpu_at(&run->c2, slot, 0), run->shape->dtype, 1, cols, 0, NULL, codes, scales, NULL,
                               NULL);
    dump_codes(&run->dump.a2_codes, &run->dump.a2_scales, slot, codes, scales, cols);
    finish_codes(run, &run->a2, slot);
    atomic_fetch_add(&run->poisoned, count_poisoned(scales, blocks));
}
