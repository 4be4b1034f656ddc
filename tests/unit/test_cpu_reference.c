/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/test_cpu_reference.c: cpu.reference through the driver ABI: the hand example and activation values of
 * layer.md, the layer cases of routing.md 6, the guarantees of layer.md 8, the rounding points of layer.md 3. */
#include "config.h"

#include "tests/unit/cpu_rig.h"

#include <math.h>
#include <moert/lutb.h>
#include <moert/mxfp8.h>
#include <unistd.h>
#include <sys/wait.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

/* ---- small layers ---- */

static struct rig rig;

static void setup(void)
{
    rig_open(&rig, "0");
}

static void teardown(void)
{
    rig_close(&rig);
}

TestSuite(cpu_reference, .init = setup, .fini = teardown);

static moert_dtype_t plain_dtype(moert_scheme_t scheme)
{
    return scheme == MOERT_SCHEME_F32 ? MOERT_F32 : scheme == MOERT_SCHEME_F16 ? MOERT_F16 : MOERT_BF16;
}

static int rows13(const struct moert_layer_config *c)
{
    return (int)c->intermediate_size * (moert_activation_is_gated(c->activation) ? 2 : 1);
}

/* Views of dense weights of all experts of a plain scheme. */
static struct moert_expert_weights plain_weights(const struct moert_layer_config *c, const void *w13, const void *w2)
{
    struct moert_expert_weights w = {.size = sizeof(w), .count = c->num_local_experts};
    int e = (int)c->num_local_experts, h = (int)c->hidden_size;

    w.w13 = rig_tensor(&rig, w13, plain_dtype(c->weight_scheme), 3, e, rows13(c), h);
    w.w2 = rig_tensor(&rig, w2, plain_dtype(c->weight_scheme), 3, e, h, (int)c->intermediate_size);
    return w;
}

static moert_drv_layer *plain_layer(const struct moert_layer_config *c, const void *w13, const void *w2)
{
    moert_drv_layer *layer = rig_layer(&rig, c);
    struct moert_expert_weights w = plain_weights(c, w13, w2);

    RIG_OK(&rig, rig.backend->ops->prepare(layer, &w, &rig.err));
    return layer;
}

static struct moert_run_args arguments(const struct moert_layer_config *c, int tokens, const void *x,
                                       const int32_t *ids, const float *weights, const int32_t *map, void *out)
{
    struct moert_run_args a = {.size = sizeof(a), .tokens = (uint64_t)tokens, .output_scale = 1};
    int k = (int)(c->top_k + c->num_fused_shared), h = (int)c->hidden_size;

    a.x = rig_tensor(&rig, x, c->dtype, 2, tokens, h);
    a.ids = rig_tensor(&rig, ids, MOERT_I32, 2, tokens, k);
    a.weights = rig_tensor(&rig, weights, MOERT_F32, 2, tokens, k);
    if (map)
        a.expert_map = rig_tensor(&rig, map, MOERT_I32, 1, (int)(c->num_experts + c->num_fused_shared));
    a.output = rig_tensor(&rig, out, c->dtype, 2, tokens, h);
    return a;
}

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

/* ---- layers of random weights ---- */

static uint64_t rng_state = 1;

static uint32_t rng(void)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)(rng_state >> 16);
}

static float rng_normal(void)
{
    double s = 0;

    for (int i = 0; i < 12; i++)
        s += rng() / 4294967296.0;
    return (float)(s - 6);
}

/* lut-b weights: random indices, sorted codebooks of magnitudes around 0.04. */
struct lutb {
    struct moert_layer_config c;
    uint8_t *p13, *b13, *p2, *b2;
    moert_drv_layer *layer;
    struct moert_expert_weights w;
};

static void fill_lutb(uint8_t *packed, uint8_t *codebook, size_t tiles)
{
    static const uint8_t levels[8] = {0x9c, 0x94, 0x8e, 0x86, 0x05, 0x0d, 0x15, 0x1b};

    for (size_t i = 0; i < tiles * 192; i++)
        packed[i] = (uint8_t)rng();
    for (size_t i = 0; i < tiles * 8; i++)
        codebook[i] = (uint8_t)(levels[i % 8] + rng() % 2);
}

