/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/test_layer_run.c: runs of a layer through the public API (layer.md 4, 5, 6, 8): results of independent
 * implementations, chunks, hook, maps, tensors of every kind, errors before the launch, several queues. Each group runs
 * on a device that shares host memory and on one that does not. */
#include "tests/unit/layer_rig.h"

#include <moert/mxfp8.h>

#include <pthread.h>

#define SILU_FILE "layer_h128_i128_e4.safetensors"

static const struct {
    const char *file;
    moert_activation_t activation;
    const char *cases[12];
} files[] = {
    {SILU_FILE,
     MOERT_ACT_SILU,
     {"t1k1", "t3k2", "t17k4", "t17k2_inv", "t17k2_ep0", "t17k2_ep1", "t17k2_rr", "t17k2_revmap", "t17k1_inw",
      "t17k2_dup", "t130k2_skew"}},
    {"layer_h256_i192_e8.safetensors", MOERT_ACT_SILU, {"t3k2", "t17k4", "t130k4", "t17k4_ep2"}},
    {"layer_h128_i64_e8_relu2.safetensors", MOERT_ACT_RELU2_NO_MUL, {"t1k1", "t17k2", "t17k2_rr"}},
    {"layer_h256_i128_e4_swigluoai.safetensors", MOERT_ACT_SWIGLUOAI, {"t3k1", "t17k4", "t17k1_inw", "t130k2"}},
    {"layer_h256_i256_e4_gelu_tanh.safetensors", MOERT_ACT_GELU_TANH, {"t1k2", "t17k2", "t130k2"}},
};

static struct moert_layer_config case_config(const struct rig *rig, const char *c, const char *kind, char quantised)
{
    struct moert_layer_config config = rig_config(rig, kind, quantised, (uint32_t)rig_int(rig, c, "k"));
    const struct moert_st_tensor *map = rig_find(rig, "%s.expert_map", c);

    config.apply_router_weight_on_input = (uint32_t)rig_int(rig, c, "weight_on_input");
    if (map) {
        config.expert_map = map->data;
        config.expert_map_length = config.num_experts;
        for (uint32_t g = 0; g < config.num_experts; g++)
            config.num_local_experts += config.expert_map[g] >= 0;
    }
    return config;
}

static int inside(const struct rig *rig, const char *c, const char *kind, char quantised, const uint16_t *out)
{
    const struct moert_st_tensor *lo = rig_find(rig, "%s.%s.%c.lo", c, kind, quantised);
    const struct moert_st_tensor *hi = rig_find(rig, "%s.%s.%c.hi", c, kind, quantised);
    uint64_t n = lo->bytes / 2;

    for (uint64_t e = 0; e < n; e++) {
        double y = moert_load(out, MOERT_BF16, e);
        if (!(y >= moert_load(lo->data, MOERT_BF16, e) && y <= moert_load(hi->data, MOERT_BF16, e))) {
            cr_log_error("%s %s.%c: element %d is %g", c, kind, quantised, (int)e, y);
            return 0;
        }
    }
    return n > 0;
}

static int run_vectors(int memory)
{
    static const char *const kinds[] = {"lutb", "mxfp8", "bf16"};
    int checked = 0;

    for (size_t f = 0; f < sizeof(files) / sizeof(*files); f++) {
        struct rig rig;
        rig_open(&rig, memory, 0);
        rig_load(&rig, files[f].file);
        for (int c = 0; c < 12 && files[f].cases[c]; c++)
            for (int k = 0; k < 6; k++) {
                const char *name = files[f].cases[c], *kind = kinds[k / 2];
                const struct moert_st_tensor *lo = rig_find(&rig, "%s.%s.%c.lo", name, kind, "qn"[k % 2]);
                struct moert_layer_config config;
                struct moert_layer_args args;
                moert_layer_t *layer;
                void *out;
                if (!lo)
                    continue;
                config = case_config(&rig, name, kind, "qn"[k % 2]);
                config.activation = files[f].activation;
                layer = rig_layer(&rig, &config, kind);
                out = rig_memory(lo->bytes, 0xff);
                args = rig_args(&rig, name, out);
                RIG_OK(&rig, moert_layer_run(layer, rig.queue, &args, &rig.err));
                cr_assert(inside(&rig, name, kind, "qn"[k % 2], out));
                checked++;
                free(out);
                moert_layer_destroy(layer);
            }
        rig_close(&rig);
    }
    return checked;
}

Test(layer_run, vectors_shared_memory)
{
    cr_assert_geq(run_vectors(RIG_SHARED_MEMORY), 80);
}

Test(layer_run, vectors_discrete)
{
    cr_assert_geq(run_vectors(RIG_DISCRETE), 80);
}

/* ---- one layer, many calls ---- */

struct bench {
    struct rig rig;
    moert_layer_t *layer;
    struct moert_layer_args args; /* of case t130k2_skew */
    uint16_t *want, *out;         /* [130,128]: of one plain call */
    uint64_t bytes;
};

static void bench_open(struct bench *b, int memory, uint32_t without_flags, uint64_t max_tokens)
{
    struct moert_layer_config config;

    rig_open(&b->rig, memory, without_flags);
    rig_load(&b->rig, SILU_FILE);
    config = rig_config(&b->rig, "mxfp8", 'q', 2);
    config.max_tokens = max_tokens;
    config.router.kind = MOERT_ROUTER_SOFTMAX;
    config.router.renormalize = 1;
    b->layer = rig_layer(&b->rig, &config, "mxfp8");
    b->bytes = 130 * 128 * 2;
    b->want = rig_memory(b->bytes, 0xff);
    b->out = rig_memory(b->bytes, 0xff);
    b->args = rig_args(&b->rig, "t130k2_skew", b->want);
    RIG_OK(&b->rig, moert_layer_run(b->layer, b->rig.queue, &b->args, &b->rig.err));
    cr_assert(inside(&b->rig, "t130k2_skew", "mxfp8", 'q', b->want));
    b->args.output.data = b->out;
}

