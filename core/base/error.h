/* core/base/error.h: filling struct moert_error. Linked into drivers too (with core/numerics). */
#ifndef MOERT_BASE_ERROR_H
#define MOERT_BASE_ERROR_H

#include <moert/base.h>

/* Describes a failure and returns `status`, so that a function can end by `return moert_fail(...)`. err may be NULL.
 * `code` is a stable word of layer.md 7. */
moert_status_t moert_fail(struct moert_error *err, moert_status_t status, const char *code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Puts a formatted prefix in front of the text that err already holds ("layer x#3: "). Returns err's status. */
moert_status_t moert_prefix(struct moert_error *err, moert_status_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* `null` and `struct-size` errors of public functions; the second returns OK when the struct is large enough. */
moert_status_t moert_fail_null(struct moert_error *err, const char *what);
moert_status_t moert_check_size(struct moert_error *err, const char *struct_name, uint32_t have, size_t need);

#endif