static struct lutb make_lutb(int h, int i, int e, int k, moert_dtype_t d)
{
    struct lutb l = {
        .c = rig_config((uint64_t)h, (uint64_t)i, (uint32_t)e, (uint32_t)k, d, MOERT_SCHEME_LUT_B, MOERT_SCHEME_MXFP8)};
    size_t t13 = (size_t)(e * 2 * i / 8 * (h / 64)), t2 = (size_t)(e * h / 8 * (i / 64));

    rng_state = 20240817;
    l.p13 = rig_memory(&rig, t13 * 192, 0);
    l.b13 = rig_memory(&rig, t13 * 8, 0);
    l.p2 = rig_memory(&rig, t2 * 192, 0);
    l.b2 = rig_memory(&rig, t2 * 8, 0);
    fill_lutb(l.p13, l.b13, t13);
    fill_lutb(l.p2, l.b2, t2);
    l.w = (struct moert_expert_weights){.size = sizeof(l.w), .count = (uint32_t)e};
    l.w.w13 = rig_tensor(&rig, l.p13, MOERT_U8, 4, e, 2 * i / 8, h / 64, 192);
    l.w.w13_scale = rig_tensor(&rig, l.b13, MOERT_F8_E4M3, 4, e, 2 * i / 8, h / 64, 8);
    l.w.w2 = rig_tensor(&rig, l.p2, MOERT_U8, 4, e, h / 8, i / 64, 192);
    l.w.w2_scale = rig_tensor(&rig, l.b2, MOERT_F8_E4M3, 4, e, h / 8, i / 64, 8);
    l.layer = rig_layer(&rig, &l.c);
    return l;
}

struct batch {
    int tokens;
    uint16_t *x; /* bf16 */
    int32_t *ids;
    float *weights;
    uint16_t *out;
};

static struct batch make_batch(const struct lutb *l, int tokens)
{
    size_t n = (size_t)tokens * l->c.hidden_size, r = (size_t)tokens * l->c.top_k;
    struct batch b = {.tokens = tokens};

    b.x = rig_memory(&rig, n * 2, 0);
    b.out = rig_memory(&rig, n * 2, 0xff);
    b.ids = rig_memory(&rig, r * 4, 0);
    b.weights = rig_memory(&rig, r * 4, 0);
    for (size_t i = 0; i < n; i++)
        b.x[i] = moert_bf16_from_float(rng_normal());
    for (size_t i = 0; i < r; i++) {
        b.ids[i] = (int32_t)(rng() % l->c.num_experts);
        b.weights[i] = (float)(rng() % 1000 + 1) / 2000;
    }
    return b;
}

static void run_batch(const struct lutb *l, struct batch *b)
{
    struct moert_run_args a = arguments(&l->c, b->tokens, b->x, b->ids, b->weights, NULL, b->out);

    RIG_OK(&rig, rig_run(&rig, l->layer, &l->c, &a));
}

/* Same bits for 1, 2, 3 threads; for each token alone and in the batch; for the second run; inputs untouched. */
Test(cpu_reference, deterministic)
{
    static const char *const counts[] = {"1", "2", "3"};
    static uint16_t first[130 * 128], x[130 * 128];
    size_t bytes = sizeof(first);

    for (int i = 0; i < 3; i++) {
        struct lutb l;
        struct batch b;
        rig_close(&rig);
        rig_open(&rig, counts[i]);
        l = make_lutb(128, 64, 8, 3, MOERT_BF16);
        b = make_batch(&l, 130);
        RIG_OK(&rig, rig.backend->ops->prepare(l.layer, &l.w, &rig.err));
        memcpy(x, b.x, bytes);
        run_batch(&l, &b);
        cr_assert_arr_eq(b.x, x, bytes);
        if (!i)
            memcpy(first, b.out, bytes);
        cr_assert_arr_eq(first, b.out, bytes, "%s threads", counts[i]);
        b.out = rig_memory(&rig, bytes, 0xff);
        run_batch(&l, &b);
        cr_assert_arr_eq(first, b.out, bytes, "second run, %s threads", counts[i]);
        for (int t = 0; t < 130; t += 43) {
            struct batch one = {1, b.x + t * 128, b.ids + t * 3, b.weights + t * 3, rig_memory(&rig, 256, 0xff)};
            run_batch(&l, &one);
            cr_assert_arr_eq(first + t * 128, one.out, 256, "token %d alone", t);
        }
        rig.backend->ops->release(l.layer);
    }
}

