/* core/layer/dense.c: the dense parts around the experts: router gate, correction bias, separate shared expert. Host
 * copies, but for the shared expert, which is a layer of its own. */
#include "config.h"

#include "core/layer/layer.h"

#include <moert/float8.h>
#include <moert/routing.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int is_float(moert_dtype_t dtype)
{
    return dtype == MOERT_F32 || dtype == MOERT_BF16 || dtype == MOERT_F16;
}

/* A host tensor of floats [rows, cols] (cols 0: rank 1), copied dense into *ret. */
static moert_status_t copy_floats(const char *name, const struct moert_tensor *t, uint64_t rows, uint64_t cols,
                                  void **ret, struct moert_error *err)
{
    const char *dtype = moert_dtype_name(t->dtype);
    uint64_t below, above, bytes = moert_dtype_size(t->dtype) * rows * (cols ? cols : 1);

    if (t->buffer)
        return moert_fail(err, MOERT_E_USAGE, "device-mismatch", "%s is on a device; it must be host memory", name);
    if (!is_float(t->dtype))
        return moert_fail(err, MOERT_E_DTYPE, "tensor-dtype", "%s is %s, expected F32, BF16 or F16", name,
                          dtype ? dtype : "unknown");
    if (t->rank != (cols ? 2 : 1) || t->shape[0] != rows || (cols && t->shape[1] != cols) ||
        !moert_tensor_extent(t, &below, &above))
        return moert_fail(err, MOERT_E_SHAPE, "tensor-shape",
                          cols ? "%s has rank %u and shape [%llu,%llu], expected [%llu,%llu]"
                               : "%s has rank %u and shape [%llu,%llu], expected [%llu]",
                          name, t->rank, (unsigned long long)t->shape[0], (unsigned long long)t->shape[1],
                          (unsigned long long)rows, (unsigned long long)cols);
    *ret = malloc(bytes);
    if (!*ret)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "%llu bytes wanted for %s", (unsigned long long)bytes,
                          name);
    moert_gather(t, *ret);
    return MOERT_OK;
}

/* Exact widening in place of the array. */
static moert_status_t widen(void **array, moert_dtype_t dtype, uint64_t count, struct moert_error *err)
{
    float *wide;

    if (!*array || dtype == MOERT_F32)
        return MOERT_OK;
    wide = malloc(count * sizeof(*wide));
    if (!wide)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "%llu floats wanted", (unsigned long long)count);
    for (uint64_t i = 0; i < count; i++)
        wide[i] = (float)moert_load(*array, dtype, i);
    free(*array);
    *array = wide;
    return MOERT_OK;
}

/* Logits are rounded to what the description says, else to the gate's dtype (layer.md 9.2); a layer that computes in F32
 * keeps F32 logits, as a framework does that widens such a model. */
static moert_dtype_t logits_dtype(const struct moert_layer_config *c, moert_dtype_t gate)
{
    if (c->router.logits_dtype)
        return c->router.logits_dtype;
    return c->dtype == MOERT_F32 ? MOERT_F32 : gate;
}

/* Gate and bias together. Their common dtype is the gate's, or F32 when they differ (exact); logits are rounded to the
 * gate's dtype unless the description says otherwise (layer.md 9.2). */
static moert_status_t set_router(struct moert_layer *layer, const struct moert_layer_dense *d, struct moert_error *err)
{
    const struct moert_layer_config *c = &layer->config;
    uint32_t all = c->num_experts + c->num_fused_shared, columns = c->num_experts;
    moert_dtype_t dtype = d->router_weight.dtype, common = dtype;
    void *weight = NULL, *bias = NULL;
    moert_status_t status;

    if (!moert_tensor_given(&d->router_weight))
        return moert_tensor_given(&d->router_bias)
                   ? moert_fail(err, MOERT_E_MISSING, "tensor-missing",
                                "tensor \"router_weight\" is absent, router_bias is given")
                   : MOERT_OK;
    if (d->router_weight.rank == 2 && d->router_weight.shape[0] == all)
        columns = all;
    status = copy_floats("router_weight", &d->router_weight, columns, c->hidden_size, &weight, err);
    if (!status && moert_tensor_given(&d->router_bias))
        status = copy_floats("router_bias", &d->router_bias, columns, 0, &bias, err);
    if (!status && bias && d->router_bias.dtype != dtype) {
        common = MOERT_F32;
        status = widen(&weight, dtype, columns * c->hidden_size, err);
        if (!status)
            status = widen(&bias, d->router_bias.dtype, columns, err);
    }
    if (status) {
        free(weight);
        free(bias);
        return status;
    }
    free(layer->router_weight);
    free(layer->router_bias);
    layer->router_weight = weight;
    layer->router_bias = bias;
    layer->router_dtype = common;
    layer->router_columns = columns;
    layer->logits_dtype = logits_dtype(c, dtype);
    return MOERT_OK;
}

