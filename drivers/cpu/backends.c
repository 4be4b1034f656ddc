/* SPDX-License-Identifier: Apache-2.0
 * drivers/cpu/backends.c: the experts backends of this driver, and what cpu.reference says of itself. */
#include "config.h"

#include "core/base/checked.h"
#include "core/base/error.h"
#include "drivers/common/checks.h"
#include "drivers/cpu/internal.h"
#include "drivers/cpu/ref/ref.h"

#include <inttypes.h>
#include <moert/lutb.h>
#include <stdio.h>

/* ---- cpu.reference ---- */

static const struct moert_scheme_pair ref_schemes[] = {
    {MOERT_SCHEME_LUT_B, MOERT_SCHEME_MXFP8}, {MOERT_SCHEME_LUT_B, MOERT_SCHEME_NONE},
    {MOERT_SCHEME_MXFP8, MOERT_SCHEME_MXFP8}, {MOERT_SCHEME_MXFP8, MOERT_SCHEME_NONE},
    {MOERT_SCHEME_BF16, MOERT_SCHEME_NONE},   {MOERT_SCHEME_BF16, MOERT_SCHEME_MXFP8},
    {MOERT_SCHEME_F16, MOERT_SCHEME_NONE},    {MOERT_SCHEME_F16, MOERT_SCHEME_MXFP8},
    {MOERT_SCHEME_F32, MOERT_SCHEME_NONE},    {MOERT_SCHEME_F32, MOERT_SCHEME_MXFP8},
};

static const char *const ref_aliases[] = {"reference", "emulation", NULL};

/* The numbers formats bring their own multiples: 64 columns per lut-b tile, 32 per MXFP8 block. */
static uint32_t ref_multiple(const struct moert_layer_config *layer)
{
    if (layer->weight_scheme == MOERT_SCHEME_LUT_B)
        return MOERT_LUTB_COLS;
    return layer->weight_scheme == MOERT_SCHEME_MXFP8 || layer->activation_scheme == MOERT_SCHEME_MXFP8 ? MREF_BLOCK
                                                                                                        : 1;
}

static void ref_supports(const struct moert_backend *backend, const struct moert_device_desc *device,
                         const struct moert_layer_config *layer, const struct moert_check_sink *sink)
{
    struct mdrv_caps caps = {
        .dtypes = MDRV_FLOAT_DTYPES,
        .activations = MDRV_ANY_ACTIVATION,
        .w13_orders = MDRV_ANY_W13_ORDER,
        .bias = 1,
        .expert_map = 1,
        .input_weight = 1,
        .hidden_multiple = ref_multiple(layer),
        .intermediate_multiple = ref_multiple(layer),
    };

    mdrv_caps_report(backend, &caps, device, layer, sink);
}

static moert_status_t ref_layout(const struct moert_backend *backend, const struct moert_device_desc *device,
                                 const struct moert_layer_config *layer, struct moert_layout *ret,
                                 struct moert_error *err)
{
    struct mref_shape shape;
    moert_status_t status = mref_shape(layer, &shape, err);

    (void)backend;
    (void)device;
    if (!status && !ret)
        status = moert_fail_null(err, "ret");
    if (!status)
        status = moert_check_size(err, "moert_layout", ret->size, MCPU_SIZE_TO(struct moert_layout, load_ns));
    if (status)
        return status;
    ret->version = MREF_LAYOUT_VERSION;
    snprintf(ret->tag, sizeof(ret->tag), "%s", mref_layout_tag(shape.weights));
    ret->bytes = shape.expert_bytes * shape.local;
    ret->load_ns = 0;
    return MOERT_OK;
}

static moert_status_t ref_workspace(const struct moert_backend *backend, const struct moert_device_desc *device,
                                    const struct moert_layer_config *layer, uint64_t tokens,
                                    struct moert_workspace *ret, struct moert_error *err)
{
    struct mref_shape shape;
    struct mref_plan plan;
    uint64_t scratch, bytes;
    moert_status_t status = mref_shape(layer, &shape, err);

    (void)backend;
    if (!status && (!ret || !device))
        status = moert_fail_null(err, ret ? "device" : "ret");
    if (!status)
        status = moert_check_size(err, "moert_workspace", ret->size, MCPU_SIZE_TO(struct moert_workspace, bytes));
    if (!status)
        status = mref_plan(&shape, tokens, &plan, err);
    if (status)
        return status;
    if (!moert_mul(plan.scratch_bytes, mref_scratch_threads(device->compute_units), &scratch) ||
        !moert_add(plan.base, scratch, &bytes))
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large",
                          "the workspace of %" PRIu64 " tokens exceeds 64-bit sizes", tokens);
    ret->bytes = bytes;
    return MOERT_OK;
}

static const struct moert_backend_ops ref_ops = {
    .size = sizeof(struct moert_backend_ops),
    .supports = ref_supports,
    .layout = ref_layout,
    .workspace = ref_workspace,
    .create = mref_create,
    .prepare = mref_prepare,
    .update = mref_update,
    .export_weights = mref_export,
    .import_weights = mref_import,
    .run = mref_run,
    .release = mref_release,
    .counters = mref_counters,
};

static const struct moert_backend reference = {
    .size = sizeof(struct moert_backend),
    .flags = MOERT_BACKEND_F_HOOK | MOERT_BACKEND_F_BATCH_INVARIANT | MOERT_BACKEND_F_MXFP8_INPUT |
             MOERT_BACKEND_F_DUMPS | MOERT_BACKEND_F_SHARED | MOERT_BACKEND_F_DEVICE_COUNT,
    .name = "cpu.reference",
    .aliases = ref_aliases,
    .numeric_class = MOERT_CLASS_EXACT,
    .block_size = 1,
    .priority_decode = 0,
    .priority_prefill = 0,
    .accumulator_unit = 0x1p-53,
    .activation_eps = 0x1p-50, /* double, built from functions of at most 1 ulp: far below any rounding to d */
    .schemes = ref_schemes,
    .scheme_count = sizeof(ref_schemes) / sizeof(ref_schemes[0]),
    .ops = &ref_ops,
};

/* ---- the table ---- */

const struct moert_backend *const mcpu_backends[MCPU_BACKEND_COUNT] = {&reference};
