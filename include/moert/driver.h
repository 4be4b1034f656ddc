/* SPDX-License-Identifier: Apache-2.0
 *
 * moert/driver.h: the interface between libmoert and a driver module.
 *
 * This header stands alone: it needs <stdint.h> and <stddef.h>, compiles as C11 and as C++17, and holds the vocabulary
 * (status codes, dtypes, schemes, the layer description) that the public API in <moert/moert.h> shares.
 * How to write a driver: doc/driver-guide.md; a complete small one: drivers/null.
 *
 * Rules of the boundary
 *  - A module exports one symbol, `moert_driver_v1`. The number is the ABI's major version.
 *  - Every struct begins with `uint32_t size`, set by its maker to sizeof. Fields are appended, never moved; who reads a
 *    later field tests `size` first (MOERT_HAS). Unknown flag bits are refused. Reserved words are 0.
 *  - Only fixed-width integers, double, pointers and function pointers cross; no bool, enum, long, FILE, no C++.
 *  - Outputs (`ret_*`) are written only on success. `err` may be NULL.
 *  - Every function is thread-safe on different objects; one queue is used by one thread at a time; one device and one
 *    layer may be used by several queues of several threads at once.
 */
#ifndef MOERT_DRIVER_H
#define MOERT_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MOERT_DRIVER_ABI_MAJOR 1
#define MOERT_DRIVER_ABI_MINOR 0

/* True when struct pointer p is large enough to hold its field f. */
#define MOERT_HAS(p, f) ((p)->size >= (size_t)((const char *)(&(p)->f + 1) - (const char *)(p)))

/* ------------------------------------------------------------------ status */

typedef int32_t moert_status_t;

/* Fixed values. The command's exit status is beside each (cli.md). */
enum {
    MOERT_OK = 0,
    MOERT_E_USAGE = -1,      /* 2: wrong call: NULL, struct size, unknown flag, wrong state */
    MOERT_E_VALUE = -2,      /* 3: a value out of range or contradictory */
    MOERT_E_SHAPE = -3,      /* 3: sizes do not fit each other */
    MOERT_E_DTYPE = -4,      /* 3: dtype not accepted there */
    MOERT_E_FILE = -5,       /* 3: file damaged or not of the format */
    MOERT_E_MISSING = -6,    /* 3: tensor, file or key absent */
    MOERT_E_TOO_LARGE = -7,  /* 3: product or offset beyond the type or the limit */
    MOERT_E_RULES = -8,      /* 3: rules file: syntax, unknown name, conflict */
    MOERT_E_NO_BACKEND = -9, /* 4: nothing may or can serve; the text carries every candidate's failing checks */
    MOERT_E_NOMEM = -10,     /* 5: host or device memory */
    MOERT_E_DEVICE = -11,    /* 5: device or driver call failed; carries the vendor's code and name */
    MOERT_E_AGREE = -12,     /* 5: ranks disagree */
    MOERT_E_OUTPUT = -13,    /* 6: output cannot be written */
    MOERT_E_INTERNAL = -14,  /* 5: an invariant of moert failed */
    MOERT_E_UNSUPPORTED = -15 /* optional op that this driver does not have; never reaches a user without a reason */
};

/* Where a failure is described. Owned by the caller, who sets size; `code` is a stable short word (layer.md 7), `text`
 * says what was wrong, with the values, and what would be right. Both are NUL-terminated, cut at the buffer's end. */
struct moert_error {
    uint32_t size;
    moert_status_t status;
    char code[32];
    char text[8152];
};

/* ------------------------------------------------------------------ vocabulary */

/* Element types, named as safetensors names them. */
typedef uint32_t moert_dtype_t;
enum {
    MOERT_DTYPE_NONE = 0, /* "no tensor" */
    MOERT_F32 = 1,
    MOERT_BF16 = 2,
    MOERT_F16 = 3,
    MOERT_F64 = 4,
    MOERT_F8_E4M3 = 5, /* OCP E4M3FN */
    MOERT_F8_E5M2 = 6,
    MOERT_F8_E8M0 = 7,
    MOERT_U8 = 8,
    MOERT_I8 = 9,
    MOERT_I16 = 10,
    MOERT_U16 = 11,
    MOERT_I32 = 12,
    MOERT_U32 = 13,
    MOERT_I64 = 14,
    MOERT_U64 = 15,
    MOERT_BOOL = 16,
    MOERT_DTYPE_COUNT = 17
};

/* Weight and activation schemes of a layer (layer.md 1). */
typedef uint32_t moert_scheme_t;
enum {
    MOERT_SCHEME_NONE = 0, /* activations are not quantised */
    MOERT_SCHEME_BF16 = 1,
    MOERT_SCHEME_F16 = 2,
    MOERT_SCHEME_F32 = 3,
    MOERT_SCHEME_MXFP8 = 4,
    MOERT_SCHEME_LUT_B = 5,
    MOERT_SCHEME_COUNT = 6
};

