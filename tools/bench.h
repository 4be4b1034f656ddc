/* tools/bench.h: parts of `moert bench` (performance.md 5): each workload fills rows, one file prints them. A row is a
 * JSON object; times in ns, sizes in bytes, rates per second. */
#ifndef MOERT_TOOLS_BENCH_H
#define MOERT_TOOLS_BENCH_H

#include "tools/clock.h"
#include "tools/source.h"

enum bench_output { BENCH_MD, BENCH_JSON, BENCH_JSONL, BENCH_CSV };

struct bench_shape {
    const char *name;
    uint64_t hidden, intermediate;
    uint32_t experts, top_k;
    int swigluoai; /* with biases, as gpt-oss has them */
};

enum bench_routing_kind { ROUTING_UNIFORM, ROUTING_ZIPF, ROUTING_HOT, ROUTING_TRACE };
struct bench_routing {
    enum bench_routing_kind kind;
    double parameter; /* S of zipf, F of hot */
    const char *text; /* as given */
    const char *path; /* of a trace */
};

enum { BENCH_LIST = 32 };
struct bench_request {
    const char *what;
    struct bench_shape shapes[BENCH_LIST];
    uint64_t tokens[BENCH_LIST];
    moert_scheme_t formats[BENCH_LIST];
    const char *backends[BENCH_LIST];
    size_t shape_count, token_count, format_count, backend_count;
    struct bench_routing routing;
    uint64_t reps, warmup, seed, instances; /* instances 0: as many as cold caches need */
    enum bench_output output;
};

/* The machine's own limits, measured in this run; 0 when they could not be measured. */
struct bench_limits {
    double copy;          /* bytes read plus bytes written per second */
    double read;          /* bytes per second */
    double multiply_adds; /* operations per second, two per multiply-add, F32 */
};
struct bench_machine {
    unsigned threads;
    uint64_t cache, memory; /* last-level cache, memory available at the start */
    char cpu[128];
    double load; /* of the last minute */
    struct bench_limits before, after;
};
void bench_machine_describe(struct bench_machine *machine);
void bench_measure_limits(const struct bench_machine *machine, uint64_t seed, struct bench_limits *ret);
/* Rows of `moert bench copy`. */
int bench_copy(struct tool *tool, const struct bench_request *request, const struct bench_machine *machine,
               json_t *rows);
/* Pushes everything out of the caches by writing and reading `bytes`. */
void bench_flush_caches(uint64_t bytes);

int bench_layer(struct tool *tool, const struct bench_request *request, const struct bench_machine *machine,
                json_t *rows);
int bench_align(struct tool *tool, const struct bench_request *request, json_t *rows);
int bench_topk(struct tool *tool, const struct bench_request *request, json_t *rows);
int bench_quantize(struct tool *tool, const struct bench_request *request, json_t *rows);

/* Puts median_ns, p5_ns, p95_ns, min_ns and samples_ns into a row. */
void bench_row_times(json_t *row, const double *samples, uint64_t count);
/* Adds copy_share and multiply_add_share to every row on a CPU, from the mean of both measurements. */
void bench_row_shares(json_t *rows, const struct bench_machine *machine);
int bench_print(struct tool *tool, const struct bench_request *request, const struct bench_machine *machine,
                json_t *rows);

/* ---- bench_routing.c: SplitMix64 of (seed, instance, token, expert): the same draws in any order, anywhere ---- */
double bench_uniform(uint64_t seed, uint64_t instance, uint64_t token, uint64_t expert); /* in (0,1) */
uint64_t bench_mix(uint64_t value);
/* Gumbel keys [T,E] F32 whose top K are the drawn experts. */
void bench_routing_logits(const struct bench_routing *routing, uint64_t seed, uint64_t instance, uint64_t tokens,
                          uint32_t experts, uint32_t top_k, float *logits);
/* Experts that ids [T,K] touch and the largest number of rows of one. `counts` [E] is scratch. */
void bench_routing_count(const int32_t *ids, uint64_t slots, uint32_t experts, uint64_t *counts, uint64_t *ret_touched,
                         uint64_t *ret_most);

#endif
