/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/test_layer_weights.c: what a layer is made of (layer.md 7, 8, 9.1; routing.md 2.4): canonical weights and
 * their errors, replacement of experts, prepared bytes out and in, the layer's own router, fused and separate shared
 * experts, scaling. */
#include "tests/unit/layer_rig.h"

#include <moert/routing.h>

#include <math.h>

#define SILU_FILE "layer_h128_i128_e4.safetensors"
#define T         17
#define H         128

static void start(struct rig *rig, int memory)
{
    rig_open(rig, memory, 0);
    rig_load(rig, SILU_FILE);
}

static struct moert_layer_config silu(const struct rig *rig, const char *kind)
{
    struct moert_layer_config c = rig_config(rig, kind, 'q', 2);

    c.router.kind = MOERT_ROUTER_SOFTMAX;
    c.router.renormalize = 1;
    return c;
}

static void run_case(struct rig *rig, moert_layer_t *layer, uint16_t out[T * H])
{
    struct moert_layer_args a = rig_args(rig, "t17k2_dup", out);

    memset(out, 0xff, T * H * 2);
    RIG_OK(rig, moert_layer_run(layer, rig->queue, &a, &rig->err));
}

/* ---- canonical weights ---- */

#define BREAK(name, ...)                                                                                               \
    static void name(struct moert_layer_weights *w)                                                                    \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }
BREAK(small, w->size = 16;)
BREAK(no_w2, w->w2.data = NULL;)
BREAK(no_scale, w->w13_scale.data = NULL;)
BREAK(scale_shape, w->w2_scale.shape[2] = 3;)
BREAK(scale_f32, w->w13_scale.dtype = MOERT_F32;)
BREAK(weight_u8, w->w13.dtype = MOERT_U8;)
BREAK(extra_bias, w->w2_bias = w->w2;)
BREAK(none, w->count = 0;)
BREAK(past_the_end, w->first = 2; w->count = 3;)
BREAK(far_away, w->first = UINT32_MAX; w->count = 2;)
BREAK(both_places, w->w13.buffer = (moert_buffer_t *)(void *)w;)

static const struct {
    void (*change)(struct moert_layer_weights *w);
    moert_status_t status;
    const char *code, *text;
} errors[] = {
    {small, MOERT_E_USAGE, "struct-size", "struct moert_layer_weights has size 16"},
    {no_w2, MOERT_E_MISSING, "tensor-missing", "tensor \"w2_weight\" is absent"},
    {no_scale, MOERT_E_MISSING, "tensor-missing", "tensor \"w13_weight_scale\" is absent"},
    {scale_shape, MOERT_E_SHAPE, "tensor-shape", "w2_weight_scale is [4,128,3], expected [4,128,4]"},
    {scale_f32, MOERT_E_DTYPE, "tensor-dtype", "w13_weight_scale is F32, expected U8 or F8_E8M0"},
    {weight_u8, MOERT_E_DTYPE, "tensor-dtype", "w13_weight is U8, expected F8_E4M3"},
    {extra_bias, MOERT_E_VALUE, "tensor-extra", "w2_bias is given"},
    {none, MOERT_E_VALUE, "tensor-extra", "local experts are 0..3"},
    {past_the_end, MOERT_E_VALUE, "tensor-extra", "experts 2..4 given, local experts are 0..3"},
    {far_away, MOERT_E_VALUE, "tensor-extra", "local experts are 0..3"},
    {both_places, MOERT_E_USAGE, "flag", "w13_weight has both host memory and a buffer"},
};

Test(layer_weights, each_error_once_with_its_numbers)
{
    struct rig rig;
    struct moert_layer_config config;
    struct moert_layer_weights w;
    moert_layer_t *layer;
    uint16_t out[T * H];

    start(&rig, RIG_SHARED_MEMORY);
    config = silu(&rig, "mxfp8");
    layer = rig_create(&rig, &config);
    for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++) {
        moert_status_t status;
        w = rig_weights(&rig, "mxfp8", 0, 0, 4);
        errors[i].change(&w);
        status = moert_layer_set_weights(layer, &w, &rig.err);
        cr_expect_eq(status, errors[i].status, "row %zu: %s", i, rig.err.text);
        cr_expect_str_eq(rig.err.code, errors[i].code, "row %zu: %s", i, rig.err.text);
        cr_expect_not_null(strstr(rig.err.text, errors[i].text), "row %zu: %s", i, rig.err.text);
    }
    rig_set(&rig, layer, "mxfp8"); /* nothing of the failed calls is left */
    run_case(&rig, layer, out);
    moert_layer_destroy(layer);
    rig_close(&rig);
}