typedef uint32_t moert_activation_t;
enum {
    MOERT_ACT_SILU = 0,
    MOERT_ACT_GELU = 1,
    MOERT_ACT_GELU_TANH = 2,
    MOERT_ACT_SWIGLUOAI = 3,
    MOERT_ACT_SWIGLUOAI_UNINTERLEAVE = 4,
    MOERT_ACT_SWIGLUSTEP = 5,
    MOERT_ACT_SITU = 6,
    MOERT_ACT_RELU2 = 7,
    MOERT_ACT_SILU_NO_MUL = 8,
    MOERT_ACT_GELU_NO_MUL = 9,
    MOERT_ACT_GELU_TANH_NO_MUL = 10,
    MOERT_ACT_RELU2_NO_MUL = 11,
    MOERT_ACT_COUNT = 12
};

/* Order of the rows of w13 for gated activations. Never inferred from sizes. */
typedef uint32_t moert_w13_order_t;
enum {
    MOERT_W13_GATE_UP = 0,     /* rows 0..I-1 gate, I..2I-1 up */
    MOERT_W13_UP_GATE = 1,     /* rows 0..I-1 up, I..2I-1 gate */
    MOERT_W13_INTERLEAVED = 2, /* g0, u0, g1, u1, ... */
    MOERT_W13_ORDER_COUNT = 3
};

typedef uint32_t moert_role_t;
enum { MOERT_ROLE_MAIN = 0, MOERT_ROLE_DRAFT = 1, MOERT_ROLE_SHARED = 2, MOERT_ROLE_COUNT = 3 };

typedef uint32_t moert_router_kind_t;
enum {
    MOERT_ROUTER_GIVEN = 0, /* ids and weights come from the caller */
    MOERT_ROUTER_SOFTMAX = 1,
    MOERT_ROUTER_TOPK_SOFTMAX = 2,
    MOERT_ROUTER_SIGMOID = 3,
    MOERT_ROUTER_TOPK_SIGMOID = 4,
    MOERT_ROUTER_SQRT_SOFTPLUS = 5,
    MOERT_ROUTER_GROUPED = 6,
    MOERT_ROUTER_KIND_COUNT = 7
};

typedef uint32_t moert_scoring_t;
enum {
    MOERT_SCORING_AUTO = 0, /* sigmoid with a correction bias, else softmax */
    MOERT_SCORING_SOFTMAX = 1,
    MOERT_SCORING_SIGMOID = 2,
    MOERT_SCORING_SQRT_SOFTPLUS = 3,
    MOERT_SCORING_COUNT = 4
};

typedef uint32_t moert_scale_at_t;
enum { MOERT_SCALE_AT_ROUTER = 0, MOERT_SCALE_AT_OUTPUT = 1, MOERT_SCALE_AT_COUNT = 2 };

/* Numeric class of a backend against the reference (layer.md 3). */
typedef uint32_t moert_class_t;
enum {
    MOERT_CLASS_EXACT = 0,
    MOERT_CLASS_SAME_ARITHMETIC = 1,
    MOERT_CLASS_HIGHER_PRECISION = 2,
    MOERT_CLASS_LOWER_PRECISION = 3,
    MOERT_CLASS_COUNT = 4
};

/* ------------------------------------------------------------------ layer description */

/* How router logits become ids and weights (routing.md 2). */
struct moert_router_config {
    uint32_t size;
    moert_router_kind_t kind;
    uint32_t renormalize; /* 0 or 1; ignored by topk-softmax (always on) and topk-sigmoid (always off) */
    moert_scoring_t scoring; /* grouped only */
    uint32_t num_groups;  /* grouped: consecutive groups of E/num_groups experts; 0 means 1 */
    uint32_t topk_groups; /* grouped: groups kept; 0 means num_groups */
    moert_scale_at_t scale_at;
    moert_dtype_t logits_dtype; /* NONE: dtype of the gate weight */
    double scaling_factor;      /* 0 means 1 */
    double shared_weight;       /* weight of fused shared slots; 0 means the default of routing.md 2.4 */
    uint64_t reserved[2];
};

/* A separate shared expert: a dense expert whose output is added to every token's routed sum. */
struct moert_shared_config {
    uint32_t size;
    uint32_t gated;             /* 1: multiplied by sigmoid(x . shared_gate_weight) */
    uint64_t intermediate_size; /* 0: there is none */
    moert_scheme_t weight_scheme;
    uint32_t reserved32;
    uint64_t reserved[2];
};

/* Bits of moert_layer_config.params_set: which activation parameters the description gives. */
enum {
    MOERT_PARAM_SWIGLU_LIMIT = 1u << 0,
    MOERT_PARAM_SWIGLU_ALPHA = 1u << 1,
    MOERT_PARAM_SWIGLU_BETA = 1u << 2,
    MOERT_PARAM_SITU_BETA = 1u << 3,
    MOERT_PARAM_SITU_LINEAR_BETA = 1u << 4
};

/* One routed-experts layer (layer.md 1). Shapes: x [T,H]; w13 [E_l,N1,H] with N1 = 2*I for gated activations, else I;
 * w2 [E_l,H,I]; row-major, the last axis is the reduction. Fill with moert_layer_config_init, check with
 * moert_layer_config_check. What a backend receives is always complete: every default is resolved. */
