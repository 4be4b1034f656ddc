/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/test_cpu_reference.c: values of cpu.reference: the hand example and activation values of layer.md, the
 * layer cases of routing.md 6, bias, shared expert and unreduced rows, the rounding points of layer.md 3. */
#include "config.h"

#include "tests/unit/cpu_layers.h"

#include <math.h>
#include <moert/lutb.h>
#include <moert/mxfp8.h>

TestSuite(cpu_reference, .init = setup, .fini = teardown);

/* Experts of one number each, H = I = 1, f32: f_e(1) = value[e] (relu2 of 1 is 1). */
static struct moert_layer_config number_config(uint32_t ids, uint32_t local, uint32_t k)
{
    struct moert_layer_config c = rig_config(1, 1, ids, k, MOERT_F32, MOERT_SCHEME_F32, MOERT_SCHEME_NONE);

    c.num_local_experts = local;
    c.activation = MOERT_ACT_RELU2_NO_MUL;
    return c;
}

static float numbers(const struct moert_layer_config *c, const float *values, const int32_t *ids, const float *weights,
                     const int32_t *map, float scale)
{
    float ones[64], x = 1, out = NAN;
    struct moert_run_args a;
    moert_drv_layer *layer;

    for (int i = 0; i < 64; i++)
        ones[i] = 1;
    layer = plain_layer(c, ones, values);
    a = arguments(c, 1, &x, ids, weights, map, &out);
    a.output_scale = (double)scale;
    RIG_OK(&rig, rig_run(&rig, layer, c, &a));
    rig.backend->ops->release(layer);
    return out;
}

/* ---- layer.md 3: T1 ---- */

Test(cpu_reference, hand_example)
{
    struct moert_layer_config c = rig_config(32, 32, 1, 1, MOERT_BF16, MOERT_SCHEME_MXFP8, MOERT_SCHEME_MXFP8);
    uint8_t w13[64 * 32], s13[64], w2[32 * 32], s2[32], a1[32], a1s, a2[32], a2s;
    uint16_t x[32], out[32], c1[64], c2[32], c3[32];
    struct moert_expert_weights w = {.size = sizeof(w), .count = 1};
    struct moert_run_dumps d = {.size = sizeof(d)};
    struct moert_run_args a;
    moert_drv_layer *layer = rig_layer(&rig, &c);
    int32_t id = 0;
    float weight = 0.5f;

    memset(w13, 0x78, sizeof(w13));
    memset(w2, 0x78, sizeof(w2));
    memset(s13, 114, 32);      /* gate rows 2^-5 */
    memset(s13 + 32, 115, 32); /* up rows 2^-4 */
    memset(s2, 114, 32);
    for (int i = 0; i < 32; i++)
        x[i] = 0x3f80;
    w.w13 = rig_tensor(&rig, w13, MOERT_F8_E4M3, 3, 1, 64, 32);
    w.w13_scale = rig_tensor(&rig, s13, MOERT_U8, 3, 1, 64, 1);
    w.w2 = rig_tensor(&rig, w2, MOERT_F8_E4M3, 3, 1, 32, 32);
    w.w2_scale = rig_tensor(&rig, s2, MOERT_U8, 3, 1, 32, 1);
    RIG_OK(&rig, rig.backend->ops->prepare(layer, &w, &rig.err));
    a = arguments(&c, 1, x, &id, &weight, NULL, out);
    d.a1_codes = rig_tensor(&rig, a1, MOERT_F8_E4M3, 2, 1, 32);
    d.a1_scales = rig_tensor(&rig, &a1s, MOERT_U8, 2, 1, 1);
    d.c1 = rig_tensor(&rig, c1, MOERT_BF16, 2, 1, 64);
    d.c2 = rig_tensor(&rig, c2, MOERT_BF16, 2, 1, 32);
    d.a2_codes = rig_tensor(&rig, a2, MOERT_F8_E4M3, 2, 1, 32);
    d.a2_scales = rig_tensor(&rig, &a2s, MOERT_U8, 2, 1, 1);
    d.c3 = rig_tensor(&rig, c3, MOERT_BF16, 2, 1, 32);
    a.dumps = &d;
    RIG_OK(&rig, rig_run(&rig, layer, &c, &a));
    cr_assert_eq(a1s, 119);
    cr_assert_eq(a2s, 119);
    for (int i = 0; i < 32; i++) {
        cr_assert_eq(a1[i], 0x78);
        cr_assert_eq(c1[i], 0x3f80);      /* 1 */
        cr_assert_eq(c1[32 + i], 0x4000); /* 2 */
        cr_assert_eq(c2[i], 0x3fbb);
        cr_assert_eq(a2[i], 0x7c);
        cr_assert_eq(c3[i], 0x3f40); /* 0.75 */
        cr_assert_eq(out[i], 0x3f40);
    }
    rig.backend->ops->release(layer);
}