Test(layer_weights, names_of_the_lut_b_tensors)
{
    struct rig rig;
    struct moert_layer_config config;
    struct moert_layer_weights w;
    moert_layer_t *layer;

    start(&rig, RIG_SHARED_MEMORY);
    config = silu(&rig, "lutb");
    layer = rig_create(&rig, &config);
    w = rig_weights(&rig, "lutb", 0, 0, 4);
    w.w13.shape[3] = 200;
    RIG_FAILS(&rig, moert_layer_set_weights(layer, &w, &rig.err), MOERT_E_SHAPE, "tensor-shape",
              "w13_weight_packed is [4,32,2,200], expected [4,32,2,192]");
    w = rig_weights(&rig, "lutb", 0, 0, 4);
    w.w2_scale.data = NULL;
    RIG_FAILS(&rig, moert_layer_set_weights(layer, &w, &rig.err), MOERT_E_MISSING, "tensor-missing",
              "tensor \"w2_weight_codebook\" is absent");
    moert_layer_destroy(layer);
    rig_close(&rig);
}

Test(layer_weights, state_before_and_after_loading)
{
    struct rig rig;
    struct moert_layer_config config;
    struct moert_layer_weights w;
    struct moert_layer_args a;
    moert_layer_t *layer;
    uint16_t out[T * H];

    start(&rig, RIG_SHARED_MEMORY);
    config = silu(&rig, "mxfp8");
    layer = rig_create(&rig, &config);
    a = rig_args(&rig, "t17k2_dup", out);
    RIG_FAILS(&rig, moert_layer_run(layer, rig.queue, &a, &rig.err), MOERT_E_USAGE, "state",
              "layer has no weights yet");
    w = rig_weights(&rig, "mxfp8", 1, 1, 2);
    RIG_OK(&rig, moert_layer_set_weights(layer, &w, &rig.err));
    RIG_FAILS(&rig, moert_layer_run(layer, rig.queue, &a, &rig.err), MOERT_E_USAGE, "state",
              "layer has weights of 2 of 4 experts");
    RIG_FAILS(&rig, moert_layer_set_weights(layer, &w, &rig.err), MOERT_E_USAGE, "state",
              "expert 1 already has weights");
    RIG_FAILS(&rig, moert_layer_update_weights(layer, rig.queue, &w, &rig.err), MOERT_E_USAGE, "state",
              "layer has weights of 2 of 4 experts; set them first");
    w = rig_weights(&rig, "mxfp8", 3, 3, 1);
    RIG_OK(&rig, moert_layer_set_weights(layer, &w, &rig.err));
    w = rig_weights(&rig, "mxfp8", 0, 0, 1);
    RIG_OK(&rig, moert_layer_set_weights(layer, &w, &rig.err));
    RIG_OK(&rig, moert_layer_run(layer, rig.queue, &a, &rig.err));
    moert_layer_destroy(layer);
    moert_layer_destroy(NULL);
    rig_close(&rig);
}

/* Strided and misaligned host weights, and weights on the device, give the layer that dense ones give. */
Test(layer_weights, every_kind_of_memory)
{
    struct rig rig;
    struct moert_layer_config config;
    struct moert_layer_weights w;
    moert_layer_t *layer;
    uint16_t want[T * H], got[T * H];
    uint8_t *copy;

    start(&rig, RIG_SHARED_MEMORY);
    config = silu(&rig, "bf16");
    config.activation_scheme = MOERT_SCHEME_NONE;
    layer = rig_layer(&rig, &config, "bf16");
    run_case(&rig, layer, want);
    moert_layer_destroy(layer);

    layer = rig_create(&rig, &config);
    w = rig_weights(&rig, "bf16", 0, 0, 4);
    copy = rig_memory(4 * 256 * 160 * 2 + 1, 0xff); /* rows of 160, one byte off */
    for (int r = 0; r < 4 * 256; r++)
        memcpy(copy + 1 + r * 320, (const uint8_t *)w.w13.data + r * 256, 256);
    w.w13.data = copy + 1;
    w.w13.strides[1] = 160;
    w.w13.strides[0] = 256 * 160;
    w.w2 = rig_on_device(&rig, &w.w2);
    RIG_OK(&rig, moert_layer_set_weights(layer, &w, &rig.err));
    run_case(&rig, layer, got);
    cr_assert_eq(memcmp(got, want, sizeof(got)), 0);
    free(copy);
    moert_layer_destroy(layer);
    rig_close(&rig);
}

static void replace_one(int memory)
{
    struct rig rig;
    struct moert_layer_config config;
    struct moert_layer_weights w;
    moert_layer_t *layer, *fresh;
    uint16_t before[T * H], want[T * H], got[T * H];

    start(&rig, memory);
    config = silu(&rig, "lutb");
    layer = rig_layer(&rig, &config, "lutb");
    run_case(&rig, layer, before);
    rig_refuse_host = 0;
    fresh = rig_create(&rig, &config); /* expert 0 is a copy of expert 1 */
    w = rig_weights(&rig, "lutb", 0, 1, 1);
    RIG_OK(&rig, moert_layer_set_weights(fresh, &w, &rig.err));
    RIG_OK(&rig, moert_layer_update_weights(layer, rig.queue, &w, &rig.err));
    w = rig_weights(&rig, "lutb", 1, 1, 3);
    RIG_OK(&rig, moert_layer_set_weights(fresh, &w, &rig.err));
    rig_refuse_host = memory == RIG_DISCRETE;
    run_case(&rig, fresh, want);
    run_case(&rig, layer, got);
    cr_assert_eq(memcmp(got, want, sizeof(got)), 0);
    cr_assert_neq(memcmp(got, before, sizeof(got)), 0);
    moert_layer_destroy(layer);
    moert_layer_destroy(fresh);
    rig_close(&rig);
}