struct moert_layer_config {
    uint32_t size;
    int32_t index;      /* decoder layer number, -1 unknown */
    char name[256];     /* module path, for rules and messages */
    moert_role_t role;
    moert_dtype_t dtype; /* d: of hidden states, caches, output: BF16, F16 or F32 */
    uint64_t hidden_size;       /* H */
    uint64_t intermediate_size; /* I, per expert and rank, one half */
    uint32_t num_experts;       /* E: ids of the router live in [0, E) */
    uint32_t num_local_experts; /* E_l: rows of the weight tensors; 0 means E + num_fused_shared */
    uint32_t top_k;             /* K */
    uint32_t num_fused_shared;  /* n extra always-on slots; arrays of ids and weights have K + n columns */
    moert_scheme_t weight_scheme;
    moert_scheme_t activation_scheme; /* NONE or MXFP8 */
    moert_activation_t activation;
    uint32_t params_set; /* MOERT_PARAM_* */
    double swiglu_limit, swiglu_alpha, swiglu_beta, situ_beta, situ_linear_beta;
    moert_w13_order_t w13_order;
    uint32_t has_bias;                         /* w13_bias [E_l,N1], w2_bias [E_l,H] */
    uint32_t apply_router_weight_on_input;     /* only with K = 1 and n = 0 */
    uint32_t expert_map_length;                /* 0: no map, else num_experts */
    const int32_t *expert_map;                 /* int32 [E]: local expert or -1; owned by the maker of the struct */
    uint64_t max_tokens;                       /* upper bound for support checks and warm-up */
    struct moert_router_config router;
    struct moert_shared_config shared;
    uint64_t reserved[8];
};

/* ------------------------------------------------------------------ host services */

typedef uint32_t moert_log_level_t;
enum { MOERT_LOG_ERROR = 0, MOERT_LOG_WARN = 1, MOERT_LOG_INFO = 2, MOERT_LOG_DEBUG = 3, MOERT_LOG_TRACE = 4 };

/* What the host gives to a driver; valid from open (or probe) to close. All functions are thread-safe. */
struct moert_host {
    uint32_t size;
    uint32_t minor; /* the host's ABI minor */
    void *ctx;
    void (*log)(void *ctx, moert_log_level_t level, const char *message);
    void *(*alloc)(void *ctx, uint64_t bytes, uint64_t alignment); /* NULL when memory is out; alignment: power of two */
    void (*free)(void *ctx, void *pointer);
    /* Effective value of a MOERT_* option of core/base/config.def, "" when unset, NULL when there is no such option. */
    const char *(*option)(void *ctx, const char *name);
    uint64_t features; /* growth: bits a later host offers */
    uint64_t reserved[4];
};

/* ------------------------------------------------------------------ device description */

enum {
    MOERT_DEVICE_F_PRESENT = 1u << 0,      /* the device is here; clear: described by a file (what-if) */
    MOERT_DEVICE_F_HOST_MEMORY = 1u << 1,  /* device memory is host memory: a buffer's host pointer may be used */
    MOERT_DEVICE_F_BINARY64 = 1u << 2,     /* IEEE binary64 arithmetic; without it routing is done by the core */
    MOERT_DEVICE_F_LOST = 1u << 3          /* a sticky failure; nothing further is accepted */
};

typedef uint32_t moert_device_kind_t;
enum { MOERT_DEVICE_CPU = 0, MOERT_DEVICE_GPU = 1, MOERT_DEVICE_ACCELERATOR = 2 };

/* A device, present or described. Strings are NUL-terminated. `supports` sees this and never the device. */
struct moert_device_desc {
    uint32_t size;
    uint32_t flags;    /* MOERT_DEVICE_F_* */
    char id[32];       /* "cuda:0", "cpu" */
    char driver[32];   /* driver name */
    char arch[32];     /* "sm_90", "gfx950", "x86_64" */
    char name[128];    /* marketing name */
    char uuid[48];     /* "" when there is none */
    char pci[24];      /* "0000:17:00.0", "" when there is none */
    char runtime[24];  /* version of the vendor's driver or runtime, "13.0" */
    char features[512]; /* words separated by blanks: "avx2 avx512f" */
    moert_device_kind_t kind;
    uint32_t compute_units;
    uint64_t memory_total, memory_free; /* bytes; 0 unknown */
    uint64_t max_buffer;                /* largest single buffer, bytes; 0 no limit known */
    uint64_t alignment;                 /* bytes: of addresses (offsets where there are none) that ops take uncopied */
    uint64_t reserved[8];
};

/* ------------------------------------------------------------------ opaque objects */

/* Defined by each driver as it likes. */
typedef struct moert_drv moert_drv;             /* one opened driver */
typedef struct moert_drv_device moert_drv_device;
typedef struct moert_drv_buffer moert_drv_buffer; /* memory: a handle, never an address */
typedef struct moert_drv_queue moert_drv_queue;
typedef struct moert_drv_graph moert_drv_graph; /* captured work */
typedef struct moert_drv_layer moert_drv_layer; /* one layer's prepared weights on one device */

#define MOERT_MAX_RANK 5

/* A tensor on a device: `buffer` NULL means "not given". shape and strides count elements, row-major order, slowest
 * axis first; offset counts bytes. */
struct moert_drv_tensor {
    moert_drv_buffer *buffer;
    uint64_t offset;
    moert_dtype_t dtype;
    uint32_t rank;
    uint64_t shape[MOERT_MAX_RANK];
    int64_t strides[MOERT_MAX_RANK];
};

typedef uint32_t moert_memory_kind_t;
enum {
    MOERT_MEMORY_DEVICE = 0,
    MOERT_MEMORY_PINNED = 1, /* host memory that the device copies from without a stop */
    MOERT_MEMORY_HOST = 2    /* plain host memory */
};

