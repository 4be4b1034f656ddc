/* core/numerics/lutb_fit_optimal.c: the codebook of least squared error (lut-b.md 3).
 *
 * Each value uses its nearest level, so the error of a set of levels splits into the values below the first level,
 * those between two neighbouring levels (parted at the midpoint) and those above the last: a shortest path with 8 nodes
 * over the candidate levels, the E4M3 values between the tile's extremes. With prefix sums over the sorted tile each
 * edge costs O(1).
 *
 * Two things make it fast and change no result. Nodes are settled in rising order for all path lengths at once, so that
 * an edge is computed once and never stored; the predecessors are found again afterwards, on the best path only. And
 * edges that alone cost more than some known set of levels are skipped: they cannot lie on a best path. An edge's cost
 * rises with its upper end, so the first such edge ends the row. Ties take the smallest candidate, as the definition
 * says. */
#include "core/numerics/lutb.h"

#include <math.h>

#define GRID        253 /* finite E4M3 values, one zero */
#define GRID_ZERO   126
#define START_STEPS 3 /* rounds of improvement for the bound */

struct problem {
    double v[TILE];                               /* sorted values */
    double W[TILE + 1], S[TILE + 1], Q[TILE + 1]; /* sums of w, w*v, w*v*v before each */
    double g[GRID];                               /* candidate levels, rising */
    uint8_t code[GRID];
    int below[GRID]; /* number of values below candidate a */
    int m;           /* candidates */
    int zero;        /* candidate that every path must visit, or -1 */
    double limit;    /* edges dearer than this lie on no best path */
};

/* Cost of values i..j-1 at level g. The order of operations is part of the definition: ties depend on it. */
static inline double part(const struct problem *t, int i, int j, double g)
{
    return (t->Q[j] - t->Q[i]) - 2 * g * (t->S[j] - t->S[i]) + g * g * (t->W[j] - t->W[i]);
}

/* Grid value i = 0..252 in rising order. */
static uint8_t grid_code(int i)
{
    return (uint8_t)(i < GRID_ZERO ? 0x80 + GRID_ZERO - i : i - GRID_ZERO);
}

static double grid_value(int i)
{
    return (double)moert_f32_of_bits(moert_e4m3_table[grid_code(i)]);
}

/* Weights far from 1 are scaled by a power of two, which changes no decision, so that no sum overflows. */
static double weight_scale(const double *w)
{
    double most = 0;

    for (unsigned p = 0; w && p < TILE; p++)
        most = w[p] > most ? w[p] : most;
    if (most == 0 || (most > 0x1p-300 && most < 0x1p300))
        return 1;
    return most < 1 ? 0x1p500 : 0x1p-500;
}

static void sums(struct problem *t, const float *x, const double *w)
{
    uint16_t order[TILE];
    double scale = weight_scale(w);

    moert_lutb_order(x, order);
    t->W[0] = t->S[0] = t->Q[0] = 0;
    for (unsigned p = 0; p < TILE; p++) {
        double weight = w ? w[order[p]] * scale : 1.0, value = x[order[p]];
        t->v[p] = value;
        t->W[p + 1] = t->W[p] + weight;
        t->S[p + 1] = t->S[p] + weight * value;
        t->Q[p + 1] = t->Q[p] + weight * value * value;
    }
}

/* The largest grid value <= min to the smallest >= max: a level outside moves to the end of the range without loss. */
static void candidates(struct problem *t, int keep_zero)
{
    int lo = 0, hi = GRID - 1, p = 0;

    while (lo < GRID - 1 && grid_value(lo + 1) <= t->v[0])
        lo++;
    while (hi > lo && grid_value(hi - 1) >= t->v[TILE - 1])
        hi--;
    if (keep_zero) {
        lo = lo > GRID_ZERO ? GRID_ZERO : lo;
        hi = hi < GRID_ZERO ? GRID_ZERO : hi;
    }
    t->m = hi - lo + 1;
    t->zero = keep_zero ? GRID_ZERO - lo : -1;
    for (int a = 0; a < t->m; a++) {
        t->g[a] = grid_value(lo + a);
        t->code[a] = grid_code(lo + a);
        while (p < TILE && t->v[p] < t->g[a])
            p++;
        t->below[a] = p;
    }
}

/* First value above the midpoint of a and b, searched from *p, which is <= it. */
static inline int parting(const struct problem *t, int a, int b, int p)
{
    double mid = 0.5 * (t->g[a] + t->g[b]);

    while (p < t->below[b] && t->v[p] <= mid)
        p++;
    return p;
}

static inline double edge(const struct problem *t, int a, int b, int p)
{
    return part(t, t->below[a], p, t->g[a]) + part(t, p, t->below[b], t->g[b]);
}

static inline int skips_zero(const struct problem *t, int a, int b)
{
    return a < t->zero && t->zero < b;
}

/* ------------------------------------------------------------------ the bound */

