/* SPDX-License-Identifier: Apache-2.0
 * moert/layer.h: a layer on a device: weights once, then run per batch (layer.md 4-8).
 *
 * Letters: T tokens, H hidden_size, I intermediate_size, N1 = 2*I (gated) or I, E experts, E_l local experts, K
 * experts per token, n fused shared experts, d the description's dtype. Error codes are those of layer.md 7; texts
 * begin "layer <name>#<index>: ". Tensors stay the caller's.
 * Threads: a layer may run on several queues at once, each queue in one thread at a time. Loading, updating, importing
 * and destroying are for one thread at a time; but for updating, no run may be pending. */
#ifndef MOERT_LAYER_H
#define MOERT_LAYER_H

#include <moert/oracle.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moert_layer moert_layer_t;

/* A layer for the decision's backend and device, without weights; device memory for them is reserved here. `layer` is
 * copied; the decision may be destroyed, the context must outlive the layer. Errors: those of moert_layer_config_check;
 * state (a decision without winner, for a described device, or of another context), backend-refused, device-memory. */
MOERT_API moert_status_t moert_layer_create(moert_context_t *context, const struct moert_layer_config *layer,
                                            const moert_decision_t *decision, moert_layer_t **ret,
                                            struct moert_error *err);
/* No work of the layer may be pending (moert_queue_wait). NULL is legal. */
MOERT_API void moert_layer_destroy(moert_layer_t *layer);
/* What the layer is: its complete description and its backend's name (both live as long as the layer), the index of its
 * device (moert_device_get), the backend's MOERT_BACKEND_F_*. NULL or 0 for NULL. */
MOERT_API const struct moert_layer_config *moert_layer_get_config(const moert_layer_t *layer);
MOERT_API const char *moert_layer_backend(const moert_layer_t *layer);
MOERT_API uint32_t moert_layer_device(const moert_layer_t *layer);
MOERT_API uint32_t moert_layer_backend_flags(const moert_layer_t *layer);

/* Canonical weights of local experts [first, first+count) (layer.md 9.1), host or device memory. Scheme mxfp8: scales U8
 * or F8_E8M0; lut-b: w13, w2 packed U8 and *_scale the codebooks; biases F32, BF16 or F16 when has_bias. Copied into the
 * backend's layout before the call returns. Every expert must be set once before the first run (error `state`).
 * Shapes, for count experts: w13 [count,N1,H], w2 [count,H,I]; mxfp8 scales [count,N1,H/32], [count,H,I/32]; lut-b packed
 * [count,N1/8,H/64,192], [count,H/8,I/64,192] and codebooks [..,8]; biases [count,N1], [count,H]. Host tensors may be
 * strided, device tensors are dense. Errors: tensor-missing, tensor-extra, tensor-shape, tensor-dtype, device-mismatch,
 * state (an expert that has weights already). */
struct moert_layer_weights {
    uint32_t size;
    uint32_t first;
    uint32_t count;
    uint32_t reserved32;
    struct moert_tensor w13, w13_scale, w13_bias;
    struct moert_tensor w2, w2_scale, w2_bias;
};
MOERT_API moert_status_t moert_layer_set_weights(moert_layer_t *layer, const struct moert_layer_weights *weights,
                                                 struct moert_error *err);
/* Replaces experts of a loaded layer: runs enqueued on `queue` before it use the old ones, later ones the new; runs on
 * other queues are to be kept away meanwhile (moert_queue_wait_queue). Tensors on the device must live until the work is
 * done, and the host does not wait; with host tensors the call waits for the queue before it returns. Errors as for
 * moert_layer_set_weights; `state` before every expert is set. */
MOERT_API moert_status_t moert_layer_update_weights(moert_layer_t *layer, moert_queue_t *queue,
                                                    const struct moert_layer_weights *weights, struct moert_error *err);

/* Dense parts around the experts, all host memory, copied: router gate [E,H] (+bias [E]), correction bias F32 [E],
 * shared expert (w13 [N1s,H], w2 [H,Is] in the shared scheme with scales, gate [1,H]). Absent tensors are left as they are. */
struct moert_layer_dense {
    uint32_t size;
    uint32_t reserved32;
    struct moert_tensor router_weight, router_bias, correction_bias;
    struct moert_tensor shared_w13, shared_w13_scale, shared_w2, shared_w2_scale, shared_gate;
};
MOERT_API moert_status_t moert_layer_set_dense(moert_layer_t *layer, const struct moert_layer_dense *dense,
                                               struct moert_error *err);

/* Layout of the prepared weights (tag, version, bytes), and bytes [offset, offset+bytes) of them to and from host memory.
 * Import goes into a fresh layer, in ascending pieces, all of them before the first run. Errors: layout (another tag,
 * version or size; a range past the end), state, MOERT_E_UNSUPPORTED where the backend has no such op. */
MOERT_API moert_status_t moert_layer_layout(const moert_layer_t *layer, struct moert_layout *ret,
                                            struct moert_error *err);
MOERT_API moert_status_t moert_layer_export(moert_layer_t *layer, uint64_t offset, uint64_t bytes, void *host,
                                            struct moert_error *err);
MOERT_API moert_status_t moert_layer_import(moert_layer_t *layer, const struct moert_layout *layout, uint64_t offset,
                                            uint64_t bytes, const void *host, struct moert_error *err);