/* What is known of a buffer or of a caller's pointer. */
struct moert_memory_info {
    uint32_t size;
    moert_memory_kind_t kind;
    uint32_t known;        /* pointer_classify: 0 when the pointer is not the driver's (plain host memory) */
    uint32_t device_index; /* device the memory is on */
    uint64_t bytes;        /* from the pointer to the end of its allocation; 0 unknown */
    uint64_t native;       /* CUdeviceptr, cl_mem, ... as a number; 0 when there is none */
    void *host;            /* address for the host, or NULL when the host cannot touch the memory */
    uint64_t address;      /* on the device, for order and alignment; 0: none, native is a handle (cl_mem) */
    uint64_t reserved[3];
};

/* The caller's allocator (a framework's caching allocator, say); used for device memory when given to device_open.
 * Addresses are the vendor's native ones. */
struct moert_allocator {
    uint32_t size;
    uint32_t reserved32;
    void *ctx;
    uint64_t (*alloc)(void *ctx, uint32_t device_index, uint64_t bytes, uint64_t alignment, uint64_t native_stream);
    void (*free)(void *ctx, uint32_t device_index, uint64_t native, uint64_t native_stream);
    uint64_t reserved[2];
};

/* ------------------------------------------------------------------ driver and device ops */

typedef uint32_t moert_probe_state_t;
enum { MOERT_PROBE_AVAILABLE = 0, MOERT_PROBE_NO_DEVICE = 1, MOERT_PROBE_INCOMPATIBLE = 2 };

struct moert_probe {
    uint32_t size;
    moert_probe_state_t state;
    char reason[480]; /* a sentence when state is not AVAILABLE */
};

struct moert_driver_ops {
    uint32_t size;
    uint32_t reserved32;
    /* M(andatory) ops are checked when the module is loaded; O(ptional) ones may be NULL. */
    /* M. Cheap look: is there a device this driver could open? "No" is not an error. No allocation that outlives it. */
    moert_status_t (*probe)(const struct moert_host *host, struct moert_probe *ret, struct moert_error *err);
    /* M. `host` stays valid until close. */
    moert_status_t (*open)(const struct moert_host *host, moert_drv **ret, struct moert_error *err);
    /* M. Every device, layer, buffer and queue has been released before. */
    void (*close)(moert_drv *drv);
    /* M. */
    moert_status_t (*device_count)(moert_drv *drv, uint32_t *ret, struct moert_error *err);
    /* M. Description without opening; index < count. */
    moert_status_t (*device_info)(moert_drv *drv, uint32_t index, struct moert_device_desc *ret, struct moert_error *err);
};

enum { MOERT_CAPTURE_NONE = 0, MOERT_CAPTURE_ACTIVE = 1, MOERT_CAPTURE_INVALID = 2 };

/* Work is ordered inside a queue. Each enqueued piece of work gets the next sequence number of its queue (from 1);
 * number s is done when all work up to s is. A driver may complete work before its op returns (the CPU does). */
struct moert_device_ops {
    uint32_t size;
    uint32_t reserved32;
    /* M. `allocator` NULL: the driver's own. It must stay valid until close. */
    moert_status_t (*open)(moert_drv *drv, uint32_t index, const struct moert_allocator *allocator,
                           moert_drv_device **ret, struct moert_error *err);
    void (*close)(moert_drv_device *device); /* M */
    /* M. As device_info, with memory_free and the LOST flag as they are now. */
    moert_status_t (*info)(moert_drv_device *device, struct moert_device_desc *ret, struct moert_error *err);

    /* M. Contents undefined. bytes 0 is legal. More than max_buffer: MOERT_E_TOO_LARGE; out of memory: MOERT_E_NOMEM
     * with bytes wanted and free. alignment: power of two, 0 = 256. */
    moert_status_t (*buffer_alloc)(moert_drv_device *device, moert_memory_kind_t kind, uint64_t bytes,
                                   uint64_t alignment, moert_drv_buffer **ret, struct moert_error *err);
    /* M. Wraps memory that the caller keeps alive until buffer_free: kind HOST: `native` is a host address (each driver
     * accepts it, reading it by copy where it must); PINNED or DEVICE: a native address or handle of this driver. */
    moert_status_t (*buffer_import)(moert_drv_device *device, moert_memory_kind_t kind, uint64_t native, uint64_t bytes,
                                    moert_drv_buffer **ret, struct moert_error *err);
    void (*buffer_free)(moert_drv_device *device, moert_drv_buffer *buffer); /* M. Waits for nothing: see queue_wait. */
    moert_status_t (*buffer_info)(moert_drv_device *device, const moert_drv_buffer *buffer,
                                  struct moert_memory_info *ret, struct moert_error *err); /* M */
    /* O. Whose is this address? */
    moert_status_t (*pointer_classify)(moert_drv_device *device, uint64_t native, struct moert_memory_info *ret,
                                       struct moert_error *err);