/* x as codes and scales gives the bytes that x as values gives; a NaN code poisons its row. */
Test(cpu_reference, mxfp8_input)
{
    struct lutb l = make_lutb(128, 64, 4, 2, MOERT_BF16);
    struct batch b = make_batch(&l, 9);
    uint8_t *codes = rig_memory(&rig, 9 * 128, 0), *scales = rig_memory(&rig, 9 * 4, 0);
    uint16_t *expected = b.out, *out;
    struct moert_counters n = {.size = sizeof(n)};
    struct moert_run_args a;

    RIG_OK(&rig, rig.backend->ops->prepare(l.layer, &l.w, &rig.err));
    run_batch(&l, &b);
    RIG_OK(&rig, moert_mxfp8_quantize(b.x, MOERT_BF16, 9, 128, 0, NULL, codes, scales, NULL, &rig.err));
    out = rig_memory(&rig, 9 * 256, 0xff);
    a = arguments(&l.c, 9, b.x, b.ids, b.weights, NULL, out);
    a.x = rig_tensor(&rig, codes, MOERT_F8_E4M3, 2, 9, 128);
    a.x_scale = rig_tensor(&rig, scales, MOERT_U8, 2, 9, 4);
    RIG_OK(&rig, rig_run(&rig, l.layer, &l.c, &a));
    cr_assert_arr_eq(expected, out, 9 * 256);
    codes[3 * 128 + 70] = 0x7f;
    RIG_OK(&rig, rig_run(&rig, l.layer, &l.c, &a));
    for (uint64_t i = 0; i < 9 * 128; i++)
        cr_assert_eq(isnan(rig_value(out, MOERT_BF16, i)) != 0, i / 128 == 3, "element %d", (int)i);
    RIG_OK(&rig, rig.backend->ops->counters(l.layer, &n, &rig.err));
    cr_assert_eq(n.poisoned_blocks, 1 + 2 * 2, "one block of x, two of each of two slots; got %d",
                 (int)n.poisoned_blocks);
    rig.backend->ops->release(l.layer);
}

/* Any strides and any offset of the tensors; here also unaligned ones. */
Test(cpu_reference, strides_and_offsets)
{
    struct lutb l = make_lutb(128, 64, 4, 2, MOERT_BF16);
    struct batch b = make_batch(&l, 7);
    uint8_t *x = rig_memory(&rig, 1 + 7 * 300 * 2, 0xff), *out = rig_memory(&rig, 3 + 7 * 200 * 2, 0x55);
    uint8_t *ids = rig_memory(&rig, 1 + 7 * 4 * 4, 0x11);
    struct moert_run_args a;

    RIG_OK(&rig, rig.backend->ops->prepare(l.layer, &l.w, &rig.err));
    run_batch(&l, &b);
    for (int t = 0; t < 7; t++) {
        for (int h = 0; h < 128; h++)
            memcpy(x + 1 + (t * 300 + 2 * h) * 2, &b.x[t * 128 + h], 2);
        for (int j = 0; j < 2; j++)
            memcpy(ids + 1 + (j * 7 + t) * 4, &b.ids[t * 2 + j], 4);
    }
    a = arguments(&l.c, 7, b.x, b.ids, b.weights, NULL, b.out);
    a.x.buffer = rig_buffer(&rig, x, 1 + 7 * 300 * 2);
    a.x.offset = 1;
    a.x.strides[0] = 300;
    a.x.strides[1] = 2;
    a.ids.buffer = rig_buffer(&rig, ids, 1 + 7 * 4 * 4);
    a.ids.offset = 1;
    a.ids.strides[0] = 1;
    a.ids.strides[1] = 7;
    a.output.buffer = rig_buffer(&rig, out, 3 + 7 * 200 * 2);
    a.output.offset = 3;
    a.output.strides[0] = 200;
    RIG_OK(&rig, rig_run(&rig, l.layer, &l.c, &a));
    for (int t = 0; t < 7; t++) {
        cr_assert_arr_eq(out + 3 + t * 400, b.out + t * 128, 256, "token %d", t);
        for (int i = 256; i < 400; i++)
            cr_assert_eq(out[3 + t * 400 + i], 0x55, "between rows");
    }
    a.output.strides[0] = 64;
    RIG_FAILS(&rig, rig_run(&rig, l.layer, &l.c, &a), MOERT_E_SHAPE, "strides");
    a.output.strides[0] = 250;
    RIG_FAILS(&rig, rig_run(&rig, l.layer, &l.c, &a), MOERT_E_VALUE, "range");
    rig.backend->ops->release(l.layer);
}

