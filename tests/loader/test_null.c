/* tests/loader/test_null.c: the null driver keeps the contract that it is the template for: what its backend claims,
 * what it refuses, what it writes. */
#include "config.h"

#include "drivers/null/null.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

TestSuite(null, .timeout = 30);

const struct moert_driver *moert_driver_v1(uint32_t host_minor);

static struct moert_error err = MOERT_ERROR_INIT;
static moert_drv *drv;
static moert_drv_device *device;
static moert_drv_queue *queue;

/* Counts live allocations, so that a leak of the driver shows. */
static int live;

static void *counted_alloc(void *ctx, uint64_t bytes, uint64_t alignment)
{
    void *memory = NULL;

    (void)ctx;
    if (bytes > (1u << 20) || posix_memalign(&memory, alignment < 8 ? 8 : alignment, bytes))
        return NULL;
    live++;
    return memory;
}

static void counted_free(void *ctx, void *pointer)
{
    (void)ctx;
    live -= pointer != NULL;
    free(pointer);
}

static const struct moert_host host = {.size = sizeof(host), .alloc = counted_alloc, .free = counted_free};

static void set_up(void)
{
    const struct moert_driver *d = moert_driver_v1(MOERT_DRIVER_ABI_MINOR);

    cr_assert_eq(d->ops->open(&host, &drv, &err), MOERT_OK);
    cr_assert_eq(d->device->open(drv, 0, NULL, &device, &err), MOERT_OK);
    cr_assert_eq(d->device->queue_create(device, 0, &queue, &err), MOERT_OK);
}

static void tear_down(void)
{
    mnull_device_ops.queue_destroy(queue);
    mnull_device_ops.close(device);
    moert_driver_v1(0)->ops->close(drv);
    cr_expect_eq(live, 0, "%d allocations were not given back", live);
}

static struct moert_layer_config layer_config(void)
{
    return (struct moert_layer_config){.size = sizeof(struct moert_layer_config),
                                       .dtype = MOERT_BF16,
                                       .hidden_size = 64,
                                       .intermediate_size = 32,
                                       .num_experts = 4,
                                       .num_local_experts = 4,
                                       .top_k = 2,
                                       .weight_scheme = MOERT_SCHEME_LUT_B,
                                       .activation_scheme = MOERT_SCHEME_MXFP8,
                                       .max_tokens = 16};
}

Test(null, table_is_constant)
{
    cr_expect_eq(moert_driver_v1(0), moert_driver_v1(99));
    cr_expect_str_eq(moert_driver_v1(0)->name, "null");
    cr_expect(mnull_zero.flags & MOERT_BACKEND_F_OPT_IN, "never chosen by itself");
    cr_expect_eq(mnull_zero.numeric_class, MOERT_CLASS_LOWER_PRECISION);
}

static void count_verdicts(void *ctx, const struct moert_check *check)
{
    ((unsigned *)ctx)[check->verdict]++;
}

Test(null, accepts_every_scheme_and_activation_and_only_its_device)
{
    struct moert_device_desc desc = {.size = sizeof(desc)};
    struct moert_layer_config layer = layer_config();
    unsigned verdicts[3] = {0};
    const struct moert_check_sink sink = {.size = sizeof(sink), .ctx = verdicts, .report = count_verdicts};

    mnull_describe(&desc);
    for (uint32_t s = 0; s < mnull_zero.scheme_count; s++)
        for (uint32_t a = 0; a < MOERT_ACT_COUNT; a++) {
            layer.weight_scheme = mnull_zero.schemes[s].weight;
            layer.activation_scheme = mnull_zero.schemes[s].activation;
            layer.activation = a;
            mnull_zero.ops->supports(&mnull_zero, &desc, &layer, &sink);
        }
    cr_expect_eq(verdicts[MOERT_FAIL], 0);
    cr_expect_gt(verdicts[MOERT_PASS], 0);
    strcpy(desc.arch, "sm_90");
    mnull_zero.ops->supports(&mnull_zero, &desc, &layer, &sink);
    cr_expect_eq(verdicts[MOERT_FAIL], 1);
}

