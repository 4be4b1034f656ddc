/* core/layer/chunk.h: how a call is cut into chunks (layer.md 6). Pure. */
#ifndef MOERT_LAYER_CHUNK_H
#define MOERT_LAYER_CHUNK_H

#include <moert/layer_config.h>

/* Workspace bytes for `tokens` tokens: pure and monotone in tokens. */
typedef moert_status_t (*moert_workspace_fn)(void *ctx, uint64_t tokens, uint64_t *ret, struct moert_error *err);

struct moert_chunk_limits {
    const struct moert_layer_config *layer;
    uint32_t block_size;
    uint64_t workspace_max;
    moert_workspace_fn workspace;
    void *ctx;
};

/* Tokens per chunk for a call of `tokens` > 0, and its workspace bytes. Errors: workspace, too-large. */
moert_status_t moert_chunk_tokens(const struct moert_chunk_limits *limits, uint64_t tokens, uint64_t *ret_chunk,
                                  uint64_t *ret_workspace, struct moert_error *err);

/* Element offset row * stride + column in 64 bits. */
static inline uint64_t moert_element_offset(uint64_t row, uint64_t stride, uint64_t column)
{
    return row * stride + column;
}

#endif
