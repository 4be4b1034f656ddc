/* SPDX-License-Identifier: Apache-2.0
 * moert/context.h: a context holds the loaded drivers, their devices and backends; buffers and queues belong to a device.
 * A context is thread-safe. Objects made from it must be destroyed before it. */
#ifndef MOERT_CONTEXT_H
#define MOERT_CONTEXT_H

#include <moert/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moert_context moert_context_t;
typedef struct moert_queue moert_queue_t;
typedef struct moert_graph moert_graph_t;

typedef void (*moert_log_fn)(void *ctx, moert_log_level_t level, const char *message);

enum {
    MOERT_CONTEXT_F_NO_MODULES = 1u << 0,  /* load no module files: only registered drivers */
    MOERT_CONTEXT_F_NO_SELF_TEST = 1u << 1 /* trust every backend (the self-test helper itself, unit tests) */
};

struct moert_context_options {
    uint32_t size;
    uint32_t flags;
    const char *driver_path; /* like MOERT_DRIVER_PATH; NULL: that variable, else the installed directory */
    const char *drivers;     /* like MOERT_DRIVERS, "cuda,cpu" or "^rocm"; NULL: that variable */
    moert_log_fn log;        /* NULL: MOERT_LOG and MOERT_LOG_FILE decide */
    void *log_ctx;
    const struct moert_allocator *allocator; /* device memory for every device; NULL: the drivers' own */
    uint64_t reserved[4];
};

/* Finds, gates and opens the modules. Modules that fail are listed with state and reason; that is no error here.
 * options NULL: all defaults. Does not wait for self-tests. */
MOERT_API moert_status_t moert_context_create(const struct moert_context_options *options, moert_context_t **ret,
                                              struct moert_error *err);
MOERT_API void moert_context_destroy(moert_context_t *context);

/* Adds a driver that is linked into the process; same checks as for a module. `driver` must outlive the context. */
MOERT_API moert_status_t moert_context_register(moert_context_t *context, const struct moert_driver *driver,
                                                struct moert_error *err);

/* ---- what there is ---- */

typedef uint32_t moert_driver_state_t;
enum {
    MOERT_DRIVER_READY = 0,
    MOERT_DRIVER_NO_DEVICE = 1,
    MOERT_DRIVER_DISABLED = 2,
    MOERT_DRIVER_SHADOWED = 3,
    MOERT_DRIVER_INCOMPATIBLE = 4,
    MOERT_DRIVER_LOAD_FAILED = 5,
    MOERT_DRIVER_STATE_COUNT = 6
};
MOERT_API const char *moert_driver_state_name(moert_driver_state_t state); /* "no-device" */

/* Strings live as long as the context. */
struct moert_driver_info {
    uint32_t size;
    moert_driver_state_t state;
    const char *path;    /* module file, "" for registered drivers */
    const char *name;    /* from the file name until the module could be asked */
    const char *version; /* "" unknown */
    const char *vendor;
    const char *reason; /* "" when ready */
    const char *sha256; /* hex of the module file, "" for registered drivers */
    uint32_t device_count, backend_count;
};
MOERT_API uint32_t moert_driver_count(const moert_context_t *context);
MOERT_API moert_status_t moert_driver_get(const moert_context_t *context, uint32_t index,
                                          struct moert_driver_info *ret, struct moert_error *err);

MOERT_API uint32_t moert_device_count(const moert_context_t *context);
MOERT_API moert_status_t moert_device_get(moert_context_t *context, uint32_t index, struct moert_device_desc *ret,
                                          struct moert_error *err);
/* Index of a device id ("cuda:0"); MOERT_E_VALUE with the known ids. */
MOERT_API moert_status_t moert_device_find(moert_context_t *context, const char *id, uint32_t *ret,
                                           struct moert_error *err);

