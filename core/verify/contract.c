/* core/verify/contract.c: what every backend guarantees beside its numbers (layer.md 8): same input same bytes,
 * constant inputs, zero tokens, independence of the batch, weights out and in, one expert replaced, two queues, warm
 * runs, capture. */
#include "config.h"

#include "core/verify/session.h"
#include "core/base/error.h"

#include <moert/float8.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A loaded layer of the subject with its case. */
struct bench {
    struct moert_session *s;
    const struct moert_case_data *d;
    moert_layer_t *layer;
    uint64_t bytes; /* of one output */
};

/* Runs the batch (its first `tokens` tokens) and returns the output, malloc'ed; NULL with *status set on failure. */
static uint8_t *run_batch(const struct bench *b, moert_layer_t *layer, moert_queue_t *queue, uint32_t first,
                          uint32_t tokens, moert_status_t *status, struct moert_error *err)
{
    const struct moert_case *c = b->d->c;
    struct moert_layer_args a = moert_case_args(b->d);
    uint64_t z = moert_dtype_size(c->dtype), shape[2] = {tokens, c->hidden};
    uint8_t *out = malloc(b->bytes ? b->bytes : 1);

    if (!out) {
        *status = moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for an output");
        return NULL;
    }
    memset(out, 0xFF, b->bytes);
    a.x.shape[0] = a.ids.shape[0] = a.weights.shape[0] = tokens;
    a.x.data = (uint8_t *)a.x.data + first * c->hidden * z;
    a.ids.data = (int32_t *)a.ids.data + first * c->top_k;
    a.weights.data = (float *)a.weights.data + first * c->top_k;
    a.output = moert_tensor_host(out, c->dtype, 2, shape);
    *status = moert_layer_run(layer, queue, &a, err);
    if (!*status)
        *status = moert_queue_wait(queue, UINT64_MAX, UINT64_MAX, NULL, err);
    if (*status) {
        free(out);
        return NULL;
    }
    return out;
}

/* A test: fills `detail` when something is wrong; MOERT_E_UNSUPPORTED with detail skips it. */
typedef moert_status_t (*contract_fn)(const struct bench *b, char *detail, size_t size, struct moert_error *err);

static void say(char *detail, size_t size, const char *text)
{
    snprintf(detail, size, "%s", text);
}

static moert_status_t same_twice(const struct bench *b, char *detail, size_t size, struct moert_error *err)
{
    moert_queue_t *q = b->s->subject.queue;
    moert_status_t status;
    uint8_t *first = run_batch(b, b->layer, q, 0, b->d->c->tokens, &status, err), *second = NULL, *one = NULL;

    if (first)
        one = run_batch(b, b->layer, q, 0, 1, &status, err);
    if (one)
        second = run_batch(b, b->layer, q, 0, b->d->c->tokens, &status, err);
    if (second && memcmp(first, second, b->bytes))
        say(detail, size, "the same call gave other bytes the second time");
    free(first);
    free(one);
    free(second);
    return status;
}

