/* drivers/null/null.h: what the three files of the null driver share.
 *
 * The null driver is the smallest complete driver: one imaginary device whose memory is host memory, a queue that does
 * its work before an op returns, and one backend that accepts every layer and writes zeros. Copy this folder to begin a
 * driver; doc/driver-guide.md walks through it in this order: null.c     the module's one export, the driver ops: is
 * there a device, how many, what are they device.c   memory, queues, copies backend.c  the experts backend: may it
 * serve a layer, what does it need, run it */
#ifndef MOERT_DRIVERS_NULL_NULL_H
#define MOERT_DRIVERS_NULL_NULL_H

#include "drivers/common/abi.h"

#include <moert/driver.h>

/* The ABI leaves these types to the driver. */
struct moert_drv {
    const struct moert_host *host; /* valid until close */
};

struct moert_drv_device {
    moert_drv *drv;
    const struct moert_allocator *allocator; /* the caller's, or NULL */
};

struct moert_drv_buffer {
    unsigned char *address;
    uint64_t bytes;
    moert_memory_kind_t kind;
    uint32_t source; /* MNULL_FROM_* */
};

/* Who gave the memory and so takes it back. */
enum { MNULL_FROM_HOST = 0, MNULL_FROM_ALLOCATOR = 1, MNULL_IMPORTED = 2 };

struct moert_drv_queue {
    moert_drv_device *device;
    uint64_t native; /* the caller's stream, carried along and not used */
    uint64_t last;   /* number of the last work enqueued, which is also the last one done */
};

extern const struct moert_device_ops mnull_device_ops;
extern const struct moert_backend mnull_zero;

/* Fills the description of the one device; used before and after opening it. */
void mnull_describe(struct moert_device_desc *ret);

#endif