/* The same numbers in every pair of schemes and every d: H = I = 64, gate rows 2^-6, up rows 2^-5, w2 2^-6, so that c1
 * is 1 | 2 and the result rd(c2' * 0.5), c2' = Q(c2) = 1.5 or c2 = rd(1.46211716) itself. */
static void fill_constant(moert_scheme_t scheme, uint8_t *matrix, uint8_t *scales, size_t elements, int exponent)
{
    switch (scheme) {
    case MOERT_SCHEME_LUT_B:
        memset(matrix, 0, elements / 8 * 3);
        memset(scales, 0x38 + 8 * exponent, elements / 64); /* E4M3 of 2^exponent */
        return;
    case MOERT_SCHEME_MXFP8:
        memset(matrix, 0x38, elements);
        memset(scales, 127 + exponent, elements / 32);
        return;
    default:
        for (size_t i = 0; i < elements; i++)
            moert_store(matrix, plain_dtype(scheme), i, ldexp(1, exponent));
    }
}

static moert_drv_layer *constant_layer(const struct moert_layer_config *c)
{
    struct moert_expert_weights w = {.size = sizeof(w), .count = 1};
    uint8_t *w13 = rig_memory(&rig, 128 * 64 * 4, 0), *s13 = rig_memory(&rig, 128 * 2, 0);
    uint8_t *w2 = rig_memory(&rig, 64 * 64 * 4, 0), *s2 = rig_memory(&rig, 64 * 2, 0);
    size_t half = c->weight_scheme == MOERT_SCHEME_LUT_B ? 64 * 64 / 8 * 3 : 64 * 64;
    moert_drv_layer *layer = rig_layer(&rig, c);

    if (c->weight_scheme != MOERT_SCHEME_LUT_B && c->weight_scheme != MOERT_SCHEME_MXFP8) {
        half *= moert_dtype_size(plain_dtype(c->weight_scheme));
        w = plain_weights(c, w13, w2);
    } else if (c->weight_scheme == MOERT_SCHEME_MXFP8) {
        w.w13 = rig_tensor(&rig, w13, MOERT_F8_E4M3, 3, 1, 128, 64);
        w.w13_scale = rig_tensor(&rig, s13, MOERT_U8, 3, 1, 128, 2);
        w.w2 = rig_tensor(&rig, w2, MOERT_F8_E4M3, 3, 1, 64, 64);
        w.w2_scale = rig_tensor(&rig, s2, MOERT_U8, 3, 1, 64, 2);
    } else {
        w.w13 = rig_tensor(&rig, w13, MOERT_U8, 4, 1, 16, 1, 192);
        w.w13_scale = rig_tensor(&rig, s13, MOERT_F8_E4M3, 4, 1, 16, 1, 8);
        w.w2 = rig_tensor(&rig, w2, MOERT_U8, 4, 1, 8, 1, 192);
        w.w2_scale = rig_tensor(&rig, s2, MOERT_F8_E4M3, 4, 1, 8, 1, 8);
    }
    fill_constant(c->weight_scheme, w13, s13, 64 * 64, -6);
    fill_constant(c->weight_scheme, w13 + half, s13 + (c->weight_scheme == MOERT_SCHEME_LUT_B ? 64 : 128), 64 * 64, -5);
    fill_constant(c->weight_scheme, w2, s2, 64 * 64, -6);
    RIG_OK(&rig, rig.backend->ops->prepare(layer, &w, &rig.err));
    return layer;
}

Test(cpu_reference, every_scheme_and_dtype)
{
    static const moert_dtype_t dtypes[] = {MOERT_BF16, MOERT_F16, MOERT_F32};
    static const double plain[] = {1.4609375, 1.4619140625, 1.46211719512939453125}; /* rd(1.46211716) */

    for (int i = 0; i < 3; i++)
        for (uint32_t weights = MOERT_SCHEME_BF16; weights < MOERT_SCHEME_COUNT; weights++)
            for (int q = 0; q < 2; q++) {
                struct moert_layer_config c =
                    rig_config(64, 64, 1, 1, dtypes[i], weights, q ? MOERT_SCHEME_MXFP8 : MOERT_SCHEME_NONE);
                moert_drv_layer *layer = constant_layer(&c);
                uint32_t x[64], out[64];
                int32_t id = 0;
                float weight = 0.5f;
                struct moert_run_args a;
                for (uint64_t k = 0; k < 64; k++)
                    moert_store(x, dtypes[i], k, 1);
                a = arguments(&c, 1, x, &id, &weight, NULL, out);
                RIG_OK(&rig, rig_run(&rig, layer, &c, &a));
                for (uint64_t k = 0; k < 64; k++)
                    cr_assert_eq(moert_load(out, dtypes[i], k), q ? 0.75 : plain[i] / 2, "%s, weights %u, q %d: %.9g",
                                 moert_dtype_name(dtypes[i]), weights, q, moert_load(out, dtypes[i], k));
                rig.backend->ops->release(layer);
            }
}

