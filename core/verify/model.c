/* core/verify/model.c: the same comparison for given weights and input (a checkpoint's layer). */
#include "config.h"

#include "core/verify/session.h"
#include "core/base/error.h"

#include <moert/float8.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Arrays of the steps of one run, as bytes, with their place in struct moert_layer_dumps. */
enum { A1_CODES, A1_SCALES, C1, C2, A2_CODES, A2_SCALES, C3, OUTPUT, STEP_ARRAYS };
static const char *const array_step[STEP_ARRAYS] = {"P1", "P1", "P2", "P3", "P4", "P4", "P5", "P6"};
static const char *const array_name[STEP_ARRAYS] = {"a1 codes", "a1 scales", "c1", "c2",
                                                    "a2 codes", "a2 scales", "c3", "output"};

struct shown {
    uint8_t *data[STEP_ARRAYS];
    uint64_t elements[STEP_ARRAYS];
    moert_dtype_t dtype[STEP_ARRAYS];
};

static void shown_free(struct shown *s)
{
    for (int i = 0; i < STEP_ARRAYS; i++)
        free(s->data[i]);
}

/* Runs with all arrays zeroed beforehand, so that rows nobody writes are equal. */
static moert_status_t run_shown(moert_layer_t *layer, moert_queue_t *queue, const struct moert_layer_args *given,
                                int steps, struct shown *ret, struct moert_error *err)
{
    const struct moert_layer_config *l = moert_layer_get_config(layer);
    uint64_t tokens = given->x.shape[0], k = l->top_k + l->num_fused_shared, rows = tokens * k;
    uint64_t h = l->hidden_size, n = l->intermediate_size, n1 = moert_layer_config_n1(l);
    uint64_t shape[STEP_ARRAYS][2] = {{tokens, h}, {tokens, h / 32}, {rows, n1}, {rows, n},
                                      {rows, n},   {rows, n / 32},   {rows, h},  {tokens, h}};
    struct moert_layer_args args = *given;
    struct moert_layer_dumps dumps = {.size = sizeof(dumps)};
    struct moert_tensor *slots[STEP_ARRAYS] = {&dumps.a1_codes, &dumps.a1_scales, &dumps.c1, &dumps.c2,
                                               &dumps.a2_codes, &dumps.a2_scales, &dumps.c3, &args.output};
    struct shown s = {0};
    moert_status_t status = MOERT_OK;

    for (int i = 0; i < STEP_ARRAYS; i++) {
        int scale = i == A1_SCALES || i == A2_SCALES, code = i == A1_CODES || i == A2_CODES;
        if (i != OUTPUT && (!steps || ((scale || code) && l->activation_scheme != MOERT_SCHEME_MXFP8)))
            continue;
        s.dtype[i] = scale ? MOERT_U8 : code ? MOERT_F8_E4M3 : l->dtype;
        s.elements[i] = shape[i][0] * shape[i][1];
        s.data[i] = calloc(s.elements[i] ? s.elements[i] : 1, moert_dtype_size(s.dtype[i]));
        if (!s.data[i])
            status = moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for step %s", array_step[i]);
        else
            *slots[i] = moert_tensor_host(s.data[i], s.dtype[i], 2, shape[i]);
    }
    if (steps)
        args.dumps = &dumps;
    if (!status)
        status = moert_layer_run(layer, queue, &args, err);
    if (!status)
        status = moert_queue_wait(queue, UINT64_MAX, UINT64_MAX, NULL, err);
    if (status)
        shown_free(&s);
    else
        *ret = s;
    return status;
}

/* Gate of one array: bytes for codecs of an undisturbed input, nrmse for values. */
static double distance(const struct shown *a, const struct shown *b, int i)
{
    if (a->dtype[i] == MOERT_U8 || a->dtype[i] == MOERT_F8_E4M3) {
        uint64_t differ = 0;
        for (uint64_t k = 0; k < a->elements[i]; k++)
            differ += a->data[i][k] != b->data[i][k];
        return a->elements[i] ? (double)differ / (double)a->elements[i] : 0;
    }
    return moert_nrmse(a->data[i], b->data[i], a->dtype[i], a->elements[i]);
}

moert_status_t moert_verify_layer(moert_layer_t *layer, moert_queue_t *queue, moert_layer_t *reference,
                                  moert_queue_t *reference_queue, const struct moert_layer_args *args,
                                  moert_verify_sink_fn sink, void *sink_ctx, uint32_t *ret_failed,
                                  struct moert_error *err)
{
    /* limits of the value steps and of the share of codes that a legal deviation before P4 may flip (mxfp8.md 9) */
    static const double class_limit[MOERT_CLASS_COUNT] = {0, 1e-3, 5e-2, 5e-2};
    struct moert_ctx_backend *backend = NULL;
    struct shown a = {0}, r = {0};
    uint32_t index = 0, failed = 0, flags;
    double limit;
    moert_status_t status;

    if (!layer || !queue || !reference || !reference_queue || !args)
        return moert_fail_null(err, "layer, queue or args");
    flags = moert_layer_backend_flags(layer);
    status = moert_backend_find(queue->context, moert_layer_backend(layer), &index, err);
    if (!status) {
        backend = queue->context->backends[index];
        status = run_shown(reference, reference_queue, args, !!(flags & MOERT_BACKEND_F_DUMPS), &r, err);
    }
    if (!status)
        status = run_shown(layer, queue, args, !!(flags & MOERT_BACKEND_F_DUMPS), &a, err);
    for (int i = 0; !status && i < STEP_ARRAYS; i++) {
        char detail[128];
        struct moert_verify_result result = {.size = sizeof(result), .op = "layer", .detail = detail};
        if (!a.data[i])
            continue;
        limit = i == A1_CODES || i == A1_SCALES ? 0 : class_limit[backend->table->numeric_class];
        result.nrmse = result.error = distance(&a, &r, i);
        result.bound = limit;
        result.outcome = result.nrmse <= limit ? MOERT_VERIFY_PASSED : MOERT_VERIFY_FAILED;
        result.backend = backend->table->name;
        result.device = queue->context->devices[queue->device]->desc.id;
        result.name = array_name[i];
        result.step = result.outcome == MOERT_VERIFY_FAILED && !failed ? array_step[i] : "";
        snprintf(detail, sizeof(detail), "%s: distance %.3g, limit %.3g", array_name[i], result.nrmse, limit);
        failed += result.outcome == MOERT_VERIFY_FAILED;
        if (sink)
            sink(sink_ctx, &result);
    }
    shown_free(&a);
    shown_free(&r);
    if (!status && ret_failed)
        *ret_failed = failed;
    return status;
}
