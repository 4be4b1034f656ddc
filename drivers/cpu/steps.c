/* SPDX-License-Identifier: Apache-2.0
 * drivers/cpu/steps.c: single steps on the queue, by the pure functions of core/numerics. Routing and alignment are the
 * core's, which does them on the host in any case. */
#include "config.h"

#include "core/base/checked.h"
#include "core/base/error.h"
#include "drivers/cpu/fpu.h"
#include "drivers/cpu/internal.h"
#include "drivers/cpu/tensor.h"

#include <inttypes.h>
#include <moert/activation.h>
#include <moert/lutb.h>
#include <moert/mxfp8.h>

#define CODES  (MCPU_DTYPE(MOERT_F8_E4M3) | MCPU_DTYPE(MOERT_U8))
#define SCALES (MCPU_DTYPE(MOERT_U8) | MCPU_DTYPE(MOERT_F8_E8M0))

static moert_status_t dense(const struct moert_drv_tensor *tensor, const char *name, uint32_t dtypes, uint32_t rank,
                            const uint64_t *shape, int writes, uint8_t **ret, struct moert_error *err)
{
    struct mcpu_want want = {
        .name = name, .code = "tensor", .dtypes = dtypes, .rank = rank, .dense = 1, .writes = (uint32_t)writes};

    memcpy(want.shape, shape, rank * sizeof(*shape));
    return mcpu_tensor(tensor, &want, ret, err);
}

static moert_status_t matrix(const struct moert_drv_tensor *tensor, const char *name, uint32_t dtypes, uint64_t rows,
                             uint64_t cols, int writes, struct mcpu_matrix *ret, struct moert_error *err)
{
    struct mcpu_want want = {
        .name = name, .code = "tensor", .dtypes = dtypes, .rank = 2, .shape = {rows, cols}, .writes = (uint32_t)writes};

    return mcpu_matrix(tensor, &want, ret, err);
}

static moert_status_t check_rank(const struct moert_drv_tensor *tensor, const char *name, uint32_t low, uint32_t high,
                                 struct moert_error *err)
{
    if (!tensor || !tensor->buffer)
        return moert_fail_null(err, name);
    if (tensor->rank >= low && tensor->rank <= high)
        return MOERT_OK;
    return moert_fail(err, MOERT_E_SHAPE, "tensor-shape", "%s has rank %u, expected %u to %u", name, tensor->rank, low,
                      high);
}

static moert_status_t done(moert_drv_queue *queue, moert_status_t status)
{
    if (!status)
        queue->last++;
    return status;
}

/* ---- MXFP8 ---- */

static moert_status_t quantize(moert_drv_queue *queue, const struct moert_mxfp8_params *params,
                               const struct moert_drv_tensor *x, const struct moert_drv_tensor *codes,
                               const struct moert_drv_tensor *scales, struct moert_error *err)
{
    moert_status_t status = check_rank(x, "x", 2, 2, err);
    uint8_t *in, *to_codes, *to_scales;
    uint64_t shape[2], blocks[2];

    if (status)
        return status;
    shape[0] = blocks[0] = x->shape[0];
    shape[1] = x->shape[1];
    blocks[1] = shape[1] / MOERT_MXFP8_BLOCK;
    status = dense(x, "x", MCPU_FLOATS, 2, shape, 0, &in, err);
    if (!status)
        status = dense(codes, "codes", CODES, 2, shape, 1, &to_codes, err);
    if (!status)
        status = dense(scales, "scales", SCALES, 2, blocks, 1, &to_scales, err);
    if (!status)
        status = moert_mxfp8_quantize(in, x->dtype, shape[0], shape[1], 0, params, to_codes, to_scales, NULL, err);
    return done(queue, status);
}

static moert_status_t dequantize(moert_drv_queue *queue, const struct moert_drv_tensor *codes,
                                 const struct moert_drv_tensor *scales, const struct moert_drv_tensor *out,
                                 struct moert_error *err)
{
    moert_status_t status = check_rank(codes, "codes", 2, 2, err);
    uint8_t *from_codes, *from_scales, *to;
    uint64_t shape[2], blocks[2];

