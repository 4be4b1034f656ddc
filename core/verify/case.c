/* core/verify/case.c: the table of layer cases, and their weights and batches from a seed. */
#include "config.h"

#include "core/verify/case.h"
#include "core/base/checked.h"
#include "core/base/error.h"

#include <moert/activation.h>
#include <moert/float8.h>
#include <moert/lutb.h>
#include <moert/mxfp8.h>
#include <moert/routing.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LUTB MOERT_SCHEME_LUT_B
#define MX   MOERT_SCHEME_MXFP8
#define NONE MOERT_SCHEME_NONE
#define BF   MOERT_SCHEME_BF16
#define HALF MOERT_SCHEME_F16
#define FP32 MOERT_SCHEME_F32
#define GU   MOERT_W13_GATE_UP
#define UG   MOERT_W13_UP_GATE
#define IL   MOERT_W13_INTERLEAVED

/* Each row is one edge of layer.md; H, I, E, K, T are small but not all equal, and not all multiples of 128. */
const struct moert_case moert_cases[] = {
    /* name, weights, activations, d, activation, order, H, I, E, K, T, flags, quick */
    {"lutb-t1", LUTB, MX, MOERT_BF16, MOERT_ACT_SILU, GU, 128, 128, 4, 1, 1, 0, 1},
    {"lutb-t130", LUTB, MX, MOERT_BF16, MOERT_ACT_SILU, GU, 256, 192, 8, 4, 130, CASE_INVALID_IDS | CASE_EMPTY_EXPERT,
     1},
    {"lutb-t9-wide", LUTB, MX, MOERT_BF16, MOERT_ACT_SILU, GU, 128, 64, 4, 2, 9, CASE_WIDE, 1},
    {"lutb-input-weight", LUTB, MX, MOERT_BF16, MOERT_ACT_SILU, GU, 128, 128, 4, 1, 33, CASE_INPUT_WEIGHT, 1},
    {"lutb-map", LUTB, MX, MOERT_BF16, MOERT_ACT_SILU, GU, 192, 64, 8, 2, 65, CASE_MAP | CASE_INVALID_IDS, 1},
    {"lutb-swigluoai", LUTB, MX, MOERT_BF16, MOERT_ACT_SWIGLUOAI, IL, 128, 128, 4, 2, 64, CASE_BIAS, 0},
    {"lutb-up-gate", LUTB, MX, MOERT_BF16, MOERT_ACT_SILU, UG, 128, 128, 4, 2, 33, 0, 0},
    {"lutb-f16", LUTB, MX, MOERT_F16, MOERT_ACT_GELU_TANH, GU, 128, 64, 4, 2, 33, 0, 0},
    {"lutb-f32", LUTB, MX, MOERT_F32, MOERT_ACT_SILU, GU, 128, 64, 4, 2, 33, 0, 0},
    {"lutb-plain-input", LUTB, NONE, MOERT_BF16, MOERT_ACT_SILU, GU, 128, 64, 4, 2, 33, 0, 0},
    {"lutb-relu2-no-mul", LUTB, MX, MOERT_BF16, MOERT_ACT_RELU2_NO_MUL, GU, 128, 64, 8, 2, 33, 0, 0},
    {"lutb-skewed", LUTB, MX, MOERT_BF16, MOERT_ACT_SILU, GU, 256, 128, 16, 2, 300, CASE_SKEWED, 0},
    {"lutb-repeated", LUTB, MX, MOERT_BF16, MOERT_ACT_SILU, GU, 128, 64, 4, 2, 17, CASE_REPEATED_IDS, 0},
    {"lutb-unreduced", LUTB, MX, MOERT_BF16, MOERT_ACT_SILU, GU, 128, 64, 4, 2, 17, CASE_UNREDUCED | CASE_INVALID_IDS,
     0},
    {"lutb-mxfp8-input", LUTB, MX, MOERT_BF16, MOERT_ACT_SILU, GU, 128, 64, 4, 2, 17, CASE_MXFP8_INPUT, 0},
    {"lutb-device", LUTB, MX, MOERT_BF16, MOERT_ACT_SILU, GU, 128, 64, 4, 2, 17, CASE_DEVICE, 0},
    {"lutb-logits", LUTB, MX, MOERT_BF16, MOERT_ACT_SILU, GU, 128, 64, 8, 2, 33, CASE_LOGITS, 0},
    {"mxfp8-t1", MX, MX, MOERT_BF16, MOERT_ACT_SILU, GU, 128, 96, 4, 2, 1, 0, 1},
    {"mxfp8-t130", MX, MX, MOERT_BF16, MOERT_ACT_SILU, GU, 288, 160, 8, 4, 130, CASE_INVALID_IDS | CASE_EMPTY_EXPERT,
     1},
    {"mxfp8-wide", MX, MX, MOERT_BF16, MOERT_ACT_SILU, GU, 96, 32, 4, 2, 9, CASE_WIDE, 1},
    {"mxfp8-input-weight", MX, MX, MOERT_BF16, MOERT_ACT_SILU, GU, 64, 32, 4, 1, 130, CASE_INPUT_WEIGHT, 1},
    {"mxfp8-map", MX, MX, MOERT_BF16, MOERT_ACT_SILU, GU, 128, 64, 8, 2, 65, CASE_MAP, 0},
    {"mxfp8-swigluoai", MX, MX, MOERT_BF16, MOERT_ACT_SWIGLUOAI, IL, 128, 64, 4, 2, 64, CASE_BIAS, 0},
    {"mxfp8-swiglustep", MX, MX, MOERT_BF16, MOERT_ACT_SWIGLUSTEP, GU, 128, 64, 4, 2, 64, 0, 0},
    {"mxfp8-gelu", MX, MX, MOERT_BF16, MOERT_ACT_GELU, GU, 128, 64, 4, 2, 64, 0, 0},
    {"mxfp8-relu2", MX, MX, MOERT_BF16, MOERT_ACT_RELU2, GU, 128, 64, 4, 2, 64, 0, 0},
    {"mxfp8-f16", MX, MX, MOERT_F16, MOERT_ACT_SILU, GU, 128, 64, 4, 2, 33, 0, 0},
    {"mxfp8-f32", MX, MX, MOERT_F32, MOERT_ACT_SILU, GU, 128, 64, 4, 2, 33, 0, 0},
    {"mxfp8-plain-input", MX, NONE, MOERT_BF16, MOERT_ACT_SILU, GU, 128, 64, 4, 2, 64, 0, 0},
    {"mxfp8-unreduced", MX, MX, MOERT_BF16, MOERT_ACT_SILU, GU, 64, 32, 4, 2, 17, CASE_UNREDUCED | CASE_INVALID_IDS, 0},
    {"mxfp8-mxfp8-input", MX, MX, MOERT_BF16, MOERT_ACT_SILU, GU, 64, 32, 4, 2, 17, CASE_MXFP8_INPUT, 0},
    {"mxfp8-device", MX, MX, MOERT_BF16, MOERT_ACT_SILU, GU, 64, 32, 4, 2, 17, CASE_DEVICE, 0},
    {"bf16-t1", BF, NONE, MOERT_BF16, MOERT_ACT_SILU, GU, 72, 40, 4, 2, 1, 0, 1},
    {"bf16-t130", BF, NONE, MOERT_BF16, MOERT_ACT_SILU, GU, 200, 104, 8, 2, 130, CASE_INVALID_IDS | CASE_EMPTY_EXPERT,
     1},
    {"bf16-odd", BF, NONE, MOERT_BF16, MOERT_ACT_SILU, GU, 37, 11, 3, 2, 19, 0, 0},
    {"bf16-bias", BF, NONE, MOERT_BF16, MOERT_ACT_SWIGLUOAI, IL, 64, 32, 4, 2, 64, CASE_BIAS, 0},
    {"bf16-input-weight", BF, NONE, MOERT_BF16, MOERT_ACT_SILU, GU, 64, 32, 4, 1, 64, CASE_INPUT_WEIGHT, 0},
    {"bf16-gelu-no-mul", BF, NONE, MOERT_BF16, MOERT_ACT_GELU_NO_MUL, GU, 64, 32, 4, 2, 64, 0, 0},
    {"bf16-silu-no-mul", BF, NONE, MOERT_BF16, MOERT_ACT_SILU_NO_MUL, GU, 64, 32, 4, 2, 64, 0, 0},
    {"bf16-map", BF, NONE, MOERT_BF16, MOERT_ACT_SILU, GU, 64, 32, 8, 2, 65, CASE_MAP | CASE_INVALID_IDS, 0},
    {"bf16-f32", BF, NONE, MOERT_F32, MOERT_ACT_SILU, GU, 64, 32, 4, 2, 64, 0, 0},
    {"bf16-mxfp8", BF, MX, MOERT_BF16, MOERT_ACT_SILU, GU, 64, 32, 4, 2, 64, 0, 0},
    {"f16", HALF, NONE, MOERT_F16, MOERT_ACT_SILU, GU, 64, 32, 4, 2, 64, 0, 0},
    {"f32", FP32, NONE, MOERT_F32, MOERT_ACT_SILU, GU, 64, 32, 4, 2, 64, 0, 0},
};
const uint32_t moert_case_count = sizeof(moert_cases) / sizeof(*moert_cases);