static void bench_close(struct bench *b)
{
    free(b->want);
    free(b->out);
    moert_layer_destroy(b->layer);
    rig_close(&b->rig);
}

static void bench_same(struct bench *b, const char *what)
{
    cr_assert_eq(memcmp(b->out, b->want, b->bytes), 0, "%s", what);
    memset(b->out, 0xff, b->bytes);
}

static struct moert_layer_stats stats_of(const struct bench *b)
{
    struct moert_layer_stats s = {.size = sizeof(s)};

    cr_assert_eq(moert_layer_stats(b->layer, &s, NULL), MOERT_OK);
    return s;
}

static void split(int memory, uint64_t max_tokens, uint64_t chunks)
{
    struct bench whole, cut;

    bench_open(&whole, memory, 0, 8192);
    cr_assert_eq(stats_of(&whole).chunks, 1);
    bench_open(&cut, memory, 0, max_tokens);
    cr_assert_eq(stats_of(&cut).chunks, chunks);
    cr_assert_eq(memcmp(whole.want, cut.want, whole.bytes), 0, "chunks are byte-equal to one call");
    bench_close(&whole);
    bench_close(&cut);
}

Test(layer_run, chunks_equal_one_call)
{
    split(RIG_SHARED_MEMORY, 128, 2);
    split(RIG_SHARED_MEMORY, 1, 130);
    split(RIG_DISCRETE, 128, 2);
    split(RIG_DISCRETE, 33, 4);
}

/* The limit itself: calls of one token each are the reference. */
static void limited(int memory)
{
    struct bench b;
    struct moert_layer_args one;
    uint64_t chunk = 0, workspace = 0, before;

    bench_open(&b, memory, 0, 8192);
    RIG_OK(&b.rig, moert_layer_chunk(b.layer, 130, &chunk, &workspace, &b.rig.err));
    cr_assert(chunk < 130, "the limit cuts: %d", (int)chunk);
    cr_assert_leq(workspace, 200000);
    before = stats_of(&b).chunks;
    cr_assert_eq(before, (130 + chunk - 1) / chunk);
    one = b.args;
    one.x.shape[0] = one.ids.shape[0] = one.weights.shape[0] = one.output.shape[0] = 1;
    for (int t = 0; t < 130; t++) {
        RIG_OK(&b.rig, moert_layer_run(b.layer, b.rig.queue, &one, &b.rig.err));
        one.x.data = (uint8_t *)one.x.data + 256;
        one.ids.data = (uint8_t *)one.ids.data + 8;
        one.weights.data = (uint8_t *)one.weights.data + 8;
        one.output.data = (uint8_t *)one.output.data + 256;
    }
    bench_same(&b, "token by token");
    bench_close(&b);
}

Test(layer_run, workspace_limit_cuts_shared_memory)
{
    setenv("MOERT_WORKSPACE_MAX", "200000", 1);
    limited(RIG_SHARED_MEMORY);
}

Test(layer_run, workspace_limit_cuts_discrete)
{
    setenv("MOERT_WORKSPACE_MAX", "200000", 1);
    limited(RIG_DISCRETE);
}

Test(layer_run, workspace_limit_below_one_token)
{
    struct rig rig;
    struct moert_layer_config config;
    moert_layer_t *layer;
    uint16_t out[128];
    struct moert_layer_args args;

    setenv("MOERT_WORKSPACE_MAX", "1000", 1);
    rig_open(&rig, RIG_SHARED_MEMORY, 0);
    rig_load(&rig, SILU_FILE);
    config = rig_config(&rig, "mxfp8", 'q', 1);
    layer = rig_layer(&rig, &config, "mxfp8");
    memset(out, 0x5A, sizeof(out));
    args = rig_args(&rig, "t1k1", out);
    RIG_FAILS(&rig, moert_layer_run(layer, rig.queue, &args, &rig.err), MOERT_E_NOMEM, "workspace",
              "layer test#0: one token needs ");
    cr_assert_not_null(strstr(rig.err.text, "limit 1000"), "%s", rig.err.text);
    cr_assert_eq(out[0], 0x5A5A);
    moert_layer_destroy(layer);
    rig_close(&rig);
}

/* ---- tensors of every kind ---- */

static void device_tensors(struct bench *b)
{
    struct moert_layer_args a = b->args;

    a.x = rig_on_device(&b->rig, &b->args.x);
    a.ids = rig_on_device(&b->rig, &b->args.ids);
    a.weights = rig_on_device(&b->rig, &b->args.weights);
    a.output = rig_on_device(&b->rig, &b->args.output);
    RIG_OK(&b->rig, moert_layer_run(b->layer, b->rig.queue, &a, &b->rig.err));
    rig_download(&b->rig, &a.output, b->out, b->bytes);
    bench_same(b, "device tensors");
}

/* Rows of 160 elements: 128 and a gap. */
static void spread(const struct bench *b, uint16_t wide[130 * 160])
{
    memset(wide, 0x77, 130 * 160 * 2);
    for (int t = 0; t < 130; t++)
        memcpy(wide + t * 160, (const uint16_t *)b->args.x.data + t * 128, 256);
}

static void gather(struct bench *b, const uint16_t wide[130 * 160])
{
    for (int t = 0; t < 130; t++) {
        memcpy(b->out + t * 128, wide + t * 160, 256);
        for (int i = 128; i < 160; i++)
            cr_assert_eq(wide[t * 160 + i], 0x7777, "gaps of a strided output are not touched");
    }
}

