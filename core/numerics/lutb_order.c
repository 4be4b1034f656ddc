/* core/numerics/lutb_order.c: sorts a tile's values for the fits: radix sort of 32-bit keys, stable, so that equal
 * values stay in order of position. Passes over bytes that all keys share are left out (two of four for bf16 weights).
 */
#include "core/numerics/lutb.h"

/* Unsigned key that rises with the value; -0 counts as +0. */
static uint32_t rising(float x)
{
    return (uint32_t)moert_lutb_key(x) ^ 0x80000000u;
}

void moert_lutb_order(const float *x, uint16_t *order)
{
    uint32_t keys[2][TILE], *from = keys[0], *to = keys[1];
    uint16_t positions[TILE], *position_from = order, *position_to = positions;
    uint16_t count[4][256] = {{0}};

    for (unsigned p = 0; p < TILE; p++) {
        uint32_t key = rising(x[p]);
        from[p] = key;
        order[p] = (uint16_t)p;
        for (unsigned b = 0; b < 4; b++)
            count[b][key >> 8 * b & 255]++;
    }
    for (unsigned b = 0; b < 4; b++) {
        uint16_t *c = count[b], next = 0;
        if (c[from[0] >> 8 * b & 255] == TILE)
            continue;
        for (unsigned d = 0; d < 256; d++) {
            uint16_t n = c[d];
            c[d] = next;
            next = (uint16_t)(next + n);
        }
        for (unsigned p = 0; p < TILE; p++) {
            unsigned at = c[from[p] >> 8 * b & 255]++;
            to[at] = from[p];
            position_to[at] = position_from[p];
        }
        uint32_t *k = from;
        from = to;
        to = k;
        uint16_t *q = position_from;
        position_from = position_to;
        position_to = q;
    }
    if (position_from != order)
        memcpy(order, position_from, TILE * sizeof(*order));
}
