/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/layer_rig.h: layers of cpu.reference through the public API, with the weights of tests/data/vectors.
 *
 * The CPU driver is registered as it is (device memory is host memory), or as a device with memory of its own
 * (RIG_DISCRETE): the description lacks HOST_MEMORY and host buffers are refused to all but the loading of weights, so
 * that the core has to copy. Flags of the backend can be taken away. */
#ifndef MOERT_TESTS_LAYER_RIG_H
#define MOERT_TESTS_LAYER_RIG_H

#include "core/oracle/decision.h"
#include "drivers/cpu/cpu.h"

#include <moert/float8.h>
#include <moert/layer.h>
#include <moert/safetensors.h>

#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RIG_SHARED_MEMORY, RIG_DISCRETE };

/* Criterion runs each test in a process of its own, so the altered tables may be global. */
static struct moert_driver rig_driver;
static struct moert_driver_ops rig_ops;
static struct moert_device_ops rig_device_ops;
static struct moert_backend rig_backend;
static const struct moert_backend *rig_backends[1];
static int rig_refuse_host; /* discrete: host buffers may not take part in runs */
static uint64_t rig_alignment;
static uint64_t rig_max_buffer;              /* discrete: largest buffer */
static int rig_handles;                      /* discrete: native numbers are handles, near each other, not addresses */
static _Atomic int rig_waits;                /* discrete: times that the host waited */
static uint32_t rig_add_flags;               /* flags that the backend is given */
static struct moert_backend_ops rig_run_ops; /* its ops when a test sets rig_run */
static moert_status_t (*rig_run)(moert_drv_layer *layer, moert_drv_queue *queue, const struct moert_run_args *args,
                                 struct moert_error *err);

struct rig {
    moert_context_t *context;
    moert_queue_t *queue;
    moert_safetensors_t *file;
    struct moert_error err;
    moert_buffer_t *buffers[64]; /* of rig_upload, freed by rig_close */
    int buffer_count;
};

