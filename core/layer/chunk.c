/* core/layer/chunk.c: sizes of a call: the reference workspace and the cut into chunks (layer.md 6). Pure functions, so
 * that the totals of the specification are tests without a device. */
#include "core/layer/chunk.h"

#include "core/base/checked.h"
#include "core/layer/describe.h"

#include <moert/layer.h>
#include <moert/routing.h>

#define CHUNK_STEP 128 /* chunks are multiples of the largest block of rows in use */

/* Adds a*b*c bytes, rounded up to 256; 0 when it does not fit 64 bits. */
static int add_buffer(uint64_t *total, uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t bytes;

    return moert_mul(a, b, &bytes) && moert_mul(bytes, c, &bytes) && moert_round_up(bytes, 256, &bytes) &&
           moert_add(*total, bytes, total);
}

/* T*K rows of codes with their scales: n + n/32 bytes. */
static int add_codes(uint64_t *total, uint64_t rows, uint64_t cols)
{
    uint64_t codes, bytes;

    return moert_mul(rows, cols, &codes) && moert_add(codes, codes / 32, &bytes) && add_buffer(total, bytes, 1, 1);
}

moert_status_t moert_layer_reference_workspace(const struct moert_layer_config *layer, uint64_t tokens,
                                               uint32_t block_size, uint64_t *ret, struct moert_error *err)
{
    struct moert_align_params params = {.size = sizeof(params), .block_size = block_size};
    struct moert_align_sizes sizes = {0};
    uint64_t total = 0, slots, n1, size, k, wide;
    moert_status_t status;

    if (!layer || !ret)
        return moert_fail_null(err, layer ? "ret" : "layer");
    status = moert_check_size(err, "moert_layer_config", layer->size, sizeof(*layer));
    if (status)
        return status;
    k = (uint64_t)layer->top_k + layer->num_fused_shared;
    n1 = moert_layer_config_n1(layer);
    size = moert_dtype_size(layer->dtype);
    wide = n1 > layer->hidden_size ? n1 : layer->hidden_size;
    params.num_experts = layer->num_experts + layer->num_fused_shared;
    if (!moert_mul(tokens, k, &slots))
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large", "%llu tokens x %llu slots exceed 64 bits",
                          (unsigned long long)tokens, (unsigned long long)k);
    status = moert_align_sizes(slots, &params, &sizes, err);
    if (status)
        return status;
    if (!add_buffer(&total, slots, wide, size) || !add_buffer(&total, slots, layer->intermediate_size, size) ||
        !add_codes(&total, tokens, layer->hidden_size) || !add_codes(&total, slots, layer->intermediate_size) ||
        !add_buffer(&total, 4 * (sizes.sorted + sizes.expert_ids) + 4, 1, 1))
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large", "the workspace of %llu tokens exceeds 64 bits",
                          (unsigned long long)tokens);
    *ret = total;
    return MOERT_OK;
}

/* Tokens that int32 slot numbers allow: T*K + E*(B-1) <= 2147483647. 0: not even one. */
static uint64_t index_limit(const struct moert_chunk_limits *limits)
{
    uint64_t k = (uint64_t)limits->layer->top_k + limits->layer->num_fused_shared;
    uint64_t experts = (uint64_t)limits->layer->num_experts + limits->layer->num_fused_shared, padding;

    if (!moert_mul(experts, limits->block_size ? limits->block_size - 1 : 0, &padding) || padding > INT32_MAX || !k)
        return 0;
    return (INT32_MAX - padding) / k;
}

/* 1 when `tokens` fit the limit; 0 also when their workspace cannot be told (beyond a type). */
static int fits(const struct moert_chunk_limits *limits, uint64_t tokens, uint64_t *ret_workspace)
{
    return !limits->workspace(limits->ctx, tokens, ret_workspace, NULL) && *ret_workspace <= limits->workspace_max;
}

/* Largest n of 0..top with n*step tokens that fit: fits() falls from 1 to 0 once, as workspaces are monotone. */
static uint64_t largest(const struct moert_chunk_limits *limits, uint64_t top, uint64_t step)
{
    uint64_t low = 0, bytes;

    while (low < top) {
        uint64_t middle = low + (top - low + 1) / 2;
        if (fits(limits, middle * step, &bytes))
            low = middle;
        else
            top = middle - 1;
    }
    return low;
}

/* Most tokens of a chunk whatever its workspace. */
static moert_status_t token_cap(const struct moert_chunk_limits *limits, uint64_t *ret, struct moert_error *err)
{
    const struct moert_layer_config *l = limits->layer;
    uint64_t cap = index_limit(limits);

    if (!cap)
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large", "1 tokens x %llu + %llu*%u slots exceed 2147483647",
                          (unsigned long long)l->top_k + l->num_fused_shared,
                          (unsigned long long)l->num_experts + l->num_fused_shared, limits->block_size - 1);
    if (cap > l->max_tokens) /* supports() was asked about max_tokens */
        cap = l->max_tokens;
    if (limits->tokens_max && cap > limits->tokens_max)
        cap = limits->tokens_max;
    *ret = cap;
    return MOERT_OK;
}

/* The outcome: `chunk` tokens with `bytes`, or 0 tokens and the bytes of one. */
static moert_status_t finish(const struct moert_chunk_limits *limits, uint64_t chunk, uint64_t *ret_chunk,
                             uint64_t *ret_workspace, struct moert_error *err)
{
    uint64_t bytes = 0;
    moert_status_t status = limits->workspace(limits->ctx, chunk ? chunk : 1, &bytes, err);

    if (status)
        return status;
    if (!chunk)
        return moert_fail(err, MOERT_E_NOMEM, "workspace", "one token needs %llu bytes of workspace, limit %llu",
                          (unsigned long long)bytes, (unsigned long long)limits->workspace_max);
    *ret_chunk = chunk;
    *ret_workspace = bytes;
    return MOERT_OK;
}

moert_status_t moert_chunk_tokens(const struct moert_chunk_limits *limits, uint64_t tokens, uint64_t *ret_chunk,
                                  uint64_t *ret_workspace, struct moert_error *err)
{
    uint64_t cap = 0, whole = tokens, chunk, bytes;
    moert_status_t status = token_cap(limits, &cap, err);

    if (status)
        return status;
    if (whole > cap)
        whole = cap < CHUNK_STEP ? cap : cap / CHUNK_STEP * CHUNK_STEP;
    if (fits(limits, whole, &bytes))
        chunk = whole;
    else
        chunk = CHUNK_STEP * largest(limits, whole / CHUNK_STEP, CHUNK_STEP);
    if (!chunk)
        chunk = largest(limits, whole < CHUNK_STEP ? whole : CHUNK_STEP - 1, 1);
    return finish(limits, chunk, ret_chunk, ret_workspace, err);
}

moert_status_t moert_chunk_most(const struct moert_chunk_limits *limits, uint64_t tokens, uint64_t *ret_tokens,
                                uint64_t *ret_workspace, struct moert_error *err)
{
    uint64_t cap = 0;
    moert_status_t status = token_cap(limits, &cap, err);

    if (status)
        return status;
    return finish(limits, largest(limits, tokens < cap ? tokens : cap, 1), ret_tokens, ret_workspace, err);
}