    if (status)
        return status;
    shape[0] = blocks[0] = codes->shape[0];
    shape[1] = codes->shape[1];
    blocks[1] = shape[1] / MOERT_MXFP8_BLOCK;
    status = dense(codes, "codes", CODES, 2, shape, 0, &from_codes, err);
    if (!status)
        status = dense(scales, "scales", SCALES, 2, blocks, 0, &from_scales, err);
    if (!status)
        status = dense(out, "out", MCPU_FLOATS, 2, shape, 1, &to, err);
    if (!status)
        status = moert_mxfp8_dequantize(from_codes, from_scales, shape[0], shape[1], to, out->dtype, err);
    return done(queue, status);
}

/* ---- LUT-B ---- */

static moert_status_t lutb_decode(moert_drv_queue *queue, const struct moert_drv_tensor *packed,
                                  const struct moert_drv_tensor *codebook, const struct moert_drv_tensor *out,
                                  struct moert_error *err)
{
    moert_status_t status = check_rank(packed, "packed", 3, MOERT_MAX_RANK, err);
    uint64_t shape[MOERT_MAX_RANK], rows, cols;
    uint8_t *from, *levels, *to;
    uint32_t rank;

    if (status)
        return status;
    rank = packed->rank;
    memcpy(shape, packed->shape, rank * sizeof(*shape));
    shape[rank - 1] = MOERT_LUTB_PACKED;
    status = dense(packed, "packed", MCPU_DTYPE(MOERT_U8), rank, shape, 0, &from, err);
    shape[rank - 1] = MOERT_LUTB_LEVELS;
    if (!status)
        status = dense(codebook, "codebook", CODES, rank, shape, 0, &levels, err);
    if (status)
        return status;
    /* Leading axes are more rows of tiles: [.., N/8, K/64] and [.., N, K] have the same order of memory. */
    if (!moert_mul(shape[rank - 2], MOERT_LUTB_COLS, &cols) || !moert_product(shape, rank - 2, &rows) ||
        !moert_mul(rows, MOERT_LUTB_ROWS, &rows))
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large", "packed describes more weights than 64 bits count");
    shape[rank - 3] *= MOERT_LUTB_ROWS;
    shape[rank - 2] = cols;
    status = dense(out, "out", MCPU_FLOATS | MCPU_DTYPE(MOERT_F8_E4M3), rank - 1, shape, 1, &to, err);
    if (!status)
        status = moert_lutb_decode(from, levels, rows, cols, to, out->dtype, err);
    return done(queue, status);
}

/* ---- activation ---- */

static moert_status_t activation(moert_drv_queue *queue, const struct moert_layer_config *layer,
                                 const struct moert_drv_tensor *c1, const struct moert_drv_tensor *c2,
                                 struct moert_error *err)
{
    struct moert_activation_params params;
    moert_status_t status = check_rank(c2, "c2", 2, 2, err);
    uint64_t in[2], out[2];
    uint8_t *from, *to;

    if (!status)
        status = moert_activation_resolve(layer, &params, err);
    if (status)
        return status;
    in[0] = out[0] = c2->shape[0];
    out[1] = layer->intermediate_size;
    if (!moert_mul(out[1], moert_activation_is_gated(params.kind) ? 2 : 1, &in[1]))
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large", "intermediate_size %" PRIu64 " is too large", out[1]);
    status = dense(c1, "c1", MCPU_DTYPE(c2->dtype) & MCPU_FLOATS, 2, in, 0, &from, err);
    if (!status)
        status = dense(c2, "c2", MCPU_FLOATS, 2, out, 1, &to, err);
    if (!status)
        status = moert_activation_apply(&params, layer->w13_order, from, to, c2->dtype, out[0], out[1], err);
    return done(queue, status);
}

/* ---- combine ---- */

/* What the sum of one token reads. weights.data NULL: moe_sum, else weighted_sum (routing.md 5). */
struct sum {
    struct mcpu_matrix ids, map, weights, out;
    const uint8_t *rows; /* element 0 of [T,K,H] */
    moert_dtype_t dtype;
    int64_t pitch[3]; /* bytes */
    uint32_t id_count;
};

