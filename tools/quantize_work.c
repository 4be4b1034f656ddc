/* tools/quantize_work.c: encodes or decodes some rows of a tensor in pieces of fixed size that threads take one after
 * another. Results and sums do not depend on the number of threads. */
#include "config.h"

#include "tools/files.h"
#include "tools/quantize_file.h"

#include <moert/float8.h>

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define PIECE_ELEMENTS (128u << 10)
#define STEP           8u /* rows: a tile of lut-b */

void quant_row_bytes(const struct quant_run *run, const struct quant_step *s, uint64_t ret[3])
{
    uint64_t lutb = s->cols / MOERT_LUTB_COLS; /* tiles per 8 rows */
    uint64_t codes = s->scheme == MOERT_SCHEME_LUT_B ? lutb * MOERT_LUTB_PACKED / STEP : s->cols;
    uint64_t scales = s->scheme == MOERT_SCHEME_LUT_B ? lutb * MOERT_LUTB_LEVELS / STEP : s->cols / MOERT_MXFP8_BLOCK;

    if (s->action == QUANT_DECODE) {
        ret[0] = codes;
        ret[1] = s->cols * moert_dtype_size(run->options->dtype);
        ret[2] = scales; /* read, not written */
    } else {
        ret[0] = s->cols * moert_dtype_size(s->tensor->dtype);
        ret[1] = codes;
        ret[2] = scales;
    }
}

/* One call of quant_work. */
struct work {
    const struct quant_run *run;
    const struct quant_step *step;
    uint64_t first, count, piece; /* rows */
    uint64_t bytes[3];
    uint8_t *out, *out2;
    atomic_uint_fast64_t next;
    struct result {
        struct quant_stats stats;
        moert_status_t status;
        struct moert_error *err; /* malloc'ed on failure */
    } * results;
    uint64_t pieces;
};

static void fail_piece(struct result *r, const struct moert_error *err)
{
    r->status = err->status;
    r->err = malloc(sizeof(*err));
    if (r->err)
        *r->err = *err;
}

static float load_float(const uint8_t *x, moert_dtype_t dtype, uint64_t i)
{
    uint32_t bits;
    float value;

    switch (dtype) {
    case MOERT_BF16:
        bits = (uint32_t)((const uint16_t *)(const void *)x)[i] << 16;
        memcpy(&value, &bits, 4);
        return value;
    case MOERT_F32: return ((const float *)(const void *)x)[i];
    default: return moert_f16_to_float(((const uint16_t *)(const void *)x)[i]);
    }
}

/* Errors of an MXFP8 piece, by decoding it again; blocks that hold NaN are left out. */
static moert_status_t measure(const struct work *w, const uint8_t *x, uint64_t rows, const uint8_t *codes,
                              const uint8_t *scales, struct quant_stats *stats, struct moert_error *err)
{
    uint64_t n = rows * w->step->cols;
    float *decoded = malloc(n * sizeof(*decoded));
    moert_status_t status;

    if (!decoded)
        return tool_no_memory(err);
    status = moert_mxfp8_dequantize(codes, scales, rows, w->step->cols, decoded, MOERT_F32, err);
    for (uint64_t i = 0; i < n && !status; i++) {
        double value = (double)load_float(x, w->step->tensor->dtype, i), d = (double)decoded[i] - value;
        if (!isfinite(d))
            continue;
        stats->error += d * d;
        stats->signal += value * value;
        if (fabs(d) > stats->max_error)
            stats->max_error = fabs(d);
    }
    free(decoded);
    return status;
}

static moert_status_t encode(const struct work *w, const uint8_t *x, uint64_t rows, uint8_t *codes, uint8_t *scales,
                             struct quant_stats *stats, struct moert_error *err)
{
    const struct quant_options *o = w->run->options;
    moert_dtype_t dtype = w->step->tensor->dtype;
    uint64_t cols = w->step->cols;
    moert_status_t status;

