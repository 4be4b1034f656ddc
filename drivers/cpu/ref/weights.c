/* SPDX-License-Identifier: Apache-2.0
 * drivers/cpu/ref/weights.c: the prepared layer. Layout "cpu.canonical.<scheme>" version 1: expert after expert, each
 * w13, w13 scales (or codebooks), w13 bias, w2, w2 scales, w2 bias, dense, every part padded with zeros to 64 bytes;
 * biases as F32. An expert's storage is claimed before it is written, so several threads may load different ranges. */
#include "config.h"

#include "core/base/checked.h"
#include "core/base/error.h"
#include "drivers/cpu/ref/ref.h"

#include <inttypes.h>
#include <moert/lutb.h>
#include <stdio.h>

static struct mref_layer *from_handle(moert_drv_layer *layer)
{
    return (struct mref_layer *)layer;
}

/* ---- life ---- */

static void *layer_alloc(const moert_drv_device *device, uint64_t bytes, struct moert_error *err)
{
    const struct moert_host *host = device->drv->host;
    void *memory = host->alloc(host->ctx, bytes, 256);

    if (!memory) {
        uint64_t total, available;
        mcpu_memory(&total, &available);
        moert_fail(err, MOERT_E_NOMEM, "host-memory", "cpu: %" PRIu64 " bytes of weights wanted, %" PRIu64 " free",
                   bytes, available);
    }
    return memory;
}

static void layer_free(const moert_drv_device *device, void *memory)
{
    if (memory)
        device->drv->host->free(device->drv->host->ctx, memory);
}

void mref_release(moert_drv_layer *handle)
{
    struct mref_layer *layer = from_handle(handle);

    if (!layer)
        return;
    layer_free(layer->device, layer->weights);
    layer_free(layer->device, layer->imported);
    layer_free(layer->device, (void *)layer->state);
    layer_free(layer->device, layer);
}

moert_status_t mref_create(moert_drv_device *device, const struct moert_backend *backend,
                           const struct moert_layer_config *config, moert_drv_layer **ret, struct moert_error *err)
{
    struct mref_shape shape;
    struct mref_layer *layer;
    moert_status_t status = mref_shape(config, &shape, err);

    (void)backend;
    if (status)
        return status;
    if (!device || !ret)
        return moert_fail_null(err, device ? "ret" : "device");
    layer = layer_alloc(device, sizeof(*layer), err);
    if (!layer)
        return MOERT_E_NOMEM;
    memset(layer, 0, sizeof(*layer));
    layer->device = device;
    layer->shape = shape;
    layer->total_bytes = shape.expert_bytes * shape.local;
    layer->state = layer_alloc(device, shape.local * sizeof(*layer->state), err);
    layer->imported = layer->state ? layer_alloc(device, shape.local * sizeof(*layer->imported), err) : NULL;
    layer->weights = layer->imported ? layer_alloc(device, layer->total_bytes, err) : NULL;
    if (!layer->weights) {
        mref_release((moert_drv_layer *)layer);
        return MOERT_E_NOMEM;
    }
    for (uint32_t e = 0; e < shape.local; e++)
        atomic_init(&layer->state[e], MREF_EMPTY);
    memset(layer->imported, 0, shape.local * sizeof(*layer->imported));
    *ret = (moert_drv_layer *)layer;
    return MOERT_OK;
}

/* ---- canonical tensors ---- */

/* The tensors of a call, checked: addresses of element 0 of each part. */
struct source {
    const struct moert_drv_tensor *tensor[MREF_PARTS];
    const uint8_t *data[MREF_PARTS];
};