Test(layer_weights, replace_one_expert)
{
    replace_one(RIG_SHARED_MEMORY);
    replace_one(RIG_DISCRETE);
}

Test(layer_weights, prepared_bytes_out_and_in)
{
    struct rig rig;
    struct moert_layer_config config;
    struct moert_layout layout = {.size = sizeof(layout)}, other;
    moert_layer_t *layer, *copy;
    uint16_t want[T * H], got[T * H];
    uint8_t *bytes;
    uint64_t half;

    start(&rig, RIG_SHARED_MEMORY);
    config = silu(&rig, "mxfp8");
    copy = rig_create(&rig, &config);
    RIG_OK(&rig, moert_layer_layout(copy, &layout, &rig.err));
    bytes = rig_memory(layout.bytes, 0);
    RIG_FAILS(&rig, moert_layer_export(copy, 0, layout.bytes, bytes, &rig.err), MOERT_E_USAGE, "state",
              "layer has weights of 0 of 4 experts");
    layer = rig_layer(&rig, &config, "mxfp8");
    run_case(&rig, layer, want);
    half = layout.bytes / 2 / 64 * 64;
    RIG_OK(&rig, moert_layer_export(layer, 0, half, bytes, &rig.err));
    RIG_OK(&rig, moert_layer_export(layer, half, layout.bytes - half, bytes + half, &rig.err));
    RIG_FAILS(&rig, moert_layer_export(layer, 1, layout.bytes, bytes, &rig.err), MOERT_E_VALUE, "layout",
              "at offset 1 pass the end of");
    other = layout;
    other.version++;
    RIG_FAILS(&rig, moert_layer_import(copy, &other, 0, layout.bytes, bytes, &rig.err), MOERT_E_VALUE, "layout",
              "weights have layout ");
    RIG_FAILS(&rig, moert_layer_import(copy, &layout, 64, half, bytes, &rig.err), MOERT_E_USAGE, "state",
              "import goes on at offset 0, got 64");
    RIG_OK(&rig, moert_layer_import(copy, &layout, 0, half, bytes, &rig.err));
    RIG_OK(&rig, moert_layer_import(copy, &layout, half, layout.bytes - half, bytes + half, &rig.err));
    run_case(&rig, copy, got);
    cr_assert_eq(memcmp(got, want, sizeof(got)), 0);
    RIG_FAILS(&rig, moert_layer_import(layer, &layout, 0, layout.bytes, bytes, &rig.err), MOERT_E_USAGE, "state",
              "layer already has weights");
    free(bytes);
    moert_layer_destroy(layer);
    moert_layer_destroy(copy);
    rig_close(&rig);
}

Test(layer_weights, decisions_that_cannot_be_served)
{
    struct rig rig;
    struct moert_layer_config config;
    struct moert_decision failed = {.failed = 1}, what_if = {.what_if = 1}, foreign = {.backend = 9};
    moert_layer_t *layer = NULL;

    start(&rig, RIG_SHARED_MEMORY);
    config = silu(&rig, "mxfp8");
    cr_assert_eq(moert_layer_create(rig.context, &config, &failed, &layer, &rig.err), MOERT_E_NO_BACKEND);
    cr_assert_eq(moert_layer_create(rig.context, &config, &what_if, &layer, &rig.err), MOERT_E_NO_BACKEND);
    cr_assert_eq(moert_layer_create(rig.context, &config, &foreign, &layer, &rig.err), MOERT_E_USAGE);
    config.num_local_experts = 3; /* C19: refused when the layer is made */
    foreign.backend = 0;
    RIG_FAILS(&rig, moert_layer_create(rig.context, &config, &foreign, &layer, &rig.err), MOERT_E_SHAPE, "experts",
              "w13_weight has 3 experts, the router 4, and there is no expert map");
    cr_assert_null(layer);
    rig_close(&rig);
}

/* ---- routing inside the layer ---- */

