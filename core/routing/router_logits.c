/* core/routing/router_logits.c: logits = x @ weight^T (+ bias), each a binary64 sum in ascending k with one rounding at
 * the end (routing.md 2.1). The product of two f32 values is exact in binary64, so only the order of the sum matters;
 * eight experts are summed side by side, each in that order. */
#include "config.h"

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/routing/rows.h"

#include <moert/float8.h>
#include <moert/routing.h>

#include <stdlib.h>

#define LANES      8 /* experts of one panel */
#define TOKEN_TILE 8 /* tokens that share a packed panel */

struct logits_job {
    const void *x, *weight, *bias;
    moert_dtype_t x_dtype, weight_dtype, out_dtype;
    uint64_t hidden;
    uint32_t experts;
    void *out;
    double *panel; /* [H, LANES] */
    double *rows;  /* [TOKEN_TILE, H] */
    float *wide;   /* [H] */
};

/* Row `row` of a matrix with `hidden` columns -> out[i * step]. */
static void load_row(const struct logits_job *j, const void *data, moert_dtype_t dtype, uint64_t row, double *out,
                     uint64_t step)
{
    moert_row_widen(data, dtype, row * j->hidden, j->hidden, j->wide);
    for (uint64_t i = 0; i < j->hidden; i++)
        out[i * step] = j->wide[i];
}

static void dot_panel(const double *restrict x, const double *restrict panel, uint64_t hidden, double *restrict ret)
{
    double acc[LANES] = {0};

    for (uint64_t k = 0; k < hidden; k++)
        for (int l = 0; l < LANES; l++)
            acc[l] += x[k] * panel[k * LANES + (uint64_t)l];
    for (int l = 0; l < LANES; l++)
        ret[l] = acc[l];
}

/* Experts [first, first + count) of tokens [t0, t0 + tokens), whose rows are loaded. Lanes beyond count hold what an
 * earlier panel left there; their sums are dropped. */
static void run_panel(const struct logits_job *j, uint32_t first, uint32_t count, uint64_t t0, uint64_t tokens)
{
    double sums[LANES];

    for (uint32_t l = 0; l < count; l++)
        load_row(j, j->weight, j->weight_dtype, first + l, j->panel + l, LANES);
    for (uint64_t t = 0; t < tokens; t++) {
        dot_panel(j->rows + t * j->hidden, j->panel, j->hidden, sums);
        for (uint32_t l = 0; l < count; l++) {
            double bias = j->bias ? moert_load(j->bias, j->weight_dtype, first + l) : 0;
            moert_store(j->out, j->out_dtype, (t0 + t) * j->experts + first + l, j->bias ? sums[l] + bias : sums[l]);
        }
    }
}

static void run_tiles(const struct logits_job *j, uint64_t tokens)
{
    for (uint64_t t0 = 0; t0 < tokens; t0 += TOKEN_TILE) {
        uint64_t n = tokens - t0 < TOKEN_TILE ? tokens - t0 : TOKEN_TILE;

        for (uint64_t t = 0; t < n; t++)
            load_row(j, j->x, j->x_dtype, t0 + t, j->rows + t * j->hidden, 1);
        for (uint64_t e = 0; e < j->experts; e += LANES)
            run_panel(j, (uint32_t)e, j->experts - e < LANES ? (uint32_t)(j->experts - e) : LANES, t0, n);
    }
}

static moert_status_t check_dtype(const char *what, moert_dtype_t dtype, struct moert_error *err)
{
    const char *name = moert_dtype_name(dtype);

    if (moert_row_dtype(dtype))
        return MOERT_OK;
    return moert_fail(err, MOERT_E_DTYPE, "tensor-dtype", "%s is %s, expected F32, BF16 or F16", what,
                      name ? name : "of an unknown dtype");
}

static moert_status_t check_extents(uint64_t tokens, uint64_t hidden, uint32_t experts, struct moert_error *err)
{
    uint64_t n;

    if (moert_mul(tokens, hidden, &n) && moert_mul(n, sizeof(double), &n) && moert_mul(tokens, experts, &n) &&
        moert_mul(n, sizeof(double), &n) && moert_mul(experts, hidden, &n) && moert_mul(n, sizeof(double), &n) &&
        moert_mul(hidden, sizeof(double) * (LANES + TOKEN_TILE + 1), &n) && n <= SIZE_MAX / 2)
        return MOERT_OK;
    return moert_fail(err, MOERT_E_TOO_LARGE, "too-large", "logits of %llu tokens, %llu columns, %u experts do not fit",
                      (unsigned long long)tokens, (unsigned long long)hidden, experts);
}

moert_status_t moert_router_logits(const void *x, moert_dtype_t x_dtype, const void *weight, moert_dtype_t weight_dtype,
                                   const void *bias, uint64_t tokens, uint64_t hidden_size, uint32_t num_experts,
                                   void *logits, moert_dtype_t logits_dtype, struct moert_error *err)
{
    struct logits_job j = {.x = x,
                           .weight = weight,
                           .bias = bias,
                           .x_dtype = x_dtype,
                           .weight_dtype = weight_dtype,
                           .out_dtype = logits_dtype,
                           .hidden = hidden_size,
                           .experts = num_experts,
                           .out = logits};
    moert_status_t status = check_dtype("x", x_dtype, err);

    if (!status)
        status = check_dtype("router_weight", weight_dtype, err);
    if (!status)
        status = check_dtype("logits", logits_dtype, err);
    if (!status)
        status = check_extents(tokens, hidden_size, num_experts, err);
    if (status || !tokens || !num_experts)
        return status;
    if (!logits || (hidden_size && (!x || !weight)))
        return moert_fail_null(err, !logits ? "logits" : !x ? "x" : "router_weight");
    j.panel = calloc((size_t)hidden_size * (LANES + TOKEN_TILE) + 1, sizeof(double));
    j.wide = malloc(((size_t)hidden_size + 1) * sizeof(float));
    if (j.panel && j.wide) {
        j.rows = j.panel + hidden_size * LANES;
        run_tiles(&j, tokens);
    } else {
        status = moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for router rows of %llu columns",
                            (unsigned long long)hidden_size);
    }
    free(j.wide);
    free(j.panel);
    return status;
}
