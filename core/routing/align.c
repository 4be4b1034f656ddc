/* core/routing/align.c: block alignment (routing.md 3): slots sorted by expert, each expert's slots padded to blocks,
 * so that a backend's GEMM handles whole blocks of one expert. Stands between top-k and GEMM1.
 *
 * A stable counting sort. Long inputs are cut into PARTS consecutive parts with counters of their own: neighbouring
 * iterations then work on different counters (no store waits for the one before), and as the parts' positions follow
 * each other the order inside a bucket stays ascending. */
#include "config.h"

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/routing/slot.h"

#include <moert/routing.h>

#include <stdlib.h>
#include <string.h>

#define PARTS       4
#define STACK_WORDS 2560 /* counters of 4 parts of up to 639 experts without an allocation */
#define INT32_LIMIT 2147483647u

static moert_status_t check_params(const struct moert_align_params *p, struct moert_error *err)
{
    moert_status_t status;

    if (!p)
        return moert_fail_null(err, "params");
    status = moert_check_size(err, "moert_align_params", p->size, sizeof(*p));
    if (status)
        return status;
    if (!p->block_size)
        return moert_fail(err, MOERT_E_VALUE, "size", "block_size is 0; must be at least 1");
    if (!p->num_experts)
        return moert_fail(err, MOERT_E_VALUE, "size", "num_experts is 0; must be at least 1");
    if (p->ignore_invalid > 1)
        return moert_fail(err, MOERT_E_VALUE, "mode", "ignore_invalid is %u; must be 0 or 1", p->ignore_invalid);
    if (p->num_experts > MOERT_MAX_EXPERTS)
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large", "%u experts exceed %u", p->num_experts,
                          MOERT_MAX_EXPERTS);
    return MOERT_OK;
}

moert_status_t moert_align_sizes(uint64_t slots, const struct moert_align_params *params, struct moert_align_sizes *ret,
                                 struct moert_error *err)
{
    moert_status_t status = check_params(params, err);
    uint64_t cap, block, padding, few;

    if (status)
        return status;
    if (!ret)
        return moert_fail_null(err, "ret");
    block = params->block_size;
    padding = params->num_experts * (block - 1); /* below 2^63 */
    if (!moert_add(slots, padding, &cap) || (params->pad_sorted_ids && !moert_round_up(cap, block, &cap)))
        cap = UINT64_MAX;
    if (slots < params->num_experts) { /* both below 2^32: the product fits */
        few = slots * block;
        cap = few < cap ? few : cap;
    }
    if (cap > INT32_LIMIT)
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large", "%llu slots + %u*%llu padding exceed %u",
                          (unsigned long long)slots, params->num_experts, (unsigned long long)(block - 1), INT32_LIMIT);
    ret->sorted = cap;
    ret->expert_ids = (cap + block - 1) / block;
    return MOERT_OK;
}

/* One alignment at work. `counters` [parts][E+1]: counts, then next positions; the last of each part stands for slots
 * without a bucket. `bucket_of` [E+1] maps a valid id (or E) to its bucket, NULL: the id itself. */
struct sort {
    const int32_t *ids;
    uint64_t slots, part; /* part: slots of one part; the last part also has the remainder */
    uint32_t parts, experts, block;
    const int32_t *bucket_of;
    const int32_t *block_value; /* [E]: what a block of a bucket says, NULL: the bucket */
    int32_t *counters;
};

static inline uint32_t bucket(int32_t id, uint32_t experts, const int32_t *bucket_of)
{
    uint32_t b = moert_id_valid(id, experts) ? (uint32_t)id : experts;
    return bucket_of ? (uint32_t)bucket_of[b] : b;
}