static void logits_route(int memory)
{
    struct rig rig;
    struct moert_layer_config config;
    struct moert_layer_args a;
    moert_layer_t *layer;
    uint16_t want[T * H], got[T * H];
    int32_t ids[2 * T], used_ids[2 * T];
    float weights[2 * T], used[2 * T];
    const uint64_t k[2] = {T, 2};
    const struct moert_st_tensor *logits;
    struct moert_route_args route = {.size = sizeof(route), .num_experts = 4, .top_k = 2, .tokens = T};
    struct moert_layer_stats stats = {.size = sizeof(stats)};
    float bad[T * 4];

    start(&rig, memory);
    config = silu(&rig, "mxfp8");
    config.max_tokens = 7; /* several chunks */
    layer = rig_layer(&rig, &config, "mxfp8");
    logits = rig_find(&rig, "t17k2_ep0.logits");
    route.logits = logits->data;
    route.logits_dtype = MOERT_F32;
    route.ids = ids;
    route.weights = weights;
    RIG_OK(&rig, moert_route(&moert_layer_get_config(layer)->router, &route, &rig.err));
    a = rig_args(&rig, "t17k2_ep0", want);
    a.ids = moert_tensor_host(ids, MOERT_I32, 2, k);
    a.weights = moert_tensor_host(weights, MOERT_F32, 2, k);
    RIG_OK(&rig, moert_layer_run(layer, rig.queue, &a, &rig.err));
    for (int on_device = 0; on_device < 2; on_device++) {
        a = rig_args(&rig, "t17k2_ep0", got);
        a.ids = a.weights = (struct moert_tensor){0};
        a.logits = rig_host(logits);
        if (on_device)
            a.logits = rig_on_device(&rig, &a.logits);
        a.out_ids = moert_tensor_host(used_ids, MOERT_I32, 2, k);
        a.out_weights = moert_tensor_host(used, MOERT_F32, 2, k);
        memset(got, 0xff, sizeof(got));
        RIG_OK(&rig, moert_layer_run(layer, rig.queue, &a, &rig.err));
        cr_assert_eq(memcmp(got, want, sizeof(got)), 0);
        cr_assert_eq(memcmp(used_ids, ids, sizeof(ids)), 0);
        cr_assert_eq(memcmp(used, weights, sizeof(used)), 0);
    }
    memcpy(bad, logits->data, sizeof(bad));
    bad[5] = NAN;
    bad[6] = INFINITY;
    a.logits = moert_tensor_host(bad, MOERT_F32, 2, logits->shape);
    RIG_OK(&rig, moert_layer_run(layer, rig.queue, &a, &rig.err));
    RIG_OK(&rig, moert_layer_stats(layer, &stats, &rig.err));
    cr_assert_eq(stats.rows_nonfinite, 1, "one row held NaN and Inf");
    moert_layer_destroy(layer);
    rig_close(&rig);
}

Test(layer_weights, logits_are_routed)
{
    logits_route(RIG_SHARED_MEMORY);
    logits_route(RIG_DISCRETE);
}

/* cpu.reference made into a backend that routes: logits become ids and weights in its own memory. */
static uint64_t routed_calls;

static moert_status_t run_with_logits(moert_drv_layer *layer, moert_drv_queue *queue, const struct moert_run_args *args,
                                      struct moert_error *err)
{
    struct moert_router_config router = {.size = sizeof(router), .kind = MOERT_ROUTER_SOFTMAX, .renormalize = 1};
    const struct moert_device_ops *ops = rig_driver.device;
    struct moert_route_args route = {.size = sizeof(route), .num_experts = 4, .top_k = 2, .tokens = args->tokens};
    struct moert_run_args with_ids = *args;
    uint64_t n = args->tokens * 2;
    float logits[T * 4], weights[T * 2];
    int32_t ids[T * 2];

    if (!args->logits.buffer)
        return mcpu_driver.backends[0]->ops->run(layer, queue, args, err);
    routed_calls++;
    cr_assert(!args->ids.buffer && !args->weights.buffer);
    cr_assert_eq(ops->copy_out(queue, logits, args->logits.buffer, args->logits.offset, n * 8, err), MOERT_OK);
    route.logits = logits;
    route.logits_dtype = MOERT_F32;
    route.ids = ids;
    route.weights = weights;
    cr_assert_eq(moert_route(&router, &route, err), MOERT_OK);
    cr_assert(args->out_ids.buffer && args->out_weights.buffer, "the test asks for the routing");
    cr_assert_eq(ops->copy_in(queue, args->out_ids.buffer, args->out_ids.offset, ids, n * 4, err), MOERT_OK);
    cr_assert_eq(ops->copy_in(queue, args->out_weights.buffer, args->out_weights.offset, weights, n * 4, err),
                 MOERT_OK);
    with_ids.logits = (struct moert_drv_tensor){0};
    with_ids.ids = args->out_ids;
    with_ids.weights = args->out_weights;
    with_ids.out_ids = with_ids.out_weights = (struct moert_drv_tensor){0};
    return mcpu_driver.backends[0]->ops->run(layer, queue, &with_ids, err);
}

static void backend_routes(int memory)
{
    rig_add_flags = MOERT_BACKEND_F_ROUTES;
    rig_run = run_with_logits;
    routed_calls = 0;
    logits_route(memory);
    cr_assert_eq(routed_calls, (T + 6) / 7, "logits on the device go to the backend, chunk by chunk");
    rig_add_flags = 0;
    rig_run = NULL;
}

