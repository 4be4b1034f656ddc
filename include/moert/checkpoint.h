/* SPDX-License-Identifier: Apache-2.0
 * moert/checkpoint.h: Hugging Face checkpoint directories and canonical layer files (layer.md 9). */
#ifndef MOERT_CHECKPOINT_H
#define MOERT_CHECKPOINT_H

#include <moert/layer.h>
#include <moert/safetensors.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A directory (config.json, one file or an index with shards) or one canonical layer file. Thread-safe for reading. */
typedef struct moert_checkpoint moert_checkpoint_t;

/* fused_transposed: -1 unknown, 0, 1: for fused 3-D tensors of families without a rule (layer.md 9.2). */
struct moert_checkpoint_options {
    uint32_t size;
    int32_t fused_transposed;
    const char *layer_config; /* path of a JSON description for a layer file without metadata, or NULL */
};

/* `options` NULL: all defaults. Errors: file-missing, index-missing, st-*, field, required, scheme, tensor-missing,
 * tensor-ambiguous; texts name the file. */
MOERT_API moert_status_t moert_checkpoint_open(const char *directory, const struct moert_checkpoint_options *options,
                                               moert_checkpoint_t **ret, struct moert_error *err);
MOERT_API moert_status_t moert_checkpoint_open_layer(const char *file, const struct moert_checkpoint_options *options,
                                                     moert_checkpoint_t **ret, struct moert_error *err);
MOERT_API void moert_checkpoint_close(moert_checkpoint_t *checkpoint);
MOERT_API const char *moert_checkpoint_family(const moert_checkpoint_t *checkpoint); /* model_type, "layer" for a file */

/* Numbers of the decoder layers that have routed experts, ascending; a layer file has one. */
MOERT_API uint32_t moert_checkpoint_layer_count(const moert_checkpoint_t *checkpoint);
MOERT_API uint32_t moert_checkpoint_layer_number(const moert_checkpoint_t *checkpoint, uint32_t index);

/* Description of decoder layer `number`, checked; clear it afterwards. */
MOERT_API moert_status_t moert_checkpoint_layer_config(moert_checkpoint_t *checkpoint, uint32_t number,
                                                       struct moert_layer_config *ret, struct moert_error *err);
/* Feeds every expert and the dense parts of decoder layer `number` into `layer`, expert by expert. */
MOERT_API moert_status_t moert_checkpoint_load(moert_checkpoint_t *checkpoint, uint32_t number, moert_layer_t *layer,
                                               struct moert_error *err);
/* One local expert in canonical form, malloc'ed as one block behind weights->w13.data (moert_free that pointer); for tools. */
MOERT_API moert_status_t moert_checkpoint_expert(moert_checkpoint_t *checkpoint, uint32_t number, uint32_t expert,
                                                 struct moert_layer_weights *ret, void **ret_block,
                                                 struct moert_error *err);

/* Every tensor of every shard, for tools that rewrite checkpoints. */
MOERT_API uint32_t moert_checkpoint_file_count(const moert_checkpoint_t *checkpoint);
MOERT_API const moert_safetensors_t *moert_checkpoint_file(const moert_checkpoint_t *checkpoint, uint32_t index);
/* 1 when `tensor` is a routed expert's projection weight in this family (unquantised names). */
MOERT_API int moert_checkpoint_is_expert_weight(const moert_checkpoint_t *checkpoint, const char *tensor);
/* How fused 3-D expert tensors of this checkpoint are stored: 0 [E,N,K], 1 [E,K,N] (transposed), -1 nobody said
 * (neither the family's rule, nor "fused_transposed" in config.json, nor the options). */
MOERT_API int moert_checkpoint_fused_transposed(const moert_checkpoint_t *checkpoint);

#ifdef __cplusplus
}
#endif
#endif
