/* SPDX-License-Identifier: Apache-2.0
 * drivers/cpu/ref/activation.c: P3: c2 = rd(act(c1)), evaluated in double, one rounding; then P4 of the same slot. */
#include "config.h"

#include "drivers/cpu/ref/ref.h"

/* Columns of gate and up of element i in a row of N1 = 2I. */
static void find_pair(moert_w13_order_t order, uint64_t inner, uint64_t i, uint64_t *gate, uint64_t *up)
{
    switch (order) {
    case MOERT_W13_GATE_UP:
        *gate = i;
        *up = inner + i;
        break;
    case MOERT_W13_UP_GATE:
        *gate = inner + i;
        *up = i;
        break;
    default:
        *gate = 2 * i;
        *up = 2 * i + 1;
        break;
    }
}

static void activate_row(const struct mref_run *run, uint64_t slot)
{
    const struct mref_shape *shape = run->shape;
    int gated = moert_activation_is_gated(shape->act.kind);

    for (uint64_t i = 0; i < shape->inner; i++) {
        uint64_t gate = i, up = i;
        double h;
        if (gated)
            find_pair(shape->order, shape->inner, i, &gate, &up);
        h = moert_activation_eval(&shape->act, (double)mcpu_get(&run->c1, slot, gate),
                                  gated ? (double)mcpu_get(&run->c1, slot, up) : 0);
        mcpu_put(&run->c2, slot, i, h);
        if (run->dump.c2.data)
            mcpu_put(&run->dump.c2, slot, i, h);
    }
}

void mref_activate(void *ctx, uint64_t begin, uint64_t end, uint32_t thread)
{
    struct mref_run *run = ctx;

    (void)thread;
    for (uint64_t i = begin; i < end; i++) {
        activate_row(run, run->order[i]);
        mref_quantise_slot(run, run->order[i]);
    }
}
