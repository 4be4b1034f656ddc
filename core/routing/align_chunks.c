/* core/routing/align_chunks.c: block alignment of long inputs: the same stable order as the plain counting sort,
 * arranged for the memory of a processor.
 *
 * A plain counting sort reads its input twice and writes to as many far places at once as there are experts. Here one
 * pass appends every slot to the chain of chunks of its bucket: the chunks are small and lie close together, so that
 * the open ones stay in the first-level cache and in few pages, and nothing has to be counted before. Then every bucket
 * is written from end to end by copying its chunks. A chunk holds 16-bit numbers relative to a tile of 65,536 slots,
 * which halves the memory moved; each tile begins new chains. */
#include "config.h"

#include "core/routing/align.h"

#include <stddef.h>

#define TILE        65536u /* slots that 16 bits can number */
#define CHUNK       64u /* slots; 128 bytes: more leave the first-level cache, less cost more mispredicted branches */
#define MIN_SLOTS   16384u /* the plain form is as fast below */
#define MAX_EXPERTS 4096u  /* beyond it nearly all chunks of a tile stay almost empty */
#define AHEAD       8u     /* chunks asked for before they are taken */
#define STEP        8u     /* elements copied at a time */

/* So that a call with a constant NULL has a loop of its own. */
#define ALWAYS_INLINE inline __attribute__((always_inline))

/* Scratch, in one block of memory. Bucket b of tile t begins in chunk first[t] + b. */
struct chunks {
    uint32_t *first; /* [tiles] */
    uint32_t *next;  /* [tiles, E+1]: place in the pool of the bucket's next slot */
    uint32_t *links; /* [chunks]: the chunk that follows a full one */
    uint16_t *pool;  /* [chunks, CHUNK] */
};

static inline void prefetch_write(const uint16_t *chunk)
{
    __builtin_prefetch(chunk, 1);
    __builtin_prefetch(chunk + CHUNK / 2, 1);
}

static uint64_t tiles_of(uint64_t slots)
{
    return (slots + TILE - 1) / TILE;
}

/* An open chunk per bucket and tile, and one more whenever one became full. */
static uint64_t chunks_of(uint64_t slots, uint32_t experts)
{
    return slots / CHUNK + tiles_of(slots) * ((uint64_t)experts + 1);
}

int moert_align_chunks_pay(uint64_t slots, uint32_t experts)
{
    return experts <= MAX_EXPERTS && slots >= MIN_SLOTS && slots / 32 >= experts &&
           chunks_of(slots, experts) <= UINT32_MAX / CHUNK;
}

uint64_t moert_align_chunks_bytes(uint64_t slots, uint32_t experts)
{
    uint64_t tiles = tiles_of(slots), chunks = chunks_of(slots, experts);

    return (tiles * ((uint64_t)experts + 2) + chunks) * sizeof(uint32_t) +
           (chunks + AHEAD + 2) * CHUNK * sizeof(uint16_t);
}

static struct chunks cut_scratch(const struct moert_align_job *job, void *scratch)
{
    uint64_t tiles = tiles_of(job->slots);
    struct chunks c = {.first = scratch};

    c.next = c.first + tiles;
    c.links = c.next + tiles * ((uint64_t)job->experts + 1);
    c.pool = (uint16_t *)(c.links + chunks_of(job->slots, job->experts));
    c.pool += (0 - (uintptr_t)c.pool / sizeof(*c.pool)) % CHUNK; /* chunks are whole cache lines */
    return c;
}

/* Appends a number to bucket b; `used` chunks are in use, returns how many then are. Chunks are taken in order: the one
 * that is asked for early is soon taken. */
static ALWAYS_INLINE uint32_t append(const struct chunks *c, uint32_t *restrict next, uint32_t b, uint32_t number,
                                     uint32_t used)
{
    uint32_t at = next[b];

    c->pool[at++] = (uint16_t)number;
    if (__builtin_expect(at % CHUNK == 0, 0)) {
        c->links[at / CHUNK - 1] = used;
        at = used++ * CHUNK;
        prefetch_write(c->pool + at + AHEAD * CHUNK);
    }
    next[b] = at;
    return used;
}

