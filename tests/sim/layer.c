/* tests/sim/layer.c: the backend sim.reference: weights in a layout of its own (experts back to back, w2 before w13,
 * every byte XOR 5A, cut into buffers of at most 1 MiB), results from the inner reference. */
#include "config.h"

#include "tests/sim/sim.h"
#include "core/base/error.h"
#include "drivers/cpu/cpu.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MASK  0x5A
#define PARTS 6 /* w2, w2_scale, w2_bias, w13, w13_scale, w13_bias */

struct moert_drv_layer {
    moert_drv_device *device;
    struct moert_layer_config config;
    int32_t *map;
    uint64_t part_bytes[PARTS], expert_bytes, bytes;
    uint32_t bias_dtype[PARTS];
    moert_drv_buffer **chunks;
    uint32_t chunk_count;
    uint8_t *set; /* per expert */
    pthread_mutex_t lock;
    uint64_t runs, tokens;
};

static const struct moert_backend *inner_backend(void)
{
    return mcpu_driver.backends[0];
}

/* Parts of a weight struct in the order of the layout. */
static void parts(struct moert_expert_weights *w, struct moert_drv_tensor *ret[PARTS])
{
    struct moert_drv_tensor *order[PARTS] = {&w->w2, &w->w2_scale, &w->w2_bias, &w->w13, &w->w13_scale, &w->w13_bias};
    memcpy(ret, order, sizeof(order));
}

static uint64_t element_bytes(moert_dtype_t dtype)
{
    switch (dtype) {
    case MOERT_F32: return 4;
    case MOERT_BF16:
    case MOERT_F16: return 2;
    default: return 1;
    }
}

/* Bytes of each part of one expert. Biases take four bytes an element whatever their dtype is. */
static void sizes(const struct moert_layer_config *l, uint64_t ret[PARTS])
{
    uint64_t gated = l->activation < MOERT_ACT_SILU_NO_MUL,
             n1 = gated ? 2 * l->intermediate_size : l->intermediate_size;
    uint64_t h = l->hidden_size, i = l->intermediate_size;
    uint64_t n[2] = {h, n1}, k[2] = {i, h};

    for (int m = 0; m < 2; m++) {
        uint64_t count = n[m] * k[m];
        ret[3 * m] = count * (l->weight_scheme == MOERT_SCHEME_F32 ? 4 : 2);
        ret[3 * m + 1] = 0;
        if (l->weight_scheme == MOERT_SCHEME_MXFP8) {
            ret[3 * m] = count;
            ret[3 * m + 1] = count / 32;
        } else if (l->weight_scheme == MOERT_SCHEME_LUT_B) {
            ret[3 * m] = count / 512 * 192;
            ret[3 * m + 1] = count / 512 * 8;
        }
        ret[3 * m + 2] = l->has_bias ? 4 * n[m] : 0;
    }
}

/* ---- pure ops ---- */

static void supports(const struct moert_backend *backend, const struct moert_device_desc *device,
                     const struct moert_layer_config *layer, const struct moert_check_sink *sink)
{
    struct moert_check arch = {.size = sizeof(arch), .op = MOERT_OP_EQ, .code = "arch", .field = "device.arch"};

    (void)backend;
    arch.have.kind = arch.need.kind = MOERT_VALUE_STRING;
    arch.have.string = device->arch;
    arch.need.string = "sim_1";
    arch.verdict = strcmp(device->arch, "sim_1") ? MOERT_FAIL : MOERT_PASS;
    sink->report(sink->ctx, &arch);
    inner_backend()->ops->supports(inner_backend(), device, layer, sink);
}

static moert_status_t layout(const struct moert_backend *backend, const struct moert_device_desc *device,
                             const struct moert_layer_config *layer, struct moert_layout *ret, struct moert_error *err)
{
    uint64_t part[PARTS], sum = 0;
    uint32_t size = ret->size;

    (void)backend;
    (void)device;
    (void)err;
    sizes(layer, part);
    for (int i = 0; i < PARTS; i++)
        sum += part[i];
    *ret = (struct moert_layout){.size = size, .version = 3, .tag = "sim.cut", .bytes = sum * layer->num_local_experts};
    return MOERT_OK;
}