/* A caller's rounding mode and flush-to-zero change nothing and are given back. */
Test(cpu_reference, floating_point_state)
{
#if defined(__x86_64__)
    struct lutb l = make_lutb(128, 64, 4, 2, MOERT_BF16);
    struct batch b = make_batch(&l, 5);
    uint16_t *expected = b.out;
    unsigned int saved = _mm_getcsr(), changed = 0x1f80 | 0x8040 | 0x6000; /* FTZ, DAZ, toward zero */

    RIG_OK(&rig, rig.backend->ops->prepare(l.layer, &l.w, &rig.err));
    for (int i = 0; i < 5 * 128; i++) /* blocks of values that a flush would clear */
        b.x[i] = (uint16_t)(i % 3 ? 0x0001 + i : b.x[i]);
    run_batch(&l, &b);
    b.out = rig_memory(&rig, 5 * 256, 0xff);
    _mm_setcsr(changed);
    run_batch(&l, &b);
    cr_assert_eq(_mm_getcsr() & 0xffc0u, changed);
    _mm_setcsr(saved);
    cr_assert_arr_eq(expected, b.out, 5 * 256);
    rig.backend->ops->release(l.layer);
#else
    cr_skip("only x86-64 has MXCSR");
#endif
}

/* A forked child works, on one thread, with the same bits. */
Test(cpu_reference, forked_child)
{
    struct lutb l = make_lutb(128, 64, 4, 2, MOERT_BF16);
    struct batch b = make_batch(&l, 5);
    uint16_t expected[5 * 128];
    int status = -1;
    pid_t pid;

    RIG_OK(&rig, rig.backend->ops->prepare(l.layer, &l.w, &rig.err));
    run_batch(&l, &b);
    memcpy(expected, b.out, sizeof(expected));
    pid = fork();
    if (!pid) {
        struct moert_workspace want = {.size = sizeof(want)};
        struct moert_run_args a = arguments(&l.c, 5, b.x, b.ids, b.weights, NULL, b.out);
        memset(b.out, 0, sizeof(expected));
        if (rig.backend->ops->workspace(rig.backend, &rig.desc, &l.c, 5, &want, NULL))
            _exit(2);
        a.workspace = rig_buffer(&rig, aligned_alloc(256, (size_t)(want.bytes + 255) / 256 * 256), want.bytes);
        a.workspace_bytes = want.bytes;
        if (rig.backend->ops->run(l.layer, rig.queue, &a, NULL))
            _exit(3);
        _exit(memcmp(b.out, expected, sizeof(expected)) ? 4 : 0);
    }
    cr_assert_gt(pid, 0);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFEXITED(status) && !WEXITSTATUS(status), "child gave status %x", (unsigned)status);
    rig.backend->ops->release(l.layer);
}

/* ---- preparing, updating, export and import ---- */

static struct moert_expert_weights range(const struct lutb *l, uint32_t first, uint32_t count)
{
    struct moert_expert_weights w = l->w;
    struct moert_drv_tensor *const all[] = {&w.w13, &w.w13_scale, &w.w2, &w.w2_scale};

    for (int i = 0; i < 4; i++) {
        all[i]->offset += (uint64_t)first * (uint64_t)all[i]->strides[0];
        all[i]->shape[0] = count;
    }
    w.first = first;
    w.count = count;
    return w;
}