/* ---- layer.md 2: activations through a full layer, C34..C37 ---- */

struct activation_case {
    moert_activation_t kind;
    uint32_t params;
    double limit, alpha, beta, situ_beta, linear_beta;
    moert_w13_order_t order;
    float g, u;
    double expected;
};

/* Identity weights: c1 = (g, u) in the order's places, out[0] = act. */
static float activate(const struct activation_case *t)
{
    struct moert_layer_config c = rig_config(2, 1, 1, 1, MOERT_F32, MOERT_SCHEME_F32, MOERT_SCHEME_NONE);
    float identity[4] = {1, 0, 0, 1}, swapped[4] = {0, 1, 1, 0}, w2[2] = {1, 0}, x[2] = {t->g, t->u}, out[2];
    float weight = 1;
    int32_t id = 0;
    struct moert_run_args a;
    moert_drv_layer *layer;

    c.activation = t->kind;
    c.params_set = t->params;
    c.swiglu_limit = t->limit;
    c.swiglu_alpha = t->alpha;
    c.swiglu_beta = t->beta;
    c.situ_beta = t->situ_beta;
    c.situ_linear_beta = t->linear_beta;
    c.w13_order = t->order;
    layer = plain_layer(&c, t->order == MOERT_W13_UP_GATE ? swapped : identity, w2);
    a = arguments(&c, 1, x, &id, &weight, NULL, out);
    RIG_OK(&rig, rig_run(&rig, layer, &c, &a));
    cr_assert_eq(out[1], 0);
    rig.backend->ops->release(layer);
    return out[0];
}

Test(cpu_reference, activation_values)
{
    enum { L = MOERT_PARAM_SWIGLU_LIMIT, S = MOERT_PARAM_SITU_BETA, SL = MOERT_PARAM_SITU_LINEAR_BETA };
    static const struct activation_case cases[] = {
        {MOERT_ACT_SILU, 0, 0, 0, 0, 0, 0, MOERT_W13_GATE_UP, 8, -9, -71.9758548},
        {MOERT_ACT_SILU, L, 7, 0, 0, 0, 0, MOERT_W13_GATE_UP, 8, -9, -48.9553585}, /* C34 */
        {MOERT_ACT_SWIGLUOAI, L, 7, 0, 0, 0, 0, MOERT_W13_INTERLEAVED, 8, -9, -41.9997188},
        {MOERT_ACT_SWIGLUSTEP, L, 7, 0, 0, 0, 0, MOERT_W13_GATE_UP, 8, -9, -49},
        {MOERT_ACT_SILU, 0, 0, 0, 0, 0, 0, MOERT_W13_GATE_UP, -1, 2, -0.537882843}, /* C37 */
        {MOERT_ACT_SILU, 0, 0, 0, 0, 0, 0, MOERT_W13_UP_GATE, 2, -1, -1.76159416},
        {MOERT_ACT_SILU, 0, 0, 0, 0, 0, 0, MOERT_W13_UP_GATE, -1, 2, -0.537882843},
        {MOERT_ACT_SWIGLUOAI, L, 7, 0, 0, 0, 0, MOERT_W13_INTERLEAVED, -1, 2, -0.462612702},
        {MOERT_ACT_GELU, 0, 0, 0, 0, 0, 0, MOERT_W13_GATE_UP, -1, 2, -0.317310508},
        {MOERT_ACT_GELU_TANH, 0, 0, 0, 0, 0, 0, MOERT_W13_GATE_UP, -1, 2, -0.317616019},
        {MOERT_ACT_SITU, S, 0, 0, 0, 1, 0, MOERT_W13_GATE_UP, -1, 2, -0.40964843},
        {MOERT_ACT_SITU, S | SL, 0, 0, 0, 1, 1.5, MOERT_W13_GATE_UP, -1, 2, -0.267314545},
        {MOERT_ACT_RELU2, 0, 0, 0, 0, 0, 0, MOERT_W13_GATE_UP, 3, 2, 18},
        {MOERT_ACT_SWIGLUOAI_UNINTERLEAVE, L, 7, 0, 0, 0, 0, MOERT_W13_GATE_UP, 8, -9, -48.9553585}, /* C35 */
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        double y = (double)activate(&cases[i]);
        cr_expect(fabs(y - cases[i].expected) <= 1e-7 * fabs(cases[i].expected), "case %d: %.9g, expected %.9g", (int)i,
                  y, cases[i].expected);
    }
}