static moert_status_t workspace(const struct moert_backend *backend, const struct moert_device_desc *device,
                                const struct moert_layer_config *layer, uint64_t tokens, struct moert_workspace *ret,
                                struct moert_error *err)
{
    (void)backend;
    return inner_backend()->ops->workspace(inner_backend(), device, layer, tokens, ret, err);
}

/* ---- weights ---- */

static void release(moert_drv_layer *l)
{
    for (uint32_t i = 0; i < l->chunk_count; i++)
        sim_buffer_free(l->device, l->chunks[i]);
    free(l->chunks);
    free(l->set);
    free(l->map);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

static moert_status_t create(moert_drv_device *device, const struct moert_backend *backend,
                             const struct moert_layer_config *layer, moert_drv_layer **ret, struct moert_error *err)
{
    moert_drv_layer *l = calloc(1, sizeof(*l));
    uint64_t left;
    uint32_t chunks;
    moert_status_t status = MOERT_OK;

    (void)backend;
    if (!l)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for a layer");
    pthread_mutex_init(&l->lock, NULL);
    l->device = device;
    l->config = *layer;
    sizes(layer, l->part_bytes);
    for (int i = 0; i < PARTS; i++)
        l->expert_bytes += l->part_bytes[i];
    l->bytes = l->expert_bytes * layer->num_local_experts;
    chunks = (uint32_t)(l->bytes / SIM_MAX_BUFFER + 1);
    l->chunks = calloc(chunks, sizeof(*l->chunks));
    l->set = calloc(layer->num_local_experts, 1);
    if (layer->expert_map_length) {
        l->map = malloc(layer->expert_map_length * sizeof(*l->map));
        if (l->map)
            memcpy(l->map, layer->expert_map, layer->expert_map_length * sizeof(*l->map));
        l->config.expert_map = l->map;
    }
    if (!l->chunks || !l->set || (layer->expert_map_length && !l->map))
        status = moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for a layer");
    for (left = l->bytes; !status && left;) {
        uint64_t n = left < SIM_MAX_BUFFER ? left : SIM_MAX_BUFFER;
        status = sim_buffer_alloc(device, MOERT_MEMORY_DEVICE, n, 0, &l->chunks[l->chunk_count], err);
        if (!status)
            l->chunk_count++;
        left -= n;
    }
    if (status)
        release(l);
    else
        *ret = l;
    return status;
}

/* Moves bytes between host memory and the cut, masked blob. */
static void blob(moert_drv_layer *l, uint64_t offset, uint64_t bytes, uint8_t *host, int write, int mask)
{
    while (bytes) {
        moert_drv_buffer *b = l->chunks[offset / SIM_MAX_BUFFER];
        uint64_t at = offset % SIM_MAX_BUFFER, n = SIM_MAX_BUFFER - at < bytes ? SIM_MAX_BUFFER - at : bytes;
        uint8_t *p = sim_open(b) + at;
        for (uint64_t i = 0; i < n; i++) {
            if (write)
                p[i] = (uint8_t)(host[i] ^ mask);
            else
                host[i] = (uint8_t)(p[i] ^ mask);
        }
        sim_close(b);
        offset += n;
        bytes -= n;
        host += n;
    }
}

moert_status_t sim_layer_store(moert_drv_layer *l, moert_drv_queue *queue, const struct moert_expert_weights *weights,
                               struct moert_error *err)
{
    struct moert_expert_weights w = *weights;
    struct moert_drv_tensor *part[PARTS];

    (void)queue;
    parts(&w, part);
    for (int i = 0; i < PARTS; i++) {
        uint64_t per_expert = 1;
        if (!part[i]->buffer || !l->part_bytes[i])
            continue;
        for (uint32_t r = 1; r < part[i]->rank; r++)
            per_expert *= part[i]->shape[r];
        per_expert *= element_bytes(part[i]->dtype);
        if (per_expert > l->part_bytes[i])
            return moert_fail(err, MOERT_E_SHAPE, "tensor-shape", "part %d has %llu bytes an expert, expected %llu", i,
                              (unsigned long long)per_expert, (unsigned long long)l->part_bytes[i]);
        l->bias_dtype[i] = part[i]->dtype;
    }
    for (uint32_t e = 0; e < w.count; e++) {
        uint64_t at = (w.first + e) * l->expert_bytes;
        for (int i = 0; i < PARTS; at += l->part_bytes[i++]) {
            uint64_t n = l->part_bytes[i];
            if (!part[i]->buffer || !n)
                continue;
            if (i == 2 || i == 5)
                n = n / 4 * element_bytes(part[i]->dtype);
            blob(l, at, n, sim_open(part[i]->buffer) + part[i]->offset + e * n, 1, MASK);
            sim_close(part[i]->buffer);
        }
        l->set[w.first + e] = 1;
    }
    return MOERT_OK;
}

static moert_status_t prepare(moert_drv_layer *l, const struct moert_expert_weights *w, struct moert_error *err)
{
    for (uint32_t e = 0; e < w->count; e++)
        if (l->set[w->first + e])
            return moert_fail(err, MOERT_E_USAGE, "state", "expert %u was given before", w->first + e);
    return sim_layer_store(l, NULL, w, err);
}

static moert_status_t update(moert_drv_layer *l, moert_drv_queue *queue, const struct moert_expert_weights *w,
                             struct moert_error *err)
{
    struct sim_work work = {.kind = SIM_UPDATE, .layer = l, .weights = *w};

    return sim_enqueue(queue, &work, err);
}

static moert_status_t export_weights(moert_drv_layer *l, uint64_t offset, uint64_t bytes, void *host,
                                     struct moert_error *err)
{
    if (offset > l->bytes || bytes > l->bytes - offset)
        return moert_fail(err, MOERT_E_VALUE, "size", "bytes beyond the %llu of the layout",
                          (unsigned long long)l->bytes);
    blob(l, offset, bytes, host, 0, 0);
    return MOERT_OK;
}

static moert_status_t import_weights(moert_drv_layer *l, const struct moert_layout *from, uint64_t offset,
                                     uint64_t bytes, const void *host, struct moert_error *err)
{
    if (strcmp(from->tag, "sim.cut") || from->version != 3 || from->bytes != l->bytes)
        return moert_fail(err, MOERT_E_VALUE, "state", "layout %s version %u, expected sim.cut version 3", from->tag,
                          from->version);
    if (offset > l->bytes || bytes > l->bytes - offset)
        return moert_fail(err, MOERT_E_VALUE, "size", "bytes beyond the %llu of the layout",
                          (unsigned long long)l->bytes);
    blob(l, offset, bytes, (void *)(uintptr_t)host, 1, 0);
    memset(l->set, 1, l->config.num_local_experts);
    for (int i = 0; i < PARTS; i++)
        if (!l->bias_dtype[i])
            l->bias_dtype[i] = MOERT_F32;
    return MOERT_OK;
}

/* ---- run ---- */

static struct moert_drv_tensor inner_part(const moert_drv_layer *l, int i, moert_drv_buffer *buffer, uint64_t offset)
{
    const struct moert_layer_config *c = &l->config;
    uint64_t gated = c->activation < MOERT_ACT_SILU_NO_MUL, i_size = c->intermediate_size;
    uint64_t n = i < 3 ? c->hidden_size : (gated ? 2 * i_size : i_size), k = i < 3 ? i_size : c->hidden_size;
    uint64_t shape[4] = {1, n, k, 0};
    uint32_t rank = 3;
    struct moert_drv_tensor t = {.buffer = buffer, .offset = offset};
    int64_t stride = 1;

    t.dtype = c->weight_scheme == MOERT_SCHEME_BF16  ? MOERT_BF16
              : c->weight_scheme == MOERT_SCHEME_F16 ? MOERT_F16
              : c->weight_scheme == MOERT_SCHEME_F32 ? MOERT_F32
                                                     : MOERT_F8_E4M3;
    if (c->weight_scheme == MOERT_SCHEME_LUT_B) {
        rank = 4;
        shape[1] = n / 8;
        shape[2] = k / 64;
        shape[3] = i % 3 ? 8 : 192;
        t.dtype = i % 3 ? MOERT_F8_E4M3 : MOERT_U8;
    } else if (i % 3 == 1) {
        shape[2] = k / 32;
        t.dtype = MOERT_U8;
    }
    if (i % 3 == 2) {
        rank = 2;
        shape[1] = n;
        t.dtype = l->bias_dtype[i];
    }
    t.rank = rank;
    for (uint32_t r = rank; r-- > 0;) {
        t.shape[r] = shape[r];
        t.strides[r] = stride;
        stride *= (int64_t)shape[r];
    }
    return t;
}

/* An inner reference layer with the weights unmasked again. */
static moert_status_t inner_layer(moert_drv_layer *l, moert_drv_layer **ret, struct moert_error *err)
{
    const struct moert_backend_ops *ops = inner_backend()->ops;
    moert_drv_device *cpu = l->device->cpu;
    uint8_t *expert = malloc(l->expert_bytes ? l->expert_bytes : 1);
    moert_drv_layer *inner = NULL;
    moert_drv_buffer *view = NULL;
    moert_status_t status = ops->create(cpu, inner_backend(), &l->config, &inner, err);

    if (!status && !expert)
        status = moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for an expert");
    if (!status)
        status = mcpu_driver.device->buffer_import(cpu, MOERT_MEMORY_HOST, (uint64_t)(uintptr_t)expert, l->expert_bytes,
                                                   &view, err);
    for (uint32_t e = 0; !status && e < l->config.num_local_experts; e++) {
        struct moert_expert_weights w = {.size = sizeof(w), .first = e, .count = 1};
        struct moert_drv_tensor *part[PARTS];
        uint64_t at = 0;
        blob(l, e * l->expert_bytes, l->expert_bytes, expert, 0, MASK);
        parts(&w, part);
        for (int i = 0; i < PARTS; at += l->part_bytes[i++])
            if (l->part_bytes[i])
                *part[i] = inner_part(l, i, view, at);
        status = ops->prepare(inner, &w, err);
    }
    if (view)
        mcpu_driver.device->buffer_free(cpu, view);
    free(expert);
    if (status && inner)
        ops->release(inner);
    else if (!status)
        *ret = inner;
    return status;
}

/* One wrong bit in the planted step's result, and in the output. */
static void plant(moert_drv_queue *q, struct sim_work *w)
{
    struct moert_drv_tensor *steps[7] = {
        NULL, &w->dumps.a1_codes, &w->dumps.c1, &w->dumps.c2, &w->dumps.a2_codes, &w->dumps.c3, &w->args.output};
    int step = q->device->drv->fault_count;

    for (int i = step == 6; i < 2; i++) { /* the output itself only once */
        struct moert_drv_tensor *t = i ? &w->args.output : steps[step];
        uint8_t *p;
        if (!t->buffer || (!w->args.dumps && !i))
            continue;
        p = sim_open(t->buffer) + t->offset;
        p[element_bytes(t->dtype) - 1] ^= 0x40; /* the largest exponent bit of the first element */
        sim_close(t->buffer);
    }
}

static moert_status_t planted_before(moert_drv_queue *q, struct moert_error *err)
{
    moert_drv *drv = q->device->drv;
    moert_status_t status = MOERT_OK;

    pthread_mutex_lock(&q->device->lock);
    if (++q->device->runs == drv->fault_count && drv->fault == SIM_FAULT_LOST) {
        q->device->lost = 1;
        snprintf(q->device->lost_text, sizeof(q->device->lost_text),
                 "run %d failed on sim:%u: 700 SIM_ERROR_ILLEGAL_ADDRESS", q->device->runs, q->device->index);
        status = moert_fail(err, MOERT_E_DEVICE, "device-call", "%s", q->device->lost_text);
    }
    pthread_mutex_unlock(&q->device->lock);
    if (drv->fault == SIM_FAULT_CRASH)
        raise(SIGSEGV);
    while (drv->fault == SIM_FAULT_HANG)
        pause();
    return status;
}

moert_status_t sim_layer_run(moert_drv_queue *q, struct sim_work *w, struct moert_error *err)
{
    struct moert_run_args *a = &w->args;
    struct moert_run_dumps *d = &w->dumps;
    struct moert_drv_tensor *all[] = {&a->x,           &a->x_scale, &a->ids,    &a->weights,  &a->expert_map,
                                      &a->token_count, &a->shared,  &a->output, &a->index,    &d->a1_codes,
                                      &d->a1_scales,   &d->c1,      &d->c2,     &d->a2_codes, &d->a2_scales,
                                      &d->c3,          &d->y1,      &d->s1,     &d->y2,       &d->s2};
    struct sim_inner inner = {.device = q->device->cpu};
    struct moert_drv_tensor scratch = {.buffer = a->workspace};
    struct sim_work planted = *w;
    moert_drv_layer *layer = NULL;
    moert_status_t status = planted_before(q, err);

    if (!status)
        status = inner_layer(w->layer, &layer, err);
    for (size_t i = 0; !status && i < sizeof(all) / sizeof(*all); i++)
        status = sim_inner_tensor(&inner, all[i], err);
    if (!status)
        status = sim_inner_tensor(&inner, &scratch, err);
    a->workspace = scratch.buffer;
    if (a->dumps)
        a->dumps = d;
    if (!status)
        status = inner_backend()->ops->run(layer, q->cpu, a, err);
    sim_inner_end(&inner);
    if (layer)
        inner_backend()->ops->release(layer);
    if (!status && q->device->drv->fault == SIM_FAULT_STEP)
        plant(q, &planted);
    return status;
}

static moert_status_t run(moert_drv_layer *l, moert_drv_queue *q, const struct moert_run_args *args,
                          struct moert_error *err)
{
    struct sim_work work = {.kind = SIM_RUN, .layer = l, .args = *args};
    moert_status_t status;

    for (uint32_t e = 0; e < l->config.num_local_experts; e++)
        if (!l->set[e])
            return moert_fail(err, MOERT_E_USAGE, "state", "expert %u has no weights yet", e);
    if (args->dumps)
        work.dumps = *args->dumps;
    status = sim_enqueue(q, &work, err);
    if (status)
        return status;
    pthread_mutex_lock(&l->lock);
    l->runs++;
    l->tokens += args->tokens;
    pthread_mutex_unlock(&l->lock);
    return MOERT_OK;
}

static moert_status_t warm_up(moert_drv_layer *l, moert_drv_queue *queue, uint64_t max_tokens, struct moert_error *err)
{
    (void)l;
    (void)queue;
    (void)max_tokens;
    (void)err;
    return MOERT_OK;
}

static moert_status_t counters(moert_drv_layer *l, struct moert_counters *ret, struct moert_error *err)
{
    uint32_t size = ret->size;

    (void)err;
    *ret = (struct moert_counters){.size = size, .implementations = 1};
    pthread_mutex_lock(&l->lock);
    snprintf(ret->by_implementation[0].name, sizeof(ret->by_implementation[0].name), "inner");
    ret->by_implementation[0].runs = l->runs;
    ret->by_implementation[0].tokens = l->tokens;
    pthread_mutex_unlock(&l->lock);
    return MOERT_OK;
}

static const struct moert_backend_ops backend_ops = {
    .size = sizeof(backend_ops),
    .supports = supports,
    .layout = layout,
    .workspace = workspace,
    .create = create,
    .prepare = prepare,
    .update = update,
    .export_weights = export_weights,
    .import_weights = import_weights,
    .warm_up = warm_up,
    .run = run,
    .release = release,
    .counters = counters,
};

static const struct moert_scheme_pair schemes[] = {
    {MOERT_SCHEME_LUT_B, MOERT_SCHEME_MXFP8}, {MOERT_SCHEME_LUT_B, MOERT_SCHEME_NONE},
    {MOERT_SCHEME_MXFP8, MOERT_SCHEME_MXFP8}, {MOERT_SCHEME_MXFP8, MOERT_SCHEME_NONE},
    {MOERT_SCHEME_BF16, MOERT_SCHEME_NONE},   {MOERT_SCHEME_BF16, MOERT_SCHEME_MXFP8},
    {MOERT_SCHEME_F16, MOERT_SCHEME_NONE},    {MOERT_SCHEME_F32, MOERT_SCHEME_NONE},
};

const struct moert_backend sim_backend = {
    .size = sizeof(sim_backend),
    .flags = MOERT_BACKEND_F_HOOK | MOERT_BACKEND_F_CAPTURE | MOERT_BACKEND_F_BATCH_INVARIANT |
             MOERT_BACKEND_F_MXFP8_INPUT | MOERT_BACKEND_F_DUMPS | MOERT_BACKEND_F_SHARED |
             MOERT_BACKEND_F_DEVICE_COUNT,
    .name = "sim.reference",
    .numeric_class = MOERT_CLASS_EXACT,
    .block_size = 1,
    .priority_decode = 80,
    .priority_prefill = 80,
    .accumulator_unit = 0x1p-53,
    .schemes = schemes,
    .scheme_count = sizeof(schemes) / sizeof(*schemes),
    .ops = &backend_ops,
};