Test(cpu_reference, ranges_each_once)
{
    struct lutb l = make_lutb(128, 64, 4, 2, MOERT_BF16);
    struct batch b = make_batch(&l, 3);
    uint16_t *expected = b.out;
    struct moert_run_args a = arguments(&l.c, 3, b.x, b.ids, b.weights, NULL, b.out);
    struct moert_expert_weights w = range(&l, 3, 1);
    moert_drv_layer *other = l.layer;

    RIG_OK(&rig, rig.backend->ops->prepare(other, &w, &rig.err));
    w = range(&l, 2, 2);
    RIG_FAILS(&rig, rig.backend->ops->prepare(other, &w, &rig.err), MOERT_E_USAGE, "state");
    RIG_FAILS(&rig, rig_run(&rig, other, &l.c, &a), MOERT_E_USAGE, "state");
    w = range(&l, 0, 3); /* expert 2 was not taken by the refused range */
    RIG_OK(&rig, rig.backend->ops->prepare(other, &w, &rig.err));
    RIG_OK(&rig, rig_run(&rig, other, &l.c, &a));
    w = range(&l, 4, 1);
    RIG_FAILS(&rig, rig.backend->ops->prepare(other, &w, &rig.err), MOERT_E_SHAPE, "experts");
    l.layer = rig_layer(&rig, &l.c);
    RIG_OK(&rig, rig.backend->ops->prepare(l.layer, &l.w, &rig.err));
    b.out = rig_memory(&rig, 3 * 256, 0xff);
    run_batch(&l, &b);
    cr_assert_arr_eq(expected, b.out, 3 * 256);
    rig.backend->ops->release(l.layer);
    rig.backend->ops->release(other);
}

Test(cpu_reference, nan_codebook_is_refused)
{
    struct lutb l = make_lutb(128, 64, 4, 2, MOERT_BF16);
    uint64_t tiles = 64 * 2 / 8 * 2;
    uint8_t *entry = l.b13 + (2 * tiles + 5) * 8 + 3, saved = *entry;
    struct batch b = make_batch(&l, 3);
    struct moert_expert_weights w;

    *entry = 0xff;
    RIG_FAILS(&rig, rig.backend->ops->prepare(l.layer, &l.w, &rig.err), MOERT_E_VALUE, rig.err.code);
    cr_assert(strstr(rig.err.text, "expert 2, w13_codebook") && strstr(rig.err.text, "5") && strstr(rig.err.text, "3"),
              "%s", rig.err.text);
    *entry = saved;
    RIG_OK(&rig, rig.backend->ops->prepare(l.layer, &l.w, &rig.err));
    run_batch(&l, &b);
    /* A refused update leaves the live expert as it was; a good one replaces it. */
    *entry = 0x7f;
    w = range(&l, 2, 1);
    RIG_FAILS(&rig, rig.backend->ops->update(l.layer, rig.queue, &w, &rig.err), MOERT_E_VALUE, rig.err.code);
    {
        uint16_t *before = b.out;
        int differs = 0;
        b.out = rig_memory(&rig, 3 * 256, 0xff);
        run_batch(&l, &b);
        cr_assert_arr_eq(before, b.out, 3 * 256);
        for (int e = 0; e < 4; e++) {
            w = range(&l, (uint32_t)((e + 1) % 4), 1);
            w.first = (uint32_t)e;
            *entry = saved;
            RIG_OK(&rig, rig.backend->ops->update(l.layer, rig.queue, &w, &rig.err));
        }
        for (int i = 0; i < 6; i++)
            b.ids[i] = (b.ids[i] + 3) % 4; /* expert e now holds the weights of e + 1 */
        b.out = rig_memory(&rig, 3 * 256, 0xff);
        run_batch(&l, &b);
        differs = memcmp(before, b.out, 3 * 256) != 0;
        cr_assert_not(differs, "updated experts at moved ids give the same rows");
    }
    rig.backend->ops->release(l.layer);
}