static moert_status_t set_bias(struct moert_layer *layer, const struct moert_layer_dense *d, struct moert_error *err)
{
    const struct moert_layer_config *c = &layer->config;
    const struct moert_device_ops *ops = layer->device->driver->table->device;
    moert_drv_buffer *buffer = NULL;
    void *bias = NULL;
    moert_status_t status;

    if (!moert_tensor_given(&d->correction_bias))
        return MOERT_OK;
    if (d->correction_bias.dtype != MOERT_F32)
        return moert_fail(err, MOERT_E_DTYPE, "tensor-dtype", "correction_bias is %s, expected F32",
                          moert_dtype_name(d->correction_bias.dtype) ? moert_dtype_name(d->correction_bias.dtype)
                                                                     : "unknown");
    status = moert_router_check(&c->router, c->num_experts, c->top_k, 1, err);
    if (!status)
        status = copy_floats("correction_bias", &d->correction_bias, c->num_experts, 0, &bias, err);
    for (uint32_t e = 0; !status && e < c->num_experts; e++)
        if (!isfinite(((float *)bias)[e]))
            status = moert_fail(err, MOERT_E_VALUE, "nonfinite-bias", "correction_bias[%u] is %s", e,
                                isnan(((float *)bias)[e]) ? "NaN"
                                : ((float *)bias)[e] > 0  ? "Inf"
                                                          : "-Inf");
    if (!status && layer->backend->flags & MOERT_BACKEND_F_ROUTES)
        status = moert_layer_upload(layer, bias, c->num_experts * sizeof(float), &buffer, err);
    if (status) {
        free(bias);
        return status;
    }
    free(layer->correction_bias);
    if (layer->bias_buffer)
        ops->buffer_free(layer->device->handle, layer->bias_buffer);
    layer->correction_bias = bias;
    layer->bias_buffer = buffer;
    return MOERT_OK;
}

/* [N1s,H] -> [1,N1s,H], as a layer of one expert has it. */
static struct moert_tensor one_expert(const struct moert_tensor *t)
{
    struct moert_tensor r = *t;

    if (!moert_tensor_given(t) || t->rank >= MOERT_MAX_RANK)
        return r;
    r.rank = t->rank + 1;
    r.shape[0] = 1;
    r.strides[0] = 0;
    for (uint32_t i = 0; i < t->rank; i++) {
        r.shape[i + 1] = t->shape[i];
        r.strides[i + 1] = t->strides[i];
    }
    return r;
}

static moert_status_t set_shared(struct moert_layer *layer, const struct moert_layer_dense *d, struct moert_error *err)
{
    struct moert_layer_weights w = {.size = sizeof(w), .count = 1};
    moert_layer_t *old = layer->shared;
    moert_status_t status;

    if (!moert_tensor_given(&d->shared_w13) && !moert_tensor_given(&d->shared_w2) &&
        !moert_tensor_given(&d->shared_w13_scale) && !moert_tensor_given(&d->shared_w2_scale))
        return MOERT_OK;
    if (!layer->shared)
        return moert_fail(err, MOERT_E_VALUE, "tensor-extra",
                          "shared expert weights are given, the description has no shared expert");
    w.w13 = one_expert(&d->shared_w13);
    w.w13_scale = one_expert(&d->shared_w13_scale);
    w.w2 = one_expert(&d->shared_w2);
    w.w2_scale = one_expert(&d->shared_w2_scale);
    if (old->set_count) { /* replaced as a whole: the old one stays when the new one fails */
        status = moert_shared_create(layer, err);
        if (status)
            return status;
    }
    status = moert_layer_set_weights(layer->shared, &w, err);
    if (layer->shared == old)
        return status;
    moert_layer_destroy(status ? layer->shared : old);
    if (status)
        layer->shared = old;
    return status;
}

static moert_status_t set_gate(struct moert_layer *layer, const struct moert_layer_dense *d, struct moert_error *err)
{
    void *gate = NULL;
    moert_status_t status;

    if (!moert_tensor_given(&d->shared_gate))
        return MOERT_OK;
    if (!layer->shared || !layer->config.shared.gated)
        return moert_fail(err, MOERT_E_VALUE, "tensor-extra",
                          "shared_gate_weight is given, the description has no gated shared expert");
    status = copy_floats("shared_gate_weight", &d->shared_gate, 1, layer->config.hidden_size, &gate, err);
    if (status)
        return status;
    free(layer->shared_gate);
    layer->shared_gate = gate;
    layer->shared_gate_dtype = d->shared_gate.dtype;
    return MOERT_OK;
}

moert_status_t moert_layer_set_dense(moert_layer_t *layer, const struct moert_layer_dense *dense,
                                     struct moert_error *err)
{
    moert_status_t status;

    if (!layer || !dense)
        return moert_fail_null(err, layer ? "dense" : "layer");
    status = moert_check_size(err, "moert_layer_dense", dense->size, sizeof(*dense));
    if (!status)
        status = set_router(layer, dense, err);
    if (!status)
        status = set_bias(layer, dense, err);
    if (!status)
        status = set_shared(layer, dense, err);
    if (!status)
        status = set_gate(layer, dense, err);
    return moert_layer_prefix(&layer->config, err, status);
}
