/* core/routing/expert_map.c: which rank owns which expert (routing.md 4): placements, their maps and exchange tables,
 * the 0/1 mask that AITER takes, and replicas of an expert. Loader and routing use the same functions, so that a weight
 * can not land on another rank than its tokens. */
#include "config.h"

#include "core/base/error.h"
#include "core/routing/slot.h"

#include <moert/routing.h>

#include <stdlib.h>

/* Experts spread over ranks: the first `extra` ranks own base + 1, the others base. */
struct share {
    uint32_t base, extra;
};

static struct share share_of(uint32_t num_experts, uint32_t ep_size)
{
    return (struct share){num_experts / ep_size, num_experts % ep_size};
}

/* Experts of the ranks before `rank`. */
static uint32_t start_of(struct share s, uint32_t rank)
{
    return rank * s.base + (rank < s.extra ? rank : s.extra);
}

static uint32_t owned_by(struct share s, uint32_t rank)
{
    return s.base + (rank < s.extra);
}

static moert_status_t check_group(uint32_t ep_size, uint32_t rank, uint32_t num_experts, struct moert_error *err)
{
    if (!ep_size)
        return moert_fail(err, MOERT_E_VALUE, "size", "ep_size is 0; must be at least 1");
    if (rank >= ep_size)
        return moert_fail(err, MOERT_E_VALUE, "size", "rank is %u; must be below ep_size %u", rank, ep_size);
    if (!num_experts || num_experts > MOERT_MAX_EXPERTS)
        return moert_fail(err, MOERT_E_VALUE, "size", "num_experts is %u; must be 1..%u", num_experts,
                          MOERT_MAX_EXPERTS);
    return MOERT_OK;
}

moert_status_t moert_expert_place(uint32_t ep_size, uint32_t rank, uint32_t num_experts, moert_placement_t placement,
                                  int32_t *map, uint32_t *ret_local, struct moert_error *err)
{
    moert_status_t status = check_group(ep_size, rank, num_experts, err);
    struct share s;
    uint32_t first, owned;

    if (status)
        return status;
    if (placement != MOERT_PLACE_LINEAR && placement != MOERT_PLACE_ROUND_ROBIN)
        return moert_fail(err, MOERT_E_VALUE, "field", "placement is %u; must be 0 (linear) or 1 (round-robin)",
                          placement);
    if (!map)
        return moert_fail_null(err, "map");
    s = share_of(num_experts, ep_size);
    first = start_of(s, rank);
    owned = owned_by(s, rank);
    for (uint32_t g = 0; g < num_experts; g++) {
        if (placement == MOERT_PLACE_LINEAR)
            map[g] = g >= first && g - first < owned ? (int32_t)(g - first) : -1;
        else
            map[g] = g % ep_size == rank ? (int32_t)(g / ep_size) : -1;
    }
    if (ret_local)
        *ret_local = owned;
    return MOERT_OK;
}

moert_status_t moert_expert_tables(uint32_t ep_size, uint32_t rank, uint32_t num_experts, int32_t *global_to_physical,
                                   int32_t *physical_to_global, int32_t *local_to_global, struct moert_error *err)
{
    moert_status_t status = check_group(ep_size, rank, num_experts, err);
    struct share s;

    if (status)
        return status;
    s = share_of(num_experts, ep_size);
    for (uint32_t g = 0; g < num_experts; g++) {
        uint32_t owner = g % ep_size, local = g / ep_size, physical = start_of(s, owner) + local;

        if (global_to_physical)
            global_to_physical[g] = (int32_t)physical;
        if (physical_to_global)
            physical_to_global[physical] = (int32_t)g;
        if (local_to_global && owner == rank)
            local_to_global[local] = (int32_t)g;
    }
    return MOERT_OK;
}

/* A 0/1 vector one or more entries longer than a map is AITER's mask. */
static int looks_like_mask(const int32_t *map, uint64_t length, uint32_t num_experts)
{
    if (length <= num_experts || map[length - 1] != 0)
        return 0;
    for (uint64_t i = 0; i < length; i++)
        if (map[i] != 0 && map[i] != 1)
            return 0;
    return 1;
}

static moert_status_t check_entries(const int32_t *map, uint32_t num_experts, uint32_t num_local, uint8_t *seen,
                                    struct moert_error *err)
{
    for (uint32_t g = 0; g < num_experts; g++) {
        int32_t l = map[g];

        if (l == -1)
            continue;
        if (!moert_id_valid(l, num_local)) {
            if (!num_local)
                return moert_fail(err, MOERT_E_VALUE, "map", "expert_map[%u] is %d; there are no local experts", g, l);
            return moert_fail(err, MOERT_E_VALUE, "map", "expert_map[%u] is %d; local ids are 0..%u", g, l,
                              num_local - 1);
        }
        if (seen[l / 8] >> (l % 8) & 1)
            return moert_fail(err, MOERT_E_VALUE, "map", "local id %d appears twice in the expert map", l);
        seen[l / 8] |= (uint8_t)(1u << (l % 8));
    }
    return MOERT_OK;
}

moert_status_t moert_expert_map_check(const int32_t *map, uint64_t length, uint32_t num_experts, uint32_t num_local,
                                      struct moert_error *err)
{
    moert_status_t status;
    uint8_t *seen;