Test(cpu_reference, export_import)
{
    struct lutb l = make_lutb(128, 64, 4, 2, MOERT_BF16);
    struct batch b = make_batch(&l, 3);
    struct moert_layout layout = {.size = sizeof(layout)}, wrong;
    moert_drv_layer *copy = rig_layer(&rig, &l.c);
    uint16_t *expected = b.out;
    uint8_t *bytes;

    RIG_OK(&rig, rig.backend->ops->layout(rig.backend, &rig.desc, &l.c, &layout, &rig.err));
    cr_assert_str_eq(layout.tag, "cpu.canonical.lut-b");
    cr_assert_eq(layout.version, 1);
    cr_assert_eq(layout.bytes, (uint64_t)4 * (3 * 64 * 128 * 25 / 64)); /* 3.125 bits; all parts are multiples of 64 */
    bytes = rig_memory(&rig, layout.bytes, 0);
    RIG_FAILS(&rig, rig.backend->ops->export_weights(l.layer, 0, 1, bytes, &rig.err), MOERT_E_USAGE, "state");
    RIG_OK(&rig, rig.backend->ops->prepare(l.layer, &l.w, &rig.err));
    run_batch(&l, &b);
    for (uint64_t at = 0; at < layout.bytes; at += 1000) {
        uint64_t n = layout.bytes - at < 1000 ? layout.bytes - at : 1000;
        RIG_OK(&rig, rig.backend->ops->export_weights(l.layer, at, n, bytes + at, &rig.err));
        RIG_OK(&rig, rig.backend->ops->import_weights(copy, &layout, at, n, bytes + at, &rig.err));
    }
    RIG_FAILS(&rig, rig.backend->ops->export_weights(l.layer, layout.bytes, 1, bytes, &rig.err), MOERT_E_VALUE,
              "range");
    RIG_FAILS(&rig, rig.backend->ops->import_weights(copy, &layout, 0, 1, bytes, &rig.err), MOERT_E_USAGE, "state");
    wrong = layout;
    wrong.version = 2;
    RIG_FAILS(&rig, rig.backend->ops->import_weights(copy, &wrong, 0, 1, bytes, &rig.err), MOERT_E_VALUE, "layout");
    rig.backend->ops->release(l.layer);
    l.layer = copy;
    b.out = rig_memory(&rig, 3 * 256, 0xff);
    run_batch(&l, &b);
    cr_assert_arr_eq(expected, b.out, 3 * 256);
    rig.backend->ops->release(copy);
}

/* ---- wrong calls ---- */

Test(cpu_reference, wrong_arguments)
{
    struct lutb l = make_lutb(128, 64, 4, 2, MOERT_BF16);
    struct batch b = make_batch(&l, 3);
    struct moert_run_args good = arguments(&l.c, 3, b.x, b.ids, b.weights, NULL, b.out), a;

    RIG_OK(&rig, rig.backend->ops->prepare(l.layer, &l.w, &rig.err));
    a = good;
    a.flags = 1u << 7;
    RIG_FAILS(&rig, rig_run(&rig, l.layer, &l.c, &a), MOERT_E_USAGE, "flag");
    a = good;
    a.x.dtype = MOERT_F16;
    RIG_FAILS(&rig, rig_run(&rig, l.layer, &l.c, &a), MOERT_E_DTYPE, "x-dtype");
    a = good;
    a.ids.shape[1] = 8;
    RIG_FAILS(&rig, rig_run(&rig, l.layer, &l.c, &a), MOERT_E_SHAPE, "ids-shape");
    a = good;
    a.weights.dtype = MOERT_BF16;
    RIG_FAILS(&rig, rig_run(&rig, l.layer, &l.c, &a), MOERT_E_DTYPE, "weights-dtype");
    cr_assert_str_eq(rig.err.text, "topk_weights is BF16, expected F32");
    a = good;
    a.output.offset = 2;
    RIG_FAILS(&rig, rig_run(&rig, l.layer, &l.c, &a), MOERT_E_VALUE, "range");
    a = good;
    a.x.offset = UINT64_MAX - 1;
    RIG_FAILS(&rig, rig_run(&rig, l.layer, &l.c, &a), MOERT_E_VALUE, "range");
    a = good;
    a.x.strides[0] = INT64_MIN;
    RIG_FAILS(&rig, rig_run(&rig, l.layer, &l.c, &a), MOERT_E_VALUE, "range");
    a = good;
    a.logits = a.weights;
    RIG_FAILS(&rig, rig_run(&rig, l.layer, &l.c, &a), MOERT_E_USAGE, "flag");
    a = good;
    a.workspace = rig_buffer(&rig, b.x, 256);
    a.workspace_bytes = 256;
    RIG_FAILS(&rig, rig.backend->ops->run(l.layer, rig.queue, &a, &rig.err), MOERT_E_NOMEM, "workspace");
    a.size = 16;
    RIG_FAILS(&rig, rig.backend->ops->run(l.layer, rig.queue, &a, &rig.err), MOERT_E_USAGE, "struct-size");
    cr_assert_eq(rig.backend->ops->run(l.layer, rig.queue, &a, NULL), MOERT_E_USAGE, "err may be NULL");
    RIG_OK(&rig, rig_run(&rig, l.layer, &l.c, &good)); /* a failed run leaves the layer usable */
    rig.backend->ops->release(l.layer);
}

