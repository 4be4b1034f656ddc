/* SPDX-License-Identifier: Apache-2.0
 * moert/layer_config.h: the description of a layer (struct moert_layer_config of moert/driver.h): defaults, checks, JSON.
 * Pure, thread-safe. */
#ifndef MOERT_LAYER_CONFIG_H
#define MOERT_LAYER_CONFIG_H

#include <moert/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroes the struct and sets the defaults of layer.md 1 (d bf16, silu, index -1, max_tokens 8192, ...). */
MOERT_API void moert_layer_config_init(struct moert_layer_config *config);

/* Resolves defaults that depend on other fields (num_local_experts, activation_scheme, w13_order, router) and checks
 * everything that needs no backend. Error texts begin "layer <name>#<index>: "; codes of layer.md 7. */
MOERT_API moert_status_t moert_layer_config_check(struct moert_layer_config *config, struct moert_error *err);

/* JSON object -> config (init, parse; not yet checked). `where` names the source in messages ("cfg.json"). Unknown keys:
 * error `field` with the nearest key. The expert map is owned by the config: end with moert_layer_config_clear. */
MOERT_API moert_status_t moert_layer_config_parse(const char *json, const char *where, struct moert_layer_config *ret,
                                                  struct moert_error *err);
/* config -> JSON object on one line, malloc'ed (moert_free). */
MOERT_API moert_status_t moert_layer_config_format(const struct moert_layer_config *config, char **ret,
                                                   struct moert_error *err);
/* Deep copy, to be cleared. */
MOERT_API moert_status_t moert_layer_config_copy(const struct moert_layer_config *config, struct moert_layer_config *ret,
                                                 struct moert_error *err);
/* Frees an expert map that parse or copy made. */
MOERT_API void moert_layer_config_clear(struct moert_layer_config *config);

/* N1: rows of w13 per expert. */
MOERT_API uint64_t moert_layer_config_n1(const struct moert_layer_config *config);
/* Bytes of the canonical weights (codes, scales, codebooks; no biases) of the whole layer; UINT64_MAX on overflow. */
MOERT_API uint64_t moert_layer_config_weight_bytes(const struct moert_layer_config *config);

#ifdef __cplusplus
}
#endif
#endif
