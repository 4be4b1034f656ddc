/* core/routing/router.h: one routing call at work, shared by top-k (router.c) and hash routing (router_hash.c). */
#ifndef MOERT_ROUTING_ROUTER_H
#define MOERT_ROUTING_ROUTER_H

#include "core/routing/router_score.h"

#include <moert/routing.h>

/* A checked call: the description with its defaults resolved, and scratch for one row. */
struct moert_router_plan {
    const struct moert_route_args *args;
    moert_scoring_t scoring;
    int renormalize;
    double factor;        /* into the weights; 1: none */
    double shared_weight; /* of fused shared slots without logit columns */
    uint32_t groups, kept_groups;
    uint32_t columns;          /* logits read per row */
    uint64_t stride;           /* elements from row to row */
    void *memory;              /* owns the scratch below */
    double *keys;              /* [E] */
    double *best, *group_best; /* [K], [kept groups]: keys of selections */
    double *log_scores;        /* [K] */
    int32_t *group_ids;        /* [kept groups] */
    float *x;                  /* [columns] */
};

/* Checks everything a call needs and makes the plan; moert_router_plan_clear frees it. */
moert_status_t moert_router_plan_make(const struct moert_router_config *router, const struct moert_route_args *args,
                                      struct moert_router_plan *ret, struct moert_error *err);
void moert_router_plan_clear(struct moert_router_plan *plan);

/* Row t -> plan->x: widened, +Inf to FLT_MAX. Returns 1 when the row held NaN or +Inf. */
int moert_router_load_row(const struct moert_router_plan *plan, uint64_t t, struct moert_score_row *ret);

/* Weights of the K ids already chosen for row t (steps 5 and 6), and its fused shared slots (step 7). */
void moert_router_finish_row(const struct moert_router_plan *plan, const struct moert_score_row *row, uint64_t t);

/* A row flagged as padding: ids -1, weights 0. */
void moert_router_pad_row(const struct moert_router_plan *plan, uint64_t t);

#endif