/* What part p of `count` experts must be. Returns 0 when the scheme has no such part. */
static int wanted(const struct mref_shape *shape, int part, uint64_t count, struct mcpu_want *want)
{
    static const moert_dtype_t plain[MOERT_SCHEME_COUNT] = {
        [MOERT_SCHEME_BF16] = MOERT_BF16, [MOERT_SCHEME_F16] = MOERT_F16, [MOERT_SCHEME_F32] = MOERT_F32};
    static const char *const names[MREF_PARTS] = {"w13", "w13_scale", "w13_bias", "w2", "w2_scale", "w2_bias"};
    int first = part < MREF_W2, kind = part % MREF_W2;
    uint64_t n = first ? shape->rows13 : shape->hidden, k = first ? shape->hidden : shape->inner;

    if (!shape->part[part].bytes)
        return 0;
    *want = (struct mcpu_want){.name = names[part], .code = "tensor", .rank = 3, .shape = {count, n, k}};
    if (kind == MREF_W13_BIAS) {
        want->dtypes = MCPU_FLOATS;
        want->rank = 2;
    } else if (shape->weights == MOERT_SCHEME_LUT_B) {
        want->dtypes = kind == MREF_W13 ? MCPU_DTYPE(MOERT_U8) : MCPU_DTYPE(MOERT_F8_E4M3) | MCPU_DTYPE(MOERT_U8);
        want->rank = 4;
        want->shape[1] = n / MOERT_LUTB_ROWS;
        want->shape[2] = k / MOERT_LUTB_COLS;
        want->shape[3] = kind == MREF_W13 ? MOERT_LUTB_PACKED : MOERT_LUTB_LEVELS;
    } else if (shape->weights == MOERT_SCHEME_MXFP8 && kind == MREF_W13_SCALE) {
        want->dtypes = MCPU_DTYPE(MOERT_U8) | MCPU_DTYPE(MOERT_F8_E8M0);
        want->shape[2] = k / MREF_BLOCK;
    } else {
        want->dtypes = MCPU_DTYPE(shape->weights == MOERT_SCHEME_MXFP8 ? MOERT_F8_E4M3 : plain[shape->weights]);
    }
    return 1;
}

static moert_status_t check_source(const struct mref_shape *shape, const struct moert_expert_weights *weights,
                                   struct source *ret, struct moert_error *err)
{
    const struct moert_drv_tensor *const tensors[MREF_PARTS] = {&weights->w13, &weights->w13_scale, &weights->w13_bias,
                                                                &weights->w2,  &weights->w2_scale,  &weights->w2_bias};

    for (int part = 0; part < MREF_PARTS; part++) {
        struct mcpu_want want;
        uint8_t *data = NULL;
        moert_status_t status;
        ret->tensor[part] = tensors[part];
        ret->data[part] = NULL;
        if (!wanted(shape, part, weights->count, &want))
            continue;
        if (!mcpu_given(tensors[part]))
            return moert_fail(err, MOERT_E_MISSING, "tensor-missing", "no tensor \"%s\" was given", want.name);
        status = mcpu_tensor(tensors[part], &want, &data, err);
        if (status)
            return status;
        ret->data[part] = data;
    }
    return MOERT_OK;
}

static moert_status_t check_range(const struct mref_layer *layer, const struct moert_expert_weights *weights,
                                  struct source *ret, struct moert_error *err)
{
    moert_status_t status;

    if (!layer || !weights)
        return moert_fail_null(err, layer ? "weights" : "layer");
    status = moert_check_size(err, "moert_expert_weights", weights->size,
                              MCPU_SIZE_TO(struct moert_expert_weights, w2_bias));
    if (status)
        return status;
    if ((uint64_t)weights->first + weights->count > layer->shape.local)
        return moert_fail(err, MOERT_E_SHAPE, "experts", "experts %u..%" PRIu64 " given, the layer has %u",
                          weights->first, (uint64_t)weights->first + weights->count - 1, layer->shape.local);
    return check_source(&layer->shape, weights, ret, err);
}

