/* tests/loader/test_self_test.c: the self-test of a backend before its first use, in a helper program, and what is
 * remembered of it (oracle.md 8; requirement Q8). The helpers are shell scripts that note each start. */
#include "config.h"

#include "core/loader/self_test.h"
#include "tests/loader/util.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

static struct moert_error err = MOERT_ERROR_INIT;
static char detail[MOERT_SELF_TEST_DETAIL];

/* A helper that notes its arguments in <dir>/calls and then does `body`. */
static void write_helper(const char *body)
{
    char script[2048];

    snprintf(script, sizeof(script), "#!/bin/sh\necho \"$@\" >>%s/calls\n%s\n", dir, body);
    write_file("helper", script, strlen(script), 0755);
}

static unsigned calls(void)
{
    FILE *file = fopen(path_of("calls"), "r");
    unsigned n = 0;
    int c;

    while (file && (c = getc(file)) != EOF)
        n += c == '\n';
    if (file)
        fclose(file);
    return n;
}

static void set_up(void)
{
    make_dir();
    setenv("MOERT_STATE_DIR", path_of("state"), 1);
    setenv("MOERT_SELF_TEST_HELPER", path_of("helper"), 1);
    unsetenv("MOERT_SELF_TEST");
    install("", "variants.so", "good");
}

static void tear_down(void)
{
    remove_dir();
}

TestSuite(self_test, .init = set_up, .fini = tear_down, .timeout = 60);

#define PASS    "echo '{\"schema\":1,\"outcome\":\"pass\",\"detail\":\"\"}'; exit 0"
#define FAIL_AT "echo '{\"schema\":1,\"outcome\":\"fail\",\"detail\":\"row 1 column 7: expected 2, got 3\"}'; exit 1"

static moert_self_test_outcome_t ask(moert_context_t *context, uint32_t backend)
{
    moert_self_test_outcome_t outcome = MOERT_SELF_TEST_UNKNOWN;

    cr_assert_eq(moert_self_test(context, backend, 0, &outcome, detail, sizeof(detail), &err), MOERT_OK, "%s",
                 err.text);
    return outcome;
}

static moert_self_test_outcome_t peek(moert_context_t *context)
{
    return moert_self_test_peek(context, 0, 0, detail, sizeof(detail));
}

Test(self_test, pass_is_remembered_by_process_and_file)
{
    moert_context_t *context = make_context(NULL, NULL);
    char *text, wanted[256];
    size_t bytes;
    struct stat st;

    write_helper(PASS);
    cr_expect_eq(calls(), 0, "nothing is tested when a context opens");
    cr_expect_eq(peek(context), MOERT_SELF_TEST_UNKNOWN);
    cr_expect_eq(ask(context, 0), MOERT_SELF_TEST_PASSED);
    cr_expect_eq(ask(context, 0), MOERT_SELF_TEST_PASSED);
    cr_expect_eq(peek(context), MOERT_SELF_TEST_PASSED);
    cr_expect_eq(calls(), 1);
    text = read_file(path_of("calls"), &bytes);
    snprintf(wanted, sizeof(wanted), "--module %s/moert_good.so --backend good.zero --device good\n", dir);
    cr_expect_str_eq(text, wanted);
    free(text);
    cr_expect_eq(ask(context, 1), MOERT_SELF_TEST_PASSED, "another backend is another test");
    cr_expect_eq(calls(), 2);
    moert_context_destroy(context);

    context = make_context(NULL, NULL);
    cr_expect_eq(ask(context, 0), MOERT_SELF_TEST_PASSED, "a later context reads the file");
    cr_expect_eq(calls(), 2);
    moert_context_destroy(context);
    cr_assert_eq(stat(path_of("state"), &st), 0);
    cr_expect_eq(st.st_mode & 0777, 0700);
}