    /* M. native 0: the driver's own queue; else a CUstream, hipStream_t, cl_command_queue that the caller keeps. */
    moert_status_t (*queue_create)(moert_drv_device *device, uint64_t native, moert_drv_queue **ret,
                                   struct moert_error *err);
    void (*queue_destroy)(moert_drv_queue *queue);             /* M. Waits for its work. */
    uint64_t (*queue_native)(const moert_drv_queue *queue);    /* M. 0 when there is no native object. */
    uint64_t (*queue_last)(const moert_drv_queue *queue);      /* M. Number of the last work enqueued; 0: none yet. */
    /* M. *ret_done = 1 when all work up to `sequence` is complete. Reports a failure of that work as its status. */
    moert_status_t (*queue_query)(moert_drv_queue *queue, uint64_t sequence, uint32_t *ret_done,
                                  struct moert_error *err);
    /* M. Host waits. timeout_ns UINT64_MAX: for ever; past it *ret_done (may be NULL) is 0 and the status is OK. */
    moert_status_t (*queue_wait)(moert_drv_queue *queue, uint64_t sequence, uint64_t timeout_ns, uint32_t *ret_done,
                                 struct moert_error *err);
    /* M. Work enqueued on `queue` from now on starts after `other` has reached `sequence`; the host does not wait. */
    moert_status_t (*queue_wait_queue)(moert_drv_queue *queue, moert_drv_queue *other, uint64_t sequence,
                                       struct moert_error *err);
    /* O. The same for a native event of the caller (CUevent, hipEvent_t, cl_event), and its recording. */
    moert_status_t (*queue_wait_event)(moert_drv_queue *queue, uint64_t native_event, struct moert_error *err);
    moert_status_t (*queue_record_event)(moert_drv_queue *queue, uint64_t native_event, struct moert_error *err);

    /* M. Enqueued copies; ranges inside the buffers (else MOERT_E_VALUE). `host` must stay valid until they are done. */
    moert_status_t (*copy_in)(moert_drv_queue *queue, moert_drv_buffer *dst, uint64_t offset, const void *host,
                              uint64_t bytes, struct moert_error *err);
    moert_status_t (*copy_out)(moert_drv_queue *queue, void *host, moert_drv_buffer *src, uint64_t offset,
                               uint64_t bytes, struct moert_error *err);
    moert_status_t (*copy)(moert_drv_queue *queue, moert_drv_buffer *dst, uint64_t dst_offset, moert_drv_buffer *src,
                           uint64_t src_offset, uint64_t bytes, struct moert_error *err);
    moert_status_t (*fill)(moert_drv_queue *queue, moert_drv_buffer *dst, uint64_t offset, uint8_t value,
                           uint64_t bytes, struct moert_error *err);
    /* O. src is on src_device of the same driver. */
    moert_status_t (*copy_peer)(moert_drv_queue *queue, moert_drv_buffer *dst, uint64_t dst_offset,
                                moert_drv_device *src_device, moert_drv_buffer *src, uint64_t src_offset,
                                uint64_t bytes, struct moert_error *err);

    /* O. Graph capture: work enqueued between begin and end is recorded, not run; launch enqueues all of it. A caller
     * of CUDA or HIP may instead capture the native stream that a queue wraps. */
    uint32_t (*capture_state)(const moert_drv_queue *queue);
    moert_status_t (*capture_begin)(moert_drv_queue *queue, struct moert_error *err);
    moert_status_t (*capture_end)(moert_drv_queue *queue, moert_drv_graph **ret, struct moert_error *err);
    moert_status_t (*graph_launch)(moert_drv_queue *queue, moert_drv_graph *graph, struct moert_error *err);
    void (*graph_destroy)(moert_drv_graph *graph);
};

/* ------------------------------------------------------------------ single steps (optional) */

typedef uint32_t moert_scale_rule_t;
enum {
    MOERT_RCEIL = 0,
    MOERT_FLOOR = 1,
    MOERT_CEIL = 2,
    MOERT_EVEN = 3,
    MOERT_T175 = 4,
    MOERT_SCALE_RULE_COUNT = 5
};

typedef uint32_t moert_nonfinite_t;
enum {
    MOERT_NONFINITE_POISON = 0,
    MOERT_NONFINITE_CONTAIN = 1,
    MOERT_NONFINITE_SATURATE_POS = 2,
    MOERT_NONFINITE_ERROR = 3, /* refuse the tensor: MOERT_E_VALUE with the position (weights) */
    MOERT_NONFINITE_NAN_BLOCK = 4, /* one NaN: byte 255, all codes 7F; Inf as CONTAIN (vLLM's torch path) */
    MOERT_NONFINITE_INF_BLOCK = 5, /* one Inf: byte 255, it 7F, others 00; NaN as CONTAIN (AITER's HIP path) */
    MOERT_NONFINITE_COUNT = 6
};

/* MXFP8 quantiser (mxfp8.md 2-4). All zero = RCEIL, POISON, KEEP. */
struct moert_mxfp8_params {
    uint32_t size;
    moert_scale_rule_t rule;
    moert_nonfinite_t nonfinite;
    uint32_t flush_tiny; /* 1: byte 0 -> all codes signed zero (FLUSH0) */
    double amax_min;     /* block maxima below it count as it; 0, 2^-126 or 1e-10 */
};

struct moert_align_params {
    uint32_t size;
    uint32_t num_experts; /* E of the id space, fused shared experts included */
    uint32_t block_size;
    uint32_t ignore_invalid; /* mode I of routing.md 3 */
    uint32_t pad_sorted_ids;
    uint32_t reserved32;
};