#define RIG_OK(rig, call)                                                                                              \
    do {                                                                                                               \
        moert_status_t rig_status = (call);                                                                            \
        cr_assert_eq(rig_status, MOERT_OK, "%s: %d %s: %s", #call, rig_status, (rig)->err.code, (rig)->err.text);      \
    } while (0)

#define RIG_FAILS(rig, call, status, word, part)                                                                       \
    do {                                                                                                               \
        moert_status_t rig_status = (call);                                                                            \
        cr_assert_eq(rig_status, status, "%s: %d %s: %s", #call, rig_status, (rig)->err.code, (rig)->err.text);        \
        cr_assert_str_eq((rig)->err.code, word, "%s: %s", #call, (rig)->err.text);                                     \
        cr_assert_not_null(strstr((rig)->err.text, part), "%s: %s", #call, (rig)->err.text);                           \
    } while (0)

static inline void rig_hide(struct moert_device_desc *desc)
{
    desc->flags &= ~(uint32_t)MOERT_DEVICE_F_HOST_MEMORY;
    desc->alignment = rig_alignment;
    desc->max_buffer = rig_max_buffer;
}

static inline moert_status_t rig_device_info(moert_drv *drv, uint32_t index, struct moert_device_desc *ret,
                                             struct moert_error *err)
{
    moert_status_t status = mcpu_driver.ops->device_info(drv, index, ret, err);

    if (!status)
        rig_hide(ret);
    return status;
}

static inline moert_status_t rig_info(moert_drv_device *device, struct moert_device_desc *ret, struct moert_error *err)
{
    moert_status_t status = mcpu_driver.device->info(device, ret, err);

    if (!status)
        rig_hide(ret);
    return status;
}

static inline moert_status_t rig_import(moert_drv_device *device, moert_memory_kind_t kind, uint64_t native,
                                        uint64_t bytes, moert_drv_buffer **ret, struct moert_error *err)
{
    cr_assert(!(rig_refuse_host && kind == MOERT_MEMORY_HOST), "host memory of %d bytes reached a run", (int)bytes);
    return mcpu_driver.device->buffer_import(device, kind, native, bytes, ret, err);
}

/* No address of a buffer is known to the host. */
static inline moert_status_t rig_buffer_info(moert_drv_device *device, const moert_drv_buffer *buffer,
                                             struct moert_memory_info *ret, struct moert_error *err)
{
    moert_status_t status = mcpu_driver.device->buffer_info(device, buffer, ret, err);

    if (!status && ret->kind == MOERT_MEMORY_DEVICE) {
        ret->native = rig_handles ? (uint64_t)(uintptr_t)buffer : (uint64_t)(uintptr_t)ret->host;
        ret->address = rig_handles ? 0 : ret->native;
        ret->host = NULL;
    }
    return status;
}

static inline moert_status_t rig_alloc(moert_drv_device *device, moert_memory_kind_t kind, uint64_t bytes,
                                       uint64_t alignment, moert_drv_buffer **ret, struct moert_error *err)
{
    if (rig_max_buffer && bytes > rig_max_buffer)
        return MOERT_E_TOO_LARGE;
    return mcpu_driver.device->buffer_alloc(device, kind, bytes, alignment, ret, err);
}

static inline moert_status_t rig_wait(moert_drv_queue *queue, uint64_t sequence, uint64_t timeout_ns,
                                      uint32_t *ret_done, struct moert_error *err)
{
    rig_waits++;
    return mcpu_driver.device->queue_wait(queue, sequence, timeout_ns, ret_done, err);
}

static inline void rig_open(struct rig *rig, int memory, uint32_t without_flags)
{
    struct moert_context_options options = {.size = sizeof(options),
                                            .flags = MOERT_CONTEXT_F_NO_MODULES | MOERT_CONTEXT_F_NO_SELF_TEST};

    *rig = (struct rig){.err = MOERT_ERROR_INIT};
    rig_driver = mcpu_driver;
    rig_backend = *mcpu_driver.backends[0];
    rig_backend.flags &= ~without_flags;
    rig_backend.flags |= rig_add_flags;
    if (rig_run) {
        rig_run_ops = *rig_backend.ops;
        rig_run_ops.run = rig_run;
        rig_backend.ops = &rig_run_ops;
    }
    rig_backends[0] = &rig_backend;
    rig_driver.backends = rig_backends;
    rig_driver.backend_count = 1;
    if (memory == RIG_DISCRETE) {
        rig_ops = *mcpu_driver.ops;
        rig_device_ops = *mcpu_driver.device;
        rig_ops.device_info = rig_device_info;
        rig_device_ops.info = rig_info;
        rig_device_ops.buffer_import = rig_import;
        rig_device_ops.buffer_info = rig_buffer_info;
        rig_device_ops.buffer_alloc = rig_alloc;
        rig_device_ops.queue_wait = rig_wait;
        rig_driver.ops = &rig_ops;
        rig_driver.device = &rig_device_ops;
        rig_alignment = rig_alignment ? rig_alignment : 4;
    }
    RIG_OK(rig, moert_context_create(&options, &rig->context, &rig->err));
    RIG_OK(rig, moert_context_register(rig->context, &rig_driver, &rig->err));
    RIG_OK(rig, moert_queue_create(rig->context, 0, 0, &rig->queue, &rig->err));
}

static inline void rig_load(struct rig *rig, const char *file)
{
    char path[4096];

    cr_assert_not_null(getenv("MOERT_TEST_DATA"), "MOERT_TEST_DATA is not set");
    snprintf(path, sizeof(path), "%s/vectors/%s", getenv("MOERT_TEST_DATA"), file);
    RIG_OK(rig, moert_safetensors_open(path, 0, &rig->file, &rig->err));
}

static inline void rig_close(struct rig *rig)
{
    for (int i = 0; i < rig->buffer_count; i++)
        moert_buffer_free(rig->buffers[i]);
    moert_queue_destroy(rig->queue);
    moert_context_destroy(rig->context);
    moert_safetensors_close(rig->file);
}

static inline const struct moert_st_tensor *rig_find(const struct rig *rig, const char *format, ...)
{
    char name[160];
    va_list args;

    va_start(args, format);
    vsnprintf(name, sizeof(name), format, args);
    va_end(args);
    return moert_safetensors_find(rig->file, name);
}

static inline int32_t rig_int(const struct rig *rig, const char *c, const char *name)
{
    const struct moert_st_tensor *t = rig_find(rig, "%s.p.%s", c, name);
    int32_t v;

    cr_assert_not_null(t, "%s.p.%s", c, name);
    memcpy(&v, t->data, sizeof(v));
    return v;
}

/* Description of the open file's layer: kind "lutb", "mxfp8", "bf16"; quantised 'q' or 'n'. */
static inline struct moert_layer_config rig_config(const struct rig *rig, const char *kind, char quantised, uint32_t k)
{
    struct moert_layer_config c;

    moert_layer_config_init(&c);
    strcpy(c.name, "test");
    c.index = 0;
    c.hidden_size = (uint64_t)rig_int(rig, "w", "H");
    c.intermediate_size = (uint64_t)rig_int(rig, "w", "I");
    c.num_experts = (uint32_t)rig_int(rig, "w", "E");
    c.top_k = k;
    c.weight_scheme = !strcmp(kind, "lutb")    ? MOERT_SCHEME_LUT_B
                      : !strcmp(kind, "mxfp8") ? MOERT_SCHEME_MXFP8
                                               : MOERT_SCHEME_BF16;
    c.activation_scheme = quantised == 'q' ? MOERT_SCHEME_MXFP8 : MOERT_SCHEME_NONE;
    return c;
}

static inline moert_layer_t *rig_create(struct rig *rig, const struct moert_layer_config *config)
{
    struct moert_decision decision = {.backend = 0, .device = 0};
    moert_layer_t *layer = NULL;

    RIG_OK(rig, moert_layer_create(rig->context, config, &decision, &layer, &rig->err));
    return layer;
}

static inline struct moert_tensor rig_expert(const struct moert_st_tensor *t, uint32_t expert, uint32_t count)
{
    uint64_t shape[MOERT_MAX_RANK], bytes;

    cr_assert_not_null(t);
    memcpy(shape, t->shape, t->rank * sizeof(*shape));
    bytes = t->bytes / shape[0];
    shape[0] = count;
    return moert_tensor_host((const uint8_t *)t->data + expert * bytes, t->dtype, t->rank, shape);
}

/* Canonical weights of `count` experts of the file from `expert` on, as local experts from `local` on. */
static inline struct moert_layer_weights rig_weights(const struct rig *rig, const char *kind, uint32_t local,
                                                     uint32_t expert, uint32_t count)
{
    struct moert_layer_weights w = {.size = sizeof(w), .first = local, .count = count};
    const char *main = !strcmp(kind, "lutb") ? "_packed" : !strcmp(kind, "mxfp8") ? "_q" : "";
    const char *scale = !strcmp(kind, "lutb") ? "_codebook" : "_s";

    w.w13 = rig_expert(rig_find(rig, "w.%s.w13%s", kind, main), expert, count);
    w.w2 = rig_expert(rig_find(rig, "w.%s.w2%s", kind, main), expert, count);
    if (strcmp(kind, "bf16")) {
        w.w13_scale = rig_expert(rig_find(rig, "w.%s.w13%s", kind, scale), expert, count);
        w.w2_scale = rig_expert(rig_find(rig, "w.%s.w2%s", kind, scale), expert, count);
    }
    return w;
}

/* Every expert of the layer; with a map local expert map[g] gets expert g of the file. */
static inline void rig_set(struct rig *rig, moert_layer_t *layer, const char *kind)
{
    const struct moert_layer_config *c = moert_layer_get_config(layer);
    struct moert_layer_weights w;

    rig_refuse_host = 0;
    if (!c->expert_map_length) {
        w = rig_weights(rig, kind, 0, 0, c->num_local_experts);
        RIG_OK(rig, moert_layer_set_weights(layer, &w, &rig->err));
    }
    for (uint32_t g = 0; g < c->expert_map_length; g++)
        if (c->expert_map[g] >= 0) {
            w = rig_weights(rig, kind, (uint32_t)c->expert_map[g], g, 1);
            RIG_OK(rig, moert_layer_set_weights(layer, &w, &rig->err));
        }
    rig_refuse_host = rig_driver.device == &rig_device_ops;
}

static inline moert_layer_t *rig_layer(struct rig *rig, const struct moert_layer_config *config, const char *kind)
{
    moert_layer_t *layer = rig_create(rig, config);

    rig_set(rig, layer, kind);
    return layer;
}

static inline struct moert_tensor rig_host(const struct moert_st_tensor *t)
{
    cr_assert_not_null(t);
    return moert_tensor_host(t->data, t->dtype, t->rank, t->shape);
}

/* Arguments of a case of the file; output [T,H] bf16 at `out`. */
static inline struct moert_layer_args rig_args(const struct rig *rig, const char *c, void *out)
{
    struct moert_layer_args a = {.size = sizeof(a)};

    a.x = rig_host(rig_find(rig, "%s.x", c));
    a.ids = rig_host(rig_find(rig, "%s.topk_ids", c));
    a.weights = rig_host(rig_find(rig, "%s.topk_w", c));
    a.output = moert_tensor_host(out, MOERT_BF16, 2, a.x.shape);
    return a;
}

static inline void *rig_memory(size_t bytes, int fill)
{
    void *p = malloc(bytes ? bytes : 1);

    cr_assert_not_null(p);
    memset(p, fill, bytes);
    return p;
}

/* A device buffer with a copy of host memory. */
static inline moert_buffer_t *rig_upload(struct rig *rig, const void *host, uint64_t bytes)
{
    moert_buffer_t *buffer = NULL;

    RIG_OK(rig, moert_buffer_alloc(rig->context, 0, MOERT_MEMORY_DEVICE, bytes, 0, &buffer, &rig->err));
    cr_assert_lt(rig->buffer_count, 64);
    rig->buffers[rig->buffer_count++] = buffer;
    RIG_OK(rig, moert_copy_in(rig->queue, buffer, 0, host, bytes, &rig->err));
    RIG_OK(rig, moert_queue_wait(rig->queue, UINT64_MAX, UINT64_MAX, NULL, &rig->err));
    return buffer;
}

static inline struct moert_tensor rig_on_device(struct rig *rig, const struct moert_tensor *host)
{
    uint64_t bytes = moert_dtype_size(host->dtype);

    for (uint32_t i = 0; i < host->rank; i++)
        bytes *= host->shape[i];
    return moert_tensor_device(rig_upload(rig, host->data, bytes), 0, host->dtype, host->rank, host->shape);
}

static inline void rig_download(struct rig *rig, const struct moert_tensor *t, void *host, uint64_t bytes)
{
    RIG_OK(rig, moert_copy_out(rig->queue, host, t->buffer, t->offset, bytes, &rig->err));
    RIG_OK(rig, moert_queue_wait(rig->queue, UINT64_MAX, UINT64_MAX, NULL, &rig->err));
}

#endif
