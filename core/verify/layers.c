/* core/verify/layers.c: whole layers: every case of the table on the subject and on the reference. */
#include "config.h"

#include "core/verify/session.h"
#include "core/base/error.h"

#include <moert/float8.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One loaded layer and its run. `stale`: run once on NaN input first, so that scratch memory holds NaN. */
static moert_status_t run_on(const struct moert_subject *s, const struct moert_case_data *d, uint32_t what, int stale,
                             struct moert_trace *ret, struct moert_error *err)
{
    moert_layer_t *layer = NULL;
    moert_status_t status = moert_subject_layer(s, &d->config, &layer, err);
    uint64_t bytes = (uint64_t)d->c->tokens * d->c->hidden * moert_dtype_size(d->c->dtype);
    struct moert_case_data nan = *d;
    struct moert_trace t;

    if (!status)
        status = moert_case_load(d, layer, err);
    if (!status && stale && !d->x_codes) {
        nan.x = malloc(bytes);
        if (!nan.x)
            status = moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for %s", d->c->name);
        else
            memset(nan.x, 0xFF, bytes);
        if (!status)
            status = moert_trace_run(layer, s->queue, &nan, 0, &t, err);
        if (!status)
            moert_trace_free(&t);
        free(nan.x);
    }
    if (!status)
        status = moert_trace_run(layer, s->queue, d, what, ret, err);
    moert_layer_destroy(layer);
    return status;
}

/* The case without activation quantisation and without rounding between the steps: what higher-precision is held to. */
static moert_status_t run_ideal(const struct moert_session *s, const struct moert_case_data *d, struct moert_trace *ret,
                                struct moert_error *err)
{
    struct moert_case c = *d->c;
    struct moert_case_data wide = *d;
    uint64_t n = (uint64_t)c.tokens * c.hidden;
    float *x = malloc((n ? n : 1) * sizeof(*x));
    moert_status_t status;

    if (!x)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for %s", c.name);
    for (uint64_t i = 0; i < n; i++)
        x[i] = (float)moert_load(d->x, c.dtype, i);
    c.dtype = MOERT_F32;
    c.activation_scheme = MOERT_SCHEME_NONE;
    wide.c = &c;
    wide.x = x;
    wide.x_codes = NULL;
    wide.config.dtype = MOERT_F32;
    wide.config.activation_scheme = MOERT_SCHEME_NONE;
    status = run_on(&s->reference, &wide, 0, 0, ret, err);
    free(x);
    return status;
}

static moert_status_t compare(struct moert_session *s, const struct moert_case_data *d, struct moert_finding *f,
                              struct moert_error *err)
{
    const struct moert_backend *table = s->subject.table;
    struct moert_accuracy accuracy = {table->accumulator_unit > 0 ? table->accumulator_unit : 0x1p-24,
                                      table->activation_eps > 0 ? table->activation_eps : 0x1p-20};
    struct moert_trace r = {0}, b = {0}, ideal = {0};
    struct moert_finding steps = {.step = ""};
    moert_status_t status = run_on(&s->reference, d, TRACE_STEPS | TRACE_SUMS, 0, &r, err);

    if (!status)
        status = run_on(&s->subject, d, 0, 1, &b, err);
    if (!status && table->numeric_class == MOERT_CLASS_HIGHER_PRECISION)
        status = run_ideal(s, d, &ideal, err);
    if (!status)
        status = moert_compare_output(d, &r, &b, ideal.block ? &ideal : NULL, table->numeric_class, &accuracy, f, err);
    moert_trace_free(&b);
    /* the steps, where the backend shows them: the sharpest test, and the name of the first wrong step */
    if (!status && table->flags & MOERT_BACKEND_F_DUMPS && table->numeric_class <= MOERT_CLASS_SAME_ARITHMETIC) {
        status = run_on(&s->subject, d, TRACE_STEPS, 0, &b, err);
        if (!status)
            moert_compare_steps(d, &r, &b, &accuracy, &steps);
        if (!status && steps.failed) {
            steps.nrmse = f->nrmse;
            *f = steps;
        }
        moert_trace_free(&b);
    }
    moert_trace_free(&r);
    moert_trace_free(&ideal);
    return status;
}

static moert_status_t one_case(struct moert_session *s, const struct moert_case *c, struct moert_error *err)
{
    struct moert_case_data d = {0};
    struct moert_finding f = {.step = ""};
    struct moert_error own = MOERT_ERROR_INIT;
    char refusal[480];
    moert_status_t status = moert_case_make(c, s->options.seed ^ (uint64_t)(c - moert_cases), &d, err);

    if (status)
        return status;
    moert_subject_refusal(&s->subject, &d.config, refusal, sizeof(refusal));
    if (!refusal[0] && c->flags & CASE_UNREDUCED && !(s->subject.table->flags & MOERT_BACKEND_F_HOOK))
        snprintf(refusal, sizeof(refusal), "hook have no need yes");
    if (refusal[0]) {
        moert_session_report(s, "layer", c->name, MOERT_VERIFY_SKIPPED, NULL, refusal);
    } else {
        status = compare(s, &d, &f, &own);
        if (status) {
            f.failed = 1;
            snprintf(f.detail, sizeof(f.detail), "%s: %.300s", moert_status_name(status), own.text);
        }
        moert_session_report(s, "layer", c->name, f.failed ? MOERT_VERIFY_FAILED : MOERT_VERIFY_PASSED, &f, NULL);
    }
    moert_case_free(&d);
    return MOERT_OK;
}

moert_status_t moert_verify_layers(struct moert_session *s, struct moert_error *err)
{
    moert_status_t status = MOERT_OK;

    for (uint32_t i = 0; !status && i < moert_case_count; i++)
        if (!s->options.quick || moert_cases[i].quick)
            status = one_case(s, &moert_cases[i], err);
    return status;
}