uint64_t moert_case_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u); /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Sum of four uniform draws, variance 1. */
double moert_case_gauss(uint64_t *state)
{
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (double)(moert_case_random(state) >> 11) * 0x1p-53 - 0.5;
    return sum * 1.7320508075688772;
}

/* Memory that lives as long as the case. */
static void *take(struct moert_case_data *d, uint64_t count, uint64_t size)
{
    void **blocks, *p;

    blocks = realloc(d->blocks, (d->block_count + 1) * sizeof(*blocks));
    if (!blocks)
        return NULL;
    d->blocks = blocks;
    p = calloc(count ? count : 1, size);
    if (p)
        d->blocks[d->block_count++] = p;
    return p;
}

void moert_case_free(struct moert_case_data *d)
{
    for (uint32_t i = 0; i < d->block_count; i++)
        free(d->blocks[i]);
    free(d->blocks);
    *d = (struct moert_case_data){0};
}

static void describe(struct moert_case_data *d)
{
    const struct moert_case *c = d->c;
    struct moert_layer_config *l = &d->config;

    moert_layer_config_init(l);
    l->hidden_size = c->hidden;
    l->intermediate_size = c->intermediate;
    l->num_experts = c->experts;
    l->top_k = c->top_k;
    l->dtype = c->dtype;
    l->weight_scheme = c->weight;
    l->activation_scheme = c->activation_scheme;
    l->activation = c->activation;
    l->w13_order = c->order;
    l->has_bias = !!(c->flags & CASE_BIAS);
    l->apply_router_weight_on_input = !!(c->flags & CASE_INPUT_WEIGHT);
    l->max_tokens = c->tokens > 1 ? c->tokens : 1;
    if (c->flags & CASE_LOGITS) {
        l->router.kind = MOERT_ROUTER_SOFTMAX;
        l->router.renormalize = 1;
    }
}

