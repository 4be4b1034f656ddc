/* core/routing/router_score.h: what a router makes of one logit (routing.md 2.1): the score S and its logarithm L, in
 * binary64. Pure. */
#ifndef MOERT_ROUTING_ROUTER_SCORE_H
#define MOERT_ROUTING_ROUTER_SCORE_H

#include <moert/base.h>

/* A row of logits after cleaning: NaN marks a bad logit, +Inf has become FLT_MAX. */
struct moert_score_row {
    const float *x; /* [E] */
    uint32_t count;
    moert_scoring_t scoring;
    double max, sum; /* softmax only: largest logit and sum of exp(x - max), bad ones left out */
};

/* Fills max and sum of a softmax row; nothing for the other scorings. */
void moert_score_prepare(struct moert_score_row *row);

/* S and L of logit e; 0 and -Inf for a bad one. S of a softmax row needs moert_score_prepare. */
double moert_score(const struct moert_score_row *row, uint32_t e);
double moert_log_score(const struct moert_score_row *row, uint32_t e);

/* 1 / (1 + exp(-x)); 0 for NaN. */
double moert_score_sigmoid(double x);

#endif