    if (w->step->scheme == MOERT_SCHEME_LUT_B) {
        struct moert_lutb_stats s = {.size = sizeof(s)};
        status = moert_lutb_encode(x, dtype, rows, cols, 0, &o->lutb, codes, scales, &s, err);
        *stats = (struct quant_stats){s.squared_error, s.squared_sum, s.max_error, s.saturated, 0};
    } else {
        struct moert_mxfp8_stats s = {.size = sizeof(s)};
        status = moert_mxfp8_quantize(x, dtype, rows, cols, 0, &o->mxfp8, codes, scales, &s, err);
        stats->saturated = s.saturated;
        stats->poisoned = s.poisoned_blocks;
        if (!status && o->measure)
            status = measure(w, x, rows, codes, scales, stats, err);
    }
    return status;
}

static moert_status_t decode(const struct work *w, uint64_t row, uint64_t rows, uint8_t *out, struct moert_error *err)
{
    const struct quant_step *s = w->step;
    const uint8_t *codes = (const uint8_t *)s->tensor->data + row * w->bytes[0];
    const uint8_t *scales = (const uint8_t *)s->partner->data + row * w->bytes[2];

    if (s->scheme == MOERT_SCHEME_LUT_B)
        return moert_lutb_decode(codes, scales, rows, s->cols, out, w->run->options->dtype, err);
    return moert_mxfp8_dequantize(codes, scales, rows, s->cols, out, w->run->options->dtype, err);
}

/* Data of a file may lie at any address; the encoders want the element's alignment. */
static const uint8_t *aligned(const uint8_t *x, uint64_t bytes, size_t element, void **ret_copy)
{
    *ret_copy = NULL;
    if ((uintptr_t)x % element == 0)
        return x;
    *ret_copy = malloc(bytes);
    return *ret_copy ? memcpy(*ret_copy, x, bytes) : NULL;
}

/* The tensor's own index of its element `at`, "[2,17]". */
static void print_index(const struct moert_st_tensor *t, uint64_t at, char text[256])
{
    uint64_t index[MOERT_ST_MAX_RANK];
    size_t n = 0;

    for (uint32_t i = t->rank; i-- > 0;) {
        index[i] = at % t->shape[i];
        at /= t->shape[i];
    }
    for (uint32_t i = 0; i < t->rank; i++)
        n += (size_t)snprintf(text + n, 256 - n, "%c%llu", i ? ',' : '[', (unsigned long long)index[i]);
    snprintf(text + n, 256 - n, "]");
}

/* Names the first Inf or NaN of `n` elements from element `at` of the tensor on, and what can be done. */
static void explain_nonfinite(const struct work *w, const uint8_t *x, uint64_t at, uint64_t n, struct moert_error *err)
{
    const struct quant_step *s = w->step;
    char index[256];
    uint64_t i = 0;
    float value;

    while (i + 1 < n && isfinite(load_float(x, s->tensor->dtype, i)))
        i++;
    value = load_float(x, s->tensor->dtype, i);
    print_index(s->tensor, at + i, index);
    tool_set_error(err, MOERT_E_VALUE, "nonfinite",
                   "%.2000s: tensor \"%.2000s\", element %s is %s; %s--exclude leaves the tensor as it is", s->path,
                   s->tensor->name, index,
                   isnan(value) ? "NaN"
                   : value < 0  ? "-Inf"
                                : "Inf",
                   s->scheme == MOERT_SCHEME_LUT_B ? "LUT-B cannot hold it (--format mxfp8 can); "
                                                   : "--nan contain or --nan poison converts it, ");
}