Test(layer_weights, a_backend_that_routes_gets_device_logits)
{
    backend_routes(RIG_SHARED_MEMORY);
    backend_routes(RIG_DISCRETE);
}

/* The layer's own gate: bf16 weight with f32 bias, logits rounded to bf16, correction bias. */
static void own_router(int memory)
{
    struct rig rig;
    struct moert_layer_config config;
    struct moert_layer_dense d = {.size = sizeof(d)};
    struct moert_layer_args a;
    moert_layer_t *layer;
    uint16_t gate[4 * H], want[T * H], got[T * H], logits[T * 4];
    float wide[4 * H], bias[4] = {0.25f, 0, -0.5f, 0.125f}, correction[4] = {0, 0.5f, 0.25f, 0};
    const uint64_t e[1] = {4}, eh[2] = {4, H}, te[2] = {T, 4};
    const void *x;

    start(&rig, memory);
    config = silu(&rig, "mxfp8");
    config.router.kind = MOERT_ROUTER_SIGMOID;
    layer = rig_layer(&rig, &config, "mxfp8");
    for (int i = 0; i < 4 * H; i++) {
        gate[i] = moert_bf16_from_float((float)((i * 37 % 64) - 32) / 512);
        wide[i] = moert_bf16_to_float(gate[i]);
    }
    d.router_weight = moert_tensor_host(gate, MOERT_BF16, 2, eh);
    d.router_bias = moert_tensor_host(bias, MOERT_F32, 1, e);
    d.correction_bias = moert_tensor_host(correction, MOERT_F32, 1, e);
    RIG_OK(&rig, moert_layer_set_dense(layer, &d, &rig.err));
    x = rig_find(&rig, "t17k2_dup.x")->data;
    RIG_OK(&rig, moert_router_logits(x, MOERT_BF16, wide, MOERT_F32, bias, T, H, 4, logits, MOERT_BF16, &rig.err));
    a = rig_args(&rig, "t17k2_dup", want);
    a.ids = a.weights = (struct moert_tensor){0};
    a.logits = moert_tensor_host(logits, MOERT_BF16, 2, te);
    RIG_OK(&rig, moert_layer_run(layer, rig.queue, &a, &rig.err));
    a.logits = (struct moert_tensor){0};
    a.output.data = got;
    RIG_OK(&rig, moert_layer_run(layer, rig.queue, &a, &rig.err));
    cr_assert_eq(memcmp(got, want, sizeof(got)), 0);
    memset(got, 0xff, sizeof(got));
    a.x = rig_on_device(&rig, &a.x);
    RIG_OK(&rig, moert_layer_run(layer, rig.queue, &a, &rig.err));
    cr_assert_eq(memcmp(got, want, sizeof(got)), 0, "x on the device");

    correction[2] = NAN;
    RIG_FAILS(&rig, moert_layer_set_dense(layer, &d, &rig.err), MOERT_E_VALUE, "nonfinite-bias",
              "correction_bias[2] is NaN");
    d.correction_bias = (struct moert_tensor){0};
    d.router_weight.shape[1] = 64;
    RIG_FAILS(&rig, moert_layer_set_dense(layer, &d, &rig.err), MOERT_E_SHAPE, "tensor-shape",
              "router_weight has rank 2 and shape [4,64], expected [4,128]");
    moert_layer_destroy(layer);
    rig_close(&rig);
}

Test(layer_weights, own_router)
{
    own_router(RIG_SHARED_MEMORY);
    own_router(RIG_DISCRETE);
}

Test(layer_weights, correction_bias_needs_groups_of_two)
{
    struct rig rig;
    struct moert_layer_config config;
    struct moert_layer_dense d = {.size = sizeof(d)};
    moert_layer_t *layer;
    const float correction[4] = {0};
    const uint64_t e[1] = {4};

    start(&rig, RIG_SHARED_MEMORY);
    config = silu(&rig, "mxfp8");
    config.router.kind = MOERT_ROUTER_GROUPED;
    config.router.num_groups = 4;
    layer = rig_layer(&rig, &config, "mxfp8");
    d.correction_bias = moert_tensor_host(correction, MOERT_F32, 1, e);
    RIG_FAILS(&rig, moert_layer_set_dense(layer, &d, &rig.err), MOERT_E_VALUE, "groups",
              "correction bias needs groups of at least 2");
    moert_layer_destroy(layer);
    rig_close(&rig);
}

