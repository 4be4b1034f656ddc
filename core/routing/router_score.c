/* core/routing/router_score.c: scores of router logits (router_score.h). The formulas are those of routing.md 2.1,
 * written out in its order of operations, because their last bits decide keys and weights on every backend. */
#include "config.h"

#include "core/numerics/exact_math.h"
#include "core/routing/router_score.h"

#include <math.h>

static double softplus(double x)
{
    return (x > 0 ? x : 0) + moert_log1p(moert_exp(-fabs(x)));
}

double moert_score_sigmoid(double x)
{
    return isnan(x) ? 0 : 1 / (1 + moert_exp(-x));
}

void moert_score_prepare(struct moert_score_row *row)
{
    double max = -INFINITY, sum = 0;

    if (row->scoring != MOERT_SCORING_SOFTMAX)
        return;
    for (uint32_t e = 0; e < row->count; e++)
        if (row->x[e] > max) /* false for NaN */
            max = row->x[e];
    if (max > -INFINITY)
        for (uint32_t e = 0; e < row->count; e++)
            if (!isnan(row->x[e]))
                sum += moert_exp(row->x[e] - max);
    row->max = max;
    row->sum = sum;
}

double moert_score(const struct moert_score_row *row, uint32_t e)
{
    double x = row->x[e];

    if (isnan(x) || x == -INFINITY)
        return 0;
    if (row->scoring == MOERT_SCORING_SOFTMAX)
        return moert_exp(x - row->max) / row->sum;
    if (row->scoring == MOERT_SCORING_SIGMOID)
        return moert_score_sigmoid(x);
    return sqrt(softplus(x));
}

double moert_log_score(const struct moert_score_row *row, uint32_t e)
{
    double x = row->x[e];

    if (isnan(x) || x == -INFINITY)
        return -INFINITY;
    if (row->scoring == MOERT_SCORING_SOFTMAX)
        return x; /* up to a constant of the row, which renormalising cancels */
    if (row->scoring == MOERT_SCORING_SIGMOID)
        return -softplus(-x);
    /* softplus(x) is exp(x) to all digits below -36, and exp would underflow later on */
    return x <= -36 ? x / 2 : moert_ln(softplus(x)) / 2;
}
