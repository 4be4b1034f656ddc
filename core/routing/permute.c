/* core/routing/permute.c: rows of local slots gathered in expert order, for backends that want each expert's rows
 * contiguous (routing.md 5). The way back is moert_unpermute in combine.c. */
#include "config.h"

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/routing/slot.h"

#include <moert/routing.h>

#include <string.h>

static moert_status_t check_map(const int32_t *map, uint32_t num_experts, uint32_t num_local, struct moert_error *err)
{
    if (num_experts > MOERT_MAX_EXPERTS)
        return moert_fail(err, MOERT_E_VALUE, "size", "num_experts is %u; at most %u", num_experts, MOERT_MAX_EXPERTS);
    if (!map && num_local < num_experts)
        return moert_fail(err, MOERT_E_SHAPE, "experts", "%u local experts, %u experts, and there is no expert map",
                          num_local, num_experts);
    for (uint32_t g = 0; map && g < num_experts; g++)
        if (map[g] >= 0 && (uint32_t)map[g] >= num_local)
            return moert_fail(err, MOERT_E_VALUE, "map", "expert_map[%u] is %d; there are %u local experts", g, map[g],
                              num_local);
    return MOERT_OK;
}

static moert_status_t check_arrays(const int32_t *ids, uint64_t slots, const int64_t *first, const int32_t *perm,
                                   const int32_t *inv, struct moert_error *err)
{
    if (!first)
        return moert_fail_null(err, "first");
    if (!slots)
        return MOERT_OK;
    if (!ids)
        return moert_fail_null(err, "ids");
    if (!perm)
        return moert_fail_null(err, "perm");
    if (!inv)
        return moert_fail_null(err, "inv");
    return MOERT_OK;
}

/* first[0..L-1] holds counts -> starts; first[L] the sum. */
static void to_starts(int64_t *first, uint32_t num_local)
{
    int64_t sum = 0;

    for (uint32_t l = 0; l < num_local; l++) {
        int64_t count = first[l];
        first[l] = sum;
        sum += count;
    }
    first[num_local] = sum;
}

moert_status_t moert_permute_indices(const int32_t *ids, uint64_t tokens, uint32_t top_k, uint32_t num_experts,
                                     const int32_t *map, uint32_t num_local, int64_t *first, int32_t *perm,
                                     int32_t *inv, struct moert_error *err)
{
    uint64_t slots;
    moert_status_t status;

    if (!moert_mul(tokens, top_k, &slots) || slots > INT32_MAX)
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large", "%llu tokens x %u slots exceed %d",
                          (unsigned long long)tokens, top_k, INT32_MAX);
    status = check_map(map, num_experts, num_local, err);
    if (!status)
        status = check_arrays(ids, slots, first, perm, inv, err);
    if (status)
        return status;
    memset(first, 0, ((size_t)num_local + 1) * sizeof(*first));
    for (uint64_t s = 0; s < slots; s++) {
        int32_t l = moert_slot_expert(ids[s], num_experts, map);
        if (l >= 0)
            first[l]++;
    }
    to_starts(first, num_local);
    for (uint64_t s = 0; s < slots; s++) {
        int32_t l = moert_slot_expert(ids[s], num_experts, map);

        inv[s] = l < 0 ? -1 : (int32_t)first[l]++;
        if (l >= 0)
            perm[inv[s]] = (int32_t)s;
    }
    for (uint64_t p = (uint64_t)first[num_local]; p < slots; p++)
        perm[p] = (int32_t)slots;
    for (uint32_t l = num_local; l > 0; l--) /* each start has moved to the next one's */
        first[l] = first[l - 1];
    first[0] = 0;
    return MOERT_OK;
}

void moert_permute_rows(const void *x, uint64_t row_bytes, uint32_t top_k, const int32_t *perm, uint64_t used,
                        void *rows)
{
    for (uint64_t p = 0; p < used; p++)
        memcpy((uint8_t *)rows + p * row_bytes, (const uint8_t *)x + (uint32_t)perm[p] / top_k * row_bytes,
               (size_t)row_bytes);
}