static void do_piece(struct work *w, uint64_t index, struct moert_error *err)
{
    struct result *r = &w->results[index];
    uint64_t at = index * w->piece, rows = w->count - at < w->piece ? w->count - at : w->piece;
    uint64_t row = w->first + at;
    const uint8_t *source = (const uint8_t *)w->step->tensor->data + row * w->bytes[0];
    moert_status_t status;
    int nonfinite = 0;
    void *copy = NULL;

    if (w->step->action == QUANT_DECODE) {
        status = decode(w, row, rows, w->out + at * w->bytes[1], err);
    } else {
        source = aligned(source, rows * w->bytes[0], moert_dtype_size(w->step->tensor->dtype), &copy);
        status = source ? encode(w, source, rows, w->out + at * w->bytes[1], w->out2 + at * w->bytes[2], &r->stats, err)
                        : tool_no_memory(err);
        nonfinite = source && status == MOERT_E_VALUE && !strcmp(err->code, "nonfinite");
        if (nonfinite)
            explain_nonfinite(w, source, row * w->step->cols, rows * w->step->cols, err);
        free(copy);
    }
    if (status) {
        char text[sizeof(err->text)];
        memcpy(text, err->text, sizeof(text));
        if (!nonfinite)
            tool_set_error(err, status, err->code, "%.2000s: tensor \"%.2000s\", rows %llu to %llu: %.3000s",
                           w->step->path, w->step->tensor->name, (unsigned long long)row,
                           (unsigned long long)(row + rows - 1), text);
        fail_piece(r, err);
    }
}

static void *worker(void *argument)
{
    struct work *w = argument;
    struct moert_error *err = malloc(sizeof(*err));

    for (;;) {
        uint64_t index = atomic_fetch_add(&w->next, 1);
        if (index >= w->pieces)
            break;
        if (!err) {
            w->results[index].status = MOERT_E_NOMEM;
            continue;
        }
        *err = (struct moert_error)MOERT_ERROR_INIT;
        do_piece(w, index, err);
    }
    free(err);
    return NULL;
}

/* The caller works too; helpers leave signals to it. */
static void run_threads(struct work *w, unsigned jobs)
{
    pthread_t threads[256];
    sigset_t all, old;
    unsigned started = 0;

    if (jobs > w->pieces)
        jobs = (unsigned)w->pieces;
    if (jobs > 256)
        jobs = 256;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    while (started + 1 < jobs && !pthread_create(&threads[started], NULL, worker, w))
        started++;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    worker(w);
    for (unsigned i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
}

/* The first failing piece, in order, gives the message. */
static moert_status_t gather(struct work *w, struct quant_stats *stats, struct moert_error *err)
{
    moert_status_t status = MOERT_OK;

    for (uint64_t i = 0; i < w->pieces; i++) {
        const struct result *r = &w->results[i];
        if (r->status && !status) {
            status = r->err ? r->status : tool_no_memory(err);
            if (r->err && err)
                tool_set_error(err, status, r->err->code, "%s", r->err->text);
        }
        stats->error += r->stats.error;
        stats->signal += r->stats.signal;
        stats->saturated += r->stats.saturated;
        stats->poisoned += r->stats.poisoned;
        if (r->stats.max_error > stats->max_error)
            stats->max_error = r->stats.max_error;
        free(r->err);
    }
    free(w->results);
    return status;
}

moert_status_t quant_work(const struct quant_run *run, const struct quant_step *step, uint64_t first, uint64_t count,
                          uint8_t *out, uint8_t *out2, struct quant_stats *stats, struct moert_error *err)
{
    struct work w = {.run = run, .step = step, .first = first, .count = count, .out = out, .out2 = out2};

    w.piece = PIECE_ELEMENTS / step->cols / STEP * STEP;
    if (!w.piece)
        w.piece = STEP;
    w.pieces = (count + w.piece - 1) / w.piece;
    quant_row_bytes(run, step, w.bytes);
    w.results = calloc(w.pieces ? w.pieces : 1, sizeof(*w.results));
    if (!w.results)
        return tool_no_memory(err);
    run_threads(&w, run->options->jobs);
    return gather(&w, stats, err);
}
