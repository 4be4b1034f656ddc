/* core/io/checkpoint_expert.c: one expert of a checkpoint in canonical form (layer.md 9.1), assembled in one block:
 * gate and up rows into w13 [1,N1,H], transposed tensors turned, whatever the alignment in the file. */
#include "config.h"

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/io/checkpoint.h"
#include "core/io/safetensors.h"

#include <moert/lutb.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN 256u

/* ------------------------------------------------------------------ shapes */

uint32_t moert_part_shape(moert_scheme_t scheme, int part, uint64_t rows, uint64_t cols, uint64_t ret[3],
                          moert_dtype_t *ret_dtype)
{
    static const moert_dtype_t plain[MOERT_SCHEME_COUNT] = {
        [MOERT_SCHEME_BF16] = MOERT_BF16, [MOERT_SCHEME_F16] = MOERT_F16, [MOERT_SCHEME_F32] = MOERT_F32};

    ret[0] = rows;
    ret[1] = cols;
    if (scheme == MOERT_SCHEME_LUT_B) {
        ret[0] = rows / MOERT_LUTB_ROWS;
        ret[1] = cols / MOERT_LUTB_COLS;
        ret[2] = part ? MOERT_LUTB_LEVELS : MOERT_LUTB_PACKED;
        *ret_dtype = part ? MOERT_F8_E4M3 : MOERT_U8;
        return 3;
    }
    *ret_dtype = plain[scheme];
    if (scheme == MOERT_SCHEME_MXFP8) {
        ret[1] = part ? cols / 32 : cols;
        *ret_dtype = part ? MOERT_U8 : MOERT_F8_E4M3;
        return 2;
    }
    return part ? 0 : 2;
}

static uint64_t part_bytes(moert_scheme_t scheme, int part, uint64_t rows, uint64_t cols)
{
    uint64_t shape[3], n = 0;
    moert_dtype_t dtype;
    uint32_t rank = moert_part_shape(scheme, part, rows, cols, shape, &dtype);

    if (!rank || !moert_product(shape, rank, &n))
        return 0;
    return n * moert_dtype_size(dtype);
}

/* Scale bytes may be F8_E8M0, another name of the same bytes. */
static moert_dtype_t accepted(const moert_checkpoint_t *c, const char *name, moert_scheme_t scheme, int part,
                              moert_dtype_t dtype)
{
    const struct moert_st_tensor *t = moert_checkpoint_tensor(c, name);
    return part && scheme == MOERT_SCHEME_MXFP8 && t && t->dtype == MOERT_F8_E8M0 ? MOERT_F8_E8M0 : dtype;
}

moert_status_t moert_checkpoint_weight(const moert_checkpoint_t *c, const char *x, const char *suffix,
                                       moert_scheme_t scheme, int part, uint64_t rows, uint64_t cols,
                                       const struct moert_st_tensor **ret, struct moert_error *err)
{
    char name[2 * MOERT_NAME_MAX + 32];
    uint64_t shape[3];
    moert_dtype_t dtype;
    uint32_t rank = moert_part_shape(scheme, part, rows, cols, shape, &dtype);

    snprintf(name, sizeof(name), "%s%s", x, suffix);
    return moert_checkpoint_get(c, name, accepted(c, name, scheme, part, dtype), rank, shape, ret, err);
}

/* ------------------------------------------------------------------ one expert */

/* dst [rows,cols] = src [cols,rows] turned, in blocks that stay in the cache. */
static void turn(uint8_t *dst, const uint8_t *src, uint64_t rows, uint64_t cols, size_t z)
{
    enum { STEP = 32 };

    for (uint64_t r0 = 0; r0 < rows; r0 += STEP)
        for (uint64_t c0 = 0; c0 < cols; c0 += STEP)
            for (uint64_t r = r0; r < rows && r < r0 + STEP; r++)
                for (uint64_t c = c0; c < cols && c < c0 + STEP; c++)
                    memcpy(dst + (r * cols + c) * z, src + (c * rows + r) * z, z);
}

