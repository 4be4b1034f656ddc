/* core/verify/session.h: one backend on one device under verification, with the reference beside it. */
#ifndef MOERT_VERIFY_SESSION_H
#define MOERT_VERIFY_SESSION_H

#include "core/loader/context.h"
#include "core/verify/compare.h"

/* A backend on a device of a context, with a queue. */
struct moert_subject {
    moert_context_t *context;
    uint32_t backend, device;
    const struct moert_backend *table;
    struct moert_device_desc desc;
    moert_queue_t *queue;
};

struct moert_session {
    struct moert_subject subject, reference;
    struct moert_verify_options options;
    moert_verify_sink_fn sink;
    void *sink_ctx;
    uint32_t failed;
};

/* Reports one case; finding NULL: passed or skipped with `detail`. */
void moert_session_report(struct moert_session *s, const char *op, const char *name, moert_verify_outcome_t outcome,
                          const struct moert_finding *finding, const char *detail);

/* First failing check of the subject for a layer as text, or "" when it is supported. */
void moert_subject_refusal(const struct moert_subject *s, const struct moert_layer_config *layer, char *ret,
                           size_t size);

/* A layer on the subject, without weights; no rules, no ranking, no self-test in between. */
moert_status_t moert_subject_layer(const struct moert_subject *s, const struct moert_layer_config *layer,
                                   moert_layer_t **ret, struct moert_error *err);

/* The groups of cases; each reports its results into the session and returns machinery failures only. */
moert_status_t moert_verify_steps(struct moert_session *s, struct moert_error *err);
moert_status_t moert_verify_layers(struct moert_session *s, struct moert_error *err);
moert_status_t moert_verify_contract(struct moert_session *s, struct moert_error *err);

#endif
