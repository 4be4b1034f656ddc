/* tests/sim/test_sim.c: what the core must do right on a device whose memory it cannot touch: asynchronous queues, two
 * devices, a largest buffer, faults; and that verification names the step that is wrong. */
#include "config.h"

#include "drivers/cpu/cpu.h"

#include <moert/moert.h>

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct moert_error err = MOERT_ERROR_INIT;

static moert_context_t *open_sim(const char *fault)
{
    struct moert_context_options o = {.size = sizeof(o), .flags = MOERT_CONTEXT_F_NO_SELF_TEST};
    moert_context_t *context = NULL;
    char path[4096];

    if (fault)
        setenv("SIM_FAULT", fault, 1);
    else
        unsetenv("SIM_FAULT");
    snprintf(path, sizeof(path), "%s/tests/sim/.libs", getenv("MOERT_TEST_BUILDDIR"));
    o.driver_path = path;
    cr_assert_eq(moert_context_create(&o, &context, &err), MOERT_OK, "%s", err.text);
    cr_assert_eq(moert_device_count(context), 2u);
    return context;
}

/* A small MXFP8 layer on a simulated device. */
static moert_layer_t *make_layer(moert_context_t *context, const char *device)
{
    enum { H = 64, I = 32, E = 2 };
    struct moert_layer_config c;
    struct moert_select_options o = {.size = sizeof(o), .backend = "sim.reference", .device = device};
    struct moert_layer_weights w = {.size = sizeof(w), .count = E};
    static uint8_t w13[E * 2 * I * H], s13[E * 2 * I * H / 32], w2[E * H * I], s2[E * H * I / 32];
    uint64_t a[3] = {E, 2 * I, H}, b[3] = {E, 2 * I, H / 32}, d[3] = {E, H, I}, e[3] = {E, H, I / 32};
    moert_decision_t *decision = NULL;
    moert_layer_t *layer = NULL;

    moert_layer_config_init(&c);
    c.hidden_size = H;
    c.intermediate_size = I;
    c.num_experts = E;
    c.top_k = 1;
    c.dtype = MOERT_F32;
    c.weight_scheme = MOERT_SCHEME_MXFP8;
    cr_assert_eq(moert_layer_config_check(&c, &err), MOERT_OK, "%s", err.text);
    cr_assert_eq(moert_select(context, &c, &o, &decision, &err), MOERT_OK, "%s", err.text);
    cr_assert_eq(moert_layer_create(context, &c, decision, &layer, &err), MOERT_OK, "%s", err.text);
    memset(w13, 0x30, sizeof(w13));
    memset(w2, 0x30, sizeof(w2));
    memset(s13, 122, sizeof(s13));
    memset(s2, 122, sizeof(s2));
    w.w13 = moert_tensor_host(w13, MOERT_F8_E4M3, 3, a);
    w.w13_scale = moert_tensor_host(s13, MOERT_U8, 3, b);
    w.w2 = moert_tensor_host(w2, MOERT_F8_E4M3, 3, d);
    w.w2_scale = moert_tensor_host(s2, MOERT_U8, 3, e);
    cr_assert_eq(moert_layer_set_weights(layer, &w, &err), MOERT_OK, "%s", err.text);
    moert_decision_destroy(decision);
    return layer;
}

enum { T = 3, HID = 64 };
static float x_host[T * HID], y_host[T * HID];
static int32_t ids_host[T] = {0, 1, 0};
static float weights_host[T] = {1, 0.5f, 0.25f};

static moert_status_t run_host(moert_layer_t *layer, moert_queue_t *queue)
{
    uint64_t x[2] = {T, HID}, k[2] = {T, 1};
    struct moert_layer_args a = {.size = sizeof(a)};

    for (int i = 0; i < T * HID; i++)
        x_host[i] = (float)(i % 7) - 3;
    memset(y_host, 0xFF, sizeof(y_host));
    a.x = moert_tensor_host(x_host, MOERT_F32, 2, x);
    a.ids = moert_tensor_host(ids_host, MOERT_I32, 2, k);
    a.weights = moert_tensor_host(weights_host, MOERT_F32, 2, k);
    a.output = moert_tensor_host(y_host, MOERT_F32, 2, x);
    return moert_layer_run(layer, queue, &a, &err);
}