/* Row [1,10,2,20] as pairs and as halves (layer.md 2, C36). */
Test(cpu_reference, c36_order_of_w13)
{
    static const double expected[2][2] = {{6.76636613, 15.485269}, {2.5373873, 55.999625}};
    static const moert_activation_t kinds[2] = {MOERT_ACT_SWIGLUOAI, MOERT_ACT_SWIGLUOAI_UNINTERLEAVE};
    static const moert_w13_order_t orders[2] = {MOERT_W13_INTERLEAVED, MOERT_W13_GATE_UP};
    float w13[16] = {0}, w2[8] = {1, 0, 0, 1, 0, 0, 0, 0}, x[4] = {1, 10, 2, 20}, out[4], weight = 1;
    int32_t id = 0;

    for (int i = 0; i < 4; i++)
        w13[5 * i] = 1;
    for (int v = 0; v < 2; v++) {
        struct moert_layer_config c = rig_config(4, 2, 1, 1, MOERT_F32, MOERT_SCHEME_F32, MOERT_SCHEME_NONE);
        struct moert_run_args a;
        moert_drv_layer *layer;
        c.activation = kinds[v];
        c.w13_order = orders[v];
        c.params_set = MOERT_PARAM_SWIGLU_LIMIT;
        c.swiglu_limit = 7;
        if (v) {
            c.params_set |= MOERT_PARAM_SWIGLU_ALPHA | MOERT_PARAM_SWIGLU_BETA;
            c.swiglu_alpha = 1.702;
            c.swiglu_beta = 1;
        }
        layer = plain_layer(&c, w13, w2);
        a = arguments(&c, 1, x, &id, &weight, NULL, out);
        RIG_OK(&rig, rig_run(&rig, layer, &c, &a));
        for (int i = 0; i < 2; i++)
            cr_expect(fabs((double)out[i] - expected[v][i]) <= 1e-7 * expected[v][i], "%d,%d: %.9g", v, i,
                      (double)out[i]);
        rig.backend->ops->release(layer);
    }
}

Test(cpu_reference, c35_limit_is_required)
{
    struct moert_layer_config c = rig_config(4, 2, 1, 1, MOERT_F32, MOERT_SCHEME_F32, MOERT_SCHEME_NONE);
    moert_drv_layer *layer = NULL;

    c.activation = MOERT_ACT_SWIGLUOAI_UNINTERLEAVE;
    RIG_FAILS(&rig, rig.backend->ops->create(rig.device, rig.backend, &c, &layer, &rig.err), MOERT_E_VALUE,
              "activation");
    cr_assert_null(layer);
}

/* C38: H = 4, I = 2, so 2I = H and nothing but the description says which axis is which. */
Test(cpu_reference, c38_square_weights)
{
    struct moert_layer_config c = rig_config(4, 2, 1, 1, MOERT_F32, MOERT_SCHEME_F32, MOERT_SCHEME_NONE);
    float w13[16], w2[8], x[4] = {1, -1, 1, 0}, out[4], weight = 1;
    int32_t id = 0;
    double h[2], wrong[2];
    struct moert_run_args a;
    moert_drv_layer *layer;

    c.activation = MOERT_ACT_RELU2;
    for (int i = 0; i < 16; i++)
        w13[i] = (float)(10 * (i / 4) + i % 4);
    for (int i = 0; i < 8; i++)
        w2[i] = (float)(i == 0 || i == 3); /* rows 0, 1 pick h[0], h[1] */
    for (int i = 0; i < 2; i++) {
        double g = 0, u = 0, gt = 0, ut = 0;
        for (int k = 0; k < 4; k++) {
            g += (double)x[k] * (10 * i + k);
            u += (double)x[k] * (10 * (2 + i) + k);
            gt += (double)x[k] * (10 * k + i);
            ut += (double)x[k] * (10 * k + 2 + i);
        }
        h[i] = g * g * u;
        wrong[i] = gt * gt * ut;
        cr_assert(g > 0 && fabs(h[i] - wrong[i]) > 1);
    }
    layer = plain_layer(&c, w13, w2);
    a = arguments(&c, 1, x, &id, &weight, NULL, out);
    RIG_OK(&rig, rig_run(&rig, layer, &c, &a));
    cr_assert_eq((double)out[0], h[0]);
    cr_assert_eq((double)out[1], h[1]);
    rig.backend->ops->release(layer);
}

/* ---- routing.md 6 ---- */