/* Copies the elements of axes [axis, rank) into dense memory; returns the end of what was written. */
static uint8_t *gather(const struct moert_drv_tensor *t, uint32_t axis, const uint8_t *from, uint8_t *to)
{
    uint64_t element = mcpu_dtype_size(t->dtype), dense = 1;
    uint32_t i = t->rank;

    while (i > axis && (t->shape[i - 1] == 1 || t->strides[i - 1] == (int64_t)dense))
        dense *= t->shape[--i];
    if (i <= axis) {
        memcpy(to, from, dense * element);
        return to + dense * element;
    }
    for (uint64_t n = 0; n < t->shape[axis]; n++)
        to = gather(t, axis + 1, from + (int64_t)n * t->strides[axis] * (int64_t)element, to);
    return to;
}

static void gather_bias(const struct moert_drv_tensor *t, const uint8_t *from, uint8_t *to)
{
    int64_t pitch = t->strides[1] * (int64_t)mcpu_dtype_size(t->dtype);

    for (uint64_t n = 0; n < t->shape[1]; n++) {
        float bias = mcpu_float_at(from + (int64_t)n * pitch, t->dtype);
        memcpy(to + n * sizeof(bias), &bias, sizeof(bias));
    }
}

/* Expert `i` of the call into its storage. */
static void load_expert(const struct mref_shape *shape, const struct source *source, uint32_t i, uint8_t *storage)
{
    for (int part = 0; part < MREF_PARTS; part++) {
        const struct moert_drv_tensor *t = source->tensor[part];
        uint8_t *to = storage + shape->part[part].offset, *end = to + shape->part[part].bytes;
        uint64_t next = part + 1 < MREF_PARTS ? shape->part[part + 1].offset : shape->expert_bytes;
        if (shape->part[part].bytes) {
            int64_t pitch = t->shape[0] > 1 ? t->strides[0] * (int64_t)mcpu_dtype_size(t->dtype) : 0;
            const uint8_t *from = source->data[part] + (int64_t)i * pitch;
            if (part == MREF_W13_BIAS || part == MREF_W2_BIAS)
                gather_bias(t, from, to);
            else
                gather(t, 1, from, to);
        }
        memset(end, 0, (size_t)(storage + next - end));
    }
}

/* A NaN level would make every weight that uses it NaN: such a file is damaged. */
static moert_status_t check_codebooks(const struct mref_shape *shape, const uint8_t *storage, uint32_t expert,
                                      struct moert_error *err)
{
    static const int parts[] = {MREF_W13_SCALE, MREF_W2_SCALE};

    for (size_t i = 0; shape->weights == MOERT_SCHEME_LUT_B && i < 2; i++) {
        moert_status_t status = moert_lutb_check_codebook(storage + shape->part[parts[i]].offset,
                                                          shape->part[parts[i]].bytes / MOERT_LUTB_LEVELS, err);
        if (status)
            return moert_prefix(err, status, "expert %u, %s: ", expert, i ? "w2_codebook" : "w13_codebook");
    }
    return MOERT_OK;
}

/* ---- prepare and update ---- */

static void set_state(struct mref_layer *layer, uint32_t first, uint32_t count, uint32_t state)
{
    for (uint32_t e = first; e < first + count; e++)
        atomic_store(&layer->state[e], state);
    if (state == MREF_READY)
        atomic_fetch_add(&layer->ready, count);
}

/* Takes every expert of the range from EMPTY to LOADING, or none. */
static moert_status_t claim(struct mref_layer *layer, uint32_t first, uint32_t count, struct moert_error *err)
{
    for (uint32_t e = first; e < first + count; e++) {
        uint32_t expected = MREF_EMPTY;
        int partial = layer->imported[e] != 0;
        if (!partial && atomic_compare_exchange_strong(&layer->state[e], &expected, MREF_LOADING))
            continue;
        set_state(layer, first, e - first, MREF_EMPTY);
        return moert_fail(err, MOERT_E_USAGE, "state",
                          "expert %u has weights already; update replaces them in a live layer", e);
    }
    return MOERT_OK;
}

