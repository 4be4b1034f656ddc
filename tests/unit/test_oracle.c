/* The oracle's first floor: oracle.md 3, 4, 6, 8, 10, 11, 12 and the cases of 13 that need no rules file. */
#include "unit/oracle_world.h"

#include "core/oracle/trail.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CODE(c, h, n)                                                                                                  \
    {                                                                                                                  \
        .size = sizeof(struct moert_check), .verdict = MOERT_FAIL, .op = MOERT_OP_EQ, .code = c, .field = "f",         \
        .have = {.kind = MOERT_VALUE_STRING, .string = h}, .need = {                                                   \
            .kind = MOERT_VALUE_STRING,                                                                                \
            .string = n                                                                                                \
        }                                                                                                              \
    }

/* ------------------------------------------------------------------ drivers of the tests */

static const struct moert_device_desc acc_devices[] = {
    {.id = "acc:0", .arch = "a1", .name = "Accelerator", .runtime = "1.0", .kind = MOERT_DEVICE_GPU}};
static const struct moert_device_desc many_devices[] = {{.id = "many:10", .arch = "m1"},
                                                        {.id = "many:2", .arch = "m1"}};
static const struct moert_device_desc mem_devices[] = {
    {.id = "mem:0", .arch = "x", .memory_total = 10 * FAKE_GIB, .memory_free = 4 * FAKE_GIB}};
static const struct moert_device_desc low_devices[] = {{.id = "low:0", .arch = "l1"}};

static const struct fake_script any = {.weights = 1000, .workspace = 10};
static const char *const acc_y_aliases[] = {"yankee", "Y-Two", NULL};
static const char *const acc_ref_aliases[] = {"emulation", NULL};

static const struct fake_script limited = {.tokens_max = 16, .weights = 1};
FAKE_BACKEND(acc_x, "acc.x", 90, &limited, .numeric_class = MOERT_CLASS_SAME_ARITHMETIC);
FAKE_BACKEND(acc_y, "acc.y", 50, &any, .numeric_class = MOERT_CLASS_SAME_ARITHMETIC, .aliases = acc_y_aliases);
FAKE_BACKEND(acc_ref, "acc.reference", 0, &any, .aliases = acc_ref_aliases);
FAKE_DRIVER(acc, fake_probe, acc_devices, 1, &acc_x, &acc_y, &acc_ref);

static const struct moert_check three[] = {CODE("activation", "gelu", "silu"),
                                           CODE("dtype", "f32", "bf16"),
                                           {.size = sizeof(struct moert_check),
                                            .verdict = MOERT_FAIL,
                                            .op = MOERT_OP_MULTIPLE,
                                            .code = "intermediate-multiple",
                                            .field = "intermediate_size",
                                            .have = {.kind = MOERT_VALUE_INT, .integer = 2880},
                                            .need = {.kind = MOERT_VALUE_INT, .integer = 128},
                                            .fix = "pad to 2944"},
                                           {.code = NULL}};
static const struct fake_script script_three = {.checks = three};
FAKE_BACKEND(low_three, "low.three", 40, &script_three, .numeric_class = MOERT_CLASS_EXACT);
static const struct moert_check one_bias[] = {CODE("bias", "yes", "no"), {.code = NULL}};
static const struct fake_script script_bias = {.checks = one_bias};
FAKE_BACKEND(low_bias, "low.bias", 30, &script_bias);
static const struct moert_check one_lora[] = {CODE("lora", "on", "off"), {.code = NULL}};
static const struct fake_script script_lora = {.checks = one_lora};
FAKE_BACKEND(low_lora, "low.lora", 20, &script_lora);
FAKE_DRIVER(low, fake_probe, low_devices, 1, &low_lora, &low_three, &low_bias);

FAKE_BACKEND(many_a, "many.a", 60, &any);
FAKE_BACKEND(many_b, "many.b", 60, &any);
FAKE_DRIVER(many, fake_probe, many_devices, 2, &many_b, &many_a);

/* 3.5 GiB usable: 4 free less 5 % of 10. */
static const struct fake_script big = {.weights = 3 * FAKE_GIB + 1, .workspace = 32 * 1024 * 1024};
static const struct fake_script fits = {.weights = 3 * FAKE_GIB, .workspace = 1024 * 1024};
static const struct fake_script no_layout = {.layout_fails = 1};
FAKE_BACKEND(mem_big, "mem.big", 80, &big);
FAKE_BACKEND(mem_fits, "mem.fits", 70, &fits);
FAKE_BACKEND(mem_broken, "mem.broken", 90, &no_layout);
FAKE_DRIVER(mem, fake_probe, mem_devices, 1, &mem_big, &mem_fits, &mem_broken);

static const struct moert_device_desc opt_devices[] = {{.id = "opt:0", .arch = "o1"}};
FAKE_BACKEND(opt_in, "opt.generic", 99, &any, .flags = MOERT_BACKEND_F_OPT_IN, .auto_reason = "correctness backend");
FAKE_BACKEND(opt_plain, "opt.plain", 10, &any);
FAKE_BACKEND(opt_loose, "opt.loose", 95, &any, .numeric_class = MOERT_CLASS_LOWER_PRECISION);
FAKE_DRIVER(opt, fake_probe, opt_devices, 1, &opt_in, &opt_plain, &opt_loose);
FAKE_BACKEND(only_in, "only.generic", 99, &any, .flags = MOERT_BACKEND_F_OPT_IN, .auto_reason = "slow");
FAKE_DRIVER(only, fake_probe, low_devices, 1, &only_in);

static const struct moert_device_desc ph_devices[] = {{.id = "ph:0", .arch = "p"}};
FAKE_BACKEND_PHASES(ph_decode, "ph.decode", 9, 1, &any);
FAKE_BACKEND_PHASES(ph_prefill, "ph.prefill", 1, 9, &any);
FAKE_DRIVER(ph, fake_probe, ph_devices, 1, &ph_decode, &ph_prefill);

static const struct moert_device_desc ws_devices[] = {{.id = "ws:0", .arch = "w"}};
static const struct fake_script huge = {.workspace = FAKE_GIB};
FAKE_BACKEND(ws_huge, "ws.huge", 1, &huge);
FAKE_DRIVER(ws, fake_probe, ws_devices, 1, &ws_huge);

/* C51 and what-if: no device here, the module is. */
static const char *const blackwell[] = {"sm_100", "sm_103", NULL};
static const char *const rubin[] = {"sm_107", NULL};
static const struct fake_script script_blackwell = {.archs = blackwell, .weights = 5};
static const struct fake_script script_rubin = {.archs = rubin, .weights = 5};
FAKE_BACKEND(card_100, "card.sm100", 90, &script_blackwell, .numeric_class = MOERT_CLASS_SAME_ARITHMETIC);
FAKE_BACKEND(card_107, "card.lutb_sm107", 90, &script_rubin, .numeric_class = MOERT_CLASS_SAME_ARITHMETIC);
FAKE_DRIVER(card, fake_probe_none, low_devices, 0, &card_100, &card_107);

