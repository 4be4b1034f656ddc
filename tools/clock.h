/* tools/clock.h: time and its statistics. */
#ifndef MOERT_TOOLS_CLOCK_H
#define MOERT_TOOLS_CLOCK_H

#include <stdint.h>

/* Monotonic time in ns. */
double tool_clock(void);

struct tool_statistics {
    double median, p5, p95, min, max;
};
/* Nearest-rank percentiles; the samples keep their order. All 0 without samples. */
struct tool_statistics tool_statistics(const double *samples, uint64_t count);

#endif
