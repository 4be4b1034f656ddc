/* core/base/error.c: filling struct moert_error. */
#include "core/base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

moert_status_t moert_fail(struct moert_error *err, moert_status_t status, const char *code, const char *format, ...)
{
    va_list args;

    if (!err)
        return status;
    err->status = status;
    snprintf(err->code, sizeof(err->code), "%s", code);
    va_start(args, format);
    vsnprintf(err->text, sizeof(err->text), format, args);
    va_end(args);
    return status;
}

moert_status_t moert_prefix(struct moert_error *err, moert_status_t status, const char *format, ...)
{
    char prefix[512];
    va_list args;
    size_t n, have;

    if (!err)
        return status;
    va_start(args, format);
    vsnprintf(prefix, sizeof(prefix), format, args);
    va_end(args);
    n = strlen(prefix);
    have = strlen(err->text);
    if (have + n >= sizeof(err->text))
        have = sizeof(err->text) - 1 - n;
    memmove(err->text + n, err->text, have);
    memcpy(err->text, prefix, n);
    err->text[n + have] = 0;
    return status;
}

moert_status_t moert_fail_null(struct moert_error *err, const char *what)
{
    return moert_fail(err, MOERT_E_USAGE, "null", "%s is NULL", what);
}

moert_status_t moert_check_size(struct moert_error *err, const char *struct_name, uint32_t have, size_t need)
{
    if (have >= need)
        return MOERT_OK;
    return moert_fail(err, MOERT_E_USAGE, "struct-size", "struct %s has size %u, at least %zu is needed", struct_name,
                      have, need);
}
