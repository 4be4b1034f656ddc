/* tests/loader/test_checks.c: capability tables become support checks with the codes, order and values of oracle.md 3.
 */
#include "config.h"

#include "drivers/common/abi.h"
#include "drivers/common/checks.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>

TestSuite(checks, .timeout = 30);

/* Checks as lines "code verdict field op have need fix". */
static char lines[64][256];
static unsigned count;

static void print_value(char *out, size_t size, const struct moert_value *v)
{
    size_t n = 0;

    switch (v->kind) {
    case MOERT_VALUE_INT: snprintf(out, size, "%lld", (long long)v->integer); break;
    case MOERT_VALUE_BOOL: snprintf(out, size, "%s", v->integer ? "true" : "false"); break;
    case MOERT_VALUE_STRING: snprintf(out, size, "%s", v->string); break;
    case MOERT_VALUE_LIST:
        out[0] = 0;
        for (const char *const *s = v->list; *s; s++)
            n += (size_t)snprintf(out + n, size - n, "%s%s", n ? "|" : "", *s);
        break;
    default: snprintf(out, size, "-");
    }
}

static void note(void *ctx, const struct moert_check *c)
{
    static const char *const verdicts[] = {"pass", "fail", "abstain"};
    static const char *const ops[] = {"none", "eq", "in", "ge", "le", "lt", "multiple", "has"};
    char have[96], need[96];

    (void)ctx;
    cr_assert_lt(count, 64);
    cr_expect_eq(c->size, sizeof(*c));
    print_value(have, sizeof(have), &c->have);
    print_value(need, sizeof(need), &c->need);
    snprintf(lines[count++], sizeof(*lines), "%s %s %s %s %s %s %s", c->code, verdicts[c->verdict], c->field,
             ops[c->op], have, need, c->fix ? c->fix : "-");
}

static const struct moert_check_sink sink = {.size = sizeof(sink), .report = note};

static const struct moert_scheme_pair schemes[] = {{MOERT_SCHEME_LUT_B, MOERT_SCHEME_MXFP8},
                                                   {MOERT_SCHEME_MXFP8, MOERT_SCHEME_MXFP8},
                                                   {MOERT_SCHEME_MXFP8, MOERT_SCHEME_NONE}};
static const char *const archs[] = {"sm_100", "sm_103", NULL};
static const char *const features[] = {"lutb_mma", NULL};
static const struct mdrv_param_rule rules[] = {
    {MOERT_ACT_SWIGLUOAI_UNINTERLEAVE, MOERT_PARAM_SWIGLU_ALPHA, MDRV_PARAM_EQUALS, 1.702},
    {MOERT_ACT_SILU, MOERT_PARAM_SWIGLU_LIMIT, MDRV_PARAM_UNSET, 0}};
static const struct mdrv_caps caps = {
    .archs = archs,
    .features = features,
    .runtime_min = "13.4",
    .dtypes = MDRV_BIT(MOERT_BF16),
    .activations = MDRV_BIT(MOERT_ACT_SILU) | MDRV_BIT(MOERT_ACT_SWIGLUOAI_UNINTERLEAVE),
    .w13_orders = MDRV_BIT(MOERT_W13_GATE_UP),
    .routers = MDRV_BIT(MOERT_ROUTER_SOFTMAX),
    .logits_dtypes = MDRV_BIT(MOERT_F32),
    .hidden_multiple = 128,
    .intermediate_multiple = 128,
    .experts_max = 256,
    .topk_max = 8,
    .tokens_max = 16,
    .param_rules = rules,
    .param_rule_count = 2,
};
static const struct moert_backend backend = {
    .size = sizeof(backend), .flags = MOERT_BACKEND_F_ROUTES, .name = "cuda.x", .schemes = schemes, .scheme_count = 3};

static struct moert_device_desc device(void)
{
    return (struct moert_device_desc){
        .size = sizeof(struct moert_device_desc), .arch = "sm_100", .features = "tma lutb_mma", .runtime = "13.4"};
}