static void strided_tensors(struct bench *b)
{
    const uint64_t shape[2] = {130, 160};
    uint16_t *wide = rig_memory(130 * 160 * 2, 0x77);
    struct moert_tensor host = moert_tensor_host(wide, MOERT_BF16, 2, shape);
    struct moert_layer_args a = b->args;

    spread(b, wide);
    a.x.data = wide;
    a.x.strides[0] = 160;
    RIG_OK(&b->rig, moert_layer_run(b->layer, b->rig.queue, &a, &b->rig.err));
    bench_same(b, "strided input");
    a = b->args;
    a.output.data = wide;
    a.output.strides[0] = 160;
    RIG_OK(&b->rig, moert_layer_run(b->layer, b->rig.queue, &a, &b->rig.err));
    gather(b, wide);
    bench_same(b, "strided output");

    spread(b, wide);
    a.x = rig_on_device(&b->rig, &host);
    a.output = rig_on_device(&b->rig, &host);
    a.x.shape[1] = a.output.shape[1] = 128;
    RIG_OK(&b->rig, moert_layer_run(b->layer, b->rig.queue, &a, &b->rig.err));
    rig_download(&b->rig, &a.output, wide, 130 * 160 * 2);
    gather(b, wide);
    bench_same(b, "strided device tensors");
    free(wide);
}

static void misaligned_tensors(struct bench *b)
{
    uint8_t *odd = rig_memory(b->bytes + 1, 0);
    struct moert_layer_args a = b->args;

    memcpy(odd + 1, b->args.x.data, b->bytes);
    a.x.data = odd + 1;
    RIG_OK(&b->rig, moert_layer_run(b->layer, b->rig.queue, &a, &b->rig.err));
    bench_same(b, "misaligned input");
    a = b->args;
    a.output.data = odd + 1;
    RIG_OK(&b->rig, moert_layer_run(b->layer, b->rig.queue, &a, &b->rig.err));
    memcpy(b->out, odd + 1, b->bytes);
    bench_same(b, "misaligned output");
    free(odd);
}

/* An id beyond int32 is no expert, like every id outside the range. */
static void wide_ids(struct bench *b)
{
    struct moert_layer_args a = b->args;
    int64_t ids[260];

    for (int s = 0; s < 260; s++)
        ids[s] = ((const int32_t *)b->args.ids.data)[s];
    a.ids.data = ids;
    a.ids.dtype = MOERT_I64;
    RIG_OK(&b->rig, moert_layer_run(b->layer, b->rig.queue, &a, &b->rig.err));
    bench_same(b, "int64 ids");
    ids[0] = 0x100000000ll;
    ids[1] = -1;
    RIG_OK(&b->rig, moert_layer_run(b->layer, b->rig.queue, &a, &b->rig.err));
    for (int i = 0; i < 128; i++)
        cr_assert_eq(b->out[i], 0, "a token without a local slot is +0");
    cr_assert_eq(memcmp(b->out + 128, b->want + 128, b->bytes - 256), 0);
}

static void kinds_of_tensors(int memory)
{
    struct bench b;

    bench_open(&b, memory, 0, 128);
    device_tensors(&b);
    strided_tensors(&b);
    misaligned_tensors(&b);
    wide_ids(&b);
    bench_close(&b);
}

Test(layer_run, kinds_of_tensors_shared_memory)
{
    kinds_of_tensors(RIG_SHARED_MEMORY);
}

Test(layer_run, kinds_of_tensors_discrete)
{
    kinds_of_tensors(RIG_DISCRETE);
}

/* x as codes and scales: the same a1, so the same bytes; and decoded by the core for a backend without that input. */
static void mxfp8_input(int memory, uint32_t without_flags)
{
    struct bench b;
    struct moert_layer_args a;
    const uint64_t scales[2] = {130, 4};
    uint8_t codes[130 * 128], bytes[130 * 4];

    bench_open(&b, memory, without_flags, 128);
    RIG_OK(&b.rig, moert_mxfp8_quantize(b.args.x.data, MOERT_BF16, 130, 128, 0, NULL, codes, bytes, NULL, &b.rig.err));
    a = b.args;
    a.x = moert_tensor_host(codes, MOERT_F8_E4M3, 2, b.args.x.shape);
    a.x_scale = moert_tensor_host(bytes, MOERT_F8_E8M0, 2, scales);
    RIG_OK(&b.rig, moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err));
    bench_same(&b, "MXFP8 input");
    a.x_scale.dtype = MOERT_F32;
    RIG_FAILS(&b.rig, moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err), MOERT_E_DTYPE, "x-dtype",
              "hidden_states_scale is F32, expected F8_E8M0 or U8");
    bench_close(&b);
}

Test(layer_run, mxfp8_input)
{
    mxfp8_input(RIG_SHARED_MEMORY, 0);
    mxfp8_input(RIG_SHARED_MEMORY, MOERT_BACKEND_F_MXFP8_INPUT);
    mxfp8_input(RIG_DISCRETE, 0);
    mxfp8_input(RIG_DISCRETE, MOERT_BACKEND_F_MXFP8_INPUT);
}

/* ---- token count ---- */

static void token_count(int memory, uint32_t without_flags, uint64_t max_tokens)
{
    struct bench b;
    struct moert_layer_args a;
    const uint64_t one = 1;
    const int32_t counts[] = {57, 0, 500};

    bench_open(&b, memory, without_flags, max_tokens);
    for (int i = 0; i < 6; i++) {
        int32_t count = counts[i % 3];
        int real = count > 130 ? 130 : count;
        a = b.args;
        a.token_count = moert_tensor_host(&count, MOERT_I32, 1, &one);
        if (i >= 3)
            a.token_count = rig_on_device(&b.rig, &a.token_count);
        RIG_OK(&b.rig, moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err));
        cr_assert_eq(memcmp(b.out, b.want, (size_t)real * 256), 0, "real rows, count %d", count);
        for (int e = real * 128; e < 130 * 128; e++)
            cr_assert_eq(b.out[e], 0, "padding rows are +0, count %d", count);
        memset(b.out, 0xff, b.bytes);
    }
    {
        int32_t count = -1;
        a = b.args;
        a.token_count = moert_tensor_host(&count, MOERT_I32, 1, &one);
        RIG_FAILS(&b.rig, moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err), MOERT_E_VALUE, "count",
                  "token_count is -1");
    }
    bench_close(&b);
}

