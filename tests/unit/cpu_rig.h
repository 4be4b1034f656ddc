/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/cpu_rig.h: drives the CPU driver through its ABI, without the core: a host of its own, one device, one
 * queue, tensors over the test's memory. Every buffer is imported with its exact size, so that a read past a tensor is
 * a read past its buffer (and past its allocation, under ASan). */
#ifndef MOERT_TESTS_CPU_RIG_H
#define MOERT_TESTS_CPU_RIG_H

#include "drivers/cpu/cpu.h"

#include <criterion/criterion.h>
#include <moert/activation.h>
#include <moert/float8.h>
#include <moert/layer_config.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RIG_MAX 4096

struct rig {
    struct moert_host host;
    const char *threads; /* value of MOERT_THREADS */
    uint64_t allocations;
    moert_drv *drv;
    moert_drv_device *device;
    moert_drv_queue *queue;
    struct moert_device_desc desc;
    const struct moert_backend *backend;
    moert_drv_buffer *buffers[RIG_MAX];
    void *memory[RIG_MAX];
    size_t buffer_count, memory_count;
    struct moert_error err;
};

static inline void rig_log(void *ctx, moert_log_level_t level, const char *message)
{
    (void)ctx;
    (void)level;
    (void)message;
}

static inline void *rig_host_alloc(void *ctx, uint64_t bytes, uint64_t alignment)
{
    struct rig *rig = ctx;
    void *p = NULL;

    rig->allocations++;
    return posix_memalign(&p, alignment < sizeof(void *) ? sizeof(void *) : (size_t)alignment, (size_t)bytes) ? NULL
                                                                                                              : p;
}

static inline void rig_host_free(void *ctx, void *pointer)
{
    (void)ctx;
    free(pointer);
}

static inline const char *rig_option(void *ctx, const char *name)
{
    struct rig *rig = ctx;

    return strcmp(name, "MOERT_THREADS") ? NULL : rig->threads;
}