static const struct fake_script softmax_only = {
    .routers = (1u << MOERT_ROUTER_SOFTMAX) | (1u << MOERT_ROUTER_TOPK_SOFTMAX), .weights = 1};
static const struct moert_device_desc route_devices[] = {{.id = "route:0", .arch = "r1"}};
FAKE_BACKEND(route_x, "route.x", 90, &softmax_only);
FAKE_BACKEND(route_y, "route.y", 10, &any);
FAKE_DRIVER(route, fake_probe, route_devices, 1, &route_y, &route_x);

#define DRIVERS(...) ((const struct moert_driver *const[]){__VA_ARGS__, NULL})
#define WORLD(...)                                                                                                     \
    moert_context_t *context = make_context(DRIVERS(__VA_ARGS__));                                                     \
    struct moert_layer_config layer = make_layer();                                                                    \
    struct answer a
#define END()                                                                                                          \
    answer_free(&a);                                                                                                   \
    moert_context_destroy(context)

static struct moert_device_desc described(const char *id, const char *driver, const char *arch)
{
    struct moert_device_desc d = {.size = sizeof(d), .kind = MOERT_DEVICE_GPU};

    strcpy(d.id, id);
    strcpy(d.driver, driver);
    strcpy(d.arch, arch);
    return d;
}

/* ------------------------------------------------------------------ checks and order */

Test(oracle, q1_three_failing_checks_are_all_shown)
{
    WORLD(&low_driver, &acc_driver);
    const json_t *c;

    layer.max_tokens = 16;
    a = ask(context, &layer, NULL);
    cr_assert_eq(a.status, MOERT_OK, "%s", a.err.text);
    cr_expect_eq(fails(&a, "low.three@low:0"), 3);
    cr_expect_str_eq(text_of(candidate(&a, "low.three@low:0"), "verdict"), "refused");
    c = check(&a, "low.three@low:0", "intermediate-multiple");
    cr_expect_eq(json_integer_value(json_object_get(c, "have")), 2880);
    cr_expect_eq(json_integer_value(json_object_get(c, "need")), 128);
    cr_expect_str_eq(text_of(c, "op"), "multiple");
    cr_expect_str_eq(text_of(c, "fix"), "pad to 2944");
    cr_expect_str_eq(text_of(c, "field"), "intermediate_size");
    cr_expect(json_is_null(json_object_get(candidate(&a, "low.three@low:0"), "cost")));
    cr_expect_str_eq(text_of(json_object_get(candidate(&a, "acc.x@acc:0"), "driver"), "name"), "acc");
    cr_expect_str_eq(text_of(json_object_get(candidate(&a, "acc.x@acc:0"), "driver"), "version"), "1.0");
    END();
}

Test(oracle, c46_tokens_limit_gives_way_to_the_next)
{
    WORLD(&acc_driver);
    const json_t *c, *fallback, *warnings;

    a = ask(context, &layer, NULL);
    cr_assert_eq(a.status, MOERT_OK, "%s", a.err.text);
    cr_expect_str_eq(moert_decision_backend(a.decision), "acc.y");
    cr_expect_str_eq(moert_decision_device(a.decision), "acc:0");
    cr_expect_eq(moert_decision_class(a.decision), MOERT_CLASS_SAME_ARITHMETIC);
    cr_expect_str_eq(moert_decision_reason(a.decision), "static: priority 50");
    c = check(&a, "acc.x@acc:0", "tokens-max");
    cr_expect_str_eq(text_of(c, "verdict"), "fail");
    cr_expect_eq(json_integer_value(json_object_get(c, "have")), 32);
    cr_expect_eq(json_integer_value(json_object_get(c, "need")), 16);
    cr_expect_str_eq(text_of(c, "op"), "le");
    /* Right card, wrong shape: that is a fallback and is told (4.7, C53). */
    fallback = json_object_get(json_object_get(a.record, "decision"), "fallback");
    cr_expect_str_eq(text_of(fallback, "from"), "acc.x@acc:0");
    cr_expect_str_eq(text_of(fallback, "reason"), "tokens-max have 32 need <= 16");
    warnings = json_object_get(json_object_get(a.record, "decision"), "warnings");
    cr_assert_eq(json_array_size(warnings), 1);
    cr_expect(strstr(json_string_value(json_array_get(warnings, 0)), "layer model.layers.3.mlp.experts#3, rank 0: "));
    END();
}

Test(oracle, c48_explicit_backend_beats_a_higher_priority)
{
    WORLD(&acc_driver, &many_driver);

    a = ask(context, &layer, NULL);
    cr_expect_str_eq(moert_decision_backend(a.decision), "many.a");
    cr_expect_str_eq(text_of(decided_by(&a), "level"), "static");
    answer_free(&a);
    a = ask_for(context, &layer, "acc.y");
    cr_assert_eq(a.status, MOERT_OK, "%s", a.err.text);
    cr_expect_str_eq(moert_decision_backend(a.decision), "acc.y");
    cr_expect_str_eq(text_of(decided_by(&a), "level"), "user");
    cr_expect_str_eq(text_of(candidate(&a, "many.a@many:2"), "verdict"), "removed");
    cr_expect_str_eq(text_of(json_object_get(candidate(&a, "many.a@many:2"), "removed_by"), "code"), "rule-must");
    END();
}

Test(oracle, forced_name_by_alias_case_and_dash)
{
    static const char *const names[] = {"yankee", "YANKEE", "y_two", "Y-TWO", "ACC.Y", "acc.y@acc:0", "yankee@ACC:0"};
    WORLD(&acc_driver, &many_driver);

    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        a = ask_for(context, &layer, names[i]);
        cr_assert_eq(a.status, MOERT_OK, "%s: %s", names[i], a.err.text);
        cr_expect_str_eq(moert_decision_backend(a.decision), "acc.y");
        answer_free(&a);
    }
    a = ask_for(context, &layer, "many.b@many:10");
    cr_expect_str_eq(moert_decision_device(a.decision), "many:10");
    END();
}

Test(oracle, c50_opt_in_is_listed_and_not_chosen)
{
    WORLD(&opt_driver);
    const json_t *opt;

    a = ask(context, &layer, NULL);
    cr_expect_str_eq(moert_decision_backend(a.decision), "opt.plain");
    opt = json_object_get(a.record, "opt_in");
    cr_assert_eq(json_array_size(opt), 1);
    cr_expect_str_eq(text_of(json_array_get(opt, 0), "backend"), "opt.generic");
    cr_expect_str_eq(text_of(json_array_get(opt, 0), "reason"), "correctness backend");
    cr_expect_str_eq(text_of(candidate(&a, "opt.generic@opt:0"), "verdict"), "eligible");
    cr_expect(json_is_false(json_object_get(candidate(&a, "opt.generic@opt:0"), "auto")));
    cr_expect_str_eq(text_of(candidate(&a, "opt.generic@opt:0"), "auto_reason"), "correctness backend");
    cr_expect(json_is_null(json_object_get(json_object_get(a.record, "decision"), "fallback")));
    answer_free(&a);
    a = ask_for(context, &layer, "opt.generic");
    cr_expect_str_eq(moert_decision_backend(a.decision), "opt.generic");
    cr_expect_eq(json_array_size(json_object_get(a.record, "opt_in")), 0);
    END();
}

