/* core/io/layer_json.h: a layer description as a jansson object, for records that hold one (core/oracle/explain.c). */
#ifndef MOERT_IO_LAYER_JSON_H
#define MOERT_IO_LAYER_JSON_H

#include <moert/layer_config.h>

#include <jansson.h>

/* Keys of layer.md 1; optional ones that have their initial value are left out. Owned by the caller. */
moert_status_t moert_layer_config_to_json(const struct moert_layer_config *config, json_t **ret,
                                          struct moert_error *err);

#endif