Test(null, run_writes_zeros_in_its_rows_only, .init = set_up, .fini = tear_down)
{
    const struct moert_backend_ops *ops = mnull_zero.ops;
    struct moert_layer_config config = layer_config();
    struct moert_run_args args = {.size = sizeof(args), .tokens = 3};
    struct moert_counters counters = {.size = sizeof(counters)};
    unsigned char bytes[3 * 160 + 2];
    moert_drv_layer *layer;

    memset(bytes, 0xaa, sizeof(bytes));
    cr_assert_eq(ops->create(device, &mnull_zero, &config, &layer, &err), MOERT_OK);
    cr_assert_eq(mnull_device_ops.buffer_import(device, MOERT_MEMORY_HOST, (uint64_t)(uintptr_t)bytes, sizeof(bytes),
                                                &args.output.buffer, &err),
                 MOERT_OK);
    args.output.offset = 2;
    args.output.dtype = MOERT_BF16;
    args.output.rank = 2;
    args.output.shape[0] = 3;
    args.output.shape[1] = 64;
    args.output.strides[0] = 80; /* rows of 64 in lines of 80 elements */
    args.output.strides[1] = 1;
    cr_assert_eq(ops->run(layer, queue, &args, &err), MOERT_OK, "%s", err.text);
    for (size_t i = 0; i < sizeof(bytes); i++)
        cr_expect_eq(bytes[i], i >= 2 && (i - 2) % 160 < 128 ? 0 : 0xaa, "byte %zu", i);
    cr_expect_eq(mnull_device_ops.queue_last(queue), 1);
    cr_assert_eq(ops->counters(layer, &counters, &err), MOERT_OK);
    cr_expect_eq(counters.by_implementation[0].runs, 1);
    cr_expect_eq(counters.by_implementation[0].tokens, 3);
    mnull_device_ops.buffer_free(device, args.output.buffer);
    ops->release(layer);
}

Test(null, run_refuses_before_it_writes, .init = set_up, .fini = tear_down)
{
    const struct moert_backend_ops *ops = mnull_zero.ops;
    struct moert_layer_config config = layer_config();
    struct moert_run_args good = {.size = sizeof(good), .tokens = 2}, args;
    unsigned char bytes[256];
    moert_drv_layer *layer;

    memset(bytes, 0xaa, sizeof(bytes));
    cr_assert_eq(ops->create(device, &mnull_zero, &config, &layer, &err), MOERT_OK);
    mnull_device_ops.buffer_import(device, MOERT_MEMORY_HOST, (uint64_t)(uintptr_t)bytes, sizeof(bytes),
                                   &good.output.buffer, &err);
    good.output.dtype = MOERT_BF16;
    good.output.rank = 2;
    good.output.shape[0] = 2;
    good.output.shape[1] = 64;
    good.output.strides[0] = 64;
    good.output.strides[1] = 1;
    args = good;
    args.output.buffer = NULL;
    cr_expect_eq(ops->run(layer, queue, &args, &err), MOERT_E_USAGE);
    args = good;
    args.flags = MOERT_RUN_F_UNREDUCED;
    cr_expect_eq(ops->run(layer, queue, &args, &err), MOERT_E_USAGE);
    args = good;
    args.tokens = 3;
    cr_expect_eq(ops->run(layer, queue, &args, &err), MOERT_E_SHAPE);
    args = good;
    args.output.dtype = MOERT_F32;
    cr_expect_eq(ops->run(layer, queue, &args, &err), MOERT_E_DTYPE);
    args = good;
    args.output.offset = 2;
    cr_expect_eq(ops->run(layer, queue, &args, &err), MOERT_E_SHAPE);
    cr_expect_str_eq(err.text, "output ends at byte 258 of a buffer of 256");
    for (size_t i = 0; i < sizeof(bytes); i++)
        cr_expect_eq(bytes[i], 0xaa);
    cr_expect_eq(mnull_device_ops.queue_last(queue), 0);
    cr_expect_eq(ops->run(layer, queue, &good, &err), MOERT_OK, "a failed run leaves the layer usable");
    mnull_device_ops.buffer_free(device, good.output.buffer);
    ops->release(layer);
}

Test(null, experts_outside_the_layer_are_refused, .init = set_up, .fini = tear_down)
{
    struct moert_layer_config config = layer_config();
    struct moert_expert_weights weights = {.size = sizeof(weights), .first = 3, .count = 1};
    moert_drv_layer *layer;

    cr_assert_eq(mnull_zero.ops->create(device, &mnull_zero, &config, &layer, &err), MOERT_OK);
    cr_expect_eq(mnull_zero.ops->prepare(layer, &weights, &err), MOERT_OK);
    weights.count = UINT32_MAX;
    cr_expect_eq(mnull_zero.ops->prepare(layer, &weights, &err), MOERT_E_SHAPE);
    cr_expect_str_eq(err.text, "4294967295 experts from 3 on, the layer has 4");
    weights.count = 1;
    cr_expect_eq(mnull_zero.ops->update(layer, queue, &weights, &err), MOERT_OK);
    cr_expect_eq(mnull_device_ops.queue_last(queue), 1);
    mnull_zero.ops->release(layer);
}

Test(null, memory_that_is_not_there, .init = set_up, .fini = tear_down)
{
    moert_drv_buffer *buffer = NULL;

    cr_expect_eq(mnull_device_ops.buffer_alloc(device, MOERT_MEMORY_DEVICE, 1u << 21, 0, &buffer, &err), MOERT_E_NOMEM);
    cr_expect_str_eq(err.text, "null: 2097152 bytes wanted");
    cr_expect_null(buffer);
}