moert_status_t mref_prepare(moert_drv_layer *handle, const struct moert_expert_weights *weights,
                            struct moert_error *err)
{
    struct mref_layer *layer = from_handle(handle);
    struct source source;
    moert_status_t status = check_range(layer, weights, &source, err);

    if (!status)
        status = claim(layer, weights->first, weights->count, err);
    if (status)
        return status;
    for (uint32_t i = 0; !status && i < weights->count; i++) {
        uint32_t expert = weights->first + i;
        uint8_t *storage = layer->weights + expert * layer->shape.expert_bytes;
        load_expert(&layer->shape, &source, i, storage);
        status = check_codebooks(&layer->shape, storage, expert, err);
    }
    set_state(layer, weights->first, weights->count, status ? MREF_EMPTY : MREF_READY);
    return status;
}

/* A live expert must not be half replaced by weights that are then refused: their codebooks are looked at first. */
static moert_status_t check_update(const struct mref_layer *layer, const struct moert_expert_weights *weights,
                                   const struct source *source, struct moert_error *err)
{
    moert_status_t status = MOERT_OK;
    uint8_t *copy;

    for (uint32_t e = weights->first; e < weights->first + weights->count; e++)
        if (atomic_load(&layer->state[e]) != MREF_READY)
            return moert_fail(err, MOERT_E_USAGE, "state", "expert %u has no weights yet; prepare gives the first", e);
    if (layer->shape.weights != MOERT_SCHEME_LUT_B)
        return MOERT_OK;
    copy = layer_alloc(layer->device, layer->shape.expert_bytes, err);
    if (!copy)
        return MOERT_E_NOMEM;
    for (uint32_t i = 0; !status && i < weights->count; i++) {
        load_expert(&layer->shape, source, i, copy);
        status = check_codebooks(&layer->shape, copy, weights->first + i, err);
    }
    layer_free(layer->device, copy);
    return status;
}

moert_status_t mref_update(moert_drv_layer *handle, moert_drv_queue *queue, const struct moert_expert_weights *weights,
                           struct moert_error *err)
{
    struct mref_layer *layer = from_handle(handle);
    struct source source;
    moert_status_t status = check_range(layer, weights, &source, err);

    if (!status && !queue)
        status = moert_fail_null(err, "queue");
    if (!status)
        status = check_update(layer, weights, &source, err);
    if (status)
        return status;
    for (uint32_t i = 0; i < weights->count; i++)
        load_expert(&layer->shape, &source, i, layer->weights + (weights->first + i) * layer->shape.expert_bytes);
    queue->last++;
    return MOERT_OK;
}

/* ---- export and import ---- */

static moert_status_t check_bytes(const struct mref_layer *layer, uint64_t offset, uint64_t bytes, const void *host,
                                  struct moert_error *err)
{
    if (!layer || (bytes && !host))
        return moert_fail_null(err, layer ? "host" : "layer");
    if (offset > layer->total_bytes || bytes > layer->total_bytes - offset)
        return moert_fail(err, MOERT_E_VALUE, "range",
                          "%" PRIu64 " bytes at offset %" PRIu64 " of prepared weights of %" PRIu64 " bytes", bytes,
                          offset, layer->total_bytes);
    return MOERT_OK;
}

moert_status_t mref_export(moert_drv_layer *handle, uint64_t offset, uint64_t bytes, void *host,
                           struct moert_error *err)
{
    struct mref_layer *layer = from_handle(handle);
    moert_status_t status = check_bytes(layer, offset, bytes, host, err);

    if (status)
        return status;
    if (atomic_load(&layer->ready) < layer->shape.local)
        return moert_fail(err, MOERT_E_USAGE, "state", "%u of %u experts have weights; all are needed",
                          atomic_load(&layer->ready), layer->shape.local);
    if (bytes)
        memcpy(host, layer->weights + offset, bytes);
    return MOERT_OK;
}

