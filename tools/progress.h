/* tools/progress.h: how far long work is: a bar with rate and remaining time on a terminal, a line every 10 s
 * otherwise; nothing during the first second and nothing with --quiet. On stderr. One thread. */
#ifndef MOERT_PROGRESS_H
#define MOERT_PROGRESS_H

#include "tools/tools.h"

struct tool_progress {
    const struct tool *tool;
    const char *what;      /* "quantize" */
    uint64_t total, done;  /* bytes */
    uint64_t start, shown; /* ns */
    int terminal, drawn;
};

void tool_progress_begin(struct tool_progress *progress, const struct tool *tool, const char *what, uint64_t total);
void tool_progress_add(struct tool_progress *progress, uint64_t bytes);
void tool_progress_end(struct tool_progress *progress); /* clears the bar */

/* Monotonic clock in ns. */
uint64_t tool_now(void);

#endif
