/* core/base/text.h: growing strings, lists of names, nearest match, glob. */
#ifndef MOERT_BASE_TEXT_H
#define MOERT_BASE_TEXT_H

#include <stddef.h>

/* A string that grows; start with {0}. `failed` stays set once memory ran out (text may then be NULL or cut). */
struct moert_text {
    char *text;
    size_t length, room;
    int failed;
};
void moert_text_add(struct moert_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void moert_text_free(struct moert_text *text);

/* The entry of a NULL-terminated list that is nearest to `word` by edit distance (case folded, '-' equals '_'), or NULL
 * when nothing is near enough to be meant. */
const char *moert_text_nearest(const char *word, const char *const *list);

/* Equal up to case, with '-' equal to '_'. */
int moert_text_same_name(const char *a, const char *b);
/* '*' and '?' over the whole string; the same folding when fold is set. */
int moert_text_glob(const char *pattern, const char *text, int fold);

#endif