Test(cpu_reference, c03_no_expert_no_weight_read)
{
    struct moert_layer_config c = number_config(2, 2, 2);
    float ones[2] = {1, 1}, values[2] = {3, 5}, w[2] = {0.5f, 0.5f}, x = 1, out = NAN;
    int32_t ids[2] = {-1, -1};
    struct moert_counters n = {.size = sizeof(n)};
    moert_drv_layer *layer = plain_layer(&c, ones, values);
    struct moert_run_args a = arguments(&c, 1, &x, ids, w, NULL, &out);
    uint32_t bits;

    RIG_OK(&rig, rig_run(&rig, layer, &c, &a));
    memcpy(&bits, &out, 4);
    cr_assert_eq(bits, 0, "exactly +0, got %08x", bits);
    RIG_OK(&rig, rig.backend->ops->counters(layer, &n, &rig.err));
    cr_assert_eq(n.weight_bytes, 0);
    cr_assert_eq(n.by_implementation[0].runs, 1);
    rig.backend->ops->release(layer);
}

Test(cpu_reference, c04_map_and_invalid_id)
{
    struct moert_layer_config c = number_config(4, 2, 2);
    float values[] = {1, 2}, w[] = {0.25f, 0.75f};
    int32_t map[] = {-1, -1, 0, 1}, ids[] = {-1, 2};

    cr_assert_eq(numbers(&c, values, ids, w, map, 1), 0.75f);
}

Test(cpu_reference, c05_combine_step)
{
    struct moert_layer_config c = number_config(4, 1, 2);
    float rows[2] = {2, NAN}, out = NAN, w[2] = {3, NAN};
    int32_t map[] = {0, -1, -1, -1}, ids[] = {0, 3};
    struct moert_drv_tensor r = rig_tensor(&rig, rows, MOERT_F32, 3, 1, 2, 1);
    struct moert_drv_tensor i = rig_tensor(&rig, ids, MOERT_I32, 2, 1, 2);
    struct moert_drv_tensor m = rig_tensor(&rig, map, MOERT_I32, 1, 4);
    struct moert_drv_tensor o = rig_tensor(&rig, &out, MOERT_F32, 2, 1, 1);
    struct moert_drv_tensor t = rig_tensor(&rig, w, MOERT_F32, 2, 1, 2);

    RIG_OK(&rig, mcpu_driver.steps->combine(rig.queue, &c, &r, &i, &m, NULL, &o, &rig.err));
    cr_assert_eq(out, 2);
    RIG_OK(&rig, mcpu_driver.steps->combine(rig.queue, &c, &r, &i, &m, &t, &o, &rig.err));
    cr_assert_eq(out, 6);
}

/* C08 and the second half of C33: the fused shared expert is id E, its slot the last one. */
Test(cpu_reference, c08_c33_fused_shared)
{
    struct moert_layer_config c = number_config(4, 5, 1);
    float values[] = {1, 2, 3, 4, 100}, w[] = {0.5f, 1};
    int32_t ids[] = {1, 4};
    float w4[] = {0.5f, 0.25f, 0.25f, 1};
    int32_t ids4[] = {1, 3, 2, 4};

    c.num_fused_shared = 1;
    cr_assert_eq(numbers(&c, values, ids, w, NULL, 1), 101);
    c.top_k = 3;
    cr_assert_eq(numbers(&c, values, ids4, w4, NULL, 1), 1 + 1 + 0.75f + 100);
}

Test(cpu_reference, c10_no_local_expert)
{
    struct moert_layer_config c = number_config(8, 4, 2);
    float ones[4] = {1, 1, 1, 1}, values[4] = {1, 2, 3, 4}, x[5] = {1, 1, 1, 1, 1}, out[5], w[10];
    int32_t map[] = {-1, -1, -1, -1, 0, 1, 2, 3}, ids[10];
    moert_drv_layer *layer = plain_layer(&c, ones, values);
    struct moert_run_args a;

    for (int i = 0; i < 10; i++) {
        ids[i] = i % 4;
        w[i] = NAN; /* never read */
    }
    memset(out, 0xff, sizeof(out));
    a = arguments(&c, 5, x, ids, w, map, out);
    RIG_OK(&rig, rig_run(&rig, layer, &c, &a));
    for (int t = 0; t < 5; t++) {
        uint32_t bits;
        memcpy(&bits, &out[t], 4);
        cr_assert_eq(bits, 0);
    }
    rig.backend->ops->release(layer);
}

Test(cpu_reference, c18_repeated_ids)
{
    struct moert_layer_config c = number_config(4, 4, 2);
    float values[] = {1, 2, 7, 4}, w[] = {0.25f, 0.75f};
    int32_t ids[] = {2, 2};

    cr_assert_eq(numbers(&c, values, ids, w, NULL, 1), 7);
}

