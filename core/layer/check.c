/* core/layer/check.c: the arguments of a run against the layer (layer.md 4, steps 1 and 2). Nothing is touched here, so
 * that an error leaves every output as it was. */
#include "config.h"

#include "core/layer/layer.h"

#include "core/base/checked.h"

#include <stdio.h>
#include <string.h>

#define DTYPE(d)    (1u << (d))
#define FLOATS      (DTYPE(MOERT_F32) | DTYPE(MOERT_BF16) | DTYPE(MOERT_F16))
#define CODES       (DTYPE(MOERT_F8_E4M3) | DTYPE(MOERT_U8))
#define SCALES      (DTYPE(MOERT_U8) | DTYPE(MOERT_F8_E8M0))
#define KNOWN_FLAGS ((uint32_t)MOERT_RUN_F_UNREDUCED)
#define MAX_TENSORS 24

/* What a tensor of a call must be. `code` gives "<code>-shape" and "<code>-dtype". */
struct want {
    const char *name, *code;
    const struct moert_tensor *tensor;
    moert_direction_t direction;
    uint32_t dtypes, rank;
    uint64_t shape[2];
};

static void shape_text(uint32_t rank, const uint64_t *shape, char out[96])
{
    size_t n = 0;

    if (rank > MOERT_MAX_RANK)
        rank = MOERT_MAX_RANK;
    out[0] = 0;
    for (uint32_t i = 0; i < rank && n < 90; i++)
        n += (size_t)snprintf(out + n, 96 - n, "%s%llu", i ? "," : "", (unsigned long long)shape[i]);
}

static void dtypes_text(uint32_t dtypes, char out[64])
{
    size_t n = 0;

    out[0] = 0;
    for (moert_dtype_t d = 1; d < MOERT_DTYPE_COUNT && n < 60; d++)
        if (dtypes & DTYPE(d))
            n += (size_t)snprintf(out + n, 64 - n, "%s%s", n ? " or " : "", moert_dtype_name(d));
}

static moert_status_t fail_shape(const struct moert_call *call, const struct want *w, struct moert_error *err)
{
    char code[32], have[96], need[96];

    snprintf(code, sizeof(code), "%s-shape", w->code);
    shape_text(w->tensor->rank, w->tensor->shape, have);
    shape_text(w->rank, w->shape, need);
    if (w->tensor->rank == w->rank && w->shape[0] == call->tokens && w->tensor->shape[0] != call->tokens)
        return moert_fail(err, MOERT_E_SHAPE, code, "%s is [%s], hidden_states has %llu tokens; expected [%s]", w->name,
                          have, (unsigned long long)call->tokens, need);
    return moert_fail(err, MOERT_E_SHAPE, code, "%s is [%s], expected [%s]", w->name, have, need);
}

static moert_status_t check_place(const struct moert_call *call, const struct want *w, struct moert_error *err)
{
    const struct moert_tensor *t = w->tensor;
    const struct moert_layer *layer = call->layer;
    uint64_t below, above;
    char code[32];

    if (t->data && t->buffer)
        return moert_fail(err, MOERT_E_USAGE, "flag", "%s has both host memory and a buffer; give one", w->name);
    if (!moert_tensor_extent(t, &below, &above))
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large", "%s: its strides exceed 64-bit offsets", w->name);
    if (!t->buffer)
        return MOERT_OK;
    if (t->buffer->context != layer->context || t->buffer->device != layer->device_index)
        return moert_fail(err, MOERT_E_USAGE, "device-mismatch", "%s is on %s, the layer on %s", w->name,
                          t->buffer->context->devices[t->buffer->device]->desc.id, layer->device->desc.id);
    snprintf(code, sizeof(code), "%s-shape", w->code);
    if (below > t->offset || t->offset > t->buffer->bytes || above > t->buffer->bytes - t->offset)
        return moert_fail(err, MOERT_E_SHAPE, code,
                          "%s covers %llu bytes before and %llu after offset %llu of a buffer of %llu", w->name,
                          (unsigned long long)below, (unsigned long long)above, (unsigned long long)t->offset,
                          (unsigned long long)t->buffer->bytes);
    return MOERT_OK;
}

/* Outputs must not write one element twice: an axis with stride 0, or rows that are nearer than a row is wide. */
static moert_status_t check_written(const struct want *w, struct moert_error *err)
{
    const struct moert_tensor *t = w->tensor;
    uint64_t wide = 1;

    for (uint32_t i = t->rank; i-- > 0;) {
        uint64_t step = t->strides[i] < 0 ? 0 - (uint64_t)t->strides[i] : (uint64_t)t->strides[i];
        if (t->shape[i] < 2)
            continue;
        if (step < wide)
            return moert_fail(err, MOERT_E_SHAPE, "out-shape", "%s has stride %lld on axis %u: its elements overlap",
                              w->name, (long long)t->strides[i], i);
        wide = (t->shape[i] - 1) * step + wide;
    }
    return MOERT_OK;
}