Test(cpu_reference, wrong_layers)
{
    struct moert_layer_config good = rig_config(128, 64, 4, 2, MOERT_BF16, MOERT_SCHEME_LUT_B, MOERT_SCHEME_MXFP8), c;
    moert_drv_layer *layer = NULL;

    c = good;
    c.hidden_size = 96;
    RIG_FAILS(&rig, rig.backend->ops->create(rig.device, rig.backend, &c, &layer, &rig.err), MOERT_E_SHAPE, "multiple");
    c = good;
    c.weight_scheme = 77;
    RIG_FAILS(&rig, rig.backend->ops->create(rig.device, rig.backend, &c, &layer, &rig.err), MOERT_E_VALUE, "scheme");
    c = good;
    c.hidden_size = c.intermediate_size = UINT64_C(1) << 40;
    RIG_FAILS(&rig, rig.backend->ops->create(rig.device, rig.backend, &c, &layer, &rig.err), MOERT_E_TOO_LARGE,
              "too-large");
    c = good;
    c.hidden_size = 0;
    RIG_FAILS(&rig, rig.backend->ops->create(rig.device, rig.backend, &c, &layer, &rig.err), MOERT_E_VALUE, "size");
    c = good;
    c.hidden_size = UINT64_C(1) << 26;
    c.intermediate_size = UINT64_C(1) << 26;
    RIG_FAILS(&rig, rig.backend->ops->create(rig.device, rig.backend, &c, &layer, &rig.err), MOERT_E_NOMEM,
              "host-memory");
    c = good;
    c.apply_router_weight_on_input = 1;
    RIG_FAILS(&rig, rig.backend->ops->create(rig.device, rig.backend, &c, &layer, &rig.err), MOERT_E_VALUE,
              "input-weight");
    cr_assert_null(layer);
}

/* The workspace is monotone in T and refuses what 31 bits of slots cannot count. */
Test(cpu_reference, workspace_sizes)
{
    struct moert_layer_config c = rig_config(2048, 768, 128, 8, MOERT_BF16, MOERT_SCHEME_LUT_B, MOERT_SCHEME_MXFP8);
    struct moert_workspace w = {.size = sizeof(w)};
    uint64_t last = 0;

    for (uint64_t t = 0; t < 300; t++) {
        RIG_OK(&rig, rig.backend->ops->workspace(rig.backend, &rig.desc, &c, t, &w, &rig.err));
        cr_assert_geq(w.bytes, last);
        last = w.bytes;
    }
    RIG_FAILS(&rig, rig.backend->ops->workspace(rig.backend, &rig.desc, &c, UINT64_C(1) << 28, &w, &rig.err),
              MOERT_E_TOO_LARGE, "too-large");
    RIG_FAILS(&rig, rig.backend->ops->workspace(rig.backend, &rig.desc, &c, UINT64_MAX, &w, &rig.err),
              MOERT_E_TOO_LARGE, "too-large");
}

struct tally {
    int passed, failed;
    char code[32];
};

static void tally(void *ctx, const struct moert_check *check)
{
    struct tally *t = ctx;

    if (check->verdict == MOERT_PASS) {
        t->passed++;
    } else {
        t->failed++;
        snprintf(t->code, sizeof(t->code), "%s", check->code);
    }
}