/* Experts of odd number live elsewhere; local numbers run backwards, so that map and identity differ. */
static int make_map(struct moert_case_data *d)
{
    uint32_t local = (d->c->experts + 1) / 2;

    if (!(d->c->flags & CASE_MAP))
        return 1;
    d->map = take(d, d->c->experts, sizeof(*d->map));
    if (!d->map)
        return 0;
    for (uint32_t e = 0; e < d->c->experts; e++)
        d->map[e] = e % 2 ? -1 : (int32_t)(local - 1 - e / 2);
    d->config.num_local_experts = local;
    d->config.expert_map = d->map;
    d->config.expert_map_length = d->c->experts;
    return 1;
}

/* One weight tensor [rows,cols] over all experts, in the case's scheme, standard deviation sigma. */
static moert_status_t make_weight(struct moert_case_data *d, uint64_t rows, uint64_t cols, double sigma, uint64_t *rng,
                                  void **ret, uint64_t *ret_bytes, void **ret_scale, uint64_t *ret_scale_bytes,
                                  double *values, struct moert_error *err)
{
    uint64_t n = rows * cols, tiles = n / MOERT_LUTB_TILE;
    moert_scheme_t scheme = d->c->weight;
    moert_dtype_t plain = scheme == BF ? MOERT_BF16 : scheme == HALF ? MOERT_F16 : MOERT_F32;
    moert_status_t status = MOERT_OK;
    float *f = take(d, n, sizeof(*f));

    if (!f)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for a test layer");
    for (uint64_t i = 0; i < n; i++)
        f[i] = (float)(moert_case_gauss(rng) * sigma);
    *ret_bytes = scheme == LUTB ? tiles * MOERT_LUTB_PACKED : scheme == MX ? n : n * moert_dtype_size(plain);
    *ret_scale_bytes = scheme == LUTB ? tiles * MOERT_LUTB_LEVELS : scheme == MX ? n / 32 : 0;
    *ret = take(d, *ret_bytes, 1);
    *ret_scale = take(d, *ret_scale_bytes, 1);
    if (!*ret || !*ret_scale)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for a test layer");
    if (scheme == LUTB) {
        uint8_t *codes = *ret_scale;
        for (uint64_t i = 0; i < *ret_bytes; i++)
            ((uint8_t *)*ret)[i] = (uint8_t)moert_case_random(rng);
        for (uint64_t i = 0; i < tiles * 8; i++) /* any order, duplicates: the stored order counts */
            codes[i] = moert_e4m3_encode((float)(moert_case_gauss(rng) * sigma), 127);
        status = moert_lutb_decode(*ret, codes, rows, cols, f, MOERT_F32, err);
    } else if (scheme == MX) {
        status = moert_mxfp8_quantize(f, MOERT_F32, rows, cols, 0, NULL, *ret, *ret_scale, NULL, err);
        if (!status)
            status = moert_mxfp8_dequantize(*ret, *ret_scale, rows, cols, f, MOERT_F32, err);
    } else {
        for (uint64_t i = 0; i < n; i++) {
            moert_store(*ret, plain, i, (double)f[i]);
            f[i] = (float)moert_load(*ret, plain, i);
        }
    }
    for (uint64_t i = 0; values && i < n; i++)
        values[i] = (double)f[i];
    return status;
}

