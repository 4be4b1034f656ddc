/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/cpu_layers.h: layers for the tests of the CPU driver: plain weights over arrays of the test, and LUT-B
 * weights and batches from a fixed random sequence. `rig` is the test's one driver. */
#ifndef MOERT_TESTS_CPU_LAYERS_H
#define MOERT_TESTS_CPU_LAYERS_H

#include "tests/unit/cpu_rig.h"

static struct rig rig;

static inline void setup(void)
{
    rig_open(&rig, "0");
}

static inline void teardown(void)
{
    rig_close(&rig);
}

static inline moert_dtype_t plain_dtype(moert_scheme_t scheme)
{
    return scheme == MOERT_SCHEME_F32 ? MOERT_F32 : scheme == MOERT_SCHEME_F16 ? MOERT_F16 : MOERT_BF16;
}

static inline int rows13(const struct moert_layer_config *c)
{
    return (int)c->intermediate_size * (moert_activation_is_gated(c->activation) ? 2 : 1);
}

/* Views of dense weights of all experts of a plain scheme. */
static inline struct moert_expert_weights plain_weights(const struct moert_layer_config *c, const void *w13,
                                                        const void *w2)
{
    struct moert_expert_weights w = {.size = sizeof(w), .count = c->num_local_experts};
    int e = (int)c->num_local_experts, h = (int)c->hidden_size;

    w.w13 = rig_tensor(&rig, w13, plain_dtype(c->weight_scheme), 3, e, rows13(c), h);
    w.w2 = rig_tensor(&rig, w2, plain_dtype(c->weight_scheme), 3, e, h, (int)c->intermediate_size);
    return w;
}

static inline moert_drv_layer *plain_layer(const struct moert_layer_config *c, const void *w13, const void *w2)
{
    moert_drv_layer *layer = rig_layer(&rig, c);
    struct moert_expert_weights w = plain_weights(c, w13, w2);

    RIG_OK(&rig, rig.backend->ops->prepare(layer, &w, &rig.err));
    return layer;
}

static inline struct moert_run_args arguments(const struct moert_layer_config *c, int tokens, const void *x,
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

/* ---- layers of random weights ---- */

static uint64_t rng_state = 1;

static inline uint32_t rng(void)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)(rng_state >> 16);
}

static inline float rng_normal(void)
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

static inline void fill_lutb(uint8_t *packed, uint8_t *codebook, size_t tiles)
{
    static const uint8_t levels[8] = {0x9c, 0x94, 0x8e, 0x86, 0x05, 0x0d, 0x15, 0x1b};

    for (size_t i = 0; i < tiles * 192; i++)
        packed[i] = (uint8_t)rng();
    for (size_t i = 0; i < tiles * 8; i++)
        codebook[i] = (uint8_t)(levels[i % 8] + rng() % 2);
}

static inline struct lutb make_lutb(int h, int i, int e, int k, moert_dtype_t d)
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

static inline struct batch make_batch(const struct lutb *l, int tokens)
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

static inline void run_batch(const struct lutb *l, struct batch *b)
{
    struct moert_run_args a = arguments(&l->c, b->tokens, b->x, b->ids, b->weights, NULL, b->out);

    RIG_OK(&rig, rig_run(&rig, l->layer, &l->c, &a));
}

#endif
