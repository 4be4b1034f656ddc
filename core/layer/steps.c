/* core/layer/steps.c: single steps on a device for callers (moert/context.h): each tensor gets to the device as in a
 * layer's run, the driver's op is enqueued, host results come back. */
#include "config.h"

#include "core/base/error.h"
#include "core/layer/staging.h"

#include <stdlib.h>

#define MAX_TENSORS 5

/* One tensor of a step; absent ones are passed on as absent. */
struct operand {
    const char *name;
    const struct moert_tensor *tensor;
    moert_direction_t direction;
    int optional;
};

/* A call of a step: staged operands as the driver's op takes them. */
struct step {
    struct moert_stage stage;
    struct moert_pool *pool;
    struct moert_drv_tensor t[MAX_TENSORS];
    uint32_t count;
};

static const struct moert_step_ops *ops_of(const moert_queue_t *queue)
{
    return queue ? queue->context->devices[queue->device]->driver->table->steps : NULL;
}

static moert_status_t unsupported(const moert_queue_t *queue, const char *name, struct moert_error *err)
{
    if (!queue)
        return moert_fail_null(err, "queue");
    return moert_fail(err, MOERT_E_UNSUPPORTED, "unsupported",
                      "driver %s has no step %s; the host functions do the same",
                      queue->context->devices[queue->device]->driver->name, name);
}

static moert_status_t check_operand(const moert_queue_t *queue, const struct operand *o, struct moert_error *err)
{
    const struct moert_tensor *t = o->tensor;
    uint64_t below, above;

    if (!t || !moert_tensor_given(t)) {
        return o->optional ? MOERT_OK : moert_fail_null(err, o->name);
    }
    if (t->data && t->buffer)
        return moert_fail(err, MOERT_E_USAGE, "flag", "%s has both host memory and a buffer; give one", o->name);
    if (!t->rank || !moert_dtype_size(t->dtype) || !moert_tensor_extent(t, &below, &above))
        return moert_fail(err, MOERT_E_SHAPE, "tensor-shape",
                          "%s has rank %u and dtype %u; rank 1..%d and a known dtype are needed", o->name, t->rank,
                          t->dtype, MOERT_MAX_RANK);
    if (!t->buffer)
        return MOERT_OK;
    if (t->buffer->context != queue->context || t->buffer->device != queue->device)
        return moert_fail(err, MOERT_E_USAGE, "device-mismatch", "%s is on %s, the queue on %s", o->name,
                          t->buffer->context->devices[t->buffer->device]->desc.id,
                          queue->context->devices[queue->device]->desc.id);
    if (below > t->offset || t->offset > t->buffer->bytes || above > t->buffer->bytes - t->offset)
        return moert_fail(err, MOERT_E_SHAPE, "tensor-shape", "%s ends %llu bytes into a buffer of %llu", o->name,
                          (unsigned long long)(t->offset + above), (unsigned long long)t->buffer->bytes);
    return MOERT_OK;
}

/* An own pool: a step is a tool of tests and of benches, not of the hot path. Device copies in it may still be in use
 * when the op was only enqueued, so a step that needed any waits. */
static moert_status_t begin(struct step *s, moert_queue_t *queue, const struct operand *operands, uint32_t count,
                            struct moert_error *err)
{
    moert_status_t status = moert_ctx_check_process(queue->context, err);

    *s = (struct step){.count = count};
    for (uint32_t i = 0; i < count && !status; i++)
        status = check_operand(queue, &operands[i], err);
    if (status)
        return status;
    s->pool = calloc(1, sizeof(*s->pool));
    if (!s->pool)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for the staging of a step");
    s->stage.device = queue->context->devices[queue->device];
    s->stage.queue = queue->handle;
    s->stage.pool = s->pool;
    for (uint32_t i = 0; i < count && !status; i++) {
        const struct moert_tensor *t = operands[i].tensor;
        if (!t || !moert_tensor_given(t))
            continue;
        status = moert_stage_add(&s->stage, (enum moert_slot)i, t, operands[i].direction, err);
        if (!status)
            status = moert_stage_view(&s->stage, (enum moert_slot)i, 0, t->shape[0], &s->t[i], err);
        if (!status)
            s->t[i].dtype = t->dtype; /* a step sees the caller's tag */
    }
    return status;
}

static moert_status_t end(struct step *s, const struct operand *operands, moert_status_t status,
                          struct moert_error *err)
{
    if (!s->pool)
        return status;
    for (uint32_t i = 0; i < s->count && !status; i++)
        if (operands[i].tensor && moert_tensor_given(operands[i].tensor))
            status = moert_stage_back(&s->stage, (enum moert_slot)i, 0, operands[i].tensor->shape[0], err);
    if (s->stage.allocations)
        s->stage.must_wait = 1;
    status = moert_stage_finish(&s->stage, status, err);
    moert_pool_free(s->stage.device, s->pool);
    return status;
}

/* No rows: nothing to do, nothing written. */
static int is_empty(const struct moert_tensor *t)
{
    return t && t->rank && t->rank <= MOERT_MAX_RANK && !t->shape[0];
}

#define IN(n, t)                                                                                                       \
    {                                                                                                                  \
        n, t, MOERT_STAGE_IN, 0                                                                                        \
    }
