/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/test_layer_device.c: what a layer owes a device with memory of its own: no wait and no allocation with
 * device tensors, handles in the place of addresses, small largest buffers, token counts that stay on the device
 * (architecture.md 2, layer.md 6 and 8). */
#include "tests/unit/layer_rig.h"

#define SILU_FILE "layer_h128_i128_e4.safetensors"
#define T         130
#define H         128

struct bench {
    struct rig rig;
    moert_layer_t *layer;
    struct moert_layer_args args; /* of case t130k2_skew, host tensors */
    uint16_t want[T * H], out[T * H];
};

static void bench_open(struct bench *b)
{
    struct moert_layer_config config;

    rig_open(&b->rig, RIG_DISCRETE, 0);
    rig_load(&b->rig, SILU_FILE);
    config = rig_config(&b->rig, "mxfp8", 'q', 2);
    config.router.kind = MOERT_ROUTER_SOFTMAX;
    config.router.renormalize = 1;
    b->layer = rig_layer(&b->rig, &config, "mxfp8");
    memset(b->out, 0xff, sizeof(b->out));
    b->args = rig_args(&b->rig, "t130k2_skew", b->out);
}

static void bench_close(struct bench *b)
{
    moert_layer_destroy(b->layer);
    rig_close(&b->rig);
}

static struct moert_layer_stats stats_of(const struct bench *b)
{
    struct moert_layer_stats s = {.size = sizeof(s)};

    cr_assert_eq(moert_layer_stats(b->layer, &s, NULL), MOERT_OK);
    return s;
}

static struct moert_layer_args on_device(struct bench *b)
{
    struct moert_layer_args a = b->args;

    a.x = rig_on_device(&b->rig, &b->args.x);
    a.ids = rig_on_device(&b->rig, &b->args.ids);
    a.weights = rig_on_device(&b->rig, &b->args.weights);
    a.output = rig_on_device(&b->rig, &b->args.output);
    return a;
}

/* The answer of a plain call with host tensors, on a device without limits. */
static void reference(struct bench *b)
{
    struct moert_layer_args a;
    uint64_t limit = rig_max_buffer;

    rig_max_buffer = 0;
    bench_open(b);
    a = b->args;
    a.output.data = b->want;
    RIG_OK(&b->rig, moert_layer_run(b->layer, b->rig.queue, &a, &b->rig.err));
    bench_close(b);
    rig_max_buffer = limit;
}

static uint64_t workspace_of(uint64_t tokens)
{
    struct bench b;
    uint64_t chunk = 0, workspace = 0;

    bench_open(&b);
    RIG_OK(&b.rig, moert_layer_chunk(b.layer, tokens, &chunk, &workspace, &b.rig.err));
    cr_assert_eq(chunk, tokens);
    bench_close(&b);
    return workspace;
}

Test(layer_device, device_tensors_are_neither_waited_for_nor_staged)
{
    static struct bench b;
    struct moert_layer_args a;
    struct moert_layer_stats before;
    int waits;

    reference(&b);
    bench_open(&b);
    RIG_OK(&b.rig, moert_layer_warm_up(b.layer, b.rig.queue, T, &b.rig.err));
    a = on_device(&b);
    before = stats_of(&b);
    waits = rig_waits;
    RIG_OK(&b.rig, moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err));
    RIG_OK(&b.rig, moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err));
    cr_assert_eq(rig_waits, waits, "the host waited %d times", rig_waits - waits);
    cr_assert_eq(stats_of(&b).allocations, before.allocations);
    cr_assert_eq(stats_of(&b).staged_bytes, before.staged_bytes);
    rig_download(&b.rig, &a.output, b.out, sizeof(b.out));
    cr_assert_eq(memcmp(b.out, b.want, sizeof(b.want)), 0);
    waits = rig_waits;
    RIG_OK(&b.rig, moert_layer_run(b.layer, b.rig.queue, &b.args, &b.rig.err));
    cr_assert_gt(rig_waits, waits, "host tensors are waited for");
    bench_close(&b);
}

