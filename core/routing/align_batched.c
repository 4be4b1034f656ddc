/* core/routing/align_batched.c: block alignment of the batched form (routing.md 3.3): rows already lie by expert,
 * [E, max_tokens, .], and only the rows in use are cut into blocks. */
#include "config.h"

#include "core/base/checked.h"
#include "core/base/error.h"

#include <moert/routing.h>

#define INT32_LIMIT 2147483647u

static moert_status_t check(const struct moert_expert_counts *counts, uint32_t max_tokens, uint32_t block_size,
                            uint64_t *ret_entries, struct moert_error *err)
{
    uint64_t rows, entries;

    if (!block_size)
        return moert_fail(err, MOERT_E_VALUE, "size", "block_size is 0; must be at least 1");
    if (!counts->counts && counts->num_experts)
        return moert_fail_null(err, "counts");
    rows = ((uint64_t)max_tokens + block_size - 1) / block_size * block_size; /* below 2^33 */
    if (!moert_mul(rows, counts->num_experts, &entries) || entries > INT32_LIMIT)
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large", "%u experts x %llu rows exceed %u", counts->num_experts,
                          (unsigned long long)rows, INT32_LIMIT);
    for (uint32_t e = 0; e < counts->num_experts; e++)
        if (counts->counts[e] < 0 || (uint32_t)counts->counts[e] > max_tokens)
            return moert_fail(err, MOERT_E_VALUE, "count", "counts[%u] is %d; must be 0..%u", e, counts->counts[e],
                              max_tokens);
    *ret_entries = entries;
    return MOERT_OK;
}

moert_status_t moert_align_batched(struct moert_expert_counts counts, uint32_t max_tokens, uint32_t block_size,
                                   int32_t *sorted, int32_t *expert_ids, int32_t *total, struct moert_error *err)
{
    uint64_t entries = 0, at = 0;
    int32_t sentinel;
    moert_status_t status = check(&counts, max_tokens, block_size, &entries, err);

    if (status)
        return status;
    if (!total)
        return moert_fail_null(err, "total");
    if (entries && !sorted)
        return moert_fail_null(err, "sorted");
    if (entries && !expert_ids)
        return moert_fail_null(err, "expert_ids");
    sentinel = (int32_t)(counts.num_experts * max_tokens); /* fits: not above entries */
    for (uint32_t e = 0; e < counts.num_experts; e++) {
        int32_t count = counts.counts[e], first = (int32_t)(e * max_tokens);

        for (int32_t i = 0; i < count; i++) {
            if (at % block_size == 0)
                expert_ids[at / block_size] = (int32_t)e;
            sorted[at++] = first + i;
        }
        while (at % block_size)
            sorted[at++] = sentinel;
    }
    *total = (int32_t)at;
    for (uint64_t b = at / block_size; b < entries / block_size; b++)
        expert_ids[b] = -1;
    while (at < entries)
        sorted[at++] = sentinel;
    return MOERT_OK;
}