Test(cpu_reference, c19_more_ids_than_experts)
{
    struct moert_layer_config c = number_config(8, 4, 1);
    float ones[4] = {1, 1, 1, 1}, x = 1, out = 42, w = 1;
    int32_t id = 5;
    moert_drv_layer *layer = plain_layer(&c, ones, ones);
    struct moert_run_args a = arguments(&c, 1, &x, &id, &w, NULL, &out);

    RIG_FAILS(&rig, rig_run(&rig, layer, &c, &a), MOERT_E_SHAPE, "experts");
    cr_assert_eq(out, 42, "an error found before the work leaves the output alone");
    rig.backend->ops->release(layer);
}

Test(cpu_reference, c20_c21_placement)
{
    struct moert_layer_config c = number_config(4, 2, 1);
    float round_robin[] = {0, 2}, linear[] = {2, 3}, w = 1;
    int32_t rr_map[] = {0, -1, 1, -1}, linear_map[] = {-1, -1, 0, 1}, id = 2;

    cr_assert_eq(numbers(&c, round_robin, &id, &w, rr_map, 1), 2);
    cr_assert_eq(numbers(&c, linear, &id, &w, linear_map, 1), 2);
}

Test(cpu_reference, c31_c32_scaling_once)
{
    struct moert_layer_config c = number_config(1, 1, 1);
    float one = 1, factor = 2.5f, f = 3;
    int32_t id = 0;

    cr_assert_eq(numbers(&c, &one, &id, &one, NULL, 2.5f), 2.5f);
    cr_assert_eq(numbers(&c, &one, &id, &factor, NULL, 1), 2.5f);
    cr_assert_eq(numbers(&c, &f, &id, &one, NULL, 1.5f), 4.5f); /* rig_run poisons the workspace */
}

Test(cpu_reference, map_values_are_checked)
{
    struct moert_layer_config c = number_config(2, 1, 1);
    float one = 1, x = 1, out = 42;
    int32_t id = 0, map[] = {0, 1};
    moert_drv_layer *layer = plain_layer(&c, &one, &one);
    struct moert_run_args a = arguments(&c, 1, &x, &id, &one, map, &out);

    RIG_FAILS(&rig, rig_run(&rig, layer, &c, &a), MOERT_E_VALUE, "map");
    cr_assert_str_eq(rig.err.text, "expert_map[1] is 1; local ids are 0..0");
    rig.backend->ops->release(layer);
}

/* Every id outside [0,E) means "no expert"; weights of such slots are never read. */
Test(cpu_reference, ids_out_of_range)
{
    struct moert_layer_config c = number_config(3, 3, 6);
    float values[] = {1, 2, 4}, w[] = {1, NAN, NAN, NAN, NAN, 1};
    int32_t ids[] = {2, -1, 3, INT32_MIN, INT32_MAX, 0};

    cr_assert_eq(numbers(&c, values, ids, w, NULL, 1), 5);
}

/* ---- bias, shared expert, count, unreduced rows, MXFP8 input ---- */

/* Bias before the weight, one rounding; shared after the scaling, one rounding. */
Test(cpu_reference, bias_and_shared)
{
    struct moert_layer_config c = number_config(2, 2, 2);
    float w13[] = {1, 1}, w2[] = {2, 3}, b13[] = {1, 0}, x = 1, w[] = {0.5f, 2}, shared = 10, out;
    uint16_t b2[] = {0x4120, 0x3f80}; /* bf16 10, 1 */
    int32_t ids[] = {0, 1};
    moert_drv_layer *layer;
    struct moert_expert_weights e;
    struct moert_run_args a;

    c.has_bias = 1;
    layer = rig_layer(&rig, &c);
    e = plain_weights(&c, w13, w2);
    RIG_FAILS(&rig, rig.backend->ops->prepare(layer, &e, &rig.err), MOERT_E_MISSING, "tensor-missing");
    e.w13_bias = rig_tensor(&rig, b13, MOERT_F32, 2, 2, 1);
    e.w2_bias = rig_tensor(&rig, b2, MOERT_BF16, 2, 2, 1);
    RIG_OK(&rig, rig.backend->ops->prepare(layer, &e, &rig.err));
    a = arguments(&c, 1, &x, ids, w, NULL, &out);
    a.shared = rig_tensor(&rig, &shared, MOERT_F32, 2, 1, 1);
    a.output_scale = 3;
    RIG_OK(&rig, rig_run(&rig, layer, &c, &a));
    /* expert 0: c1 = 2, act 4, (8 + 10) * 0.5 = 9; expert 1: (3 + 1) * 2 = 8; 17 * 3 + 10 */
    cr_assert_eq(out, 61);
    rig.backend->ops->release(layer);
}