static struct moert_layer_config layer(void)
{
    return (struct moert_layer_config){.size = sizeof(struct moert_layer_config),
                                       .dtype = MOERT_BF16,
                                       .hidden_size = 2048,
                                       .intermediate_size = 768,
                                       .num_experts = 128,
                                       .num_local_experts = 128,
                                       .top_k = 8,
                                       .weight_scheme = MOERT_SCHEME_LUT_B,
                                       .activation_scheme = MOERT_SCHEME_MXFP8,
                                       .activation = MOERT_ACT_SILU,
                                       .max_tokens = 16,
                                       .router = {.kind = MOERT_ROUTER_SOFTMAX, .logits_dtype = MOERT_F32}};
}

static void ask(const struct moert_device_desc *d, const struct moert_layer_config *l)
{
    count = 0;
    mdrv_caps_report(&backend, &caps, d, l, &sink);
}

static unsigned fails(void)
{
    unsigned n = 0;

    for (unsigned i = 0; i < count; i++)
        n += strstr(lines[i], " fail ") != NULL;
    return n;
}

static void expect_line(const char *line)
{
    for (unsigned i = 0; i < count; i++)
        if (!strcmp(lines[i], line))
            return;
    for (unsigned i = 0; i < count; i++)
        fprintf(stderr, "  %s\n", lines[i]);
    cr_expect_fail("no check \"%s\"", line);
}

Test(checks, a_layer_that_fits_answers_every_question_in_order)
{
    static const char *const wanted[] = {
        "arch pass device.arch in sm_100 sm_100|sm_103 -",
        "feature pass device.features has tma lutb_mma lutb_mma -",
        "runtime pass device.runtime ge 13.4 13.4 -",
        "scheme pass weight_scheme in lut-b lut-b|mxfp8 -",
        "scheme pass activation_scheme eq mxfp8 mxfp8 -",
        "dtype pass dtype eq BF16 BF16 -",
        "act-and-mul pass activation eq true true -",
        "activation pass activation in silu silu|swigluoai_uninterleave -",
        "activation-param pass swiglu_limit eq unset unset -",
        "w13-order pass w13_order eq gate_up gate_up -",
        "bias pass has_bias eq false false -",
        "hidden-multiple pass hidden_size multiple 2048 128 -",
        "intermediate-multiple pass intermediate_size multiple 768 128 -",
        "experts-max pass num_experts le 128 256 -",
        "topk-max pass top_k le 8 8 -",
        "tokens-max pass max_tokens le 16 16 -",
        "map-kind pass expert_map eq false false -",
        "routing-method pass router.kind eq softmax softmax -",
        "logits-dtype pass router.logits_dtype eq F32 F32 -",
        "input-weight pass apply_router_weight_on_input eq false false -",
    };
    struct moert_device_desc d = device();
    struct moert_layer_config l = layer();

    ask(&d, &l);
    cr_expect_eq(count, sizeof(wanted) / sizeof(*wanted));
    for (unsigned i = 0; i < count && i < sizeof(wanted) / sizeof(*wanted); i++)
        cr_expect_str_eq(lines[i], wanted[i]);
}

Test(checks, every_failure_is_reported_with_its_numbers_and_fix)
{
    struct moert_device_desc d = device();
    struct moert_layer_config l = layer();

    strcpy(d.arch, "sm_90");
    strcpy(d.features, "lutb_mma2 tma");
    strcpy(d.runtime, "13.0");
    l.weight_scheme = MOERT_SCHEME_BF16;
    l.dtype = MOERT_F32;
    l.activation = MOERT_ACT_RELU2_NO_MUL;
    l.has_bias = 1;
    l.hidden_size = 2880;
    l.intermediate_size = 96;
    l.num_experts = 256;
    l.num_fused_shared = 1;
    l.max_tokens = 32;
    l.expert_map_length = 256;
    l.router.kind = MOERT_ROUTER_SIGMOID;
    l.router.logits_dtype = MOERT_BF16;
    l.apply_router_weight_on_input = 1;
    ask(&d, &l);
    expect_line("arch fail device.arch in sm_90 sm_100|sm_103 run on a sm_100 device");
    expect_line("feature fail device.features has lutb_mma2 tma lutb_mma run on a device that has lutb_mma");
    expect_line("runtime fail device.runtime ge 13.0 13.4 runtime 13.4 or later");
    expect_line("scheme fail weight_scheme in bf16 lut-b|mxfp8 weight_scheme lut-b");
    expect_line("dtype fail dtype eq F32 BF16 dtype BF16");
    expect_line("act-and-mul fail activation eq false true a gated activation");
    expect_line("activation fail activation in relu2_no_mul silu|swigluoai_uninterleave activation silu");
    expect_line("bias fail has_bias eq true false has_bias false");
    expect_line("hidden-multiple fail hidden_size multiple 2880 128 pad hidden_size to 2944");
    expect_line("intermediate-multiple fail intermediate_size multiple 96 128 pad intermediate_size to 128");
    expect_line("experts-max fail num_experts le 257 256 fewer experts per layer");
    expect_line("topk-max fail top_k le 9 8 fewer experts per token");
    expect_line("tokens-max fail max_tokens le 32 16 max_tokens 16");
    expect_line("map-kind fail expert_map eq true false no expert_map");
    expect_line("routing-method fail router.kind eq sigmoid softmax router.kind softmax");
    expect_line("logits-dtype fail router.logits_dtype eq BF16 F32 router.logits_dtype F32");
    expect_line("input-weight fail apply_router_weight_on_input eq true false apply_router_weight_on_input false");
    cr_expect_eq(fails(), 17);
}

