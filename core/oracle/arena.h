/* core/oracle/arena.h: memory of one decision. Everything that a decision holds is allocated here and freed at once, so
 * that copying the reports of twenty backends costs a few allocations. Not thread-safe. */
#ifndef MOERT_ORACLE_ARENA_H
#define MOERT_ORACLE_ARENA_H

#include <stddef.h>

struct moert_arena_block;

/* Start with {0}. `failed` stays set once memory ran out. */
struct moert_arena {
    struct moert_arena_block *last;
    int failed;
};

/* Zeroed, aligned for any type; NULL when memory is out. */
void *moert_arena_alloc(struct moert_arena *arena, size_t count, size_t size);
/* Never NULL: "" when memory is out or text is NULL. */
char *moert_arena_text(struct moert_arena *arena, const char *text);
char *moert_arena_format(struct moert_arena *arena, const char *format, ...) __attribute__((format(printf, 2, 3)));
void moert_arena_free(struct moert_arena *arena);

#endif