Test(self_test, failure_then_quarantine_until_the_file_changes_or_verify_passes)
{
    moert_context_t *context = make_context(NULL, NULL);
    size_t bytes;
    char *data;

    write_helper(FAIL_AT);
    cr_expect_eq(ask(context, 0), MOERT_SELF_TEST_FAILED);
    cr_expect_str_eq(detail, "row 1 column 7: expected 2, got 3");
    cr_expect_eq(ask(context, 0), MOERT_SELF_TEST_FAILED, "the process that tested keeps the code self-test");
    moert_context_destroy(context);

    write_helper(PASS);
    context = make_context(NULL, NULL);
    cr_expect_eq(peek(context), MOERT_SELF_TEST_QUARANTINE);
    cr_expect_eq(ask(context, 0), MOERT_SELF_TEST_QUARANTINE);
    cr_expect_str_eq(detail, "row 1 column 7: expected 2, got 3");
    cr_expect_eq(calls(), 1, "a quarantined backend is not run");
    cr_expect_eq(ask(context, 1), MOERT_SELF_TEST_PASSED, "its neighbour is");
    moert_self_test_forget(context, 0, 0);
    cr_expect_eq(peek(context), MOERT_SELF_TEST_UNKNOWN);
    cr_expect_eq(ask(context, 0), MOERT_SELF_TEST_PASSED);
    cr_expect_eq(calls(), 3);
    moert_context_destroy(context);

    /* A rebuilt module is a new file: here one more byte at the end. */
    data = read_file(path_of("moert_good.so"), &bytes);
    unlink(path_of("moert_good.so"));
    write_file("moert_good.so", data, bytes + 1, 0755);
    free(data);
    context = make_context(NULL, NULL);
    cr_expect_eq(peek(context), MOERT_SELF_TEST_UNKNOWN);
    cr_expect_eq(ask(context, 0), MOERT_SELF_TEST_PASSED);
    cr_expect_eq(calls(), 4);
    moert_context_destroy(context);
}

static const struct {
    const char *body, *wanted;
} endings[] = {
    {"kill -SEGV $$", "crashed: signal 11"},
    {"kill -ABRT $$", "crashed: signal 6"},
    {"exit 7", "exit 7"},
    {"exit 0", "the self-test ended without a result"},
    {"echo nonsense; exit 1", "the self-test ended without a result"},
    {"echo '{\"schema\":2,\"outcome\":\"pass\"}'", "the self-test ended without a result"},
    {"echo '{\"schema\":1,\"outcome\":\"pass\"}'; exit 1", "the self-test said \"pass\" and ended with exit 1"},
    {"echo '{\"schema\":1,\"outcome\":\"fail\"}'; exit 1", "the self-test failed without a detail"},
    {"echo '{\"schema\":1,\"outcome\":\"pass\"}'; kill -SEGV $$", "crashed: signal 11"},
    {"head -c 300000 /dev/zero; exit 0", "the self-test ended without a result"},
};

Test(self_test, every_ending_has_its_words)
{
    char *argv[] = {(char *)(uintptr_t)path_of("helper"), NULL};

    for (size_t i = 0; i < sizeof(endings) / sizeof(*endings); i++) {
        int passed = 1;
        write_helper(endings[i].body);
        argv[0] = (char *)(uintptr_t)path_of("helper");
        cr_assert_eq(moert_self_test_spawn(argv, 20000, &passed, detail, &err), MOERT_OK, "%s", err.text);
        cr_expect_eq(passed, 0, "%s", endings[i].body);
        cr_expect_str_eq(detail, endings[i].wanted, "%s: %s", endings[i].body, detail);
    }
}

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