Test(sim, host_tensors_are_staged)
{
    moert_context_t *context = open_sim(NULL);
    moert_layer_t *layer = make_layer(context, "sim:1");
    moert_queue_t *queue;

    cr_assert_eq(moert_layer_device(layer), 1u);
    cr_assert_eq(moert_queue_create(context, 1, 0, &queue, &err), MOERT_OK, "%s", err.text);
    cr_assert_eq(run_host(layer, queue), MOERT_OK, "%s", err.text);
    for (int i = 0; i < T * HID; i++)
        cr_assert_eq(y_host[i], y_host[i], "element %d was not written", i);
    moert_queue_destroy(queue);
    moert_layer_destroy(layer);
    moert_context_destroy(context);
}

Test(sim, device_memory_faults_under_the_host, .signal = SIGSEGV)
{
    moert_context_t *context = open_sim(NULL);
    moert_buffer_t *buffer;
    struct moert_memory_info info = {.size = sizeof(info)};

    cr_assert_eq(moert_buffer_alloc(context, 0, MOERT_MEMORY_DEVICE, 4096, 0, &buffer, &err), MOERT_OK);
    cr_assert_eq(moert_buffer_info(buffer, &info, &err), MOERT_OK);
    cr_assert_null(info.host);
    *(volatile char *)(uintptr_t)info.native = 1; /* a native number is no address */
}

Test(sim, work_is_asynchronous_and_ordered)
{
    moert_context_t *context = open_sim("slow");
    moert_buffer_t *buffer;
    moert_queue_t *a, *b;
    uint8_t bytes[64], back[64] = {0};
    uint32_t done = 1;
    uint64_t sequence;

    memset(bytes, 7, sizeof(bytes));
    cr_assert_eq(moert_buffer_alloc(context, 0, MOERT_MEMORY_DEVICE, 64, 0, &buffer, &err), MOERT_OK);
    cr_assert_eq(moert_queue_create(context, 0, 0, &a, &err), MOERT_OK);
    cr_assert_eq(moert_queue_create(context, 0, 0, &b, &err), MOERT_OK);
    cr_assert_eq(moert_copy_in(a, buffer, 0, bytes, 64, &err), MOERT_OK);
    sequence = moert_queue_last(a);
    cr_assert_eq(sequence, 1u);
    cr_assert_eq(moert_queue_query(a, sequence, &done, &err), MOERT_OK);
    cr_assert_eq(done, 0u, "20 ms of work cannot be done yet");
    cr_assert_eq(moert_queue_wait(a, sequence, 1000, &done, &err), MOERT_OK);
    cr_assert_eq(done, 0u, "1 us is not enough");
    cr_assert_eq(moert_queue_wait_queue(b, a, sequence, &err), MOERT_OK);
    cr_assert_eq(moert_copy_out(b, back, buffer, 0, 64, &err), MOERT_OK);
    cr_assert_eq(moert_queue_wait(b, UINT64_MAX, UINT64_MAX, NULL, &err), MOERT_OK);
    cr_assert_arr_eq(back, bytes, 64);
    moert_queue_destroy(b);
    moert_queue_destroy(a);
    moert_buffer_free(buffer);
    moert_context_destroy(context);
}

Test(sim, largest_buffer)
{
    moert_context_t *context = open_sim(NULL);
    moert_buffer_t *buffer = NULL;

    cr_assert_eq(moert_buffer_alloc(context, 0, MOERT_MEMORY_DEVICE, (1u << 20) + 1, 0, &buffer, &err),
                 MOERT_E_TOO_LARGE);
    cr_assert(strstr(err.text, "1048576"), "%s", err.text);
    cr_assert_null(buffer);
    moert_context_destroy(context);
}

