/* core/layer/weights.c: canonical expert weights into the backend's layout: checked against the description, seen as
 * host buffers without a copy, prepared; and the prepared bytes out and in. */
#include "config.h"

#include "core/layer/layer.h"

#include "core/base/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { W13, W13_SCALE, W13_BIAS, W2, W2_SCALE, W2_BIAS, PARTS };

/* A tensor of the canonical form (layer.md 9.1): rank 0 = the scheme has none. */
struct part {
    const char *name;
    uint32_t rank;
    uint64_t shape[4];
    moert_dtype_t dtypes[4]; /* accepted, NONE-terminated */
};

static const moert_dtype_t plain_dtype[MOERT_SCHEME_COUNT] = {
    [MOERT_SCHEME_BF16] = MOERT_BF16, [MOERT_SCHEME_F16] = MOERT_F16, [MOERT_SCHEME_F32] = MOERT_F32};

/* w: weight [n,rows,cols] or its packed form; s: scales or codebooks. */
static void describe_matrix(const struct moert_layer_config *c, uint64_t n, uint64_t rows, uint64_t cols,
                            const char *const names[3], struct part *w, struct part *s)
{
    switch (c->weight_scheme) {
    case MOERT_SCHEME_MXFP8:
        *w = (struct part){names[0], 3, {n, rows, cols}, {MOERT_F8_E4M3}};
        *s = (struct part){names[1], 3, {n, rows, cols / 32}, {MOERT_U8, MOERT_F8_E8M0}};
        break;
    case MOERT_SCHEME_LUT_B: /* tiles of 8 rows by 64 columns: 192 bytes of 3-bit indices, 8 entries */
        *w = (struct part){names[2], 4, {n, rows / 8, cols / 64, 192}, {MOERT_U8}};
        *s = (struct part){names[1], 4, {n, rows / 8, cols / 64, 8}, {MOERT_F8_E4M3}};
        break;
    default:
        *w = (struct part){names[0], 3, {n, rows, cols}, {plain_dtype[c->weight_scheme]}};
        *s = (struct part){.name = names[1]};
    }
}

static void describe(const struct moert_layer_config *c, uint64_t n, struct part parts[PARTS])
{
    int lutb = c->weight_scheme == MOERT_SCHEME_LUT_B;
    const char *const names13[] = {"w13_weight", lutb ? "w13_weight_codebook" : "w13_weight_scale",
                                   "w13_weight_packed"};
    const char *const names2[] = {"w2_weight", lutb ? "w2_weight_codebook" : "w2_weight_scale", "w2_weight_packed"};
    uint64_t n1 = moert_layer_config_n1(c), h = c->hidden_size, i = c->intermediate_size;
    uint32_t rank = c->has_bias ? 2 : 0;

    describe_matrix(c, n, n1, h, names13, &parts[W13], &parts[W13_SCALE]);
    describe_matrix(c, n, h, i, names2, &parts[W2], &parts[W2_SCALE]);
    parts[W13_BIAS] = (struct part){"w13_bias", rank, {n, n1}, {MOERT_F32, MOERT_BF16, MOERT_F16}};
    parts[W2_BIAS] = (struct part){"w2_bias", rank, {n, h}, {MOERT_F32, MOERT_BF16, MOERT_F16}};
}

/* "[2,3]" */
static const char *shape_text(uint32_t rank, const uint64_t *shape, char out[128])
{
    size_t n = 0;

    out[n++] = '[';
    for (uint32_t i = 0; i < rank && n < 120; i++)
        n += (size_t)snprintf(out + n, 128 - n, "%s%llu", i ? "," : "", (unsigned long long)shape[i]);
    snprintf(out + (n < 126 ? n : 126), 2, "]");
    return out;
}

static moert_status_t check_dtype(const struct part *p, moert_dtype_t dtype, struct moert_error *err)
{
    const char *have = moert_dtype_name(dtype), *names[3] = {"", "", ""};

    for (int i = 0; i < 3 && p->dtypes[i]; i++) {
        if (dtype == p->dtypes[i])
            return MOERT_OK;
        names[i] = moert_dtype_name(p->dtypes[i]);
    }
    return moert_fail(err, MOERT_E_DTYPE, "tensor-dtype", "%s is %s, expected %s%s%s%s%s", p->name,
                      have ? have : "unknown", names[0], *names[1] ? " or " : "", names[1], *names[2] ? " or " : "",
                      names[2]);
}

static moert_status_t check_place(const struct moert_layer *layer, const struct part *p, const struct moert_tensor *t,
                                  struct moert_error *err)
{
    uint64_t below, above;

