/* SPDX-License-Identifier: Apache-2.0
 * drivers/cpu/ref/ref.h: the backend cpu.reference: the definition of every result (layer.md 3, mxfp8.md 8).
 *
 * Flow of one run (layer.c): sort slots by expert -> quantise.c (P0, P1) -> gemm.c (P2) -> activation.c (P3) and
 * quantise.c (P4) -> gemm.c (P5) -> combine.c (P6). Weights stay in their canonical form (weights.c); decode.c yields
 * one row at a time. Nothing is blocked or vectorised by hand: the text is to be read beside the specification. */
#ifndef MOERT_DRIVERS_CPU_REF_H
#define MOERT_DRIVERS_CPU_REF_H

#include "drivers/cpu/internal.h"
#include "drivers/cpu/tensor.h"

#include <moert/activation.h>

#define MREF_BLOCK     32  /* elements per MXFP8 scale */
#define MREF_NAN_SCALE 255 /* E8M0 NaN: the whole block is NaN */

/* ---- description (shape.c) ---- */

/* The tensors of one expert, in the order in which they are stored. */
enum mref_part { MREF_W13, MREF_W13_SCALE, MREF_W13_BIAS, MREF_W2, MREF_W2_SCALE, MREF_W2_BIAS, MREF_PARTS };

/* A layer's sizes, all checked, every default resolved. */
struct mref_shape {
    uint64_t hidden, inner, rows13; /* H, I, N1 */
    uint32_t ids;                   /* E + n: a valid id is below it */
    uint32_t local;                 /* E_l */
    uint32_t slots;                 /* K + n per token */
    moert_dtype_t dtype;            /* d */
    moert_scheme_t weights, activations;
    uint32_t has_bias, input_weight;
    moert_w13_order_t order;
    struct moert_activation_params act;
    struct {
        uint64_t offset, bytes; /* inside one expert's storage */
    } part[MREF_PARTS];
    uint64_t expert_bytes;  /* storage of one expert, padding included */
    uint64_t payload_bytes; /* without padding */
};

/* Errors: scheme, size, multiple, activation, activation-param, too-large. */
moert_status_t mref_shape(const struct moert_layer_config *layer, struct mref_shape *ret, struct moert_error *err);

/* Weights and activations are both E4M3 codes: dot products are exact integers per block. */
static inline int mref_coded_weights(const struct mref_shape *shape)
{
    return shape->weights == MOERT_SCHEME_MXFP8 || shape->weights == MOERT_SCHEME_LUT_B;
}

static inline int mref_integer(const struct mref_shape *shape)
{
    return shape->activations == MOERT_SCHEME_MXFP8 && mref_coded_weights(shape);
}

/* Where everything lies in the workspace of a run over T tokens: byte offsets. Scratch of thread i is at
 * scratch + i * scratch_bytes; `base` bytes are needed without any scratch. */
struct mref_plan {
    uint64_t expert, order, first, active; /* int32 [R], uint32 [R], uint32 [E_l+1], uint32 [E_l] */
    uint64_t a1_codes, a1_scales;          /* [T,H], [T,H/32] */
    uint64_t c;                            /* c1 [R,N1] d, later c3 [R,H] d */
    uint64_t c2;                           /* [R,I] d */
    uint64_t a2_codes, a2_scales;          /* [R,I], [R,I/32] */
    uint64_t wide;                         /* double: a1 [T,H], later a2 [R,I]; only when not mref_integer */
    uint64_t scratch, scratch_bytes, base;
};

moert_status_t mref_plan(const struct mref_shape *shape, uint64_t tokens, struct mref_plan *ret,
                         struct moert_error *err);

/* Threads that a workspace has scratch for on a machine of that many processors. */
uint32_t mref_scratch_threads(uint32_t compute_units);

/* ---- the prepared layer (weights.c) ---- */

/* State of one expert's storage. */
enum { MREF_EMPTY = 0, MREF_LOADING = 1, MREF_READY = 2 };

struct mref_layer {
    moert_drv_device *device;
    struct mref_shape shape;
    uint8_t *weights;        /* [E_l] experts of shape.expert_bytes */
    _Atomic uint32_t *state; /* [E_l] */
    uint64_t *imported;      /* [E_l] bytes that import has filled so far */
    _Atomic uint32_t ready;  /* experts in MREF_READY */
    _Atomic uint64_t runs, tokens, weight_bytes, poisoned_blocks;
    uint64_t total_bytes;
};

static inline const uint8_t *mref_expert(const struct mref_layer *layer, uint32_t expert)
{
    return layer->weights + expert * layer->shape.expert_bytes;
}

const char *mref_layout_tag(moert_scheme_t scheme);
#define MREF_LAYOUT_VERSION 1

moert_status_t mref_create(moert_drv_device *device, const struct moert_backend *backend,
                           const struct moert_layer_config *config, moert_drv_layer **ret, struct moert_error *err);