Test(layer_device, update_waits_for_host_weights_only)
{
    static struct bench b;
    struct moert_layer_weights host, device;
    struct moert_layer_args a;
    int waits;

    reference(&b);
    bench_open(&b);
    rig_refuse_host = 0;
    device = host = rig_weights(&b.rig, "mxfp8", 0, 0, 1);
    device.w13 = rig_on_device(&b.rig, &host.w13);
    device.w13_scale = rig_on_device(&b.rig, &host.w13_scale);
    device.w2 = rig_on_device(&b.rig, &host.w2);
    device.w2_scale = rig_on_device(&b.rig, &host.w2_scale);
    host = rig_weights(&b.rig, "mxfp8", 0, 1, 1);
    waits = rig_waits;
    RIG_OK(&b.rig, moert_layer_update_weights(b.layer, b.rig.queue, &host, &b.rig.err));
    cr_assert_gt(rig_waits, waits, "host memory may go when the call returns");
    a = on_device(&b);
    RIG_OK(&b.rig, moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err));
    rig_download(&b.rig, &a.output, b.out, sizeof(b.out));
    cr_assert_neq(memcmp(b.out, b.want, sizeof(b.want)), 0, "expert 0 was replaced");
    waits = rig_waits;
    RIG_OK(&b.rig, moert_layer_update_weights(b.layer, b.rig.queue, &device, &b.rig.err));
    RIG_OK(&b.rig, moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err));
    cr_assert_eq(rig_waits, waits, "the host waited");
    rig_download(&b.rig, &a.output, b.out, sizeof(b.out));
    cr_assert_eq(memcmp(b.out, b.want, sizeof(b.want)), 0, "and put back");
    bench_close(&b);
}

/* 130 tokens fit whole, a longer call is cut into chunks of 128: the warm-up for long calls must serve both. */
Test(layer_device, warm_up_covers_every_shorter_call)
{
    static struct bench b;
    uint64_t chunk = 0, workspace = 0, allocations;
    struct moert_layer_args a;

    rig_max_buffer = workspace_of(T);
    bench_open(&b);
    RIG_OK(&b.rig, moert_layer_chunk(b.layer, 1000, &chunk, &workspace, &b.rig.err));
    cr_assert_eq(chunk, 128);
    RIG_OK(&b.rig, moert_layer_warm_up(b.layer, b.rig.queue, 1000, &b.rig.err));
    a = on_device(&b);
    allocations = stats_of(&b).allocations;
    RIG_OK(&b.rig, moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err));
    RIG_OK(&b.rig, moert_layer_run(b.layer, b.rig.queue, &b.args, &b.rig.err));
    cr_assert_eq(stats_of(&b).allocations, allocations);
    cr_assert_eq(stats_of(&b).chunks, 2, "one each");
    bench_close(&b);
}

/* OpenCL has no addresses: handles say nothing about alignment or overlap. */
Test(layer_device, handles_are_no_addresses)
{
    static struct bench b;
    struct moert_layer_args a;
    struct moert_tensor shifted;

    reference(&b);
    rig_handles = 1;
    rig_alignment = 4096;
    bench_open(&b);
    a = on_device(&b);
    RIG_OK(&b.rig, moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err));
    cr_assert_eq(stats_of(&b).staged_bytes, 0, "offset 0 of a buffer is aligned");
    rig_download(&b.rig, &a.output, b.out, sizeof(b.out));
    cr_assert_eq(memcmp(b.out, b.want, sizeof(b.want)), 0);
    shifted = a.x;
    shifted.shape[0] = T - 1;
    shifted.offset = H * 2;
    a.output = shifted;
    a.x.shape[0] = a.ids.shape[0] = a.weights.shape[0] = T - 1;
    RIG_FAILS(&b.rig, moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err), MOERT_E_USAGE, "overlap",
              "output overlaps hidden_states");
    bench_close(&b);
}

