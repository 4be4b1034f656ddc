/* core/verify/trace.c: one run of a case on a layer, with everything it can show, on poisoned memory. */
#include "config.h"

#include "core/verify/trace.h"
#include "core/base/error.h"
#include "core/loader/context.h"

#include <stdlib.h>
#include <string.h>

#define GUARD  256
#define POISON 0xFF /* NaN in every float format, -1 in int32 */

/* Takes `bytes` from the arena; the first pass (base NULL) only counts. */
static void *place(uint8_t *base, uint64_t *used, uint64_t bytes)
{
    void *p = base ? base + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return p;
}

/* Lays the arrays out; returns the bytes needed. */
static uint64_t lay_out(struct moert_trace *t, const struct moert_case_data *d, uint32_t what, uint8_t *base)
{
    const struct moert_case *c = d->c;
    uint64_t tokens = c->tokens, rows = tokens * c->top_k, n1 = moert_layer_config_n1(&d->config), used = 0;
    uint64_t h = c->hidden, i = c->intermediate, z = moert_dtype_size(c->dtype);

    if (what & TRACE_STEPS) {
        if (c->activation_scheme == MOERT_SCHEME_MXFP8) {
            t->a1_codes = place(base, &used, tokens * h);
            t->a1_scales = place(base, &used, tokens * h / 32);
            t->a2_codes = place(base, &used, rows * i);
            t->a2_scales = place(base, &used, rows * i / 32);
        }
        t->c1 = place(base, &used, rows * n1 * z);
        t->c2 = place(base, &used, rows * i * z);
        t->c3 = place(base, &used, rows * h * z);
    }
    if (what & TRACE_SUMS) {
        t->y1 = place(base, &used, rows * n1 * 8);
        t->s1 = place(base, &used, rows * n1 * 8);
        t->y2 = place(base, &used, rows * h * 8);
        t->s2 = place(base, &used, rows * h * 8);
    }
    if (c->flags & CASE_UNREDUCED)
        t->index = place(base, &used, rows * 4);
    t->output_elements = (c->flags & CASE_UNREDUCED ? rows : tokens) * h;
    t->output = place(base, &used, t->output_elements * z);
    place(base, &used, GUARD);
    return used;
}

static struct moert_tensor matrix(void *data, moert_dtype_t dtype, uint64_t rows, uint64_t cols)
{
    uint64_t shape[2] = {rows, cols};
    struct moert_tensor none = {0};
    return data ? moert_tensor_host(data, dtype, 2, shape) : none;
}

static struct moert_layer_dumps dumps(const struct moert_trace *t, const struct moert_case_data *d)
{
    const struct moert_case *c = d->c;
    uint64_t tokens = c->tokens, rows = tokens * c->top_k, n1 = moert_layer_config_n1(&d->config);
    uint64_t h = c->hidden, i = c->intermediate;
    struct moert_layer_dumps u = {.size = sizeof(u)};

    u.a1_codes = matrix(t->a1_codes, MOERT_F8_E4M3, tokens, h);
    u.a1_scales = matrix(t->a1_scales, MOERT_U8, tokens, h / 32);
    u.c1 = matrix(t->c1, c->dtype, rows, n1);
    u.c2 = matrix(t->c2, c->dtype, rows, i);
    u.a2_codes = matrix(t->a2_codes, MOERT_F8_E4M3, rows, i);
    u.a2_scales = matrix(t->a2_scales, MOERT_U8, rows, i / 32);
    u.c3 = matrix(t->c3, c->dtype, rows, h);
    u.y1 = matrix(t->y1, MOERT_F64, rows, n1);
    u.s1 = matrix(t->s1, MOERT_F64, rows, n1);
    u.y2 = matrix(t->y2, MOERT_F64, rows, h);
    u.s2 = matrix(t->s2, MOERT_F64, rows, h);
    return u;
}

/* Moves the tensors of a call into device buffers: inputs are copied there, the output starts poisoned. */
struct on_device {
    moert_buffer_t *buffers[4];
    uint32_t count;
};

