/* SPDX-License-Identifier: Apache-2.0
 * drivers/cpu/ref/gemm.c: P2 and P5: the dot products (mxfp8.md 8).
 *
 * Codes times codes: the 32 products of a block are summed as integers in units of 2^-18, exactly, then the block's
 * sum, scaled by a power of two, is added to a double in ascending k. Each addition rounds once, so neither the order
 * inside a block nor the compiler's choice of instructions can change a bit. Otherwise: a double sum in ascending k of
 * exact products. A decoded weight row serves all rows of its expert. */
#include "config.h"

#include "drivers/cpu/ref/ref.h"

#include <math.h>

/* y = sum of products; s = sum of their magnitudes, when asked for. */
static double dot_codes(const uint8_t *codes, const uint8_t *scales, const struct mref_row *w, uint64_t cols, double *s)
{
    double acc = 0, magnitude = 0;

    for (uint64_t b = 0; b < cols / MREF_BLOCK; b++) {
        const uint8_t *a = codes + b * MREF_BLOCK;
        const int32_t *v = w->integers + b * MREF_BLOCK;
        int64_t sum = 0, sum_abs = 0;
        double unit;
        if (scales[b] == MREF_NAN_SCALE || w->scales[b] == MREF_NAN_SCALE) {
            acc = magnitude = (double)NAN;
            break;
        }
        for (int i = 0; i < MREF_BLOCK; i++)
            sum += (int64_t)mref_e4m3_units[a[i]] * v[i];
        /* 2^(sa - 127 + sw - 127 - 18); |sum| < 2^41, so the products below are exact */
        unit = mref_pow2(scales[b] + w->scales[b] - 254 - 18);
        acc += (double)sum * unit;
        if (!s)
            continue;
        for (int i = 0; i < MREF_BLOCK; i++) {
            int64_t p = (int64_t)mref_e4m3_units[a[i]] * v[i];
            sum_abs += p < 0 ? -p : p;
        }
        magnitude += (double)sum_abs * unit;
    }
    if (s)
        *s = magnitude;
    return acc;
}

static double dot_values(const double *a, const double *w, uint64_t cols, double *s)
{
    double acc = 0, magnitude = 0;

    for (uint64_t k = 0; k < cols; k++)
        acc += a[k] * w[k];
    if (!s)
        return acc;
    for (uint64_t k = 0; k < cols; k++)
        magnitude += fabs(a[k] * w[k]);
    *s = magnitude;
    return acc;
}

/* One of the two products, as its loop needs it. */
struct product {
    const struct mref_run *run;
    enum mref_part part;
    uint64_t outputs, cols; /* N, K */
    const struct mref_rows *rows;
    uint32_t rows_per_token;           /* slots that share an activation row: K' for GEMM1, 1 for GEMM2 */
    const struct mcpu_matrix *weights; /* router weights, or NULL */
    const struct mcpu_matrix *out, *dump, *y, *s;
};

static void output_row(const struct product *p, uint32_t expert, uint64_t n, const struct mref_row *w)
{
    const struct mref_run *run = p->run;
    const struct mref_shape *shape = run->shape;
    uint64_t cols = p->cols;
    double s, *want_s = p->s->data ? &s : NULL;
    float bias = 0;

    if (shape->has_bias)
        memcpy(&bias, mref_expert(run->layer, expert) + shape->part[p->part + 2].offset + n * sizeof(bias),
               sizeof(bias));
    for (uint32_t i = run->first[expert]; i < run->first[expert + 1]; i++) {
        uint64_t slot = run->order[i], row = slot / p->rows_per_token;
        double y = mref_integer(shape) ? dot_codes(p->rows->codes + row * cols,
                                                   p->rows->scales + row * (cols / MREF_BLOCK), w, cols, want_s)
                                       : dot_values(p->rows->wide + row * cols, w->values, cols, want_s);
        if (shape->has_bias)
            y += (double)bias;
        if (p->y->data)
            mcpu_put(p->y, slot, n, y);
        if (p->s->data)
            mcpu_put(p->s, slot, n, s);
        if (p->weights)
            y *= (double)mcpu_get(p->weights, slot / shape->slots, slot % shape->slots);
        mcpu_put(p->out, slot, n, y);
        if (p->dump->data)
            mcpu_put(p->dump, slot, n, y);
    }
}

/* Items are (active expert, output row) pairs. */
static void multiply(const struct product *p, uint64_t begin, uint64_t end, uint32_t thread)
{
    const struct mref_run *run = p->run;
    struct mref_row w = mref_row(mref_scratch(run, thread), p->cols);

    for (uint64_t i = begin; i < end; i++) {
        uint32_t expert = run->active[i / p->outputs];
        uint64_t n = i % p->outputs;
        mref_decode_row(run->shape, mref_expert(run->layer, expert), p->part, n, p->cols, &w);
        output_row(p, expert, n, &w);
    }
}

void mref_gemm1(void *ctx, uint64_t begin, uint64_t end, uint32_t thread)
{
    const struct mref_run *run = ctx;
    struct product p = {
        .run = run,
        .part = MREF_W13,
        .outputs = run->shape->rows13,
        .cols = run->shape->hidden,
        .rows = &run->a1,
        .rows_per_token = run->shape->slots,
        .out = &run->c1,
        .dump = &run->dump.c1,
        .y = &run->dump.y1,
        .s = &run->dump.s1,
    };

    multiply(&p, begin, end, thread);
}

void mref_gemm2(void *ctx, uint64_t begin, uint64_t end, uint32_t thread)
{
    const struct mref_run *run = ctx;
    int weighted = !run->shape->input_weight && !(run->flags & MOERT_RUN_F_UNWEIGHTED);
    struct product p = {
        .run = run,
        .part = MREF_W2,
        .outputs = run->shape->hidden,
        .cols = run->shape->inner,
        .rows = &run->a2,
        .rows_per_token = 1,
        .weights = weighted ? &run->weights : NULL,
        .out = &run->c3,
        .dump = &run->dump.c3,
        .y = &run->dump.y2,
        .s = &run->dump.s2,
    };

    multiply(&p, begin, end, thread);
}
