/* core/verify/compare.c: a run of a backend against the run of the reference, step by step and as a whole. */
#include "config.h"

#include "core/verify/compare.h"
#include "core/base/error.h"

#include <moert/float8.h>
#include <moert/mxfp8.h>
#include <moert/routing.h>

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void found(struct moert_finding *f, const char *step, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Keeps the first difference. */
static void found(struct moert_finding *f, const char *step, const char *format, ...)
{
    va_list args;

    if (f->failed)
        return;
    f->failed = 1;
    f->step = step;
    va_start(args, format);
    vsnprintf(f->detail, sizeof(f->detail), format, args);
    va_end(args);
}

double moert_nrmse(const void *a, const void *b, moert_dtype_t dtype, uint64_t n)
{
    double diff = 0, norm = 0;

    for (uint64_t i = 0; i < n; i++) {
        double x = moert_load(a, dtype, i), y = moert_load(b, dtype, i);
        if (isnan(x) && isnan(y))
            continue;
        if (isinf(y) && x == y)
            continue;
        diff += (x - y) * (x - y);
        norm += y * y;
    }
    return diff == 0 ? 0 : norm == 0 ? INFINITY : sqrt(diff / norm);
}

/* One value against a centre and a tolerance; NaN must meet NaN. */
static void check_value(struct moert_finding *f, const char *step, uint64_t row, uint64_t col, double have, double want,
                        double tolerance)
{
    double e = fabs(have - want);

    if (isnan(have) && isnan(want))
        return;
    if (have == want)
        return;
    if (!(e <= tolerance))
        found(f, step, "row %llu column %llu: got %.9g, expected %.9g +- %.3g", (unsigned long long)row,
              (unsigned long long)col, have, want, tolerance);
    if (isfinite(e) && tolerance > 0 && e * (f->bound > 0 ? f->bound : 1) > f->error * tolerance) {
        f->error = e;
        f->bound = tolerance;
    }
}

static void check_bytes(struct moert_finding *f, const char *step, const char *what, uint64_t row, const uint8_t *have,
                        const uint8_t *want, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (have[i] != want[i] && !((have[i] & want[i] & 0x7F) == 0x7F)) {
            found(f, step, "%s of row %llu, byte %llu: got %02X, expected %02X", what, (unsigned long long)row,
                  (unsigned long long)i, have[i], want[i]);
            return;
        }
}

static void check_p1(const struct moert_case_data *d, const struct moert_trace *r, const struct moert_trace *b,
                     struct moert_finding *f)
{
    uint64_t h = d->c->hidden;

    for (uint64_t t = 0; b->a1_codes && r->a1_codes && t < d->c->tokens; t++) {
        check_bytes(f, "P1", "scales", t, b->a1_scales + t * h / 32, r->a1_scales + t * h / 32, h / 32);
        check_bytes(f, "P1", "codes", t, b->a1_codes + t * h, r->a1_codes + t * h, h);
    }
}

static void check_p2(const struct moert_case_data *d, const struct moert_trace *r, const struct moert_trace *b,
                     const struct moert_accuracy *a, uint64_t slot, struct moert_finding *f)
{
    uint64_t n1 = moert_layer_config_n1(&d->config);
    double u = moert_unit_roundoff(d->c->dtype), eta = moert_half_subnormal(d->c->dtype);
    double c = moert_sum_bound(a->unit, d->c->hidden + 1);

    for (uint64_t i = 0; i < n1; i++) {
        double y = r->y1[slot * n1 + i], e = c * r->s1[slot * n1 + i];
        check_value(f, "P2", slot, i, moert_load(b->c1, d->c->dtype, slot * n1 + i), y, e + u * (fabs(y) + e) + eta);
    }
}

static void check_p3(const struct moert_case_data *d, const struct moert_activation_params *p,
                     const struct moert_trace *b, const struct moert_accuracy *a, uint64_t slot, double *h,
                     struct moert_finding *f)
{
    uint64_t n = d->c->intermediate, n1 = moert_layer_config_n1(&d->config), z = moert_dtype_size(d->c->dtype);
    double u = moert_unit_roundoff(d->c->dtype), eta = moert_half_subnormal(d->c->dtype);
    double *c1 = h + n;

    for (uint64_t i = 0; i < n1; i++)
        c1[i] = moert_load((const uint8_t *)b->c1 + slot * n1 * z, d->c->dtype, i);
    for (uint64_t j = 0; j < n; j++) {
        uint64_t g = j, up = moert_activation_is_gated(p->kind) ? n + j : j;
        if (d->config.w13_order == MOERT_W13_INTERLEAVED) {
            g = 2 * j;
            up = 2 * j + 1;
        } else if (d->config.w13_order == MOERT_W13_UP_GATE) {
            g = n + j;
            up = j;
        }
        h[j] = moert_activation_eval(p, c1[g], c1[up]);
        check_value(f, "P3", slot, j, moert_load(b->c2, d->c->dtype, slot * n + j), h[j],
                    u * fabs(h[j]) + eta + a->activation_eps * fabs(h[j]) * (1 + u));
    }
}

static void check_p4(const struct moert_case_data *d, const struct moert_trace *b, uint64_t slot, uint8_t *codes,
                     struct moert_finding *f)
{
    uint64_t n = d->c->intermediate, z = moert_dtype_size(d->c->dtype);

    if (!b->a2_codes)
        return;
    if (moert_mxfp8_quantize((const uint8_t *)b->c2 + slot * n * z, d->c->dtype, 1, n, 0, NULL, codes, codes + n, NULL,
                             NULL))
        return;
    check_bytes(f, "P4", "scales", slot, b->a2_scales + slot * n / 32, codes + n, n / 32);
    check_bytes(f, "P4", "codes", slot, b->a2_codes + slot * n, codes, n);
}

/* Value of intermediate j of a slot as GEMM2 sees it. */
static double gemm2_input(const struct moert_case_data *d, const struct moert_trace *b, uint64_t slot, uint64_t j)
{
    uint64_t i = slot * d->c->intermediate + j;

    if (!b->a2_codes)
        return moert_load(b->c2, d->c->dtype, i);
    if (b->a2_scales[i / 32] == 255)
        return NAN;
    return ldexp((double)moert_e4m3_decode(b->a2_codes[i]), b->a2_scales[i / 32] - 127);
}

static void check_p5(const struct moert_case_data *d, const struct moert_trace *b, const struct moert_accuracy *a,
                     uint64_t slot, uint32_t expert, double *x, struct moert_finding *f)
{
    uint64_t n = d->c->intermediate, hid = d->c->hidden;
    double u = moert_unit_roundoff(d->c->dtype), eta = moert_half_subnormal(d->c->dtype);
    double c = moert_sum_bound(a->unit, n + 1);
    double weight = d->c->flags & CASE_INPUT_WEIGHT ? 1.0 : (double)d->weights[slot];

    for (uint64_t j = 0; j < n; j++)
        x[j] = gemm2_input(d, b, slot, j);
    for (uint64_t k = 0; k < hid; k++) {
        const double *w = d->w2_values + (expert * hid + k) * n;
        double y = d->w2_bias ? (double)((float *)d->w2_bias)[expert * hid + k] : 0.0, s = fabs(y), e;
        for (uint64_t j = 0; j < n; j++) {
            y += x[j] * w[j];
            s += fabs(x[j] * w[j]);
        }
        y *= weight;
        e = (c + (double)n * 0x1p-52) * s * fabs(weight) + 0x1p-24 * fabs(y);
        check_value(f, "P5", slot, k, moert_load(b->c3, d->c->dtype, slot * hid + k), y, e + u * (fabs(y) + e) + eta);
    }
}

static void check_p6(const struct moert_case_data *d, const struct moert_trace *b, void *sum, struct moert_finding *f)
{
    const struct moert_case *c = d->c;
    uint64_t row = c->hidden * moert_dtype_size(c->dtype);
    struct moert_combine_args args = {.size = sizeof(args),
                                      .dtype = c->dtype,
                                      .rows = b->c3,
                                      .ids = d->ids,
                                      .num_experts = c->experts,
                                      .top_k = c->top_k,
                                      .map = d->map,
                                      .tokens = c->tokens,
                                      .hidden_size = c->hidden,
                                      .out = sum};

    if (c->flags & CASE_UNREDUCED || moert_combine(&args, NULL))
        return;
    for (uint64_t t = 0; t < c->tokens; t++)
        for (uint64_t k = 0; k < c->hidden; k++) {
            double have = moert_load((uint8_t *)b->output + t * row, c->dtype, k);
            double want = moert_load((uint8_t *)sum + t * row, c->dtype, k);
            if (memcmp((uint8_t *)b->output + t * row + k * row / c->hidden,
                       (uint8_t *)sum + t * row + k * row / c->hidden, row / c->hidden) &&
                !(isnan(have) && isnan(want)))
                found(f, "P6", "token %llu column %llu: got %.9g, expected exactly %.9g", (unsigned long long)t,
                      (unsigned long long)k, have, want);
        }
}

void moert_compare_steps(const struct moert_case_data *d, const struct moert_trace *r, const struct moert_trace *b,
                         const struct moert_accuracy *a, struct moert_finding *f)
{
    const struct moert_case *c = d->c;
    uint64_t n = c->intermediate, slots = (uint64_t)c->tokens * c->top_k, n1 = moert_layer_config_n1(&d->config);
    struct moert_activation_params p;
    double *scratch = calloc(2 * n + n1 + 1, sizeof(*scratch));
    uint8_t *codes = calloc(n + n / 32 + 1, 1);
    void *sum = calloc((uint64_t)c->tokens * c->hidden + 1, moert_dtype_size(c->dtype));
    uint32_t expert;

    *f = (struct moert_finding){.step = ""};
    if (!scratch || !codes || !sum || moert_activation_resolve(&d->config, &p, NULL)) {
        found(f, "", "no memory for the comparison");
        goto out;
    }
    check_p1(d, r, b, f);
    for (uint64_t s = 0; s < slots && !f->failed; s++)
        if (moert_case_local(d, s, &expert))
            check_p2(d, r, b, a, s, f);
    for (uint64_t s = 0; s < slots && !f->failed; s++)
        if (moert_case_local(d, s, &expert))
            check_p3(d, &p, b, a, s, scratch, f);
    for (uint64_t s = 0; s < slots && !f->failed; s++)
        if (moert_case_local(d, s, &expert))
            check_p4(d, b, s, codes, f);
    for (uint64_t s = 0; s < slots && !f->failed; s++)
        if (moert_case_local(d, s, &expert))
            check_p5(d, b, a, s, expert, scratch, f);
    if (!f->failed)
        check_p6(d, b, sum, f);
out:
    free(scratch);
    free(codes);
    free(sum);
}

/* Byte equality of the outputs (rows of slots that are not local are not looked at). */
static void compare_exact(const struct moert_case_data *d, const struct moert_trace *r, const struct moert_trace *b,
                          struct moert_finding *f)
{
    uint64_t hid = d->c->hidden, z = moert_dtype_size(d->c->dtype), rows = r->output_elements / hid;
    uint32_t expert;

    for (uint64_t i = 0; i < rows; i++) {
        const uint8_t *x = (const uint8_t *)b->output + i * hid * z, *y = (const uint8_t *)r->output + i * hid * z;
        if ((d->c->flags & CASE_UNREDUCED) && !moert_case_local(d, i, &expert))
            continue;
        for (uint64_t k = 0; k < hid; k++)
            if (memcmp(x + k * z, y + k * z, z)) {
                double have = moert_load(x, d->c->dtype, k), want = moert_load(y, d->c->dtype, k);
                if (isnan(have) && isnan(want))
                    continue;
                found(f, "", "output row %llu column %llu: got %.9g, expected exactly %.9g", (unsigned long long)i,
                      (unsigned long long)k, have, want);
                f->error = fabs(have - want);
            }
    }
}

static moert_status_t compare_bound(const struct moert_case_data *d, const struct moert_trace *r,
                                    const struct moert_trace *b, const struct moert_accuracy *a,
                                    struct moert_finding *f, struct moert_error *err)
{
    double *bound = calloc(r->output_elements + 1, sizeof(*bound));
    uint64_t hid = d->c->hidden;
    moert_status_t status;
    uint32_t expert;

    if (!bound)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for the comparison of %s", d->c->name);
    status = moert_bound_layer(d, r, a, bound, err);
    for (uint64_t i = 0; !status && i < r->output_elements; i++) {
        if ((d->c->flags & CASE_UNREDUCED) && !moert_case_local(d, i / hid, &expert))
            continue;
        check_value(f, "", i / hid, i % hid, moert_load(b->output, d->c->dtype, i),
                    moert_load(r->output, d->c->dtype, i), bound[i]);
    }
    free(bound);
    return status;
}

/* nrmse over the rows that count. */
static double output_nrmse(const struct moert_case_data *d, const struct moert_trace *y, moert_dtype_t y_dtype,
                           const struct moert_trace *r, moert_dtype_t r_dtype)
{
    uint64_t hid = d->c->hidden;
    double diff = 0, norm = 0;
    uint32_t expert;

    for (uint64_t i = 0; i < y->output_elements; i++) {
        double a, b;
        if ((d->c->flags & CASE_UNREDUCED) && !moert_case_local(d, i / hid, &expert))
            continue;
        a = moert_load(y->output, y_dtype, i);
        b = moert_load(r->output, r_dtype, i);
        if ((isnan(a) && isnan(b)) || a == b) {
            norm += isfinite(b) ? b * b : 0;
            continue;
        }
        diff += (a - b) * (a - b);
        norm += b * b;
    }
    return diff == 0 ? 0 : norm == 0 ? INFINITY : sqrt(diff / norm);
}

static void gate(struct moert_finding *f, double nrmse, double limit, const char *rule)
{
    if (!(nrmse <= limit))
        found(f, "", "nrmse %.3g is above %.3g (%s)", nrmse, limit, rule);
}

/* The nrmse gate is defined for tests of at least this many elements (layer.md 3). */
#define GATE_ELEMENTS 4096

moert_status_t moert_compare_output(const struct moert_case_data *d, const struct moert_trace *r,
                                    const struct moert_trace *b, const struct moert_trace *ideal,
                                    moert_class_t numeric_class, const struct moert_accuracy *a,
                                    struct moert_finding *f, struct moert_error *err)
{
    moert_dtype_t dtype = d->c->dtype;
    moert_status_t status = MOERT_OK;

    *f = (struct moert_finding){.step = ""};
    f->nrmse = output_nrmse(d, b, dtype, r, dtype);
    switch (numeric_class) {
    case MOERT_CLASS_EXACT: compare_exact(d, r, b, f); break;
    case MOERT_CLASS_SAME_ARITHMETIC:
        status = compare_bound(d, r, b, a, f, err);
        if (r->output_elements >= GATE_ELEMENTS)
            gate(f, f->nrmse, 1e-3, "class same-arithmetic");
        break;
    case MOERT_CLASS_LOWER_PRECISION: gate(f, f->nrmse, 5e-2, "class lower-precision"); break;
    default:
        if (ideal)
            gate(f, output_nrmse(d, b, dtype, ideal, MOERT_F32),
                 1.02 * output_nrmse(d, r, dtype, ideal, MOERT_F32) + 1e-12, "class higher-precision");
        break;
    }
    if (d->c->flags & CASE_UNREDUCED)
        for (uint64_t s = 0; s < (uint64_t)d->c->tokens * d->c->top_k; s++) {
            uint32_t expert;
            int32_t want = moert_case_local(d, s, &expert) ? (int32_t)s : -1;
            if (b->index[s] != want)
                found(f, "", "index of slot %llu is %d, expected %d", (unsigned long long)s, b->index[s], want);
        }
    return status;
}