/* Eight at a time: the loop itself would cost a quarter of an append. */
static ALWAYS_INLINE uint32_t append_slots(const int32_t *ids, uint32_t count, uint32_t experts,
                                           const int32_t *bucket_of, struct chunks c, uint32_t *next, uint32_t used)
{
    uint32_t i = 0;

#define APPEND(k) used = append(&c, next, moert_align_bucket(ids[i + (k)], experts, bucket_of), i + (k), used)
    for (; i + 8 <= count; i += 8) {
        APPEND(0);
        APPEND(1);
        APPEND(2);
        APPEND(3);
        APPEND(4);
        APPEND(5);
        APPEND(6);
        APPEND(7);
    }
    for (; i < count; i++)
        APPEND(0);
#undef APPEND
    return used;
}

static void append_tiles(const struct moert_align_job *job, const struct chunks *c)
{
    const uint32_t stride = job->experts + 1;
    uint32_t used = 0;

    for (uint64_t t = 0; t < tiles_of(job->slots); t++) {
        const int32_t *ids = job->ids + t * TILE;
        uint64_t left = job->slots - t * TILE;
        uint32_t count = left < TILE ? (uint32_t)left : TILE, *next = c->next + t * stride;

        c->first[t] = used;
        for (uint32_t b = 0; b < stride; b++)
            next[b] = used++ * CHUNK;
        if (job->bucket_of)
            used = append_slots(ids, count, job->experts, job->bucket_of, *c, next, used);
        else
            used = append_slots(ids, count, job->experts, NULL, *c, next, used);
    }
}

/* out[i] = base + in[i], in whole steps. */
static inline void copy_steps(int32_t *restrict out, const uint16_t *restrict in, uint32_t count, uint32_t base)
{
    for (uint32_t i = 0; i < count; i += STEP)
        for (uint32_t k = 0; k < STEP; k++)
            out[i + k] = (int32_t)(base + in[i + k]);
}

/* The last chunk of a chain. Whole steps where there is room: what is written too much is overwritten by what comes
 * behind, as the output is written in ascending order. */
static void copy_last(int32_t *restrict out, uint64_t room, const uint16_t *restrict in, uint32_t count, uint32_t base)
{
    if (room >= CHUNK) {
        copy_steps(out, in, count, base);
        return;
    }
    for (uint32_t i = 0; i < count; i++)
        out[i] = (int32_t)(base + in[i]);
}

/* Writes bucket b of every tile from `start` on; returns the slots. */
static int32_t copy_bucket(const struct moert_align_job *job, const struct chunks *c, uint32_t b, uint64_t start)
{
    const uint64_t stride = (uint64_t)job->experts + 1, tiles = tiles_of(job->slots);
    uint64_t at = start;

    for (uint64_t t = 0; t < tiles; t++) {
        const uint32_t end = c->next[t * stride + b];
        const uint32_t base = (uint32_t)(t * TILE);
        uint32_t chunk = c->first[t] + b;

        while (chunk != end / CHUNK) {
            copy_steps(job->sorted + at, c->pool + (uint64_t)chunk * CHUNK, CHUNK, base);
            at += CHUNK;
            chunk = c->links[chunk];
        }
        copy_last(job->sorted + at, job->cap - at, c->pool + (uint64_t)chunk * CHUNK, end % CHUNK, base);
        at += end % CHUNK;
    }
    return (int32_t)(at - start);
}

int32_t moert_align_chunks(const struct moert_align_job *job, void *scratch)
{
    struct chunks c = cut_scratch(job, scratch);
    int32_t total = 0;

    append_tiles(job, &c);
    for (uint32_t b = 0; b < job->experts; b++) {
        int32_t count = copy_bucket(job, &c, b, (uint32_t)total);
        if (count)
            total = moert_align_close_bucket(job, b, total, count);
    }
    return total;
}