#define OPTIONAL(n, t)                                                                                                 \
    {                                                                                                                  \
        n, t, MOERT_STAGE_IN, 1                                                                                        \
    }
#define OUT(n, t)                                                                                                      \
    {                                                                                                                  \
        n, t, MOERT_STAGE_OUT, 0                                                                                       \
    }
#define COUNT(list) (uint32_t)(sizeof(list) / sizeof(*(list)))

/* Runs `call` (an expression over s.t[]) when the driver has the step. */
#define STEP(op, operands, call)                                                                                       \
    do {                                                                                                               \
        const struct moert_step_ops *steps = ops_of(queue);                                                            \
        struct step s;                                                                                                 \
        moert_status_t status;                                                                                         \
        if (!MOERT_DRV_OP(steps, op))                                                                                  \
            return unsupported(queue, #op, err);                                                                       \
        if (is_empty((operands)[0].tensor))                                                                            \
            return MOERT_OK;                                                                                           \
        status = begin(&s, queue, operands, COUNT(operands), err);                                                     \
        if (!status)                                                                                                   \
            status = steps->op call;                                                                                   \
        return end(&s, operands, status, err);                                                                         \
    } while (0)

moert_status_t moert_step_quantize(moert_queue_t *queue, const struct moert_mxfp8_params *params,
                                   const struct moert_tensor *x, const struct moert_tensor *codes,
                                   const struct moert_tensor *scales, struct moert_error *err)
{
    const struct moert_mxfp8_params standard = {.size = sizeof(standard)};
    const struct operand operands[] = {IN("x", x), OUT("codes", codes), OUT("scales", scales)};

    if (!params)
        params = &standard;
    STEP(quantize, operands, (queue->handle, params, &s.t[0], &s.t[1], &s.t[2], err));
}

moert_status_t moert_step_dequantize(moert_queue_t *queue, const struct moert_tensor *codes,
                                     const struct moert_tensor *scales, const struct moert_tensor *out,
                                     struct moert_error *err)
{
    const struct operand operands[] = {IN("codes", codes), IN("scales", scales), OUT("out", out)};

    STEP(dequantize, operands, (queue->handle, &s.t[0], &s.t[1], &s.t[2], err));
}

moert_status_t moert_step_lutb_decode(moert_queue_t *queue, const struct moert_tensor *packed,
                                      const struct moert_tensor *codebook, const struct moert_tensor *out,
                                      struct moert_error *err)
{
    const struct operand operands[] = {IN("packed", packed), IN("codebook", codebook), OUT("out", out)};

    STEP(lutb_decode, operands, (queue->handle, &s.t[0], &s.t[1], &s.t[2], err));
}

moert_status_t moert_step_topk(moert_queue_t *queue, const struct moert_router_config *router, uint32_t top_k,
                               const struct moert_tensor *logits, const struct moert_tensor *bias,
                               const struct moert_tensor *ids, const struct moert_tensor *weights,
                               struct moert_error *err)
{
    const struct operand operands[] = {IN("logits", logits), OPTIONAL("bias", bias), OUT("ids", ids),
                                       OUT("weights", weights)};

    if (!router)
        return moert_fail_null(err, "router");
    STEP(topk, operands, (queue->handle, router, top_k, &s.t[0], &s.t[1], &s.t[2], &s.t[3], err));
}

moert_status_t moert_step_align(moert_queue_t *queue, const struct moert_align_params *params,
                                const struct moert_tensor *ids, const struct moert_tensor *map,
                                const struct moert_tensor *sorted, const struct moert_tensor *expert_ids,
                                const struct moert_tensor *total, struct moert_error *err)
{
    const struct operand operands[] = {IN("ids", ids), OPTIONAL("map", map), OUT("sorted", sorted),
                                       OUT("expert_ids", expert_ids), OUT("total", total)};

    if (!params)
        return moert_fail_null(err, "params");
    STEP(align, operands, (queue->handle, params, &s.t[0], &s.t[1], &s.t[2], &s.t[3], &s.t[4], err));
}

moert_status_t moert_step_activation(moert_queue_t *queue, const struct moert_layer_config *layer,
                                     const struct moert_tensor *c1, const struct moert_tensor *c2,
                                     struct moert_error *err)
{
    const struct operand operands[] = {IN("c1", c1), OUT("c2", c2)};

    if (!layer)
        return moert_fail_null(err, "layer");
    STEP(activation, operands, (queue->handle, layer, &s.t[0], &s.t[1], err));
}

moert_status_t moert_step_combine(moert_queue_t *queue, const struct moert_layer_config *layer,
                                  const struct moert_tensor *rows, const struct moert_tensor *ids,
                                  const struct moert_tensor *map, const struct moert_tensor *weights,
                                  const struct moert_tensor *out, struct moert_error *err)
{
    const struct operand operands[] = {IN("rows", rows), OPTIONAL("ids", ids), OPTIONAL("map", map),
                                       OPTIONAL("weights", weights), OUT("out", out)};

    if (!layer)
        return moert_fail_null(err, "layer");
    STEP(combine, operands, (queue->handle, layer, &s.t[0], &s.t[1], &s.t[2], &s.t[3], &s.t[4], err));
}
