/* SPDX-License-Identifier: Apache-2.0
 * moert/routing.h: from router logits to a token's output row: top-k, block alignment, expert maps, permute, combine
 * (routing.md). Host functions; deterministic, bit for bit, on every machine. Pure, thread-safe.
 *
 * Words: T tokens, E experts of the id space, K ids per token; slot s = t*K + j. An id outside [0,E) means "no expert".
 * A slot is local when its id is valid and there is no map or map[id] >= 0. */
#ifndef MOERT_ROUTING_H
#define MOERT_ROUTING_H

#include <moert/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- router ---- */

/* logits = x @ weight^T (+ bias) in binary64, ascending k, one rounding to logits_dtype.
 * x [T,H] F32/BF16/F16, weight [E,H], bias [E] or NULL (dtype of weight), logits [T,E]. */
MOERT_API moert_status_t moert_router_logits(const void *x, moert_dtype_t x_dtype, const void *weight,
                                             moert_dtype_t weight_dtype, const void *bias, uint64_t tokens,
                                             uint64_t hidden_size, uint32_t num_experts, void *logits,
                                             moert_dtype_t logits_dtype, struct moert_error *err);

struct moert_route_args {
    uint32_t size;
    uint32_t num_experts;   /* E */
    uint32_t top_k;         /* K */
    uint32_t num_fused_shared; /* n: ids E..E+n-1 appended; ids and weights have K+n columns */
    uint64_t tokens;        /* T */
    const void *logits;     /* [T, logits_stride] */
    moert_dtype_t logits_dtype; /* F32, BF16 or F16 */
    uint32_t shared_columns; /* 1: the last n logit columns give the fused slots' weights by sigmoid */
    uint64_t logits_stride; /* elements, 0 = E (+ n with shared_columns) */
    const float *correction_bias; /* [E] or NULL; finite */
    const uint8_t *is_padding;    /* [T] or NULL: rows flagged get ids -1 and weights 0 */
    int32_t *ids;                 /* out [T, K+n] */
    float *weights;               /* out [T, K+n] */
    uint64_t rows_nonfinite;      /* out: added to, once per row that held NaN or +Inf */
};

/* Checks a router description against E and K. Errors: size, topk-range, groups. bias: 1 when a correction bias is used. */
MOERT_API moert_status_t moert_router_check(const struct moert_router_config *router, uint32_t num_experts,
                                            uint32_t top_k, int bias, struct moert_error *err);
MOERT_API moert_status_t moert_route(const struct moert_router_config *router, struct moert_route_args *args,
                                     struct moert_error *err);

/* Hash routing (DeepSeek-V4): ids = table[token_id], table [V,K] I32; weights from the unbiased scores of those ids. */
MOERT_API moert_status_t moert_route_hash(const struct moert_router_config *router, struct moert_route_args *args,
                                          const int32_t *table, uint64_t vocabulary, const int32_t *token_ids,
                                          struct moert_error *err);

/* ---- block alignment ---- */

struct moert_align_sizes {
    uint64_t sorted;     /* entries of sorted_token_ids: cap */
    uint64_t expert_ids; /* ceil(cap / block) */
};

/* Sizes for N = T*K slots. too-large: cap beyond 2147483647. */
MOERT_API moert_status_t moert_align_sizes(uint64_t slots, const struct moert_align_params *params,
                                           struct moert_align_sizes *ret, struct moert_error *err);

/* ids [T,K] I32; map [E] I32 or NULL -> sorted [sizes.sorted], expert_ids [sizes.expert_ids], *total.
 * scatter [N] (or NULL): s when slot s was placed, else -1; with a map it needs mode I (error `mode`).
 * Slots of a bucket in ascending order; entries past the end: N, expert -1. O(N + E + cap). */
MOERT_API moert_status_t moert_align(const int32_t *ids, uint64_t tokens, uint32_t top_k, const int32_t *map,
                                     const struct moert_align_params *params, int32_t *sorted, int32_t *expert_ids,
                                     int32_t *total, int32_t *scatter, struct moert_error *err);

/* Batched form: storage [E, max_tokens]; counts [E] -> sorted [E*round_up(max_tokens,B)], expert_ids [that / B], *total.
 * A count vector is a type of its own so that it cannot be passed as a total. */
struct moert_expert_counts {
    const int32_t *counts;
    uint32_t num_experts;
};
MOERT_API moert_status_t moert_align_batched(struct moert_expert_counts counts, uint32_t max_tokens, uint32_t block_size,
                                             int32_t *sorted, int32_t *expert_ids, int32_t *total,
                                             struct moert_error *err);