/* Unreduced rows as the post-GEMM2 hook gets them (layer.md 5). Device tensors of the layer's device. */
struct moert_unreduced {
    uint32_t size;
    uint32_t route_major; /* 1: row s belongs to token s / K */
    struct moert_tensor rows;    /* [T*K, H] d, not weighted; rows with index -1 were never written */
    struct moert_tensor weights; /* F32 [T,K] */
    struct moert_tensor index;   /* I32 [T,K]: s, or -1 when the slot is not local */
    struct moert_tensor shared;  /* d [T,H] or absent */
    uint64_t row_count;          /* T*K */
    uint64_t token_offset;       /* first token of this chunk */
    uint64_t tokens;             /* tokens of this chunk */
    uint32_t top_k;              /* K, fused shared slots included */
    moert_dtype_t dtype;         /* d */
    uint64_t hidden_size;
    double scaling_factor;       /* still to be applied; 1 when the router did */
    moert_queue_t *queue;
    uint64_t native_stream;
};
/* Writes every row of `out` [tokens of the chunk, H] by work enqueued on u->queue; does not block. 0, or a status. */
typedef moert_status_t (*moert_post_gemm2_fn)(void *ctx, const struct moert_unreduced *u, const struct moert_tensor *out,
                                              struct moert_error *err);

/* One call. Host tensors are staged by the core (the call then waits for the queue before it returns); device tensors
 * must be on the layer's device and are used as they are. Inputs are never written; output may not overlap an input. */
struct moert_layer_args {
    uint32_t size;
    uint32_t flags;          /* 0, or MOERT_RUN_F_UNREDUCED: output is [T*K,H] rows and `index` */
    struct moert_tensor x;       /* [T,H] F32, BF16 or F16 = d; or MXFP8 codes with x_scale U8 [T,H/32] */
    struct moert_tensor x_scale;
    struct moert_tensor ids;     /* I32 or I64 [T, K+n] with weights; or absent with logits, or with a router weight set */
    struct moert_tensor weights; /* F32 [T, K+n] */
    struct moert_tensor logits;  /* [T, E] F32, BF16 or F16 */
    struct moert_tensor expert_map;  /* I32 [E]; absent: the description's */
    struct moert_tensor token_count; /* I32 [1]: real tokens, the rest are padding and their rows are +0 */
    struct moert_tensor output;      /* [T,H] d */
    struct moert_tensor index;       /* UNREDUCED: I32 [T*K] */
    struct moert_tensor out_ids;     /* I32 [T,K+n], optional: the routing used */
    struct moert_tensor out_weights; /* F32 [T,K+n], optional */
    moert_post_gemm2_fn hook;        /* replaces weighting and combine */
    void *hook_ctx;
    const struct moert_layer_dumps *dumps; /* intermediate steps for verification, or NULL */
    uint64_t reserved[4];
};
/* As struct moert_run_dumps, caller's tensors; only with a backend that has MOERT_BACKEND_F_DUMPS and one chunk. */
struct moert_layer_dumps {
    uint32_t size;
    uint32_t reserved32;
    struct moert_tensor a1_codes, a1_scales, c1, c2, a2_codes, a2_scales, c3, y1, s1, y2, s2;
};
/* Runs the layer on `queue`. T = 0 is ok and touches nothing. An error found before the first launch leaves the outputs as
 * they were; after `device-call` their content is undefined and the layer stays usable. Errors: x-shape, ids-shape,
 * weights-shape, out-shape and the -dtype ones, overlap, hook-weight, map, count, device-mismatch, state (no weights; a
 * capture that would have to wait or allocate), workspace, too-large, backend-refused. */
MOERT_API moert_status_t moert_layer_run(moert_layer_t *layer, moert_queue_t *queue,
                                         const struct moert_layer_args *args, struct moert_error *err);

/* After it, runs of up to max_tokens on this queue allocate nothing and, with device tensors, wait for nothing: they may
 * be captured where the backend has MOERT_BACKEND_F_CAPTURE. Rows that a hook reads, copies of strided or misaligned
 * tensors and dumps come at the first such call. Calls that the host must route (a layer's own router, a backend without
 * MOERT_BACKEND_F_ROUTES), with int64 ids, or with MXFP8 input that the backend does not take, wait in any case. */
MOERT_API moert_status_t moert_layer_warm_up(moert_layer_t *layer, moert_queue_t *queue, uint64_t max_tokens,
                                             struct moert_error *err);
/* Tokens per chunk for a call of `tokens` under the workspace limit, and the workspace bytes of one chunk (layer.md 6). */
MOERT_API moert_status_t moert_layer_chunk(const moert_layer_t *layer, uint64_t tokens, uint64_t *ret_chunk,
                                           uint64_t *ret_workspace, struct moert_error *err);
MOERT_API moert_status_t moert_layer_counters(moert_layer_t *layer, struct moert_counters *ret, struct moert_error *err);
/* Counters of the core itself, since the layer was made: runs, chunks handed to the backend, bytes copied between caller
 * and staging, allocations of pool memory, rows whose logits held NaN or +Inf. */
struct moert_layer_stats {
    uint32_t size;
    uint32_t reserved32;
    uint64_t calls, chunks, staged_bytes, allocations, rows_nonfinite;
};
MOERT_API moert_status_t moert_layer_stats(const moert_layer_t *layer, struct moert_layer_stats *ret,
                                           struct moert_error *err);

/* Reference workspace of layer.md 6 in bytes (cache1, cache2, a1, a2, align), for a description and T tokens. */
MOERT_API moert_status_t moert_layer_reference_workspace(const struct moert_layer_config *layer, uint64_t tokens,
                                                         uint32_t block_size, uint64_t *ret, struct moert_error *err);

#ifdef __cplusplus
}
#endif
#endif