Test(self_test, hanging_helper_and_its_children_are_killed)
{
    char *argv[] = {NULL, NULL}, *text;
    double start = seconds();
    size_t bytes;
    int passed = 1;
    pid_t child;

    write_helper("sleep 300 & echo $! >$0.child; sleep 300");
    argv[0] = (char *)(uintptr_t)path_of("helper");
    cr_assert_eq(moert_self_test_spawn(argv, 1000, &passed, detail, &err), MOERT_OK);
    cr_expect_eq(passed, 0);
    cr_expect_str_eq(detail, "timeout after 1 s");
    cr_expect_lt(seconds() - start, 20.0);
    text = read_file(path_of("helper.child"), &bytes);
    child = (pid_t)atoi(text);
    free(text);
    cr_assert_gt(child, 1);
    /* The grandchild goes to init, which may take a moment to collect it. */
    for (int i = 0; i < 100 && !kill(child, 0); i++) {
        char path[64], *state;
        snprintf(path, sizeof(path), "/proc/%d/stat", (int)child);
        if (access(path, R_OK))
            break;
        state = read_file(path, &bytes);
        if (strstr(state, ") Z")) {
            free(state);
            return;
        }
        free(state);
        usleep(20000);
    }
    cr_expect_neq(kill(child, 0), 0, "grandchild %d still runs", (int)child);
}

Test(self_test, a_grandchild_that_keeps_the_pipe_delays_nothing)
{
    char *argv[] = {NULL, NULL};
    double start = seconds();
    int passed = 0;

    write_helper("sleep 15 & " PASS);
    argv[0] = (char *)(uintptr_t)path_of("helper");
    cr_assert_eq(moert_self_test_spawn(argv, 30000, &passed, detail, &err), MOERT_OK);
    cr_expect_eq(passed, 1, "%s", detail);
    cr_expect_lt(seconds() - start, 10.0);
}

Test(self_test, callers_signal_settings_do_not_matter)
{
    char *argv[] = {NULL, NULL};
    sigset_t all;
    int passed = 0;

    signal(SIGCHLD, SIG_IGN); /* the kernel collects the child; the JSON line decides */
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    write_helper(PASS);
    argv[0] = (char *)(uintptr_t)path_of("helper");
    cr_assert_eq(moert_self_test_spawn(argv, 20000, &passed, detail, &err), MOERT_OK);
    cr_expect_eq(passed, 1, "%s", detail);
    write_helper("kill -TERM $$; sleep 20; " PASS);
    cr_assert_eq(moert_self_test_spawn(argv, 20000, &passed, detail, &err), MOERT_OK);
    cr_expect_eq(passed, 0, "SIGTERM is not blocked in the helper");
}

Test(self_test, helper_that_cannot_be_started_is_no_verdict)
{
    moert_context_t *context = make_context(NULL, NULL);
    moert_self_test_outcome_t outcome = MOERT_SELF_TEST_UNKNOWN;

    write_file("helper", "\177not a program", 14, 0755);
    cr_expect_eq(moert_self_test(context, 0, 0, &outcome, detail, sizeof(detail), &err), MOERT_E_FILE);
    cr_expect_not_null(strstr(err.text, "cannot start"), "%s", err.text);
    cr_expect_eq(outcome, MOERT_SELF_TEST_UNKNOWN);
    write_helper(PASS);
    cr_expect_eq(ask(context, 0), MOERT_SELF_TEST_PASSED, "the next caller tries again");
    moert_context_destroy(context);
}

Test(self_test, missing_helper_passes_with_one_warning_and_is_not_remembered)
{
    moert_context_t *context = make_context(NULL, NULL);
    const char *first;

    cr_expect_eq(ask(context, 0), MOERT_SELF_TEST_PASSED);
    cr_expect_eq(ask(context, 1), MOERT_SELF_TEST_PASSED);
    first = strstr(log_text, "without a self-test");
    cr_assert_not_null(first, "%s", log_text);
    cr_expect_null(strstr(first + 1, "without a self-test"));
    cr_expect_neq(access(path_of("state/quarantine.json"), F_OK), 0);
    moert_context_destroy(context);
}

Test(self_test, relative_helper_is_refused)
{
    moert_context_t *context;

    setenv("MOERT_SELF_TEST_HELPER", "helper", 1);
    write_helper(FAIL_AT);
    cr_assert_eq(chdir(dir), 0);
    context = make_context(NULL, NULL);
    cr_expect_eq(ask(context, 0), MOERT_SELF_TEST_PASSED);
    cr_expect_eq(calls(), 0);
    cr_expect_not_null(strstr(log_text, "is not an absolute path"), "%s", log_text);
    moert_context_destroy(context);
}

