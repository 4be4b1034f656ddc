/* drivers/null/backend.c: the experts backend "null.zero": accepts every layer, keeps no weights, writes zeros. Its
 * answer is wrong on purpose, so it is opt-in and of class lower-precision: nothing chooses it unless it is named, and
 * then its self-test refuses it; MOERT_SELF_TEST=off runs it nevertheless. */
#include "config.h"

#include "drivers/common/checks.h"
#include "drivers/null/null.h"

#include <stdatomic.h>
#include <string.h>

#define LAYOUT_TAG     "null.zero"
#define LAYOUT_VERSION 1u

struct moert_drv_layer {
    moert_drv_device *device;
    uint64_t hidden_size;
    uint32_t num_local_experts;
    moert_dtype_t dtype;
    _Atomic uint64_t runs, tokens; /* several queues may run one layer at once */
};

static const struct moert_scheme_pair schemes[] = {
    {MOERT_SCHEME_LUT_B, MOERT_SCHEME_MXFP8}, {MOERT_SCHEME_LUT_B, MOERT_SCHEME_NONE},
    {MOERT_SCHEME_MXFP8, MOERT_SCHEME_MXFP8}, {MOERT_SCHEME_MXFP8, MOERT_SCHEME_NONE},
    {MOERT_SCHEME_BF16, MOERT_SCHEME_NONE},   {MOERT_SCHEME_F16, MOERT_SCHEME_NONE},
    {MOERT_SCHEME_F32, MOERT_SCHEME_NONE},
};

/* What the backend can do, as data. What is not said is "no". */
static const char *const archs[] = {"null", NULL};
static const struct mdrv_caps caps = {
    .archs = archs,
    .dtypes = MDRV_FLOAT_DTYPES,
    .activations = MDRV_ANY_ACTIVATION,
    .w13_orders = MDRV_ANY_W13_ORDER,
    .bias = 1,
    .expert_map = 1,
    .input_weight = 1,
};

/* Pure: sees descriptions, never a device. Reports every check, not only the first that fails. */
static void supports(const struct moert_backend *backend, const struct moert_device_desc *device,
                     const struct moert_layer_config *layer, const struct moert_check_sink *sink)
{
    mdrv_caps_report(backend, &caps, device, layer, sink);
}

/* Known before preparation begins, so that the core can refuse what does not fit. */
static moert_status_t layout(const struct moert_backend *backend, const struct moert_device_desc *device,
                             const struct moert_layer_config *layer, struct moert_layout *ret, struct moert_error *err)
{
    (void)backend;
    (void)device;
    (void)layer;
    (void)err;
    ret->version = LAYOUT_VERSION;
    strcpy(ret->tag, LAYOUT_TAG);
    ret->bytes = 0;
    ret->load_ns = 0;
    return MOERT_OK;
}

/* Monotone in tokens: zeros need no scratch memory at all. */
static moert_status_t workspace(const struct moert_backend *backend, const struct moert_device_desc *device,
                                const struct moert_layer_config *layer, uint64_t tokens, struct moert_workspace *ret,
                                struct moert_error *err)
{
    (void)backend;
    (void)device;
    (void)layer;
    (void)tokens;
    (void)err;
    ret->bytes = 0;
    return MOERT_OK;
}

/* Copies what it needs of the description: the struct is the caller's. */
static moert_status_t create(moert_drv_device *device, const struct moert_backend *backend,
                             const struct moert_layer_config *config, moert_drv_layer **ret, struct moert_error *err)
{
    const struct moert_host *host = device->drv->host;
    moert_drv_layer *layer = host->alloc(host->ctx, sizeof(*layer), 0);

    (void)backend;
    if (!layer)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for a layer");
    memset(layer, 0, sizeof(*layer));
    layer->device = device;
    layer->hidden_size = config->hidden_size;
    layer->num_local_experts = config->num_local_experts;
    layer->dtype = config->dtype;
    *ret = layer;
    return MOERT_OK;
}