    if (t->data && t->buffer)
        return moert_fail(err, MOERT_E_USAGE, "flag", "%s has both host memory and a buffer; give one", p->name);
    if (!moert_tensor_extent(t, &below, &above))
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large", "%s: its strides exceed 64-bit offsets", p->name);
    if (!t->buffer)
        return MOERT_OK;
    if (t->buffer->context != layer->context || t->buffer->device != layer->device_index)
        return moert_fail(err, MOERT_E_USAGE, "device-mismatch", "%s is on %s, the layer on %s", p->name,
                          t->buffer->context->devices[t->buffer->device]->desc.id, layer->device->desc.id);
    if (!moert_tensor_is_dense(t))
        return moert_fail(err, MOERT_E_SHAPE, "tensor-shape", "%s is on the device and has gaps; it must be dense",
                          p->name);
    if (t->offset > t->buffer->bytes || above > t->buffer->bytes - t->offset)
        return moert_fail(err, MOERT_E_SHAPE, "tensor-shape", "%s ends %llu bytes into a buffer of %llu", p->name,
                          (unsigned long long)(t->offset + above), (unsigned long long)t->buffer->bytes);
    return MOERT_OK;
}

static moert_status_t check_part(const struct moert_layer *layer, const struct part *p, const struct moert_tensor *t,
                                 struct moert_error *err)
{
    char have[128], want[128];
    moert_status_t status;

    if (!moert_tensor_given(t))
        return p->rank ? moert_fail(err, MOERT_E_MISSING, "tensor-missing", "tensor \"%s\" is absent", p->name)
                       : MOERT_OK;
    if (!p->rank)
        return moert_fail(err, MOERT_E_VALUE, "tensor-extra", "%s is given, the description has none (%s%s)", p->name,
                          moert_scheme_name(layer->config.weight_scheme), layer->config.has_bias ? "" : ", no bias");
    status = check_dtype(p, t->dtype, err);
    if (status)
        return status;
    if (t->rank != p->rank || memcmp(t->shape, p->shape, p->rank * sizeof(*t->shape)))
        return moert_fail(err, MOERT_E_SHAPE, "tensor-shape", "%s is %s, expected %s", p->name,
                          shape_text(t->rank <= MOERT_MAX_RANK ? t->rank : 0, t->shape, have),
                          shape_text(p->rank, p->shape, want));
    return check_place(layer, p, t, err);
}

static void tensors_of(const struct moert_layer_weights *w, const struct moert_tensor *ret[PARTS])
{
    ret[W13] = &w->w13;
    ret[W13_SCALE] = &w->w13_scale;
    ret[W13_BIAS] = &w->w13_bias;
    ret[W2] = &w->w2;
    ret[W2_SCALE] = &w->w2_scale;
    ret[W2_BIAS] = &w->w2_bias;
}

static moert_status_t check_weights(const struct moert_layer *layer, const struct moert_layer_weights *w,
                                    struct moert_error *err)
{
    const struct moert_tensor *tensors[PARTS];
    struct part parts[PARTS];
    moert_status_t status = moert_check_size(err, "moert_layer_weights", w->size, sizeof(*w));
    uint32_t local = layer->config.num_local_experts;

    if (status)
        return status;
    if (!w->count || w->first >= local || w->count > local - w->first)
        return moert_fail(err, MOERT_E_VALUE, "tensor-extra", "experts %u..%llu given, local experts are 0..%u",
                          w->first, (unsigned long long)w->first + w->count - (w->count > 0), local - 1);
    describe(&layer->config, w->count, parts);
    tensors_of(w, tensors);
    for (int i = 0; i < PARTS && !status; i++)
        status = check_part(layer, &parts[i], tensors[i], err);
    return status;
}

/* ------------------------------------------------------------------ handing over */

/* The driver's view of one call's tensors; what was made for it. */
struct handover {
    moert_drv_buffer *imported[PARTS];
    void *dense[PARTS];
};

/* Host memory becomes a HOST buffer; strided or misaligned memory is copied first. */
static moert_status_t hand_over(const struct moert_layer *layer, const struct moert_tensor *t, int i,
                                struct handover *over, struct moert_drv_tensor *ret, struct moert_error *err)
{
    moert_dtype_t dtype = t->dtype == MOERT_F8_E8M0 ? MOERT_U8 : t->dtype; /* one tag for scale bytes */
    uint64_t bytes = moert_dtype_size(t->dtype);
    const void *data = t->data;
    moert_status_t status;