/* C51: a set of archs is a set, never a range. */
Test(checks, archs_are_exact)
{
    static const char *const names[] = {"sm_90", "sm_100", "sm_103", "sm_107", "sm_110", "sm_120", "sm_121"};
    struct moert_layer_config l = layer();

    for (size_t i = 0; i < 7; i++) {
        struct moert_device_desc d = device();
        strcpy(d.arch, names[i]);
        ask(&d, &l);
        cr_expect_eq(!strncmp(lines[0], "arch pass", 9), i == 1 || i == 2, "%s", lines[0]);
    }
}

Test(checks, activation_is_asked_as_a_pair_with_its_parameters)
{
    struct moert_device_desc d = device();
    struct moert_layer_config l = layer();

    l.params_set = MOERT_PARAM_SWIGLU_LIMIT;
    l.swiglu_limit = 7;
    ask(&d, &l);
    expect_line("activation-param fail swiglu_limit eq 7 unset swiglu_limit unset");
    l.activation = MOERT_ACT_SWIGLUOAI_UNINTERLEAVE;
    l.params_set |= MOERT_PARAM_SWIGLU_ALPHA;
    l.swiglu_alpha = 1.702;
    ask(&d, &l);
    expect_line("activation-param pass swiglu_alpha eq 1.702 1.702 -");
    cr_expect_eq(fails(), 0);
    l.swiglu_alpha = 1;
    ask(&d, &l);
    expect_line("activation-param fail swiglu_alpha eq 1 1.702 swiglu_alpha 1.702");
    l.params_set |= 1u << 20;
    ask(&d, &l);
    expect_line("activation-param abstain params_set le 1048579 31 -");
}

/* Q12: what a later header adds is abstained from, not refused. */
Test(checks, unknown_later_field_abstains)
{
    struct {
        struct moert_layer_config layer;
        uint64_t later;
    } l = {.layer = layer()};
    struct moert_device_desc d = device();

    l.layer.size = sizeof(l);
    ask(&d, &l.layer);
    cr_expect_eq(count, 20, "a tail of zeros says nothing");
    l.later = 1;
    ask(&d, &l.layer);
    cr_expect_eq(count, 21);
    cr_expect_not_null(strstr(lines[20], "unknown-field abstain layer.size le "), "%s", lines[20]);
    cr_expect_eq(fails(), 0);
}

Test(checks, values_out_of_every_enum_fail_quietly)
{
    struct moert_device_desc d = device();
    struct moert_layer_config l = layer();

    l.dtype = l.weight_scheme = l.activation_scheme = l.activation = l.w13_order = 0xffffffffu;
    l.router.kind = l.router.logits_dtype = 77;
    l.hidden_size = l.intermediate_size = l.max_tokens = UINT64_MAX;
    l.num_experts = l.top_k = l.num_fused_shared = 0xffffffffu;
    ask(&d, &l);
    expect_line("activation fail activation in 4294967295 silu|swigluoai_uninterleave activation silu");
    expect_line("routing-method fail router.kind eq 77 softmax router.kind softmax");
    cr_expect_gt(fails(), 8);
}