static int slot_is_local(const struct sum *sum, uint64_t t, uint64_t j)
{
    int32_t id = mcpu_int_at(&sum->ids, t, j);

    return id >= 0 && (uint32_t)id < sum->id_count && (!sum->map.data || mcpu_int_at(&sum->map, 0, (uint64_t)id) >= 0);
}

static void sum_token(const struct sum *sum, uint64_t t)
{
    for (uint64_t h = 0; h < sum->out.cols; h++) {
        float acc = 0;
        for (uint64_t j = 0; j < sum->ids.cols; j++) {
            float row;
            if (!slot_is_local(sum, t, j))
                continue;
            row = mcpu_float_at(sum->rows + (int64_t)t * sum->pitch[0] + (int64_t)j * sum->pitch[1] +
                                    (int64_t)h * sum->pitch[2],
                                sum->dtype);
            acc += sum->weights.data ? row * mcpu_get(&sum->weights, t, j) : row;
        }
        mcpu_put(&sum->out, t, h, (double)acc);
    }
}

static moert_status_t bind_sum(struct sum *sum, const struct moert_layer_config *layer,
                               const struct moert_drv_tensor *rows, const struct moert_drv_tensor *ids,
                               const struct moert_drv_tensor *map, const struct moert_drv_tensor *weights,
                               const struct moert_drv_tensor *out, struct moert_error *err)
{
    uint64_t t = rows->shape[0], k = rows->shape[1], h = rows->shape[2];
    struct mcpu_want want = {.name = "rows", .code = "tensor", .dtypes = MCPU_FLOATS, .rank = 3, .shape = {t, k, h}};
    struct mcpu_want map_want = {
        .name = "map", .code = "tensor", .dtypes = MCPU_DTYPE(MOERT_I32), .rank = 1, .shape = {sum->id_count}};
    uint8_t *data = NULL;
    moert_status_t status = mcpu_tensor(rows, &want, &data, err);

    if (!status)
        status = matrix(ids, "ids", MCPU_DTYPE(MOERT_I32), t, k, 0, &sum->ids, err);
    if (!status && map && map->buffer)
        status = mcpu_matrix(map, &map_want, &sum->map, err);
    if (!status && weights && weights->buffer)
        status = matrix(weights, "weights", MCPU_DTYPE(MOERT_F32), t, k, 0, &sum->weights, err);
    if (!status)
        status = matrix(out, "out", MCPU_DTYPE(layer->dtype) & MCPU_FLOATS, t, h, 1, &sum->out, err);
    if (status)
        return status;
    sum->rows = data;
    sum->dtype = rows->dtype;
    for (int i = 0; i < 3; i++)
        sum->pitch[i] = rows->shape[i] > 1 ? rows->strides[i] * (int64_t)mcpu_dtype_size(rows->dtype) : 0;
    return MOERT_OK;
}

static moert_status_t combine(moert_drv_queue *queue, const struct moert_layer_config *layer,
                              const struct moert_drv_tensor *rows, const struct moert_drv_tensor *ids,
                              const struct moert_drv_tensor *map, const struct moert_drv_tensor *weights,
                              const struct moert_drv_tensor *out, struct moert_error *err)
{
    struct sum sum = {0};
    mcpu_fpu_state saved;
    moert_status_t status = check_rank(rows, "rows", 3, 3, err);

    if (!status && !layer)
        status = moert_fail_null(err, "layer");
    if (status)
        return status;
    sum.id_count = layer->num_experts + layer->num_fused_shared;
    status = bind_sum(&sum, layer, rows, ids, map, weights, out, err);
    if (status)
        return status;
    saved = mcpu_fpu_default();
    for (uint64_t t = 0; t < sum.out.rows; t++)
        sum_token(&sum, t);
    mcpu_fpu_restore(saved);
    return done(queue, MOERT_OK);
}

const struct moert_step_ops mcpu_step_ops = {
    .size = sizeof(struct moert_step_ops),
    .quantize = quantize,
    .dequantize = dequantize,
    .lutb_decode = lutb_decode,
    .activation = activation,
    .combine = combine,
};