Test(layer_run, token_count)
{
    token_count(RIG_SHARED_MEMORY, 0, 8192);
    token_count(RIG_SHARED_MEMORY, MOERT_BACKEND_F_DEVICE_COUNT, 8192);
    token_count(RIG_SHARED_MEMORY, 0, 33);
    token_count(RIG_DISCRETE, 0, 33);
}

/* ---- unreduced rows and the hook ---- */

struct hooked {
    int calls;
    uint64_t offsets[8], tokens[8];
    int32_t index[600];
    float magnitude[130 * 128]; /* sum of |row * weight| */
    const struct moert_st_tensor *weights;
    struct rig *rig;
    moert_status_t answer;
};

/* Combine on the host: reads device memory that the CPU driver keeps as host memory. */
static moert_status_t combine_hook(void *ctx, const struct moert_unreduced *u, const struct moert_tensor *out,
                                   struct moert_error *err)
{
    struct hooked *h = ctx;
    uint64_t slots = u->tokens * u->top_k, hidden = u->hidden_size;
    uint16_t *rows = malloc(slots * hidden * 2), *to = malloc(u->tokens * hidden * 2);
    float *w = malloc(slots * 4);
    int32_t *index = malloc(slots * 4);

    (void)err;
    cr_assert_eq(u->route_major, 1);
    cr_assert_eq(u->row_count, slots);
    cr_assert_eq(u->dtype, MOERT_BF16);
    rig_download(h->rig, &u->rows, rows, slots * hidden * 2);
    rig_download(h->rig, &u->weights, w, slots * 4);
    rig_download(h->rig, &u->index, index, slots * 4);
    memcpy(h->index + u->token_offset * u->top_k, index, slots * 4);
    h->offsets[h->calls] = u->token_offset;
    h->tokens[h->calls++] = u->tokens;
    for (uint64_t t = 0; t < u->tokens; t++)
        for (uint64_t e = 0; e < hidden; e++) {
            float sum = 0, *all = &h->magnitude[(u->token_offset + t) * hidden + e];
            *all = 0;
            for (uint64_t j = t * u->top_k; j < (t + 1) * u->top_k; j++)
                if (index[j] >= 0) {
                    float y = moert_bf16_to_float(rows[(uint64_t)index[j] * hidden + e]) * w[j];
                    sum += y;
                    *all += y < 0 ? -y : y;
                }
            to[t * hidden + e] = moert_bf16_from_float(sum);
        }
    cr_assert_eq(out->shape[0], u->tokens);
    cr_assert_eq(moert_copy_in(u->queue, out->buffer, out->offset, to, u->tokens * hidden * 2, NULL), MOERT_OK);
    moert_queue_wait(u->queue, UINT64_MAX, UINT64_MAX, NULL, NULL);
    free(rows);
    free(to);
    free(w);
    free(index);
    return h->answer;
}

static void hook_chunks(int memory)
{
    struct bench b;
    struct hooked h = {.rig = &b.rig};
    struct moert_layer_args a;

    bench_open(&b, memory, 0, 50);
    a = b.args;
    a.hook = combine_hook;
    a.hook_ctx = &h;
    RIG_OK(&b.rig, moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err));
    cr_assert_eq(h.calls, 3, "once per chunk");
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(h.offsets[i], (uint64_t)i * 50, "in order");
        cr_assert_eq(h.tokens[i], i < 2 ? 50 : 30);
    }
    for (uint64_t s = 0; s < 260; s++)
        cr_assert_eq(h.index[s], (int32_t)(s % 100), "slots of the chunk");
    for (uint64_t e = 0; e < 130 * 128; e++) { /* rows are rounded before the weight here, after it in P5: 2^-8 each */
        double want = moert_load(b.want, MOERT_BF16, e), got = moert_load(b.out, MOERT_BF16, e);
        cr_assert_float_eq(got, want, 3 * 0x1p-8 * (double)h.magnitude[e], "element %d: %g, %g", (int)e, got, want);
    }
    h.answer = MOERT_E_VALUE;
    RIG_FAILS(&b.rig, moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err), MOERT_E_VALUE, "hook", "hook returned");
    h.answer = MOERT_OK;
    RIG_OK(&b.rig, (a.hook = NULL, moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err)));
    bench_same(&b, "a failed call leaves the layer usable");
    bench_close(&b);
}

Test(layer_run, hook_runs_per_chunk)
{
    hook_chunks(RIG_SHARED_MEMORY);
    hook_chunks(RIG_DISCRETE);
}

static void hook_index(int memory, int mapped, const int32_t ids[4], const int32_t want[4])
{
    static const int32_t map[4] = {0, -1, 1, 2};
    const uint64_t k[2] = {2, 2}, x[2] = {2, 128};
    const float w[4] = {0.5f, 0.5f, 0.5f, 0.5f};
    uint16_t in[256] = {0}, out[256];
    struct rig rig;
    struct hooked h = {.rig = &rig};
    struct moert_layer_config config;
    struct moert_layer_args a = {.size = sizeof(a), .hook = combine_hook, .hook_ctx = &h};
    moert_layer_t *layer;

    rig_open(&rig, memory, 0);
    rig_load(&rig, SILU_FILE);
    config = rig_config(&rig, "mxfp8", 'q', 2);
    if (mapped) {
        config.expert_map = map;
        config.expert_map_length = 4;
        config.num_local_experts = 3;
    }
    layer = rig_layer(&rig, &config, "mxfp8");
    a.x = moert_tensor_host(in, MOERT_BF16, 2, x);
    a.ids = moert_tensor_host(ids, MOERT_I32, 2, k);
    a.weights = moert_tensor_host(w, MOERT_F32, 2, k);
    a.output = moert_tensor_host(out, MOERT_BF16, 2, x);
    RIG_OK(&rig, moert_layer_run(layer, rig.queue, &a, &rig.err));
    cr_assert_eq(h.calls, 1);
    for (int s = 0; s < 4; s++)
        cr_expect_eq(h.index[s], want[s], "slot %d: %d", s, h.index[s]);
    moert_layer_destroy(layer);
    rig_close(&rig);
}

