/* tools/bench_steps.c: single steps on the host: block alignment, top-k, MXFP8 quantisation. One core each: the
 * library's functions are single-threaded. Times are warm: such inputs come straight from the step before. */
#include "config.h"

#include "tools/bench.h"
#include "tools/tensors.h"

#include <moert/float8.h>
#include <moert/mxfp8.h>
#include <moert/routing.h>

#include <stdlib.h>

enum { TOP_K = 8 };
static const uint32_t expert_counts[] = {128, 256};
static const uint32_t block_sizes[] = {16, 128};
static const uint64_t step_tokens[] = {1, 64, 512, 4096, 16384, 65536};
static const uint64_t quantize_columns[] = {2048, 7168};
static const uint64_t quantize_rows[] = {1, 64, 512, 4096};

/* Times `step` until the repetitions or two seconds are used up; the time into `samples`, their number returned. */
static uint64_t repeat(const struct bench_request *r, moert_status_t (*step)(void *, struct moert_error *), void *ctx,
                       double *samples, struct moert_error *err, moert_status_t *ret)
{
    double begin = tool_clock();
    uint64_t n = 0;

    *ret = MOERT_OK;
    for (uint64_t i = 0; i < r->warmup + r->reps && !*ret; i++) {
        double start = tool_clock();
        *ret = step(ctx, err);
        if (i >= r->warmup)
            samples[n++] = tool_clock() - start;
        if (n >= 3 && tool_clock() - begin > 2e9)
            break;
    }
    return n;
}

/* One row: runs the step, appends `row` with its times and rate; takes the row. */
static int add_row(struct tool *tool, const struct bench_request *r, json_t *rows, json_t *row,
                   moert_status_t (*step)(void *, struct moert_error *), void *ctx, const char *rate, double amount)
{
    struct moert_error err = MOERT_ERROR_INIT;
    double *samples = tool_alloc(tool, r->reps, sizeof(*samples));
    moert_status_t status = MOERT_OK;
    uint64_t n;
    int exit_status = TOOL_DEVICE;

    if (samples) {
        n = repeat(r, step, ctx, samples, &err, &status);
        exit_status = status ? tool_error(tool, &err) : 0;
    }
    if (!exit_status) {
        bench_row_times(row, samples, n);
        json_object_set_new(row, rate, tool_json_real(amount / tool_statistics(samples, n).median * 1e9));
        json_array_append(rows, row);
    }
    json_decref(row);
    free(samples);
    return exit_status;
}

/* Uniform ids, distinct in a token: the K experts with the largest draws. */
static void uniform_ids(uint64_t seed, uint64_t tokens, uint32_t experts, int32_t *ids)
{
    for (uint64_t t = 0; t < tokens; t++) {
        double best[TOP_K];
        int32_t *row = ids + t * TOP_K;
        int used = 0;
        for (uint32_t e = 0; e < experts; e++) {
            double u = bench_uniform(seed, 0, t, e);
            int at = used < TOP_K ? used++ : TOP_K;
            if (at == TOP_K && u <= best[TOP_K - 1])
                continue;
            if (at == TOP_K)
                at = TOP_K - 1;
            for (; at > 0 && best[at - 1] < u; at--) {
                best[at] = best[at - 1];
                row[at] = row[at - 1];
            }
            best[at] = u;
            row[at] = (int32_t)e;
        }
    }
}

/* ---- align ---- */

struct align_step {
    const int32_t *ids;
    uint64_t tokens;
    struct moert_align_params params;
    int32_t *sorted, *expert_ids, total;
};

static moert_status_t align_once(void *ctx, struct moert_error *err)
{
    struct align_step *s = ctx;
    return moert_align(s->ids, s->tokens, TOP_K, NULL, &s->params, s->sorted, s->expert_ids, &s->total, NULL, err);
}

static int align_case(struct tool *tool, const struct bench_request *r, struct align_step *s, json_t *rows)
{
    struct moert_error err = MOERT_ERROR_INIT;
    struct moert_align_sizes sizes;
    json_t *row;
    int status;

    if (moert_align_sizes(s->tokens * TOP_K, &s->params, &sizes, &err))
        return tool_error(tool, &err);
    s->sorted = tool_alloc(tool, sizes.sorted, sizeof(*s->sorted));
    s->expert_ids = s->sorted ? tool_alloc(tool, sizes.expert_ids, sizeof(*s->expert_ids)) : NULL;
    row = json_pack("{s:s, s:s, s:o, s:i, s:i, s:i, s:i}", "bench", "align", "where", "host", "tokens",
                    tool_json_size(s->tokens), "top_k", TOP_K, "num_experts", (int)s->params.num_experts, "block_size",
                    (int)s->params.block_size, "threads", 1);
    status = s->expert_ids ? add_row(tool, r, rows, row, align_once, s, "slots_per_s", (double)s->tokens * TOP_K)
                           : TOOL_DEVICE;
    free(s->sorted);
    free(s->expert_ids);
    return status;
}

