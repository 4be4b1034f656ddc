/* core/oracle/arena.c: blocks of memory that are freed together. */
#include "config.h"

#include "core/oracle/arena.h"

#include "core/base/checked.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES 16384u /* about ten candidates with a dozen checks each */

struct moert_arena_block {
    struct moert_arena_block *previous;
    size_t used, room;
    max_align_t data[];
};

static char empty_text[1];

static void *take(struct moert_arena *arena, size_t bytes, size_t alignment)
{
    struct moert_arena_block *b = arena->last;
    size_t at = b ? (b->used + alignment - 1) / alignment * alignment : 0;

    if (!b || at > b->room || bytes > b->room - at) {
        size_t room = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        if (room > SIZE_MAX - sizeof(*b) || !(b = malloc(sizeof(*b) + room))) {
            arena->failed = 1;
            return NULL;
        }
        *b = (struct moert_arena_block){.previous = arena->last, .room = room};
        arena->last = b;
        at = 0;
    }
    b->used = at + bytes;
    return (char *)b->data + at;
}

void *moert_arena_alloc(struct moert_arena *arena, size_t count, size_t size)
{
    uint64_t bytes;
    void *p;

    if (!moert_mul(count, size, &bytes) || bytes > SIZE_MAX) {
        arena->failed = 1;
        return NULL;
    }
    p = take(arena, (size_t)bytes, _Alignof(max_align_t));
    return p ? memset(p, 0, (size_t)bytes) : NULL;
}

char *moert_arena_text(struct moert_arena *arena, const char *text)
{
    size_t n = text ? strlen(text) : 0;
    char *copy = n ? take(arena, n + 1, 1) : empty_text;

    if (!copy)
        return empty_text;
    if (n)
        memcpy(copy, text, n + 1);
    return copy;
}

char *moert_arena_format(struct moert_arena *arena, const char *format, ...)
{
    va_list args;
    char *text;
    int n;

    va_start(args, format);
    n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    text = n > 0 ? take(arena, (size_t)n + 1, 1) : NULL;
    if (!text)
        return empty_text;
    va_start(args, format);
    vsnprintf(text, (size_t)n + 1, format, args);
    va_end(args);
    return text;
}

void moert_arena_free(struct moert_arena *arena)
{
    while (arena->last) {
        struct moert_arena_block *b = arena->last;
        arena->last = b->previous;
        free(b);
    }
    *arena = (struct moert_arena){0};
}
