/* SPDX-License-Identifier: Apache-2.0
 * drivers/cpu/ref/shape.c: sizes of a layer, of an expert's storage, of a run's workspace. Pure functions. */
#include "config.h"

#include "core/base/checked.h"
#include "core/base/error.h"
#include "drivers/cpu/ref/ref.h"

#include <inttypes.h>
#include <moert/lutb.h>

#define PART_ALIGNMENT      64
#define WORKSPACE_ALIGNMENT 256
/* Scratch for a few threads even on a machine of one processor: MOERT_THREADS may ask for them. */
#define LEAST_THREADS 4

const char *mref_layout_tag(moert_scheme_t scheme)
{
    static const char *const tags[MOERT_SCHEME_COUNT] = {
        NULL,
        "cpu.canonical.bf16",
        "cpu.canonical.f16",
        "cpu.canonical.f32",
        "cpu.canonical.mxfp8",
        "cpu.canonical.lut-b",
    };

    return scheme < MOERT_SCHEME_COUNT ? tags[scheme] : NULL;
}

static moert_status_t check_kinds(const struct moert_layer_config *layer, struct moert_error *err)
{
    if (layer->weight_scheme == MOERT_SCHEME_NONE || layer->weight_scheme >= MOERT_SCHEME_COUNT)
        return moert_fail(err, MOERT_E_VALUE, "scheme",
                          "weight_scheme %u is not supported; known: bf16, f16, f32, mxfp8, lut-b",
                          layer->weight_scheme);
    if (layer->activation_scheme != MOERT_SCHEME_NONE && layer->activation_scheme != MOERT_SCHEME_MXFP8)
        return moert_fail(err, MOERT_E_VALUE, "scheme", "activation_scheme %u is not supported; known: none, mxfp8",
                          layer->activation_scheme);
    if (layer->dtype >= MOERT_DTYPE_COUNT || !(MCPU_FLOATS & MCPU_DTYPE(layer->dtype)))
        return moert_fail(err, MOERT_E_DTYPE, "x-dtype", "dtype %s is not supported; known: BF16, F16, F32",
                          mcpu_dtype_name(layer->dtype));
    if (layer->w13_order >= MOERT_W13_ORDER_COUNT)
        return moert_fail(err, MOERT_E_VALUE, "order", "w13_order %u does not exist; known: 0..2", layer->w13_order);
    return MOERT_OK;
}

/* 64 with lut-b weights (a tile's columns), 32 with any MXFP8 operand, else 1. */
static uint64_t column_multiple(const struct mref_shape *shape)
{
    if (shape->weights == MOERT_SCHEME_LUT_B)
        return MOERT_LUTB_COLS;
    return shape->weights == MOERT_SCHEME_MXFP8 || shape->activations == MOERT_SCHEME_MXFP8 ? MREF_BLOCK : 1;
}

static moert_status_t check_sizes(const struct mref_shape *shape, struct moert_error *err)
{
    static const char *const names[] = {"hidden_size", "intermediate_size", "num_experts", "top_k"};
    uint64_t values[] = {shape->hidden, shape->inner, shape->ids, shape->slots}, multiple = column_multiple(shape);

    for (size_t i = 0; i < 4; i++)
        if (!values[i])
            return moert_fail(err, MOERT_E_VALUE, "size", "%s is 0; must be at least 1", names[i]);
    for (size_t i = 0; i < 2; i++)
        if (values[i] % multiple)
            return moert_fail(err, MOERT_E_SHAPE, "multiple",
                              "%s %" PRIu64 " is not a multiple of %" PRIu64 " (needed by cpu.reference)", names[i],
                              values[i], multiple);
    if (shape->input_weight && shape->slots != 1)
        return moert_fail(err, MOERT_E_VALUE, "input-weight",
                          "apply_router_weight_on_input needs top_k 1, got %" PRIu32, shape->slots);
    return MOERT_OK;
}

/* Bytes of an [n,k] weight matrix and of what scales it. */
static int matrix_bytes(moert_scheme_t scheme, uint64_t n, uint64_t k, uint64_t *matrix, uint64_t *scales)
{
    uint64_t elements;

    *scales = 0;
    if (!moert_mul(n, k, &elements))
        return 0;
    switch (scheme) {
    case MOERT_SCHEME_LUT_B:
        *matrix = elements / 8 * 3; /* three bits each */
        *scales = elements / MOERT_LUTB_TILE * MOERT_LUTB_LEVELS;
        return 1;
    case MOERT_SCHEME_MXFP8:
        *matrix = elements;
        *scales = elements / MREF_BLOCK;
        return 1;
    case MOERT_SCHEME_F32: return moert_mul(elements, 4, matrix);
    default: return moert_mul(elements, 2, matrix);
    }
}

static int expert_storage(struct mref_shape *shape)
{
    uint64_t offset = 0, total;
    uint64_t bytes[MREF_PARTS] = {0};

    if (!matrix_bytes(shape->weights, shape->rows13, shape->hidden, &bytes[MREF_W13], &bytes[MREF_W13_SCALE]) ||
        !matrix_bytes(shape->weights, shape->hidden, shape->inner, &bytes[MREF_W2], &bytes[MREF_W2_SCALE]))
        return 0;
    if (shape->has_bias) { /* kept as F32, whatever their dtype was */
        if (!moert_mul(shape->rows13, 4, &bytes[MREF_W13_BIAS]) || !moert_mul(shape->hidden, 4, &bytes[MREF_W2_BIAS]))
            return 0;
    }
    for (int i = 0; i < MREF_PARTS; i++) {
        shape->part[i].offset = offset;
        shape->part[i].bytes = bytes[i];
        shape->payload_bytes += bytes[i]; /* below the padded sum, which is checked */
        if (!moert_add(offset, bytes[i], &offset) || !moert_round_up(offset, PART_ALIGNMENT, &offset))
            return 0;
    }
    shape->expert_bytes = offset;
    return moert_mul(offset, shape->local, &total) && total <= PTRDIFF_MAX;
}