static moert_status_t check_want(const struct moert_call *call, const struct want *w, struct moert_error *err)
{
    const char *have = moert_dtype_name(w->tensor->dtype);
    char code[32], need[64];
    moert_status_t status;

    if (!moert_tensor_given(w->tensor))
        return MOERT_OK;
    if (w->tensor->rank != w->rank || memcmp(w->tensor->shape, w->shape, w->rank * sizeof(uint64_t)))
        return fail_shape(call, w, err);
    if (w->tensor->dtype >= MOERT_DTYPE_COUNT || !(w->dtypes & DTYPE(w->tensor->dtype))) {
        snprintf(code, sizeof(code), "%s-dtype", w->code);
        dtypes_text(w->dtypes, need);
        return moert_fail(err, MOERT_E_DTYPE, code, "%s is %s, expected %s", w->name, have ? have : "unknown", need);
    }
    status = check_place(call, w, err);
    return status || w->direction != MOERT_STAGE_OUT ? status : check_written(w, err);
}

/* ------------------------------------------------------------------ the list of a call's tensors */

static uint32_t list_tensors(const struct moert_call *call, struct want w[MAX_TENSORS])
{
    const struct moert_layer_config *c = &call->layer->config;
    const struct moert_layer_args *a = call->args;
    const struct moert_layer_dumps *u = &call->dumps;
    uint64_t t = call->tokens, k = call->slots, rows = t * k, h = c->hidden_size, i = c->intermediate_size;
    uint64_t n1 = moert_layer_config_n1(c);
    uint32_t d = DTYPE(c->dtype), in = MOERT_STAGE_IN, out = MOERT_STAGE_OUT;
    uint32_t codes = moert_tensor_given(&a->x_scale) ? DTYPE(MOERT_F8_E4M3) : d;
    int unreduced = (a->flags & MOERT_RUN_F_UNREDUCED) != 0;
    const struct want list[] = {
        {"hidden_states", "x", &a->x, in, codes, 2, {t, h}},
        {"hidden_states_scale", "x", &a->x_scale, in, SCALES, 2, {t, h / 32}},
        {"topk_ids", "ids", &a->ids, in, DTYPE(MOERT_I32) | DTYPE(MOERT_I64), 2, {t, k}},
        {"topk_weights", "weights", &a->weights, in, DTYPE(MOERT_F32), 2, {t, k}},
        {"router_logits", "x", &a->logits, in, FLOATS, 2, {t, call->logits_columns}},
        {"expert_map", "ids", &a->expert_map, in, DTYPE(MOERT_I32), 1, {c->num_experts}},
        {"token_count", "ids", &a->token_count, in, DTYPE(MOERT_I32), 1, {1}},
        {"output", "out", &a->output, out, d, 2, {unreduced ? rows : t, h}},
        {"index", "out", &a->index, out, DTYPE(MOERT_I32), 1, {rows}},
        {"out_ids", "ids", &a->out_ids, out, DTYPE(MOERT_I32), 2, {t, k}},
        {"out_weights", "weights", &a->out_weights, out, DTYPE(MOERT_F32), 2, {t, k}},
        {"dump a1_codes", "out", &u->a1_codes, out, CODES, 2, {t, h}},
        {"dump a1_scales", "out", &u->a1_scales, out, SCALES, 2, {t, h / 32}},
        {"dump c1", "out", &u->c1, out, d, 2, {rows, n1}},
        {"dump c2", "out", &u->c2, out, d, 2, {rows, i}},
        {"dump a2_codes", "out", &u->a2_codes, out, CODES, 2, {rows, i}},
        {"dump a2_scales", "out", &u->a2_scales, out, SCALES, 2, {rows, i / 32}},
        {"dump c3", "out", &u->c3, out, d, 2, {rows, h}},
        {"dump y1", "out", &u->y1, out, DTYPE(MOERT_F64), 2, {rows, n1}},
        {"dump s1", "out", &u->s1, out, DTYPE(MOERT_F64), 2, {rows, n1}},
        {"dump y2", "out", &u->y2, out, DTYPE(MOERT_F64), 2, {rows, h}},
        {"dump s2", "out", &u->s2, out, DTYPE(MOERT_F64), 2, {rows, h}},
    };

    memcpy(w, list, sizeof(list));
    return sizeof(list) / sizeof(*list);
}