Test(layer_run, hook_indexes_of_the_specification)
{
    static const int32_t ids[4] = {0, 1, 2, 3}, want[4] = {0, -1, 2, 3};
    static const int32_t odd[4] = {-1, 1, 9, 0}, odd_want[4] = {-1, 1, -1, 3};

    hook_index(RIG_SHARED_MEMORY, 1, ids, want);
    hook_index(RIG_DISCRETE, 1, ids, want);
    hook_index(RIG_SHARED_MEMORY, 0, odd, odd_want);
}

Test(layer_run, hook_excludes_weight_on_input_and_needs_the_backend)
{
    struct rig rig;
    struct hooked h = {.rig = &rig};
    struct moert_layer_config config;
    struct moert_layer_args a;
    moert_layer_t *layer;
    uint16_t out[17 * 128];

    rig_open(&rig, RIG_SHARED_MEMORY, MOERT_BACKEND_F_HOOK);
    rig_load(&rig, SILU_FILE);
    config = case_config(&rig, "t17k1_inw", "mxfp8", 'q');
    layer = rig_layer(&rig, &config, "mxfp8");
    memset(out, 0x5A, sizeof(out));
    a = rig_args(&rig, "t17k1_inw", out);
    a.hook = combine_hook;
    a.hook_ctx = &h;
    RIG_FAILS(&rig, moert_layer_run(layer, rig.queue, &a, &rig.err), MOERT_E_USAGE, "hook-weight",
              "post-GEMM2 hook needs unweighted rows; router weight is on the input");
    moert_layer_destroy(layer);
    config.apply_router_weight_on_input = 0;
    layer = rig_layer(&rig, &config, "mxfp8");
    RIG_FAILS(&rig, moert_layer_run(layer, rig.queue, &a, &rig.err), MOERT_E_NO_BACKEND, "backend-refused",
              "cpu.reference cannot serve: hook have no need yes");
    cr_assert_eq(out[5], 0x5A5A);
    cr_assert_eq(h.calls, 0);
    moert_layer_destroy(layer);
    rig_close(&rig);
}

/* Unreduced rows of a cut call carry the call's slot numbers; summed in slot order they give the output. */
static void unreduced(int memory, int on_device)
{
    struct bench b;
    struct moert_layer_args a;
    const uint64_t rows_shape[2] = {260, 128}, slots = 260;
    uint16_t *rows = rig_memory(260 * 256, 0xff);
    int32_t index[260];

    bench_open(&b, memory, 0, 50);
    a = b.args;
    a.flags = MOERT_RUN_F_UNREDUCED;
    a.output = moert_tensor_host(rows, MOERT_BF16, 2, rows_shape);
    a.index = moert_tensor_host(index, MOERT_I32, 1, &slots);
    memset(index, 0xff, sizeof(index));
    if (on_device) {
        a.output = rig_on_device(&b.rig, &a.output);
        a.index = rig_on_device(&b.rig, &a.index);
    }
    RIG_OK(&b.rig, moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err));
    if (on_device) {
        rig_download(&b.rig, &a.output, rows, 260 * 256);
        rig_download(&b.rig, &a.index, index, sizeof(index));
    }
    for (int s = 0; s < 260; s++)
        cr_assert_eq(index[s], s, "index[%d] is %d", s, index[s]);
    for (int t = 0; t < 130; t++)
        for (int e = 0; e < 128; e++)
            b.out[t * 128 + e] = moert_bf16_from_float(moert_bf16_to_float(rows[t * 256 + e]) +
                                                       moert_bf16_to_float(rows[t * 256 + 128 + e]));
    bench_same(&b, "sum of unreduced rows");
    free(rows);
    bench_close(&b);
}

Test(layer_run, unreduced_rows)
{
    unreduced(RIG_SHARED_MEMORY, 0);
    unreduced(RIG_SHARED_MEMORY, 1);
    unreduced(RIG_DISCRETE, 0);
    unreduced(RIG_DISCRETE, 1);
}

/* ---- maps ---- */

static void map_of_the_call(int memory)
{
    static const char *const cases[] = {"t17k2_ep0", "t17k2_ep1", "t17k2_rr", "t17k2_revmap"};
    struct rig rig;

    rig_open(&rig, memory, 0);
    rig_load(&rig, SILU_FILE);
    for (int c = 0; c < 8; c++) {
        const char *name = cases[c / 2];
        struct moert_layer_config config = case_config(&rig, name, "mxfp8", 'q');
        const struct moert_st_tensor *map = rig_find(&rig, "%s.expert_map", name);
        int32_t other[4] = {0, 1, -1, -1};
        uint16_t out[17 * 128];
        struct moert_layer_args args;
        moert_layer_t *layer = rig_create(&rig, &config);

        rig_set(&rig, layer, "mxfp8");
        args = rig_args(&rig, name, out);
        args.expert_map = rig_host(map);
        if (c % 2)
            args.expert_map = rig_on_device(&rig, &args.expert_map);
        RIG_OK(&rig, moert_layer_run(layer, rig.queue, &args, &rig.err));
        cr_assert(inside(&rig, name, "mxfp8", 'q', out), "%s", name);
        other[3] = 7;
        args.expert_map = moert_tensor_host(other, MOERT_I32, 1, map->shape);
        RIG_FAILS(&rig, moert_layer_run(layer, rig.queue, &args, &rig.err), MOERT_E_VALUE, "map",
                  "expert_map[3] is 7; local ids are 0..");
        moert_layer_destroy(layer);
    }
    rig_close(&rig);
}

