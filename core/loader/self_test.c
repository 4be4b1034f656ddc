/* core/loader/self_test.c: is a backend fit to be used on a device? Asked before its first use: this process's memory,
 * then the quarantine file, then a helper program that runs the backend against the reference in a process of its own.
 */
#include "config.h"

#include "core/loader/self_test.h"
#include "core/base/error.h"
#include "core/base/options.h"
#include "core/base/text.h"
#include "core/loader/loader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Result of one (backend, device); entries are appended and freed with the context, except forgotten ones. */
struct entry {
    struct entry *next;
    uint32_t backend, device;
    int running; /* a thread is testing; others wait for `changed` */
    moert_self_test_outcome_t outcome;
    char detail[MOERT_SELF_TEST_DETAIL];
};

struct moert_ctx_self_test {
    pthread_cond_t changed; /* with the context's lock */
    struct entry *first;
    int warned; /* that the helper is missing */
};

void moert_loader_self_tests_free(struct moert_context *context)
{
    struct moert_ctx_self_test *tests = context->self_tests;

    if (!tests)
        return;
    while (tests->first) {
        struct entry *entry = tests->first;
        tests->first = entry->next;
        free(entry);
    }
    pthread_cond_destroy(&tests->changed);
    free(tests);
    context->self_tests = NULL;
}

/* With the lock held. NULL: no memory. */
static struct moert_ctx_self_test *tests_of(struct moert_context *context)
{
    if (!context->self_tests) {
        context->self_tests = calloc(1, sizeof(*context->self_tests));
        if (context->self_tests)
            pthread_cond_init(&context->self_tests->changed, NULL);
    }
    return context->self_tests;
}

static struct entry *find_entry(struct moert_context *context, uint32_t backend, uint32_t device)
{
    struct entry *entry = context->self_tests ? context->self_tests->first : NULL;

    while (entry && (entry->backend != backend || entry->device != device))
        entry = entry->next;
    return entry;
}

static struct entry *add_entry(struct moert_context *context, uint32_t backend, uint32_t device)
{
    struct moert_ctx_self_test *tests = tests_of(context);
    struct entry *entry = tests ? calloc(1, sizeof(*entry)) : NULL;

    if (!entry)
        return NULL;
    entry->backend = backend;
    entry->device = device;
    entry->running = 1;
    entry->next = tests->first;
    tests->first = entry;
    return entry;
}

static void remove_entry(struct moert_context *context, struct entry *entry)
{
    struct entry **at = &context->self_tests->first;

    while (*at != entry)
        at = &(*at)->next;
    *at = entry->next;
    free(entry);
}

static void copy_detail(char *detail, size_t size, const char *text)
{
    if (detail && size)
        snprintf(detail, size, "%s", text);
}

/* ---- who needs no test ---- */

/* What a test is about; pointers live as long as the context. */
struct subject {
    const char *module; /* path, "" for registered drivers */
    const char *device;
    struct moert_quarantine_key key;
};

static moert_status_t find_subject(struct moert_context *context, uint32_t backend, uint32_t device,
                                   struct subject *ret, struct moert_error *err)
{
    moert_status_t status = MOERT_OK;

    pthread_mutex_lock(&context->lock);
    if (backend >= context->backend_count)
        status = moert_fail(err, MOERT_E_VALUE, "size", "backend %u of %u", backend, context->backend_count);
    else if (device >= context->device_count)
        status = moert_fail(err, MOERT_E_VALUE, "size", "device %u of %u", device, context->device_count);
    else
        *ret = (struct subject){.module = context->backends[backend]->driver->path,
                                .device = context->devices[device]->desc.id,
                                .key = {.sha256 = context->backends[backend]->driver->sha256,
                                        .arch = context->devices[device]->desc.arch,
                                        .backend = context->backends[backend]->table->name}};
    pthread_mutex_unlock(&context->lock);
    return status;
}

static int is_trusted(const struct moert_context *context, const struct subject *subject)
{
    return (context->flags & MOERT_CONTEXT_F_NO_SELF_TEST) || !subject->module[0] ||
           moert_text_same_name(moert_config_string(MOERT_CFG_SELF_TEST), "off");
}

/* ---- the test ---- */

/* Path of the helper, malloc'ed; NULL when it is not there, which is told once. */
static char *helper_path(struct moert_context *context)
{
    const char *option = moert_config_string(MOERT_CFG_SELF_TEST_HELPER);
    char *path = strdup(*option ? option : MOERT_HELPERDIR "/moert-selftest");
    int first;

    if (path && path[0] == '/' && !access(path, X_OK))
        return path;
    pthread_mutex_lock(&context->lock);
    first = !context->self_tests->warned;
    context->self_tests->warned = 1;
    pthread_mutex_unlock(&context->lock);
    if (first)
        moert_log(&context->logger, MOERT_LOG_WARN, "backends are used without a self-test: %s %s", path ? path : "",
                  path && path[0] != '/' ? "is not an absolute path" : "cannot be run");
    free(path);
    return NULL;
}