/* ------------------------------------------------------------------ overlap */

/* Where a tensor lies: host addresses in one space, the device's addresses in another, else offsets in a native handle
 * or in the buffer. */
struct place {
    const void *space; /* NULL: host; the layer: its device */
    uint64_t first, end;
};

static struct place place_of(const struct moert_layer *layer, const struct moert_tensor *t)
{
    struct moert_memory_info info = {.size = sizeof(info)};
    uint64_t below, above, base = (uint64_t)(uintptr_t)t->data;
    struct place p = {NULL, 0, 0};

    if (t->buffer) {
        p.space = t->buffer->handle;
        base = 0;
        if (!layer->device->driver->table->device->buffer_info(layer->device->handle, t->buffer->handle, &info, NULL) &&
            (info.host || info.address || info.native)) {
            p.space = info.host      ? NULL
                      : info.address ? (const void *)layer
                                     : (const void *)(uintptr_t)info.native; /* a handle has no place, only offsets */
            base = info.host ? (uint64_t)(uintptr_t)info.host : info.address;
        }
        base += t->offset;
    }
    if (moert_tensor_extent(t, &below, &above)) {
        p.first = base - below;
        p.end = base + above;
    }
    return p;
}

static moert_status_t check_overlap(const struct moert_call *call, const struct want *w, uint32_t count,
                                    struct moert_error *err)
{
    struct place places[MAX_TENSORS];

    for (uint32_t i = 0; i < count; i++)
        if (moert_tensor_given(w[i].tensor))
            places[i] = place_of(call->layer, w[i].tensor);
        else
            places[i] = (struct place){NULL, 0, 0};
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = 0; w[i].direction == MOERT_STAGE_OUT && j < count; j++)
            if (i != j && places[i].space == places[j].space && places[i].first < places[j].end &&
                places[j].first < places[i].end)
                return moert_fail(err, MOERT_E_USAGE, "overlap", "%s overlaps %s", w[i].name, w[j].name);
    return MOERT_OK;
}

/* ------------------------------------------------------------------ the whole */

moert_status_t moert_layer_check_queue(const struct moert_layer *layer, const moert_queue_t *queue,
                                       struct moert_error *err)
{
    if (queue->context != layer->context || queue->device != layer->device_index)
        return moert_fail(err, MOERT_E_USAGE, "device-mismatch", "the queue is on %s, the layer on %s",
                          queue->context->devices[queue->device]->desc.id, layer->device->desc.id);
    return moert_ctx_check_process(layer->context, err);
}

static moert_status_t check_state(const struct moert_layer *layer, struct moert_error *err)
{
    uint32_t local = layer->config.num_local_experts;

    if (!layer->set_count && local)
        return moert_fail(err, MOERT_E_USAGE, "state", "layer has no weights yet; call moert_layer_set_weights");
    if (layer->set_count < local)
        return moert_fail(err, MOERT_E_USAGE, "state", "layer has weights of %u of %u experts", layer->set_count,
                          local);
    if (layer->shared && layer->shared->set_count < 1)
        return moert_fail(err, MOERT_E_USAGE, "state",
                          "the shared expert has no weights yet; call moert_layer_set_dense");
    if (layer->shared && layer->config.shared.gated && !layer->shared_gate)
        return moert_fail(err, MOERT_E_USAGE, "state", "the shared expert's gate has no weights yet");
    return MOERT_OK;
}

/* What must be there, and what excludes what. */
static moert_status_t check_given(const struct moert_call *call, struct moert_error *err)
{
    const struct moert_layer_args *a = call->args;
    const struct moert_layer *layer = call->layer;
    int ids = moert_tensor_given(&a->ids), weights = moert_tensor_given(&a->weights);
    int logits = moert_tensor_given(&a->logits);

    if (!moert_tensor_given(&a->x))
        return moert_fail_null(err, "hidden_states");
    if (!moert_tensor_given(&a->output))
        return moert_fail_null(err, "output");
    if (ids != weights)
        return moert_fail_null(err, ids ? "topk_weights" : "topk_ids");
    if (ids && logits)
        return moert_fail(err, MOERT_E_USAGE, "flag", "both topk_ids and router_logits are given; choose one");
    if (!ids && !logits && !layer->router_weight)
        return moert_fail(err, MOERT_E_USAGE, "null",
                          "topk_ids is NULL, and there are neither router_logits nor a router weight");
    if (!ids && layer->config.router.kind == MOERT_ROUTER_GIVEN)
        return moert_fail(err, MOERT_E_USAGE, "state",
                          "the router's kind is given: topk_ids and topk_weights are needed");
    if (a->flags & MOERT_RUN_F_UNREDUCED && !moert_tensor_given(&a->index))
        return moert_fail_null(err, "index");
    return MOERT_OK;
}