Test(layer_run, map_of_the_call)
{
    map_of_the_call(RIG_SHARED_MEMORY);
    map_of_the_call(RIG_DISCRETE);
}

/* A rank without the experts in demand gives exact zeros, whatever was in the output (routing.md C10). */
Test(layer_run, foreign_experts_give_zero)
{
    static const int32_t map[4] = {-1, -1, 0, 1};
    const uint64_t k[2] = {17, 2};
    int32_t ids[34];
    struct rig rig;
    struct moert_layer_config config;
    struct moert_layer_args args;
    moert_layer_t *layer;
    uint16_t out[17 * 128];

    rig_open(&rig, RIG_SHARED_MEMORY, 0);
    rig_load(&rig, SILU_FILE);
    config = rig_config(&rig, "lutb", 'q', 2);
    config.expert_map = map;
    config.expert_map_length = 4;
    config.num_local_experts = 2;
    layer = rig_layer(&rig, &config, "lutb");
    memset(out, 0xff, sizeof(out));
    args = rig_args(&rig, "t17k2_dup", out);
    for (int s = 0; s < 34; s++)
        ids[s] = s % 2;
    args.ids = moert_tensor_host(ids, MOERT_I32, 2, k);
    RIG_OK(&rig, moert_layer_run(layer, rig.queue, &args, &rig.err));
    for (int e = 0; e < 17 * 128; e++)
        cr_assert_eq(out[e], 0);
    moert_layer_destroy(layer);
    rig_close(&rig);
}

/* ---- errors before the launch ---- */

#define BREAK(name, ...)                                                                                               \
    static void name(struct moert_layer_args *a)                                                                       \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }
BREAK(small_args, a->size = 64;)
BREAK(unknown_flag, a->flags = 1u << 7;)
BREAK(no_x, a->x.data = NULL;)
BREAK(no_output, a->output.data = NULL;)
BREAK(no_ids, a->ids.data = NULL;)
BREAK(no_weights, a->weights.data = NULL;)
BREAK(nothing_to_route, a->ids.data = a->weights.data = NULL;)
BREAK(x_narrow, a->x.shape[1] = 64;)
BREAK(x_rank, a->x.rank = 1;)
BREAK(ids_short, a->ids.shape[0] = 129;)
BREAK(ids_wide, a->ids.shape[1] = 3;)
BREAK(weights_short, a->weights.shape[0] = 129;)
BREAK(out_short, a->output.shape[0] = 129;)
BREAK(x_f32, a->x.dtype = MOERT_F32;)
BREAK(ids_u8, a->ids.dtype = MOERT_U8;)
BREAK(weights_bf16, a->weights.dtype = MOERT_BF16;)
BREAK(out_f32, a->output.dtype = MOERT_F32;)
BREAK(out_is_x, a->output.data = a->x.data;)
BREAK(out_into_ids, a->output.data = (uint8_t *)a->ids.data + 64;)
BREAK(out_folded, a->output.strides[0] = 64;)
BREAK(two_places, a->x.buffer = (moert_buffer_t *)(void *)a;)
BREAK(unreduced_without_index, a->flags = MOERT_RUN_F_UNREDUCED;)

static const struct {
    void (*change)(struct moert_layer_args *a);
    moert_status_t status;
    const char *code, *text;
} errors[] = {
    {small_args, MOERT_E_USAGE, "struct-size", "struct moert_layer_args has size 64"},
    {unknown_flag, MOERT_E_USAGE, "flag", "unknown flag bit 7"},
    {no_x, MOERT_E_USAGE, "null", "hidden_states is NULL"},
    {no_output, MOERT_E_USAGE, "null", "output is NULL"},
    {no_ids, MOERT_E_USAGE, "null", "topk_ids is NULL"},
    {no_weights, MOERT_E_USAGE, "null", "topk_weights is NULL"},
    {nothing_to_route, MOERT_E_USAGE, "null", "neither router_logits nor a router weight"},
    {x_narrow, MOERT_E_SHAPE, "x-shape", "hidden_states is [130,64], expected [130,128]"},
    {x_rank, MOERT_E_SHAPE, "x-shape", "hidden_states is [130]"},
    {ids_short, MOERT_E_SHAPE, "ids-shape", "topk_ids is [129,2], hidden_states has 130 tokens"},
    {ids_wide, MOERT_E_SHAPE, "ids-shape", "topk_ids is [130,3], expected [130,2]"},
    {weights_short, MOERT_E_SHAPE, "weights-shape", "topk_weights is [129,2], hidden_states has 130 tokens"},
    {out_short, MOERT_E_SHAPE, "out-shape", "output is [129,128], hidden_states has 130 tokens"},
    {x_f32, MOERT_E_DTYPE, "x-dtype", "hidden_states is F32, expected BF16"},
    {ids_u8, MOERT_E_DTYPE, "ids-dtype", "topk_ids is U8, expected I32 or I64"},
    {weights_bf16, MOERT_E_DTYPE, "weights-dtype", "topk_weights is BF16, expected F32"},
    {out_f32, MOERT_E_DTYPE, "out-dtype", "output is F32, expected BF16"},
    {out_is_x, MOERT_E_USAGE, "overlap", "output overlaps hidden_states"},
    {out_into_ids, MOERT_E_USAGE, "overlap", "output overlaps topk_"},
    {out_folded, MOERT_E_SHAPE, "out-shape", "output has stride 64 on axis 0"},
    {two_places, MOERT_E_USAGE, "flag", "hidden_states has both host memory and a buffer"},
    {unreduced_without_index, MOERT_E_USAGE, "null", "index is NULL"},
};