Test(self_test, trusted_contexts_spawn_nothing)
{
    struct moert_context_options options = {
        .size = sizeof(options), .flags = MOERT_CONTEXT_F_NO_SELF_TEST, .driver_path = dir, .log = log_line};
    moert_context_t *context = NULL;

    write_helper(FAIL_AT);
    cr_assert_eq(moert_context_create(&options, &context, &err), MOERT_OK);
    cr_expect_eq(ask(context, 0), MOERT_SELF_TEST_PASSED);
    cr_expect_eq(peek(context), MOERT_SELF_TEST_PASSED);
    moert_context_destroy(context);
    cr_expect_eq(calls(), 0);
}

Test(self_test, option_off_trusts_every_backend)
{
    moert_context_t *context;

    setenv("MOERT_SELF_TEST", "off", 1);
    write_helper(FAIL_AT);
    context = make_context(NULL, NULL);
    cr_expect_eq(ask(context, 0), MOERT_SELF_TEST_PASSED);
    cr_expect_eq(calls(), 0);
    moert_context_destroy(context);
}

Test(self_test, indexes_are_checked)
{
    moert_context_t *context = make_context(NULL, NULL);
    moert_self_test_outcome_t outcome;

    cr_expect_eq(moert_self_test(context, 9, 0, &outcome, NULL, 0, &err), MOERT_E_VALUE);
    cr_expect_eq(moert_self_test(context, 0, 9, &outcome, NULL, 0, &err), MOERT_E_VALUE);
    cr_expect_eq(moert_self_test(NULL, 0, 0, &outcome, NULL, 0, &err), MOERT_E_USAGE);
    cr_expect_eq(moert_self_test(context, 0, 0, NULL, NULL, 0, &err), MOERT_E_USAGE);
    cr_expect_eq(moert_self_test_peek(context, 9, 0, NULL, 0), MOERT_SELF_TEST_UNKNOWN);
    moert_self_test_forget(context, 9, 9);
    moert_context_destroy(context);
}

/* ---- many at once ---- */

static void *ask_in_thread(void *context)
{
    moert_self_test_outcome_t outcome = MOERT_SELF_TEST_UNKNOWN;
    char text[64];

    moert_self_test(context, 0, 0, &outcome, text, sizeof(text), NULL);
    return (void *)(uintptr_t)(outcome == MOERT_SELF_TEST_PASSED);
}

Test(self_test, one_spawn_for_many_callers)
{
    moert_context_t *context = make_context(NULL, NULL);
    pthread_t threads[8];

    write_helper("sleep 1; " PASS);
    for (size_t i = 0; i < 8; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, ask_in_thread, context), 0);
    for (size_t i = 0; i < 8; i++) {
        void *passed = NULL;
        pthread_join(threads[i], &passed);
        cr_expect_not_null(passed);
    }
    cr_expect_eq(calls(), 1);
    moert_context_destroy(context);
}

/* ---- the quarantine file ---- */

static const struct moert_quarantine_key key = {"00ff", "sm_90", "cuda.x"};

static int find(void)
{
    int passed = -1;

    return moert_quarantine_find(NULL, &key, &passed, detail) ? passed : -1;
}

Test(self_test, file_keeps_other_entries)
{
    const struct moert_quarantine_key others[] = {
        {"00fe", "sm_90", "cuda.x"}, {"00ff", "sm_80", "cuda.x"}, {"00ff", "sm_90", "cuda.y"}};
    int passed;

    cr_expect_eq(find(), -1);
    for (size_t i = 0; i < 3; i++)
        moert_quarantine_store(NULL, &others[i], 1, "");
    cr_expect_eq(find(), -1, "file, arch and backend are all part of the key");
    moert_quarantine_store(NULL, &key, 0, "wrong \"bits\"");
    cr_expect_eq(find(), 0);
    cr_expect_str_eq(detail, "wrong \"bits\"");
    moert_quarantine_store(NULL, &key, 1, "");
    cr_expect_eq(find(), 1);
    moert_quarantine_store(NULL, &key, 0, NULL);
    cr_expect_eq(find(), -1);
    for (size_t i = 0; i < 3; i++)
        cr_expect(moert_quarantine_find(NULL, &others[i], &passed, detail) && passed == 1);
}

