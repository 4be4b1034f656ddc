/* core/base/log.c: one sink for the library's messages. By default warnings and errors go to stderr. */
#include "config.h"

#include "core/base/log.h"
#include "core/base/options.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace"};

const char *moert_log_level_name(moert_log_level_t level)
{
    return level < 5 ? level_names[level] : "unknown";
}

static struct {
    moert_log_level_t threshold;
    FILE *file;
} sink;
static pthread_once_t sink_once = PTHREAD_ONCE_INIT;
static pthread_mutex_t sink_lock = PTHREAD_MUTEX_INITIALIZER;

static void sink_open(void)
{
    const char *level = moert_config_string(MOERT_CFG_LOG), *path = moert_config_string(MOERT_CFG_LOG_FILE);

    sink.threshold = MOERT_LOG_WARN;
    for (moert_log_level_t i = 0; i < 5; i++)
        if (!strcmp(level, level_names[i]))
            sink.threshold = i;
    sink.file = *path ? fopen(path, "ae") : NULL;
}

void moert_log(const struct moert_logger *logger, moert_log_level_t level, const char *format, ...)
{
    char text[1024];
    va_list args;

    pthread_once(&sink_once, sink_open);
    if (!(logger && logger->fn) && level > sink.threshold)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (logger && logger->fn) {
        logger->fn(logger->ctx, level, text);
        return;
    }
    pthread_mutex_lock(&sink_lock);
    fprintf(sink.file ? sink.file : stderr, "moert: %s: %s\n", level_names[level < 5 ? level : 4], text);
    if (sink.file)
        fflush(sink.file);
    pthread_mutex_unlock(&sink_lock);
}