Test(oracle, opt_in_alone_is_an_error_that_says_so)
{
    WORLD(&only_driver);

    a = ask(context, &layer, NULL);
    cr_expect_eq(a.status, MOERT_E_NO_BACKEND);
    cr_expect(strstr(a.err.text, "only.generic@low:0 cannot serve: opt-in have not named need named (slow)"), "%s",
              a.err.text);
    cr_expect_eq(json_array_size(json_object_get(a.record, "opt_in")), 1);
    END();
}

Test(oracle, q4_lower_precision_is_never_chosen_by_itself)
{
    WORLD(&opt_driver);

    a = ask(context, &layer, NULL);
    cr_expect_str_eq(moert_decision_backend(a.decision), "opt.plain");
    cr_expect_str_eq(text_of(check(&a, "opt.loose@opt:0", "class"), "verdict"), "fail");
    cr_expect_str_eq(text_of(check(&a, "opt.loose@opt:0", "class"), "have"), "lower-precision");
    cr_expect(json_is_false(json_object_get(json_object_get(a.record, "decision"), "class_crossed")));
    answer_free(&a);
    a = ask_for(context, &layer, "opt.loose");
    cr_assert_eq(a.status, MOERT_OK, "%s", a.err.text);
    cr_expect_eq(moert_decision_class(a.decision), MOERT_CLASS_LOWER_PRECISION);
    cr_expect(json_is_true(json_object_get(json_object_get(a.record, "decision"), "class_crossed")));
    END();
}

Test(oracle, c52_forced_and_refused_is_an_error_never_another)
{
    WORLD(&low_driver, &acc_driver);

    a = ask_for(context, &layer, "low.three");
    cr_expect_eq(a.status, MOERT_E_NO_BACKEND);
    cr_expect_str_eq(a.err.code, "backend-refused");
    cr_expect_str_eq(a.err.text, "layer model.layers.3.mlp.experts#3: low.three@low:0 cannot serve: "
                                 "activation have gelu need silu; dtype have f32 need bf16; "
                                 "intermediate-multiple have 2880 need multiple of 128");
    cr_assert(a.decision);
    cr_expect_null(moert_decision_backend(a.decision));
    cr_expect_str_eq(text_of(a.record, "status"), "failed");
    cr_expect(json_is_null(json_object_get(a.record, "decision")));
    cr_expect_str_eq(text_of(json_object_get(a.record, "error"), "code"), "backend-refused");
    cr_expect_str_eq(text_of(candidate(&a, "acc.y@acc:0"), "verdict"), "removed");
    END();
}

Test(oracle, c54_error_carries_every_candidates_reason)
{
    WORLD(&low_driver);

    a = ask(context, &layer, NULL);
    cr_expect_eq(a.status, MOERT_E_NO_BACKEND);
    cr_expect(strstr(a.err.text, "low.three@low:0 cannot serve: activation have gelu need silu; dtype have f32 need "
                                 "bf16; intermediate-multiple have 2880 need multiple of 128\n"),
              "%s", a.err.text);
    cr_expect(strstr(a.err.text, "low.bias@low:0 cannot serve: bias have yes need no\n"), "%s", a.err.text);
    cr_expect(strstr(a.err.text, "low.lora@low:0 cannot serve: lora have on need off\n"), "%s", a.err.text);
    cr_expect(strstr(a.err.text, "marlin is not provided here: weight-only kernel"), "%s", a.err.text);
    END();
}

Test(oracle, c56_routing_method)
{
    WORLD(&route_driver);

    layer.router.kind = MOERT_ROUTER_SIGMOID;
    a = ask(context, &layer, NULL);
    cr_expect_str_eq(moert_decision_backend(a.decision), "route.y");
    cr_expect_str_eq(text_of(check(&a, "route.x@route:0", "routing-method"), "verdict"), "fail");
    cr_expect_str_eq(text_of(check(&a, "route.x@route:0", "routing-method"), "have"), "sigmoid");
    answer_free(&a);
    layer.router.kind = MOERT_ROUTER_SOFTMAX;
    a = ask(context, &layer, NULL);
    cr_expect_str_eq(moert_decision_backend(a.decision), "route.x");
    END();
}

Test(oracle, c59_first_yes_wins_over_a_later_no)
{
    WORLD(&many_driver, &low_driver);

    a = ask(context, &layer, NULL);
    cr_expect_str_eq(moert_decision_backend(a.decision), "many.a");
    cr_expect_str_eq(text_of(candidate(&a, "low.lora@low:0"), "verdict"), "refused");
    END();
}

Test(oracle, order_is_priority_then_name_then_device)
{
    static const char *const expected[] = {"many.a@many:2", "many.a@many:10", "many.b@many:2", "many.b@many:10"};
    WORLD(&low_driver, &many_driver);
    const json_t *list;
    char *first = NULL;

    for (int i = 0; i < 5; i++) {
        a = ask(context, &layer, NULL);
        list = json_object_get(a.record, "candidates");
        for (size_t j = 0; j < 4; j++)
            cr_expect_str_eq(text_of(json_array_get(list, j), "id"), expected[j]);
        cr_expect_str_eq(text_of(json_array_get(list, 4), "id"), "low.three@low:0");
        cr_expect_str_eq(text_of(json_array_get(list, 5), "id"), "low.bias@low:0");
        if (first)
            cr_expect_str_eq(moert_decision_json(a.decision), first);
        else
            first = strdup(moert_decision_json(a.decision));
        if (i < 4)
            answer_free(&a);
    }
    free(first);
    END();
}

Test(oracle, registration_order_does_not_matter)
{
    WORLD(&low_driver, &many_driver, &acc_driver);
    char *first;

    a = ask(context, &layer, NULL);
    first = strdup(moert_decision_json(a.decision));
    END();
    context = make_context(DRIVERS(&acc_driver, &low_driver, &many_driver));
    a = ask(context, &layer, NULL);
    cr_expect_str_eq(moert_decision_json(a.decision), first);
    free(first);
    END();
}

Test(oracle, adding_a_driver_alone_changes_the_ranking)
{
    WORLD(&acc_driver);

    a = ask(context, &layer, NULL);
    cr_expect_str_eq(moert_decision_backend(a.decision), "acc.y");
    answer_free(&a);
    cr_assert(!moert_context_register(context, &many_driver, NULL));
    a = ask(context, &layer, NULL);
    cr_expect_str_eq(moert_decision_backend(a.decision), "many.a");
    END();
}

Test(oracle, phase_picks_the_priority)
{
    static const struct {
        uint64_t tokens;
        const char *phase, *backend;
    } rows[] = {{1, "decode", "ph.decode"},
                {64, "decode", "ph.decode"},
                {65, "prefill", "ph.prefill"},
                {0, "prefill", "ph.prefill"}};
    WORLD(&ph_driver);
    struct moert_select_options o = {.size = sizeof(o)};

    layer.max_tokens = 8192;
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        o.tokens = rows[i].tokens;
        a = ask(context, &layer, &o);
        cr_expect_str_eq(moert_decision_backend(a.decision), rows[i].backend);
        cr_expect_str_eq(text_of(json_object_get(a.record, "question"), "phase"), rows[i].phase);
        answer_free(&a);
    }
    END();
}

