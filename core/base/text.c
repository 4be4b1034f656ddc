/* core/base/text.c: growing strings, nearest match, glob. */
#include "config.h"

#include "core/base/text.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void moert_text_add(struct moert_text *t, const char *format, ...)
{
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0 || t->failed) {
        t->failed = 1;
        return;
    }
    if (t->length + (size_t)n + 1 > t->room) {
        size_t room = (t->length + (size_t)n + 1) * 2;
        char *grown = realloc(t->text, room);
        if (!grown) {
            t->failed = 1;
            return;
        }
        t->text = grown;
        t->room = room;
    }
    va_start(args, format);
    vsnprintf(t->text + t->length, t->room - t->length, format, args);
    va_end(args);
    t->length += (size_t)n;
}

void moert_text_free(struct moert_text *t)
{
    free(t->text);
    *t = (struct moert_text){0};
}

static int fold_char(char c)
{
    return c == '-' ? '_' : tolower((unsigned char)c);
}

int moert_text_same_name(const char *a, const char *b)
{
    while (*a && fold_char(*a) == fold_char(*b)) {
        a++;
        b++;
    }
    return *a == *b;
}

/* Levenshtein distance with swaps of neighbours counted once; words longer than 63 are cut. */
static size_t distance(const char *a, const char *b)
{
    size_t la = strnlen(a, 63), lb = strnlen(b, 63), rows[3][64];
    size_t *prev2 = rows[0], *prev = rows[1], *now = rows[2];

    for (size_t j = 0; j <= lb; j++)
        prev[j] = j;
    for (size_t i = 1; i <= la; i++) {
        size_t *swap;
        now[0] = i;
        for (size_t j = 1; j <= lb; j++) {
            size_t cost = fold_char(a[i - 1]) != fold_char(b[j - 1]), best = prev[j - 1] + cost;
            if (prev[j] + 1 < best)
                best = prev[j] + 1;
            if (now[j - 1] + 1 < best)
                best = now[j - 1] + 1;
            if (i > 1 && j > 1 && fold_char(a[i - 1]) == fold_char(b[j - 2]) &&
                fold_char(a[i - 2]) == fold_char(b[j - 1]) && prev2[j - 2] + 1 < best)
                best = prev2[j - 2] + 1;
            now[j] = best;
        }
        swap = prev2;
        prev2 = prev;
        prev = now;
        now = swap;
    }
    return prev[lb];
}

const char *moert_text_nearest(const char *word, const char *const *list)
{
    const char *best = NULL;
    size_t best_distance = strlen(word) / 2 + 1;

    for (; *list; list++) {
        size_t d = distance(word, *list);
        if (d < best_distance) {
            best_distance = d;
            best = *list;
        }
    }
    return best;
}

int moert_text_glob(const char *p, const char *s, int fold)
{
    const char *star = NULL, *mark = NULL;

    while (*s) {
        if (*p == '*') {
            star = p++;
            mark = s;
        } else if (*p == '?' || *p == *s || (fold && *p && fold_char(*p) == fold_char(*s))) {
            p++;
            s++;
        } else if (star) {
            p = star + 1;
            s = ++mark;
        } else {
            return 0;
        }
    }
    while (*p == '*')
        p++;
    return !*p;
}