moert_status_t mref_prepare(moert_drv_layer *layer, const struct moert_expert_weights *weights,
                            struct moert_error *err);
moert_status_t mref_update(moert_drv_layer *layer, moert_drv_queue *queue, const struct moert_expert_weights *weights,
                           struct moert_error *err);
moert_status_t mref_export(moert_drv_layer *layer, uint64_t offset, uint64_t bytes, void *host,
                           struct moert_error *err);
moert_status_t mref_import(moert_drv_layer *layer, const struct moert_layout *layout, uint64_t offset, uint64_t bytes,
                           const void *host, struct moert_error *err);
void mref_release(moert_drv_layer *layer);
moert_status_t mref_counters(moert_drv_layer *layer, struct moert_counters *ret, struct moert_error *err);

/* ---- one run (layer.c) ---- */

/* Activation rows as a GEMM reads them: codes and scales, or exact values. */
struct mref_rows {
    uint8_t *codes, *scales;
    double *wide;
    uint64_t cols;
};

/* Everything the steps of a run share. Matrices whose data is NULL are not given. */
struct mref_run {
    struct mref_layer *layer;
    const struct mref_shape *shape;
    uint32_t flags; /* MOERT_RUN_F_* */
    uint32_t threads;
    uint64_t tokens; /* T */
    uint64_t real;   /* tokens below token_count */
    uint64_t rows;   /* R = T * slots */
    struct mcpu_matrix x, x_scale, ids, weights, map, shared, output, index;
    float output_scale;

    int32_t *expert;  /* [R] local expert of a slot, or -1 */
    uint32_t *order;  /* slots that are local, by expert, ascending inside one */
    uint32_t *first;  /* [E_l+1]: order[first[e]] .. order[first[e+1]-1] belong to expert e */
    uint32_t *active; /* experts that have slots */
    uint32_t active_count, local_count;
    struct mref_rows a1, a2;
    struct mcpu_matrix c1, c2, c3;
    uint8_t *scratch;
    uint64_t scratch_bytes;
    struct {
        struct mcpu_matrix a1_codes, a1_scales, c1, c2, a2_codes, a2_scales, c3, y1, s1, y2, s2;
    } dump;
    _Atomic uint64_t poisoned;
};

static inline uint8_t *mref_scratch(const struct mref_run *run, uint32_t thread)
{
    return run->scratch + thread * run->scratch_bytes;
}

moert_status_t mref_run(moert_drv_layer *layer, moert_drv_queue *queue, const struct moert_run_args *args,
                        struct moert_error *err);
/* Checks the arguments and lays out the workspace (args.c); touches no output. */
moert_status_t mref_bind(struct mref_run *run, moert_drv_queue *queue, const struct moert_run_args *args,
                         struct moert_error *err);

/* ---- decode.c ---- */

/* A decoded weight row of K elements. Coded schemes: codes and one scale byte per 32 (127 for lut-b), a block with a
 * NaN code has scale 255. Plain schemes: values. Memory: mref_row_bytes(K). */
struct mref_row {
    double *values; /* [K]; the same memory holds the integers */
    int32_t *integers;
    uint8_t *codes;  /* [K] */
    uint8_t *scales; /* [K/32] */
};

uint64_t mref_row_bytes(uint64_t cols);
struct mref_row mref_row(uint8_t *memory, uint64_t cols);
void mref_decode_row(const struct mref_shape *shape, const uint8_t *expert, enum mref_part part, uint64_t n,
                     uint64_t cols, struct mref_row *row);
/* E4M3 code times 512, an integer below 2^18; NaN codes have no meaning here. */
extern const int32_t mref_e4m3_units[256];
/* Exact values of codes under their scales; NaN blocks and NaN codes give NaN. */
void mref_decode_values(const uint8_t *codes, const uint8_t *scales, uint64_t cols, double *values);
/* Gives every block that holds a NaN code the scale 255. */
void mref_mark_nan_blocks(const uint8_t *codes, uint8_t *scales, uint64_t cols);
/* 2^e, -1022 <= e <= 1023. */
double mref_pow2(int e);

/* ---- steps: bodies of mcpu_parallel, ctx is struct mref_run ---- */

void mref_quantise_tokens(void *ctx, uint64_t begin, uint64_t end, uint32_t thread); /* items: tokens */
void mref_quantise_slot(struct mref_run *run, uint64_t slot);                        /* P4 of one slot */
void mref_gemm1(void *ctx, uint64_t begin, uint64_t end, uint32_t thread);           /* items: active * N1 */
void mref_gemm2(void *ctx, uint64_t begin, uint64_t end, uint32_t thread);           /* items: active * H */
void mref_activate(void *ctx, uint64_t begin, uint64_t end, uint32_t thread);        /* items: local slots */
void mref_combine(void *ctx, uint64_t begin, uint64_t end, uint32_t thread);         /* items: tokens */
void mref_write_index(struct mref_run *run);

#endif