/* The same rows unreduced (K = 1, so a row is the sum of its token), numbered over the whole call. */
static void large_unreduced(moert_layer_t *layer, moert_queue_t *queue, const struct moert_layer_args *args,
                            const float *want, uint64_t tokens)
{
    struct moert_layer_args a = *args;
    float *rows = malloc(tokens * HID * 4);
    int32_t *index = malloc(tokens * 4);

    a.flags = MOERT_RUN_F_UNREDUCED;
    a.output.data = rows;
    a.index = moert_tensor_host(index, MOERT_I32, 1, &tokens);
    cr_assert_eq(moert_layer_run(layer, queue, &a, &err), MOERT_OK, "%s", err.text);
    for (uint64_t t = 0; t < tokens; t++)
        cr_assert_eq(index[t], (int32_t)t, "index[%d] is %d", (int)t, index[t]);
    for (uint64_t i = 0; i < tokens * HID; i++)
        cr_assert_eq(rows[i], want[i], "element %d", (int)i);
    free(rows);
    free(index);
}

/* The same call with its last row as padding. */
static void large_counted(moert_layer_t *layer, moert_queue_t *queue, const struct moert_layer_args *args,
                          const float *want, uint64_t tokens)
{
    struct moert_layer_args a = *args;
    float *rows = malloc(tokens * HID * 4);
    int32_t count = (int32_t)tokens - 1;
    const uint64_t one = 1;

    a.output.data = rows;
    a.token_count = moert_tensor_host(&count, MOERT_I32, 1, &one);
    cr_assert_eq(moert_layer_run(layer, queue, &a, &err), MOERT_OK, "%s", err.text);
    cr_expect_arr_eq((uint8_t *)rows, (const uint8_t *)want, (tokens - 1) * HID * 4, "real rows");
    for (uint64_t i = (tokens - 1) * HID; i < tokens * HID; i++)
        cr_expect_eq(rows[i], 0, "padding");
    free(rows);
}

/* 6000 tokens x 64 F32 are 1.5 MB: more than the largest buffer. The parts give the bytes of single tokens. */
Test(sim, a_call_larger_than_the_largest_buffer_runs_in_parts)
{
    enum { MANY = 6000 };
    moert_context_t *context = open_sim(NULL);
    moert_layer_t *layer = make_layer(context, "sim:0");
    uint64_t x[2] = {MANY, HID}, k[2] = {MANY, 1};
    float *in = malloc(MANY * HID * 4), *out = malloc(MANY * HID * 4), *w = malloc(MANY * 4), one[HID];
    int32_t *ids = malloc(MANY * 4);
    struct moert_layer_args a = {.size = sizeof(a)};
    moert_queue_t *queue;

    cr_assert_eq(moert_queue_create(context, 0, 0, &queue, &err), MOERT_OK);
    for (int i = 0; i < MANY * HID; i++)
        in[i] = (float)(i % 1013) / 256 - 2;
    for (int t = 0; t < MANY; t++) {
        ids[t] = t % 2;
        w[t] = (float)(t % 17) / 16;
    }
    a.x = moert_tensor_host(in, MOERT_F32, 2, x);
    a.ids = moert_tensor_host(ids, MOERT_I32, 2, k);
    a.weights = moert_tensor_host(w, MOERT_F32, 2, k);
    a.output = moert_tensor_host(out, MOERT_F32, 2, x);
    cr_assert_eq(moert_layer_run(layer, queue, &a, &err), MOERT_OK, "%s", err.text);
    large_unreduced(layer, queue, &a, out, MANY);
    large_counted(layer, queue, &a, out, MANY);
    for (int t = 0; t < MANY; t += 599) {
        a.x.shape[0] = a.ids.shape[0] = a.weights.shape[0] = a.output.shape[0] = 1;
        a.x.data = in + t * HID;
        a.ids.data = ids + t;
        a.weights.data = w + t;
        a.output.data = one;
        cr_assert_eq(moert_layer_run(layer, queue, &a, &err), MOERT_OK, "%s", err.text);
        cr_expect_arr_eq((uint8_t *)one, (uint8_t *)(out + t * HID), sizeof(one), "token %d", t);
    }
    free(in);
    free(out);
    free(w);
    free(ids);
    moert_queue_destroy(queue);
    moert_layer_destroy(layer);
    moert_context_destroy(context);
}