/* ------------------------------------------------------------------ memory */

Test(oracle, q7_too_little_memory_picks_the_next)
{
    WORLD(&mem_driver);
    const json_t *c, *cost;
    uint64_t usable = 4 * FAKE_GIB - 10 * FAKE_GIB / 20;

    a = ask(context, &layer, NULL);
    cr_assert_eq(a.status, MOERT_OK, "%s", a.err.text);
    cr_expect_str_eq(moert_decision_backend(a.decision), "mem.fits");
    c = check(&a, "mem.big@mem:0", "memory");
    cr_expect_str_eq(text_of(c, "verdict"), "fail");
    cr_expect_eq((uint64_t)json_integer_value(json_object_get(c, "have")), usable);
    /* 32 tokens of 32 MiB are 1 GiB; the limit of 512 MiB cuts them into chunks of 16. */
    cr_expect_eq((uint64_t)json_integer_value(json_object_get(c, "need")), 3 * FAKE_GIB + 1 + FAKE_GIB / 2);
    cost = json_object_get(candidate(&a, "mem.fits@mem:0"), "cost");
    cr_expect_eq((uint64_t)json_integer_value(json_object_get(cost, "weights")), 3 * FAKE_GIB);
    cr_expect_eq(json_integer_value(json_object_get(cost, "workspace")), 32 * 1024 * 1024);
    cr_expect_str_eq(text_of(check(&a, "mem.fits@mem:0", "memory"), "verdict"), "pass");
    cr_expect_str_eq(text_of(check(&a, "mem.broken@mem:0", "memory"), "have"), "layout of the tests fails");
    END();
}

Test(oracle, workspace_limit_that_one_token_exceeds)
{
    WORLD(&ws_driver);

    a = ask_for(context, &layer, "ws.huge");
    cr_expect_eq(a.status, MOERT_E_NO_BACKEND);
    cr_expect(strstr(a.err.text, "workspace have 1073741824 need <= 536870912"), "%s", a.err.text);
    END();
}

/* The workspace is one buffer: a device that cannot hold that of one token refuses before a run does. */
static const struct fake_script script_buffer = {.workspace = 4096};
static const struct moert_device_desc buf_devices[] = {{.id = "buf:0", .arch = "b", .max_buffer = 4095},
                                                       {.id = "buf:1", .arch = "b", .max_buffer = 4096 * 5}};
FAKE_BACKEND(buf_one, "buf.one", 5, &script_buffer);
FAKE_DRIVER(buf, fake_probe, buf_devices, 2, &buf_one);

Test(oracle, workspace_that_the_largest_buffer_cannot_hold)
{
    WORLD(&buf_driver);
    const json_t *c, *cost;

    a = ask(context, &layer, NULL);
    cr_assert_eq(a.status, MOERT_OK, "%s", a.err.text);
    cr_expect_str_eq(moert_decision_device(a.decision), "buf:1");
    c = check(&a, "buf.one@buf:0", "workspace");
    cr_expect_str_eq(text_of(c, "verdict"), "fail");
    cr_expect_eq(json_integer_value(json_object_get(c, "have")), 4096);
    cr_expect_eq(json_integer_value(json_object_get(c, "need")), 4095);
    cr_expect_str_eq(text_of(c, "fix"), "a device with larger buffers");
    cost = json_object_get(candidate(&a, "buf.one@buf:1"), "cost");
    cr_expect_eq(json_integer_value(json_object_get(cost, "workspace")), 4096 * 5, "the largest chunk that fits");
    END();
}

/* ------------------------------------------------------------------ devices that are not here */

Test(oracle, c51_exact_architectures)
{
    static const char *const archs[] = {"sm_90", "sm_100", "sm_103", "sm_107", "sm_110", "sm_120", "sm_121"};
    WORLD(&card_driver);

    for (size_t i = 0; i < sizeof(archs) / sizeof(*archs); i++) {
        struct moert_device_desc d = described("card:x", "card", archs[i]);
        struct moert_select_options o = {
            .size = sizeof(o), .backend = "card.sm100", .described = &d, .described_count = 1};
        int good = !strcmp(archs[i], "sm_100") || !strcmp(archs[i], "sm_103");
        const json_t *first;

        a = ask(context, &layer, &o);
        cr_expect_eq(a.status, good ? MOERT_OK : MOERT_E_NO_BACKEND, "%s: %s", archs[i], a.err.text);
        first = json_array_get(json_object_get(candidate(&a, "card.sm100@card:x"), "checks"), 0);
        cr_expect_str_eq(text_of(first, "code"), "arch");
        cr_expect_str_eq(text_of(first, "verdict"), good ? "pass" : "fail");
        cr_expect_eq(json_array_size(json_object_get(first, "need")), 2);
        answer_free(&a);
    }
    END();
}

Test(oracle, q2_what_if_device_without_hardware)
{
    WORLD(&card_driver, &acc_driver);
    struct moert_device_desc d = described("card:x", "card", "sm_107");
    struct moert_select_options o = {.size = sizeof(o), .described = &d, .described_count = 1};

    a = ask(context, &layer, &o);
    cr_assert_eq(a.status, MOERT_OK, "%s", a.err.text);
    cr_expect_str_eq(moert_decision_backend(a.decision), "card.lutb_sm107");
    cr_expect_str_eq(moert_decision_device(a.decision), "card:x");
    cr_expect(moert_decision_is_what_if(a.decision));
    cr_expect_str_eq(text_of(a.record, "status"), "what-if");
    cr_expect(
        json_is_false(json_object_get(json_object_get(candidate(&a, "card.lutb_sm107@card:x"), "device"), "present")));
    cr_expect_null(check(&a, "card.lutb_sm107@card:x", "self-test"));
    answer_free(&a);
    /* Without the description the same module has no device. */
    a = ask(context, &layer, NULL);
    cr_expect_str_eq(moert_decision_backend(a.decision), "acc.y");
    cr_expect(!moert_decision_is_what_if(a.decision));
    cr_expect_str_eq(text_of(check(&a, "card.lutb_sm107@none", "driver-state"), "have"), "no-device");
    cr_expect_str_eq(text_of(check(&a, "card.lutb_sm107@none", "driver-state"), "need"), "ready");
    END();
}

Test(oracle, what_if_memory_is_checked)
{
    WORLD(&card_driver);
    struct moert_device_desc d = described("card:x", "card", "sm_107");
    struct moert_select_options o = {.size = sizeof(o), .described = &d, .described_count = 1};

    d.memory_total = 100;
    d.memory_free = 9; /* 4 usable, 5 needed */
    a = ask(context, &layer, &o);
    cr_expect_eq(a.status, MOERT_E_NO_BACKEND);
    cr_expect(strstr(a.err.text, "memory have 4 need >= 5"), "%s", a.err.text);
    END();
}

