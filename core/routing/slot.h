/* core/routing/slot.h: the one test that decides whether a slot is computed (routing.md 1), shared by alignment,
 * permute and combine. The range test comes before the map is read: ids come from outside and may hold any value. */
#ifndef MOERT_ROUTING_SLOT_H
#define MOERT_ROUTING_SLOT_H

#include <stdint.h>

/* Sizes and counts of ids that fit int32; functions refuse more experts with this limit. */
#define MOERT_MAX_EXPERTS 2147483647u

/* 1 when id is in [0, E). E <= MOERT_MAX_EXPERTS, so that a negative id, seen as unsigned, is never below E. */
static inline int moert_id_valid(int32_t id, uint32_t num_experts)
{
    return (uint32_t)id < num_experts;
}

/* Local number of the expert that computes the slot, -1 when the slot is not local. map [E] or NULL. */
static inline int32_t moert_slot_expert(int32_t id, uint32_t num_experts, const int32_t *map)
{
    if (!moert_id_valid(id, num_experts))
        return -1;
    if (!map)
        return id;
    return map[id] < 0 ? -1 : map[id];
}

#endif