/* Expert 3 as a fused shared expert of a router over 3: ids 3 are appended with weight 1; a map is extended. */
static void fused(int memory, int mapped, int call_map)
{
    static const int32_t map[3] = {-1, 0, 1};
    struct rig rig;
    struct moert_layer_config config, plain;
    struct moert_layer_args a;
    moert_layer_t *layer, *reference;
    uint16_t want[T * H], got[T * H];
    int32_t ids[3 * T];
    float weights[3 * T], logits[T * 3];
    const uint64_t t3[2] = {T, 3}, three = 3;
    struct moert_layer_weights w;

    start(&rig, memory);
    for (int i = 0; i < T * 3; i++)
        logits[i] = (float)(i * 7 % 11) / 4;
    config = silu(&rig, "mxfp8");
    plain = config;
    config.num_experts = 3;
    config.num_fused_shared = 1;
    if (mapped) {
        config.expert_map = map;
        config.expert_map_length = 3;
        config.num_local_experts = 3;
    }
    layer = rig_create(&rig, &config);
    rig_refuse_host = 0;
    w = rig_weights(&rig, "mxfp8", 0, mapped ? 1 : 0, mapped ? 3 : 4);
    RIG_OK(&rig, moert_layer_set_weights(layer, &w, &rig.err));
    rig_refuse_host = memory == RIG_DISCRETE;
    a = rig_args(&rig, "t17k2_dup", got);
    a.ids = a.weights = (struct moert_tensor){0};
    a.logits = moert_tensor_host(logits, MOERT_F32, 2, t3);
    a.out_ids = moert_tensor_host(ids, MOERT_I32, 2, t3);
    a.out_weights = moert_tensor_host(weights, MOERT_F32, 2, t3);
    if (call_map)
        a.expert_map = moert_tensor_host(map, MOERT_I32, 1, &three);
    if (call_map == 2)
        a.expert_map = rig_on_device(&rig, &a.expert_map);
    RIG_OK(&rig, moert_layer_run(layer, rig.queue, &a, &rig.err));
    for (int t = 0; t < T; t++) {
        cr_assert_eq(ids[t * 3 + 2], 3);
        cr_assert_eq(weights[t * 3 + 2], 1.0f);
        cr_assert_lt(ids[t * 3], 3);
        for (int j = 0; mapped && j < 3; j++) /* expert 0 is on another rank */
            if (!ids[t * 3 + j])
                ids[t * 3 + j] = -1;
    }
    plain.top_k = 3; /* the same three slots as an ordinary layer over 4 experts */
    reference = rig_layer(&rig, &plain, "mxfp8");
    a = rig_args(&rig, "t17k2_dup", want);
    a.ids = moert_tensor_host(ids, MOERT_I32, 2, t3);
    a.weights = moert_tensor_host(weights, MOERT_F32, 2, t3);
    RIG_OK(&rig, moert_layer_run(reference, rig.queue, &a, &rig.err));
    cr_assert_eq(memcmp(got, want, sizeof(got)), 0);
    moert_layer_destroy(layer);
    moert_layer_destroy(reference);
    rig_close(&rig);
}

Test(layer_weights, fused_shared_expert)
{
    fused(RIG_SHARED_MEMORY, 0, 0);
    fused(RIG_SHARED_MEMORY, 1, 0);
    fused(RIG_SHARED_MEMORY, 1, 1);
    fused(RIG_SHARED_MEMORY, 1, 2);
    fused(RIG_DISCRETE, 1, 0);
    fused(RIG_DISCRETE, 1, 1);
    fused(RIG_DISCRETE, 1, 2);
}

/* ---- separate shared expert and scaling ---- */

/* The shared expert as a layer of its own: expert 2 of the file, weights 1 or the gate's sigmoid. */
static void run_alone(struct rig *rig, const uint16_t gate[H], uint16_t dense[T * H])
{
    struct moert_layer_config single = rig_config(rig, "bf16", 'n', 1);
    struct moert_layer_weights w = rig_weights(rig, "bf16", 0, 2, 1);
    struct moert_layer_args a = rig_args(rig, "t17k2_dup", dense);
    const uint64_t one[2] = {T, 1};
    const uint16_t *x = a.x.data;
    int refuse = rig_refuse_host;
    int32_t zeros[T] = {0};
    float ones[T];
    moert_layer_t *layer;

    for (int t = 0; t < T; t++) {
        double logit = 0;
        for (int k = 0; gate && k < H; k++)
            logit += (double)moert_bf16_to_float(x[t * H + k]) * (double)moert_bf16_to_float(gate[k]);
        ones[t] = gate ? (float)(1 / (1 + exp(-logit))) : 1;
    }
    single.num_experts = 1;
    layer = rig_create(rig, &single);
    rig_refuse_host = 0;
    RIG_OK(rig, moert_layer_set_weights(layer, &w, &rig->err));
    rig_refuse_host = refuse;
    a.ids = moert_tensor_host(zeros, MOERT_I32, 2, one);
    a.weights = moert_tensor_host(ones, MOERT_F32, 2, one);
    RIG_OK(rig, moert_layer_run(layer, rig->queue, &a, &rig->err));
    moert_layer_destroy(layer);
}

