/* core/base/log.h: one sink for the library's messages. */
#ifndef MOERT_BASE_LOG_H
#define MOERT_BASE_LOG_H

#include <moert/context.h>

/* A logger of a context: the caller's callback, or MOERT_LOG / MOERT_LOG_FILE. Thread-safe. */
struct moert_logger {
    moert_log_fn fn; /* NULL: the default sink */
    void *ctx;
};

void moert_log(const struct moert_logger *logger, moert_log_level_t level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
const char *moert_log_level_name(moert_log_level_t level);

#endif
