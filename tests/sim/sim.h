/* tests/sim/sim.h: a simulated accelerator: the shape of a GPU driver without a GPU.
 *
 * Two devices; memory that faults when the host touches it; the largest buffer is 1 MiB; queues are threads that start
 * work late; work can be captured and replayed; weights live in a layout of its own, cut into buffers. Results come
 * from the CPU reference, so every difference that a test sees is the core's or the driver contract's. Faults are
 * planted by SIM_FAULT: alloc:N   the N-th device allocation fails           lost:N   the device is lost at the N-th
 * run p1..p6    a wrong bit in that step's result          slow     work takes 20 ms crash     the first run kills the
 * process            hang     the first run never ends */
#ifndef MOERT_TESTS_SIM_H
#define MOERT_TESTS_SIM_H

#include <moert/driver.h>

#include <pthread.h>

#define SIM_DEVICES    2
#define SIM_MAX_BUFFER (1u << 20)
#define SIM_MEMORY     (256u << 20)
#define SIM_RING       4096 /* pieces of work a queue holds; run and copies never wait for room */

enum {
    SIM_FAULT_NONE,
    SIM_FAULT_ALLOC,
    SIM_FAULT_LOST,
    SIM_FAULT_STEP,
    SIM_FAULT_SLOW,
    SIM_FAULT_CRASH,
    SIM_FAULT_HANG
};

struct moert_drv {
    const struct moert_host *host;
    moert_drv *cpu; /* the inner reference driver */
    int fault, fault_count;
};

struct moert_drv_device {
    moert_drv *drv;
    uint32_t index;
    const struct moert_allocator *allocator;
    moert_drv_device *cpu;
    pthread_mutex_t lock; /* guards the rest */
    uint64_t used;        /* bytes of device memory */
    uint64_t next_native;
    moert_drv_buffer *buffers; /* list, for pointer_classify and import */
    int allocations, runs;
    int lost;
    char lost_text[160];
};

struct moert_drv_buffer {
    moert_drv_device *device;
    moert_memory_kind_t kind;
    uint64_t bytes, native;
    uint8_t *memory; /* never handed out for kind DEVICE */
    int users;       /* pieces of work that have it open; PROT_NONE while 0 */
    int owned;
    moert_drv_buffer *next;
};

enum sim_kind { SIM_COPY_IN, SIM_COPY_OUT, SIM_COPY, SIM_FILL, SIM_WAIT, SIM_RUN, SIM_UPDATE, SIM_STEP };

#define SIM_STEP_TENSORS 6
enum sim_step { STEP_QUANTIZE, STEP_DEQUANTIZE, STEP_DECODE, STEP_ACTIVATION, STEP_COMBINE };

/* One piece of work, self-contained: a replay copies it. */
struct sim_work {
    enum sim_kind kind;
    moert_drv_buffer *dst, *src;
    uint64_t dst_offset, src_offset, bytes;
    void *host;
    uint8_t value;
    moert_drv_queue *other;
    uint64_t sequence;
    moert_drv_layer *layer;
    struct moert_run_args args;
    struct moert_run_dumps dumps;
    struct moert_expert_weights weights;
    enum sim_step step;
    struct moert_mxfp8_params params;
    struct moert_layer_config config;
    struct moert_drv_tensor tensors[SIM_STEP_TENSORS];
};

struct moert_drv_graph {
    struct sim_work *work;
    uint32_t count, room;
};

struct moert_drv_queue {
    moert_drv_device *device;
    moert_drv_queue *cpu;
    uint64_t native;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct sim_work *ring;
    uint64_t enqueued, done; /* sequence numbers */
    int stop;
    moert_status_t failure; /* first failure of the work, kept */
    char failure_text[256];
    moert_drv_graph *capture;
};

/* memory.c */
extern moert_status_t sim_buffer_alloc(moert_drv_device *, moert_memory_kind_t, uint64_t, uint64_t, moert_drv_buffer **,
                                       struct moert_error *);
extern moert_status_t sim_buffer_import(moert_drv_device *, moert_memory_kind_t, uint64_t, uint64_t,
                                        moert_drv_buffer **, struct moert_error *);
extern void sim_buffer_free(moert_drv_device *, moert_drv_buffer *);
extern moert_status_t sim_buffer_info(moert_drv_device *, const moert_drv_buffer *, struct moert_memory_info *,
                                      struct moert_error *);
extern moert_status_t sim_pointer_classify(moert_drv_device *, uint64_t, struct moert_memory_info *,
                                           struct moert_error *);
/* Opens and closes a buffer for work; only queue threads (and prepare) do. */
uint8_t *sim_open(moert_drv_buffer *buffer);
void sim_close(moert_drv_buffer *buffer);

/* queue.c */
extern const struct moert_device_ops sim_device_ops;
extern const struct moert_step_ops sim_step_ops;
moert_status_t sim_enqueue(moert_drv_queue *queue, const struct sim_work *work, struct moert_error *err);
moert_status_t sim_device_lost(moert_drv_device *device, struct moert_error *err); /* OK while it is not */

/* inner.c: tensors of the inner reference driver over opened buffers */
struct sim_inner {
    moert_drv_device *device; /* cpu */
    moert_drv_buffer *imported[40], *opened[40];
    int count;
};
moert_status_t sim_inner_tensor(struct sim_inner *inner, struct moert_drv_tensor *tensor, struct moert_error *err);
void sim_inner_end(struct sim_inner *inner);
moert_status_t sim_inner_step(moert_drv_queue *queue, struct sim_work *work, struct moert_error *err);

/* layer.c */
extern const struct moert_backend sim_backend;
moert_status_t sim_layer_run(moert_drv_queue *queue, struct sim_work *work, struct moert_error *err);
moert_status_t sim_layer_store(moert_drv_layer *layer, moert_drv_queue *queue,
                               const struct moert_expert_weights *weights, struct moert_error *err);

#endif