Test(oracle, described_device_of_a_missing_module)
{
    WORLD(&acc_driver);
    struct moert_device_desc d = described("warp:0", "warp", "w9");
    struct moert_select_options o = {.size = sizeof(o), .described = &d, .described_count = 1};

    a = ask(context, &layer, &o);
    cr_expect_eq(a.status, MOERT_OK);
    cr_expect_str_eq(text_of(check(&a, "warp.*@warp:0", "driver-state"), "have"), "not installed");
    cr_expect_str_eq(text_of(json_object_get(candidate(&a, "warp.*@warp:0"), "driver"), "state"), "not installed");
    answer_free(&a);
    o.backend = "warp.fast";
    a = ask(context, &layer, &o);
    cr_expect_eq(a.status, MOERT_E_NO_BACKEND);
    cr_expect_str_eq(a.err.code, "backend-refused");
    cr_expect(strstr(a.err.text, "driver-state have not installed need one of ready, no-device"), "%s", a.err.text);
    END();
}

Test(oracle, described_devices_are_checked)
{
    WORLD(&acc_driver);
    struct moert_device_desc d = described("acc:0", "acc", "a1");
    struct moert_select_options o = {.size = sizeof(o), .described = &d, .described_count = 1};

    a = ask(context, &layer, &o);
    cr_expect_eq(a.status, MOERT_E_VALUE);
    cr_expect(strstr(a.err.text, "\"acc:0\" has the id of another device"), "%s", a.err.text);
    cr_expect_null(a.decision);
    strcpy(d.id, "acc:1");
    d.flags = MOERT_DEVICE_F_PRESENT;
    a = ask(context, &layer, &o);
    cr_expect_eq(a.status, MOERT_E_USAGE);
    cr_expect_str_eq(a.err.code, "flag");
    d.flags = 0;
    d.size = 4;
    a = ask(context, &layer, &o);
    cr_expect_str_eq(a.err.code, "struct-size");
    END();
}

Test(oracle, device_files)
{
    static const struct {
        const char *json, *code, *text;
    } bad[] = {
        {"{\"schema\":2,\"id\":\"a\",\"driver\":\"c\",\"arch\":\"x\"}", "field", "schema is 2; must be at most 1"},
        {"{\"schema\":1,\"driver\":\"c\",\"arch\":\"x\"}", "required", "field \"id\" is required"},
        {"{\"schema\":1,\"id\":\"a\",\"driver\":\"c\",\"arch\":\"x\",\"memory\":1}", "field",
         "unknown field \"memory\""},
        {"{\"schema\":1,\"id\":\"a\",\"driver\":\"c\",\"arch\":\"x\",\"features\":[\"a b\"]}", "field",
         "words without blanks"},
        {"{\"schema\":1,\"id\":\"a\",\"driver\":\"c\",\"arch\":\"x\",\"flags\":[\"present\"]}", "field", "host-memory"},
        {"{\"schema\":1,\"id\":\"a@b\",\"driver\":\"c\",\"arch\":\"x\"}", "field", "has no @"},
        {"{\"schema\":1,\"id\":\"a\",\"driver\":\"c\",\"arch\":\"x\",\"memory_total\":1,\"memory_free\":2}", "field",
         "memory_free 2 exceeds memory_total 1"},
        {"{\"schema\":1,\"id\":\"a\",\"driver\":\"c\",\"arch\":\"x\",\"memory_free\":-1}", "field",
         "must be at least 0"},
        {"{\"schema\":1,\"id\":\"0123456789012345678901234567890123\",\"driver\":\"c\",\"arch\":\"x\"}", "field",
         "at most 31 bytes"},
        {"[", "st-json", "d.json:1"},
    };
    struct moert_error err = MOERT_ERROR_INIT;
    struct moert_device_desc d;

    cr_assert(!moert_device_desc_parse(
                  "{\"schema\":1,\"id\":\"cuda:x\",\"driver\":\"cuda\",\"arch\":\"sm_107\",\"name\":\"R\","
                  "\"memory_total\":100,\"memory_free\":90,\"runtime\":\"13.4\",\"features\":[\"lutb_mma\",\"fp8\"],"
                  "\"count\":1}",
                  "d.json", &d, &err),
              "%s", err.text);
    cr_expect_str_eq(d.id, "cuda:x");
    cr_expect_str_eq(d.driver, "cuda");
    cr_expect_str_eq(d.arch, "sm_107");
    cr_expect_str_eq(d.runtime, "13.4");
    cr_expect_str_eq(d.features, "lutb_mma fp8");
    cr_expect_eq(d.memory_total, 100);
    cr_expect_eq(d.memory_free, 90);
    cr_expect_eq(d.size, sizeof(d));
    cr_expect_eq(d.flags, MOERT_DEVICE_F_BINARY64);
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        cr_expect_neq(moert_device_desc_parse(bad[i].json, "d.json", &d, &err), MOERT_OK, "%s", bad[i].json);
        cr_expect_str_eq(err.code, bad[i].code, "%s", err.text);
        cr_expect(strstr(err.text, bad[i].text), "%s", err.text);
    }
}

/* ------------------------------------------------------------------ names */

Test(oracle, names_that_lead_nowhere)
{
    static const struct {
        const char *name, *text;
    } rows[] = {
        {"emulaton", "unknown backend \"emulaton\"; did you mean \"emulation\"?"},
        {"acc.z", "unknown backend \"acc.z\"; did you mean \"acc.x\"?"},
        {"qqqqqqqqqqqqqqqqqq", "unknown backend \"qqqqqqqqqqqqqqqqqq\"; known: acc.x, acc.y, acc.reference"},
        {"marlin", "marlin is known, but not provided here: weight-only kernel; use scheme (mxfp8, none)"},
        {"Flashinfer-TRTLLM", "flashinfer_trtllm is known, but not provided here: vendor kernel without a C interface"},
        {"deepgemm", "deep_gemm is known, but not provided here: JIT C++ library, SM100 only"},
        {"humming", "humming is known, but not provided here: JIT kernel library"},
        {"aiter", "aiter is known, but not provided here: "},
        {"cutlass", "cutlass is known to vLLM, not an MXFP8 backend"},
        {"flashinfer-b12x", "flashinfer_b12x is known to vLLM, not an MXFP8 backend"},
        {"", "unknown backend \"\""},
    };
    WORLD(&acc_driver);

    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        a = ask_for(context, &layer, rows[i].name);
        cr_expect_eq(a.status, MOERT_E_NO_BACKEND, "%s", rows[i].name);
        cr_expect_str_eq(a.err.code, "backend-unknown", "%s", a.err.text);
        cr_expect(!strncmp(a.err.text, rows[i].text, strlen(rows[i].text)), "%s", a.err.text);
        cr_assert(a.decision);
        cr_expect_str_eq(text_of(a.record, "status"), "failed");
        answer_free(&a);
    }
    END();
}