/* out = round(F * sum of rows + shared), each part from a layer of its own. */
static void shared_expert(int memory, int gated, double factor, uint64_t max_tokens)
{
    struct rig rig;
    struct moert_layer_config config;
    struct moert_layer_dense d = {.size = sizeof(d)};
    struct moert_layer_args a;
    struct moert_layer_weights w;
    moert_layer_t *layer;
    uint16_t got[T * H], *rows = rig_memory(2 * T * H * 2, 0xff), dense[T * H], gate[H];
    int32_t index[2 * T];
    const uint64_t r[2] = {2 * T, H}, n = 2 * T, g[2] = {1, H}, rank2[2] = {256, 128};
    const uint64_t rank2b[2] = {128, 128};

    start(&rig, memory);
    config = silu(&rig, "mxfp8");
    config.max_tokens = max_tokens;
    config.shared.intermediate_size = 128;
    config.shared.weight_scheme = MOERT_SCHEME_BF16;
    config.shared.gated = (uint32_t)gated;
    config.router.scaling_factor = factor;
    config.router.scale_at = MOERT_SCALE_AT_OUTPUT;
    layer = rig_layer(&rig, &config, "mxfp8");
    a = rig_args(&rig, "t17k2_dup", got);
    RIG_FAILS(&rig, moert_layer_run(layer, rig.queue, &a, &rig.err), MOERT_E_USAGE, "state",
              "the shared expert has no weights yet");
    w = rig_weights(&rig, "bf16", 0, 2, 1);
    d.shared_w13 = moert_tensor_host(w.w13.data, MOERT_BF16, 2, rank2);
    d.shared_w2 = moert_tensor_host(w.w2.data, MOERT_BF16, 2, rank2b);
    for (int i = 0; i < H; i++)
        gate[i] = moert_bf16_from_float((float)(i % 9 - 4) / 64);
    if (gated)
        d.shared_gate = moert_tensor_host(gate, MOERT_BF16, 2, g);
    rig_refuse_host = 0;
    RIG_OK(&rig, moert_layer_set_dense(layer, &d, &rig.err));
    RIG_OK(&rig, moert_layer_set_dense(layer, &d, &rig.err)); /* and replaced */
    rig_refuse_host = memory == RIG_DISCRETE;
    RIG_OK(&rig, moert_layer_run(layer, rig.queue, &a, &rig.err));

    a.flags = MOERT_RUN_F_UNREDUCED;
    a.output = moert_tensor_host(rows, MOERT_BF16, 2, r);
    a.index = moert_tensor_host(index, MOERT_I32, 1, &n);
    RIG_OK(&rig, moert_layer_run(layer, rig.queue, &a, &rig.err));

    run_alone(&rig, gated ? gate : NULL, dense);
    for (int t = 0; t < T; t++)
        for (int e = 0; e < H; e++) {
            float sum = moert_bf16_to_float(rows[2 * t * H + e]) + moert_bf16_to_float(rows[(2 * t + 1) * H + e]);
            float all = sum * (float)factor + moert_bf16_to_float(dense[t * H + e]);
            cr_assert_eq(got[t * H + e], moert_bf16_from_float(all), "token %d element %d", t, e);
        }
    free(rows);
    moert_layer_destroy(layer);
    rig_close(&rig);
}

Test(layer_weights, separate_shared_expert)
{
    shared_expert(RIG_SHARED_MEMORY, 0, 2.5, 8192);
    shared_expert(RIG_SHARED_MEMORY, 1, 1, 8192);
    shared_expert(RIG_SHARED_MEMORY, 1, 2.5, 5);
    shared_expert(RIG_DISCRETE, 0, 1, 5);
    shared_expert(RIG_DISCRETE, 1, 2.5, 5);
}

static void see_shared(void *ctx, const struct moert_unreduced *u)
{
    *(double *)ctx = u->scaling_factor;
    cr_assert_not_null(u->shared.buffer);
}

static moert_status_t look(void *ctx, const struct moert_unreduced *u, const struct moert_tensor *out,
                           struct moert_error *err)
{
    see_shared(ctx, u);
    return moert_fill(u->queue, out->buffer, out->offset, 0, u->tokens * u->hidden_size * 2, err);
}

/* With a hook, shared expert and factor are the hook's business (layer.md 5). */
Test(layer_weights, hook_gets_shared_and_factor)
{
    struct rig rig;
    struct moert_layer_config config;
    struct moert_layer_dense d = {.size = sizeof(d)};
    struct moert_layer_weights w;
    struct moert_layer_args a;
    moert_layer_t *layer;
    uint16_t out[T * H];
    double factor = 0;
    const uint64_t s13[2] = {256, 128}, s2[2] = {128, 128};

    start(&rig, RIG_SHARED_MEMORY);
    config = silu(&rig, "mxfp8");
    config.shared.intermediate_size = 128;
    config.shared.weight_scheme = MOERT_SCHEME_BF16;
    config.router.scaling_factor = 2.5;
    config.router.scale_at = MOERT_SCALE_AT_OUTPUT;
    layer = rig_layer(&rig, &config, "mxfp8");
    w = rig_weights(&rig, "bf16", 0, 2, 1);
    d.shared_w13 = moert_tensor_host(w.w13.data, MOERT_BF16, 2, s13);
    d.shared_w2 = moert_tensor_host(w.w2.data, MOERT_BF16, 2, s2);
    RIG_OK(&rig, moert_layer_set_dense(layer, &d, &rig.err));
    a = rig_args(&rig, "t17k2_dup", out);
    a.hook = look;
    a.hook_ctx = &factor;
    memset(out, 0xff, sizeof(out));
    RIG_OK(&rig, moert_layer_run(layer, rig.queue, &a, &rig.err));
    cr_assert_eq(factor, 2.5);
    for (int i = 0; i < T * H; i++)
        cr_assert_eq(out[i], 0, "the hook's output is the result");
    moert_layer_destroy(layer);
    rig_close(&rig);
}