static moert_status_t copy_stacked(const struct moert_expert_build *b, const char *projection, int part, uint64_t rows,
                                   uint64_t cols, uint8_t *out)
{
    char name[2 * MOERT_NAME_MAX];
    uint64_t shape[4] = {b->experts_in_file}, bytes = part_bytes(b->experts.scheme, part, rows, cols);
    const struct moert_st_tensor *t;
    moert_dtype_t dtype;
    uint32_t rank;
    moert_status_t status;

    if (b->experts.transposed)
        rank = moert_part_shape(b->experts.scheme, part, cols, rows, shape + 1, &dtype);
    else
        rank = moert_part_shape(b->experts.scheme, part, rows, cols, shape + 1, &dtype);
    snprintf(name, sizeof(name), "%s%s%s", b->experts.prefix, projection, b->experts.suffixes[part]);
    dtype = accepted(b->c, name, b->experts.scheme, part, dtype);
    status = moert_checkpoint_get(b->c, name, dtype, rank + 1, shape, &t, b->err);
    if (status)
        return status;
    if (b->experts.transposed)
        turn(out, (const uint8_t *)t->data + b->expert * bytes, rows, cols, moert_dtype_size(dtype));
    else
        memcpy(out, (const uint8_t *)t->data + b->expert * bytes, bytes);
    return MOERT_OK;
}

static moert_status_t copy_single(const struct moert_expert_build *b, const char *projection, int part, uint64_t rows,
                                  uint64_t cols, uint8_t *out)
{
    char x[2 * MOERT_NAME_MAX];
    const struct moert_st_tensor *t;
    moert_status_t status;

    snprintf(x, sizeof(x), "%s%u.%s.weight", b->experts.prefix, b->expert, projection);
    status =
        moert_checkpoint_weight(b->c, x, b->experts.suffixes[part], b->experts.scheme, part, rows, cols, &t, b->err);
    if (!status)
        memcpy(out, t->data, t->bytes);
    return status;
}

static moert_status_t copy_w13(const struct moert_expert_build *b, int part, uint8_t *out)
{
    const uint64_t h = b->layer->hidden_size, i = b->layer->intermediate_size;
    const struct moert_experts *x = &b->experts;
    int up_first = b->layer->w13_order == MOERT_W13_UP_GATE;
    moert_status_t status;

    if (x->stacked)
        return copy_stacked(b, x->names[0], part, b->n1, h, out);
    if (b->n1 == i) /* not gated: one projection */
        return copy_single(b, x->names[1], part, i, h, out);
    status = copy_single(b, x->names[up_first], part, i, h, out);
    if (status)
        return status;
    return copy_single(b, x->names[!up_first], part, i, h, out + part_bytes(x->scheme, part, i, h));
}

static moert_status_t copy_w2(const struct moert_expert_build *b, int part, uint8_t *out)
{
    const uint64_t h = b->layer->hidden_size, i = b->layer->intermediate_size;

    if (b->experts.stacked)
        return copy_stacked(b, b->experts.names[2], part, h, i, out);
    return copy_single(b, b->experts.names[2], part, h, i, out);
}

static moert_status_t find_bias(const struct moert_expert_build *b, int which, uint64_t length,
                                const struct moert_st_tensor **ret)
{
    char name[2 * MOERT_NAME_MAX];
    const uint64_t shape[] = {b->experts_in_file, length};

    *ret = NULL;
    if (!b->layer->has_bias)
        return MOERT_OK;
    if (!b->experts.stacked)
        return moert_fail(b->err, MOERT_E_VALUE, "field", "%s: has_bias with per-expert names is not supported; use %s",
                          b->c->path, which ? "w2_bias" : "w13_bias");
    snprintf(name, sizeof(name), "%s%s", b->experts.prefix, b->experts.biases[which]);
    return moert_checkpoint_get(b->c, name, MOERT_DTYPE_NONE, 2, shape, ret, b->err);
}

static struct moert_tensor host_part(const struct moert_expert_build *b, int part, uint64_t rows, uint64_t cols,
                                     uint8_t *data)
{
    uint64_t shape[4] = {1};
    moert_dtype_t dtype;
    uint32_t rank = moert_part_shape(b->experts.scheme, part, rows, cols, shape + 1, &dtype);

    if (!rank)
        return (struct moert_tensor){0};
    return moert_tensor_host(data, dtype, rank + 1, shape);
}

