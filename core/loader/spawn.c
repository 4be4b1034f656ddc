/* core/loader/spawn.c: runs the self-test program and judges how it ended. posix_spawn, never fork: the caller may hold
 * locks, threads and devices that a forked copy would break. */
#include "config.h"

#include "core/base/error.h"
#include "core/loader/self_test.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

/* How long one look at the pipe lasts before the child's state is looked at. */
#define SLICE_MS 20

struct child {
    pid_t pid;
    int out; /* read end of its standard output */
    int ended, status_known, status;
    size_t length;
    char text[4096]; /* the first bytes that it printed */
};

static uint64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Its own group so that all of it can be killed; default signals, because the caller's may be blocked or ignored. */
static int set_attributes(posix_spawnattr_t *attributes)
{
    sigset_t none, all;

    sigemptyset(&none);
    sigfillset(&all);
    return posix_spawnattr_setpgroup(attributes, 0) || posix_spawnattr_setsigmask(attributes, &none) ||
           posix_spawnattr_setsigdefault(attributes, &all) ||
           posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
}

static int set_actions(posix_spawn_file_actions_t *actions, int out)
{
    int failed = posix_spawn_file_actions_addopen(actions, 0, "/dev/null", O_RDONLY, 0) ||
                 posix_spawn_file_actions_adddup2(actions, out, 1) ||
                 posix_spawn_file_actions_addopen(actions, 2, "/dev/null", O_WRONLY, 0);
#if defined(__GLIBC_PREREQ)
#if __GLIBC_PREREQ(2, 34)
    /* Descriptors that the application opened without O_CLOEXEC are none of the helper's business. */
    failed = failed || posix_spawn_file_actions_addclosefrom_np(actions, 3);
#endif
#endif
    return failed;
}

static moert_status_t start(char *const argv[], struct child *child, struct moert_error *err)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    int ends[2], fault;

    if (pipe2(ends, O_CLOEXEC))
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "self-test: no pipe: %s", strerror(errno));
    if (posix_spawn_file_actions_init(&actions) || posix_spawnattr_init(&attributes)) {
        close(ends[0]);
        close(ends[1]);
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "self-test: no memory to start %s", argv[0]);
    }
    fault = set_attributes(&attributes) || set_actions(&actions, ends[1])
                ? ENOMEM
                : posix_spawn(&child->pid, argv[0], &actions, &attributes, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    close(ends[1]);
    if (fault) {
        close(ends[0]);
        return moert_fail(err, fault == ENOMEM || fault == EAGAIN ? MOERT_E_NOMEM : MOERT_E_FILE, "self-test",
                          "self-test: cannot start %s: %s", argv[0], strerror(fault));
    }
    child->out = ends[0];
    fcntl(child->out, F_SETFL, O_NONBLOCK);
    return MOERT_OK;
}

/* Takes what is in the pipe; bytes past the buffer are read and forgotten, so that the child never blocks. Returns 0 at
 * the end of the stream. */
static int drain(struct child *child)
{
    char scrap[1024];

    for (;;) {
        size_t room = sizeof(child->text) - 1 - child->length;
        ssize_t n = read(child->out, room ? child->text + child->length : scrap, room ? room : sizeof(scrap));
        if (n > 0 && room)
            child->length += (size_t)n;
        else if (n == 0)
            return 0;
        else if (n < 0 && errno != EINTR)
            return errno == EAGAIN || errno == EWOULDBLOCK;
    }
}

static void look(struct child *child, int flags)
{
    pid_t got;

    do
        got = waitpid(child->pid, &child->status, flags);
    while (got < 0 && errno == EINTR);
    /* ECHILD: the application ignores SIGCHLD and the kernel has taken the status; the JSON line then decides. */
    child->ended = got != 0;
    child->status_known = got == child->pid;
}

/* Until the child has ended or the time is over. A grandchild that keeps the pipe open delays nothing. */
static void follow(struct child *child, uint64_t deadline)
{
    int open = 1;

    while (!child->ended) {
        struct pollfd wait = {.fd = open ? child->out : -1, .events = POLLIN};
        uint64_t now = now_ms();
        if (now >= deadline)
            return;
        poll(&wait, 1, deadline - now < SLICE_MS ? (int)(deadline - now) : SLICE_MS);
        if (open)
            open = drain(child);
        look(child, WNOHANG);
    }
    drain(child);
}

/* The JSON line: 1 pass, 0 fail, -1 none. */
static int read_line(struct child *child, char detail[MOERT_SELF_TEST_DETAIL])
{
    json_t *root;
    const char *outcome, *text;
    int result = -1;

    child->text[child->length] = 0;
    child->text[strcspn(child->text, "\n")] = 0;
    root = json_loads(child->text, JSON_REJECT_DUPLICATES, NULL);
    outcome = json_string_value(json_object_get(root, "outcome"));
    text = json_string_value(json_object_get(root, "detail"));
    if (outcome && json_integer_value(json_object_get(root, "schema")) == 1) {
        if (!strcmp(outcome, "pass"))
            result = 1;
        else if (!strcmp(outcome, "fail"))
            result = 0;
    }
    if (result >= 0)
        snprintf(detail, MOERT_SELF_TEST_DETAIL, "%s", text ? text : "");
    json_decref(root);
    return result;
}

static int judge(struct child *child, char detail[MOERT_SELF_TEST_DETAIL])
{
    int said;

    if (child->status_known && WIFSIGNALED(child->status)) {
        snprintf(detail, MOERT_SELF_TEST_DETAIL, "crashed: signal %d", WTERMSIG(child->status));
        return 0;
    }
    if (child->status_known && WEXITSTATUS(child->status) > 1) {
        snprintf(detail, MOERT_SELF_TEST_DETAIL, "exit %d", WEXITSTATUS(child->status));
        return 0;
    }
    said = read_line(child, detail);
    if (said < 0) {
        snprintf(detail, MOERT_SELF_TEST_DETAIL, "the self-test ended without a result");
        return 0;
    }
    if (child->status_known && said != (WEXITSTATUS(child->status) == 0)) {
        snprintf(detail, MOERT_SELF_TEST_DETAIL, "the self-test said \"%s\" and ended with exit %d",
                 said ? "pass" : "fail", WEXITSTATUS(child->status));
        return 0;
    }
    if (!said && !detail[0])
        snprintf(detail, MOERT_SELF_TEST_DETAIL, "the self-test failed without a detail");
    return said;
}

moert_status_t moert_self_test_spawn(char *const argv[], uint32_t timeout_ms, int *ret_passed,
                                     char detail[MOERT_SELF_TEST_DETAIL], struct moert_error *err)
{
    struct child child = {.out = -1};
    moert_status_t status = start(argv, &child, err);

    if (status)
        return status;
    detail[0] = 0;
    follow(&child, now_ms() + timeout_ms);
    if (child.ended) {
        *ret_passed = judge(&child, detail);
    } else {
        kill(-child.pid, SIGKILL);
        look(&child, 0);
        *ret_passed = 0;
        snprintf(detail, MOERT_SELF_TEST_DETAIL, "timeout after %u s", timeout_ms / 1000);
    }
    close(child.out);
    return MOERT_OK;
}
