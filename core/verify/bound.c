/* core/verify/bound.c: bound B: the error of each step carried through to the output, rigorous and wide. It catches
 * wrong indices, layouts and missing terms; the nrmse gate and the stage tests catch numerics. */
#include "config.h"

#include "core/verify/bound.h"
#include "core/base/error.h"

#include <moert/float8.h>
#include <moert/mxfp8.h>

#include <math.h>
#include <stdlib.h>

double moert_unit_roundoff(moert_dtype_t dtype)
{
    return dtype == MOERT_BF16 ? 0x1p-8 : dtype == MOERT_F16 ? 0x1p-11 : 0x1p-24;
}

double moert_half_subnormal(moert_dtype_t dtype)
{
    return dtype == MOERT_BF16 ? 0x1p-134 : dtype == MOERT_F16 ? 0x1p-25 : 0x1p-150;
}

double moert_sum_bound(double unit, uint64_t n)
{
    double nu = (double)n * unit;
    return nu < 0.5 ? nu / (1 - nu) : 1.0;
}

void moert_gate_factors(const struct moert_activation_params *p, double gate, double up, double dg, double *ret_f,
                        double *ret_up, double *ret_slope)
{
    double slope = 1.1;

    switch (p->kind) {
    case MOERT_ACT_GELU:
    case MOERT_ACT_GELU_TANH:
    case MOERT_ACT_GELU_NO_MUL:
    case MOERT_ACT_GELU_TANH_NO_MUL: slope = 1.13; break;
    case MOERT_ACT_SITU: slope = 1 + p->situ_beta / 4; break;
    case MOERT_ACT_RELU2:
    case MOERT_ACT_RELU2_NO_MUL: slope = 2 * (fabs(gate) + dg); break;
    case MOERT_ACT_SWIGLUOAI_UNINTERLEAVE: slope = 1.1 * fmax(1.0, fabs(p->alpha)); break;
    default: break;
    }
    *ret_slope = slope;
    /* the up factor is linear up to its clamp; f = h / up' without dividing: evaluate with an up that makes it 1 */
    if (p->limit > 0 && moert_activation_is_gated(p->kind))
        up = fmin(fmax(up, -p->limit), p->limit);
    switch (p->kind) {
    case MOERT_ACT_SWIGLUOAI:
        *ret_f = moert_activation_eval(p, gate, 0.0);
        *ret_up = up + 1;
        break;
    case MOERT_ACT_SWIGLUOAI_UNINTERLEAVE:
        *ret_up = up + p->beta;
        *ret_f = p->limit > 0 && fabs(1 - p->beta) > p->limit ? NAN : moert_activation_eval(p, gate, 1 - p->beta);
        break;
    case MOERT_ACT_SITU:
        *ret_up = p->situ_linear_beta > 0 ? p->situ_linear_beta * tanh(up / p->situ_linear_beta) : up;
        *ret_f = p->situ_linear_beta > 0
                     ? moert_activation_eval(p, gate, 1.0) / (p->situ_linear_beta * tanh(1 / p->situ_linear_beta))
                     : moert_activation_eval(p, gate, 1.0);
        break;
    default:
        *ret_up = moert_activation_is_gated(p->kind) ? up : 1.0;
        *ret_f = moert_activation_eval(p, gate, p->limit > 0 && p->limit < 1 ? p->limit : 1.0);
        if (p->limit > 0 && p->limit < 1)
            *ret_f /= p->limit;
        break;
    }
}

/* Positions of gate and up of intermediate column j in a row of c1. */
static void gate_up(const struct moert_case_data *d, uint64_t j, uint64_t *ret_gate, uint64_t *ret_up)
{
    uint64_t n = d->c->intermediate;

    if (!moert_activation_is_gated(d->c->activation)) {
        *ret_gate = *ret_up = j;
        return;
    }
    switch (d->config.w13_order) {
    case MOERT_W13_INTERLEAVED:
        *ret_gate = 2 * j;
        *ret_up = 2 * j + 1;
        break;
    case MOERT_W13_UP_GATE:
        *ret_gate = n + j;
        *ret_up = j;
        break;
    default:
        *ret_gate = j;
        *ret_up = n + j;
        break;
    }
}

/* Steps P2 and P3: value h and deviation dh of every intermediate of one slot. */
static void activation_bound(const struct moert_case_data *d, const struct moert_activation_params *p, const double *y1,
                             const double *s1, const struct moert_accuracy *a, double *h, double *dh)
{
    double u = moert_unit_roundoff(d->c->dtype), eta = moert_half_subnormal(d->c->dtype);
    double c = moert_sum_bound(a->unit, d->c->hidden + 1);
    int gated = moert_activation_is_gated(p->kind);

    for (uint64_t j = 0; j < d->c->intermediate; j++) {
        uint64_t ig, iu;
        double dg, du, f, up, slope, e;
        gate_up(d, j, &ig, &iu);
        e = c * s1[ig];
        dg = e + u * (fabs(y1[ig]) + e) + eta;
        e = c * s1[iu];
        du = gated ? e + u * (fabs(y1[iu]) + e) + eta : 0.0;
        moert_gate_factors(p, y1[ig], y1[iu], dg, &f, &up, &slope);
        h[j] = f * up;
        dh[j] = slope * dg * (fabs(up) + du) + fabs(f) * du;
        dh[j] += (fabs(h[j]) + dh[j]) * ((1 + a->activation_eps) * (1 + u) - 1) + eta;
    }
}

