/* core/verify/compare.h: a run of a backend against the run of the reference. */
#ifndef MOERT_VERIFY_COMPARE_H
#define MOERT_VERIFY_COMPARE_H

#include "core/verify/bound.h"

/* What a comparison found; `step` and `detail` describe the first difference that is out of bounds. */
struct moert_finding {
    int failed;
    const char *step; /* "P1".."P6", "" */
    char detail[400];
    double error, bound, nrmse; /* worst element: |y - r| and its bound (bound 0: byte equality) */
};

/* ||a - b|| / ||b|| over n elements of dtype d; 0 when both are zero, NaNs at equal places are left out. */
double moert_nrmse(const void *a, const void *b, moert_dtype_t dtype, uint64_t n);

/* The steps that the backend showed, in order, each fed with the backend's own input of that step (mxfp8.md 9). */
void moert_compare_steps(const struct moert_case_data *data, const struct moert_trace *reference,
                         const struct moert_trace *backend, const struct moert_accuracy *accuracy,
                         struct moert_finding *ret);

/* The outputs under a numeric class. `ideal` (F32, no activation quantisation) is used by higher-precision only. */
moert_status_t moert_compare_output(const struct moert_case_data *data, const struct moert_trace *reference,
                                    const struct moert_trace *backend, const struct moert_trace *ideal,
                                    moert_class_t numeric_class, const struct moert_accuracy *accuracy,
                                    struct moert_finding *ret, struct moert_error *err);

#endif