static moert_status_t to_device(moert_queue_t *queue, struct moert_tensor *t, struct on_device *o,
                                struct moert_error *err)
{
    uint64_t bytes = moert_dtype_size(t->dtype);
    moert_buffer_t *buffer = NULL;
    moert_status_t status;

    for (uint32_t i = 0; i < t->rank; i++)
        bytes *= t->shape[i];
    status = moert_buffer_alloc(queue->context, queue->device, MOERT_MEMORY_DEVICE, bytes, 0, &buffer, err);
    if (status)
        return status;
    o->buffers[o->count++] = buffer;
    status = moert_copy_in(queue, buffer, 0, t->data, bytes, err);
    if (!status)
        status = moert_queue_wait(queue, UINT64_MAX, UINT64_MAX, NULL, err);
    *t = moert_tensor_device(buffer, 0, t->dtype, t->rank, t->shape);
    return status;
}

/* The call with everything on the device; afterwards the output is copied back to the host. */
static moert_status_t run_on_device(moert_layer_t *layer, moert_queue_t *queue, struct moert_layer_args *args,
                                    struct moert_error *err)
{
    struct moert_tensor *moved[] = {&args->x, &args->ids, &args->weights, &args->output};
    struct on_device o = {{NULL}, 0};
    void *output = args->output.data;
    uint64_t bytes = moert_dtype_size(args->output.dtype) * args->output.shape[0] * args->output.shape[1];
    moert_status_t status = MOERT_OK;

    for (int i = 0; !status && i < 4; i++)
        status = to_device(queue, moved[i], &o, err);
    if (!status)
        status = moert_layer_run(layer, queue, args, err);
    if (!status)
        status = moert_copy_out(queue, output, o.buffers[3], 0, bytes, err);
    if (!status)
        status = moert_queue_wait(queue, UINT64_MAX, UINT64_MAX, NULL, err);
    for (uint32_t i = 0; i < o.count; i++)
        moert_buffer_free(o.buffers[i]);
    return status;
}

moert_status_t moert_trace_run(moert_layer_t *layer, moert_queue_t *queue, const struct moert_case_data *d,
                               uint32_t what, struct moert_trace *ret, struct moert_error *err)
{
    const struct moert_case *c = d->c;
    struct moert_trace t = {0};
    struct moert_layer_args args = moert_case_args(d);
    struct moert_layer_dumps u;
    uint64_t bytes = lay_out(&t, d, what, NULL), rows = (uint64_t)c->tokens * c->top_k, out_bytes;
    moert_status_t status;

    t.block = malloc(bytes);
    if (!t.block)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for the trace of %s", c->name);
    memset(t.block, POISON, bytes);
    lay_out(&t, d, what, t.block);
    args.output = matrix(t.output, c->dtype, c->flags & CASE_UNREDUCED ? rows : c->tokens, c->hidden);
    if (t.index)
        args.index = moert_tensor_host(t.index, MOERT_I32, 1, &rows);
    u = dumps(&t, d);
    if (what)
        args.dumps = &u;
    if (c->flags & CASE_DEVICE && !what)
        status = run_on_device(layer, queue, &args, err);
    else
        status = moert_layer_run(layer, queue, &args, err);
    if (!status)
        status = moert_queue_wait(queue, UINT64_MAX, UINT64_MAX, NULL, err);
    out_bytes = (t.output_elements * moert_dtype_size(c->dtype) + 63) / 64 * 64;
    for (uint64_t i = 0; !status && i < GUARD; i++)
        if (((uint8_t *)t.output)[out_bytes + i] != POISON)
            status = moert_fail(err, MOERT_E_INTERNAL, "guard", "%s: byte %llu after the output was overwritten",
                                c->name, (unsigned long long)i);
    if (status) {
        moert_trace_free(&t);
        return status;
    }
    *ret = t;
    return MOERT_OK;
}

void moert_trace_free(struct moert_trace *t)
{
    free(t->block);
    *t = (struct moert_trace){0};
}