    if (num_local > MOERT_MAX_EXPERTS)
        return moert_fail(err, MOERT_E_VALUE, "size", "num_local_experts is %u; must be 0..%u", num_local,
                          MOERT_MAX_EXPERTS);
    if (!map && length)
        return moert_fail_null(err, "expert_map");
    if (length != num_experts) {
        if (looks_like_mask(map, length, num_experts))
            return moert_fail(err, MOERT_E_VALUE, "map",
                              "this is a 0/1 mask of length %llu, a map of length %u is needed",
                              (unsigned long long)length, num_experts);
        return moert_fail(err, MOERT_E_VALUE, "map", "the expert map has length %llu, %u is needed",
                          (unsigned long long)length, num_experts);
    }
    seen = calloc((size_t)num_local / 8 + 1, 1);
    if (!seen)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory to check an expert map of %u local experts",
                          num_local);
    status = check_entries(map, num_experts, num_local, seen, err);
    free(seen);
    return status;
}

static moert_status_t check_mask_length(uint64_t length, uint32_t num_experts, uint32_t num_shared, int is_null,
                                        struct moert_error *err)
{
    uint64_t want = (uint64_t)num_experts + num_shared + 1;

    if (is_null)
        return moert_fail_null(err, "map or mask");
    if (length != want)
        return moert_fail(err, MOERT_E_VALUE, "map", "the expert mask has length %llu, %llu is needed%s",
                          (unsigned long long)length, (unsigned long long)want,
                          length + 1 == want ? "; this is the length of a map" : "");
    return MOERT_OK;
}

moert_status_t moert_expert_map_to_mask(const int32_t *map, uint32_t num_experts, uint32_t num_shared,
                                        struct moert_expert_mask ret, struct moert_error *err)
{
    moert_status_t status = check_mask_length(ret.length, num_experts, num_shared, !map || !ret.mask, err);
    int32_t ones = 0;

    if (status)
        return status;
    for (uint64_t i = 0; i + 1 < ret.length; i++) {
        if (map[i] == -1 && i < num_experts)
            continue;
        if (map[i] != ones)
            return moert_fail(err, MOERT_E_VALUE, "map",
                              "expert_map[%llu] is %d; a mask can only say %d there: local ids in increasing order",
                              (unsigned long long)i, map[i], ones);
        ones++;
    }
    for (uint64_t i = 0; i + 1 < ret.length; i++)
        ret.mask[i] = map[i] >= 0;
    ret.mask[ret.length - 1] = 0;
    return MOERT_OK;
}

moert_status_t moert_expert_mask_to_map(struct moert_expert_mask mask, uint32_t num_experts, uint32_t num_shared,
                                        int32_t *map, struct moert_error *err)
{
    moert_status_t status = check_mask_length(mask.length, num_experts, num_shared, !map || !mask.mask, err);
    int32_t ones = 0;

    if (status)
        return status;
    for (uint64_t i = 0; i < mask.length; i++) {
        uint32_t limit = i + 1 < mask.length ? 1 : 0;

        if (!moert_id_valid(mask.mask[i], limit + 1))
            return moert_fail(err, MOERT_E_VALUE, "map", "mask[%llu] is %d; %s; this is not a mask",
                              (unsigned long long)i, mask.mask[i],
                              limit ? "entries are 0 or 1" : "the last entry is 0");
        if (i >= num_experts && limit && !mask.mask[i])
            return moert_fail(err, MOERT_E_VALUE, "map", "mask[%llu] is 0; fused shared experts are on every rank",
                              (unsigned long long)i);
    }
    for (uint64_t i = 0; i + 1 < mask.length; i++)
        map[i] = mask.mask[i] ? ones++ : -1;
    return MOERT_OK;
}

static moert_status_t check_replicas(const int32_t *replicas, uint32_t num_logical, uint32_t max_replicas,
                                     struct moert_error *err)
{
    for (uint32_t e = 0; e < num_logical; e++)
        if (replicas[e] < 1 || (uint32_t)replicas[e] > max_replicas)
            return moert_fail(err, MOERT_E_VALUE, "count", "replicas[%u] is %d; must be 1..%u", e, replicas[e],
                              max_replicas);
    return MOERT_OK;
}

moert_status_t moert_expert_replicas(const int32_t *ids, uint64_t tokens, uint32_t top_k, const int32_t *table,
                                     const int32_t *replicas, uint32_t num_logical, uint32_t max_replicas,
                                     int32_t *physical, struct moert_error *err)
{
    moert_status_t status;

    if (num_logical > MOERT_MAX_EXPERTS)
        return moert_fail(err, MOERT_E_VALUE, "size", "%u logical experts; at most %u", num_logical, MOERT_MAX_EXPERTS);
    if (num_logical && (!table || !replicas))
        return moert_fail_null(err, table ? "replicas" : "table");
    if (tokens && top_k && (!ids || !physical))
        return moert_fail_null(err, ids ? "physical" : "ids");
    status = check_replicas(replicas, num_logical, max_replicas, err);
    if (status)
        return status;
    for (uint64_t t = 0; t < tokens; t++) {
        uint32_t spread = (uint32_t)t * 2654435769u; /* Knuth's multiplicative hash, modulo 2^32 */

        for (uint64_t s = t * top_k; s < (t + 1) * top_k; s++) {
            int32_t id = ids[s];

            physical[s] = moert_id_valid(id, num_logical)
                              ? table[(uint64_t)id * max_replicas + spread % (uint32_t)replicas[id]]
                              : -1;
        }
    }
    return MOERT_OK;
}
