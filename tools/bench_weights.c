/* tools/bench_weights.c: made-up weights of a layer, one expert at a time, so that a layer is never held twice. */
#include "config.h"

#include "tools/bench.h"
#include "tools/bench_weights.h"
#include "tools/tensors.h"

#include <moert/lutb.h>
#include <moert/mxfp8.h>

#include <stdlib.h>
#include <string.h>

/* Random bytes, eight per step. */
static void fill_random(uint8_t *bytes, uint64_t count, uint64_t seed)
{
    for (uint64_t i = 0; i < count; i += 8) {
        uint64_t word = bench_mix(seed + i);
        memcpy(bytes + i, &word, (size_t)(count - i < 8 ? count - i : 8));
    }
}

void bench_fill_bf16(uint16_t *values, uint64_t count, uint64_t seed, unsigned exponent)
{
    fill_random((uint8_t *)values, count * sizeof(*values), seed);
    for (uint64_t i = 0; i < count; i++) {
        uint16_t bits = values[i];
        unsigned e = exponent - (bits >> 7 & 3u);
        values[i] = (uint16_t)((bits & 0x807Fu) | e << 7);
    }
}

/* Weights near 2^-6 .. 2^-3: the size of the shipped model's. */
enum { WEIGHT_EXPONENT = 124 };

static void fill_f16(uint16_t *values, uint64_t count, uint64_t seed)
{
    fill_random((uint8_t *)values, count * sizeof(*values), seed);
    for (uint64_t i = 0; i < count; i++)
        values[i] = (uint16_t)((values[i] & 0x83FFu) | (12u - (values[i] >> 10 & 3u)) << 10);
}

static void fill_f32(uint32_t *values, uint64_t count, uint64_t seed)
{
    fill_random((uint8_t *)values, count * sizeof(*values), seed);
    for (uint64_t i = 0; i < count; i++)
        values[i] = (values[i] & 0x807FFFFFu) | (WEIGHT_EXPONENT - (values[i] >> 23 & 3u)) << 23;
}

/* E4M3 codes without NaN, scale bytes near 2^-10: values near those of bf16. */
static void fill_mxfp8(uint8_t *codes, uint64_t count, uint8_t *scales, uint64_t seed)
{
    fill_random(codes, count, seed);
    for (uint64_t i = 0; i < count; i++)
        if ((codes[i] & 0x7F) == 0x7F)
            codes[i] &= 0xF7;
    fill_random(scales, count / MOERT_MXFP8_BLOCK, ~seed);
    for (uint64_t i = 0; i < count / MOERT_MXFP8_BLOCK; i++)
        scales[i] = (uint8_t)(114 + (scales[i] & 3));
}

/* Random indices; ascending codebooks of four negative and four positive levels, 2^-7 .. 2^-3. */
static void fill_lutb(uint8_t *packed, uint64_t tiles, uint8_t *codebook, uint64_t seed)
{
    static const uint8_t level[MOERT_LUTB_LEVELS / 2] = {0x04, 0x0C, 0x12, 0x18};

    fill_random(packed, tiles * MOERT_LUTB_PACKED, seed);
    for (uint64_t t = 0; t < tiles; t++) {
        uint8_t *book = codebook + t * MOERT_LUTB_LEVELS;
        uint64_t bits = bench_mix(~seed + t);
        for (int i = 0; i < MOERT_LUTB_LEVELS / 2; i++) {
            book[MOERT_LUTB_LEVELS / 2 - 1 - i] = (uint8_t)(0x80 | (level[i] + (bits >> (2 * i) & 3)));
            book[MOERT_LUTB_LEVELS / 2 + i] = (uint8_t)(level[i] + (bits >> (8 + 2 * i) & 3));
        }
    }
}

/* One matrix [1,rows,cols] of a scheme: memory for values and scales, described as host tensors. */
struct matrix {
    uint64_t rows, cols;
    uint8_t *values, *scales;
    struct moert_tensor tensor, scale;
};