Test(cpu_reference, token_count_and_unreduced)
{
    struct moert_layer_config c = number_config(2, 2, 2);
    float ones[] = {1, 1}, w2[] = {2, 3}, x[] = {1, NAN}, w[] = {0.5f, 2, 1, 1}, out[] = {7, 7}, rows[4];
    int32_t ids[] = {0, 1, 0, 1}, count = 1, index[4] = {9, 9, 9, 9};
    moert_drv_layer *layer = plain_layer(&c, ones, w2);
    struct moert_run_args a = arguments(&c, 2, x, ids, w, NULL, out);

    a.token_count = rig_tensor(&rig, &count, MOERT_I32, 1, 1);
    RIG_OK(&rig, rig_run(&rig, layer, &c, &a));
    cr_assert_eq(out[0], 7);
    cr_assert(out[1] == 0 && !signbit(out[1]), "a row past the count is +0, got %g", (double)out[1]);
    memset(rows, 0xff, sizeof(rows));
    a.flags = MOERT_RUN_F_UNREDUCED | MOERT_RUN_F_UNWEIGHTED;
    a.output = rig_tensor(&rig, rows, MOERT_F32, 2, 4, 1);
    a.index = rig_tensor(&rig, index, MOERT_I32, 1, 4);
    a.weights = (struct moert_drv_tensor){0};
    RIG_OK(&rig, rig_run(&rig, layer, &c, &a));
    cr_assert(rows[0] == 2 && rows[1] == 3 && isnan(rows[2]) && isnan(rows[3]), "unweighted; absent rows not written");
    cr_assert(index[0] == 0 && index[1] == 1 && index[2] == -1 && index[3] == -1);
    a.flags = MOERT_RUN_F_UNREDUCED;
    RIG_FAILS(&rig, rig_run(&rig, layer, &c, &a), MOERT_E_USAGE, "null");
    count = -3;
    a.flags = 0;
    a.output = rig_tensor(&rig, out, MOERT_F32, 2, 2, 1);
    a.weights = rig_tensor(&rig, w, MOERT_F32, 2, 2, 2);
    RIG_OK(&rig, rig_run(&rig, layer, &c, &a));
    cr_assert(out[0] == 0 && out[1] == 0);
    rig.backend->ops->release(layer);
}

/* layer.md 10: the indexes that a hook sees. */
Test(cpu_reference, hook_index)
{
    struct moert_layer_config c = number_config(4, 3, 2);
    float ones[] = {1, 1, 1, 1}, x[] = {1, 1}, rows[4];
    int32_t ids[2][4] = {{0, 1, 2, 3}, {-1, 1, 9, 0}}, map[] = {0, -1, 1, 2}, index[4];
    static const int32_t expected[2][4] = {{0, -1, 2, 3}, {-1, 1, -1, 3}};

    for (int v = 0; v < 2; v++) {
        moert_drv_layer *layer;
        struct moert_run_args a;
        c.num_local_experts = v ? 4 : 3;
        layer = plain_layer(&c, ones, ones);
        a = arguments(&c, 2, x, ids[v], ones, v ? NULL : map, rows);
        a.flags = MOERT_RUN_F_UNREDUCED | MOERT_RUN_F_UNWEIGHTED;
        a.output = rig_tensor(&rig, rows, MOERT_F32, 2, 4, 1);
        a.index = rig_tensor(&rig, index, MOERT_I32, 1, 4);
        a.weights = (struct moert_drv_tensor){0};
        RIG_OK(&rig, rig_run(&rig, layer, &c, &a));
        for (int s = 0; s < 4; s++)
            cr_assert_eq(index[s], expected[v][s]);
        rig.backend->ops->release(layer);
    }
}

/* ---- rounding points (layer.md 3) ---- */

/* The layer written a second time, in the plainest way, with faults that can be planted. */
enum fault { NONE, TRUNCATE_C1, ROUND_ACT_TWICE, FLOOR_SCALE, WEIGHT_AFTER_ROUNDING, BF16_SUM, NO_ROUNDING, FAULTS };

static const char *const fault_names[] = {"none",
                                          "c1 truncated",
                                          "activation rounded twice",
                                          "scale rule FLOOR",
                                          "weight after rounding",
                                          "bf16 running sum",
                                          "no rounding between steps"};

static float bf16(double v)
{
    return moert_bf16_to_float(moert_bf16_from_double(v));
}

static void qdq(enum fault fault, float *row, int n)
{
    struct moert_mxfp8_params p = {.size = sizeof(p), .rule = fault == FLOOR_SCALE ? MOERT_FLOOR : MOERT_RCEIL};
    uint8_t codes[512], scales[16];

    RIG_OK(&rig, moert_mxfp8_quantize(row, MOERT_F32, 1, (uint64_t)n, 0, &p, codes, scales, NULL, &rig.err));
    RIG_OK(&rig, moert_mxfp8_dequantize(codes, scales, 1, (uint64_t)n, row, MOERT_F32, &rig.err));
}