__attribute__((always_inline)) static inline void count_with(const struct sort *w, const int32_t *bucket_of)
{
    const uint64_t n = w->part, stride = (uint64_t)w->experts + 1;
    const uint32_t e = w->experts;
    const int32_t *i0 = w->ids, *i1 = i0 + n, *i2 = i1 + n, *i3 = i2 + n;
    int32_t *c0 = w->counters, *c1 = c0 + stride, *c2 = c1 + stride, *c3 = c2 + stride;
    uint64_t s = 0;

    if (w->parts == PARTS) {
        for (; s < n; s++) {
            c0[bucket(i0[s], e, bucket_of)]++;
            c1[bucket(i1[s], e, bucket_of)]++;
            c2[bucket(i2[s], e, bucket_of)]++;
            c3[bucket(i3[s], e, bucket_of)]++;
        }
        s = n * PARTS;
        c0 = c3;
    }
    for (; s < w->slots; s++)
        c0[bucket(i0[s], e, bucket_of)]++;
}

__attribute__((always_inline)) static inline void place_with(const struct sort *w, const int32_t *bucket_of,
                                                             int32_t *restrict sorted)
{
    const uint64_t n = w->part, stride = (uint64_t)w->experts + 1;
    const uint32_t e = w->experts;
    const int32_t *i0 = w->ids, *i1 = i0 + n, *i2 = i1 + n, *i3 = i2 + n;
    int32_t *c0 = w->counters, *c1 = c0 + stride, *c2 = c1 + stride, *c3 = c2 + stride;
    uint64_t s = 0;

    if (w->parts == PARTS) {
        for (; s < n; s++) {
            sorted[c0[bucket(i0[s], e, bucket_of)]++] = (int32_t)s;
            sorted[c1[bucket(i1[s], e, bucket_of)]++] = (int32_t)(s + n);
            sorted[c2[bucket(i2[s], e, bucket_of)]++] = (int32_t)(s + 2 * n);
            sorted[c3[bucket(i3[s], e, bucket_of)]++] = (int32_t)(s + 3 * n);
        }
        s = n * PARTS;
        c0 = c3;
    }
    for (; s < w->slots; s++)
        sorted[c0[bucket(i0[s], e, bucket_of)]++] = (int32_t)s;
}

static void fill(int32_t *at, uint64_t count, int32_t value)
{
    for (uint64_t i = 0; i < count; i++)
        at[i] = value;
}

/* Counts of bucket b -> first positions of its parts, from *next on. Returns the slots of the bucket. */
static int32_t assign_positions(const struct sort *w, uint32_t b, int32_t next)
{
    int32_t *c = w->counters + b, total = 0;

    for (uint32_t p = 0; p < w->parts; p++, c += (uint64_t)w->experts + 1) {
        int32_t count = *c;
        *c = next + total;
        total += count;
    }
    return total;
}

/* Lays the buckets out: positions, sentinels behind each bucket, experts of the blocks. Returns the padded total.
 * Slots without a bucket go behind the total, where there is room for them (total + dropped <= cap); the sentinels
 * written there last hide them. So the placing loop needs no branch. */
static int32_t lay_out(const struct sort *w, int32_t *sorted, int32_t *expert_ids)
{
    int32_t total = 0;

    for (uint32_t b = 0; b < w->experts; b++) {
        int32_t count = assign_positions(w, b, total);
        uint32_t blocks = ((uint32_t)count + w->block - 1) / w->block;
        int32_t value = w->block_value ? w->block_value[b] : (int32_t)b;

        if (!count)
            continue;
        fill(sorted + total + count, (uint64_t)blocks * w->block - (uint32_t)count, (int32_t)w->slots);
        fill(expert_ids + (uint32_t)total / w->block, blocks, value < 0 ? -1 : value);
        total += (int32_t)(blocks * w->block);
    }
    assign_positions(w, w->experts, total);
    return total;
}

/* Table id -> bucket of mode I: the local number, E for experts of other ranks and for index E. */
static moert_status_t make_bucket_table(const int32_t *map, uint32_t experts, int32_t *table, struct moert_error *err)
{
    for (uint32_t g = 0; g < experts; g++) {
        if (map[g] >= 0 && (uint32_t)map[g] >= experts)
            return moert_fail(err, MOERT_E_VALUE, "map", "expert_map[%u] is %d; local ids are 0..%u", g, map[g],
                              experts - 1);
        table[g] = map[g] < 0 ? (int32_t)experts : map[g];
    }
    table[experts] = (int32_t)experts;
    return MOERT_OK;
}