/* Each is enqueued. A NULL op (or MOERT_E_UNSUPPORTED) means the core does it on the host. Bit-exact with the core. */
struct moert_step_ops {
    uint32_t size;
    uint32_t reserved32;
    /* x [R,K] F32/BF16/F16 -> codes F8_E4M3 [R,K], scales U8 [R,K/32], linear. */
    moert_status_t (*quantize)(moert_drv_queue *queue, const struct moert_mxfp8_params *params,
                               const struct moert_drv_tensor *x, const struct moert_drv_tensor *codes,
                               const struct moert_drv_tensor *scales, struct moert_error *err);
    /* codes, scales -> out [R,K] F32/BF16/F16. */
    moert_status_t (*dequantize)(moert_drv_queue *queue, const struct moert_drv_tensor *codes,
                                 const struct moert_drv_tensor *scales, const struct moert_drv_tensor *out,
                                 struct moert_error *err);
    /* packed U8 [..,N/8,K/64,192], codebook F8_E4M3 [..,N/8,K/64,8] -> out [..,N,K] F32/BF16/F16/F8_E4M3. */
    moert_status_t (*lutb_decode)(moert_drv_queue *queue, const struct moert_drv_tensor *packed,
                                  const struct moert_drv_tensor *codebook, const struct moert_drv_tensor *out,
                                  struct moert_error *err);
    /* logits [T,E], bias F32 [E] or none -> ids I32 [T,K], weights F32 [T,K]. */
    moert_status_t (*topk)(moert_drv_queue *queue, const struct moert_router_config *router, uint32_t top_k,
                           const struct moert_drv_tensor *logits, const struct moert_drv_tensor *bias,
                           const struct moert_drv_tensor *ids, const struct moert_drv_tensor *weights,
                           struct moert_error *err);
    /* ids [T,K], map I32 [E] or none -> sorted I32 [cap], expert_ids I32 [ceil(cap/B)], total I32 [1]. */
    moert_status_t (*align)(moert_drv_queue *queue, const struct moert_align_params *params,
                            const struct moert_drv_tensor *ids, const struct moert_drv_tensor *map,
                            const struct moert_drv_tensor *sorted, const struct moert_drv_tensor *expert_ids,
                            const struct moert_drv_tensor *total, struct moert_error *err);
    /* c1 [R,N1] -> c2 [R,I], kind, parameters and row order from the layer description. */
    moert_status_t (*activation)(moert_drv_queue *queue, const struct moert_layer_config *layer,
                                 const struct moert_drv_tensor *c1, const struct moert_drv_tensor *c2,
                                 struct moert_error *err);
    /* rows [T,K,H], ids [T,K], map or none -> out [T,H]; weights F32 [T,K] or none (moe_sum). */
    moert_status_t (*combine)(moert_drv_queue *queue, const struct moert_layer_config *layer,
                              const struct moert_drv_tensor *rows, const struct moert_drv_tensor *ids,
                              const struct moert_drv_tensor *map, const struct moert_drv_tensor *weights,
                              const struct moert_drv_tensor *out, struct moert_error *err);
};

/* ------------------------------------------------------------------ support checks */

typedef uint32_t moert_verdict_t;
enum { MOERT_PASS = 0, MOERT_FAIL = 1, MOERT_ABSTAIN = 2 };

typedef uint32_t moert_check_op_t;
enum {
    MOERT_OP_NONE = 0,
    MOERT_OP_EQ = 1,
    MOERT_OP_IN = 2,
    MOERT_OP_GE = 3,
    MOERT_OP_LE = 4,
    MOERT_OP_LT = 5,
    MOERT_OP_MULTIPLE = 6,
    MOERT_OP_HAS = 7
};

/* A value of a check: integer, string, or list of strings (NULL-terminated). */
typedef uint32_t moert_value_kind_t;
enum { MOERT_VALUE_NULL = 0, MOERT_VALUE_INT = 1, MOERT_VALUE_STRING = 2, MOERT_VALUE_LIST = 3, MOERT_VALUE_BOOL = 4 };
struct moert_value {
    moert_value_kind_t kind;
    uint32_t reserved32;
    int64_t integer;
    const char *string;
    const char *const *list;
};

/* One answered question (oracle.md 3). Strings belong to the reporter and live during the call of report. */
struct moert_check {
    uint32_t size;
    moert_verdict_t verdict;
    moert_check_op_t op;
    uint32_t reserved32;
    const char *code;  /* of the list in oracle.md 3 */
    const char *field; /* "hidden_size", "device.arch" */
    struct moert_value have, need;
    const char *fix; /* smallest change that would pass, or NULL */
};

struct moert_check_sink {
    uint32_t size;
    uint32_t reserved32;
    void *ctx;
    void (*report)(void *ctx, const struct moert_check *check);
};

/* ------------------------------------------------------------------ experts backends */

/* Layout of prepared weights: what export writes and import takes. */
struct moert_layout {
    uint32_t size;
    uint32_t version;  /* raised by any change of the order of bytes */
    char tag[64];      /* "cpu.canonical.lut-b" */
    uint64_t bytes;    /* of the whole layer's prepared weights */
    uint64_t load_ns;  /* expected preparation time, 0 unknown */
    uint64_t reserved[4];
};

