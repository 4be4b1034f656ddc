/* tools/progress.c: how far long work is (cli.md, common part). */
#include "config.h"

#include "tools/progress.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SECOND     1000000000ull
#define BAR_EVERY  (SECOND / 10)
#define LINE_EVERY (10 * SECOND)

uint64_t tool_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

void tool_progress_begin(struct tool_progress *p, const struct tool *tool, const char *what, uint64_t total)
{
    *p = (struct tool_progress){.tool = tool, .what = what, .total = total, .start = tool_now()};
    p->terminal = isatty(STDERR_FILENO);
    p->shown = p->start;
}

static void draw(struct tool_progress *p, uint64_t now)
{
    enum { WIDTH = 30 };
    char bar[WIDTH + 1], rate[32], done[32], total[32];
    double seconds = (double)(now - p->start) / 1e9, speed = (double)p->done / seconds;
    double part = p->total ? (double)p->done / (double)p->total : 1;
    double left = speed > 0 ? (double)(p->total - p->done) / speed : 0;
    int filled = (int)(part * WIDTH);

    memset(bar, '.', WIDTH);
    memset(bar, '#', (size_t)filled);
    bar[WIDTH] = 0;
    tool_bytes((uint64_t)speed, rate);
    tool_bytes(p->done, done);
    tool_bytes(p->total, total);
    if (p->terminal)
        fprintf(stderr, "\r%s [%s] %3.0f %% of %s, %s/s, %.0f s left\033[K", p->what, bar, 100 * part, total, rate,
                left);
    else
        fprintf(stderr, "moert: %s: %s of %s (%.0f %%), %s/s, %.0f s left\n", p->what, done, total, 100 * part, rate,
                left);
    p->drawn = 1;
}

void tool_progress_add(struct tool_progress *p, uint64_t bytes)
{
    uint64_t now = tool_now();

    p->done = bytes > p->total - p->done ? p->total : p->done + bytes;
    if (p->tool->quiet || now - p->start < SECOND || now - p->shown < (p->terminal ? BAR_EVERY : LINE_EVERY))
        return;
    p->shown = now;
    draw(p, now);
}

void tool_progress_end(struct tool_progress *p)
{
    if (p->drawn && p->terminal)
        fprintf(stderr, "\r\033[K");
    p->drawn = 0;
}
