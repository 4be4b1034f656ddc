/* SPDX-License-Identifier: Apache-2.0
 * drivers/cpu/threads.c: the only user of OpenMP. Work items are independent and their sums stay inside an item, so the
 * number of threads changes no bit of a result. */
#include "config.h"

#include "drivers/cpu/fpu.h"
#include "drivers/cpu/internal.h"

#include <unistd.h>

#ifdef _OPENMP
#include <omp.h>
#endif

/* OpenMP's threads are gone in a forked child, and waiting for them hangs: such a process works serially. */
static int forked(moert_drv *drv)
{
    if ((int64_t)getpid() == drv->owner)
        return 0;
    if (!atomic_exchange(&drv->fork_reported, 1))
        drv->host->log(drv->host->ctx, MOERT_LOG_WARN,
                       "cpu: this process was forked from the one that opened the driver; working on one thread");
    return 1;
}

uint32_t mcpu_threads(moert_drv *drv)
{
#ifdef _OPENMP
    int64_t most;

    if (forked(drv) || omp_in_parallel())
        return 1;
    if (drv->threads)
        return drv->threads;
    most = omp_get_max_threads();
    if (most > (int64_t)drv->affinity)
        most = (int64_t)drv->affinity;
    return most < 1 ? 1 : (uint32_t)most;
#else
    (void)forked(drv);
    return 1;
#endif
}

/* Item range of thread i of n: sizes differ by at most one. */
static void share(uint64_t items, uint32_t n, uint32_t i, uint64_t *begin, uint64_t *end)
{
    uint64_t base = items / n, rest = items % n;

    *begin = base * i + (i < rest ? i : rest);
    *end = *begin + base + (i < rest);
}

static void run_share(uint64_t items, uint32_t n, uint32_t i, mcpu_body body, void *ctx)
{
    mcpu_fpu_state saved = mcpu_fpu_default();
    uint64_t begin, end;

    share(items, n, i, &begin, &end);
    if (begin < end)
        body(ctx, begin, end, i);
    mcpu_fpu_restore(saved);
}

void mcpu_parallel(uint32_t threads, uint64_t items, mcpu_body body, void *ctx)
{
    if (threads > items)
        threads = (uint32_t)items;
    if (threads < 2) {
        run_share(items, 1, 0, body, ctx);
        return;
    }
#ifdef _OPENMP
#pragma omp parallel num_threads((int)threads) default(none) shared(items, body, ctx)
    run_share(items, (uint32_t)omp_get_num_threads(), (uint32_t)omp_get_thread_num(), body, ctx);
#endif
}