static int make_batch(struct moert_case_data *d, uint64_t *rng)
{
    static const int32_t invalid[] = {-1, 0x7FFFFFFF, (int32_t)0x80000000, -7};
    const struct moert_case *c = d->c;
    uint64_t n = (uint64_t)c->tokens * c->hidden, slots = (uint64_t)c->tokens * c->top_k;

    d->x = take(d, n, moert_dtype_size(c->dtype));
    d->ids = take(d, slots, sizeof(*d->ids));
    d->weights = take(d, slots, sizeof(*d->weights));
    if (!d->x || !d->ids || !d->weights)
        return 0;
    for (uint64_t i = 0; i < n; i++) {
        double v = moert_case_gauss(rng);
        if (c->flags & CASE_WIDE)
            v = i / c->hidden % 4 == 3 ? 0 : ldexp(v, (int)(moert_case_random(rng) % 24) - 16);
        moert_store(d->x, c->dtype, i, v);
    }
    for (uint64_t s = 0; s < slots; s++) {
        uint64_t r = moert_case_random(rng);
        uint32_t e = (uint32_t)(r % c->experts);
        if ((c->flags & CASE_SKEWED) && r >> 32 & 15)
            e = 1;
        if ((c->flags & CASE_REPEATED_IDS) && s % c->top_k)
            e = (uint32_t)d->ids[s - 1];
        if ((c->flags & CASE_EMPTY_EXPERT) && e == 0)
            e = 1;
        d->ids[s] = (int32_t)e;
        d->weights[s] = (float)(0.05 + (double)(r >> 40) * 0x1p-24);
        if ((c->flags & CASE_INVALID_IDS) && r >> 20 & 1 && s % 3 == 0) {
            d->ids[s] = s % 2 ? invalid[s / 2 % 4] : (int32_t)c->experts;
            d->weights[s] = NAN;
        }
    }
    return 1;
}

