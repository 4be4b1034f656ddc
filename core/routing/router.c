/* core/routing/router.c: router logits -> ids and weights of the K best experts of each token (routing.md 2.2).
 * Binary64 throughout, one rounding of each weight to f32: the same bits on every machine. */
#include "config.h"

#include "core/numerics/exact_math.h"
#include "core/routing/router.h"
#include "core/routing/router_select.h"
#include "core/routing/rows.h"
#include "core/routing/slot.h"

#include <moert/float8.h>

#include <float.h>
#include <math.h>

int moert_router_load_row(const struct moert_router_plan *plan, uint64_t t, struct moert_score_row *ret)
{
    float *x = plan->x;
    int nonfinite = 0;

    moert_row_widen(plan->args->logits, plan->args->logits_dtype, t * plan->stride, plan->columns, x);
    for (uint32_t e = 0; e < plan->columns; e++) {
        if (isnan(x[e]) || x[e] == INFINITY) {
            nonfinite = 1;
            x[e] = isnan(x[e]) ? x[e] : FLT_MAX;
        }
    }
    *ret = (struct moert_score_row){.x = x, .count = plan->args->num_experts, .scoring = plan->scoring};
    if (plan->args->correction_bias || !plan->renormalize) /* else no S is asked for */
        moert_score_prepare(ret);
    return nonfinite;
}

/* Step 2. Without bias the logit itself decides: every score rises strictly with it. */
static void make_keys(const struct moert_router_plan *plan, const struct moert_score_row *row)
{
    const float *bias = plan->args->correction_bias;

    for (uint32_t e = 0; e < row->count; e++) {
        if (isnan(row->x[e]))
            plan->keys[e] = -INFINITY;
        else
            plan->keys[e] = bias ? moert_score(row, e) + bias[e] : row->x[e];
    }
}

/* Largest key of a group; with bias the sum of its two largest. */
static double group_score(const double *keys, uint32_t count, int bias)
{
    double first = -INFINITY, second = -INFINITY;

    for (uint32_t i = 0; i < count; i++) {
        if (keys[i] > first) {
            second = first;
            first = keys[i];
        } else if (keys[i] > second) {
            second = keys[i];
        }
    }
    return bias ? first + second : first;
}

static void offer_range(struct moert_selection *s, const double *keys, uint32_t first, uint32_t count)
{
    for (uint32_t e = first; e < first + count; e++)
        moert_selection_offer(s, keys[e], (int32_t)e);
}

/* Steps 3 and 4: the K best of all experts, or of those of the kept groups, in ascending id. */
static void select_experts(const struct moert_router_plan *plan, int32_t *ids)
{
    struct moert_selection best = {.key = plan->best, .id = ids, .limit = plan->args->top_k};
    struct moert_selection kept = {.key = plan->group_best, .id = plan->group_ids, .limit = plan->kept_groups};
    uint32_t width = plan->args->num_experts / plan->groups;
    int bias = plan->args->correction_bias != NULL;

    if (plan->kept_groups == plan->groups) {
        offer_range(&best, plan->keys, 0, plan->args->num_experts);
        return;
    }
    for (uint32_t g = 0; g < plan->groups; g++)
        moert_selection_offer(&kept, group_score(plan->keys + (uint64_t)g * width, width, bias), (int32_t)g);
    for (uint32_t i = 1; i < kept.used; i++) /* ascending group number, for ties between experts */
        for (uint32_t j = i; j > 0 && kept.id[j - 1] > kept.id[j]; j--) {
            int32_t g = kept.id[j];
            kept.id[j] = kept.id[j - 1];
            kept.id[j - 1] = g;
        }
    for (uint32_t i = 0; i < kept.used; i++)
        offer_range(&best, plan->keys, (uint32_t)kept.id[i] * width, width);
}

/* Step 5 with renormalising: softmax of the log-scores of the selected experts, summed in slot order. An id without
 * expert (a hash table may hold one) weighs nothing. */
static void renormalized(const struct moert_router_plan *plan, const struct moert_score_row *row, const int32_t *ids,
                         float *weights)
{
    double *l = plan->log_scores, max = -INFINITY, sum = 0;
    uint32_t k = plan->args->top_k;

    for (uint32_t j = 0; j < k; j++) {
        l[j] = moert_id_valid(ids[j], row->count) ? moert_log_score(row, (uint32_t)ids[j]) : -INFINITY;
        max = l[j] > max ? l[j] : max;
    }
    for (uint32_t j = 0; j < k; j++) {
        l[j] = max > -INFINITY ? moert_exp(l[j] - max) : 0;
        sum += l[j];
    }
    for (uint32_t j = 0; j < k; j++)
        weights[j] = sum > 0 ? moert_f32_from_double(l[j] / sum * plan->factor) : 0;
}

static void plain(const struct moert_router_plan *plan, const struct moert_score_row *row, const int32_t *ids,
                  float *weights)
{
    for (uint32_t j = 0; j < plan->args->top_k; j++)
        weights[j] = moert_id_valid(ids[j], row->count)
                         ? moert_f32_from_double(moert_score(row, (uint32_t)ids[j]) * plan->factor)
                         : 0;
}

void moert_router_finish_row(const struct moert_router_plan *plan, const struct moert_score_row *row, uint64_t t)
{
    const struct moert_route_args *a = plan->args;
    uint64_t first = t * ((uint64_t)a->top_k + a->num_fused_shared);
    int32_t *ids = a->ids + first;
    float *weights = a->weights + first;

    if (plan->renormalize)
        renormalized(plan, row, ids, weights);
    else
        plain(plan, row, ids, weights);
    for (uint32_t i = 0; i < a->num_fused_shared; i++) {
        ids[a->top_k + i] = (int32_t)(a->num_experts + i);
        weights[a->top_k + i] = moert_f32_from_double(
            a->shared_columns ? moert_score_sigmoid(plan->x[a->num_experts + i]) : plan->shared_weight);
    }
}

void moert_router_pad_row(const struct moert_router_plan *plan, uint64_t t)
{
    uint64_t columns = (uint64_t)plan->args->top_k + plan->args->num_fused_shared;

    for (uint64_t i = t * columns; i < (t + 1) * columns; i++) {
        plan->args->ids[i] = -1;
        plan->args->weights[i] = 0;
    }
}

moert_status_t moert_route(const struct moert_router_config *router, struct moert_route_args *args,
                           struct moert_error *err)
{
    struct moert_router_plan plan;
    struct moert_score_row row;
    moert_status_t status = moert_router_plan_make(router, args, &plan, err);

    if (status)
        return status;
    for (uint64_t t = 0; t < args->tokens; t++) {
        if (args->is_padding && args->is_padding[t]) {
            moert_router_pad_row(&plan, t);
            continue;
        }
        args->rows_nonfinite += (uint64_t)moert_router_load_row(&plan, t, &row);
        make_keys(&plan, &row);
        select_experts(&plan, args->ids + t * ((uint64_t)args->top_k + args->num_fused_shared));
        moert_router_finish_row(&plan, &row, t);
    }
    moert_router_plan_clear(&plan);
    return MOERT_OK;
}
