/* core/layer/describe.h: error texts that begin with the layer's name ("layer model.layers.3.mlp.experts#3: ..."). */
#ifndef MOERT_LAYER_DESCRIBE_H
#define MOERT_LAYER_DESCRIBE_H

#include "core/base/error.h"

#include <moert/layer_config.h>

/* moert_fail with the prefix of layer.md 7. */
#define MOERT_LAYER_FAIL(config, err, status, code, ...)                                                               \
    moert_layer_prefix((config), (err), moert_fail((err), (status), (code), __VA_ARGS__))

/* Puts the prefix in front of what err holds and returns `status`. OK passes through. */
moert_status_t moert_layer_prefix(const struct moert_layer_config *config, struct moert_error *err,
                                  moert_status_t status);

/* Shape of w13's and w2's parts for `experts` experts, as a canonical file has them (layer.md 9.1); rank 0: the scheme
 * has no such tensor. */
struct moert_weight_part {
    const char *name;
    uint32_t rank;
    uint64_t shape[4];
    moert_dtype_t dtypes[3]; /* accepted, NONE-terminated */
};
enum {
    MOERT_PART_W13,
    MOERT_PART_W13_SCALE,
    MOERT_PART_W13_BIAS,
    MOERT_PART_W2,
    MOERT_PART_W2_SCALE,
    MOERT_PART_W2_BIAS,
    MOERT_PART_COUNT
};
void moert_layer_parts(const struct moert_layer_config *config, uint32_t experts,
                       struct moert_weight_part ret[MOERT_PART_COUNT]);

#endif