static moert_status_t check_layout(const struct mref_layer *layer, const struct moert_layout *layout,
                                   struct moert_error *err)
{
    const char *tag = mref_layout_tag(layer->shape.weights);
    moert_status_t status;

    if (!layout)
        return moert_fail_null(err, "layout");
    status = moert_check_size(err, "moert_layout", layout->size, MCPU_SIZE_TO(struct moert_layout, bytes));
    if (status)
        return status;
    if (layout->version == MREF_LAYOUT_VERSION && layout->bytes == layer->total_bytes &&
        !strncmp(layout->tag, tag, sizeof(layout->tag)))
        return MOERT_OK;
    return moert_fail(err, MOERT_E_VALUE, "layout",
                      "layout %.63s version %u of %" PRIu64 " bytes, expected %s version %d of %" PRIu64, layout->tag,
                      layout->version, layout->bytes, tag, MREF_LAYOUT_VERSION, layer->total_bytes);
}

/* The part of an import that falls into one expert. Pieces of an expert come in ascending order without gaps, so that
 * its end is known; experts may come in any order. */
static moert_status_t import_piece(struct mref_layer *layer, uint32_t expert, uint64_t at, uint64_t bytes,
                                   const uint8_t *host, struct moert_error *err)
{
    uint8_t *storage = layer->weights + expert * layer->shape.expert_bytes;
    moert_status_t status;

    if (atomic_load(&layer->state[expert]) != MREF_EMPTY)
        return moert_fail(err, MOERT_E_USAGE, "state", "expert %u has weights already", expert);
    if (at != layer->imported[expert])
        return moert_fail(err, MOERT_E_USAGE, "state",
                          "expert %u: piece at byte %" PRIu64 ", the next one starts at %" PRIu64, expert, at,
                          layer->imported[expert]);
    memcpy(storage + at, host, bytes);
    layer->imported[expert] += bytes;
    if (layer->imported[expert] < layer->shape.expert_bytes)
        return MOERT_OK;
    layer->imported[expert] = 0;
    status = check_codebooks(&layer->shape, storage, expert, err);
    if (!status)
        set_state(layer, expert, 1, MREF_READY);
    return status;
}

moert_status_t mref_import(moert_drv_layer *handle, const struct moert_layout *layout, uint64_t offset, uint64_t bytes,
                           const void *host, struct moert_error *err)
{
    struct mref_layer *layer = from_handle(handle);
    moert_status_t status = check_bytes(layer, offset, bytes, host, err);
    const uint8_t *from = host;

    if (!status)
        status = check_layout(layer, layout, err);
    while (!status && bytes) {
        uint64_t size = layer->shape.expert_bytes, at = offset % size;
        uint64_t piece = bytes < size - at ? bytes : size - at;
        status = import_piece(layer, (uint32_t)(offset / size), at, piece, from, err);
        offset += piece;
        from += piece;
        bytes -= piece;
    }
    return status;
}

/* ---- counters ---- */

moert_status_t mref_counters(moert_drv_layer *handle, struct moert_counters *ret, struct moert_error *err)
{
    struct mref_layer *layer = from_handle(handle);
    moert_status_t status;

    if (!layer || !ret)
        return moert_fail_null(err, layer ? "ret" : "layer");
    status = moert_check_size(err, "moert_counters", ret->size, MCPU_SIZE_TO(struct moert_counters, poisoned_blocks));
    if (status)
        return status;
    memset(&ret->by_implementation, 0, sizeof(ret->by_implementation));
    ret->implementations = 1;
    snprintf(ret->by_implementation[0].name, sizeof(ret->by_implementation[0].name), "reference");
    ret->by_implementation[0].runs = atomic_load(&layer->runs);
    ret->by_implementation[0].tokens = atomic_load(&layer->tokens);
    ret->weight_bytes = atomic_load(&layer->weight_bytes);
    ret->blocks = 0;
    ret->poisoned_blocks = atomic_load(&layer->poisoned_blocks);
    return MOERT_OK;
}
