/* SPDX-License-Identifier: Apache-2.0
 * moert/verify.h: a backend against the reference: codecs byte for byte, layers within the bound of its class
 * (layer.md 3, mxfp8.md 9). The conformance suite, `moert verify` and the self-test helper call this. Thread-safe on
 * different contexts; sinks are called in the caller's thread. */
#ifndef MOERT_VERIFY_H
#define MOERT_VERIFY_H

#include <moert/layer.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MOERT_VERIFY_CODEC = 1u << 0,
    MOERT_VERIFY_ALIGN = 1u << 1,
    MOERT_VERIFY_TOPK = 1u << 2,
    MOERT_VERIFY_ACTIVATION = 1u << 3,
    MOERT_VERIFY_COMBINE = 1u << 4,
    MOERT_VERIFY_LAYER = 1u << 5,   /* layers: schemes, shapes, edge cases */
    MOERT_VERIFY_CONTRACT = 1u << 6, /* const inputs, determinism, poison, export/import, update, capture */
    MOERT_VERIFY_ALL = (1u << 7) - 1
};

typedef uint32_t moert_verify_outcome_t;
enum { MOERT_VERIFY_PASSED = 0, MOERT_VERIFY_FAILED = 1, MOERT_VERIFY_SKIPPED = 2 };

/* One case's result. Strings live during the call of the sink. */
struct moert_verify_result {
    uint32_t size;
    moert_verify_outcome_t outcome;
    const char *backend, *device;
    const char *op;    /* "codec", "layer", ... */
    const char *name;  /* case, unique within the backend */
    const char *step;  /* first of P0..P6 out of bounds, "" when none or not visible */
    const char *detail; /* where, got, expected; or why it was skipped */
    double error, bound; /* worst error in units of its bound's formula, and that bound; bound 0: byte equality */
    double nrmse;
    uint64_t seed;
};
typedef void (*moert_verify_sink_fn)(void *ctx, const struct moert_verify_result *result);

struct moert_verify_options {
    uint32_t size;
    uint32_t ops;  /* MOERT_VERIFY_* */
    uint64_t seed; /* 0: the fixed default */
    uint32_t quick; /* 1: the short list that the self-test uses */
    uint32_t reserved32;
    moert_context_t *reference; /* context whose cpu.reference is the definition; NULL: the same context */
};

/* Runs the cases of one backend on one device; the reference context must hold cpu.reference (else MOERT_E_NO_BACKEND).
 * *ret_failed counts failures. The status is that of the machinery, not of the cases. When every case of
 * MOERT_VERIFY_ALL passes and it is not the quick list, a quarantine of the module's file ends. */
MOERT_API moert_status_t moert_verify_backend(moert_context_t *context, const char *backend, const char *device,
                                              const struct moert_verify_options *options, moert_verify_sink_fn sink,
                                              void *sink_ctx, uint32_t *ret_failed, struct moert_error *err);

/* The same comparison for given weights and input: runs `layer` and `reference` (already loaded with equal weights, the
 * second on cpu.reference) on args and reports the first step out of bounds. args->output is not written. */
MOERT_API moert_status_t moert_verify_layer(moert_layer_t *layer, moert_queue_t *queue, moert_layer_t *reference,
                                            moert_queue_t *reference_queue, const struct moert_layer_args *args,
                                            moert_verify_sink_fn sink, void *sink_ctx, uint32_t *ret_failed,
                                            struct moert_error *err);

#ifdef __cplusplus
}
#endif
#endif
