/* core/layer/chunk.h: how a call is cut into chunks (layer.md 6). Pure. */
#ifndef MOERT_LAYER_CHUNK_H
#define MOERT_LAYER_CHUNK_H

#include <moert/layer_config.h>

/* Workspace bytes for `tokens` tokens: pure and monotone in tokens. */
typedef moert_status_t (*moert_workspace_fn)(void *ctx, uint64_t tokens, uint64_t *ret, struct moert_error *err);

struct moert_chunk_limits {
    const struct moert_layer_config *layer;
    uint32_t block_size;
    uint64_t workspace_max; /* bytes */
    uint64_t tokens_max;    /* what one buffer of the device holds of a token's rows; 0: no such limit */
    moert_workspace_fn workspace;
    void *ctx;
};

/* Tokens per chunk for a call of `tokens` > 0, and its workspace bytes. Errors: workspace, too-large. */
moert_status_t moert_chunk_tokens(const struct moert_chunk_limits *limits, uint64_t tokens, uint64_t *ret_chunk,
                                  uint64_t *ret_workspace, struct moert_error *err);

/* The most tokens that any call of up to `tokens` > 0 has in one chunk, and their workspace: what a warm-up reserves. A
 * call that fits whole may be larger than a chunk of a longer call, which is a multiple of 128. Errors as above. */
moert_status_t moert_chunk_most(const struct moert_chunk_limits *limits, uint64_t tokens, uint64_t *ret_tokens,
                                uint64_t *ret_workspace, struct moert_error *err);

/* Element offset row * stride + column in 64 bits. */
static inline uint64_t moert_element_offset(uint64_t row, uint64_t stride, uint64_t column)
{
    return row * stride + column;
}

#endif
