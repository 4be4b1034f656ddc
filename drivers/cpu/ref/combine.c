/* SPDX-License-Identifier: Apache-2.0
 * drivers/cpu/ref/combine.c: P6: the f32 sum over a token's local slots in slot order, then scaling, then the shared
 * expert, one rounding (routing.md 5). Rows of slots that are not local are never read. */
#include "config.h"

#include "drivers/cpu/ref/ref.h"

static float routed_sum(const struct mref_run *run, uint64_t token, uint64_t h, int *local)
{
    uint32_t slots = run->shape->slots;
    float acc = 0;

    *local = 0;
    for (uint32_t j = 0; j < slots; j++) {
        uint64_t slot = token * slots + j;
        if (run->expert[slot] < 0)
            continue;
        acc += mcpu_get(&run->c3, slot, h);
        *local = 1;
    }
    return acc;
}

void mref_combine(void *ctx, uint64_t begin, uint64_t end, uint32_t thread)
{
    const struct mref_run *run = ctx;

    (void)thread;
    for (uint64_t t = begin; t < end; t++)
        for (uint64_t h = 0; h < run->shape->hidden; h++) {
            float acc = 0;
            if (t < run->real) {
                int local;
                acc = routed_sum(run, t, h, &local);
                if (local) /* without a slot the sum stays +0, whatever the factor's sign */
                    acc *= run->output_scale;
                if (run->shared.data)
                    acc += mcpu_get(&run->shared, t, h);
            }
            mcpu_put(&run->output, t, h, (double)acc);
        }
}

void mref_write_index(struct mref_run *run)
{
    for (uint64_t s = 0; s < run->rows; s++) {
        int32_t index = run->expert[s] < 0 ? -1 : (int32_t)s;
        memcpy(mcpu_at(&run->index, 0, s), &index, sizeof(index));
    }
}
