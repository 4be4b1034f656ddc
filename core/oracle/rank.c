/* core/oracle/rank.c: the order in which candidates are tried. Pure.
 *
 * Static order: priority of the phase descending, then name, then device id. Candidates without a backend (a module
 * that could not be asked, a name that is not provided) come last. A measured result (oracle.md 7) and the rules
 * `prefer` and `avoid` (5) are stable moves on this order and belong here. */
#include "core/oracle/trail.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Digits as numbers, so that cuda:2 comes before cuda:10. */
static int compare_ids(const char *a, const char *b)
{
    while (*a && *b) {
        if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
            size_t la, lb;
            while (*a == '0' && isdigit((unsigned char)a[1]))
                a++;
            while (*b == '0' && isdigit((unsigned char)b[1]))
                b++;
            la = strspn(a, "0123456789");
            lb = strspn(b, "0123456789");
            if (la != lb)
                return la < lb ? -1 : 1;
            for (; la; la--, a++, b++)
                if (*a != *b)
                    return *a < *b ? -1 : 1;
            continue;
        }
        if (*a != *b)
            return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
        a++;
        b++;
    }
    return !!*a - !!*b;
}

static int group_of(const struct moert_oracle_candidate *c)
{
    return c->table ? 0 : c->not_provided ? 2 : 1;
}

static int compare(const void *pa, const void *pb)
{
    const struct moert_oracle_candidate *a = *(const struct moert_oracle_candidate *const *)pa;
    const struct moert_oracle_candidate *b = *(const struct moert_oracle_candidate *const *)pb;
    int order = group_of(a) - group_of(b);

    if (order)
        return order;
    if (a->priority != b->priority)
        return a->priority > b->priority ? -1 : 1;
    order = strcmp(a->backend, b->backend);
    if (!order)
        order = compare_ids(a->device ? a->device->desc.id : "", b->device ? b->device->desc.id : "");
    return order ? order : strcmp(a->id, b->id);
}

void moert_oracle_rank(struct moert_oracle_candidate **candidates, uint32_t count)
{
    if (count)
        qsort(candidates, count, sizeof(struct moert_oracle_candidate *), compare);
}