static void write_scatter(const struct sort *w, int32_t *scatter)
{
    for (uint64_t s = 0; s < w->slots; s++)
        scatter[s] = bucket(w->ids[s], w->experts, w->bucket_of) < w->experts ? (int32_t)s : -1;
}

static int32_t run_sort(const struct sort *w, const struct moert_align_sizes *sizes, int32_t *sorted,
                        int32_t *expert_ids)
{
    int32_t total, used;

    if (w->bucket_of)
        count_with(w, w->bucket_of);
    else
        count_with(w, NULL);
    total = lay_out(w, sorted, expert_ids);
    if (w->bucket_of)
        place_with(w, w->bucket_of, sorted);
    else
        place_with(w, NULL, sorted);
    used = (int32_t)((uint32_t)total / w->block);
    fill(sorted + total, sizes->sorted - (uint32_t)total, (int32_t)w->slots);
    fill(expert_ids + used, sizes->expert_ids - (uint32_t)used, -1);
    return total;
}

static moert_status_t check_arrays(const int32_t *ids, const int32_t *map, const struct moert_align_params *params,
                                   uint64_t slots, const int32_t *sorted, const int32_t *expert_ids,
                                   const int32_t *total, const int32_t *scatter, struct moert_error *err)
{
    if (!total)
        return moert_fail_null(err, "total");
    if (scatter && map && !params->ignore_invalid)
        return moert_fail(err, MOERT_E_VALUE, "mode", "scatter_idx with an expert map needs ignore_invalid 1, got %u",
                          params->ignore_invalid);
    if (!slots)
        return MOERT_OK;
    if (!ids)
        return moert_fail_null(err, "ids");
    if (!sorted)
        return moert_fail_null(err, "sorted");
    if (!expert_ids)
        return moert_fail_null(err, "expert_ids");
    return MOERT_OK;
}

moert_status_t moert_align(const int32_t *ids, uint64_t tokens, uint32_t top_k, const int32_t *map,
                           const struct moert_align_params *params, int32_t *sorted, int32_t *expert_ids,
                           int32_t *total, int32_t *scatter, struct moert_error *err)
{
    int32_t stack[STACK_WORDS], *work = stack;
    struct moert_align_sizes sizes;
    struct sort w = {.ids = ids};
    moert_status_t status;
    uint64_t counters, words;
    int local;

    if (!moert_mul(tokens, top_k, &w.slots))
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large", "%llu tokens x %u slots exceed %u",
                          (unsigned long long)tokens, top_k, INT32_LIMIT);
    status = moert_align_sizes(w.slots, params, &sizes, err);
    if (!status)
        status = check_arrays(ids, map, params, w.slots, sorted, expert_ids, total, scatter, err);
    if (status)
        return status;
    local = map && params->ignore_invalid;
    w.experts = params->num_experts;
    w.block = params->block_size;
    w.block_value = local ? NULL : map;
    /* private counters pay once the slots outnumber them */
    w.parts = w.slots / (4 * PARTS) > w.experts ? PARTS : 1;
    w.part = w.slots / w.parts;
    counters = (uint64_t)w.parts * ((uint64_t)w.experts + 1);
    words = counters + (local ? (uint64_t)w.experts + 1 : 0);
    if (words > STACK_WORDS)
        work = malloc(words * sizeof(*work));
    if (!work)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "%llu bytes of counters for %u experts wanted",
                          (unsigned long long)(words * sizeof(*work)), w.experts);
    w.counters = work;
    memset(w.counters, 0, counters * sizeof(*work));
    if (local) {
        status = make_bucket_table(map, w.experts, work + counters, err);
        w.bucket_of = work + counters;
    }
    if (!status) {
        *total = run_sort(&w, &sizes, sorted, expert_ids);
        if (scatter)
            write_scatter(&w, scatter);
    }
    if (work != stack)
        free(work);
    return status;
}