static struct moert_tensor host_bias(const struct moert_expert_build *b, const struct moert_st_tensor *t, uint8_t *data)
{
    uint64_t bytes, shape[2] = {1};

    if (!t)
        return (struct moert_tensor){0};
    shape[1] = t->shape[1];
    bytes = shape[1] * moert_dtype_size(t->dtype);
    memcpy(data, (const uint8_t *)t->data + b->expert * bytes, bytes);
    return moert_tensor_host(data, t->dtype, 2, shape);
}

/* NaN levels are refused at load (lut-b.md 1). */
static moert_status_t check_codebooks(const struct moert_expert_build *b, const uint8_t *codebook, uint64_t bytes,
                                      const char *what)
{
    moert_status_t status;

    if (b->experts.scheme != MOERT_SCHEME_LUT_B)
        return MOERT_OK;
    status = moert_lutb_check_codebook(codebook, bytes / MOERT_LUTB_LEVELS, b->err);
    return status ? moert_prefix(b->err, status, "%s: %.255s expert %u %s codebook: ", b->c->path, b->layer->name,
                                 b->expert, what)
                  : MOERT_OK;
}

/* Places of the six parts in the block; ret[6] is its size. 0 on overflow. */
static int place(const struct moert_expert_build *b, const struct moert_st_tensor *const bias[2], uint64_t ret[7])
{
    const uint64_t h = b->layer->hidden_size, i = b->layer->intermediate_size;
    const moert_scheme_t s = b->experts.scheme;
    const uint64_t sizes[6] = {
        part_bytes(s, 0, b->n1, h), part_bytes(s, 1, b->n1, h), bias[0] ? b->n1 * moert_dtype_size(bias[0]->dtype) : 0,
        part_bytes(s, 0, h, i),     part_bytes(s, 1, h, i),     bias[1] ? h * moert_dtype_size(bias[1]->dtype) : 0};
    uint64_t at = 0;

    for (int k = 0; k < 6; k++) {
        ret[k] = at;
        if (!moert_add(at, sizes[k], &at) || !moert_round_up(at, ALIGN, &at))
            return 0;
    }
    ret[6] = at;
    return at <= INT64_MAX;
}

/* The one block of a build: grows to what the expert needs, used again for the next. */
static moert_status_t block_room(struct moert_expert_build *b, uint64_t bytes)
{
    void *block;

    if (b->block && b->block_bytes >= bytes)
        return MOERT_OK;
    if (posix_memalign(&block, ALIGN, bytes ? bytes : ALIGN))
        return moert_fail(b->err, MOERT_E_NOMEM, "host-memory", "%s: no memory for one expert (%llu bytes)", b->c->path,
                          (unsigned long long)bytes);
    free(b->block);
    b->block = block;
    b->block_bytes = bytes;
    return MOERT_OK;
}

static moert_status_t fill(const struct moert_expert_build *b, const uint64_t at[7])
{
    const uint64_t h = b->layer->hidden_size, i = b->layer->intermediate_size;
    int scales = b->experts.scheme == MOERT_SCHEME_MXFP8 || b->experts.scheme == MOERT_SCHEME_LUT_B;
    moert_status_t status = copy_w13(b, 0, b->block + at[0]);

    if (!status && scales)
        status = copy_w13(b, 1, b->block + at[1]);
    if (!status)
        status = copy_w2(b, 0, b->block + at[3]);
    if (!status && scales)
        status = copy_w2(b, 1, b->block + at[4]);
    if (!status)
        status = check_codebooks(b, b->block + at[1], part_bytes(b->experts.scheme, 1, b->n1, h), "w13");
    if (!status)
        status = check_codebooks(b, b->block + at[4], part_bytes(b->experts.scheme, 1, h, i), "w2");
    return status;
}