struct moert_backend_info {
    uint32_t size;
    uint32_t flags;                  /* MOERT_BACKEND_F_* */
    const char *name;
    const char *const *aliases;      /* NULL-terminated, never NULL */
    const char *driver;              /* driver name */
    const char *auto_reason;         /* NULL unless opt-in */
    moert_class_t numeric_class;
    uint32_t block_size, priority_decode, priority_prefill;
    double accumulator_unit, activation_eps;
    const struct moert_scheme_pair *schemes;
    uint32_t scheme_count;
    moert_driver_state_t driver_state;
};
/* Backends of every driver that could be asked, ready or not. */
MOERT_API uint32_t moert_backend_count(const moert_context_t *context);
MOERT_API moert_status_t moert_backend_get(const moert_context_t *context, uint32_t index,
                                           struct moert_backend_info *ret, struct moert_error *err);
/* By name or alias, case-insensitive, '-' equals '_'. backend-unknown with the nearest name. */
MOERT_API moert_status_t moert_backend_find(const moert_context_t *context, const char *name, uint32_t *ret,
                                            struct moert_error *err);

/* Effective configuration: the MOERT_* options of core/base/config.def. Index past the end: MOERT_E_VALUE. */
struct moert_option_info {
    uint32_t size;
    uint32_t reserved32;
    const char *name, *value, *source; /* source: "default", "environment", "option" */
    const char *help, *type;
};
MOERT_API uint32_t moert_option_count(void);
MOERT_API moert_status_t moert_option_get(uint32_t index, struct moert_option_info *ret, struct moert_error *err);

/* ---- memory and queues ---- */

/* Memory on a device (opened at first use). kind, size and alignment as in moert_device_ops.buffer_alloc. Freed bytes
 * must not be in use by pending work. */
MOERT_API moert_status_t moert_buffer_alloc(moert_context_t *context, uint32_t device, moert_memory_kind_t kind,
                                            uint64_t bytes, uint64_t alignment, moert_buffer_t **ret,
                                            struct moert_error *err);
/* A caller's native pointer or handle (CUdeviceptr, cl_mem, host address for kind HOST), used as it is. */
MOERT_API moert_status_t moert_buffer_import(moert_context_t *context, uint32_t device, moert_memory_kind_t kind,
                                             uint64_t native, uint64_t bytes, moert_buffer_t **ret,
                                             struct moert_error *err);
MOERT_API void moert_buffer_free(moert_buffer_t *buffer);
MOERT_API moert_status_t moert_buffer_info(const moert_buffer_t *buffer, struct moert_memory_info *ret,
                                           struct moert_error *err);
/* Which device's memory is this address? ret->known 0: plain host memory for all of them. */
MOERT_API moert_status_t moert_pointer_classify(moert_context_t *context, uint64_t native, uint32_t *ret_device,
                                                struct moert_memory_info *ret, struct moert_error *err);

/* native 0: an own queue; else the caller's stream. A queue is used by one thread at a time. */
MOERT_API moert_status_t moert_queue_create(moert_context_t *context, uint32_t device, uint64_t native,
                                            moert_queue_t **ret, struct moert_error *err);
MOERT_API void moert_queue_destroy(moert_queue_t *queue); /* waits for its work */
MOERT_API uint64_t moert_queue_native(const moert_queue_t *queue);
MOERT_API uint64_t moert_queue_last(const moert_queue_t *queue);
MOERT_API moert_status_t moert_queue_query(moert_queue_t *queue, uint64_t sequence, uint32_t *ret_done,
                                           struct moert_error *err);
/* timeout_ns UINT64_MAX: for ever. sequence UINT64_MAX: all work enqueued so far. */
MOERT_API moert_status_t moert_queue_wait(moert_queue_t *queue, uint64_t sequence, uint64_t timeout_ns,
                                          uint32_t *ret_done, struct moert_error *err);
MOERT_API moert_status_t moert_queue_wait_queue(moert_queue_t *queue, moert_queue_t *other, uint64_t sequence,
                                                struct moert_error *err);
/* Native events of the caller (CUevent, hipEvent_t, cl_event): later work on `queue` waits for one; one is recorded after
 * the work enqueued so far. MOERT_E_UNSUPPORTED where the driver has none. */
MOERT_API moert_status_t moert_queue_wait_event(moert_queue_t *queue, uint64_t native_event, struct moert_error *err);
MOERT_API moert_status_t moert_queue_record_event(moert_queue_t *queue, uint64_t native_event,
                                                  struct moert_error *err);