static moert_status_t check_hook(const struct moert_call *call, struct moert_error *err)
{
    const struct moert_layer_args *a = call->args;
    uint32_t flags = call->layer->backend->flags;

    if (a->hook && call->layer->config.apply_router_weight_on_input)
        return moert_fail(err, MOERT_E_USAGE, "hook-weight",
                          "post-GEMM2 hook needs unweighted rows; router weight is on the input");
    if (a->hook && a->flags & MOERT_RUN_F_UNREDUCED)
        return moert_fail(err, MOERT_E_USAGE, "flag", "a post-GEMM2 hook and unreduced output exclude each other");
    if ((a->hook || a->flags & MOERT_RUN_F_UNREDUCED) && !(flags & MOERT_BACKEND_F_HOOK))
        return moert_layer_refuse(call->layer, err, a->hook ? "hook" : "unreduced output");
    if (a->dumps && !(flags & MOERT_BACKEND_F_DUMPS))
        return moert_layer_refuse(call->layer, err, "dumps");
    return MOERT_OK;
}

static moert_status_t check_header(struct moert_call *call, struct moert_error *err)
{
    const struct moert_layer_args *a = call->args;
    moert_status_t status = moert_check_size(err, "moert_layer_args", a->size, sizeof(*a));
    uint32_t unknown;

    if (status)
        return status;
    unknown = a->flags & ~KNOWN_FLAGS;
    if (unknown)
        return moert_fail(err, MOERT_E_USAGE, "flag", "unknown flag bit %d", __builtin_ctz(unknown));
    if (a->dumps) {
        status = moert_check_size(err, "moert_layer_dumps", a->dumps->size, sizeof(*a->dumps));
        if (status)
            return status;
        call->dumps = *a->dumps;
    }
    return moert_layer_check_queue(call->layer, call->queue, err);
}

/* Logits may have further columns for the fused shared slots (routing.md 2.4). */
static uint32_t columns_of(const struct moert_layer *layer, const struct moert_tensor *logits)
{
    const struct moert_layer_config *c = &layer->config;
    uint32_t all = c->num_experts + c->num_fused_shared;

    if (moert_tensor_given(logits))
        return logits->rank == 2 && logits->shape[1] == all ? all : c->num_experts;
    return layer->router_columns;
}

/* Arrays that the core makes for a whole call: [T,K+n], [T,H], [T,E] of up to 8 bytes an element. */
static moert_status_t check_sizes(const struct moert_call *call, struct moert_error *err)
{
    const struct {
        const char *name;
        uint64_t columns;
    } arrays[] = {{"slots", call->slots},
                  {"elements of hidden_states", call->layer->config.hidden_size},
                  {"logits", call->logits_columns}};

    for (size_t i = 0; i < sizeof(arrays) / sizeof(*arrays); i++) {
        uint64_t product;
        if (!moert_mul(call->tokens, arrays[i].columns, &product) || product > INT64_MAX / 8)
            return moert_fail(err, MOERT_E_TOO_LARGE, "too-large", "%llu tokens x %llu %s exceed 64 bits",
                              (unsigned long long)call->tokens, (unsigned long long)arrays[i].columns, arrays[i].name);
    }
    if (call->args->flags & MOERT_RUN_F_UNREDUCED && call->tokens * call->slots > INT32_MAX)
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large",
                          "%llu tokens x %u slots exceed 2147483647, the last number of an unreduced row",
                          (unsigned long long)call->tokens, call->slots);
    return MOERT_OK;
}

moert_status_t moert_call_check(struct moert_call *call, struct moert_error *err)
{
    const struct moert_layer_config *c = &call->layer->config;
    const struct moert_layer_args *a = call->args;
    struct want list[MAX_TENSORS];
    uint32_t count;
    moert_status_t status = check_header(call, err);

    if (status)
        return status;
    call->slots = c->top_k + c->num_fused_shared;
    call->tokens = a->x.rank == 2 ? a->x.shape[0] : 1;
    if (a->x.rank == 2 && !call->tokens)
        return MOERT_OK;
    call->logits_columns = columns_of(call->layer, &a->logits);
    status = check_state(call->layer, err);
    if (!status)
        status = check_given(call, err);
    if (!status)
        status = check_hook(call, err);
    if (!status)
        status = check_sizes(call, err);
    if (status)
        return status;
    count = list_tensors(call, list);
    for (uint32_t i = 0; i < count && !status; i++)
        status = check_want(call, &list[i], err);
    return status ? status : check_overlap(call, list, count, err);
}