/* Step P4 on one block of n values: largest change of the decoded value when each h moves by dh. */
static void quantise_bound(const double *h, const double *dh, const uint8_t *codes, uint8_t scale, uint64_t n,
                           double *change)
{
    double low = 0, high = 0, r;
    unsigned b0, b1;

    for (uint64_t j = 0; j < n; j++) {
        low = fmax(low, fmax(0.0, fabs(h[j]) - dh[j]));
        high = fmax(high, fabs(h[j]) + dh[j]);
    }
    /* one float step aside on both ends: the block maximum itself was rounded to float */
    b0 = moert_mxfp8_scale_byte(nextafterf((float)low, 0.0f), MOERT_RCEIL);
    b1 = moert_mxfp8_scale_byte(nextafterf((float)fmin(high, 3e38), INFINITY), MOERT_RCEIL);
    for (uint64_t j = 0; j < n; j++) {
        change[j] = 0;
        r = (double)moert_e4m3_decode(codes[j]) * ldexp(1.0, (int)scale - 127);
        for (unsigned b = b0; b <= b1; b++)
            for (int side = -1; side <= 1; side += 2) {
                float v = (float)(h[j] + side * dh[j]);
                double q = (double)moert_e4m3_decode(moert_e4m3_encode(v, (uint8_t)b)) * ldexp(1.0, (int)b - 127);
                double step = fabs(q) * 0x1p-23; /* v was rounded to float before the encoding */
                change[j] = fmax(change[j], fabs(q - r) + step);
            }
    }
}

struct slot_scratch {
    double *h, *dh, *change;
};

/* Bound of one row of c3 (already weighted), added into the token's sums tol[H] and magnitude mag[H]. */
static void slot_bound(const struct moert_case_data *d, const struct moert_trace *r,
                       const struct moert_activation_params *p, const struct moert_accuracy *a, uint64_t slot,
                       uint32_t expert, const struct slot_scratch *w, double *tol, double *mag)
{
    const struct moert_case *c = d->c;
    uint64_t hid = c->hidden, n = c->intermediate, n1 = moert_layer_config_n1(&d->config);
    double u = moert_unit_roundoff(c->dtype), eta = moert_half_subnormal(c->dtype);
    double c2 = moert_sum_bound(a->unit, n + 1), weight = 1.0;
    const double *w2 = d->w2_values + expert * hid * n;

    if (!(c->flags & CASE_INPUT_WEIGHT))
        weight = fabs((double)d->weights[slot]);
    activation_bound(d, p, r->y1 + slot * n1, r->s1 + slot * n1, a, w->h, w->dh);
    for (uint64_t j = 0; j < n; j++)
        w->change[j] = w->dh[j] * (1 + u) + u * fabs(w->h[j]); /* P3 alone: both sides rounded h to d */
    if (r->a2_codes)
        for (uint64_t j = 0; j < n; j += 32)
            quantise_bound(w->h + j, w->dh + j, r->a2_codes + slot * n + j, r->a2_scales[(slot * n + j) / 32], 32,
                           w->change + j);
    for (uint64_t k = 0; k < hid; k++) {
        double sum = 0, y = fabs(r->y2[slot * hid + k]), s = r->s2[slot * hid + k], t;
        for (uint64_t j = 0; j < n; j++)
            sum += fabs(w2[k * n + j]) * w->change[j];
        t = sum + c2 * (s + sum);
        t = (t + 2 * u * (y + t)) * weight + 0x1p-23 * y * weight + 2 * eta;
        tol[k] += t;
        mag[k] += y * weight + t;
    }
}

moert_status_t moert_bound_layer(const struct moert_case_data *d, const struct moert_trace *r,
                                 const struct moert_accuracy *a, double *bound, struct moert_error *err)
{
    const struct moert_case *c = d->c;
    struct moert_activation_params p;
    uint64_t n = c->intermediate, hid = c->hidden;
    double *block = calloc(3 * n + 2 * hid, sizeof(*block)), *tol, *mag, u = moert_unit_roundoff(c->dtype);
    struct slot_scratch w;
    moert_status_t status = moert_activation_resolve(&d->config, &p, err);

    if (!block)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for the bound of %s", c->name);
    w = (struct slot_scratch){block, block + n, block + 2 * n};
    tol = block + 3 * n;
    mag = tol + hid;
    for (uint64_t t = 0; !status && t < c->tokens; t++) {
        for (uint64_t k = 0; k < hid; k++)
            tol[k] = mag[k] = 0;
        for (uint32_t j = 0; j < c->top_k; j++) {
            uint64_t slot = t * c->top_k + j;
            uint32_t expert;
            if (c->flags & CASE_UNREDUCED)
                for (uint64_t k = 0; k < hid; k++)
                    tol[k] = mag[k] = 0;
            if (moert_case_local(d, slot, &expert))
                slot_bound(d, r, &p, a, slot, expert, &w, tol, mag);
            if (c->flags & CASE_UNREDUCED)
                for (uint64_t k = 0; k < hid; k++)
                    bound[slot * hid + k] = tol[k];
        }
        for (uint64_t k = 0; k < hid && !(c->flags & CASE_UNREDUCED); k++)
            bound[t * hid + k] = tol[k] + moert_sum_bound(0x1p-24, c->top_k) * mag[k] + 2 * u * mag[k] +
                                 2 * moert_half_subnormal(c->dtype);
    }
    free(block);
    return status;
}
