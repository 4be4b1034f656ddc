/* core/routing/align_tiles.c: block alignment of long inputs: the same stable order as the plain counting sort,
 * arranged for the memory of a processor.
 *
 * A plain counting sort writes to as many places at once as there are experts and misses the first-level cache at every
 * store, and each of its positions waits for the store before. Here a tile of slots is sorted inside the cache, as
 * 16-bit numbers; then every bucket is written from end to end by copying its run of each tile. In a tile, a slot's
 * rank in its bucket is found first and the place afterwards, so that no load waits for a store with an unknown
 * address; four parts of the tile count separately, so that equal ids in a row do not wait for each other. */
#include "config.h"

#include "core/routing/align.h"

#include <string.h>

#define TILE        8192 /* slots; its arrays (ids, ranks, sorted numbers: 16 bits each) fit the first-level cache */
#define PARTS       4
#define MAX_EXPERTS 4096 /* beyond it the per-tile counters outgrow the cache and the work of a tile */
#define STEP        8    /* elements copied at a time */

/* Scratch, in one block of memory, all 16 bits wide but `from`. */
struct tiles {
    uint32_t *from;            /* [tiles]: next element of the tile's sorted numbers to be copied */
    uint16_t *runs;            /* [tiles, E+1]: slots of each bucket in each tile */
    uint16_t *counters;        /* [PARTS, E+1] of the tile at work */
    uint16_t *buckets, *ranks; /* [TILE] of the tile at work */
    uint16_t *numbers;         /* [slots + STEP]: per tile its slots sorted, relative to the tile */
};

static uint64_t tiles_of(uint64_t slots)
{
    return (slots + TILE - 1) / TILE;
}

int moert_align_tiles_pay(uint64_t slots, uint32_t experts)
{
    return experts <= MAX_EXPERTS && slots >= 2 * TILE && slots / 32 >= experts;
}

/* Slots fit int32 and experts MAX_EXPERTS: the sum is below 2^50. */
uint64_t moert_align_tiles_bytes(uint64_t slots, uint32_t experts)
{
    uint64_t t = tiles_of(slots), e = (uint64_t)experts + 1;

    return t * sizeof(uint32_t) + (t * e + PARTS * e + 2 * TILE + slots + STEP) * sizeof(uint16_t);
}

static struct tiles cut_scratch(const struct moert_align_job *job, void *scratch)
{
    uint64_t t = tiles_of(job->slots), e = (uint64_t)job->experts + 1;
    struct tiles s = {.from = scratch};

    s.runs = (uint16_t *)(s.from + t);
    s.counters = s.runs + t * e;
    s.buckets = s.counters + PARTS * e;
    s.ranks = s.buckets + TILE;
    s.numbers = s.ranks + TILE;
    return s;
}

/* Whole steps of ids without a table: a fixed inner count lets the compiler use vectors. */
static void narrow_steps(const int32_t *restrict ids, uint32_t count, uint32_t experts, uint16_t *restrict buckets)
{
    for (uint32_t i = 0; i < count; i += STEP)
        for (uint32_t k = 0; k < STEP; k++)
            buckets[i + k] = (uint16_t)(moert_id_valid(ids[i + k], experts) ? (uint32_t)ids[i + k] : experts);
}

static void narrow(const struct moert_align_job *job, const int32_t *ids, uint32_t count, uint16_t *buckets)
{
    uint32_t whole = job->bucket_of ? 0 : count / STEP * STEP;

    narrow_steps(ids, whole, job->experts, buckets);
    for (uint32_t i = whole; i < count; i++)
        buckets[i] = (uint16_t)moert_align_bucket(ids[i], job->experts, job->bucket_of);
}

/* Counts the buckets of each part, and notes what each slot found: its rank in bucket and part. Part p is slots
 * [p*q, (p+1)*q); the last part also has the remainder. */
