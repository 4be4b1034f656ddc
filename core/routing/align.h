/* core/routing/align.h: one block alignment at work, shared by its plain form (align.c) and the form for long inputs
 * (align_chunks.c). */
#ifndef MOERT_ROUTING_ALIGN_H
#define MOERT_ROUTING_ALIGN_H

#include "core/routing/slot.h"

/* `bucket_of` [E+1] maps a valid id (or E, for the others) to its bucket, E meaning none; NULL: the id itself.
 * `block_value` [E] is what a block of a bucket says, NULL: the bucket. */
struct moert_align_job {
    const int32_t *ids;
    uint64_t slots, cap;
    uint32_t experts, block;
    const int32_t *bucket_of, *block_value;
    int32_t *sorted, *expert_ids;
};

static inline uint32_t moert_align_bucket(int32_t id, uint32_t experts, const int32_t *bucket_of)
{
    uint32_t b = moert_id_valid(id, experts) ? (uint32_t)id : experts;
    return bucket_of ? (uint32_t)bucket_of[b] : b;
}

/* Sentinels and block experts of bucket b, whose `count` > 0 slots begin at `first`. Returns where the next begins. */
int32_t moert_align_close_bucket(const struct moert_align_job *job, uint32_t b, int32_t first, int32_t count);

/* 1 when the chunked form pays for these sizes; the scratch bytes it needs; the sort, which returns the total. */
int moert_align_chunks_pay(uint64_t slots, uint32_t experts);
uint64_t moert_align_chunks_bytes(uint64_t slots, uint32_t experts);
int32_t moert_align_chunks(const struct moert_align_job *job, void *scratch);

#endif
