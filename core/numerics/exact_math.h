/* core/numerics/exact_math.h: elementary functions of binary64 with the same bits on every host (routing.md 2.1).
 * Built only from IEEE + - * / and exponent moves, without libm and without fused contraction (the build passes
 * -ffp-contract=off). Round-to-nearest and gradual underflow are assumed. NaN results are 0x7FF8000000000000.
 *
 * Errors against the exact value, in units of the last place: exp, log, log1p < 0.6; erf < 1.3; tanh, erfc < 2.5.
 * Subnormal results of exp and erfc stay within 1 unit. All functions are pure and thread-safe. */
#ifndef MOERT_NUMERICS_EXACT_MATH_H
#define MOERT_NUMERICS_EXACT_MATH_H

double moert_exp(double x);
double moert_ln(double x);    /* natural logarithm (moert_log is the log); x < 0: NaN; 0: -Inf */
double moert_log1p(double x); /* x < -1: NaN; -1: -Inf */
double moert_tanh(double x);
double moert_erf(double x);
double moert_erfc(double x); /* 1 - erf(x) without cancellation */

/* 1 / (1 + exp(-x)) without overflow: error < 2.5 units of the last place. */
double moert_logistic(double x);

#endif
