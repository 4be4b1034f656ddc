/* core/verify/trace.h: the steps P1..P6 of one run, as arrays on the host. */
#ifndef MOERT_VERIFY_TRACE_H
#define MOERT_VERIFY_TRACE_H

#include "core/verify/case.h"

/* Rows are slots; rows of slots that are not local keep the fill pattern. NULL where the run cannot show the step. */
struct moert_trace {
    uint8_t *a1_codes, *a1_scales; /* [T,H], [T,H/32]; NULL without activation quantisation */
    void *c1, *c2, *c3;            /* [R,N1], [R,I], [R,H] d */
    uint8_t *a2_codes, *a2_scales; /* [R,I], [R,I/32] */
    double *y1, *s1, *y2, *s2;     /* reference only */
    void *output;                  /* [T,H] d, or [R,H] unreduced */
    int32_t *index;                /* [R], unreduced only */
    uint64_t output_elements;
    void *block; /* one allocation behind all of them */
};

/* What a run of `data` on a layer is asked to show. */
enum { TRACE_STEPS = 1u << 0, TRACE_SUMS = 1u << 1 };

/* Allocates, poisons with NaN bytes, runs, waits. The output is followed by guard bytes that must survive (`guard`). */
moert_status_t moert_trace_run(moert_layer_t *layer, moert_queue_t *queue, const struct moert_case_data *data,
                               uint32_t what, struct moert_trace *ret, struct moert_error *err);
void moert_trace_free(struct moert_trace *trace);

#endif
