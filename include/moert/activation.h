/* SPDX-License-Identifier: Apache-2.0
 * moert/activation.h: activations of the expert MLP (layer.md 2), evaluated in binary64. Pure, thread-safe. */
#ifndef MOERT_ACTIVATION_H
#define MOERT_ACTIVATION_H

#include <moert/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Kind and resolved parameters; `limit` 0 means none. */
struct moert_activation_params {
    moert_activation_t kind;
    uint32_t reserved32;
    double limit, alpha, beta, situ_beta, situ_linear_beta;
};

/* 1 when w13 has gate and up rows (N1 = 2I), 0 for the *_no_mul kinds. */
MOERT_API int moert_activation_is_gated(moert_activation_t kind);

/* Checks kind and parameters of a layer and resolves defaults. Errors: `activation`, `activation-param`. */
MOERT_API moert_status_t moert_activation_resolve(const struct moert_layer_config *layer,
                                                  struct moert_activation_params *ret, struct moert_error *err);

/* act(gate, up) in binary64; `up` is ignored by kinds that are not gated. */
MOERT_API double moert_activation_eval(const struct moert_activation_params *params, double gate, double up);

/* c1 [rows,N1] -> c2 [rows,I] of dtype d, one rounding per element; gate and up found by `order`. */
MOERT_API moert_status_t moert_activation_apply(const struct moert_activation_params *params, moert_w13_order_t order,
                                                const void *c1, void *c2, moert_dtype_t dtype, uint64_t rows,
                                                uint64_t intermediate_size, struct moert_error *err);

#ifdef __cplusplus
}
#endif
#endif