/* Fills outcome and detail; a status when no process could be started. */
static moert_status_t run_test(struct moert_context *context, const struct subject *s, moert_self_test_outcome_t *ret,
                               char detail[MOERT_SELF_TEST_DETAIL], struct moert_error *err)
{
    int passed = 0;
    moert_status_t status;
    char *helper;

    if (moert_quarantine_find(&context->logger, &s->key, &passed, detail)) {
        *ret = passed ? MOERT_SELF_TEST_PASSED : MOERT_SELF_TEST_QUARANTINE;
        return MOERT_OK;
    }
    helper = helper_path(context);
    if (!helper) {
        *ret = MOERT_SELF_TEST_PASSED;
        return MOERT_OK;
    }
    status = moert_self_test_spawn((char *const[]){helper, (char *)"--module", (char *)(uintptr_t)s->module,
                                                   (char *)"--backend", (char *)(uintptr_t)s->key.backend,
                                                   (char *)"--device", (char *)(uintptr_t)s->device, NULL},
                                   MOERT_SELF_TEST_TIMEOUT_MS, &passed, detail, err);
    free(helper);
    if (status)
        return status;
    *ret = passed ? MOERT_SELF_TEST_PASSED : MOERT_SELF_TEST_FAILED;
    moert_quarantine_store(&context->logger, &s->key, passed, detail);
    if (!passed)
        moert_log(&context->logger, MOERT_LOG_WARN, "self-test of %s on %s failed: %s", s->key.backend, s->device,
                  detail);
    return MOERT_OK;
}

/* Returns the entry that this thread has to fill, or NULL with outcome and detail copied from a finished one (or with a
 * status when memory is out). */
static struct entry *claim(struct moert_context *context, uint32_t backend, uint32_t device,
                           moert_self_test_outcome_t *ret, char *detail, size_t size, moert_status_t *ret_status,
                           struct moert_error *err)
{
    struct entry *entry, *mine = NULL;

    pthread_mutex_lock(&context->lock);
    while ((entry = find_entry(context, backend, device)) && entry->running)
        pthread_cond_wait(&context->self_tests->changed, &context->lock);
    if (entry) {
        *ret = entry->outcome;
        copy_detail(detail, size, entry->detail);
    } else {
        mine = add_entry(context, backend, device);
        if (!mine)
            *ret_status = moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for a self-test");
    }
    pthread_mutex_unlock(&context->lock);
    return mine;
}

moert_status_t moert_self_test(struct moert_context *context, uint32_t backend, uint32_t device,
                               moert_self_test_outcome_t *ret, char *detail, size_t detail_size,
                               struct moert_error *err)
{
    moert_status_t status =
        context && ret ? moert_ctx_check_process(context, err) : moert_fail_null(err, context ? "ret" : "context");
    char text[MOERT_SELF_TEST_DETAIL] = "";
    moert_self_test_outcome_t outcome = MOERT_SELF_TEST_UNKNOWN;
    struct subject subject;
    struct entry *entry;

    if (!status)
        status = find_subject(context, backend, device, &subject, err);
    if (status)
        return status;
    if (is_trusted(context, &subject)) {
        copy_detail(detail, detail_size, "");
        *ret = MOERT_SELF_TEST_PASSED;
        return MOERT_OK;
    }
    entry = claim(context, backend, device, ret, detail, detail_size, &status, err);
    if (!entry)
        return status;
    status = run_test(context, &subject, &outcome, text, err);
    pthread_mutex_lock(&context->lock);
    entry->running = 0;
    entry->outcome = outcome;
    memcpy(entry->detail, text, sizeof(text));
    if (status) /* the next caller tries again */
        remove_entry(context, entry);
    pthread_cond_broadcast(&context->self_tests->changed);
    pthread_mutex_unlock(&context->lock);
    if (status)
        return status;
    copy_detail(detail, detail_size, text);
    *ret = outcome;
    return MOERT_OK;
}

moert_self_test_outcome_t moert_self_test_peek(struct moert_context *context, uint32_t backend, uint32_t device,
                                               char *detail, size_t detail_size)
{
    char text[MOERT_SELF_TEST_DETAIL] = "";
    moert_self_test_outcome_t outcome = MOERT_SELF_TEST_UNKNOWN;
    struct subject subject;
    struct entry *entry;
    int passed;

    copy_detail(detail, detail_size, "");
    if (!context || find_subject(context, backend, device, &subject, NULL))
        return MOERT_SELF_TEST_UNKNOWN;
    if (is_trusted(context, &subject))
        return MOERT_SELF_TEST_PASSED;
    pthread_mutex_lock(&context->lock);
    entry = find_entry(context, backend, device);
    if (entry && !entry->running) {
        outcome = entry->outcome;
        memcpy(text, entry->detail, sizeof(text));
    }
    pthread_mutex_unlock(&context->lock);
    if (outcome == MOERT_SELF_TEST_UNKNOWN && moert_quarantine_find(&context->logger, &subject.key, &passed, text))
        outcome = passed ? MOERT_SELF_TEST_PASSED : MOERT_SELF_TEST_QUARANTINE;
    copy_detail(detail, detail_size, text);
    return outcome;
}

void moert_self_test_forget(struct moert_context *context, uint32_t backend, uint32_t device)
{
    struct subject subject;
    struct entry *entry;

    if (!context || find_subject(context, backend, device, &subject, NULL) || is_trusted(context, &subject))
        return;
    pthread_mutex_lock(&context->lock);
    entry = find_entry(context, backend, device);
    if (entry && !entry->running)
        remove_entry(context, entry);
    pthread_mutex_unlock(&context->lock);
    moert_quarantine_store(&context->logger, &subject.key, 0, NULL);
}
