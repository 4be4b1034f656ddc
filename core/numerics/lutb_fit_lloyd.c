/* core/numerics/lutb_fit_lloyd.c: the two iterative fits that other encoders use (lut-b.md 3), for comparison with
 * `optimal`: farthest (compressed-tensors) and multistart (vLLM's online codec). Sums run in binary64 in rising
 * position. */
#include "core/numerics/lutb.h"

#include <moert/float8.h>

#include <math.h>

#define FARTHEST_STEPS   8
#define MULTISTART_STEPS 16
#define STARTS           3

/* Snaps eight values and sorts them (insertion: they are nearly sorted already). */
static void snap_sort(const float *in, float *levels, uint8_t *codes)
{
    for (int i = 0; i < LEVELS; i++) {
        uint8_t code = moert_lutb_snap(in[i]);
        float value = moert_e4m3_decode(code);
        int k = i;
        for (; k > 0 && moert_lutb_key(levels[k - 1]) > moert_lutb_key(value); k--) {
            levels[k] = levels[k - 1];
            codes[k] = codes[k - 1];
        }
        levels[k] = value;
        codes[k] = code;
    }
}

static double error_of(const float *x, const float *levels, const uint8_t *indices)
{
    double sum = 0;

    for (unsigned p = 0; p < TILE; p++) {
        double d = (double)levels[indices[p]] - (double)x[p];
        sum += d * d;
    }
    return sum;
}

/* From eight start values: steps times assign, mean, snap, sort. Returns the error of the final assignment. */
static double iterate(const float *x, const float *start, int steps, uint8_t *codes)
{
    float levels[LEVELS], means[LEVELS];
    uint8_t indices[TILE];

    snap_sort(start, levels, codes);
    while (steps-- > 0) {
        double sum[LEVELS] = {0}, count[LEVELS] = {0};
        moert_lutb_assign(x, levels, indices);
        for (unsigned p = 0; p < TILE; p++) {
            sum[indices[p]] += (double)x[p];
            count[indices[p]] += 1;
        }
        for (int i = 0; i < LEVELS; i++)
            means[i] = count[i] > 0 ? moert_f32_from_double(sum[i] / count[i]) : levels[i];
        snap_sort(means, levels, codes);
    }
    moert_lutb_assign(x, levels, indices);
    return error_of(x, levels, indices);
}

/* The mean, then seven times the value farthest from all chosen ones, the first on a tie. */
static void start_farthest(const float *x, float *start)
{
    double nearest[TILE], mean = 0;

    for (unsigned p = 0; p < TILE; p++)
        mean += (double)x[p];
    start[0] = moert_f32_from_double(mean / TILE);
    for (unsigned p = 0; p < TILE; p++)
        nearest[p] = INFINITY;
    for (int i = 1; i < LEVELS; i++) {
        unsigned at = 0;
        for (unsigned p = 0; p < TILE; p++) {
            double d = (double)x[p] - (double)start[i - 1];
            nearest[p] = d * d < nearest[p] ? d * d : nearest[p];
            at = nearest[p] > nearest[at] ? p : at;
        }
        start[i] = x[at];
    }
}

void moert_lutb_fit_lloyd(const float *x, moert_lutb_fit_t fit, uint8_t *codes)
{
    float starts[STARTS][LEVELS];
    uint16_t order[TILE];
    double best;

    start_farthest(x, starts[0]);
    if (fit == MOERT_FIT_FARTHEST) {
        iterate(x, starts[0], FARTHEST_STEPS, codes);
        return;
    }
    moert_lutb_order(x, order);
    for (int i = 0; i < LEVELS; i++) {
        double min = (double)x[order[0]], max = (double)x[order[TILE - 1]];
        starts[1][i] = x[order[32 + 64 * i]];
        starts[2][i] = moert_f32_from_double(min + (max - min) * i / (LEVELS - 1));
    }
    best = iterate(x, starts[0], MULTISTART_STEPS, codes);
    for (int s = 1; s < STARTS; s++) {
        uint8_t other[LEVELS];
        double error = iterate(x, starts[s], MULTISTART_STEPS, other);
        if (error < best) {
            best = error;
            memcpy(codes, other, sizeof(other));
        }
    }
}