static uint64_t hash(const void *data, uint64_t n, uint64_t h)
{
    const uint8_t *p = data;
    for (uint64_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

static uint64_t hash_inputs(const struct moert_case_data *d)
{
    uint64_t slots = (uint64_t)d->c->tokens * d->c->top_k, h = 0xcbf29ce484222325u;

    h = hash(d->x, (uint64_t)d->c->tokens * d->c->hidden * moert_dtype_size(d->c->dtype), h);
    h = hash(d->ids, slots * 4, h);
    h = hash(d->weights, slots * 4, h);
    h = hash(d->w13, d->w13_bytes, h);
    return hash(d->w2, d->w2_bytes, h);
}

static moert_status_t constant_inputs(const struct bench *b, char *detail, size_t size, struct moert_error *err)
{
    uint64_t before = hash_inputs(b->d);
    moert_status_t status;
    uint8_t *out = run_batch(b, b->layer, b->s->subject.queue, 0, b->d->c->tokens, &status, err);

    free(out);
    if (!status && hash_inputs(b->d) != before)
        say(detail, size, "the call changed an input");
    return status;
}

static moert_status_t zero_tokens(const struct bench *b, char *detail, size_t size, struct moert_error *err)
{
    moert_status_t status;
    uint8_t *out = run_batch(b, b->layer, b->s->subject.queue, 0, 0, &status, err);

    for (uint64_t i = 0; out && i < b->bytes && !detail[0]; i++)
        if (out[i] != 0xFF)
            say(detail, size, "a call with zero tokens wrote into the output");
    free(out);
    if (status)
        return status;
    out = run_batch(b, b->layer, b->s->subject.queue, 0, 1, &status, err);
    free(out);
    return status;
}

static moert_status_t batch_invariance(const struct bench *b, char *detail, size_t size, struct moert_error *err)
{
    uint64_t row = b->d->c->hidden * moert_dtype_size(b->d->c->dtype);
    moert_status_t status;
    uint8_t *all, *one;

    if (!(b->s->subject.table->flags & MOERT_BACKEND_F_BATCH_INVARIANT)) {
        say(detail, size, "the backend does not claim it");
        return MOERT_E_UNSUPPORTED;
    }
    all = run_batch(b, b->layer, b->s->subject.queue, 0, b->d->c->tokens, &status, err);
    for (uint32_t t = 0; all && !status && t < b->d->c->tokens; t += 7) {
        one = run_batch(b, b->layer, b->s->subject.queue, t, 1, &status, err);
        if (one && memcmp(one, all + t * row, row))
            snprintf(detail, size, "token %u alone gives other bytes than in the batch", t);
        free(one);
    }
    free(all);
    return status;
}

static moert_status_t export_import(const struct bench *b, char *detail, size_t size, struct moert_error *err)
{
    struct moert_layout layout = {.size = sizeof(layout)};
    moert_layer_t *copy = NULL;
    uint8_t *bytes = NULL, *first = NULL, *second = NULL;
    moert_status_t status;

    if (!b->s->subject.table->ops->export_weights || !b->s->subject.table->ops->import_weights) {
        say(detail, size, "the backend neither exports nor imports");
        return MOERT_E_UNSUPPORTED;
    }
    status = moert_layer_layout(b->layer, &layout, err);
    if (!status && !(bytes = malloc(layout.bytes ? layout.bytes : 1)))
        status = moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for exported weights");
    if (!status)
        status = moert_layer_export(b->layer, 0, layout.bytes, bytes, err);
    if (!status)
        status = moert_subject_layer(&b->s->subject, &b->d->config, &copy, err);
    if (!status)
        status = moert_layer_import(copy, &layout, 0, layout.bytes, bytes, err);
    if (!status)
        first = run_batch(b, b->layer, b->s->subject.queue, 0, b->d->c->tokens, &status, err);
    if (first)
        second = run_batch(b, copy, b->s->subject.queue, 0, b->d->c->tokens, &status, err);
    if (second && memcmp(first, second, b->bytes))
        say(detail, size, "weights exported and imported give another output");
    layout.version++;
    if (!status && !detail[0] && !moert_layer_import(copy, &layout, 0, layout.bytes, bytes, NULL))
        say(detail, size, "an import under another layout version was accepted");
    free(first);
    free(second);
    free(bytes);
    moert_layer_destroy(copy);
    return status;
}

/* Expert 0 gets the weights of expert 1; a fresh layer with these weights must give the same bytes. */
static moert_status_t update_expert(const struct bench *b, char *detail, size_t size, struct moert_error *err)
{
    uint32_t local = b->d->config.num_local_experts;
    struct moert_layer_weights rest = moert_case_weights(b->d, 1, local - 1), one = moert_case_weights(b->d, 1, 1);
    moert_layer_t *fresh = NULL, *changed = NULL;
    uint8_t *first = NULL, *second = NULL;
    moert_status_t status = moert_subject_layer(&b->s->subject, &b->d->config, &fresh, err);

    one.first = 0;
    if (!status)
        status = moert_layer_set_weights(fresh, &one, err);
    if (!status)
        status = moert_layer_set_weights(fresh, &rest, err);
    if (!status)
        status = moert_subject_layer(&b->s->subject, &b->d->config, &changed, err);
    if (!status)
        status = moert_case_load(b->d, changed, err);
    if (!status)
        status = moert_layer_update_weights(changed, b->s->subject.queue, &one, err);
    if (!status)
        first = run_batch(b, fresh, b->s->subject.queue, 0, b->d->c->tokens, &status, err);
    if (first)
        second = run_batch(b, changed, b->s->subject.queue, 0, b->d->c->tokens, &status, err);
    if (second && memcmp(first, second, b->bytes))
        say(detail, size, "a replaced expert gives another output than the same expert loaded at first");
    free(first);
    free(second);
    moert_layer_destroy(fresh);
    moert_layer_destroy(changed);
    return status;
}

struct second_thread {
    const struct bench *b;
    moert_queue_t *queue;
    uint8_t *out;
    moert_status_t status;
    struct moert_error err;
};

static void *second_queue(void *arg)
{
    struct second_thread *t = arg;

    for (int i = 0; i < 4 && (i == 0 || t->out); i++) {
        free(t->out);
        t->out = run_batch(t->b, t->b->layer, t->queue, 0, t->b->d->c->tokens, &t->status, &t->err);
    }
    return NULL;
}

static moert_status_t two_queues(const struct bench *b, char *detail, size_t size, struct moert_error *err)
{
    struct second_thread t = {.b = b, .err = MOERT_ERROR_INIT};
    moert_status_t status = moert_queue_create(b->s->subject.context, b->s->subject.device, 0, &t.queue, err);
    uint8_t *mine = NULL;
    pthread_t thread;

    if (status)
        return status;
    if (pthread_create(&thread, NULL, second_queue, &t)) {
        moert_queue_destroy(t.queue);
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no thread for the second queue");
    }
    for (int i = 0; i < 4 && !status; i++) {
        free(mine);
        mine = run_batch(b, b->layer, b->s->subject.queue, 0, b->d->c->tokens, &status, err);
    }
    pthread_join(thread, NULL);
    if (!status && t.status) {
        status = t.status;
        if (err)
            *err = t.err;
    }
    if (!status && memcmp(mine, t.out, b->bytes))
        say(detail, size, "two queues at once give different bytes");
    free(mine);
    free(t.out);
    moert_queue_destroy(t.queue);
    return status;
}

static moert_status_t warm_runs(const struct bench *b, char *detail, size_t size, struct moert_error *err)
{
    struct moert_layer_stats before = {.size = sizeof(before)}, after = {.size = sizeof(after)};
    moert_status_t status = moert_layer_warm_up(b->layer, b->s->subject.queue, b->d->c->tokens, err);
    uint8_t *out = NULL;

    if (!status)
        out = run_batch(b, b->layer, b->s->subject.queue, 0, b->d->c->tokens, &status, err);
    free(out);
    if (!status)
        status = moert_layer_stats(b->layer, &before, err);
    if (!status)
        free(run_batch(b, b->layer, b->s->subject.queue, 0, b->d->c->tokens, &status, err));
    if (!status)
        status = moert_layer_stats(b->layer, &after, err);
    if (!status && after.allocations != before.allocations)
        snprintf(detail, size, "a warm run allocated %llu times",
                 (unsigned long long)(after.allocations - before.allocations));
    return status;
}

static moert_status_t usable_after_failure(const struct bench *b, char *detail, size_t size, struct moert_error *err)
{
    struct moert_layer_args a = moert_case_args(b->d);
    moert_status_t status;
    uint8_t *out;

    a.ids.shape[0]++; /* ids and hidden states disagree */
    a.output = a.x;   /* and the output overlaps the input */
    if (!moert_layer_run(b->layer, b->s->subject.queue, &a, NULL))
        say(detail, size, "a call with ids of another length was accepted");
    out = run_batch(b, b->layer, b->s->subject.queue, 0, b->d->c->tokens, &status, err);
    free(out);
    return status;
}

/* Tensors of a captured call. */
struct captured {
    moert_buffer_t *x, *ids, *weights, *out;
    moert_graph_t *graph;
};

static moert_status_t upload(moert_queue_t *q, const void *data, uint64_t bytes, moert_buffer_t **ret,
                             struct moert_error *err)
{
    moert_status_t status = moert_buffer_alloc(q->context, q->device, MOERT_MEMORY_DEVICE, bytes, 0, ret, err);

    if (!status)
        status = moert_copy_in(q, *ret, 0, data, bytes, err);
    return status ? status : moert_queue_wait(q, UINT64_MAX, UINT64_MAX, NULL, err);
}

static moert_status_t capture_run(const struct bench *b, struct captured *g, struct moert_error *err)
{
    const struct moert_case *c = b->d->c;
    moert_queue_t *q = b->s->subject.queue;
    uint64_t x[2] = {c->tokens, c->hidden}, k[2] = {c->tokens, c->top_k}, slots = k[0] * k[1];
    struct moert_layer_args a = {.size = sizeof(a)};
    moert_status_t status = upload(q, b->d->x, b->bytes, &g->x, err);

    if (!status)
        status = upload(q, b->d->ids, slots * 4, &g->ids, err);
    if (!status)
        status = upload(q, b->d->weights, slots * 4, &g->weights, err);
    if (!status)
        status = moert_buffer_alloc(q->context, q->device, MOERT_MEMORY_DEVICE, b->bytes, 0, &g->out, err);
    if (!status)
        status = moert_layer_warm_up(b->layer, q, c->tokens, err);
    if (status)
        return status;
    a.x = moert_tensor_device(g->x, 0, c->dtype, 2, x);
    a.ids = moert_tensor_device(g->ids, 0, MOERT_I32, 2, k);
    a.weights = moert_tensor_device(g->weights, 0, MOERT_F32, 2, k);
    a.output = moert_tensor_device(g->out, 0, c->dtype, 2, x);
    status = moert_capture_begin(q, err);
    if (status)
        return status;
    status = moert_layer_run(b->layer, q, &a, err);
    if (status) {
        moert_graph_t *broken = NULL;
        if (!moert_capture_end(q, &broken, NULL))
            moert_graph_destroy(broken);
        return status;
    }
    return moert_capture_end(q, &g->graph, err);
}

/* Captured once, replayed on other input: the replay reads what is in the buffers then. */
static moert_status_t capture_replay(const struct bench *b, char *detail, size_t size, struct moert_error *err)
{
    moert_queue_t *q = b->s->subject.queue;
    struct captured g = {0};
    uint8_t *want = NULL, *have = malloc(b->bytes ? b->bytes : 1), *zero = calloc(b->bytes ? b->bytes : 1, 1);
    moert_status_t status = have && zero ? MOERT_OK : MOERT_E_NOMEM;

    if (!(b->s->subject.table->flags & MOERT_BACKEND_F_CAPTURE)) {
        say(detail, size, "the backend does not claim it");
        status = MOERT_E_UNSUPPORTED;
    }
    if (!status)
        want = run_batch(b, b->layer, q, 0, b->d->c->tokens, &status, err);
    if (!status)
        status = capture_run(b, &g, err);
    for (int round = 0; !status && !detail[0] && round < 2; round++) {
        status = moert_copy_in(q, g.x, 0, round ? zero : b->d->x, b->bytes, err);
        if (!status)
            status = moert_graph_launch(q, g.graph, err);
        if (!status)
            status = moert_copy_out(q, have, g.out, 0, b->bytes, err);
        if (!status)
            status = moert_queue_wait(q, UINT64_MAX, UINT64_MAX, NULL, err);
        if (!status && round == 0 && memcmp(have, want, b->bytes))
            say(detail, size, "the replay gives other bytes than the plain call");
        if (!status && round == 1 && memcmp(have, zero, b->bytes))
            say(detail, size, "a replay on zero input does not give zeros");
    }
    moert_graph_destroy(g.graph);
    moert_buffer_free(g.x);
    moert_buffer_free(g.ids);
    moert_buffer_free(g.weights);
    moert_buffer_free(g.out);
    free(want);
    free(have);
    free(zero);
    return status;
}

static const struct {
    const char *name;
    contract_fn fn;
    int quick;
} tests[] = {
    {"same-bytes-twice", same_twice, 1},
    {"constant-inputs", constant_inputs, 1},
    {"zero-tokens", zero_tokens, 1},
    {"batch-invariance", batch_invariance, 0},
    {"export-import", export_import, 0},
    {"update-expert", update_expert, 0},
    {"two-queues", two_queues, 0},
    {"warm-runs", warm_runs, 0},
    {"usable-after-failure", usable_after_failure, 0},
    {"capture-replay", capture_replay, 0},
};

/* One case per weight scheme carries the contract tests. */
static const char *const carriers[] = {"lutb-skewed", "mxfp8-gelu", "bf16-t130"};

static const struct moert_case *find_case(const char *name)
{
    for (uint32_t i = 0; i < moert_case_count; i++)
        if (!strcmp(moert_cases[i].name, name))
            return &moert_cases[i];
    return NULL;
}

static void run_test(struct bench *b, size_t i)
{
    struct moert_finding f = {.step = ""};
    struct moert_error own = MOERT_ERROR_INIT;
    char name[96];
    moert_status_t status;

    snprintf(name, sizeof(name), "%s/%s", tests[i].name, b->d->c->name);
    status = tests[i].fn(b, f.detail, sizeof(f.detail), &own);
    if (status == MOERT_E_UNSUPPORTED) {
        moert_session_report(b->s, "contract", name, MOERT_VERIFY_SKIPPED, NULL, f.detail[0] ? f.detail : own.text);
        return;
    }
    f.failed = status || f.detail[0];
    if (status)
        snprintf(f.detail, sizeof(f.detail), "%s: %.300s", moert_status_name(status), own.text);
    moert_session_report(b->s, "contract", name, f.failed ? MOERT_VERIFY_FAILED : MOERT_VERIFY_PASSED, &f, NULL);
}

moert_status_t moert_verify_contract(struct moert_session *s, struct moert_error *err)
{
    moert_status_t status = MOERT_OK;

    for (size_t k = 0; !status && k < sizeof(carriers) / sizeof(*carriers); k++) {
        struct moert_case_data d = {0};
        struct bench b = {.s = s, .d = &d};
        char refusal[480];
        status = moert_case_make(find_case(carriers[k]), s->options.seed, &d, err);
        if (status)
            return status;
        moert_subject_refusal(&s->subject, &d.config, refusal, sizeof(refusal));
        b.bytes = (uint64_t)d.c->tokens * d.c->hidden * moert_dtype_size(d.c->dtype);
        if (refusal[0]) {
            moert_session_report(s, "contract", carriers[k], MOERT_VERIFY_SKIPPED, NULL, refusal);
        } else {
            status = moert_subject_layer(&s->subject, &d.config, &b.layer, err);
            if (!status)
                status = moert_case_load(&d, b.layer, err);
            for (size_t i = 0; !status && i < sizeof(tests) / sizeof(*tests); i++)
                if (!s->options.quick || tests[i].quick)
                    run_test(&b, i);
        }
        moert_layer_destroy(b.layer);
        moert_case_free(&d);
    }
    return status;
}