/* ---- expert maps ---- */

typedef uint32_t moert_placement_t;
enum { MOERT_PLACE_LINEAR = 0, MOERT_PLACE_ROUND_ROBIN = 1 };

/* Map of `rank`: map [E] local number or -1; *ret_local = experts of the rank. ep_size 1 gives the identity. */
MOERT_API moert_status_t moert_expert_place(uint32_t ep_size, uint32_t rank, uint32_t num_experts,
                                            moert_placement_t placement, int32_t *map, uint32_t *ret_local,
                                            struct moert_error *err);
/* Round-robin exchange tables: global_to_physical [E], physical_to_global [E], local_to_global [local]; each may be NULL. */
MOERT_API moert_status_t moert_expert_tables(uint32_t ep_size, uint32_t rank, uint32_t num_experts,
                                             int32_t *global_to_physical, int32_t *physical_to_global,
                                             int32_t *local_to_global, struct moert_error *err);
/* Error `map` unless every entry is -1 or a local id below num_local, each at most once. A 0/1 mask is told by its length. */
MOERT_API moert_status_t moert_expert_map_check(const int32_t *map, uint64_t length, uint32_t num_experts,
                                                uint32_t num_local, struct moert_error *err);
/* AITER's 0/1 mask, a type of its own: length E + n_shared + 1, last entry 0. The map beside it has E + n_shared entries:
 * fused shared experts are local on every rank (map local_routed + i, mask 1). */
struct moert_expert_mask {
    int32_t *mask;
    uint64_t length;
};
MOERT_API moert_status_t moert_expert_map_to_mask(const int32_t *map, uint32_t num_experts, uint32_t num_shared,
                                                  struct moert_expert_mask ret, struct moert_error *err);
MOERT_API moert_status_t moert_expert_mask_to_map(struct moert_expert_mask mask, uint32_t num_experts,
                                                  uint32_t num_shared, int32_t *map, struct moert_error *err);
/* EPLB: ids [T,K] logical -> physical through table [E_logical, max_replicas] and replicas [E_logical]; in place is legal. */
MOERT_API moert_status_t moert_expert_replicas(const int32_t *ids, uint64_t tokens, uint32_t top_k,
                                               const int32_t *table, const int32_t *replicas, uint32_t num_logical,
                                               uint32_t max_replicas, int32_t *physical, struct moert_error *err);

/* ---- permute and combine ---- */

/* Local slots sorted by (local expert, slot): first [L+1] prefix sums, perm [N] slot or N, inv [N] position or -1. */
MOERT_API moert_status_t moert_permute_indices(const int32_t *ids, uint64_t tokens, uint32_t top_k, uint32_t num_experts,
                                               const int32_t *map, uint32_t num_local, int64_t *first, int32_t *perm,
                                               int32_t *inv, struct moert_error *err);
/* rows[p] = x[perm[p] / K] for the used positions; `row_bytes` bytes per row; others are not written. */
MOERT_API void moert_permute_rows(const void *x, uint64_t row_bytes, uint32_t top_k, const int32_t *perm, uint64_t used,
                                  void *rows);
/* out[t] = round(sum_j rows[inv[t][j]] * weights[t][j]), f32, slot order, inv -1 skipped. */
MOERT_API moert_status_t moert_unpermute(const void *rows, moert_dtype_t dtype, const int32_t *inv, const float *weights,
                                         uint64_t tokens, uint32_t top_k, uint64_t hidden_size, void *out,
                                         struct moert_error *err);

/* Inputs of a combine. Rows of slots that are not local are never read. */
struct moert_combine_args {
    uint32_t size;
    moert_dtype_t dtype; /* of rows and out: F32, BF16 or F16 */
    const void *rows;    /* [T,K,H], strides in elements; 0,0 = dense */
    uint64_t stride_token, stride_slot;
    const int32_t *ids; /* [T,K], or NULL: all K rows were written */
    uint32_t num_experts;
    uint32_t top_k;
    const int32_t *map;   /* [E] or NULL */
    const float *weights; /* [T,K]: weighted_sum; NULL: moe_sum */
    uint64_t tokens, hidden_size;
    const float *shared; /* [T,H] added after scaling, or NULL */
    double output_scale; /* factor of the routed sum in f32; 0 or 1 = none */
    void *out;           /* [T,H] dense */
};
/* acc = +0; ascending slots: acc += row (times weight: product rounded to f32 first); scale, shared; one rounding. */
MOERT_API moert_status_t moert_combine(const struct moert_combine_args *args, struct moert_error *err);

#ifdef __cplusplus
}
#endif
#endif
