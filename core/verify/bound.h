/* core/verify/bound.h: how far a backend of class same-arithmetic may be from the reference (layer.md 3, mxfp8.md 9).
 */
#ifndef MOERT_VERIFY_BOUND_H
#define MOERT_VERIFY_BOUND_H

#include "core/verify/trace.h"

#include <moert/activation.h>

/* What a backend declares of its arithmetic. */
struct moert_accuracy {
    double unit;           /* u of G(n) = n*u / (1 - n*u) */
    double activation_eps; /* relative error of the activation before its rounding */
};

/* Unit roundoff and half the smallest subnormal of d. */
double moert_unit_roundoff(moert_dtype_t dtype);
double moert_half_subnormal(moert_dtype_t dtype);
/* |accumulator - exact| <= c * S for a sum of n products. */
double moert_sum_bound(double unit, uint64_t n);

/* Bound B of every output element: bound[output_elements]. `reference` has steps and sums. */
moert_status_t moert_bound_layer(const struct moert_case_data *data, const struct moert_trace *reference,
                                 const struct moert_accuracy *accuracy, double *bound, struct moert_error *err);

/* f of h = f(gate) * up' (layer.md 2), the up factor, and the bound of f's slope near gate (within +-dg). */
void moert_gate_factors(const struct moert_activation_params *p, double gate, double up, double dg, double *ret_f,
                        double *ret_up, double *ret_slope);

#endif