int bench_align(struct tool *tool, const struct bench_request *r, json_t *rows)
{
    const uint64_t *tokens = r->token_count ? r->tokens : step_tokens;
    size_t count = r->token_count ? r->token_count : sizeof(step_tokens) / sizeof(*step_tokens);
    int status = 0;

    for (size_t e = 0; !status && e < 2; e++)
        for (size_t t = 0; !status && t < count; t++) {
            int32_t *ids = tool_alloc(tool, tokens[t], TOP_K * sizeof(*ids));
            if (!ids)
                return TOOL_DEVICE;
            uniform_ids(r->seed, tokens[t], expert_counts[e], ids);
            for (size_t b = 0; !status && b < 2; b++) {
                struct align_step s = {.ids = ids, .tokens = tokens[t]};
                s.params = (struct moert_align_params){
                    .size = sizeof(s.params), .num_experts = expert_counts[e], .block_size = block_sizes[b]};
                status = align_case(tool, r, &s, rows);
            }
            free(ids);
        }
    return status;
}

/* ---- top-k ---- */

struct topk_step {
    struct moert_router_config router;
    struct moert_route_args args;
};

static moert_status_t topk_once(void *ctx, struct moert_error *err)
{
    struct topk_step *s = ctx;
    return moert_route(&s->router, &s->args, err);
}

static int topk_case(struct tool *tool, const struct bench_request *r, uint32_t experts, uint64_t tokens, json_t *rows)
{
    const struct bench_routing uniform = {.kind = ROUTING_UNIFORM};
    struct topk_step s = {.router = {.size = sizeof(s.router), .kind = MOERT_ROUTER_SOFTMAX, .renormalize = 1},
                          .args = {.size = sizeof(s.args),
                                   .num_experts = experts,
                                   .top_k = TOP_K,
                                   .tokens = tokens,
                                   .logits_dtype = MOERT_F32}};
    float *logits = tool_alloc(tool, tokens, experts * sizeof(*logits));
    int status = TOOL_DEVICE;
    json_t *row;

    s.args.ids = logits ? tool_alloc(tool, tokens, TOP_K * sizeof(*s.args.ids)) : NULL;
    s.args.weights = s.args.ids ? tool_alloc(tool, tokens, TOP_K * sizeof(*s.args.weights)) : NULL;
    if (s.args.weights) {
        bench_routing_logits(&uniform, r->seed, 0, tokens, experts, TOP_K, logits);
        s.args.logits = logits;
        row = json_pack("{s:s, s:s, s:o, s:i, s:i, s:s, s:i}", "bench", "topk", "where", "host", "tokens",
                        tool_json_size(tokens), "top_k", TOP_K, "num_experts", (int)experts, "router", "softmax-renorm",
                        "threads", 1);
        status = add_row(tool, r, rows, row, topk_once, &s, "tokens_per_s", (double)tokens);
    }
    free(logits);
    free(s.args.ids);
    free(s.args.weights);
    return status;
}

int bench_topk(struct tool *tool, const struct bench_request *r, json_t *rows)
{
    const uint64_t *tokens = r->token_count ? r->tokens : step_tokens;
    size_t count = r->token_count ? r->token_count : sizeof(step_tokens) / sizeof(*step_tokens);
    int status = 0;

    for (size_t e = 0; !status && e < 2; e++)
        for (size_t t = 0; !status && t < count; t++)
            status = topk_case(tool, r, expert_counts[e], tokens[t], rows);
    return status;
}

/* ---- quantise ---- */

struct quantize_step {
    const uint16_t *x;
    uint64_t rows, columns;
    uint8_t *codes, *scales;
};

static moert_status_t quantize_once(void *ctx, struct moert_error *err)
{
    struct quantize_step *s = ctx;
    return moert_mxfp8_quantize(s->x, MOERT_BF16, s->rows, s->columns, 0, NULL, s->codes, s->scales, NULL, err);
}

static int quantize_case(struct tool *tool, const struct bench_request *r, uint64_t height, uint64_t columns,
                         json_t *rows)
{
    struct quantize_step s = {.rows = height, .columns = columns};
    uint16_t *x = tool_alloc(tool, height, columns * sizeof(*x));
    double elements = (double)height * (double)columns;
    int status = TOOL_DEVICE;
    json_t *row;

    s.codes = x ? tool_alloc(tool, height, columns) : NULL;
    s.scales = s.codes ? tool_alloc(tool, height, columns / MOERT_MXFP8_BLOCK) : NULL;
    if (s.scales) {
        for (uint64_t i = 0; i < height * columns; i++)
            x[i] = moert_bf16_from_double(4 * bench_uniform(r->seed, 0, 0, i) - 2);
        s.x = x;
        row = json_pack("{s:s, s:s, s:o, s:o, s:s, s:i}", "bench", "quantize", "where", "host", "tokens",
                        tool_json_size(height), "columns", tool_json_size(columns), "dtype", "BF16", "threads", 1);
        /* Read two bytes, write one code and a 32nd of a scale. */
        json_object_set_new(row, "bytes", tool_json_size((uint64_t)(elements * (3 + 1.0 / 32))));
        status = add_row(tool, r, rows, row, quantize_once, &s, "elements_per_s", elements);
    }
    free(x);
    free(s.codes);
    free(s.scales);
    return status;
}

int bench_quantize(struct tool *tool, const struct bench_request *r, json_t *rows)
{
    const uint64_t *tokens = r->token_count ? r->tokens : quantize_rows;
    size_t count = r->token_count ? r->token_count : sizeof(quantize_rows) / sizeof(*quantize_rows);
    int status = 0;

    for (size_t c = 0; !status && c < 2; c++)
        for (size_t t = 0; !status && t < count; t++)
            status = quantize_case(tool, r, tokens[t], quantize_columns[c], rows);
    return status;
}