/* What a capture cannot record is refused before anything is enqueued: memory that grows, host tensors. */
Test(sim, a_capture_refuses_what_waits_or_allocates)
{
    enum { FEW = 3 };
    moert_context_t *context = open_sim(NULL);
    moert_layer_t *layer = make_layer(context, "sim:0");
    const uint64_t x[2] = {FEW, HID}, k[2] = {FEW, 1}, bytes[4] = {FEW * HID * 4, FEW * 4, FEW * 4, FEW * HID * 4};
    struct moert_layer_args host = {.size = sizeof(host)}, device = {.size = sizeof(device)};
    moert_buffer_t *buffers[4];
    moert_graph_t *graph;
    moert_queue_t *queue;

    cr_assert_eq(moert_queue_create(context, 0, 0, &queue, &err), MOERT_OK);
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(moert_buffer_alloc(context, 0, MOERT_MEMORY_DEVICE, bytes[i], 0, &buffers[i], &err), MOERT_OK);
        cr_assert_eq(moert_fill(queue, buffers[i], 0, 0, bytes[i], &err), MOERT_OK);
    }
    device.x = moert_tensor_device(buffers[0], 0, MOERT_F32, 2, x);
    device.ids = moert_tensor_device(buffers[1], 0, MOERT_I32, 2, k);
    device.weights = moert_tensor_device(buffers[2], 0, MOERT_F32, 2, k);
    device.output = moert_tensor_device(buffers[3], 0, MOERT_F32, 2, x);
    host = device;
    host.x = moert_tensor_host(x_host, MOERT_F32, 2, x);
    cr_expect_eq(moert_queue_capture_state(queue), MOERT_CAPTURE_NONE);
    cr_assert_eq(moert_capture_begin(queue, &err), MOERT_OK);
    cr_expect_eq(moert_queue_capture_state(queue), MOERT_CAPTURE_ACTIVE);
    cr_expect_eq(moert_layer_run(layer, queue, &device, &err), MOERT_E_USAGE);
    cr_expect(strstr(err.text, "call moert_layer_warm_up first"), "%s", err.text);
    cr_assert_eq(moert_capture_end(queue, &graph, &err), MOERT_OK);
    moert_graph_destroy(graph);
    cr_assert_eq(moert_layer_warm_up(layer, queue, FEW, &err), MOERT_OK, "%s", err.text);
    cr_assert_eq(moert_capture_begin(queue, &err), MOERT_OK);
    cr_expect_eq(moert_layer_run(layer, queue, &host, &err), MOERT_E_USAGE);
    cr_expect_str_eq(err.code, "state");
    cr_expect(strstr(err.text, "the queue is being captured, and this call has host tensors"), "%s", err.text);
    cr_expect_eq(moert_layer_run(layer, queue, &device, &err), MOERT_OK, "%s", err.text);
    cr_assert_eq(moert_capture_end(queue, &graph, &err), MOERT_OK);
    cr_expect_eq(moert_graph_launch(queue, graph, &err), MOERT_OK);
    cr_expect_eq(moert_queue_wait(queue, UINT64_MAX, UINT64_MAX, NULL, &err), MOERT_OK, "%s", err.text);
    moert_graph_destroy(graph);
    for (int i = 0; i < 4; i++)
        moert_buffer_free(buffers[i]);
    moert_queue_destroy(queue);
    moert_layer_destroy(layer);
    moert_context_destroy(context);
}

