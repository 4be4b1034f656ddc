/* tools/verify_layer.h: one layer of a file or checkpoint, on a backend and on the reference, with made-up input. */
#ifndef MOERT_TOOLS_VERIFY_LAYER_H
#define MOERT_TOOLS_VERIFY_LAYER_H

#include "tools/source.h"

#include <moert/verify.h>

struct tool_verify {
    moert_context_t *context;
    moert_checkpoint_t *checkpoint;
    uint32_t number; /* decoder layer */
    const char *backend, *device;
    uint64_t seed, tokens;
    moert_verify_sink_fn sink;
    void *sink_ctx;
};
/* A backend that cannot serve the layer is reported to the sink as skipped, with its reason. */
int tool_verify_layer(struct tool *tool, const struct tool_verify *v);

#endif