/* Router logits, and the ids and weights the core gets from them. */
static moert_status_t make_logits(struct moert_case_data *d, uint64_t *rng, struct moert_error *err)
{
    const struct moert_case *c = d->c;
    uint64_t n = (uint64_t)c->tokens * c->experts;
    struct moert_route_args route = {.size = sizeof(route)};

    d->logits = take(d, n, sizeof(*d->logits));
    if (!d->logits)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for a test layer");
    for (uint64_t i = 0; i < n; i++)
        d->logits[i] = (float)moert_case_gauss(rng);
    route.num_experts = c->experts;
    route.top_k = c->top_k;
    route.tokens = c->tokens;
    route.logits = d->logits;
    route.logits_dtype = MOERT_F32;
    route.ids = d->ids;
    route.weights = d->weights;
    return moert_route(&d->config.router, &route, err);
}

static moert_status_t make_bias(struct moert_case_data *d, uint64_t n1, uint64_t *rng)
{
    uint64_t local = d->config.num_local_experts, n13 = local * n1, n2 = local * d->c->hidden;

    if (!(d->c->flags & CASE_BIAS))
        return MOERT_OK;
    d->w13_bias = take(d, n13, sizeof(float));
    d->w2_bias = take(d, n2, sizeof(float));
    if (!d->w13_bias || !d->w2_bias)
        return MOERT_E_NOMEM;
    for (uint64_t i = 0; i < n13; i++)
        ((float *)d->w13_bias)[i] = (float)(moert_case_gauss(rng) * 0.25);
    for (uint64_t i = 0; i < n2; i++)
        ((float *)d->w2_bias)[i] = (float)(moert_case_gauss(rng) * 0.25);
    return MOERT_OK;
}

moert_status_t moert_case_make(const struct moert_case *c, uint64_t seed, struct moert_case_data *ret,
                               struct moert_error *err)
{
    struct moert_case_data d = {.c = c};
    uint64_t rng = seed, n1, local, hidden = c->hidden, inter = c->intermediate;
    moert_status_t status;

    describe(&d);
    if (!make_map(&d))
        goto nomem;
    status = moert_layer_config_check(&d.config, err);
    if (status)
        goto fail;
    n1 = moert_layer_config_n1(&d.config);
    local = d.config.num_local_experts;
    d.w2_values = take(&d, local * hidden * inter, sizeof(*d.w2_values));
    if (!d.w2_values)
        goto nomem;
    status = make_weight(&d, local * n1, hidden, 1.0 / sqrt((double)hidden), &rng, &d.w13, &d.w13_bytes, &d.w13_scale,
                         &d.w13_scale_bytes, NULL, err);
    if (!status)
        status = make_weight(&d, local * hidden, inter, 1.0 / sqrt((double)inter), &rng, &d.w2, &d.w2_bytes,
                             &d.w2_scale, &d.w2_scale_bytes, d.w2_values, err);
    if (status)
        goto fail;
    if (make_bias(&d, n1, &rng) || !make_batch(&d, &rng))
        goto nomem;
    if (c->flags & CASE_LOGITS)
        status = make_logits(&d, &rng, err);
    if (!status && (c->flags & CASE_MXFP8_INPUT)) {
        d.x_codes = take(&d, (uint64_t)c->tokens * hidden, 1);
        d.x_scales = take(&d, (uint64_t)c->tokens * hidden / 32, 1);
        if (!d.x_codes || !d.x_scales)
            goto nomem;
        status = moert_mxfp8_quantize(d.x, c->dtype, c->tokens, hidden, 0, NULL, d.x_codes, d.x_scales, NULL, err);
    }
    if (status)
        goto fail;
    *ret = d;
    return MOERT_OK;
nomem:
    status = moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for test layer %s", c->name);
fail:
    moert_case_free(&d);
    return status;
}

static struct moert_tensor slice(const void *data, moert_dtype_t dtype, uint32_t rank, const uint64_t *shape,
                                 uint64_t first)
{
    struct moert_tensor t = {0};
    if (data) {
        t = moert_tensor_host(data, dtype, rank, shape);
        t.data = (uint8_t *)t.data + first * (uint64_t)t.strides[0] * moert_dtype_size(dtype);
    }
    return t;
}