Test(layer_weights, abilities_the_backend_lacks_are_refused)
{
    struct rig rig;
    struct moert_layer_config config;
    struct moert_decision decision = {0};
    moert_layer_t *layer = NULL;

    rig_open(&rig, RIG_SHARED_MEMORY, MOERT_BACKEND_F_SHARED);
    rig_load(&rig, SILU_FILE);
    config = silu(&rig, "mxfp8");
    config.router.scaling_factor = 2.5;
    config.router.scale_at = MOERT_SCALE_AT_OUTPUT;
    RIG_FAILS(&rig, moert_layer_create(rig.context, &config, &decision, &layer, &rig.err), MOERT_E_NO_BACKEND,
              "backend-refused", "cpu.reference cannot serve: output_scale have no need yes");
    config.router.scaling_factor = 1;
    config.shared.intermediate_size = 128;
    RIG_FAILS(&rig, moert_layer_create(rig.context, &config, &decision, &layer, &rig.err), MOERT_E_NO_BACKEND,
              "backend-refused", "cpu.reference cannot serve: shared have no need yes");
    rig_close(&rig);
}

/* ---- single steps ---- */

static void steps(int memory)
{
    struct rig rig;
    const struct moert_st_tensor *packed, *codebook;
    uint16_t decoded[4 * 256 * 128], strided[T][160], values[T * H];
    uint8_t codes[T * H], scales[T * 4];
    const uint64_t wide[3] = {4, 256, 128}, x[2] = {T, H}, s[2] = {T, 4};
    struct moert_tensor in, c, sc, out, p, cb;

    start(&rig, memory);
    rig_refuse_host = memory == RIG_DISCRETE;
    packed = rig_find(&rig, "w.lutb.w13_packed");
    codebook = rig_find(&rig, "w.lutb.w13_codebook");
    p = rig_host(packed);
    cb = rig_host(codebook);
    out = moert_tensor_host(decoded, MOERT_BF16, 3, wide);
    RIG_OK(&rig, moert_step_lutb_decode(rig.queue, &p, &cb, &out, &rig.err));
    cr_assert_eq(decoded[0], moert_bf16_from_float(moert_e4m3_decode(
                                 ((const uint8_t *)codebook->data)[((const uint8_t *)packed->data)[0] & 7])));
    memset(strided, 0x33, sizeof(strided));
    for (int t = 0; t < T; t++)
        memcpy(strided[t], decoded + t * H, 256);
    in = moert_tensor_host(strided, MOERT_BF16, 2, x);
    in.strides[0] = 160;
    c = moert_tensor_host(codes, MOERT_F8_E4M3, 2, x);
    sc = moert_tensor_host(scales, MOERT_U8, 2, s);
    RIG_OK(&rig, moert_step_quantize(rig.queue, NULL, &in, &c, &sc, &rig.err));
    out = moert_tensor_host(strided, MOERT_BF16, 2, x);
    out.strides[0] = 160;
    memset(strided, 0x33, sizeof(strided));
    RIG_OK(&rig, moert_step_dequantize(rig.queue, &c, &sc, &out, &rig.err));
    for (int t = 0; t < T; t++) {
        memcpy(values + t * H, strided[t], 256);
        cr_assert_eq(strided[t][130], 0x3333, "gaps stay");
    }
    cr_assert_eq(memcmp(values, decoded, sizeof(values)), 0, "E4M3 values with a scale of 1 pass unchanged");
    RIG_FAILS(&rig, moert_step_quantize(rig.queue, NULL, NULL, &c, &sc, &rig.err), MOERT_E_USAGE, "null", "x is NULL");
    in.shape[0] = 0;
    in.data = NULL;
    RIG_OK(&rig, moert_step_quantize(rig.queue, NULL, &in, &c, &sc, &rig.err));
    RIG_FAILS(&rig, moert_step_topk(rig.queue, &(struct moert_router_config){0}, 1, &in, NULL, &c, &sc, &rig.err),
              MOERT_E_UNSUPPORTED, "unsupported", "driver cpu has no step topk");
    rig_close(&rig);
}

Test(layer_weights, single_steps)
{
    steps(RIG_SHARED_MEMORY);
    steps(RIG_DISCRETE);
}