Test(sim, copies_between_buffers_and_devices)
{
    moert_context_t *context = open_sim(NULL);
    moert_buffer_t *a, *b, *c;
    moert_queue_t *queue;
    char in[64], out[64] = {0};

    memset(in, 0x5A, sizeof(in));
    cr_assert_eq(moert_queue_create(context, 0, 0, &queue, &err), MOERT_OK);
    cr_assert_eq(moert_buffer_alloc(context, 0, MOERT_MEMORY_DEVICE, 64, 0, &a, &err), MOERT_OK);
    cr_assert_eq(moert_buffer_alloc(context, 0, MOERT_MEMORY_DEVICE, 64, 0, &b, &err), MOERT_OK);
    cr_assert_eq(moert_buffer_alloc(context, 1, MOERT_MEMORY_DEVICE, 64, 0, &c, &err), MOERT_OK);
    cr_assert_eq(moert_copy_in(queue, a, 0, in, 64, &err), MOERT_OK);
    cr_assert_eq(moert_fill(queue, b, 0, 0, 64, &err), MOERT_OK);
    cr_expect_eq(moert_copy(queue, b, 32, a, 0, 16, &err), MOERT_OK, "%s", err.text);
    cr_expect_eq(moert_copy_out(queue, out, b, 0, 64, &err), MOERT_OK);
    cr_assert_eq(moert_queue_wait(queue, UINT64_MAX, UINT64_MAX, NULL, &err), MOERT_OK, "%s", err.text);
    for (int i = 0; i < 64; i++)
        cr_expect_eq(out[i], i >= 32 && i < 48 ? 0x5A : 0, "byte %d", i);
    cr_expect_eq(moert_copy(queue, b, 32, a, 0, 33, &err), MOERT_E_VALUE);
    cr_expect_eq(moert_copy(queue, b, 0, a, 64, 1, &err), MOERT_E_VALUE);
    cr_expect_eq(moert_copy(queue, c, 0, a, 0, 64, &err), MOERT_E_USAGE, "dst is on another device");
    cr_expect_str_eq(err.code, "device-mismatch");
    cr_expect_eq(moert_copy(queue, b, 0, c, 0, 64, &err), MOERT_OK, "%s", err.text);
    cr_expect_eq(moert_queue_wait(queue, UINT64_MAX, UINT64_MAX, NULL, &err), MOERT_OK, "%s", err.text);
    cr_expect_eq(moert_queue_wait_event(queue, 7, &err), MOERT_E_UNSUPPORTED);
    cr_expect_eq(moert_queue_record_event(queue, 7, &err), MOERT_E_UNSUPPORTED);
    cr_expect_eq(moert_queue_wait_event(NULL, 7, &err), MOERT_E_USAGE);
    moert_buffer_free(a);
    moert_buffer_free(b);
    moert_buffer_free(c);
    moert_queue_destroy(queue);
    moert_context_destroy(context);
}

Test(sim, a_tensor_of_the_other_device_is_refused)
{
    moert_context_t *context = open_sim(NULL);
    moert_layer_t *layer = make_layer(context, "sim:0");
    moert_buffer_t *foreign;
    moert_queue_t *queue;
    uint64_t x[2] = {T, HID}, k[2] = {T, 1};
    struct moert_layer_args a = {.size = sizeof(a)};

    cr_assert_eq(moert_queue_create(context, 0, 0, &queue, &err), MOERT_OK);
    cr_assert_eq(moert_buffer_alloc(context, 1, MOERT_MEMORY_DEVICE, sizeof(x_host), 0, &foreign, &err), MOERT_OK);
    a.x = moert_tensor_device(foreign, 0, MOERT_F32, 2, x);
    a.ids = moert_tensor_host(ids_host, MOERT_I32, 2, k);
    a.weights = moert_tensor_host(weights_host, MOERT_F32, 2, k);
    a.output = moert_tensor_host(y_host, MOERT_F32, 2, x);
    cr_assert_eq(moert_layer_run(layer, queue, &a, &err), MOERT_E_USAGE);
    cr_assert_str_eq(err.code, "device-mismatch");
    cr_assert(strstr(err.text, "sim:1") && strstr(err.text, "sim:0"), "%s", err.text);
    moert_buffer_free(foreign);
    moert_queue_destroy(queue);
    moert_layer_destroy(layer);
    moert_context_destroy(context);
}