Test(checks, runtime_versions)
{
    cr_expect_lt(mdrv_version_compare("9.9", "13.0"), 0);
    cr_expect_eq(mdrv_version_compare("13.0", "13.0"), 0);
    cr_expect_eq(mdrv_version_compare("13", "13.0"), 0);
    cr_expect_gt(mdrv_version_compare("13.10", "13.4"), 0);
    cr_expect_gt(mdrv_version_compare("7.0.1", "7.0"), 0);
}

/* ---- the note that names a library ---- */

MDRV_DLOPEN_NOTE(test, "a vendor's driver", "suggested", "\"libvendor.so.2\",\"libvendor.so.1\"");

/* Layout of an ELF note: sizes of name and text, type, "FDO" with its NUL, the text. */
Test(checks, dlopen_note_is_an_elf_note)
{
    cr_expect_eq(mdrv_dlopen_note_test.name_size, 4);
    cr_expect_eq(mdrv_dlopen_note_test.type, 0x407c0c0au);
    cr_expect_eq((size_t)((const char *)mdrv_dlopen_note_test.text - (const char *)&mdrv_dlopen_note_test), 16);
    cr_expect_eq(mdrv_dlopen_note_test.text_size, strlen(mdrv_dlopen_note_test.text) + 1);
    cr_expect_str_eq(mdrv_dlopen_note_test.text,
                     "[{\"feature\":\"test\",\"description\":\"a vendor's driver\",\"priority\":\"suggested\","
                     "\"soname\":[\"libvendor.so.2\",\"libvendor.so.1\"]}]");
}

/* ---- tensors at the boundary ---- */

static struct moert_drv_tensor matrix(uint64_t rows, uint64_t columns, int64_t stride)
{
    return (struct moert_drv_tensor){.buffer = (moert_drv_buffer *)lines,
                                     .dtype = MOERT_BF16,
                                     .rank = 2,
                                     .shape = {rows, columns},
                                     .strides = {stride, 1}};
}

Test(checks, tensor_ends_and_offsets_are_64_bit)
{
    struct moert_drv_tensor t = matrix(3, 8, 8);
    struct moert_error err = MOERT_ERROR_INIT;
    uint64_t end;

    cr_expect(mdrv_tensor_end(&t, &end) && end == 48);
    cr_expect(mdrv_tensor_is_dense(&t));
    t.offset = 16;
    t.strides[0] = 10;
    cr_expect(mdrv_tensor_end(&t, &end) && end == 16 + 2 * 28);
    cr_expect(!mdrv_tensor_is_dense(&t));
    cr_expect_eq(mdrv_tensor_check(&t, 72, "x", &err), MOERT_OK);
    cr_expect_eq(mdrv_tensor_check(&t, 71, "x", &err), MOERT_E_SHAPE);
    cr_expect_str_eq(err.text, "x ends at byte 72 of a buffer of 71");
    t.shape[0] = 0;
    cr_expect(mdrv_tensor_end(&t, &end) && end == 16 && mdrv_tensor_is_dense(&t));
    t = matrix(70000, 70000, 70000);
    cr_expect_eq(mdrv_tensor_at(&t, (const uint64_t[]){69999, 69999}), 9799999998ull);
    t = matrix(UINT64_MAX, 2, INT64_MAX);
    cr_expect(!mdrv_tensor_end(&t, &end));
    cr_expect_eq(mdrv_tensor_check(&t, UINT64_MAX, "x", &err), MOERT_E_TOO_LARGE);
    t = matrix(2, 2, -2);
    cr_expect(!mdrv_tensor_end(&t, &end));
    t.rank = 9;
    cr_expect(!mdrv_tensor_end(&t, &end));
    t = matrix(2, 2, 2);
    t.dtype = 99;
    cr_expect_eq(mdrv_tensor_check(&t, 100, "x", &err), MOERT_E_DTYPE);
}

Test(checks, copy_ranges)
{
    cr_expect_eq(mdrv_range_check(0, 8, 8, NULL), MOERT_OK);
    cr_expect_eq(mdrv_range_check(8, 0, 8, NULL), MOERT_OK);
    cr_expect_eq(mdrv_range_check(1, 8, 8, NULL), MOERT_E_VALUE);
    cr_expect_eq(mdrv_range_check(UINT64_MAX, 2, 8, NULL), MOERT_E_VALUE);
}
