/* core/routing/router_select.h: the K largest of many keys (routing.md 2.2 step 4). */
#ifndef MOERT_ROUTING_ROUTER_SELECT_H
#define MOERT_ROUTING_ROUTER_SELECT_H

#include <stdint.h>

/* The best `used` of the candidates offered so far, largest key first. `key` and `id` have room for `limit`. */
struct moert_selection {
    double *key;
    int32_t *id;
    uint32_t limit, used;
};

/* Candidates are offered in ascending id; among equal keys the earlier stays ahead. Most candidates fail the first
 * comparison, so that a row costs about E comparisons and K*log(E/K) insertions. */
static inline void moert_selection_offer(struct moert_selection *s, double key, int32_t id)
{
    uint32_t i;

    if (s->used < s->limit)
        s->used++;
    else if (!(key > s->key[s->limit - 1]))
        return;
    for (i = s->used - 1; i > 0 && s->key[i - 1] < key; i--) {
        s->key[i] = s->key[i - 1];
        s->id[i] = s->id[i - 1];
    }
    s->key[i] = key;
    s->id[i] = id;
}

#endif