static int nearest_candidate(const struct problem *t, double value)
{
    int lo = 0, hi = t->m - 1;

    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;
        if (t->g[mid] <= value)
            lo = mid;
        else
            hi = mid;
    }
    return value - t->g[lo] <= t->g[hi] - value ? lo : hi;
}

/* Error of a rising list of levels; cut[i] is where level i's values end. */
static double set_error(const struct problem *t, const int *levels, int *cut)
{
    double sum = 0;

    for (int i = 0, from = 0; i < LEVELS; i++) {
        cut[i] = i + 1 < LEVELS ? parting(t, levels[i], levels[i + 1], t->below[levels[i]]) : TILE;
        sum += part(t, from, cut[i], t->g[levels[i]]);
        from = cut[i];
    }
    return sum;
}

/* Some set's error: levels near the order statistics 32, 96, .., improved by a few Lloyd steps. */
static double known_error(const struct problem *t)
{
    int levels[LEVELS], cut[LEVELS];
    double best = INFINITY;

    for (int i = 0; i < LEVELS; i++)
        levels[i] = nearest_candidate(t, t->v[32 + 64 * i]);
    for (int step = 0; step <= START_STEPS; step++) {
        double error = set_error(t, levels, cut);
        best = error < best ? error : best;
        for (int i = 0, from = 0; i < LEVELS; i++) {
            double weight = t->W[cut[i]] - t->W[from];
            if (weight > 0)
                levels[i] = nearest_candidate(t, (t->S[cut[i]] - t->S[from]) / weight);
            from = cut[i];
        }
        for (int i = 1; i < LEVELS; i++) /* an empty level may have been overtaken */
            levels[i] = levels[i] < levels[i - 1] ? levels[i - 1] : levels[i];
    }
    return best;
}

/* ------------------------------------------------------------------ the path */

/* D[b][j]: least cost of the values below candidate b with b as level j. */
static void settle(const struct problem *t, double D[GRID][LEVELS])
{
    for (int b = 0; b < t->m; b++) {
        D[b][0] = t->zero >= 0 && b > t->zero ? INFINITY : part(t, 0, t->below[b], t->g[b]);
        for (int j = 1; j < LEVELS; j++)
            D[b][j] = INFINITY;
    }
    for (int a = 0; a < t->m; a++) {
        double from[LEVELS];
        from[0] = INFINITY;
        memcpy(from + 1, D[a], (LEVELS - 1) * sizeof(*from));
        for (int b = a + 1, p = t->below[a]; b < t->m; b++) {
            double cost;
            if (skips_zero(t, a, b))
                break;
            p = parting(t, a, b, p);
            cost = edge(t, a, b, p);
            if (cost > t->limit)
                break;
            for (int j = 0; j < LEVELS; j++) {
                double d = from[j] + cost;
                D[b][j] = d < D[b][j] ? d : D[b][j];
            }
        }
    }
}

/* The smallest predecessor through which candidate b as level j costs D[b][j]. */
static int predecessor(const struct problem *t, double D[GRID][LEVELS], int b, int j)
{
    double best = INFINITY;
    int ret = b - 1;

    for (int a = j - 1; a < b; a++) {
        double d = skips_zero(t, a, b) ? INFINITY : D[a][j - 1] + edge(t, a, b, parting(t, a, b, t->below[a]));
        if (d < best) {
            best = d;
            ret = a;
        }
    }
    return ret;
}

/* An upper bound for edges. What it adds to a known error is far above what rounding can do to an edge, and far below
 * what would keep many edges alive. */
static double edge_limit(const struct problem *t)
{
    double g = t->g[0] * t->g[0] > t->g[t->m - 1] * t->g[t->m - 1] ? t->g[0] : t->g[t->m - 1];
    return known_error(t) + 1e-9 * t->Q[TILE] + 1e-12 * g * g * t->W[TILE];
}

void moert_lutb_fit_optimal(const float *x, const double *w, int keep_zero, uint8_t *codes)
{
    struct problem t;
    double D[GRID][LEVELS], best = INFINITY;
    int level = LEVELS - 1;

    sums(&t, x, w);
    candidates(&t, keep_zero);
    if (t.m <= LEVELS) {
        for (int i = 0; i < LEVELS; i++)
            codes[i] = t.code[i < t.m ? i : t.m - 1];
        return;
    }
    t.limit = keep_zero ? INFINITY : edge_limit(&t);
    settle(&t, D);
    for (int b = LEVELS - 1; b < t.m; b++) {
        double d = D[b][LEVELS - 1] + part(&t, t.below[b], TILE, t.g[b]);
        if (d < best && b >= t.zero) {
            best = d;
            level = b;
        }
    }
    for (int j = LEVELS - 1; j >= 0; j--) {
        codes[j] = t.code[level];
        if (j)
            level = predecessor(&t, D, level, j);
    }
}