Test(sim, a_lost_device_keeps_its_first_error)
{
    moert_context_t *context = open_sim("lost:2");
    moert_layer_t *layer = make_layer(context, "sim:0"), *other;
    moert_queue_t *queue, *second;

    cr_assert_eq(moert_queue_create(context, 0, 0, &queue, &err), MOERT_OK);
    cr_assert_eq(run_host(layer, queue), MOERT_OK, "%s", err.text);
    cr_assert_eq(run_host(layer, queue), MOERT_E_DEVICE);
    cr_assert(strstr(err.text, "SIM_ERROR_ILLEGAL_ADDRESS"), "%s", err.text);
    cr_assert_eq(run_host(layer, queue), MOERT_E_DEVICE, "the loss is sticky");
    cr_assert(strstr(err.text, "SIM_ERROR_ILLEGAL_ADDRESS"), "the first error is kept: %s", err.text);
    /* the other device still serves */
    other = make_layer(context, "sim:1");
    cr_assert_eq(moert_queue_create(context, 1, 0, &second, &err), MOERT_OK, "%s", err.text);
    cr_assert_eq(run_host(other, second), MOERT_OK, "%s", err.text);
    moert_queue_destroy(second);
    moert_layer_destroy(other);
    moert_queue_destroy(queue);
    moert_layer_destroy(layer);
    moert_context_destroy(context);
}

Test(sim, out_of_memory_is_an_error_with_numbers)
{
    for (int n = 1; n < 8; n++) {
        char fault[32];
        moert_context_t *context;
        moert_buffer_t *b[8] = {NULL};
        moert_status_t status = MOERT_OK;
        snprintf(fault, sizeof(fault), "alloc:%d", n);
        context = open_sim(fault);
        for (int i = 1; i <= n; i++) {
            status = moert_buffer_alloc(context, 0, MOERT_MEMORY_DEVICE, 1000, 0, &b[i], &err);
            cr_assert_eq(status, i == n ? MOERT_E_NOMEM : MOERT_OK);
        }
        cr_assert(strstr(err.text, "1000") && strstr(err.text, "free"), "%s", err.text);
        for (int i = 1; i < n; i++)
            moert_buffer_free(b[i]);
        moert_context_destroy(context);
    }
}

struct seen {
    char step[8];
    int failed, passed;
};

static void first_step(void *ctx, const struct moert_verify_result *r)
{
    struct seen *s = ctx;

    s->failed += r->outcome == MOERT_VERIFY_FAILED;
    s->passed += r->outcome == MOERT_VERIFY_PASSED;
    if (r->outcome == MOERT_VERIFY_FAILED && r->step[0] && !s->step[0])
        snprintf(s->step, sizeof(s->step), "%s", r->step);
}

Test(sim, verification_names_the_first_wrong_step)
{
    for (int step = 0; step <= 6; step++) {
        struct moert_context_options o = {.size = sizeof(o),
                                          .flags = MOERT_CONTEXT_F_NO_SELF_TEST | MOERT_CONTEXT_F_NO_MODULES};
        struct moert_verify_options v = {.size = sizeof(v), .ops = MOERT_VERIFY_LAYER, .quick = 1};
        struct seen seen = {{0}, 0, 0};
        char fault[16], want[16];
        moert_context_t *context;
        uint32_t failed = 0;
        snprintf(fault, sizeof(fault), "p%d", step);
        snprintf(want, sizeof(want), "P%d", step);
        context = open_sim(step ? fault : NULL);
        cr_assert_eq(moert_context_create(&o, &v.reference, &err), MOERT_OK, "%s", err.text);
        cr_assert_eq(moert_context_register(v.reference, &mcpu_driver, &err), MOERT_OK, "%s", err.text);
        cr_assert_eq(moert_verify_backend(context, "sim.reference", "sim:0", &v, first_step, &seen, &failed, &err),
                     MOERT_OK, "%s", err.text);
        if (step) {
            cr_expect(failed > 0, "fault p%d passed", step);
            cr_expect_str_eq(seen.step, want, "fault p%d was named %s", step, seen.step);
        } else {
            cr_expect_eq(failed, 0u);
            cr_expect(seen.passed > 5);
        }
        moert_context_destroy(v.reference);
        moert_context_destroy(context);
    }
}