static const char *const damaged[] = {
    "",
    "{",
    "[]",
    "null",
    "{\"schema\":2,\"entries\":[]}",
    "{\"schema\":1}",
    "{\"schema\":1,\"entries\":{}}",
    "{\"schema\":1,\"schema\":1,\"entries\":[]}",
};

Test(self_test, damaged_file_is_ignored_with_a_warning_and_rewritten)
{
    const struct moert_logger logger = {.fn = log_line};
    int passed;

    cr_assert_eq(mkdir(path_of("state"), 0700), 0);
    for (size_t i = 0; i < sizeof(damaged) / sizeof(*damaged); i++) {
        write_file("state/quarantine.json", damaged[i], strlen(damaged[i]), 0600);
        log_text[0] = 0;
        cr_expect_eq(moert_quarantine_find(&logger, &key, &passed, detail), 0);
        cr_expect_not_null(strstr(log_text, "will be written anew: it is damaged"), "%s: %s", damaged[i], log_text);
        moert_quarantine_store(&logger, &key, 1, "");
        cr_expect_eq(find(), 1);
    }
    /* Entries of a sound file that make no sense are passed over. */
    write_file("state/quarantine.json",
               "{\"schema\":1,\"entries\":[1,{},{\"module\":\"00ff\",\"arch\":\"sm_90\","
               "\"backend\":\"cuda.x\",\"outcome\":\"maybe\"}]}",
               98, 0600);
    cr_expect_eq(find(), -1);
}

Test(self_test, file_that_others_may_write_is_not_believed)
{
    const struct moert_logger logger = {.fn = log_line};
    struct stat st;
    int passed;

    moert_quarantine_store(NULL, &key, 1, "");
    cr_expect_eq(find(), 1);
    chmod(path_of("state/quarantine.json"), 0666);
    cr_expect_eq(moert_quarantine_find(&logger, &key, &passed, detail), 0);
    cr_expect_not_null(strstr(log_text, "only this user may write"), "%s", log_text);
    chmod(path_of("state/quarantine.json"), 0600);
    chmod(path_of("state"), 0777);
    log_text[0] = 0;
    cr_expect_eq(moert_quarantine_find(&logger, &key, &passed, detail), 0);
    cr_expect_not_null(strstr(log_text, "is not used"), "%s", log_text);
    chmod(path_of("state"), 0700);
    cr_expect_eq(find(), 1);
    unlink(path_of("state/quarantine.json"));
    write_file("elsewhere", "untouched", 9, 0600);
    cr_assert_eq(symlink("../elsewhere", path_of("state/quarantine.json")), 0);
    cr_expect_eq(find(), -1);
    moert_quarantine_store(NULL, &key, 1, "");
    cr_expect_eq(find(), 1, "the link is replaced, not followed");
    cr_assert_eq(stat(path_of("elsewhere"), &st), 0);
    cr_expect_eq(st.st_size, 9, "what the link named is untouched");
}

Test(self_test, without_a_directory_only_the_process_remembers)
{
    moert_context_t *context;

    write_file("state", "a file", 6, 0600); /* in the place of the directory */
    write_helper(FAIL_AT);
    context = make_context(NULL, NULL);
    cr_expect_eq(ask(context, 0), MOERT_SELF_TEST_FAILED);
    cr_expect_eq(ask(context, 0), MOERT_SELF_TEST_FAILED);
    cr_expect_eq(calls(), 1);
    moert_context_destroy(context);
    context = make_context(NULL, NULL);
    cr_expect_eq(ask(context, 0), MOERT_SELF_TEST_FAILED);
    cr_expect_eq(calls(), 2);
    moert_context_destroy(context);
}