/* Copies and fills are enqueued; ranges in bytes, inside the buffers (else MOERT_E_VALUE). Host memory stays the caller's
 * and must live until the work is done. */
MOERT_API moert_status_t moert_copy_in(moert_queue_t *queue, moert_buffer_t *dst, uint64_t offset, const void *host,
                                       uint64_t bytes, struct moert_error *err);
MOERT_API moert_status_t moert_copy_out(moert_queue_t *queue, void *host, moert_buffer_t *src, uint64_t offset,
                                        uint64_t bytes, struct moert_error *err);
/* Between buffers; ranges do not overlap. dst is on the queue's device; src there too, or on another device of the same
 * driver when that copies between devices (MOERT_E_UNSUPPORTED when not; other drivers' buffers: device-mismatch). */
MOERT_API moert_status_t moert_copy(moert_queue_t *queue, moert_buffer_t *dst, uint64_t dst_offset, moert_buffer_t *src,
                                    uint64_t src_offset, uint64_t bytes, struct moert_error *err);
MOERT_API moert_status_t moert_fill(moert_queue_t *queue, moert_buffer_t *dst, uint64_t offset, uint8_t value,
                                    uint64_t bytes, struct moert_error *err);
/* Capture and replay where the driver has them (MOERT_E_UNSUPPORTED elsewhere). */
MOERT_API moert_status_t moert_capture_begin(moert_queue_t *queue, struct moert_error *err);
MOERT_API moert_status_t moert_capture_end(moert_queue_t *queue, moert_graph_t **ret, struct moert_error *err);
MOERT_API moert_status_t moert_graph_launch(moert_queue_t *queue, moert_graph_t *graph, struct moert_error *err);
MOERT_API void moert_graph_destroy(moert_graph_t *graph);
/* MOERT_CAPTURE_*, also of a capture that the caller began on the native stream; NONE where the driver has none. */
MOERT_API uint32_t moert_queue_capture_state(const moert_queue_t *queue);

/* ---- single steps on a device ----
 * Run on the device when its driver has the step; MOERT_E_UNSUPPORTED when not (the host functions of moert/mxfp8.h,
 * lutb.h and routing.h do the same everywhere). Arguments as in struct moert_step_ops; host tensors are staged and the
 * call then waits for the queue. */
MOERT_API moert_status_t moert_step_quantize(moert_queue_t *queue, const struct moert_mxfp8_params *params,
                                             const struct moert_tensor *x, const struct moert_tensor *codes,
                                             const struct moert_tensor *scales, struct moert_error *err);
MOERT_API moert_status_t moert_step_dequantize(moert_queue_t *queue, const struct moert_tensor *codes,
                                               const struct moert_tensor *scales, const struct moert_tensor *out,
                                               struct moert_error *err);
MOERT_API moert_status_t moert_step_lutb_decode(moert_queue_t *queue, const struct moert_tensor *packed,
                                                const struct moert_tensor *codebook, const struct moert_tensor *out,
                                                struct moert_error *err);
MOERT_API moert_status_t moert_step_topk(moert_queue_t *queue, const struct moert_router_config *router, uint32_t top_k,
                                         const struct moert_tensor *logits, const struct moert_tensor *bias,
                                         const struct moert_tensor *ids, const struct moert_tensor *weights,
                                         struct moert_error *err);
MOERT_API moert_status_t moert_step_align(moert_queue_t *queue, const struct moert_align_params *params,
                                          const struct moert_tensor *ids, const struct moert_tensor *map,
                                          const struct moert_tensor *sorted, const struct moert_tensor *expert_ids,
                                          const struct moert_tensor *total, struct moert_error *err);
MOERT_API moert_status_t moert_step_activation(moert_queue_t *queue, const struct moert_layer_config *layer,
                                               const struct moert_tensor *c1, const struct moert_tensor *c2,
                                               struct moert_error *err);
MOERT_API moert_status_t moert_step_combine(moert_queue_t *queue, const struct moert_layer_config *layer,
                                            const struct moert_tensor *rows, const struct moert_tensor *ids,
                                            const struct moert_tensor *map, const struct moert_tensor *weights,
                                            const struct moert_tensor *out, struct moert_error *err);

#ifdef __cplusplus
}
#endif
#endif