/* Canonical weights of experts first..first+count-1, host or device. Scheme mxfp8: *_scale U8 [count,N,K/32];
 * lut-b: w13, w2 are the packed indices U8 and *_scale the codebooks F8_E4M3; else *_scale is absent. */
struct moert_expert_weights {
    uint32_t size;
    uint32_t first;
    uint32_t count;
    uint32_t reserved32;
    struct moert_drv_tensor w13, w13_scale, w13_bias;
    struct moert_drv_tensor w2, w2_scale, w2_bias;
};

/* Bytes a run over at most `tokens` tokens needs, one buffer, aligned to 256. */
struct moert_workspace {
    uint32_t size;
    uint32_t reserved32;
    uint64_t bytes;
    uint64_t reserved[4];
};

/* Intermediate results of the steps P1..P5, for verification; each tensor may be absent. R = T*K' rows; rows of slots
 * that are not local are not written. y, s: unrounded sum and sum of absolute products of each output, F64. */
struct moert_run_dumps {
    uint32_t size;
    uint32_t reserved32;
    struct moert_drv_tensor a1_codes, a1_scales; /* [T,H], [T,H/32] */
    struct moert_drv_tensor c1;                  /* [R,N1] d */
    struct moert_drv_tensor c2;                  /* [R,I] d */
    struct moert_drv_tensor a2_codes, a2_scales; /* [R,I], [R,I/32] */
    struct moert_drv_tensor c3;                  /* [R,H] d */
    struct moert_drv_tensor y1, s1;              /* [R,N1] F64 */
    struct moert_drv_tensor y2, s2;              /* [R,H] F64, before the router weight */
};

enum {
    MOERT_RUN_F_UNREDUCED = 1u << 0, /* output: rows [T*K',H] of P5 and index; no P6 */
    MOERT_RUN_F_UNWEIGHTED = 1u << 1 /* leave the router weight out of P5 (hook) */
};

/* One call over `tokens` tokens, T <= the T of the workspace. Everything is on the layer's device. Inputs are const.
 * Either ids and weights, or logits: a backend without MOERT_BACKEND_F_ROUTES never sees logits (the core routes). */
struct moert_run_args {
    uint32_t size;
    uint32_t flags;  /* MOERT_RUN_F_* */
    uint64_t tokens; /* T; 0 never reaches a backend */
    struct moert_drv_tensor x;       /* [T,H] d; or MXFP8 codes F8_E4M3 [T,H] with x_scale */
    struct moert_drv_tensor x_scale; /* U8 [T,H/32] linear; absent: x is d */
    struct moert_drv_tensor ids;     /* I32 [T,K'] */
    struct moert_drv_tensor weights; /* F32 [T,K']; weights of slots that are not local are never read */
    struct moert_drv_tensor logits;  /* [T,E(+n)] F32/BF16/F16 */
    struct moert_drv_tensor correction_bias; /* F32 [E] */
    struct moert_drv_tensor expert_map;      /* I32 [E+n]; absent: none */
    struct moert_drv_tensor token_count;     /* I32 [1] on the device: only the first min(T, count) tokens are real */
    struct moert_drv_tensor shared;          /* d or F32 [T,H]: added in P6 after the scaling, before the rounding */
    double output_scale;                     /* factor of the routed sum in P6; 1 when none */
    struct moert_drv_tensor output;          /* [T,H] d, or rows [T*K',H] d when UNREDUCED */
    struct moert_drv_tensor index;           /* UNREDUCED: I32 [T*K']: s when slot s is local, else -1 */
    struct moert_drv_tensor out_ids, out_weights; /* with logits: the routing that was used; may be absent */
    moert_drv_buffer *workspace;
    uint64_t workspace_offset, workspace_bytes;
    const struct moert_run_dumps *dumps; /* NULL, or with MOERT_BACKEND_F_DUMPS */
    uint64_t reserved[8];
};

#define MOERT_MAX_IMPLEMENTATIONS 8

/* Monotone counters of one prepared layer, all queues together. */
struct moert_counters {
    uint32_t size;
    uint32_t implementations; /* entries used below */
    struct {
        char name[48]; /* implementation that served the calls, "reference" */
        uint64_t runs, tokens;
    } by_implementation[MOERT_MAX_IMPLEMENTATIONS];
    uint64_t weight_bytes; /* bytes of weights touched */
    uint64_t blocks;       /* blocks of rows computed, 0 when the backend has none */
    uint64_t poisoned_blocks; /* MXFP8 blocks that held NaN or Inf */
    uint64_t reserved[4];
};

enum {
    MOERT_BACKEND_F_OPT_IN = 1u << 0,          /* never chosen unless named; auto_reason says why */
    MOERT_BACKEND_F_HOOK = 1u << 1,            /* can leave rows unreduced */
    MOERT_BACKEND_F_CAPTURE = 1u << 2,         /* run may be captured after warm_up */
    MOERT_BACKEND_F_BATCH_INVARIANT = 1u << 3, /* a token's bits do not depend on the rest of the batch */
    MOERT_BACKEND_F_ROUTES = 1u << 4,          /* takes logits */
    MOERT_BACKEND_F_MXFP8_INPUT = 1u << 5,     /* takes x as codes and scales */
    MOERT_BACKEND_F_DUMPS = 1u << 6,           /* fills moert_run_dumps */
    MOERT_BACKEND_F_SHARED = 1u << 7,          /* adds args.shared and applies output_scale in P6 */
    MOERT_BACKEND_F_DEVICE_COUNT = 1u << 8     /* honours token_count */
};

