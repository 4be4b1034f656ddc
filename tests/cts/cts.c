/* tests/cts/cts.c: the conformance suite as a TAP program: every backend of every driver that loads, plus the drivers
 * linked in (the CPU reference; a module under test is named on the command line).
 *
 *   cts [--path DIR] [--backend GLOB] [--expect FILE] [--seed N]
 *
 * FILE lists what a backend does not do, one entry a line: `skip|fail BACKEND-GLOB CASE-GLOB reason`. A case that
 * passes although it is listed as fail, one that fails or is skipped without an entry, and an entry that met no case,
 * are failures. */
#include "config.h"

#include "drivers/cpu/cpu.h"

#include <moert/verify.h>

#include <fnmatch.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    char kind[8], backend[64], name[96], reason[200];
    int met;
};

static struct {
    struct entry entries[128];
    int count;
    int number, failed, passed;
} run;

static struct entry *expectation(const struct moert_verify_result *r)
{
    char full[160];

    snprintf(full, sizeof(full), "%s:%s", r->op, r->name);
    for (int i = 0; i < run.count; i++)
        if (!fnmatch(run.entries[i].backend, r->backend, 0) && !fnmatch(run.entries[i].name, full, 0))
            return &run.entries[i];
    return NULL;
}

/* One TAP line. */
static void result(void *ctx, const struct moert_verify_result *r)
{
    struct entry *e = expectation(r);
    int ok = r->outcome == MOERT_VERIFY_PASSED;

    (void)ctx;
    if (e)
        e->met = 1;
    if (e && !strcmp(e->kind, "fail"))
        ok = !ok && r->outcome == MOERT_VERIFY_FAILED;
    if (e && !strcmp(e->kind, "skip"))
        ok = r->outcome == MOERT_VERIFY_SKIPPED;
    printf("%sok %d - %s@%s %s:%s", ok ? "" : "not ", ++run.number, r->backend, r->device, r->op, r->name);
    if (e)
        printf(" (%s expected: %s)", e->kind, e->reason);
    printf("\n");
    if (!ok)
        printf("# %s %s%s%s seed %llu\n", r->outcome == MOERT_VERIFY_SKIPPED ? "skipped without an entry:" : "",
               r->step, r->step[0] ? ": " : "", r->detail, (unsigned long long)r->seed);
    if (ok)
        run.passed++;
    else
        run.failed++;
    fflush(stdout);
}

static int read_expectations(const char *path)
{
    char line[512];
    FILE *f = fopen(path, "r");

    if (!f)
        return -1;
    while (fgets(line, sizeof(line), f) && run.count < 128) {
        struct entry *e = &run.entries[run.count];
        if (line[0] == '#' || line[0] == '\n')
            continue;
        if (sscanf(line, "%7s %63s %95s %199[^\n]", e->kind, e->backend, e->name, e->reason) != 4 ||
            (strcmp(e->kind, "skip") && strcmp(e->kind, "fail"))) {
            fclose(f);
            return -1;
        }
        run.count++;
    }
    fclose(f);
    return 0;
}

static int bail(const char *what)
{
    printf("Bail out! %s\n", what);
    return 1;
}

static int verify_all(moert_context_t *context, moert_context_t *reference, const char *glob, uint64_t seed)
{
    struct moert_verify_options options = {
        .size = sizeof(options), .ops = MOERT_VERIFY_ALL, .seed = seed, .reference = reference};
    struct moert_error err = MOERT_ERROR_INIT;
    int tested = 0;

    for (uint32_t i = 0; i < moert_backend_count(context); i++) {
        struct moert_backend_info info = {.size = sizeof(info)};
        if (moert_backend_get(context, i, &info, &err))
            return bail(err.text);
        if (fnmatch(glob, info.name, 0) || info.driver_state != MOERT_DRIVER_READY)
            continue;
        for (uint32_t d = 0; d < moert_device_count(context); d++) {
            struct moert_device_desc desc = {.size = sizeof(desc)};
            if (moert_device_get(context, d, &desc, &err))
                return bail(err.text);
            if (strcmp(desc.driver, info.driver))
                continue;
            tested++;
            if (moert_verify_backend(context, info.name, desc.id, &options, result, NULL, NULL, &err))
                return bail(err.text);
        }
    }
    return tested ? 0 : bail("no backend to test");
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {{"path", required_argument, NULL, 'p'},
                                          {"backend", required_argument, NULL, 'b'},
                                          {"expect", required_argument, NULL, 'e'},
                                          {"seed", required_argument, NULL, 's'},
                                          {NULL, 0, NULL, 0}};
    struct moert_context_options options = {.size = sizeof(options), .flags = MOERT_CONTEXT_F_NO_SELF_TEST};
    struct moert_error err = MOERT_ERROR_INIT;
    moert_context_t *context, *reference;
    const char *glob = "*", *path = NULL;
    uint64_t seed = 0;
    int failed;

    for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        if (c == 'p')
            path = optarg;
        else if (c == 'b')
            glob = optarg;
        else if (c == 's')
            seed = strtoull(optarg, NULL, 0);
        else if (c != 'e' || read_expectations(optarg))
            return bail("usage: cts [--path DIR] [--backend GLOB] [--expect FILE] [--seed N]");
    }
    options.driver_path = path;
    options.flags |= path ? 0 : MOERT_CONTEXT_F_NO_MODULES;
    if (moert_context_create(&options, &context, &err))
        return bail(err.text);
    options.flags |= MOERT_CONTEXT_F_NO_MODULES;
    if (moert_context_create(&options, &reference, &err) || moert_context_register(reference, &mcpu_driver, &err))
        return bail(err.text);
    if (!path && moert_context_register(context, &mcpu_driver, &err))
        return bail(err.text);
    failed = verify_all(context, reference, glob, seed);
    for (int i = 0; i < run.count; i++)
        if (!run.entries[i].met) {
            printf("not ok %d - entry met no case: %s %s %s\n", ++run.number, run.entries[i].kind,
                   run.entries[i].backend, run.entries[i].name);
            run.failed++;
        }
    printf("1..%d\n", run.number);
    moert_context_destroy(context);
    moert_context_destroy(reference);
    return failed || run.failed || !run.passed;
}