    if (!moert_tensor_given(t))
        return MOERT_OK;
    if (t->buffer) {
        *ret = moert_drv_dense(t->buffer->handle, t->offset, dtype, t->rank, t->shape);
        return MOERT_OK;
    }
    for (uint32_t k = 0; k < t->rank; k++)
        if (!moert_mul(bytes, t->shape[k], &bytes))
            return moert_fail(err, MOERT_E_TOO_LARGE, "too-large", "a weight tensor exceeds 64-bit sizes");
    if (!moert_tensor_is_dense(t) || (uintptr_t)data % moert_dtype_size(t->dtype)) {
        over->dense[i] = bytes <= SIZE_MAX ? malloc((size_t)bytes) : NULL;
        if (!over->dense[i])
            return moert_fail(err, MOERT_E_NOMEM, "host-memory", "%llu bytes wanted to copy a strided weight",
                              (unsigned long long)bytes);
        moert_gather(t, over->dense[i]);
        data = over->dense[i];
    }
    status = layer->device->driver->table->device->buffer_import(
        layer->device->handle, MOERT_MEMORY_HOST, (uint64_t)(uintptr_t)data, bytes, &over->imported[i], err);
    if (!status)
        *ret = moert_drv_dense(over->imported[i], 0, dtype, t->rank, t->shape);
    return status;
}

static void take_back(const struct moert_layer *layer, struct handover *over)
{
    for (int i = 0; i < PARTS; i++) {
        if (over->imported[i])
            layer->device->driver->table->device->buffer_free(layer->device->handle, over->imported[i]);
        free(over->dense[i]);
    }
}

static int holds_host(const struct handover *over)
{
    for (int i = 0; i < PARTS; i++)
        if (over->imported[i])
            return 1;
    return 0;
}

/* queue NULL: prepare; else update on that queue, waited for when host views go away, also after a failure. */
static moert_status_t give(struct moert_layer *layer, moert_queue_t *queue, const struct moert_layer_weights *w,
                           struct moert_error *err)
{
    const struct moert_device_ops *ops = layer->device->driver->table->device;
    struct moert_expert_weights views = {.size = sizeof(views), .first = w->first, .count = w->count};
    struct moert_drv_tensor *to[PARTS] = {&views.w13, &views.w13_scale, &views.w13_bias,
                                          &views.w2,  &views.w2_scale,  &views.w2_bias};
    const struct moert_tensor *from[PARTS];
    struct handover over = {0};
    moert_status_t status = MOERT_OK;

    tensors_of(w, from);
    for (int i = 0; i < PARTS && !status; i++)
        status = hand_over(layer, from[i], i, &over, to[i], err);
    if (!status && !queue)
        status = layer->backend->ops->prepare(layer->handle, &views, err);
    if (!status && queue) {
        status = layer->backend->ops->update(layer->handle, queue->handle, &views, err);
        if (holds_host(&over)) {
            moert_status_t waited =
                ops->queue_wait(queue->handle, ops->queue_last(queue->handle), UINT64_MAX, NULL, status ? NULL : err);
            status = status ? status : waited;
        }
    }
    take_back(layer, &over);
    return status;
}

moert_status_t moert_layer_set_weights(moert_layer_t *layer, const struct moert_layer_weights *weights,
                                       struct moert_error *err)
{
    moert_status_t status;

    if (!layer || !weights)
        return moert_fail_null(err, layer ? "weights" : "layer");
    status = check_weights(layer, weights, err);
    for (uint32_t i = 0; !status && i < weights->count; i++)
        if (layer->set[weights->first + i])
            status = moert_fail(err, MOERT_E_USAGE, "state",
                                "expert %u already has weights; moert_layer_update_weights replaces them",
                                weights->first + i);
    if (!status)
        status = give(layer, NULL, weights, err);
    if (status)
        return moert_layer_prefix(&layer->config, err, status);
    memset(layer->set + weights->first, 1, weights->count);
    layer->set_count += weights->count;
    return MOERT_OK;
}

moert_status_t moert_layer_update_weights(moert_layer_t *layer, moert_queue_t *queue,
                                          const struct moert_layer_weights *weights, struct moert_error *err)
{
    moert_status_t status;

    if (!layer || !queue || !weights)
        return moert_fail_null(err, !layer ? "layer" : queue ? "weights" : "queue");
    status = moert_layer_check_queue(layer, queue, err);
    if (!status && layer->set_count < layer->config.num_local_experts)
        status = moert_fail(err, MOERT_E_USAGE, "state", "layer has weights of %u of %u experts; set them first",
                            layer->set_count, layer->config.num_local_experts);
    if (!status)
        status = check_weights(layer, weights, err);
    if (!status)
        status = give(layer, queue, weights, err);
    return moert_layer_prefix(&layer->config, err, status);
}

/* ------------------------------------------------------------------ prepared bytes */

