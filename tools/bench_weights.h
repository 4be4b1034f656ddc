/* tools/bench_weights.h: made-up weights: random, finite, of the size trained weights have. */
#ifndef MOERT_TOOLS_BENCH_WEIGHTS_H
#define MOERT_TOOLS_BENCH_WEIGHTS_H

#include "tools/source.h"

/* Every expert of `layer`, from the seed: equal seeds give equal weights on every backend. */
int bench_fill_layer(struct tool *tool, moert_layer_t *layer, uint64_t seed);
/* Random signs and mantissas, exponents of `exponent` and the three below (biased by 127): no zeros, no infinities. */
void bench_fill_bf16(uint16_t *values, uint64_t count, uint64_t seed, unsigned exponent);

#endif
