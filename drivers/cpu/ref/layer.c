/* SPDX-License-Identifier: Apache-2.0
 * drivers/cpu/ref/layer.c: one run of cpu.reference: slots sorted by expert, then the steps P0..P6 in order, each over
 * independent items. */
#include "config.h"

#include "drivers/cpu/ref/ref.h"

/* Local expert of a slot, or -1. The range test comes before the map is read (routing.md 1). */
static int32_t find_expert(const struct mref_run *run, uint64_t token, uint32_t j)
{
    int32_t id = mcpu_int_at(&run->ids, token, j);

    if (id < 0 || (uint32_t)id >= run->shape->ids)
        return -1;
    if (!run->map.data)
        return id;
    id = mcpu_int_at(&run->map, 0, (uint64_t)id);
    return id < 0 ? -1 : id;
}

/* Counting sort: first[e] becomes the start of expert e in `order`; ascending slots inside an expert. */
static void sort_slots(struct mref_run *run)
{
    const struct mref_shape *shape = run->shape;
    uint32_t total = 0;

    memset(run->first, 0, ((size_t)shape->local + 1) * sizeof(*run->first));
    for (uint64_t s = 0; s < run->rows; s++) {
        uint64_t token = s / shape->slots;
        run->expert[s] = token < run->real ? find_expert(run, token, (uint32_t)(s % shape->slots)) : -1;
        if (run->expert[s] >= 0)
            run->first[run->expert[s]]++;
    }
    run->active_count = 0;
    for (uint32_t e = 0; e < shape->local; e++) {
        uint32_t n = run->first[e];
        run->first[e] = total;
        total += n;
        if (n)
            run->active[run->active_count++] = e;
    }
    for (uint64_t s = 0; s < run->rows; s++)
        if (run->expert[s] >= 0)
            run->order[run->first[run->expert[s]]++] = (uint32_t)s;
    /* Each start has moved to its end, which is the next one's start. */
    for (uint32_t e = shape->local; e > 0; e--)
        run->first[e] = run->first[e - 1];
    run->first[0] = 0;
    run->local_count = total;
}

static void count(struct mref_run *run)
{
    struct mref_layer *layer = run->layer;

    atomic_fetch_add(&layer->runs, 1);
    atomic_fetch_add(&layer->tokens, run->tokens);
    atomic_fetch_add(&layer->weight_bytes, run->active_count * run->shape->payload_bytes);
    atomic_fetch_add(&layer->poisoned_blocks, atomic_load(&run->poisoned));
}

moert_status_t mref_run(moert_drv_layer *layer, moert_drv_queue *queue, const struct moert_run_args *args,
                        struct moert_error *err)
{
    struct mref_run run = {.layer = (struct mref_layer *)layer};
    moert_status_t status = mref_bind(&run, queue, args, err);

    if (status)
        return status;
    sort_slots(&run);
    mcpu_parallel(run.threads, run.real, mref_quantise_tokens, &run);
    mcpu_parallel(run.threads, run.active_count * run.shape->rows13, mref_gemm1, &run);
    mcpu_parallel(run.threads, run.local_count, mref_activate, &run);
    mcpu_parallel(run.threads, run.active_count * run.shape->hidden, mref_gemm2, &run);
    if (run.flags & MOERT_RUN_F_UNREDUCED)
        mref_write_index(&run);
    else
        mcpu_parallel(run.threads, run.tokens, mref_combine, &run);
    count(&run);
    queue->last++;
    return MOERT_OK;
}
