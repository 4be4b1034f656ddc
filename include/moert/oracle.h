/* SPDX-License-Identifier: Apache-2.0
 * moert/oracle.h: which backend runs a layer, and why (oracle.md). Thread-safe: several selections may share a context. */
#ifndef MOERT_ORACLE_H
#define MOERT_ORACLE_H

#include <moert/context.h>
#include <moert/layer_config.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A decision with its whole trail. Immutable, thread-safe. */
typedef struct moert_decision moert_decision_t;

struct moert_select_options {
    uint32_t size;
    uint32_t flags;       /* none defined: 0 */
    const char *backend;  /* forced: name or alias, optionally "@device"; NULL: the oracle's choice */
    const char *device;   /* only this device id; NULL: all */
    const char *policy_name; /* "default"; NULL: default */
    uint64_t tokens;      /* for phase and bucket; 0: max_tokens of the layer */
    const struct moert_device_desc *described; /* what-if devices, PRESENT flag clear */
    uint32_t described_count;
    uint32_t reserved32;
    uint64_t reserved[4];
};

/* Asks every backend on every device. Runs the self-test of the winner when it was not yet tested here. On
 * MOERT_E_NO_BACKEND *ret is set all the same when `ret` is not NULL, so that the record can be read. */
MOERT_API moert_status_t moert_select(moert_context_t *context, const struct moert_layer_config *layer,
                                      const struct moert_select_options *options, moert_decision_t **ret,
                                      struct moert_error *err);
MOERT_API void moert_decision_destroy(moert_decision_t *decision);

/* Winner of the first bucket; NULL after MOERT_E_NO_BACKEND. Strings live as long as the decision. */
MOERT_API const char *moert_decision_backend(const moert_decision_t *decision); /* "cpu.reference" */
MOERT_API const char *moert_decision_device(const moert_decision_t *decision);  /* "cpu" */
MOERT_API moert_class_t moert_decision_class(const moert_decision_t *decision);
MOERT_API int moert_decision_is_what_if(const moert_decision_t *decision); /* 1: the winner's device is not present */
/* Who decided, for people: "static: priority 30". */
MOERT_API const char *moert_decision_reason(const moert_decision_t *decision);
/* The explain record (oracle.md 10) as JSON text; lives as long as the decision. */
MOERT_API const char *moert_decision_json(const moert_decision_t *decision);

/* Reads a described device (oracle.md 6) from JSON text; `where` names the source. */
MOERT_API moert_status_t moert_device_desc_parse(const char *json, const char *where, struct moert_device_desc *ret,
                                                 struct moert_error *err);

#ifdef __cplusplus
}
#endif
#endif