static int make_matrix(struct tool *tool, struct matrix *m, moert_scheme_t scheme, uint64_t rows, uint64_t cols)
{
    const uint64_t dense[] = {1, rows, cols}, blocks[] = {1, rows, cols / MOERT_MXFP8_BLOCK};
    const uint64_t tiles[] = {1, rows / MOERT_LUTB_ROWS, cols / MOERT_LUTB_COLS, MOERT_LUTB_PACKED};
    const uint64_t books[] = {1, rows / MOERT_LUTB_ROWS, cols / MOERT_LUTB_COLS, MOERT_LUTB_LEVELS};

    m->rows = rows;
    m->cols = cols;
    m->values = tool_alloc(tool, rows, cols * sizeof(float));
    m->scales = m->values ? tool_alloc(tool, rows, cols) : NULL;
    if (!m->scales)
        return TOOL_DEVICE;
    switch (scheme) {
    case MOERT_SCHEME_LUT_B:
        m->tensor = moert_tensor_host(m->values, MOERT_U8, 4, tiles);
        m->scale = moert_tensor_host(m->scales, MOERT_F8_E4M3, 4, books);
        break;
    case MOERT_SCHEME_MXFP8:
        m->tensor = moert_tensor_host(m->values, MOERT_F8_E4M3, 3, dense);
        m->scale = moert_tensor_host(m->scales, MOERT_U8, 3, blocks);
        break;
    case MOERT_SCHEME_F16: m->tensor = moert_tensor_host(m->values, MOERT_F16, 3, dense); break;
    case MOERT_SCHEME_F32: m->tensor = moert_tensor_host(m->values, MOERT_F32, 3, dense); break;
    default: m->tensor = moert_tensor_host(m->values, MOERT_BF16, 3, dense); break;
    }
    return 0;
}

static void fill_matrix(struct matrix *m, moert_scheme_t scheme, uint64_t seed)
{
    uint64_t count = m->rows * m->cols;

    switch (scheme) {
    case MOERT_SCHEME_LUT_B: fill_lutb(m->values, count / MOERT_LUTB_TILE, m->scales, seed); break;
    case MOERT_SCHEME_MXFP8: fill_mxfp8(m->values, count, m->scales, seed); break;
    case MOERT_SCHEME_F16: fill_f16((uint16_t *)(void *)m->values, count, seed); break;
    case MOERT_SCHEME_F32: fill_f32((uint32_t *)(void *)m->values, count, seed); break;
    default: bench_fill_bf16((uint16_t *)(void *)m->values, count, seed, WEIGHT_EXPONENT); break;
    }
}

static void describe_bias(const struct moert_layer_config *c, uint16_t *bias, struct moert_layer_weights *w)
{
    const uint64_t n1 = moert_layer_config_n1(c), first[] = {1, n1}, second[] = {1, c->hidden_size};

    bench_fill_bf16(bias, n1 + c->hidden_size, n1, WEIGHT_EXPONENT);
    w->w13_bias = moert_tensor_host(bias, MOERT_BF16, 2, first);
    w->w2_bias = moert_tensor_host(bias + n1, MOERT_BF16, 2, second);
}

int bench_fill_layer(struct tool *tool, moert_layer_t *layer, uint64_t seed)
{
    const struct moert_layer_config *c = moert_layer_get_config(layer);
    uint64_t n1 = moert_layer_config_n1(c);
    struct moert_layer_weights weights = {.size = sizeof(weights), .count = 1};
    struct moert_error err = MOERT_ERROR_INIT;
    struct matrix w13 = {0}, w2 = {0};
    uint16_t *bias = c->has_bias ? tool_alloc(tool, n1 + c->hidden_size, sizeof(*bias)) : NULL;
    int status = c->has_bias && !bias ? TOOL_DEVICE : 0;

    if (!status)
        status = make_matrix(tool, &w13, c->weight_scheme, n1, c->hidden_size);
    if (!status)
        status = make_matrix(tool, &w2, c->weight_scheme, c->hidden_size, c->intermediate_size);
    if (!status && bias)
        describe_bias(c, bias, &weights);
    weights.w13 = w13.tensor;
    weights.w13_scale = w13.scale;
    weights.w2 = w2.tensor;
    weights.w2_scale = w2.scale;
    for (uint32_t e = 0; !status && e < c->num_local_experts; e++) {
        fill_matrix(&w13, c->weight_scheme, bench_mix(seed + 2 * e));
        fill_matrix(&w2, c->weight_scheme, bench_mix(seed + 2 * e + 1));
        weights.first = e;
        if (moert_layer_set_weights(layer, &weights, &err))
            status = tool_error(tool, &err);
    }
    free(bias);
    free(w13.values);
    free(w13.scales);
    free(w2.values);
    free(w2.scales);
    return status;
}