Test(oracle, names_not_provided_are_candidates)
{
    static const char *const names[] = {"flashinfer_trtllm", "deep_gemm", "marlin", "xpu", "aiter",
                                        "humming",           "triton"};
    WORLD(&acc_driver);

    a = ask(context, &layer, NULL);
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        char id[64];
        snprintf(id, sizeof(id), "%s@none", names[i]);
        cr_expect_str_eq(text_of(candidate(&a, id), "verdict"), "not-provided", "%s", id);
        cr_expect_str_eq(text_of(check(&a, id, "not-provided"), "verdict"), "fail");
    }
    /* A backend answers to this alias, so the name is served. */
    cr_expect_null(candidate(&a, "emulation@none"));
    answer_free(&a);
    a = ask_for(context, &layer, "emulation");
    cr_expect_str_eq(moert_decision_backend(a.decision), "acc.reference");
    END();
}

Test(oracle, unknown_devices)
{
    WORLD(&acc_driver, &many_driver);
    struct moert_select_options o = {.size = sizeof(o), .device = "acc:7"};

    a = ask(context, &layer, &o);
    cr_expect_eq(a.status, MOERT_E_VALUE);
    cr_expect_str_eq(a.err.text, "unknown device \"acc:7\"; known: acc:0, many:10, many:2");
    a = ask_for(context, &layer, "acc.y@tpu:0");
    cr_expect_eq(a.status, MOERT_E_VALUE);
    a = ask_for(context, &layer, "acc.y@many:2");
    cr_expect_eq(a.status, MOERT_E_NO_BACKEND);
    cr_expect(strstr(a.err.text, "acc.y does not run on many:2"), "%s", a.err.text);
    answer_free(&a);
    o.device = "acc:0";
    a = ask(context, &layer, &o);
    cr_expect_str_eq(moert_decision_backend(a.decision), "acc.y");
    END();
}

Test(oracle, wrong_calls)
{
    WORLD(&acc_driver);
    struct moert_select_options o = {.size = sizeof(o)};
    moert_decision_t *d = NULL;

    cr_expect_eq(moert_select(NULL, &layer, NULL, &d, NULL), MOERT_E_USAGE);
    cr_expect_eq(moert_select(context, NULL, NULL, &d, NULL), MOERT_E_USAGE);
    o.flags = 4;
    a = ask(context, &layer, &o);
    cr_expect_str_eq(a.err.text, "unknown flag bit 2");
    o.flags = 0;
    o.policy_name = "fastest";
    a = ask(context, &layer, &o);
    cr_expect_eq(a.status, MOERT_E_VALUE);
    o.policy_name = NULL;
    o.size = 8;
    a = ask(context, &layer, &o);
    cr_expect_str_eq(a.err.code, "struct-size");
    layer.hidden_size = 0;
    a = ask(context, &layer, NULL);
    cr_expect_eq(a.status, MOERT_E_VALUE);
    cr_expect_null(a.decision);
    layer = make_layer();
    cr_expect_eq(moert_select(context, &layer, NULL, NULL, NULL), MOERT_OK);
    cr_expect_null(moert_decision_json(NULL));
    moert_decision_destroy(NULL);
    END();
}

/* ------------------------------------------------------------------ what backends report */

static const char *const many_words[] = {"one", "two", NULL};
static const struct moert_check odd[] = {{.size = sizeof(struct moert_check),
                                          .verdict = MOERT_ABSTAIN,
                                          .op = MOERT_OP_NONE,
                                          .code = "format",
                                          .field = "later_field"},
                                         {.size = sizeof(struct moert_check),
                                          .verdict = MOERT_PASS,
                                          .op = MOERT_OP_EQ,
                                          .code = "bias",
                                          .field = "has_bias",
                                          .have = {.kind = MOERT_VALUE_BOOL, .integer = 0},
                                          .need = {.kind = MOERT_VALUE_BOOL, .integer = 0}},
                                         {.size = sizeof(struct moert_check),
                                          .verdict = MOERT_PASS,
                                          .op = MOERT_OP_HAS,
                                          .code = "feature",
                                          .field = "f",
                                          .have = {.kind = MOERT_VALUE_LIST, .list = many_words},
                                          .need = {.kind = MOERT_VALUE_STRING, .string = "\xff\xfe"}},
                                         {.code = NULL}};
static const struct fake_script script_odd = {.checks = odd};
static const struct moert_check later[] = {{.size = sizeof(struct moert_check),
                                            .verdict = 77,
                                            .op = 99,
                                            .code = "format",
                                            .field = NULL,
                                            .have = {.kind = 99}},
                                           {.code = NULL}};
static const struct fake_script script_later = {.checks = later};
static const struct moert_device_desc odd_devices[] = {{.id = "odd:0", .arch = "o", .name = "caf\xe9"}};
FAKE_BACKEND(odd_odd, "odd.odd", 5, &script_odd);
FAKE_BACKEND(odd_later, "odd.later", 9, &script_later);
FAKE_DRIVER(odd, fake_probe, odd_devices, 1, &odd_odd, &odd_later);

Test(oracle, q12_abstain_is_shown_and_does_not_refuse)
{
    WORLD(&odd_driver);
    const json_t *c;

    a = ask(context, &layer, NULL);
    cr_assert_eq(a.status, MOERT_OK, "%s", a.err.text);
    cr_expect_str_eq(moert_decision_backend(a.decision), "odd.odd");
    cr_expect_str_eq(text_of(check(&a, "odd.odd@odd:0", "format"), "verdict"), "abstain");
    cr_expect(json_is_false(json_object_get(check(&a, "odd.odd@odd:0", "bias"), "have")));
    c = check(&a, "odd.odd@odd:0", "feature");
    cr_expect_eq(json_array_size(json_object_get(c, "have")), 2);
    cr_expect_str_eq(text_of(c, "need"), "??");
    /* A verdict or value of a later version is no pass, and no crash. */
    cr_expect_str_eq(text_of(candidate(&a, "odd.later@odd:0"), "verdict"), "refused");
    cr_expect_str_eq(text_of(check(&a, "odd.later@odd:0", "format"), "op"), "none");
    END();
}

/* A caller of a later header: what it wrote behind the struct reaches the backend as it is, and nothing else does. */
static uint32_t tail_size;
static unsigned char tail_byte;
static void tail_supports(const struct moert_backend *b, const struct moert_device_desc *d,
                          const struct moert_layer_config *l, const struct moert_check_sink *sink)
{
    tail_size = l->size;
    tail_byte = l->size > sizeof(*l) ? ((const unsigned char *)(l + 1))[7] : 0;
    fake_supports(b, d, l, sink);
}
static struct moert_backend_ops late_table;
static const struct fake_script script_tail = {0};
static const struct moert_device_desc tail_devices[] = {{.id = "tail:0", .arch = "t"}};
static struct moert_backend tail_one;
FAKE_DRIVER(tail, fake_probe, tail_devices, 1, &tail_one);