/* Every pair of layer.md 3 with every activation and d is served; sizes that a format cannot hold are not. */
Test(cpu_reference, supports)
{
    static const moert_scheme_t weights[] = {MOERT_SCHEME_LUT_B, MOERT_SCHEME_MXFP8, MOERT_SCHEME_BF16,
                                             MOERT_SCHEME_F16, MOERT_SCHEME_F32};
    static const moert_dtype_t dtypes[] = {MOERT_BF16, MOERT_F16, MOERT_F32};

    for (int i = 0; i < 5 * 2 * 3; i++)
        for (uint32_t kind = 0; kind < MOERT_ACT_COUNT; kind++) {
            struct moert_layer_config c = rig_config(128, 64, 4, 2, dtypes[i / 10], weights[i % 5],
                                                     i / 5 % 2 ? MOERT_SCHEME_MXFP8 : MOERT_SCHEME_NONE);
            struct tally t = {0};
            struct moert_check_sink sink = {.size = sizeof(sink), .ctx = &t, .report = tally};
            c.activation = kind;
            rig.backend->ops->supports(rig.backend, &rig.desc, &c, &sink);
            cr_assert(t.passed > 8 && !t.failed, "%d checks passed, %s failed", t.passed, t.code);
        }
    {
        struct moert_layer_config c = rig_config(96, 64, 4, 2, MOERT_BF16, MOERT_SCHEME_LUT_B, MOERT_SCHEME_MXFP8);
        struct tally t = {0};
        struct moert_check_sink sink = {.size = sizeof(sink), .ctx = &t, .report = tally};
        rig.backend->ops->supports(rig.backend, &rig.desc, &c, &sink);
        cr_assert_eq(t.failed, 1);
        cr_assert_str_eq(t.code, "hidden-multiple");
        c.weight_scheme = MOERT_SCHEME_MXFP8;
        t = (struct tally){0};
        rig.backend->ops->supports(rig.backend, &rig.desc, &c, &sink);
        cr_assert_eq(t.failed, 0);
    }
}

/* ---- device ---- */

Test(cpu_reference, device)
{
    const struct moert_device_ops *ops = mcpu_driver.device;
    moert_drv_buffer *a, *b;
    uint8_t bytes[16] = {1, 2, 3, 4}, back[16];
    struct moert_memory_info info = {.size = sizeof(info)};
    uint32_t done = 0;

    cr_assert_eq(rig.desc.kind, MOERT_DEVICE_CPU);
    cr_assert_geq(rig.desc.compute_units, 1);
    cr_assert_gt(rig.desc.memory_total, 0);
    cr_assert(rig.desc.name[0] && rig.desc.arch[0]);
    RIG_OK(&rig, ops->buffer_alloc(rig.device, MOERT_MEMORY_DEVICE, 16, 4096, &a, &rig.err));
    RIG_OK(&rig, ops->buffer_alloc(rig.device, MOERT_MEMORY_HOST, 0, 0, &b, &rig.err));
    RIG_OK(&rig, ops->buffer_info(rig.device, a, &info, &rig.err));
    cr_assert_eq((uintptr_t)info.host % 4096, 0);
    cr_assert_eq(info.bytes, 16);
    RIG_OK(&rig, ops->copy_in(rig.queue, a, 0, bytes, 16, &rig.err));
    RIG_OK(&rig, ops->copy(rig.queue, a, 8, a, 0, 4, &rig.err));
    RIG_OK(&rig, ops->fill(rig.queue, a, 15, 0xaa, 1, &rig.err));
    RIG_OK(&rig, ops->copy_out(rig.queue, back, a, 0, 16, &rig.err));
    cr_assert(back[8] == 1 && back[11] == 4 && back[12] == 0 && back[15] == 0xaa);
    RIG_OK(&rig, ops->fill(rig.queue, b, 0, 1, 0, &rig.err));
    cr_assert_eq(ops->queue_last(rig.queue), 5);
    RIG_OK(&rig, ops->queue_query(rig.queue, 5, &done, &rig.err));
    cr_assert_eq(done, 1);
    RIG_FAILS(&rig, ops->queue_wait(rig.queue, 6, 0, NULL, &rig.err), MOERT_E_VALUE, "sequence");
    RIG_FAILS(&rig, ops->copy_in(rig.queue, a, 9, bytes, 8, &rig.err), MOERT_E_VALUE, "range");
    RIG_FAILS(&rig, ops->fill(rig.queue, a, UINT64_MAX, 0, 2, &rig.err), MOERT_E_VALUE, "range");
    RIG_FAILS(&rig, ops->copy_out(rig.queue, back, b, 0, 1, &rig.err), MOERT_E_VALUE, "range");
    RIG_FAILS(&rig, ops->buffer_alloc(rig.device, MOERT_MEMORY_DEVICE, UINT64_MAX, 0, &b, &rig.err), MOERT_E_TOO_LARGE,
              "too-large");
    RIG_FAILS(&rig, ops->buffer_alloc(rig.device, MOERT_MEMORY_DEVICE, UINT64_C(1) << 60, 0, &b, &rig.err),
              MOERT_E_NOMEM, "host-memory");
    ops->buffer_free(rig.device, a);
    ops->buffer_free(rig.device, b);
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
