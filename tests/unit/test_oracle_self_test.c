/* The oracle and self-tests: oracle.md 4 and 8, C57, Q8. The oracle's sources are linked into this program together
 * with a moert_self_test that answers by a script. */
#include "unit/oracle_world.h"

#include "core/base/error.h"
#include "core/loader/context.h"

#include <stdio.h>

/* What the scripted self-test knows, by backend index in the context. */
static struct {
    moert_self_test_outcome_t remembered[8], result[8];
    int calls[8];
    int machinery_fails;
} script;

moert_status_t moert_ctx_check_process(const struct moert_context *context, struct moert_error *err)
{
    (void)context;
    (void)err;
    return MOERT_OK;
}

moert_self_test_outcome_t moert_self_test_peek(struct moert_context *context, uint32_t backend, uint32_t device,
                                               char *detail, size_t detail_size)
{
    (void)context;
    (void)device;
    snprintf(detail, detail_size, "%s",
             script.remembered[backend] > MOERT_SELF_TEST_PASSED ? "row 1, column 3: expected 1, got 2" : "");
    return script.remembered[backend];
}

moert_status_t moert_self_test(struct moert_context *context, uint32_t backend, uint32_t device,
                               moert_self_test_outcome_t *ret, char *detail, size_t detail_size,
                               struct moert_error *err)
{
    (void)context;
    (void)device;
    script.calls[backend]++;
    if (script.machinery_fails)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no process");
    snprintf(detail, detail_size, "%s", script.result[backend] ? "row 1, column 7: expected 0.5, got 0.25" : "");
    *ret = script.result[backend];
    return MOERT_OK;
}

static const struct fake_script any = {.weights = 10};
static const struct fake_script odd_sizes = {.hidden_multiple = 1000};
static const struct moert_device_desc st_devices[] = {{.id = "st:0", .arch = "s1"}};
/* Indexes 0, 1, 2, 3. */
FAKE_BACKEND(st_first, "st.first", 90, &any);
FAKE_BACKEND(st_second, "st.second", 50, &any);
FAKE_BACKEND(st_third, "st.third", 10, &any);
FAKE_BACKEND(st_never, "st.never", 99, &odd_sizes);
FAKE_DRIVER(st, fake_probe, st_devices, 1, &st_first, &st_second, &st_third, &st_never);

static moert_context_t *start(void)
{
    static const struct moert_driver *const drivers[] = {&st_driver, NULL};

    memset(&script, 0, sizeof(script));
    for (int i = 0; i < 8; i++)
        script.remembered[i] = MOERT_SELF_TEST_UNKNOWN;
    return make_context(drivers);
}

Test(oracle_self_test, only_the_winner_is_tested)
{
    moert_context_t *context = start();
    struct moert_layer_config layer = make_layer();
    struct answer a = ask(context, &layer, NULL);

    cr_assert_eq(a.status, MOERT_OK, "%s", a.err.text);
    cr_expect_str_eq(moert_decision_backend(a.decision), "st.first");
    cr_expect_eq(script.calls[0], 1);
    cr_expect_eq(script.calls[1] + script.calls[2] + script.calls[3], 0);
    cr_expect_str_eq(text_of(check(&a, "st.first@st:0", "self-test"), "verdict"), "pass");
    cr_expect_str_eq(text_of(check(&a, "st.second@st:0", "self-test"), "verdict"), "abstain");
    answer_free(&a);
    moert_context_destroy(context);
}