Test(oracle, q12_fields_of_a_later_header_reach_the_backend)
{
    struct {
        struct moert_layer_config layer;
        unsigned char later[16];
    } *larger = malloc(sizeof(*larger)); /* malloc, so that a sanitizer sees a byte too far */
    struct moert_backend one = {.size = sizeof(one), .name = "tail.one", .block_size = 1, .schemes = fake_schemes};

    late_table = fake_backend_ops;
    late_table.supports = tail_supports;
    one.scheme_count = 1;
    one.ops = &late_table;
    one.data = &script_tail;
    tail_one = one;
    WORLD(&tail_driver);
    cr_assert_not_null(larger);
    memset(larger, 0, sizeof(*larger));
    larger->layer = layer;
    larger->layer.size = sizeof(*larger);
    larger->later[7] = 42;
    a = ask(context, &larger->layer, NULL);
    cr_assert_eq(a.status, MOERT_OK, "%s", a.err.text);
    cr_expect_eq(tail_size, sizeof(*larger));
    cr_expect_eq(tail_byte, 42);
    answer_free(&a);
    larger->layer.size = 1u << 20;
    a = ask(context, &larger->layer, NULL);
    cr_expect_eq(a.status, MOERT_E_USAGE);
    cr_expect_str_eq(a.err.code, "struct-size");
    free(larger);
    END();
}

/* ------------------------------------------------------------------ record */

static const char *const record_keys[] = {"schema",   "kind",   "version",   "status",      "question", "candidates",
                                          "decision", "opt_in", "agreement", "fingerprint", "error",    NULL};
static const char *const candidate_keys[] = {"id",         "backend",     "aliases",  "class",  "verdict",
                                             "auto",       "auto_reason", "driver",   "device", "checks",
                                             "removed_by", "cost",        "measured", NULL};
static const char *const check_keys[] = {"code", "verdict", "field", "op", "have", "need", "fix", NULL};
static const char *const question_keys[] = {"layer", "config", "phase", "tokens", "rank",
                                            "world", "policy", "rules", NULL};
static const char *const decision_keys[] = {"buckets",  "class", "class_crossed", "fallback", "layouts",
                                            "warnings", NULL};

static void expect_keys(const json_t *object, const char *const *keys)
{
    for (; *keys; keys++)
        cr_expect(json_object_get(object, *keys), "key %s is missing", *keys);
}

/* Required keys, and what oracle.md 10 says beyond the schema. */
static void expect_record(const struct answer *a)
{
    const json_t *list = json_object_get(a->record, "candidates"), *decision = json_object_get(a->record, "decision");
    size_t chosen = 0;

    expect_keys(a->record, record_keys);
    expect_keys(json_object_get(a->record, "question"), question_keys);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *c = json_array_get(list, i), *checks = json_object_get(c, "checks");
        const char *verdict = text_of(c, "verdict");
        size_t n = fails(a, text_of(c, "id"));

        expect_keys(c, candidate_keys);
        for (size_t j = 0; j < json_array_size(checks); j++)
            expect_keys(json_array_get(checks, j), check_keys);
        chosen += !strcmp(verdict, "chosen");
        if (!strcmp(verdict, "refused"))
            cr_expect_gt(n, 0, "%s", text_of(c, "id"));
        if (!strcmp(verdict, "eligible") || !strcmp(verdict, "chosen"))
            cr_expect_eq(n, 0, "%s", text_of(c, "id"));
        cr_expect_eq(candidate(a, text_of(c, "id")), c, "id %s appears twice", text_of(c, "id"));
    }
    cr_expect_eq(strlen(text_of(a->record, "fingerprint")), 64);
    if (a->status) {
        cr_expect(json_is_null(decision));
        cr_expect_str_eq(text_of(json_object_get(a->record, "error"), "text"), a->err.text);
        cr_expect_eq(chosen, 0);
    } else {
        expect_keys(decision, decision_keys);
        cr_expect(json_is_null(json_object_get(a->record, "error")));
        cr_expect_eq(chosen, 1);
    }
}

/* By python3-jsonschema where it is there. Returns 0 valid, 1 not valid, -1 no validator. */
static int validate(const char *json)
{
    static const char program[] =
        "import sys, json\n"
        "try:\n"
        "    import jsonschema\n"
        "except ImportError:\n"
        "    sys.exit(77)\n"
        "schema = json.load(open(sys.argv[1]))\n"
        "errors = list(jsonschema.Draft202012Validator(schema).iter_errors(json.load(sys.stdin)))\n"
        "for e in errors: print(e.message, list(e.absolute_path), file=sys.stderr)\n"
        "sys.exit(1 if errors else 0)\n";
    const char *python = getenv("MOERT_TEST_PYTHON"), *top = getenv("MOERT_TEST_SRCDIR");
    char schema[1024];
    int ends[2], status;
    pid_t child;

    if (!python || !*python || !top || pipe(ends))
        return -1;
    snprintf(schema, sizeof(schema), "%s/doc/explain.schema.json", top);
    child = fork();
    if (!child) {
        dup2(ends[0], 0);
        close(ends[0]);
        close(ends[1]);
        execl(python, python, "-c", program, schema, (char *)NULL);
        _exit(77);
    }
    close(ends[0]);
    for (size_t n = strlen(json), at = 0; at < n;) {
        ssize_t w = write(ends[1], json + at, n - at);
        if (w <= 0)
            break;
        at += (size_t)w;
    }
    close(ends[1]);
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) == 77)
        return -1;
    return WEXITSTATUS(status) ? 1 : 0;
}

Test(oracle, records_follow_the_schema, .timeout = 120)
{
    WORLD(&acc_driver, &opt_driver, &card_driver, &mem_driver, &odd_driver, &low_driver);
    struct moert_device_desc d[2] = {described("card:x", "card", "sm_107"), described("warp:0", "warp", "w1")};
    struct moert_select_options o = {.size = sizeof(o), .described = d, .described_count = 2, .tokens = 8};
    static const char *const forced[] = {NULL, "acc.y", "opt.loose", "low.three", "nothing-like-it", "card.sm100"};
    char *broken;

    layer.expert_map = (const int32_t[]){0, 1, -1, -1, 2, 3, -1, -1};
    layer.expert_map_length = 8;
    layer.num_local_experts = 4;
    for (size_t i = 0; i < sizeof(forced) / sizeof(*forced); i++) {
        o.backend = forced[i];
        a = ask(context, &layer, &o);
        expect_record(&a);
        cr_expect_neq(validate(moert_decision_json(a.decision)), 1, "--backend %s: %s",
                      forced[i] ? forced[i] : "(none)", moert_decision_json(a.decision));
        if (i + 1 < sizeof(forced) / sizeof(*forced))
            answer_free(&a);
    }
    /* The validator does refuse a record that is wrong. */
    json_object_del(a.record, "fingerprint");
    broken = json_dumps(a.record, 0);
    cr_expect_neq(validate(broken), 0);
    free(broken);
    END();
}