moert_status_t moert_layer_layout(const moert_layer_t *layer, struct moert_layout *ret, struct moert_error *err)
{
    struct moert_layout layout = {.size = sizeof(layout)};
    moert_status_t status;
    uint32_t size;

    if (!layer || !ret)
        return moert_fail_null(err, layer ? "ret" : "layer");
    size = ret->size;
    status = moert_check_size(err, "moert_layout", size, sizeof(*ret));
    if (!status)
        status = layer->backend->ops->layout(layer->backend, &layer->device->desc, &layer->config, &layout, err);
    if (status)
        return moert_layer_prefix(&layer->config, err, status);
    *ret = layout;
    ret->size = size;
    return MOERT_OK;
}

static moert_status_t check_range(const struct moert_layout *own, uint64_t offset, uint64_t bytes,
                                  struct moert_error *err)
{
    if (offset <= own->bytes && bytes <= own->bytes - offset)
        return MOERT_OK;
    return moert_fail(err, MOERT_E_VALUE, "layout", "%llu bytes at offset %llu pass the end of %llu prepared bytes",
                      (unsigned long long)bytes, (unsigned long long)offset, (unsigned long long)own->bytes);
}

static moert_status_t export_bytes(moert_layer_t *layer, uint64_t offset, uint64_t bytes, void *host,
                                   struct moert_error *err)
{
    struct moert_layout own = {.size = sizeof(own)};
    moert_status_t status = moert_layer_layout(layer, &own, err);

    if (status)
        return status;
    if (!MOERT_DRV_OP(layer->backend->ops, export_weights))
        return moert_fail(err, MOERT_E_UNSUPPORTED, "layout", "%s does not export its weights", layer->backend->name);
    if (layer->set_count < layer->config.num_local_experts)
        return moert_fail(err, MOERT_E_USAGE, "state", "layer has weights of %u of %u experts", layer->set_count,
                          layer->config.num_local_experts);
    status = check_range(&own, offset, bytes, err);
    return status ? status : layer->backend->ops->export_weights(layer->handle, offset, bytes, host, err);
}

moert_status_t moert_layer_export(moert_layer_t *layer, uint64_t offset, uint64_t bytes, void *host,
                                  struct moert_error *err)
{
    if (!layer || (!host && bytes))
        return moert_fail_null(err, layer ? "host" : "layer");
    return moert_layer_prefix(&layer->config, err, export_bytes(layer, offset, bytes, host, err));
}

/* The layout's identity: its tag, version and size. */
static moert_status_t check_layout(const struct moert_layout *own, const struct moert_layout *given,
                                   struct moert_error *err)
{
    moert_status_t status = moert_check_size(err, "moert_layout", given->size, sizeof(*given));

    if (status)
        return status;
    if (own->version == given->version && own->bytes == given->bytes &&
        !strncmp(own->tag, given->tag, sizeof(own->tag)))
        return MOERT_OK;
    return moert_fail(err, MOERT_E_VALUE, "layout",
                      "weights have layout %.63s version %u of %llu bytes; this layer has %.63s version %u of %llu",
                      given->tag, given->version, (unsigned long long)given->bytes, own->tag, own->version,
                      (unsigned long long)own->bytes);
}

static moert_status_t import_bytes(moert_layer_t *layer, const struct moert_layout *layout, uint64_t offset,
                                   uint64_t bytes, const void *host, struct moert_error *err)
{
    struct moert_layout own = {.size = sizeof(own)};
    moert_status_t status = moert_layer_layout(layer, &own, err);

    if (!status && !MOERT_DRV_OP(layer->backend->ops, import_weights))
        status = moert_fail(err, MOERT_E_UNSUPPORTED, "layout", "%s does not import weights", layer->backend->name);
    if (!status)
        status = check_layout(&own, layout, err);
    if (!status)
        status = check_range(&own, offset, bytes, err);
    if (!status && layer->set_count && layer->imported < own.bytes)
        status = moert_fail(err, MOERT_E_USAGE, "state", "layer already has weights; import into a fresh one");
    if (!status && (layer->imported == own.bytes || offset != layer->imported))
        status = moert_fail(err, MOERT_E_USAGE, "state", "import goes on at offset %llu, got %llu",
                            (unsigned long long)layer->imported, (unsigned long long)offset);
    if (!status)
        status = layer->backend->ops->import_weights(layer->handle, layout, offset, bytes, host, err);
    if (status)
        return status;
    layer->imported += bytes;
    if (layer->imported == own.bytes) {
        layer->set_count = layer->config.num_local_experts;
        memset(layer->set, 1, layer->set_count);
    }
    return MOERT_OK;
}

moert_status_t moert_layer_import(moert_layer_t *layer, const struct moert_layout *layout, uint64_t offset,
                                  uint64_t bytes, const void *host, struct moert_error *err)
{
    if (!layer || !layout || (!host && bytes))
        return moert_fail_null(err, !layer ? "layer" : layout ? "host" : "layout");
    return moert_layer_prefix(&layer->config, err, import_bytes(layer, layout, offset, bytes, host, err));
}
