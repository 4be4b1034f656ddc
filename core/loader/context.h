/* core/loader/context.h: what a context holds; seen by core/loader, core/layer, core/oracle and core/verify.
 *
 * A context is built once (discover.c finds files, module.c gates and opens each, context.c fills the tables) and then
 * only grows by moert_context_register. Tables are arrays of pointers so that entries never move. `lock` guards the
 * tables while they grow and the lazy opening of devices. */
#ifndef MOERT_LOADER_CONTEXT_H
#define MOERT_LOADER_CONTEXT_H

#include "core/base/log.h"

#include <moert/context.h>

#include <pthread.h>

/* One candidate file or registered driver; ends in exactly one state. */
struct moert_ctx_driver {
    moert_driver_state_t state;
    char *path, *name, *version, *vendor, *reason; /* never NULL */
    char sha256[65];                               /* "" for registered drivers */
    const struct moert_driver *table;              /* NULL until the module could be asked */
    moert_drv *handle;                             /* open when state is READY */
    struct moert_host host;
    struct moert_context *context;
};

struct moert_ctx_device {
    struct moert_ctx_driver *driver;
    uint32_t index_in_driver;
    struct moert_device_desc desc; /* as found at load; memory_free may be old */
    moert_drv_device *handle;      /* opened at first use by moert_ctx_device_open */
};

struct moert_ctx_backend {
    struct moert_ctx_driver *driver;
    const struct moert_backend *table;
};

struct moert_context {
    uint32_t flags;
    struct moert_logger logger;
    const struct moert_allocator *allocator;
    pthread_mutex_t lock;
    struct moert_ctx_driver **drivers;
    uint32_t driver_count;
    struct moert_ctx_device **devices; /* of READY drivers */
    uint32_t device_count;
    struct moert_ctx_backend **backends; /* of every driver whose table is known */
    uint32_t backend_count;
    struct moert_ctx_self_test *self_tests; /* results of this process, self_test.c */
    int owner_pid;                          /* a forked child is refused by a sentence */
};

struct moert_buffer {
    struct moert_context *context;
    uint32_t device;
    moert_drv_buffer *handle;
    uint64_t bytes;
};

struct moert_queue {
    struct moert_context *context;
    uint32_t device;
    moert_drv_queue *handle;
    uint64_t id; /* unique in the process, for per-queue pools */
};

struct moert_graph {
    struct moert_context *context;
    uint32_t device;
    moert_drv_graph *handle;
};

/* An op of a driver's table, or NULL when the table is NULL, was built before the op existed, or leaves it out. */
#define MOERT_DRV_OP(ops, op) ((ops) && MOERT_HAS(ops, op) ? (ops)->op : NULL)

/* Refuses a process that is not the context's maker: drivers do not survive fork. */
moert_status_t moert_ctx_check_process(const struct moert_context *context, struct moert_error *err);

/* 1 when at least one driver is READY. */
static inline int moert_loader_any_ready(const struct moert_context *context)
{
    for (uint32_t i = 0; i < context->driver_count; i++)
        if (context->drivers[i]->state == MOERT_DRIVER_READY)
            return 1;
    return 0;
}

/* Opens device `index` when it is not open yet. */
moert_status_t moert_ctx_device_open(struct moert_context *context, uint32_t index, struct moert_ctx_device **ret,
                                     struct moert_error *err);

/* Outcome of the self-test of one backend on one device (oracle.md 8). */
typedef enum {
    MOERT_SELF_TEST_PASSED,
    MOERT_SELF_TEST_FAILED,     /* code self-test: wrong result, crashed or timeout */
    MOERT_SELF_TEST_QUARANTINE, /* code quarantine: a failure remembered for this file and arch */
    MOERT_SELF_TEST_UNKNOWN     /* not asked yet (peek only) */
} moert_self_test_outcome_t;

/* Tests backend `backend` on device `device` unless this process or the state directory remembers the result; spawns
 * the helper program, never forks the caller. Registered drivers, contexts with NO_SELF_TEST and MOERT_SELF_TEST=off
 * pass. detail: first difference, "crashed: signal 11", "timeout"; may be NULL. Only machinery failures are a status.
 */
moert_status_t moert_self_test(struct moert_context *context, uint32_t backend, uint32_t device,
                               moert_self_test_outcome_t *ret, char *detail, size_t detail_size,
                               struct moert_error *err);
/* What is remembered; never spawns. */
moert_self_test_outcome_t moert_self_test_peek(struct moert_context *context, uint32_t backend, uint32_t device,
                                               char *detail, size_t detail_size);
/* Forgets a remembered failure (moert verify passed). */
void moert_self_test_forget(struct moert_context *context, uint32_t backend, uint32_t device);

#endif