Test(layer_run, errors_leave_the_output_untouched)
{
    struct bench b;

    bench_open(&b, RIG_SHARED_MEMORY, 0, 8192);
    memset(b.out, 0x5A, b.bytes);
    for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++) {
        struct moert_layer_args a = b.args;
        moert_status_t status;

        errors[i].change(&a);
        status = moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err);
        cr_expect_eq(status, errors[i].status, "row %zu: %d %s", i, status, b.rig.err.text);
        cr_expect_str_eq(b.rig.err.code, errors[i].code, "row %zu: %s", i, b.rig.err.text);
        cr_expect_not_null(strstr(b.rig.err.text, errors[i].text), "row %zu: %s", i, b.rig.err.text);
        cr_expect_eq(strncmp(b.rig.err.text, "layer test#0: ", 14), 0, "row %zu: %s", i, b.rig.err.text);
        cr_expect_eq(moert_layer_run(b.layer, b.rig.queue, &a, NULL), errors[i].status);
        for (uint64_t e = 0; e < b.bytes / 2; e++)
            cr_assert_eq(b.out[e], 0x5A5A, "row %zu wrote output", i);
    }
    cr_assert_eq(moert_layer_run(NULL, b.rig.queue, &b.args, NULL), MOERT_E_USAGE);
    cr_assert_eq(moert_layer_run(b.layer, NULL, &b.args, NULL), MOERT_E_USAGE);
    cr_assert_eq(moert_layer_run(b.layer, b.rig.queue, NULL, NULL), MOERT_E_USAGE);
    bench_close(&b);
}

Test(layer_run, devices_must_be_the_same)
{
    struct bench b, other;
    struct moert_layer_args a;

    bench_open(&b, RIG_SHARED_MEMORY, 0, 8192);
    bench_open(&other, RIG_SHARED_MEMORY, 0, 8192); /* another context: its buffers are foreign */
    a = b.args;
    a.x = rig_on_device(&other.rig, &b.args.x);
    RIG_FAILS(&b.rig, moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err), MOERT_E_USAGE, "device-mismatch",
              "hidden_states is on cpu, the layer on cpu");
    RIG_FAILS(&b.rig, moert_layer_run(b.layer, other.rig.queue, &b.args, &b.rig.err), MOERT_E_USAGE, "device-mismatch",
              "the queue is on cpu");
    bench_close(&other);
    bench_close(&b);
}

Test(layer_run, device_tensors_stay_inside_their_buffer)
{
    struct bench b;
    struct moert_layer_args a;

    bench_open(&b, RIG_SHARED_MEMORY, 0, 8192);
    a = b.args;
    a.x = rig_on_device(&b.rig, &b.args.x);
    a.x.offset = 2;
    RIG_FAILS(&b.rig, moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err), MOERT_E_SHAPE, "x-shape",
              "after offset 2");
    a.x.offset = UINT64_MAX - 1;
    RIG_FAILS(&b.rig, moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err), MOERT_E_SHAPE, "x-shape",
              "of a buffer of");
    a.x.offset = 0;
    a.x.strides[0] = INT64_MAX / 4;
    RIG_FAILS(&b.rig, moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err), MOERT_E_TOO_LARGE, "too-large", "strides");
    a.x.strides[0] = -128;
    RIG_FAILS(&b.rig, moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err), MOERT_E_SHAPE, "x-shape", "before");
    a.x.offset = 129 * 256; /* rows backwards are legal: token t reads row 129 - t */
    RIG_OK(&b.rig, moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err));
    bench_close(&b);
}

/* A stride of 0 repeats a row: small in memory, as large as its shape for a copy. */
Test(layer_run, shapes_beyond_any_memory_are_refused)
{
    struct bench b;
    struct moert_layer_args a;

    bench_open(&b, RIG_SHARED_MEMORY, 0, 8192);
    a = b.args;
    a.x.strides[0] = a.ids.strides[0] = a.weights.strides[0] = 0;
    a.x.shape[0] = a.ids.shape[0] = a.weights.shape[0] = a.output.shape[0] = 1ull << 57;
    RIG_FAILS(&b.rig, moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err), MOERT_E_TOO_LARGE, "too-large",
              "144115188075855872 tokens x 128 elements of hidden_states exceed 64 bits");
    a = b.args;
    a.x.strides[0] = 0; /* one row for every token is legal */
    RIG_OK(&b.rig, moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err));
    cr_assert_eq(memcmp(b.out, b.want, 256), 0);
    bench_close(&b);
}

Test(layer_run, zero_tokens_touch_nothing)
{
    struct bench b;
    struct moert_layer_args a;
    struct moert_layer_stats before, after;

    bench_open(&b, RIG_SHARED_MEMORY, 0, 8192);
    before = stats_of(&b);
    a = b.args;
    a.x.shape[0] = a.ids.shape[0] = a.weights.shape[0] = a.output.shape[0] = 0;
    memset(b.out, 0x5A, b.bytes);
    RIG_OK(&b.rig, moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err));
    a.x.data = a.ids.data = a.weights.data = a.output.data = NULL;
    RIG_OK(&b.rig, moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err));
    cr_assert_eq(b.out[0], 0x5A5A);
    after = stats_of(&b);
    cr_assert_eq(after.chunks, before.chunks);
    RIG_OK(&b.rig, moert_layer_run(b.layer, b.rig.queue, &b.args, &b.rig.err));
    bench_same(&b, "the call after it");
    bench_close(&b);
}

/* ---- what the layer guarantees ---- */

static uint64_t hash_of(const struct moert_tensor *t)
{
    uint64_t h = 0xcbf29ce484222325ull, bytes = moert_dtype_size(t->dtype);

    for (uint32_t i = 0; i < t->rank; i++)
        bytes *= t->shape[i];
    for (uint64_t i = 0; i < bytes; i++)
        h = (h ^ ((const uint8_t *)t->data)[i]) * 0x100000001b3ull;
    return h;
}