static double dot(const float *a, const float *w, int n)
{
    double s = 0;

    for (int k = 0; k < n; k++)
        s += (double)a[k] * (double)w[k];
    return s;
}

/* One slot: x [h] -> c3 [h]. */
static void slot(enum fault fault, const float *a1, const float *w13, const float *w2, int h, int i, float w, float *c3)
{
    float c1[512], c2[256];

    for (int n = 0; n < 2 * i; n++) {
        double y = dot(a1, w13 + n * h, h);
        c1[n] = fault == NO_ROUNDING ? (float)y : bf16(y);
        if (fault == TRUNCATE_C1) {
            uint32_t bits;
            float f = (float)y;
            memcpy(&bits, &f, 4);
            bits &= 0xffff0000u;
            memcpy(&c1[n], &bits, 4);
        }
    }
    for (int n = 0; n < i; n++) {
        double g = (double)c1[n], s = g / (1 + exp(-g));
        if (fault == ROUND_ACT_TWICE)
            s = (double)bf16(s);
        s *= (double)c1[i + n];
        c2[n] = fault == NO_ROUNDING ? (float)s : bf16(s);
    }
    qdq(fault, c2, i);
    for (int n = 0; n < h; n++) {
        double y = dot(c2, w2 + n * i, i);
        if (fault == WEIGHT_AFTER_ROUNDING)
            y = (double)bf16(y);
        c3[n] = fault == NO_ROUNDING ? (float)(y * (double)w) : bf16(y * (double)w);
    }
}

static void simulate(enum fault fault, const struct lutb *l, const struct batch *b, const float *w13, const float *w2,
                     float *out)
{
    int h = (int)l->c.hidden_size, i = (int)l->c.intermediate_size, k = (int)l->c.top_k;

    for (int t = 0; t < b->tokens; t++) {
        float a1[512], c3[512];
        for (int n = 0; n < h; n++)
            a1[n] = moert_bf16_to_float(b->x[t * h + n]);
        qdq(fault, a1, h);
        memset(out + t * h, 0, (size_t)h * 4);
        for (int j = 0; j < k; j++) {
            int e = b->ids[t * k + j];
            slot(fault, a1, w13 + e * 2 * i * h, w2 + e * h * i, h, i, b->weights[t * k + j], c3);
            for (int n = 0; n < h; n++) {
                out[t * h + n] += c3[n];
                if (fault == BF16_SUM)
                    out[t * h + n] = bf16((double)out[t * h + n]);
            }
        }
        for (int n = 0; n < h; n++)
            out[t * h + n] = bf16((double)out[t * h + n]);
    }
}

static double nrmse(const float *y, const uint16_t *r, int n)
{
    double e = 0, s = 0;

    for (int k = 0; k < n; k++) {
        double v = (double)moert_bf16_to_float(r[k]);
        e += ((double)y[k] - v) * ((double)y[k] - v);
        s += v * v;
    }
    return sqrt(e / s);
}

Test(cpu_reference, rounding_points)
{
    struct lutb l = make_lutb(512, 256, 4, 4, MOERT_BF16);
    struct batch b = make_batch(&l, 12);
    float *w13 = rig_memory(&rig, 4 * 512 * 512 * 4, 0), *w2 = rig_memory(&rig, 4 * 512 * 256 * 4, 0);
    float *y = rig_memory(&rig, 12 * 512 * 4, 0);

    RIG_OK(&rig, moert_lutb_decode(l.p13, l.b13, 4 * 512, 512, w13, MOERT_F32, &rig.err));
    RIG_OK(&rig, moert_lutb_decode(l.p2, l.b2, 4 * 512, 256, w2, MOERT_F32, &rig.err));
    RIG_OK(&rig, rig.backend->ops->prepare(l.layer, &l.w, &rig.err));
    run_batch(&l, &b);
    for (int f = 0; f < FAULTS; f++) {
        double d;
        simulate((enum fault)f, &l, &b, w13, w2, y);
        d = nrmse(y, b.out, 12 * 512);
        if (getenv("MOERT_TEST_VERBOSE"))
            fprintf(stderr, "# %-26s nrmse %.3g\n", fault_names[f], d);
        if (f == NONE)
            cr_expect(d <= 1e-5, "the plain form differs by %.3g", d);
        else
            cr_expect(d > 1e-3, "%s: %.3g passes the gate", fault_names[f], d);
    }
    rig.backend->ops->release(l.layer);
}