moert_status_t mref_shape(const struct moert_layer_config *layer, struct mref_shape *ret, struct moert_error *err)
{
    struct mref_shape shape = {0};
    moert_status_t status;
    uint32_t experts, slots;

    if (!layer)
        return moert_fail_null(err, "layer");
    status =
        moert_check_size(err, "moert_layer_config", layer->size, MCPU_SIZE_TO(struct moert_layer_config, reserved));
    if (!status)
        status = check_kinds(layer, err);
    if (!status)
        status = moert_activation_resolve(layer, &shape.act, err);
    if (status)
        return status;
    if (__builtin_add_overflow(layer->num_experts, layer->num_fused_shared, &experts) || experts > INT32_MAX ||
        __builtin_add_overflow(layer->top_k, layer->num_fused_shared, &slots) || slots > INT32_MAX)
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large",
                          "num_experts %u or top_k %u + %u fused exceed 2147483647", layer->num_experts, layer->top_k,
                          layer->num_fused_shared);
    shape.hidden = layer->hidden_size;
    shape.inner = layer->intermediate_size;
    shape.ids = experts;
    shape.local = layer->num_local_experts ? layer->num_local_experts : experts;
    shape.slots = slots;
    shape.dtype = layer->dtype;
    shape.weights = layer->weight_scheme;
    shape.activations = layer->activation_scheme;
    shape.has_bias = layer->has_bias != 0;
    shape.input_weight = layer->apply_router_weight_on_input != 0;
    shape.order = layer->w13_order;
    if (!moert_mul(shape.inner, moert_activation_is_gated(shape.act.kind) ? 2 : 1, &shape.rows13))
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large", "intermediate_size %" PRIu64 " is too large",
                          shape.inner);
    status = check_sizes(&shape, err);
    if (status)
        return status;
    if (!expert_storage(&shape))
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large",
                          "weights of %" PRIu32 " experts of %" PRIu64 " x %" PRIu64 " exceed the address space",
                          shape.local, shape.hidden, shape.inner);
    *ret = shape;
    return MOERT_OK;
}

/* Takes rows*cols elements at the plan's end; sets *failed when the sum does not fit. */
static uint64_t take(uint64_t *end, uint64_t rows, uint64_t cols, uint64_t element, int *failed)
{
    uint64_t bytes, start = *end;

    if (!moert_mul(rows, cols, &bytes) || !moert_mul(bytes, element, &bytes) || !moert_add(start, bytes, end) ||
        !moert_round_up(*end, WORKSPACE_ALIGNMENT, end))
        *failed = 1;
    return start;
}

moert_status_t mref_plan(const struct mref_shape *shape, uint64_t tokens, struct mref_plan *ret,
                         struct moert_error *err)
{
    uint64_t z = mcpu_dtype_size(shape->dtype), h = shape->hidden, i = shape->inner, n = shape->rows13, end = 0, rows;
    uint64_t widest = h > i ? h : i;
    int quantised = shape->activations == MOERT_SCHEME_MXFP8, failed = 0;
    struct mref_plan plan = {0};

    if (!moert_mul(tokens, shape->slots, &rows) || rows > INT32_MAX)
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large",
                          "%" PRIu64 " tokens x %" PRIu32 " slots exceed 2147483647", tokens, shape->slots);
    plan.expert = take(&end, rows, 1, sizeof(int32_t), &failed);
    plan.order = take(&end, rows, 1, sizeof(uint32_t), &failed);
    plan.first = take(&end, (uint64_t)shape->local + 1, 1, sizeof(uint32_t), &failed);
    plan.active = take(&end, shape->local, 1, sizeof(uint32_t), &failed);
    plan.c = take(&end, rows, n > h ? n : h, z, &failed);
    plan.c2 = take(&end, rows, i, z, &failed);
    if (quantised) {
        plan.a1_codes = take(&end, tokens, h, 1, &failed);
        plan.a1_scales = take(&end, tokens, h / MREF_BLOCK, 1, &failed);
        plan.a2_codes = take(&end, rows, i, 1, &failed);
        plan.a2_scales = take(&end, rows, i / MREF_BLOCK, 1, &failed);
    }
    if (!mref_integer(shape)) {
        uint64_t a1 = 0, a2 = 0;
        if (!moert_mul(tokens, h, &a1) || !moert_mul(rows, i, &a2))
            failed = 1;
        plan.wide = take(&end, a1 > a2 ? a1 : a2, 1, sizeof(double), &failed);
    }
    if (failed || widest > UINT64_MAX / 16)
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large",
                          "the workspace of %" PRIu64 " tokens exceeds 64-bit sizes", tokens);
    plan.base = plan.scratch = end;
    plan.scratch_bytes = mref_row_bytes(widest);
    *ret = plan;
    return MOERT_OK;
}

uint32_t mref_scratch_threads(uint32_t compute_units)
{
    return compute_units > LEAST_THREADS ? compute_units : LEAST_THREADS;
}
