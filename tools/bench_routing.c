/* tools/bench_routing.c: synthetic routing of a benchmark (performance.md 1): uniform, zipf:S, hot:F. Ids are distinct
 * within a token and depend only on (seed, instance, token, expert). */
#include "config.h"

#include "tools/bench.h"

#include <math.h>
#include <string.h>

/* SplitMix64 finaliser, Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014. */
uint64_t bench_mix(uint64_t value)
{
    value += 0x9E3779B97F4A7C15u;
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9u;
    value = (value ^ value >> 27) * 0x94D049BB133111EBu;
    return value ^ value >> 31;
}

double bench_uniform(uint64_t seed, uint64_t instance, uint64_t token, uint64_t expert)
{
    uint64_t bits = bench_mix(bench_mix(bench_mix(bench_mix(seed) ^ instance) ^ token) ^ expert);
    return ((double)(bits >> 11) + 0.5) * 0x1p-53;
}

/* log p of each expert for zipf: rank r of a random permutation of the experts has p ~ (r+1)^-S. Rank = number of
 * experts with a smaller draw, so no permutation is stored. */
static double zipf_log(double s, uint64_t seed, uint64_t instance, uint32_t experts, uint32_t expert)
{
    const uint64_t salt = UINT64_C(1) << 62;
    double own = bench_uniform(seed ^ salt, instance, 0, expert);
    uint32_t rank = 0;

    for (uint32_t e = 0; e < experts; e++)
        rank += bench_uniform(seed ^ salt, instance, 0, e) < own;
    return -s * log((double)rank + 1);
}

/* Tokens of hot:F that take the fixed set, experts 0..K-1 rotated by the instance. */
static double hot_bonus(const struct bench_routing *routing, uint64_t seed, uint64_t instance, uint64_t token,
                        uint32_t experts, uint32_t top_k, uint32_t expert)
{
    const uint64_t salt = UINT64_C(1) << 61;
    uint32_t place = (uint32_t)((expert + experts - instance % experts) % experts);

    if (bench_uniform(seed ^ salt, instance, token, 0) >= routing->parameter)
        return 0;
    return place < top_k ? 100 : 0; /* above every Gumbel draw: those stay below 38 */
}

void bench_routing_logits(const struct bench_routing *routing, uint64_t seed, uint64_t instance, uint64_t tokens,
                          uint32_t experts, uint32_t top_k, float *logits)
{
    for (uint32_t e = 0; e < experts; e++) {
        double base = routing->kind == ROUTING_ZIPF ? zipf_log(routing->parameter, seed, instance, experts, e) : 0;
        for (uint64_t t = 0; t < tokens; t++) {
            double key = base - log(-log(bench_uniform(seed, instance, t, e)));
            if (routing->kind == ROUTING_HOT)
                key += hot_bonus(routing, seed, instance, t, experts, top_k, e);
            logits[t * experts + e] = (float)key;
        }
    }
}

void bench_routing_count(const int32_t *ids, uint64_t slots, uint32_t experts, uint64_t *counts, uint64_t *ret_touched,
                         uint64_t *ret_most)
{
    uint64_t touched = 0, most = 0;

    memset(counts, 0, experts * sizeof(*counts));
    for (uint64_t s = 0; s < slots; s++)
        if (ids[s] >= 0 && (uint32_t)ids[s] < experts)
            counts[ids[s]]++;
    for (uint32_t e = 0; e < experts; e++) {
        touched += counts[e] != 0;
        most = counts[e] > most ? counts[e] : most;
    }
    *ret_touched = touched;
    *ret_most = most;
}
