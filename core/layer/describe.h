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

#endif
