/* core/oracle/drift.c: the check that a name leads to one backend (oracle.md 11). The loader's gate refuses a module
 * that would break this; here the table that the oracle works with is looked at as a whole. */
#include "core/oracle/trail.h"

#include "core/base/error.h"
#include "core/base/text.h"

/* Word `index` of a backend: its name, then its aliases; NULL past the end. */
static const char *word_of(const struct moert_backend *b, uint32_t index)
{
    if (!index)
        return b->name;
    for (uint32_t i = 0; b->aliases && b->aliases[i]; i++)
        if (i + 1 == index)
            return b->aliases[i];
    return NULL;
}

/* First word of `a` that `b` has too; within one backend, a word that stands there twice. */
static const char *shared_word(const struct moert_backend *a, const struct moert_backend *b)
{
    const char *word, *other;

    for (uint32_t i = 0; (word = word_of(a, i)); i++)
        for (uint32_t j = a == b ? i + 1 : 0; (other = word_of(b, j)); j++)
            if (moert_text_same_name(word, other))
                return word;
    return NULL;
}

moert_status_t moert_oracle_drift(struct moert_ctx_backend *const *backends, uint32_t count, struct moert_error *err)
{
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = i; j < count; j++) {
            const struct moert_backend *a = backends[i]->table, *b = backends[j]->table;
            const char *word = i == j ? shared_word(a, a) : a == b ? a->name : shared_word(a, b);
            if (word)
                return moert_fail(err, MOERT_E_INTERNAL, "drift", "\"%s\" belongs to two backends: %s and %s", word,
                                  a->name, b->name);
        }
    return MOERT_OK;
}
