/* core/verify/verify.c: the entry: finds backend, device and reference, runs the groups of cases. */
#include "config.h"

#include "core/verify/session.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/oracle/decision.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void moert_session_report(struct moert_session *s, const char *op, const char *name, moert_verify_outcome_t outcome,
                          const struct moert_finding *f, const char *detail)
{
    struct moert_verify_result r = {.size = sizeof(r),
                                    .outcome = outcome,
                                    .backend = s->subject.table->name,
                                    .device = s->subject.desc.id,
                                    .op = op,
                                    .name = name,
                                    .step = f && f->step ? f->step : "",
                                    .detail = f && f->failed ? f->detail
                                              : detail       ? detail
                                                             : "",
                                    .seed = s->options.seed};

    if (f) {
        r.error = f->error;
        r.bound = f->bound;
        r.nrmse = f->nrmse;
    }
    if (outcome == MOERT_VERIFY_FAILED)
        s->failed++;
    if (s->sink)
        s->sink(s->sink_ctx, &r);
}

struct refusal {
    char *text;
    size_t size;
};

static int value_text(const struct moert_value *v, char *out, size_t size)
{
    switch (v->kind) {
    case MOERT_VALUE_INT: return snprintf(out, size, "%lld", (long long)v->integer);
    case MOERT_VALUE_BOOL: return snprintf(out, size, "%s", v->integer ? "true" : "false");
    case MOERT_VALUE_STRING: return snprintf(out, size, "%s", v->string ? v->string : "null");
    case MOERT_VALUE_LIST: {
        size_t used = 0;
        out[0] = 0;
        for (const char *const *w = v->list; w && *w && used + 1 < size; w++)
            used += (size_t)snprintf(out + used, size - used, "%s%s", w == v->list ? "" : ",", *w);
        return 0;
    }
    default: return snprintf(out, size, "null");
    }
}

static void collect_refusal(void *ctx, const struct moert_check *check)
{
    struct refusal *r = ctx;
    char have[128], need[256];

    if (check->verdict != MOERT_FAIL || r->text[0])
        return;
    value_text(&check->have, have, sizeof(have));
    value_text(&check->need, need, sizeof(need));
    snprintf(r->text, r->size, "%s have %s need %s", check->code, have, need);
}

void moert_subject_refusal(const struct moert_subject *s, const struct moert_layer_config *layer, char *ret,
                           size_t size)
{
    struct refusal r = {ret, size};
    struct moert_check_sink sink = {.size = sizeof(sink), .ctx = &r, .report = collect_refusal};

    ret[0] = 0;
    s->table->ops->supports(s->table, &s->desc, layer, &sink);
}

moert_status_t moert_subject_layer(const struct moert_subject *s, const struct moert_layer_config *layer,
                                   moert_layer_t **ret, struct moert_error *err)
{
    struct moert_decision decision = {.backend = s->backend,
                                      .device = s->device,
                                      .numeric_class = s->table->numeric_class,
                                      .backend_name = (char *)(uintptr_t)s->table->name,
                                      .device_id = (char *)(uintptr_t)s->desc.id,
                                      .reason = (char *)(uintptr_t) "verification"};

    return moert_layer_create(s->context, layer, &decision, ret, err);
}

/* Finds `backend` and its device (any when device is NULL) in a context. */
static moert_status_t find_subject(moert_context_t *context, const char *backend, const char *device,
                                   struct moert_subject *ret, struct moert_error *err)
{
    struct moert_subject s = {.context = context};
    moert_status_t status = moert_backend_find(context, backend, &s.backend, err);
    struct moert_ctx_backend *b;

    if (status)
        return status;
    b = context->backends[s.backend];
    s.table = b->table;
    if (b->driver->state != MOERT_DRIVER_READY)
        return moert_fail(err, MOERT_E_NO_BACKEND, "backend-refused", "%s cannot be verified: driver %s is %s: %s",
                          s.table->name, b->driver->name, moert_driver_state_name(b->driver->state), b->driver->reason);
    for (s.device = 0; s.device < context->device_count; s.device++)
        if (context->devices[s.device]->driver == b->driver &&
            (!device || !strcmp(context->devices[s.device]->desc.id, device)))
            break;
    if (s.device == context->device_count)
        return moert_fail(err, MOERT_E_NO_BACKEND, "backend-refused", "%s has no device %s", s.table->name,
                          device ? device : "at all");
    s.desc = context->devices[s.device]->desc;
    status = moert_queue_create(context, s.device, 0, &s.queue, err);
    if (!status)
        *ret = s;
    return status;
}

#define DEFAULT_SEED 20261201u

moert_status_t moert_verify_backend(moert_context_t *context, const char *backend, const char *device,
                                    const struct moert_verify_options *options, moert_verify_sink_fn sink,
                                    void *sink_ctx, uint32_t *ret_failed, struct moert_error *err)
{
    struct moert_session s = {.sink = sink, .sink_ctx = sink_ctx};
    moert_status_t status;

    if (!context || !backend)
        return moert_fail_null(err, context ? "backend" : "context");
    if (options) {
        if (moert_check_size(err, "moert_verify_options", options->size, sizeof(*options)))
            return MOERT_E_USAGE;
        s.options = *options;
    }
    if (!s.options.ops)
        s.options.ops = MOERT_VERIFY_ALL;
    if (!s.options.seed)
        s.options.seed = DEFAULT_SEED;
    status = find_subject(context, backend, device, &s.subject, err);
    if (status)
        return status;
    status =
        find_subject(s.options.reference ? s.options.reference : context, "cpu.reference", NULL, &s.reference, err);
    if (!status)
        status = moert_verify_steps(&s, err);
    if (!status && s.options.ops & MOERT_VERIFY_LAYER)
        status = moert_verify_layers(&s, err);
    if (!status && s.options.ops & MOERT_VERIFY_CONTRACT)
        status = moert_verify_contract(&s, err);
    if (!status && !s.failed && s.options.ops == MOERT_VERIFY_ALL && !s.options.quick) /* a quarantine ends here */
        moert_self_test_forget(context, s.subject.backend, s.subject.device);
    if (!status && ret_failed)
        *ret_failed = s.failed;
    moert_queue_destroy(s.subject.queue);
    moert_queue_destroy(s.reference.queue);
    return status;
}
