/* tools/clock.c: time and its statistics. */
#include "config.h"

#include "tools/clock.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

double tool_clock(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double at(const double *sorted, uint64_t count, uint64_t percent)
{
    uint64_t rank = (count * percent + 99) / 100;
    return sorted[rank ? rank - 1 : 0];
}

struct tool_statistics tool_statistics(const double *samples, uint64_t count)
{
    struct tool_statistics s = {0};
    double *sorted = count ? malloc((size_t)count * sizeof(*sorted)) : NULL;

    if (!sorted)
        return s;
    memcpy(sorted, samples, (size_t)count * sizeof(*sorted));
    qsort(sorted, (size_t)count, sizeof(*sorted), ascending);
    s.median = count % 2 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
    s.p5 = at(sorted, count, 5);
    s.p95 = at(sorted, count, 95);
    s.min = sorted[0];
    s.max = sorted[count - 1];
    free(sorted);
    return s;
}
