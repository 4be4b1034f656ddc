/* core/routing/router_hash.c: hash routing (routing.md 2.4, DeepSeek-V4): a table says which experts serve a token id;
 * the logits only give the weights. */
#include "config.h"

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/routing/router.h"

#include <string.h>

static int padded(const struct moert_route_args *args, uint64_t t)
{
    return args->is_padding && args->is_padding[t];
}

static moert_status_t check_tokens(const struct moert_route_args *args, const int32_t *table, uint64_t vocabulary,
                                   const int32_t *token_ids, struct moert_error *err)
{
    uint64_t n;

    if (!args->tokens)
        return MOERT_OK;
    if (!table)
        return moert_fail_null(err, "table");
    if (!token_ids)
        return moert_fail_null(err, "token_ids");
    if (!moert_mul(vocabulary, args->top_k, &n) || !moert_mul(n, sizeof(*table), &n))
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large", "a hash table of %llu rows does not fit in memory",
                          (unsigned long long)vocabulary);
    for (uint64_t t = 0; t < args->tokens; t++)
        if (!padded(args, t) && (token_ids[t] < 0 || (uint64_t)token_ids[t] >= vocabulary))
            return moert_fail(err, MOERT_E_VALUE, "field", "token_ids[%llu] is %d; the hash table has %llu rows",
                              (unsigned long long)t, token_ids[t], (unsigned long long)vocabulary);
    return MOERT_OK;
}

moert_status_t moert_route_hash(const struct moert_router_config *router, struct moert_route_args *args,
                                const int32_t *table, uint64_t vocabulary, const int32_t *token_ids,
                                struct moert_error *err)
{
    struct moert_router_plan plan;
    struct moert_score_row row;
    moert_status_t status = moert_router_plan_make(router, args, &plan, err);

    if (status)
        return status;
    status = check_tokens(args, table, vocabulary, token_ids, err);
    for (uint64_t t = 0; !status && t < args->tokens; t++) {
        if (padded(args, t)) {
            moert_router_pad_row(&plan, t);
            continue;
        }
        args->rows_nonfinite += (uint64_t)moert_router_load_row(&plan, t, &row);
        memcpy(args->ids + t * ((uint64_t)args->top_k + args->num_fused_shared),
               table + (uint64_t)token_ids[t] * args->top_k, args->top_k * sizeof(*table));
        moert_router_finish_row(&plan, &row, t);
    }
    moert_router_plan_clear(&plan);
    return status;
}
