/* core/layer/staging.h: a caller's tensors as a driver takes them: dense, aligned, on the device.
 *
 * A stage lives for one call. Each tensor gets an item: device tensors that are dense and aligned are used as they are,
 * host tensors are imported where the device's memory is host memory and copied in and out chunk by chunk elsewhere,
 * anything strided or misaligned goes through a dense copy. Memory comes from a pool that only grows. */
#ifndef MOERT_LAYER_STAGING_H
#define MOERT_LAYER_STAGING_H

#include "core/loader/context.h"

enum moert_slot {
    MOERT_SLOT_X,
    MOERT_SLOT_X_SCALE,
    MOERT_SLOT_IDS,
    MOERT_SLOT_WEIGHTS,
    MOERT_SLOT_LOGITS,
    MOERT_SLOT_MAP,
    MOERT_SLOT_TOKEN_COUNT,
    MOERT_SLOT_OUTPUT,
    MOERT_SLOT_INDEX,
    MOERT_SLOT_OUT_IDS,
    MOERT_SLOT_OUT_WEIGHTS,
    MOERT_SLOT_SHARED,         /* output of the shared expert */
    MOERT_SLOT_SHARED_IDS,     /* its ids, all 0 */
    MOERT_SLOT_SHARED_WEIGHTS, /* 1, or the gate */
    MOERT_SLOT_ROWS,           /* unreduced rows for a hook */
    MOERT_SLOT_SCRATCH,        /* a caller's array in a form that backends do not take */
    MOERT_SLOT_DECODED,        /* x out of MXFP8 */
    MOERT_SLOT_DUMPS,          /* first of the 11 dumps */
    MOERT_SLOT_COUNT = MOERT_SLOT_DUMPS + 11
};

struct moert_pool_memory {
    moert_drv_buffer *buffer; /* NULL: `host` is plain memory */
    uint8_t *host;            /* host kind only */
    uint64_t bytes;
};

/* Memory of one queue. Used by one thread at a time, as the queue itself. */
struct moert_pool {
    struct moert_pool *next;
    uint64_t queue_id;
    struct moert_pool_memory workspace;
    struct moert_pool_memory device[MOERT_SLOT_COUNT]; /* dense copies of device tensors, and the core's own */
    struct moert_pool_memory slice[MOERT_SLOT_COUNT];  /* one chunk's rows of host or misaligned tensors */
    struct moert_pool_memory host[MOERT_SLOT_COUNT];   /* dense copies of host tensors, and the core's own */
    uint64_t ones;                                     /* entries of SHARED_IDS and SHARED_WEIGHTS that hold 0 and 1 */
};

typedef uint32_t moert_direction_t;
enum { MOERT_STAGE_NONE = 0, MOERT_STAGE_IN = 1, MOERT_STAGE_OUT = 2 };

struct moert_item {
    moert_direction_t direction;
    struct moert_tensor user;
    moert_dtype_t dtype;
    uint32_t rank;
    uint64_t shape[MOERT_MAX_RANK];
    uint64_t row_bytes; /* of one index of axis 0 */
    uint8_t *host;      /* dense host bytes, or NULL: on the device */
    moert_drv_buffer *buffer, *imported;
    uint64_t offset;
    int scattered; /* OUT into a dense copy: goes to `user` at the end */
    int sliced;    /* the last view is in pool->slice */
};

struct moert_stage {
    struct moert_ctx_device *device;
    moert_drv_queue *queue;
    struct moert_pool *pool;
    struct moert_item items[MOERT_SLOT_COUNT];
    int must_wait; /* host memory takes part */
    int capturing; /* the queue records: nothing may wait or allocate */
    int launched;
    uint64_t staged_bytes, allocations;
};

/* Bytes from a tensor's lowest element up to element 0, and from there to past its highest one. 0 when these or the
 * bytes of a dense copy do not fit 63 bits. */
int moert_tensor_extent(const struct moert_tensor *tensor, uint64_t *ret_below, uint64_t *ret_above);
int moert_tensor_given(const struct moert_tensor *tensor);

/* Error `state` while the queue is being captured; `what` would have to happen now. */
moert_status_t moert_stage_check_capture(const struct moert_stage *stage, const char *what, struct moert_error *err);
/* Pool memory of at least `bytes`; content is lost when it grows (after waiting for the queue). */
moert_status_t moert_pool_device(struct moert_stage *stage, struct moert_pool_memory *memory, uint64_t bytes,
                                 struct moert_error *err);
moert_status_t moert_pool_host(struct moert_stage *stage, struct moert_pool_memory *memory, uint64_t bytes,
                               struct moert_error *err);
void moert_pool_free(struct moert_ctx_device *device, struct moert_pool *pool);

/* Makes the item of `slot`. The tensor's shape, dtype and range have been checked. Absent tensors leave it empty. */
moert_status_t moert_stage_add(struct moert_stage *stage, enum moert_slot slot, const struct moert_tensor *tensor,
                               moert_direction_t direction, struct moert_error *err);
/* An IN item of the core's own: *ret_host [shape] is to be filled before the first view. */
moert_status_t moert_stage_own(struct moert_stage *stage, enum moert_slot slot, moert_dtype_t dtype, uint32_t rank,
                               const uint64_t *shape, void **ret_host, struct moert_error *err);
/* Rows [first, first+count) of axis 0 on the device; IN rows are copied there, OUT rows have room there. An empty item
 * gives an absent tensor. */
moert_status_t moert_stage_view(struct moert_stage *stage, enum moert_slot slot, uint64_t first, uint64_t count,
                                struct moert_drv_tensor *ret, struct moert_error *err);
/* Enqueues the way back of OUT rows that a view gave, after the work that writes them. */
moert_status_t moert_stage_back(struct moert_stage *stage, enum moert_slot slot, uint64_t first, uint64_t count,
                                struct moert_error *err);
/* Enqueues zeros (or another byte) over OUT rows. */
moert_status_t moert_stage_fill(struct moert_stage *stage, enum moert_slot slot, uint64_t first, uint64_t count,
                                uint8_t value, struct moert_error *err);
/* Dense host bytes of a whole IN item; waits for the queue when they are on the device. */
moert_status_t moert_stage_read(struct moert_stage *stage, enum moert_slot slot, const void **ret,
                                struct moert_error *err);
/* Ends the stage: waits when host memory took part, brings scattered outputs home when `status` is OK, frees imports.
 * Returns status, or what failed here. */
moert_status_t moert_stage_finish(struct moert_stage *stage, moert_status_t status, struct moert_error *err);

/* A dense tensor over a driver's buffer. */
struct moert_drv_tensor moert_drv_dense(moert_drv_buffer *buffer, uint64_t offset, moert_dtype_t dtype, uint32_t rank,
                                        const uint64_t *shape);
/* Copies between host memory of any strides and a dense array. */
void moert_gather(const struct moert_tensor *tensor, uint8_t *dense);
void moert_scatter(const struct moert_tensor *tensor, const uint8_t *dense);
/* Dense runs of a tensor: *ret_run elements each, one per index of the first `return value` axes; and where run `index`
 * begins, in elements. */
uint32_t moert_tensor_runs(const struct moert_tensor *tensor, uint64_t *ret_run);
int64_t moert_tensor_run_offset(const struct moert_tensor *tensor, uint32_t outer, uint64_t index);
/* 1 when the elements lie row-major without gaps. */
int moert_tensor_is_dense(const struct moert_tensor *tensor);

#endif