Test(layer_run, inputs_are_not_written_and_results_repeat)
{
    struct bench b;
    uint64_t x, ids, weights;

    bench_open(&b, RIG_SHARED_MEMORY, 0, 128);
    x = hash_of(&b.args.x);
    ids = hash_of(&b.args.ids);
    weights = hash_of(&b.args.weights);
    for (int i = 0; i < 5; i++) {
        RIG_OK(&b.rig, moert_layer_run(b.layer, b.rig.queue, &b.args, &b.rig.err));
        bench_same(&b, "repeated");
    }
    cr_assert_eq(hash_of(&b.args.x), x);
    cr_assert_eq(hash_of(&b.args.ids), ids);
    cr_assert_eq(hash_of(&b.args.weights), weights);
    bench_close(&b);
}

static void warm(int memory)
{
    struct bench b;
    uint64_t allocations;
    moert_queue_t *queue = NULL;

    bench_open(&b, memory, 0, 8192);
    RIG_OK(&b.rig, moert_queue_create(b.rig.context, 0, 0, &queue, &b.rig.err));
    allocations = stats_of(&b).allocations;
    RIG_OK(&b.rig, moert_layer_warm_up(b.layer, queue, 130, &b.rig.err));
    cr_assert_gt(stats_of(&b).allocations, allocations);
    allocations = stats_of(&b).allocations;
    RIG_OK(&b.rig, moert_layer_run(b.layer, queue, &b.args, &b.rig.err));
    bench_same(&b, "first run after warm-up");
    cr_assert_eq(stats_of(&b).allocations, allocations, "runs after warm-up allocate nothing");
    moert_queue_destroy(queue);
    bench_close(&b);
}

Test(layer_run, no_allocation_after_warm_up)
{
    warm(RIG_SHARED_MEMORY);
    warm(RIG_DISCRETE);
}

struct racer {
    struct bench *b;
    moert_queue_t *queue;
    uint16_t *out;
    moert_status_t status;
    int different;
};

static void *race(void *p)
{
    struct racer *r = p;
    struct moert_layer_args a = r->b->args;

    a.output.data = r->out;
    for (int i = 0; i < 4 && !r->status; i++) {
        memset(r->out, 0xff, r->b->bytes);
        r->status = moert_layer_run(r->b->layer, r->queue, &a, NULL);
        r->different += memcmp(r->out, r->b->want, r->b->bytes) != 0;
    }
    return NULL;
}

static void two_queues(int memory)
{
    struct bench b;
    struct racer racers[2] = {0};
    pthread_t threads[2];

    bench_open(&b, memory, 0, 50);
    for (int i = 0; i < 2; i++) {
        racers[i].b = &b;
        racers[i].out = rig_memory(b.bytes, 0xff);
        RIG_OK(&b.rig, moert_queue_create(b.rig.context, 0, 0, &racers[i].queue, &b.rig.err));
        cr_assert_eq(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        cr_assert_eq(racers[i].status, MOERT_OK);
        cr_assert_eq(racers[i].different, 0);
        moert_queue_destroy(racers[i].queue);
        free(racers[i].out);
    }
    cr_assert_eq(stats_of(&b).calls, 9);
    cr_assert_eq(stats_of(&b).chunks, 27);
    bench_close(&b);
}

Test(layer_run, two_queues_in_two_threads)
{
    two_queues(RIG_SHARED_MEMORY);
    two_queues(RIG_DISCRETE);
}

Test(layer_run, counters_name_the_implementation)
{
    struct bench b;
    struct moert_counters c = {.size = sizeof(c)};

    bench_open(&b, RIG_SHARED_MEMORY, 0, 128);
    RIG_OK(&b.rig, moert_layer_counters(b.layer, &c, &b.rig.err));
    cr_assert_eq(c.implementations, 1);
    cr_assert_eq(c.by_implementation[0].runs, 2);
    cr_assert_eq(c.by_implementation[0].tokens, 130);
    cr_assert_str_eq(moert_layer_backend(b.layer), "cpu.reference");
    cr_assert_eq(moert_layer_device(b.layer), 0);
    cr_assert(moert_layer_backend_flags(b.layer) & MOERT_BACKEND_F_DUMPS);
    bench_close(&b);
}

/* Dumps reach the caller from one chunk; a cut call refuses them. */
static void dumps(int memory)
{
    struct bench b;
    struct moert_layer_dumps d = {.size = sizeof(d)};
    const struct moert_st_tensor *c1, *c3;
    const uint64_t shape[2] = {6, 256}, shape3[2] = {6, 128};
    uint16_t got1[6 * 256], got3[6 * 128], out[3 * 128];
    struct moert_layer_args a;

    bench_open(&b, memory, 0, 50);
    a = b.args;
    a.dumps = &d;
    RIG_FAILS(&b.rig, moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err), MOERT_E_USAGE, "workspace",
              "dumps need one chunk; 130 tokens are cut into chunks of 50");
    c1 = rig_find(&b.rig, "t3k2.mxfp8.q.dbg.gemm1");
    c3 = rig_find(&b.rig, "t3k2.mxfp8.q.dbg.gemm2");
    cr_assert(c1 && c3);
    a = rig_args(&b.rig, "t3k2", out);
    d.c1 = moert_tensor_host(got1, MOERT_BF16, 2, shape);
    d.c3 = moert_tensor_host(got3, MOERT_BF16, 2, shape3);
    a.dumps = &d;
    RIG_OK(&b.rig, moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err));
    cr_assert_eq(memcmp(got1, c1->data, sizeof(got1)), 0);
    cr_assert_eq(memcmp(got3, c3->data, sizeof(got3)), 0);
    bench_close(&b);
}

Test(layer_run, dumps)
{
    dumps(RIG_SHARED_MEMORY);
    dumps(RIG_DISCRETE);
}