Test(oracle, question_repeats_the_layer)
{
    WORLD(&acc_driver);
    struct moert_select_options o = {.size = sizeof(o), .tokens = 8};
    const json_t *q, *c;

    a = ask(context, &layer, &o);
    q = json_object_get(a.record, "question");
    c = json_object_get(q, "config");
    cr_expect_str_eq(text_of(json_object_get(q, "layer"), "name"), "model.layers.3.mlp.experts");
    cr_expect_eq(json_integer_value(json_object_get(json_object_get(q, "layer"), "index")), 3);
    cr_expect_str_eq(text_of(json_object_get(q, "layer"), "role"), "main");
    cr_expect_eq(json_integer_value(json_object_get(c, "hidden_size")), 256);
    cr_expect_str_eq(text_of(c, "weight_scheme"), "mxfp8");
    cr_expect_str_eq(text_of(c, "dtype"), "bf16");
    cr_expect_str_eq(text_of(c, "activation"), "silu");
    cr_expect_str_eq(text_of(c, "activation_scheme"), "mxfp8");
    cr_expect_eq(json_integer_value(json_object_get(q, "tokens")), 8);
    cr_expect_eq(json_integer_value(json_object_get(q, "world")), 1);
    END();
}

Test(oracle, fingerprint_follows_device_layer_and_version_not_the_uuid)
{
    WORLD(&card_driver);
    struct moert_device_desc d = described("card:x", "card", "sm_107");
    struct moert_select_options o = {.size = sizeof(o), .described = &d, .described_count = 1};
    char first[65];

    a = ask(context, &layer, &o);
    strcpy(first, text_of(a.record, "fingerprint"));
    answer_free(&a);
    strcpy(d.uuid, "GPU-1");
    layer.index = 4;
    a = ask(context, &layer, &o);
    cr_expect_str_eq(text_of(a.record, "fingerprint"), first);
    answer_free(&a);
    strcpy(d.runtime, "13.5");
    a = ask(context, &layer, &o);
    cr_expect_str_neq(text_of(a.record, "fingerprint"), first);
    answer_free(&a);
    d.runtime[0] = 0;
    layer.hidden_size = 512;
    a = ask(context, &layer, &o);
    cr_expect_str_neq(text_of(a.record, "fingerprint"), first);
    END();
}

static void *read_json(void *decision)
{
    return (void *)(uintptr_t)moert_decision_json(decision);
}

Test(oracle, record_is_made_once_for_all_threads)
{
    WORLD(&acc_driver);
    moert_decision_t *d;
    pthread_t threads[8];
    void *texts[8];

    a = (struct answer){0};
    cr_assert(!moert_select(context, &layer, NULL, &d, NULL));
    for (int i = 0; i < 8; i++)
        cr_assert(!pthread_create(&threads[i], NULL, read_json, d));
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], &texts[i]);
    for (int i = 0; i < 8; i++)
        cr_expect(texts[i] && texts[i] == texts[0]);
    moert_decision_destroy(d);
    END();
}

/* ------------------------------------------------------------------ drift */

Test(oracle, q10_each_clash_of_names_is_found)
{
    struct moert_backend b[3] = {acc_x, acc_y, acc_ref};
    struct moert_ctx_backend entries[3] = {{.table = &b[0]}, {.table = &b[1]}, {.table = &b[2]}};
    struct moert_ctx_backend *list[3] = {&entries[0], &entries[1], &entries[2]};
    static const char *const taken_alias[] = {"YANKEE", NULL}, *const taken_name[] = {"ACC.X", NULL},
                             *const twice[] = {"zulu", "Zulu", NULL};
    struct moert_error err = MOERT_ERROR_INIT;

    cr_expect_eq(moert_oracle_drift(list, 3, &err), MOERT_OK, "%s", err.text);
    b[2].aliases = taken_alias;
    cr_expect_eq(moert_oracle_drift(list, 3, &err), MOERT_E_INTERNAL);
    cr_expect_str_eq(err.code, "drift");
    cr_expect_str_eq(err.text, "\"yankee\" belongs to two backends: acc.y and acc.reference");
    b[2].aliases = taken_name;
    cr_expect_eq(moert_oracle_drift(list, 3, &err), MOERT_E_INTERNAL);
    b[2].aliases = twice;
    cr_expect_eq(moert_oracle_drift(list, 3, &err), MOERT_E_INTERNAL);
    b[2].aliases = NULL;
    b[2].name = "acc.y";
    cr_expect_eq(moert_oracle_drift(list, 3, &err), MOERT_E_INTERNAL);
    b[2].name = "acc.q";
    cr_expect_eq(moert_oracle_drift(list, 3, &err), MOERT_OK);
}

static int listed(const json_t *list, const char *word)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_is_string(json_array_get(list, i)) && !strcmp(json_string_value(json_array_get(list, i)), word))
            return 1;
    return 0;
}

static const json_t *at(const json_t *object, const char *path)
{
    char key[64];

    while (object && *path) {
        size_t n = strcspn(path, "/");
        snprintf(key, sizeof(key), "%.*s", (int)n, path);
        object = json_object_get(object, key);
        path += n + (path[n] == '/');
    }
    return object;
}

/* The schema's lists of names are those of the C enums, the names of vLLM do not clash among themselves. */
Test(oracle, q10_tables_agree)
{
    char path[1024];
    const json_t *classes, *verdicts;
    json_t *schema;

    snprintf(path, sizeof(path), "%s/doc/explain.schema.json", getenv("MOERT_TEST_SRCDIR"));
    schema = json_load_file(path, 0, NULL);
    cr_assert(schema, "%s", path);
    classes = at(schema, "properties/candidates/items/properties/class/enum");
    cr_expect_eq(json_array_size(classes), MOERT_CLASS_COUNT + 1); /* and null */
    for (moert_class_t i = 0; i < MOERT_CLASS_COUNT; i++)
        cr_expect(listed(classes, moert_class_name(i)), "%s", moert_class_name(i));
    verdicts = at(schema, "properties/candidates/items/properties/verdict/enum");
    cr_expect_eq(json_array_size(verdicts), MOERT_CANDIDATE_NOT_PROVIDED + 1);
    json_decref(schema);
    for (uint32_t i = 0; i < moert_oracle_known_count; i++) {
        const struct moert_oracle_known *k = &moert_oracle_known_names[i];
        cr_expect_eq(moert_oracle_known_find(k->name), k, "%s", k->name);
        for (int j = 0; j < 3 && k->aliases[j]; j++)
            cr_expect_eq(moert_oracle_known_find(k->aliases[j]), k, "%s", k->aliases[j]);
    }
}

/* ------------------------------------------------------------------ time */

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* Target: 50 us for 20 candidates without the record. The bound here leaves room for a loaded machine and sanitizers.
 */
Test(oracle, selection_is_quick)
{
    WORLD(&acc_driver, &low_driver, &many_driver, &mem_driver, &opt_driver, &route_driver);
    double best = 1e9;
    size_t n;

    a = ask(context, &layer, NULL);
    n = json_array_size(json_object_get(a.record, "candidates"));
    cr_assert_geq(n, 20);
    for (int i = 0; i < 300; i++) {
        moert_decision_t *d;
        double start = now_us(), t;
        cr_assert(!moert_select(context, &layer, NULL, &d, NULL));
        t = now_us() - start;
        best = t < best ? t : best;
        moert_decision_destroy(d);
    }
    cr_log_info("%zu candidates: %.1f us", n, best);
    cr_expect_lt(best, 1000.0);
    END();
}