struct moert_scheme_pair {
    moert_scheme_t weight, activation;
};

struct moert_backend;

struct moert_backend_ops {
    uint32_t size;
    uint32_t reserved32;
    /* M. Pure: no device call, no allocation, no log. Reports every check, device checks first. */
    void (*supports)(const struct moert_backend *backend, const struct moert_device_desc *device,
                     const struct moert_layer_config *layer, const struct moert_check_sink *sink);
    /* M. Pure. */
    moert_status_t (*layout)(const struct moert_backend *backend, const struct moert_device_desc *device,
                             const struct moert_layer_config *layer, struct moert_layout *ret, struct moert_error *err);
    /* M. Pure, monotone in tokens. */
    moert_status_t (*workspace)(const struct moert_backend *backend, const struct moert_device_desc *device,
                                const struct moert_layer_config *layer, uint64_t tokens, struct moert_workspace *ret,
                                struct moert_error *err);
    /* M. Reserves the memory of the prepared weights. `layer` is copied. */
    moert_status_t (*create)(moert_drv_device *device, const struct moert_backend *backend,
                             const struct moert_layer_config *layer, moert_drv_layer **ret, struct moert_error *err);
    /* M. Turns canonical weights into the backend's layout; the views may be freed when it returns. Each expert once,
     * ranges in any order. */
    moert_status_t (*prepare)(moert_drv_layer *layer, const struct moert_expert_weights *weights,
                              struct moert_error *err);
    /* M. Replaces experts of a live layer: enqueued, between the runs before and after it on `queue`; the caller keeps
     * other queues away from the layer meanwhile (queue_wait_queue). The views, host ones too, stay valid until the work
     * is done. No allocation after warm_up when they are on the device. */
    moert_status_t (*update)(moert_drv_layer *layer, moert_drv_queue *queue,
                             const struct moert_expert_weights *weights, struct moert_error *err);
    /* O. The prepared bytes [offset, offset+bytes) under the layout's tag and version, to and from host memory. */
    moert_status_t (*export_weights)(moert_drv_layer *layer, uint64_t offset, uint64_t bytes, void *host,
                                     struct moert_error *err);
    moert_status_t (*import_weights)(moert_drv_layer *layer, const struct moert_layout *layout, uint64_t offset,
                                     uint64_t bytes, const void *host, struct moert_error *err);
    /* O. After it, runs of up to max_tokens on `queue` allocate nothing. */
    moert_status_t (*warm_up)(moert_drv_layer *layer, moert_drv_queue *queue, uint64_t max_tokens,
                              struct moert_error *err);
    /* M. Enqueues the layer; no allocation, no wait. A failed run leaves the layer usable. */
    moert_status_t (*run)(moert_drv_layer *layer, moert_drv_queue *queue, const struct moert_run_args *args,
                          struct moert_error *err);
    void (*release)(moert_drv_layer *layer); /* M. No work of it is pending. */
    /* M. */
    moert_status_t (*counters)(moert_drv_layer *layer, struct moert_counters *ret, struct moert_error *err);
};

struct moert_backend {
    uint32_t size;
    uint32_t flags;           /* MOERT_BACKEND_F_* */
    const char *name;         /* "cpu.reference": driver name, dot, word */
    const char *const *aliases; /* NULL-terminated, or NULL */
    const char *auto_reason;  /* with OPT_IN: why it is never chosen by itself */
    moert_class_t numeric_class;
    uint32_t block_size; /* rows per block that it aligns to, 1 when it has none */
    uint32_t priority_decode, priority_prefill; /* 0..100, oracle.md 3 */
    double accumulator_unit; /* u of bound B: 2^-24 for f32 sums, 2^-53 for the reference */
    double activation_eps;   /* relative error of its activation before rounding, 0 means 2^-20 */
    const struct moert_scheme_pair *schemes;
    uint32_t scheme_count;
    uint32_t reserved32;
    const struct moert_backend_ops *ops;
    const void *data; /* the driver's own */
    uint64_t reserved[4];
};

/* ------------------------------------------------------------------ the module */

enum { MOERT_SANITIZER_NONE = 0, MOERT_SANITIZER_ADDRESS = 1, MOERT_SANITIZER_THREAD = 2 };

struct moert_driver {
    uint32_t size;
    uint32_t minor; /* ABI minor it was built for */
    uint32_t flags; /* none defined: 0 */
    uint32_t sanitizer;
    const char *name, *version, *vendor; /* name: [a-z0-9_]+, the file is moert_<name>.so */
    const struct moert_driver_ops *ops;
    const struct moert_device_ops *device;
    const struct moert_step_ops *steps; /* NULL: none */
    const struct moert_backend *const *backends;
    uint32_t backend_count;
    uint32_t reserved32;
    uint64_t features;
    uint64_t reserved[4];
};

/* The one export of a module. Pure: the same constant data at every call, whatever host_minor is; NULL refuses the host. */
typedef const struct moert_driver *(*moert_driver_entry_t)(uint32_t host_minor);
#define MOERT_DRIVER_SYMBOL "moert_driver_v1"

#ifdef __cplusplus
}
#endif
#endif