struct seen {
    uint64_t calls, tokens;
};

static moert_status_t count_tokens(void *ctx, const struct moert_unreduced *u, const struct moert_tensor *out,
                                   struct moert_error *err)
{
    struct seen *s = ctx;

    (void)out;
    (void)err;
    s->calls++;
    s->tokens += u->tokens;
    return MOERT_OK;
}

/* A backend sees the count of its chunk only, so a call that the hook's rows cut must not hand it on. */
Test(layer_device, token_count_on_the_device_of_a_call_cut_by_the_hook)
{
    static struct bench b;
    const int32_t count = T - 1;
    const uint64_t one = 1;
    struct moert_tensor host = moert_tensor_host(&count, MOERT_I32, 1, &one);
    struct seen seen = {0};
    struct moert_layer_args a;

    rig_max_buffer = workspace_of(T);
    bench_open(&b);
    a = on_device(&b);
    a.token_count = rig_on_device(&b.rig, &host);
    a.hook = count_tokens;
    a.hook_ctx = &seen;
    RIG_OK(&b.rig, moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err));
    cr_assert_eq(seen.tokens, T - 1, "%d tokens in %d calls", (int)seen.tokens, (int)seen.calls);
    cr_assert_gt(seen.calls, 1, "rows of a hook count against the largest buffer");
    bench_close(&b);
}

static int saw_count, saw_logits;
static moert_status_t look(moert_drv_layer *layer, moert_drv_queue *queue, const struct moert_run_args *args,
                           struct moert_error *err)
{
    (void)layer;
    (void)queue;
    (void)err;
    saw_count = args->token_count.buffer != NULL;
    saw_logits = args->logits.buffer != NULL;
    return MOERT_OK;
}

Test(layer_device, token_count_and_logits_stay_on_the_device)
{
    static struct bench b;
    static float logits_host[T * 4];
    const int32_t count = 57;
    const uint64_t one = 1, shape[2] = {T, 4};
    struct moert_tensor logits = moert_tensor_host(logits_host, MOERT_F32, 2, shape);
    struct moert_tensor number = moert_tensor_host(&count, MOERT_I32, 1, &one);
    struct moert_layer_args a;
    int waits;

    rig_add_flags = MOERT_BACKEND_F_ROUTES;
    rig_run = look;
    bench_open(&b);
    a = on_device(&b);
    a.ids = a.weights = (struct moert_tensor){0};
    a.logits = rig_on_device(&b.rig, &logits);
    a.token_count = rig_on_device(&b.rig, &number);
    RIG_OK(&b.rig, moert_layer_warm_up(b.layer, b.rig.queue, T, &b.rig.err));
    waits = rig_waits;
    RIG_OK(&b.rig, moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err));
    cr_assert(saw_logits && saw_count, "logits %d, count %d", saw_logits, saw_count);
    cr_assert_eq(rig_waits, waits, "the host waited");
    bench_close(&b);
}

Test(layer_device, unreduced_rows_are_numbered_in_32_bits)
{
    static struct bench b;
    struct moert_layer_args a;
    const uint64_t rows = 1ull << 31;

    bench_open(&b);
    a = b.args;
    a.flags = MOERT_RUN_F_UNREDUCED;
    a.x.shape[0] = a.ids.shape[0] = a.weights.shape[0] = rows / 2;
    a.output.shape[0] = rows;
    a.index = moert_tensor_host(b.want, MOERT_I32, 1, &rows);
    RIG_FAILS(&b.rig, moert_layer_run(b.layer, b.rig.queue, &a, &b.rig.err), MOERT_E_TOO_LARGE, "too-large",
              "layer test#0: 1073741824 tokens x 2 slots exceed 2147483647");
    bench_close(&b);
}
