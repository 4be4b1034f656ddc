/* core/routing/combine.c: the last step of the layer: a token's slot rows summed into its output row (routing.md 5,
 * layer.md P6). Everything in f32 in slot order, one rounding to the output's dtype. Rows and weights of slots that are
 * not local are never read: nobody wrote them. */
#include "config.h"

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/routing/rows.h"
#include "core/routing/slot.h"

#include <moert/routing.h>

#include <string.h>

/* Columns summed at a time: the running sums stay in the first-level cache. */
#define STEP 512

/* What both forms share: where a slot's row begins, in elements. */
struct source {
    const void *rows;
    moert_dtype_t dtype;
    const float *weights; /* [T,K] or NULL */
    uint64_t hidden;
    uint32_t top_k;
    float scale; /* of the sum; 1: none */
    const float *shared;
    void *out;
    /* combine */
    const struct moert_combine_args *args;
    uint64_t stride_token, stride_slot;
    /* unpermute */
    const int32_t *inv;
};

/* First element of the row of slot j of token t; 0 when the slot has none. */
static int find_row(const struct source *s, uint64_t t, uint32_t j, uint64_t *first)
{
    uint64_t slot = t * s->top_k + j;

    if (s->inv) {
        *first = (uint64_t)(uint32_t)s->inv[slot] * s->hidden;
        return s->inv[slot] >= 0;
    }
    *first = t * s->stride_token + j * s->stride_slot;
    return !s->args->ids || moert_slot_expert(s->args->ids[slot], s->args->num_experts, s->args->map) >= 0;
}

static void sum_columns(const struct source *s, uint64_t t, uint64_t column, uint64_t count)
{
    float acc[STEP] = {0};
    uint64_t first;

    for (uint32_t j = 0; j < s->top_k; j++)
        if (find_row(s, t, j, &first))
            moert_row_add(acc, s->rows, s->dtype, first + column, count,
                          s->weights ? &s->weights[t * s->top_k + j] : NULL);
    if (s->scale != 1)
        for (uint64_t i = 0; i < count; i++)
            acc[i] *= s->scale;
    if (s->shared)
        moert_row_add(acc, s->shared, MOERT_F32, t * s->hidden + column, count, NULL);
    moert_row_narrow(acc, count, s->out, s->dtype, t * s->hidden + column);
}

static void sum_tokens(const struct source *s, uint64_t tokens)
{
    for (uint64_t t = 0; t < tokens; t++)
        for (uint64_t c = 0; c < s->hidden; c += STEP)
            sum_columns(s, t, c, s->hidden - c < STEP ? s->hidden - c : STEP);
}

static moert_status_t check_dtype(moert_dtype_t dtype, struct moert_error *err)
{
    const char *name = moert_dtype_name(dtype);

    if (moert_row_dtype(dtype))
        return MOERT_OK;
    return moert_fail(err, MOERT_E_DTYPE, "tensor-dtype", "rows are %s, expected F32, BF16 or F16",
                      name ? name : "of an unknown dtype");
}

static moert_status_t fail_large(uint64_t tokens, uint32_t top_k, uint64_t hidden, struct moert_error *err)
{
    return moert_fail(err, MOERT_E_TOO_LARGE, "too-large", "rows of %llu tokens x %u x %llu do not fit in memory",
                      (unsigned long long)tokens, top_k, (unsigned long long)hidden);
}

/* Bytes up to the end of the last row fit 64 bits. */
static int extent_fits(uint64_t tokens, uint32_t top_k, uint64_t hidden, uint64_t stride_token, uint64_t stride_slot)
{
    uint64_t a, b, end;

    return moert_mul(tokens, stride_token, &a) && moert_mul(top_k, stride_slot, &b) && moert_add(a, b, &end) &&
           moert_add(end, hidden, &end) && moert_mul(end, sizeof(float), &end) && moert_mul(tokens, hidden, &a) &&
           moert_mul(a, sizeof(float), &a) && moert_mul(tokens, top_k, &a) && moert_mul(a, sizeof(float), &a);
}

static moert_status_t check_combine(const struct moert_combine_args *a, struct moert_error *err)
{
    moert_status_t status;

    if (!a)
        return moert_fail_null(err, "args");
    status = moert_check_size(err, "moert_combine_args", a->size, sizeof(*a));
    if (!status)
        status = check_dtype(a->dtype, err);
    if (status)
        return status;
    if (a->num_experts > MOERT_MAX_EXPERTS)
        return moert_fail(err, MOERT_E_VALUE, "size", "num_experts is %u; at most %u", a->num_experts,
                          MOERT_MAX_EXPERTS);
    if (!a->ids && a->map)
        return moert_fail(err, MOERT_E_USAGE, "null", "ids is NULL although there is an expert map");
    if (!a->tokens || !a->hidden_size)
        return MOERT_OK;
    if (!a->out)
        return moert_fail_null(err, "out");
    if (!a->rows && a->top_k)
        return moert_fail_null(err, "rows");
    return MOERT_OK;
}

moert_status_t moert_combine(const struct moert_combine_args *args, struct moert_error *err)
{
    moert_status_t status = check_combine(args, err);
    struct source s;
    uint64_t dense;

    if (status)
        return status;
    s = (struct source){.rows = args->rows,
                        .dtype = args->dtype,
                        .weights = args->weights,
                        .hidden = args->hidden_size,
                        .top_k = args->top_k,
                        .scale = args->output_scale != 0 ? (float)args->output_scale : 1,
                        .shared = args->shared,
                        .out = args->out,
                        .args = args,
                        .stride_token = args->stride_token,
                        .stride_slot = args->stride_slot};
    if (!s.stride_token && !s.stride_slot) {
        if (!moert_mul(args->hidden_size, args->top_k, &dense))
            return fail_large(args->tokens, args->top_k, args->hidden_size, err);
        s.stride_token = dense;
        s.stride_slot = args->hidden_size;
    }
    if (!extent_fits(args->tokens, args->top_k, args->hidden_size, s.stride_token, s.stride_slot))
        return fail_large(args->tokens, args->top_k, args->hidden_size, err);
    sum_tokens(&s, args->tokens);
    return MOERT_OK;
}

/* Without any local slot there are no rows, and no array of them is needed. */
static int any_row(const int32_t *inv, uint64_t slots)
{
    for (uint64_t s = 0; s < slots; s++)
        if (inv[s] >= 0)
            return 1;
    return 0;
}

moert_status_t moert_unpermute(const void *rows, moert_dtype_t dtype, const int32_t *inv, const float *weights,
                               uint64_t tokens, uint32_t top_k, uint64_t hidden_size, void *out,
                               struct moert_error *err)
{
    moert_status_t status = check_dtype(dtype, err);
    struct source s = {.rows = rows,
                       .dtype = dtype,
                       .weights = weights,
                       .hidden = hidden_size,
                       .top_k = top_k,
                       .scale = 1,
                       .out = out,
                       .inv = inv};
    uint64_t dense;

    if (status)
        return status;
    if (!moert_mul(hidden_size, top_k, &dense) || !extent_fits(tokens, top_k, hidden_size, dense, hidden_size))
        return fail_large(tokens, top_k, hidden_size, err);
    if (tokens && hidden_size && !out)
        return moert_fail_null(err, "out");
    if (tokens && hidden_size && top_k && (!inv || !weights))
        return moert_fail_null(err, inv ? "weights" : "inv");
    if (!rows && hidden_size && any_row(inv, tokens * top_k))
        return moert_fail_null(err, "rows");
    sum_tokens(&s, tokens);
    return MOERT_OK;
}