struct moert_layer_weights moert_case_weights(const struct moert_case_data *d, uint32_t first, uint32_t count)
{
    struct moert_layer_weights w = {.size = sizeof(w), .first = first, .count = count};
    uint64_t n1 = moert_layer_config_n1(&d->config), h = d->c->hidden, i = d->c->intermediate;
    moert_scheme_t scheme = d->c->weight;

    if (scheme == LUTB) {
        uint64_t p13[4] = {count, n1 / 8, h / 64, 192}, c13[4] = {count, n1 / 8, h / 64, 8};
        uint64_t p2[4] = {count, h / 8, i / 64, 192}, c2[4] = {count, h / 8, i / 64, 8};
        w.w13 = slice(d->w13, MOERT_U8, 4, p13, first);
        w.w13_scale = slice(d->w13_scale, MOERT_F8_E4M3, 4, c13, first);
        w.w2 = slice(d->w2, MOERT_U8, 4, p2, first);
        w.w2_scale = slice(d->w2_scale, MOERT_F8_E4M3, 4, c2, first);
    } else {
        moert_dtype_t dtype = scheme == MX     ? MOERT_F8_E4M3
                              : scheme == BF   ? MOERT_BF16
                              : scheme == HALF ? MOERT_F16
                                               : MOERT_F32;
        uint64_t s13[3] = {count, n1, h}, s2[3] = {count, h, i};
        uint64_t z13[3] = {count, n1, h / 32}, z2[3] = {count, h, i / 32};
        w.w13 = slice(d->w13, dtype, 3, s13, first);
        w.w2 = slice(d->w2, dtype, 3, s2, first);
        if (scheme == MX) {
            w.w13_scale = slice(d->w13_scale, MOERT_U8, 3, z13, first);
            w.w2_scale = slice(d->w2_scale, MOERT_U8, 3, z2, first);
        }
    }
    if (d->w13_bias) {
        uint64_t b13[2] = {count, n1}, b2[2] = {count, h};
        w.w13_bias = slice(d->w13_bias, MOERT_F32, 2, b13, first);
        w.w2_bias = slice(d->w2_bias, MOERT_F32, 2, b2, first);
    }
    return w;
}

moert_status_t moert_case_load(const struct moert_case_data *d, moert_layer_t *layer, struct moert_error *err)
{
    uint32_t local = d->config.num_local_experts, half = local / 2;
    struct moert_layer_weights w;
    moert_status_t status;

    /* two ranges, the later one first */
    w = moert_case_weights(d, half, local - half);
    status = moert_layer_set_weights(layer, &w, err);
    if (status || !half)
        return status;
    w = moert_case_weights(d, 0, half);
    return moert_layer_set_weights(layer, &w, err);
}

struct moert_layer_args moert_case_args(const struct moert_case_data *d)
{
    struct moert_layer_args a = {.size = sizeof(a)};
    const struct moert_case *c = d->c;
    uint64_t x[2] = {c->tokens, c->hidden}, s[2] = {c->tokens, c->hidden / 32}, k[2] = {c->tokens, c->top_k};
    uint64_t l[2] = {c->tokens, c->experts};

    if (d->x_codes) {
        a.x = moert_tensor_host(d->x_codes, MOERT_F8_E4M3, 2, x);
        a.x_scale = moert_tensor_host(d->x_scales, MOERT_U8, 2, s);
    } else {
        a.x = moert_tensor_host(d->x, c->dtype, 2, x);
    }
    if (d->logits) {
        a.logits = moert_tensor_host(d->logits, MOERT_F32, 2, l);
    } else {
        a.ids = moert_tensor_host(d->ids, MOERT_I32, 2, k);
        a.weights = moert_tensor_host(d->weights, MOERT_F32, 2, k);
    }
    if (c->flags & CASE_UNREDUCED)
        a.flags = MOERT_RUN_F_UNREDUCED;
    return a;
}

int moert_case_local(const struct moert_case_data *d, uint64_t slot, uint32_t *ret_expert)
{
    int32_t id = d->ids[slot], local;

    if (id < 0 || (uint32_t)id >= d->c->experts)
        return 0;
    local = d->map ? d->map[id] : id;
    if (local < 0)
        return 0;
    *ret_expert = (uint32_t)local;
    return 1;
}