/* Statuses are checked with the text of the error at hand. */
#define RIG_OK(rig, call)                                                                                              \
    do {                                                                                                               \
        moert_status_t rig_status = (call);                                                                            \
        cr_assert_eq(rig_status, MOERT_OK, "%s: %d %s: %s", #call, rig_status, (rig)->err.code, (rig)->err.text);      \
    } while (0)

#define RIG_FAILS(rig, call, status, word)                                                                             \
    do {                                                                                                               \
        moert_status_t rig_status = (call);                                                                            \
        cr_assert_eq(rig_status, status, "%s: %d %s: %s", #call, rig_status, (rig)->err.code, (rig)->err.text);        \
        cr_assert_str_eq((rig)->err.code, word, "%s: %s", #call, (rig)->err.text);                                     \
    } while (0)

static inline void rig_open(struct rig *rig, const char *threads)
{
    memset(rig, 0, sizeof(*rig));
    rig->threads = threads;
    rig->err.size = sizeof(rig->err);
    rig->host = (struct moert_host){.size = sizeof(rig->host),
                                    .minor = MOERT_DRIVER_ABI_MINOR,
                                    .ctx = rig,
                                    .log = rig_log,
                                    .alloc = rig_host_alloc,
                                    .free = rig_host_free,
                                    .option = rig_option};
    RIG_OK(rig, mcpu_driver.ops->open(&rig->host, &rig->drv, &rig->err));
    RIG_OK(rig, mcpu_driver.device->open(rig->drv, 0, NULL, &rig->device, &rig->err));
    RIG_OK(rig, mcpu_driver.device->queue_create(rig->device, 0, &rig->queue, &rig->err));
    rig->desc.size = sizeof(rig->desc);
    RIG_OK(rig, mcpu_driver.device->info(rig->device, &rig->desc, &rig->err));
    rig->backend = mcpu_driver.backends[0];
}

static inline void rig_close(struct rig *rig)
{
    for (size_t i = 0; i < rig->buffer_count; i++)
        mcpu_driver.device->buffer_free(rig->device, rig->buffers[i]);
    for (size_t i = 0; i < rig->memory_count; i++)
        free(rig->memory[i]);
    mcpu_driver.device->queue_destroy(rig->queue);
    mcpu_driver.device->close(rig->device);
    mcpu_driver.ops->close(rig->drv);
}

/* Memory filled with a byte, freed by rig_close. */
static inline void *rig_memory(struct rig *rig, size_t bytes, int fill)
{
    void *p = malloc(bytes ? bytes : 1);

    cr_assert_not_null(p);
    cr_assert_lt(rig->memory_count, RIG_MAX);
    memset(p, fill, bytes);
    rig->memory[rig->memory_count++] = p;
    return p;
}

static inline moert_drv_buffer *rig_buffer(struct rig *rig, const void *data, uint64_t bytes)
{
    moert_drv_buffer *buffer;

    RIG_OK(rig, mcpu_driver.device->buffer_import(rig->device, MOERT_MEMORY_HOST, (uint64_t)(uintptr_t)data, bytes,
                                                  &buffer, &rig->err));
    cr_assert_lt(rig->buffer_count, RIG_MAX);
    rig->buffers[rig->buffer_count++] = buffer;
    return buffer;
}

/* A dense tensor over `data`; the sizes follow the rank, as int. */
static inline struct moert_drv_tensor rig_tensor(struct rig *rig, const void *data, moert_dtype_t dtype, int rank, ...)
{
    struct moert_drv_tensor t = {.dtype = dtype, .rank = (uint32_t)rank};
    uint64_t n = 1;
    va_list args;

    va_start(args, rank);
    for (int i = 0; i < rank; i++)
        t.shape[i] = (uint64_t)va_arg(args, int);
    va_end(args);
    for (int i = rank; i-- > 0; n *= t.shape[i])
        t.strides[i] = (int64_t)n;
    t.buffer = rig_buffer(rig, data, n * moert_dtype_size(dtype));
    return t;
}

/* A complete description; fields are then changed by the test. */
static inline struct moert_layer_config rig_config(uint64_t h, uint64_t i, uint32_t experts, uint32_t k,
                                                   moert_dtype_t d, moert_scheme_t weights, moert_scheme_t activations)
{
    struct moert_layer_config c = {.size = sizeof(c),
                                   .index = -1,
                                   .dtype = d,
                                   .hidden_size = h,
                                   .intermediate_size = i,
                                   .num_experts = experts,
                                   .num_local_experts = experts,
                                   .top_k = k,
                                   .weight_scheme = weights,
                                   .activation_scheme = activations,
                                   .max_tokens = 8192};

    c.router.size = sizeof(c.router);
    c.shared.size = sizeof(c.shared);
    return c;
}

static inline moert_drv_layer *rig_layer(struct rig *rig, const struct moert_layer_config *config)
{
    moert_drv_layer *layer = NULL;

    RIG_OK(rig, rig->backend->ops->create(rig->device, rig->backend, config, &layer, &rig->err));
    return layer;
}

/* Runs with a workspace of exactly the size asked for, filled with NaN bytes, with guard bytes behind it. */
static inline moert_status_t rig_run(struct rig *rig, moert_drv_layer *layer, const struct moert_layer_config *config,
                                     struct moert_run_args *args)
{
    struct moert_workspace want = {.size = sizeof(want)};
    moert_drv_buffer *workspace;
    moert_status_t status;
    uint64_t before;
    uint8_t *data;

    args->size = sizeof(*args);
    RIG_OK(rig, rig->backend->ops->workspace(rig->backend, &rig->desc, config, args->tokens, &want, &rig->err));
    data = aligned_alloc(256, (size_t)(want.bytes + 511) / 256 * 256);
    cr_assert_not_null(data);
    memset(data, 0xff, (size_t)want.bytes + 64);
    RIG_OK(rig, mcpu_driver.device->buffer_import(rig->device, MOERT_MEMORY_HOST, (uint64_t)(uintptr_t)data, want.bytes,
                                                  &workspace, &rig->err));
    args->workspace = workspace;
    args->workspace_offset = 0;
    args->workspace_bytes = want.bytes;
    before = rig->allocations;
    status = rig->backend->ops->run(layer, rig->queue, args, &rig->err);
    cr_assert_eq(rig->allocations, before, "run allocated");
    for (int i = 0; i < 64; i++)
        cr_assert_eq(data[want.bytes + (uint64_t)i], 0xff, "byte %d past the workspace was written", i);
    mcpu_driver.device->buffer_free(rig->device, workspace);
    free(data);
    return status;
}

static inline float rig_value(const void *data, moert_dtype_t dtype, uint64_t i)
{
    return (float)moert_load(data, dtype, i);
}

#endif
