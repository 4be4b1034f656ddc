/* tools/selftest.c: moert-selftest, the program that a context spawns to test one backend of one module before its
 * first use (core/loader/self_test.c). It loads the module alone and compares it with a reference that is linked in, so
 * that neither a crash nor a wrong reference module can reach the caller. Prints one JSON line; exit 0 passed, 1
 * failed. */
#include "config.h"

#include "drivers/cpu/cpu.h"

#include <moert/verify.h>

#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void keep_first_failure(void *ctx, const struct moert_verify_result *r)
{
    char *detail = ctx;

    if (r->outcome == MOERT_VERIFY_FAILED && !detail[0])
        snprintf(detail, 512, "%s %s: %s%s%s", r->op, r->name, r->step, r->step[0] ? ": " : "", r->detail);
}

static int answer(const char *outcome, const char *detail)
{
    json_t *o = json_pack("{s:i, s:s, s:s}", "schema", 1, "outcome", outcome, "detail", detail);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;

    if (text)
        puts(text);
    free(text);
    json_decref(o);
    return strcmp(outcome, "pass") != 0;
}

/* Directory and driver name of ".../moert_<name>.so". Returns 0 on success. */
static int split_path(const char *path, char *dir, size_t dir_size, char *name, size_t name_size)
{
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0, m;

    if (!slash || path[0] != '/' || n + 1 > dir_size || strncmp(slash + 1, "moert_", 6))
        return -1;
    memcpy(dir, path, n);
    dir[n] = 0;
    m = strlen(slash + 7);
    if (m < 4 || strcmp(slash + 7 + m - 3, ".so") || m - 3 + 1 > name_size)
        return -1;
    memcpy(name, slash + 7, m - 3);
    name[m - 3] = 0;
    return 0;
}

static moert_status_t test(const char *module, const char *backend, const char *device, char *detail,
                           uint32_t *ret_failed, struct moert_error *err)
{
    char dir[4096], name[256];
    moert_context_t *context = NULL, *reference = NULL;
    struct moert_context_options options = {.size = sizeof(options), .flags = MOERT_CONTEXT_F_NO_SELF_TEST};
    struct moert_verify_options verify = {.size = sizeof(verify), .ops = MOERT_VERIFY_ALL, .quick = 1};
    moert_status_t status;

    if (split_path(module, dir, sizeof(dir), name, sizeof(name)))
        return MOERT_E_USAGE;
    options.driver_path = dir;
    options.drivers = name;
    status = moert_context_create(&options, &context, err);
    options.flags |= MOERT_CONTEXT_F_NO_MODULES;
    if (!status)
        status = moert_context_create(&options, &reference, err);
    if (!status)
        status = moert_context_register(reference, &mcpu_driver, err);
    verify.reference = reference;
    if (!status)
        status = moert_verify_backend(context, backend, device, &verify, keep_first_failure, detail, ret_failed, err);
    moert_context_destroy(reference);
    moert_context_destroy(context);
    return status;
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {{"module", required_argument, NULL, 'm'},
                                          {"backend", required_argument, NULL, 'b'},
                                          {"device", required_argument, NULL, 'd'},
                                          {NULL, 0, NULL, 0}};
    const char *module = NULL, *backend = NULL, *device = NULL;
    struct moert_error err = MOERT_ERROR_INIT;
    char detail[512] = "";
    uint32_t failed = 0;
    moert_status_t status;

    for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        if (c == 'm')
            module = optarg;
        else if (c == 'b')
            backend = optarg;
        else if (c == 'd')
            device = optarg;
        else
            return 2;
    }
    if (!module || !backend || !device) {
        fputs("usage: moert-selftest --module FILE --backend NAME --device ID\n", stderr);
        return 2;
    }
    status = test(module, backend, device, detail, &failed, &err);
    if (status)
        return answer("fail", err.text[0] ? err.text : "the module's path is not of the form /dir/moert_name.so");
    return answer(failed ? "fail" : "pass", detail);
}