static void rank_tile(const uint16_t *restrict buckets, uint32_t count, uint16_t *restrict counters, uint32_t stride,
                      uint16_t *restrict ranks)
{
    const uint32_t q = count / PARTS;
    const uint16_t *b1 = buckets + q, *b2 = b1 + q, *b3 = b2 + q;
    uint16_t *c1 = counters + stride, *c2 = c1 + stride, *c3 = c2 + stride;
    uint16_t *r1 = ranks + q, *r2 = r1 + q, *r3 = r2 + q;

    memset(counters, 0, (size_t)stride * PARTS * sizeof(*counters));
    for (uint32_t i = 0; i < q; i++) {
        ranks[i] = counters[buckets[i]]++;
        r1[i] = c1[b1[i]]++;
        r2[i] = c2[b2[i]]++;
        r3[i] = c3[b3[i]]++;
    }
    for (uint32_t i = PARTS * q; i < count; i++)
        ranks[i] = c3[buckets[i]]++;
}

/* Counts -> first places in the tile; runs[b] = slots of bucket b. */
static void place_buckets(uint16_t *counters, uint32_t stride, uint16_t *runs)
{
    uint32_t next = 0;

    for (uint32_t b = 0; b < stride; b++) {
        uint32_t first = next;

        for (uint32_t p = 0; p < PARTS; p++) {
            uint32_t count = counters[p * stride + b];
            counters[p * stride + b] = (uint16_t)next;
            next += count;
        }
        runs[b] = (uint16_t)(next - first);
    }
}

static void place_slots(const uint16_t *restrict buckets, const uint16_t *restrict ranks, uint32_t count,
                        const uint16_t *restrict firsts, uint32_t stride, uint16_t *restrict numbers)
{
    const uint32_t q = count / PARTS;

    for (uint32_t p = 0; p < PARTS; p++, firsts += stride) {
        uint32_t end = p + 1 < PARTS ? (p + 1) * q : count;
        for (uint32_t i = p * q; i < end; i++)
            numbers[(uint32_t)firsts[buckets[i]] + ranks[i]] = (uint16_t)i;
    }
}

/* out[i] = base + run[i]. Copies whole steps where there is room: what is written too much is overwritten by what comes
 * behind, as the output is written in ascending order. */
static void copy_run(int32_t *restrict out, uint64_t room, const uint16_t *restrict run, uint32_t count, int32_t base)
{
    uint32_t i = 0;

    if (room >= (uint64_t)count + STEP) {
        for (; i < count; i += STEP)
            for (uint32_t k = 0; k < STEP; k++)
                out[i + k] = base + run[i + k];
        return;
    }
    for (; i < count; i++)
        out[i] = base + run[i];
}

/* Appends bucket b of every tile at `at`; returns the slots. */
static int32_t copy_bucket(const struct moert_align_job *job, const struct tiles *s, uint32_t b, int32_t at)
{
    const uint64_t stride = (uint64_t)job->experts + 1, tiles = tiles_of(job->slots);
    int32_t count = 0;

    for (uint64_t t = 0; t < tiles; t++) {
        uint32_t run = s->runs[t * stride + b];
        uint64_t start = (uint64_t)(uint32_t)(at + count);

        copy_run(job->sorted + start, job->cap - start, s->numbers + t * TILE + s->from[t], run, (int32_t)(t * TILE));
        s->from[t] += run;
        count += (int32_t)run;
    }
    return count;
}

int32_t moert_align_tiles(const struct moert_align_job *job, void *scratch)
{
    const uint32_t stride = job->experts + 1;
    struct tiles s = cut_scratch(job, scratch);
    int32_t total = 0;

    for (uint64_t t = 0; t < tiles_of(job->slots); t++) {
        uint64_t left = job->slots - t * TILE;
        uint32_t count = left < TILE ? (uint32_t)left : TILE;

        narrow(job, job->ids + t * TILE, count, s.buckets);
        rank_tile(s.buckets, count, s.counters, stride, s.ranks);
        place_buckets(s.counters, stride, s.runs + t * stride);
        place_slots(s.buckets, s.ranks, count, s.counters, stride, s.numbers + t * TILE);
        s.from[t] = 0;
    }
    memset(s.numbers + job->slots, 0, STEP * sizeof(*s.numbers)); /* read, never kept */
    for (uint32_t b = 0; b < job->experts; b++) {
        int32_t count = copy_bucket(job, &s, b, total);
        if (count)
            total = moert_align_close_bucket(job, b, total, count);
    }
    return total;
}
