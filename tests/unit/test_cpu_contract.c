/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/test_cpu_contract.c: what cpu.reference and its device guarantee (layer.md 8, driver.h): determinism,
 * strides, the caller's floating-point state, a forked child, loading of weights, refusal of wrong calls, support
 * checks, copies. */
#include "config.h"

#include "tests/unit/cpu_layers.h"

#include <math.h>
#include <moert/lutb.h>
#include <moert/mxfp8.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

TestSuite(cpu_contract, .init = setup, .fini = teardown);

/* Same bits for 1, 2, 3 threads; for each token alone and in the batch; for the second run; inputs untouched. */
Test(cpu_contract, deterministic)
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
Test(cpu_contract, mxfp8_input)
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
Test(cpu_contract, strides_and_offsets)
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
Test(cpu_contract, floating_point_state)
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
Test(cpu_contract, forked_child)
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

Test(cpu_contract, ranges_each_once)
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

Test(cpu_contract, nan_codebook_is_refused)
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

Test(cpu_contract, export_import)
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

Test(cpu_contract, wrong_arguments)
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

Test(cpu_contract, wrong_layers)
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
Test(cpu_contract, workspace_sizes)
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
Test(cpu_contract, supports)
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

/* ---- single steps: the bytes of core/numerics ---- */

Test(cpu_contract, steps)
{
    float x[64] = {0}, back[64], decoded[512], expected[512];
    uint8_t codes[64], scales[2], codes2[64], scales2[2], packed[192], book[8];
    struct moert_drv_tensor tx = rig_tensor(&rig, x, MOERT_F32, 2, 1, 64),
                            tb = rig_tensor(&rig, back, MOERT_F32, 2, 1, 64);
    struct moert_drv_tensor tc = rig_tensor(&rig, codes, MOERT_F8_E4M3, 2, 1, 64);
    struct moert_drv_tensor ts = rig_tensor(&rig, scales, MOERT_U8, 2, 1, 2);
    struct moert_drv_tensor tp = rig_tensor(&rig, packed, MOERT_U8, 4, 1, 1, 1, 192);
    struct moert_drv_tensor tl = rig_tensor(&rig, book, MOERT_F8_E4M3, 4, 1, 1, 1, 8);
    struct moert_drv_tensor td = rig_tensor(&rig, decoded, MOERT_F32, 3, 1, 8, 64);
    const struct moert_step_ops *steps = mcpu_driver.steps;

    for (int i = 0; i < 64; i++)
        x[i] = rng_normal();
    fill_lutb(packed, book, 1);
    RIG_OK(&rig, steps->quantize(rig.queue, NULL, &tx, &tc, &ts, &rig.err));
    RIG_OK(&rig, moert_mxfp8_quantize(x, MOERT_F32, 1, 64, 0, NULL, codes2, scales2, NULL, &rig.err));
    cr_assert_arr_eq(codes, codes2, 64);
    cr_assert_arr_eq(scales, scales2, 2);
    RIG_OK(&rig, steps->dequantize(rig.queue, &tc, &ts, &tb, &rig.err));
    for (int i = 0; i < 64; i++)
        cr_assert_eq(back[i], moert_e4m3_decode(codes[i]) * moert_e8m0_decode(scales[i / 32]));
    RIG_OK(&rig, steps->lutb_decode(rig.queue, &tp, &tl, &td, &rig.err));
    RIG_OK(&rig, moert_lutb_decode(packed, book, 8, 64, expected, MOERT_F32, &rig.err));
    cr_assert_arr_eq(decoded, expected, sizeof(decoded));
    td.shape[2] = 32;
    RIG_FAILS(&rig, steps->lutb_decode(rig.queue, &tp, &tl, &td, &rig.err), MOERT_E_SHAPE, "tensor-shape");
    {
        struct moert_layer_config c = rig_config(64, 32, 1, 1, MOERT_F32, MOERT_SCHEME_F32, MOERT_SCHEME_NONE);
        struct moert_drv_tensor c2 = rig_tensor(&rig, back, MOERT_F32, 2, 1, 32);
        struct moert_activation_params p;
        RIG_OK(&rig, steps->activation(rig.queue, &c, &tx, &c2, &rig.err));
        RIG_OK(&rig, moert_activation_resolve(&c, &p, &rig.err));
        for (int i = 0; i < 32; i++)
            cr_assert_eq(back[i], (float)moert_activation_eval(&p, (double)x[i], (double)x[32 + i]));
    }
}

/* ---- device ---- */

Test(cpu_contract, device)
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