Test(oracle_self_test, c57_wrong_bits_give_way_to_the_next)
{
    moert_context_t *context = start();
    struct moert_layer_config layer = make_layer();
    const json_t *warnings;
    struct answer a;

    script.result[0] = MOERT_SELF_TEST_FAILED;
    a = ask(context, &layer, NULL);
    cr_assert_eq(a.status, MOERT_OK, "%s", a.err.text);
    cr_expect_str_eq(moert_decision_backend(a.decision), "st.second");
    cr_expect_str_eq(text_of(candidate(&a, "st.first@st:0"), "verdict"), "refused");
    cr_expect_str_eq(text_of(check(&a, "st.first@st:0", "self-test"), "verdict"), "fail");
    cr_expect_str_eq(text_of(check(&a, "st.first@st:0", "self-test"), "have"),
                     "row 1, column 7: expected 0.5, got 0.25");
    /* Both that stood before the winner are told: the wrong shape and the wrong bits. */
    warnings = json_object_get(json_object_get(a.record, "decision"), "warnings");
    cr_assert_eq(json_array_size(warnings), 2);
    cr_expect(strstr(json_string_value(json_array_get(warnings, 0)), "st.never@st:0 cannot serve (hidden-multiple"));
    cr_expect(strstr(json_string_value(json_array_get(warnings, 1)), "st.first@st:0 cannot serve (self-test"));
    cr_expect_eq(script.calls[0], 1);
    cr_expect_eq(script.calls[1], 1);
    answer_free(&a);
    moert_context_destroy(context);
}

Test(oracle_self_test, q8_quarantine_needs_no_test)
{
    moert_context_t *context = start();
    struct moert_layer_config layer = make_layer();
    struct answer a;

    script.remembered[0] = MOERT_SELF_TEST_QUARANTINE;
    script.remembered[1] = MOERT_SELF_TEST_PASSED;
    a = ask(context, &layer, NULL);
    cr_expect_str_eq(moert_decision_backend(a.decision), "st.second");
    cr_expect_str_eq(text_of(check(&a, "st.first@st:0", "quarantine"), "verdict"), "fail");
    cr_expect_eq(script.calls[0] + script.calls[1], 0);
    answer_free(&a);
    moert_context_destroy(context);
}

Test(oracle_self_test, all_fail)
{
    moert_context_t *context = start();
    struct moert_layer_config layer = make_layer();
    struct answer a;

    script.result[0] = script.result[1] = script.result[2] = MOERT_SELF_TEST_FAILED;
    a = ask(context, &layer, NULL);
    cr_expect_eq(a.status, MOERT_E_NO_BACKEND);
    cr_expect(strstr(a.err.text,
                     "st.third@st:0 cannot serve: self-test have row 1, column 7: expected 0.5, got 0.25 need "
                     "passed"),
              "%s", a.err.text);
    cr_expect_eq(script.calls[3], 0, "a backend that refuses the layer is not tested");
    answer_free(&a);
    a = ask_for(context, &layer, "st.second");
    cr_expect_eq(a.status, MOERT_E_NO_BACKEND);
    cr_expect_str_eq(a.err.code, "backend-refused");
    answer_free(&a);
    moert_context_destroy(context);
}

Test(oracle_self_test, failing_machinery_is_an_error)
{
    moert_context_t *context = start();
    struct moert_layer_config layer = make_layer();
    struct answer a;

    script.machinery_fails = 1;
    a = ask(context, &layer, NULL);
    cr_expect_eq(a.status, MOERT_E_NOMEM);
    cr_expect_str_eq(a.err.text, "self-test of st.first@st:0: no process");
    cr_expect_null(a.decision);
    moert_context_destroy(context);
}

Test(oracle_self_test, what_if_devices_are_not_tested)
{
    moert_context_t *context = start();
    struct moert_layer_config layer = make_layer();
    struct moert_device_desc d = {.size = sizeof(d), .id = "st:x", .driver = "st", .arch = "s2"};
    struct moert_select_options o = {.size = sizeof(o), .device = "st:x", .described = &d, .described_count = 1};
    struct answer a = ask(context, &layer, &o);

    cr_assert_eq(a.status, MOERT_OK, "%s", a.err.text);
    cr_expect(moert_decision_is_what_if(a.decision));
    for (int i = 0; i < 4; i++)
        cr_expect_eq(script.calls[i], 0);
    answer_free(&a);
    moert_context_destroy(context);
}