/* Holds the described shapes against the file before a block of their size is allocated. */
static moert_status_t check_first(const struct moert_expert_build *b)
{
    const struct moert_experts *x = &b->experts;
    const uint64_t h = b->layer->hidden_size, i = b->layer->intermediate_size;
    const struct moert_st_tensor *t;
    uint64_t shape[4] = {b->experts_in_file};
    char name[2 * MOERT_NAME_MAX];
    moert_dtype_t dtype;
    moert_status_t status = MOERT_OK;

    for (int p = 0; p < 2 && !status; p++) {
        uint64_t rows = p ? h : x->stacked ? b->n1 : i, cols = p ? i : h;
        uint32_t rank = x->transposed ? moert_part_shape(x->scheme, 0, cols, rows, shape + 1, &dtype)
                                      : moert_part_shape(x->scheme, 0, rows, cols, shape + 1, &dtype);
        if (x->stacked)
            snprintf(name, sizeof(name), "%s%s%s", x->prefix, x->names[p ? 2 : 0], x->suffixes[0]);
        else
            snprintf(name, sizeof(name), "%s%u.%s.weight%s", x->prefix, b->expert, x->names[p ? 2 : 1], x->suffixes[0]);
        status = moert_checkpoint_get(b->c, name, dtype, rank + (x->stacked ? 1u : 0u), x->stacked ? shape : shape + 1,
                                      &t, b->err);
    }
    return status;
}

moert_status_t moert_expert_assemble(struct moert_expert_build *b, uint32_t expert, struct moert_layer_weights *ret)
{
    const uint64_t h = b->layer->hidden_size, i = b->layer->intermediate_size;
    const struct moert_st_tensor *bias[2] = {NULL, NULL};
    struct moert_layer_weights w = {.size = sizeof(w), .first = expert, .count = 1};
    uint64_t at[7];
    moert_status_t status;

    b->expert = expert;
    status = check_first(b);
    if (!status)
        status = find_bias(b, 0, b->n1, &bias[0]);
    if (!status)
        status = find_bias(b, 1, h, &bias[1]);
    if (status)
        return status;
    if (!place(b, (const struct moert_st_tensor *const *)bias, at))
        return moert_fail(b->err, MOERT_E_TOO_LARGE, "too-large", "%s: one expert exceeds 2^63 bytes", b->c->path);
    status = block_room(b, at[6]);
    if (!status)
        status = fill(b, at);
    if (status)
        return status;
    w.w13 = host_part(b, 0, b->n1, h, b->block + at[0]);
    w.w13_scale = host_part(b, 1, b->n1, h, b->block + at[1]);
    w.w13_bias = host_bias(b, bias[0], b->block + at[2]);
    w.w2 = host_part(b, 0, h, i, b->block + at[3]);
    w.w2_scale = host_part(b, 1, h, i, b->block + at[4]);
    w.w2_bias = host_bias(b, bias[1], b->block + at[5]);
    *ret = w;
    return MOERT_OK;
}

moert_status_t moert_expert_build_init(struct moert_expert_build *b, const moert_checkpoint_t *c,
                                       const struct moert_layer_config *layer, uint32_t number, struct moert_error *err)
{
    *b = (struct moert_expert_build){.c = c, .layer = layer, .err = err};
    b->experts_in_file = c->family ? layer->num_experts : layer->num_local_experts;
    b->n1 = moert_layer_config_n1(layer);
    return moert_checkpoint_experts(c, layer, number, &b->experts, err);
}

moert_status_t moert_checkpoint_expert(moert_checkpoint_t *c, uint32_t number, uint32_t expert,
                                       struct moert_layer_weights *ret, void **ret_block, struct moert_error *err)
{
    struct moert_layer_config layer;
    struct moert_expert_build b = {0};
    moert_status_t status;

    if (!c || !ret || !ret_block)
        return moert_fail_null(err, !c ? "checkpoint" : !ret ? "ret" : "ret_block");
    status = moert_checkpoint_layer_config(c, number, &layer, err);
    if (status)
        return status;
    status = moert_expert_build_init(&b, c, &layer, number, err);
    if (!status && expert >= b.experts_in_file)
        status = moert_fail(err, MOERT_E_VALUE, "tensor-extra", "%s: expert %u asked for, the layer has %u", c->path,
                            expert, b.experts_in_file);
    if (!status)
        status = moert_expert_assemble(&b, expert, ret);
    if (status)
        free(b.block);
    else
        *ret_block = b.block;
    moert_layer_config_clear(&layer);
    return status;
}
