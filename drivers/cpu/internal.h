/* SPDX-License-Identifier: Apache-2.0
 * drivers/cpu/internal.h: the objects of the CPU driver and what its files offer to one another.
 *
 * probe.c describes the machine, device.c holds memory and queues, threads.c is the only user of OpenMP, tensor.c turns
 * the boundary's tensors into addresses, steps.c serves single steps, backends.c lists the experts backends,
 * ref/ is the backend cpu.reference. Memory of the device is host memory; work is done before its op returns. */
#ifndef MOERT_DRIVERS_CPU_INTERNAL_H
#define MOERT_DRIVERS_CPU_INTERNAL_H

#include <moert/driver.h>
#include <stdatomic.h>

/* One opened driver. `owner` is the process that opened it: OpenMP's threads do not survive a fork. */
struct moert_drv {
    const struct moert_host *host;
    uint32_t threads;  /* MOERT_THREADS; 0: what OpenMP gives, capped by the affinity mask */
    uint32_t affinity; /* processors of the affinity mask when opened */
    int64_t owner;
    _Atomic uint32_t fork_reported;
};

struct moert_drv_device {
    moert_drv *drv;
};

struct moert_drv_buffer {
    uint8_t *data;
    uint64_t bytes;
    moert_memory_kind_t kind;
    uint32_t owned; /* data came from the host's allocator */
};

struct moert_drv_queue {
    moert_drv_device *device;
    uint64_t last; /* number of the last work, complete already */
};

extern const struct moert_driver_ops mcpu_driver_ops;
extern const struct moert_device_ops mcpu_device_ops;
extern const struct moert_step_ops mcpu_step_ops;
#define MCPU_BACKEND_COUNT 1
extern const struct moert_backend *const mcpu_backends[MCPU_BACKEND_COUNT];

/* Smallest legal `size` of a caller's struct: up to and with `last`, its last field in ABI 1.0. */
#define MCPU_SIZE_TO(type, last) (offsetof(type, last) + sizeof(((type *)0)->last))

/* ---- probe.c ---- */

/* Fills everything but memory_free's later changes; never fails. */
void mcpu_describe(struct moert_device_desc *ret);
uint32_t mcpu_affinity_count(void);
void mcpu_memory(uint64_t *ret_total, uint64_t *ret_free);

/* ---- threads.c ---- */

/* Items [begin, end) are this thread's; `thread` < the count given to mcpu_parallel. */
typedef void (*mcpu_body)(void *ctx, uint64_t begin, uint64_t end, uint32_t thread);

/* Threads that a call made now would use, at least 1. */
uint32_t mcpu_threads(moert_drv *drv);

/* Runs body over [0, items) on up to `threads` threads, contiguous shares, floating-point state set to its default
 * (nearest, no flush to zero) in each and restored after. Items must not depend on one another. */
void mcpu_parallel(uint32_t threads, uint64_t items, mcpu_body body, void *ctx);

#endif
