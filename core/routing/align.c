/* core/routing/align.c: block alignment (routing.md 3): slots sorted by expert, each expert's slots padded to blocks,
 * so that a backend's GEMM handles whole blocks of one expert. Stands between top-k and GEMM1.
 *
 * A stable counting sort; align_chunks.c has the form for long inputs. */
#include "config.h"

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/routing/align.h"

#include <moert/routing.h>

#include <stdlib.h>
#include <string.h>

#define STACK_WORDS 2560 /* counters of that many experts without an allocation */
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

static void fill(int32_t *at, uint64_t count, int32_t value)
{
    for (uint64_t i = 0; i < count; i++)
        at[i] = value;
}

int32_t moert_align_close_bucket(const struct moert_align_job *job, uint32_t b, int32_t first, int32_t count)
{
    uint32_t blocks = ((uint32_t)count + job->block - 1) / job->block;
    int32_t value = job->block_value ? job->block_value[b] : (int32_t)b;

    fill(job->sorted + first + count, (uint64_t)blocks * job->block - (uint32_t)count, (int32_t)job->slots);
    fill(job->expert_ids + (uint32_t)first / job->block, blocks, value < 0 ? -1 : value);
    return first + (int32_t)(blocks * job->block);
}

/* The plain form. counters [E+1], zeroed: counts, then next positions; the last is of the slots without a bucket. Those
 * go behind the total, where there is room for them (total + dropped <= cap), and are hidden by the sentinels written
 * there last: the placing loop needs no branch. */
static int32_t sort_plain(const struct moert_align_job *job, int32_t *counters)
{
    int32_t total = 0;

    for (uint64_t s = 0; s < job->slots; s++)
        counters[moert_align_bucket(job->ids[s], job->experts, job->bucket_of)]++;
    for (uint32_t b = 0; b < job->experts; b++) {
        int32_t count = counters[b];

        counters[b] = total;
        if (count)
            total = moert_align_close_bucket(job, b, total, count);
    }
    counters[job->experts] = total;
    for (uint64_t s = 0; s < job->slots; s++)
        job->sorted[counters[moert_align_bucket(job->ids[s], job->experts, job->bucket_of)]++] = (int32_t)s;
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

static void write_scatter(const struct moert_align_job *job, int32_t *scatter)
{
    for (uint64_t s = 0; s < job->slots; s++)
        scatter[s] = moert_align_bucket(job->ids[s], job->experts, job->bucket_of) < job->experts ? (int32_t)s : -1;
}

/* Sorts and fills what lies behind the total. work: [E+1] bucket table of mode I, then the scratch of the sort. */
static moert_status_t run_job(struct moert_align_job *job, const int32_t *local_map, uint64_t blocks, int32_t *work,
                              int32_t *ret_total, struct moert_error *err)
{
    uint64_t counters = (uint64_t)job->experts + 1;
    moert_status_t status;
    int32_t total;
    uint32_t used;

    if (local_map) {
        status = make_bucket_table(local_map, job->experts, work, err);
        if (status)
            return status;
        job->bucket_of = work;
        work += counters;
    }
    if (moert_align_chunks_pay(job->slots, job->experts)) {
        total = moert_align_chunks(job, work);
    } else {
        memset(work, 0, counters * sizeof(*work));
        total = sort_plain(job, work);
    }
    used = (uint32_t)total / job->block;
    fill(job->sorted + total, job->cap - (uint32_t)total, (int32_t)job->slots);
    fill(job->expert_ids + used, blocks - used, -1);
    *ret_total = total;
    return MOERT_OK;
}

/* int32 words that a job needs to work with. */
static uint64_t work_words(uint64_t slots, uint32_t experts, int has_table)
{
    uint64_t counters = (uint64_t)experts + 1, sort = counters;

    if (moert_align_chunks_pay(slots, experts))
        sort = (moert_align_chunks_bytes(slots, experts) + sizeof(int32_t) - 1) / sizeof(int32_t);
    return sort + (has_table ? counters : 0);
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
    struct moert_align_job job = {.ids = ids, .sorted = sorted, .expert_ids = expert_ids};
    struct moert_align_sizes sizes;
    const int32_t *local_map;
    moert_status_t status;
    uint64_t words;

    if (!moert_mul(tokens, top_k, &job.slots))
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large", "%llu tokens x %u slots exceed %u",
                          (unsigned long long)tokens, top_k, INT32_LIMIT);
    status = moert_align_sizes(job.slots, params, &sizes, err);
    if (!status)
        status = check_arrays(ids, map, params, job.slots, sorted, expert_ids, total, scatter, err);
    if (status)
        return status;
    local_map = params->ignore_invalid ? map : NULL;
    job.cap = sizes.sorted;
    job.experts = params->num_experts;
    job.block = params->block_size;
    job.block_value = local_map ? NULL : map;
    words = work_words(job.slots, job.experts, local_map != NULL);
    if (words > STACK_WORDS)
        work = malloc(words * sizeof(*work));
    if (!work)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "%llu bytes to align %llu slots of %u experts wanted",
                          (unsigned long long)(words * sizeof(*work)), (unsigned long long)job.slots, job.experts);
    status = run_job(&job, local_map, sizes.expert_ids, work, total, err);
    if (!status && scatter)
        write_scatter(&job, scatter);
    if (work != stack)
        free(work);
    return status;
}