/* A real backend writes its own layout of these experts here. The views may be gone when this returns. */
static moert_status_t prepare(moert_drv_layer *layer, const struct moert_expert_weights *weights,
                              struct moert_error *err)
{
    if (weights->first > layer->num_local_experts || weights->count > layer->num_local_experts - weights->first)
        return moert_fail(err, MOERT_E_SHAPE, "experts", "%u experts from %u on, the layer has %u", weights->count,
                          weights->first, layer->num_local_experts);
    return MOERT_OK;
}

static moert_status_t update(moert_drv_layer *layer, moert_drv_queue *queue, const struct moert_expert_weights *weights,
                             struct moert_error *err)
{
    moert_status_t status = prepare(layer, weights, err);

    if (!status)
        queue->last++;
    return status;
}

/* Rows of a matrix may be further apart than their length. */
static void clear_rows(const struct moert_drv_tensor *t)
{
    uint64_t row_bytes = t->shape[1] * moert_dtype_size(t->dtype);

    for (uint64_t row = 0; row < t->shape[0] && row_bytes; row++)
        memset(t->buffer->address + mdrv_tensor_at(t, (const uint64_t[]){row, 0}), 0, row_bytes);
}

/* Allocates nothing and waits for nothing. Faults are found before anything is written. */
static moert_status_t run(moert_drv_layer *layer, moert_drv_queue *queue, const struct moert_run_args *args,
                          struct moert_error *err)
{
    const struct moert_drv_tensor *out = &args->output;
    moert_status_t status;

    if (args->flags) /* no MOERT_BACKEND_F_HOOK is claimed */
        return moert_fail(err, MOERT_E_USAGE, "flag", "null.zero leaves no rows unreduced (flags 0x%x)", args->flags);
    if (!mdrv_tensor_given(out))
        return moert_fail(err, MOERT_E_USAGE, "null", "output is not given");
    if (out->rank != 2 || out->shape[0] != args->tokens || out->shape[1] != layer->hidden_size || out->strides[1] != 1)
        return moert_fail(err, MOERT_E_SHAPE, "out-shape", "output is not [%llu,%llu] with dense rows",
                          (unsigned long long)args->tokens, (unsigned long long)layer->hidden_size);
    if (out->dtype != layer->dtype)
        return moert_fail(err, MOERT_E_DTYPE, "tensor-dtype", "output has dtype %s, expected %s",
                          moert_dtype_name(out->dtype), moert_dtype_name(layer->dtype));
    status = mdrv_tensor_check(out, out->buffer->bytes, "output", err);
    if (status)
        return status;
    clear_rows(out);
    queue->last++;
    atomic_fetch_add(&layer->runs, 1);
    atomic_fetch_add(&layer->tokens, args->tokens);
    return MOERT_OK;
}

static void release(moert_drv_layer *layer)
{
    const struct moert_host *host = layer->device->drv->host;

    host->free(host->ctx, layer);
}

static moert_status_t counters(moert_drv_layer *layer, struct moert_counters *ret, struct moert_error *err)
{
    (void)err;
    *ret = (struct moert_counters){.size = ret->size, .implementations = 1};
    strcpy(ret->by_implementation[0].name, "zero");
    ret->by_implementation[0].runs = atomic_load(&layer->runs);
    ret->by_implementation[0].tokens = atomic_load(&layer->tokens);
    return MOERT_OK;
}

static const struct moert_backend_ops ops = {.size = sizeof(ops),
                                             .supports = supports,
                                             .layout = layout,
                                             .workspace = workspace,
                                             .create = create,
                                             .prepare = prepare,
                                             .update = update,
                                             .run = run,
                                             .release = release,
                                             .counters = counters};

const struct moert_backend mnull_zero = {
    .size = sizeof(mnull_zero),
    .flags = MOERT_BACKEND_F_OPT_IN | MOERT_BACKEND_F_BATCH_INVARIANT,
    .name = "null.zero",
    .auto_reason = "writes zeros: a template for driver authors and a fixture for tests (its self-test fails, as it must: MOERT_SELF_TEST=off)",
    .numeric_class = MOERT_CLASS_LOWER_PRECISION,
    .block_size = 1,
    .schemes = schemes,
    .scheme_count = sizeof(schemes) / sizeof(*schemes),
    .ops = &ops,
};
