/* core/layer/layer.h: a layer on a device, and one call of it.
 *
 * Walk: layer.c makes it, weights.c and dense.c fill it; run.c takes a call through check.c (arguments), route.c (ids
 * and weights), chunk.c (the cut), shared.c and hook.c (around the backend) and staging.c (memory). */
#ifndef MOERT_LAYER_LAYER_H
#define MOERT_LAYER_LAYER_H

#include "core/layer/describe.h"
#include "core/layer/staging.h"

#include <moert/layer.h>

struct moert_layer {
    struct moert_context *context;
    struct moert_layer_config config; /* complete, owned */
    struct moert_ctx_device *device;
    uint32_t device_index;
    const struct moert_backend *backend;
    moert_drv_layer *handle;

    uint8_t *set; /* [E_l]: 1 when the expert has weights */
    uint32_t set_count;
    uint64_t imported; /* bytes taken by import so far, ascending */

    int32_t *map; /* [E+n], or NULL */
    moert_drv_buffer *map_buffer;

    void *router_weight, *router_bias; /* [router_columns, H], [router_columns], host */
    moert_dtype_t router_dtype;        /* of both arrays */
    moert_dtype_t logits_dtype;
    uint32_t router_columns; /* E, or E+n */
    float *correction_bias;  /* [E] or NULL */
    moert_drv_buffer *bias_buffer;

    struct moert_layer *shared; /* separate shared expert: a layer of one expert */
    void *shared_gate;          /* [H] or NULL */
    moert_dtype_t shared_gate_dtype;

    pthread_mutex_t lock; /* of what follows */
    struct moert_pool *pools;
    struct moert_layer_stats stats;
};

/* One call of moert_layer_run. */
struct moert_call {
    struct moert_layer *layer;
    moert_queue_t *queue;
    const struct moert_layer_args *args;
    struct moert_layer_dumps dumps;
    uint64_t tokens; /* T */
    uint64_t real;   /* tokens that are not padding, as far as the host knows */
    uint32_t slots;  /* K + n */
    uint32_t logits_columns;
    int backend_routes; /* logits go to the backend */
    int device_count;   /* token_count goes to the backend */
    const void *host_x; /* dense x on the host, once asked for */
    moert_dtype_t host_x_dtype;
    uint64_t chunk, workspace_bytes, rows_nonfinite;
    struct moert_stage stage;
};

/* Rows of axis 0 that one token has in the item of a slot. */
uint64_t moert_call_rows(const struct moert_call *call, enum moert_slot slot);

/* check.c: arguments, before anything is touched. Fills tokens, slots, logits_columns, dumps. */
moert_status_t moert_call_check(struct moert_call *call, struct moert_error *err);
/* Queue and layer fit together and the layer is ready to run. */
moert_status_t moert_layer_check_queue(const struct moert_layer *layer, const moert_queue_t *queue,
                                       struct moert_error *err);

/* route.c: items IDS and WEIGHTS, or LOGITS for a backend that routes. */
moert_status_t moert_call_route(struct moert_call *call, struct moert_error *err);
/* 1: the backend makes ids and weights of the caller's logits. */
int moert_call_backend_routes(const struct moert_call *call);
/* Dense x [real,H] on the host: d, or F32 when x came as MXFP8. */
moert_status_t moert_call_host_x(struct moert_call *call, struct moert_error *err);

/* shared.c: the shared expert as a layer, and its output for tokens [first, first+count) of a call.
 * reserve: memory; prepare: also the gate's weights. */
moert_status_t moert_shared_create(struct moert_layer *layer, struct moert_error *err);
moert_status_t moert_shared_reserve(struct moert_call *call, struct moert_error *err);
moert_status_t moert_shared_prepare(struct moert_call *call, struct moert_error *err);
moert_status_t moert_shared_run(struct moert_call *call, uint64_t first, uint64_t count,
                                const struct moert_run_args *run, struct moert_drv_tensor *ret,
                                struct moert_error *err);

/* hook.c: the caller's hook after the backend left its rows. */
moert_status_t moert_hook_rows(struct moert_call *call, uint64_t count, struct moert_run_args *run,
                               struct moert_error *err);
moert_status_t moert_hook_call(struct moert_call *call, uint64_t first, uint64_t count,
                               const struct moert_run_args *run, const struct moert_drv_tensor *out,
                               struct moert_error *err);

/* A driver's dense tensor as a caller's one; `buffer` is filled and must live as long as *ret. */
struct moert_tensor moert_layer_wrap(const struct moert_layer *layer, const struct moert_drv_tensor *tensor,
                                     struct moert_buffer *buffer);

/* layer.c: one layer for a backend on a device. `config` is complete. */
moert_status_t moert_layer_make(struct moert_context *context, const struct moert_layer_config *config,
                                const struct moert_backend *backend, uint32_t device, struct moert_layer **ret,
                                struct moert_error *err);
/* The pool of a queue, made at first use. */
moert_status_t moert_layer_pool(struct moert_layer *layer, const moert_queue_t *queue, struct moert_pool **ret,
                                struct moert_error *err);
/* What a token of a call needs beside the backend's workspace, in bytes. */
struct moert_token_need {
    uint64_t memory; /* under the workspace limit */
    uint64_t widest; /* its rows in that tensor where they are widest: a chunk's rows of a tensor share one buffer */
};
/* Chunk and its workspace. most: the most tokens that any call of up to `tokens` has in one chunk. */
moert_status_t moert_layer_cut(const struct moert_layer *layer, uint64_t tokens, const struct moert_token_need *need,
                               uint64_t *ret_chunk, uint64_t *ret_workspace, struct moert_error *err);
moert_status_t moert_layer_most(const struct moert_layer *layer, uint64_t tokens, const struct moert_token_need *need,
                                uint64_t *ret_tokens, uint64_t *ret_workspace, struct moert_error *err);
/* Need of every call: a row of hidden states, ids and weights. */
struct moert_token_need moert_layer_need(const struct moert_layer *layer);
/* A device buffer that holds `bytes` of host memory; waits for the copy. */
moert_status_t moert_layer_upload(struct moert_layer *layer, const void *host, uint64_t bytes, moert_drv_buffer **ret,
                                  struct moert_error *err);
/* backend-refused for one missing ability. */
moert_status_t moert_layer_refuse(const struct moert_layer *layer, struct moert_error *err, const char *ability);

#endif
