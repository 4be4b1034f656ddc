/* SPDX-License-Identifier: Apache-2.0
 * drivers/cpu/ref/args.c: the arguments of one run, checked, and its workspace laid out. No output is touched here, so
 * an error leaves everything as it was. */
#include "config.h"

#include "core/base/error.h"
#include "drivers/cpu/ref/ref.h"

#include <inttypes.h>

#define KNOWN_FLAGS ((uint32_t)(MOERT_RUN_F_UNREDUCED | MOERT_RUN_F_UNWEIGHTED))

static moert_status_t check_header(const struct mref_layer *layer, const struct moert_run_args *args,
                                   struct moert_error *err)
{
    moert_status_t status;

    if (!layer || !args)
        return moert_fail_null(err, layer ? "args" : "layer");
    status = moert_check_size(err, "moert_run_args", args->size, MCPU_SIZE_TO(struct moert_run_args, reserved));
    if (status)
        return status;
    if (args->flags & ~KNOWN_FLAGS)
        return moert_fail(err, MOERT_E_USAGE, "flag", "unknown flag bits 0x%x; known: 0x%x", args->flags & ~KNOWN_FLAGS,
                          KNOWN_FLAGS);
    if (!args->tokens)
        return moert_fail(err, MOERT_E_VALUE, "size", "tokens is 0; must be at least 1");
    if (mcpu_given(&args->logits))
        return moert_fail(err, MOERT_E_USAGE, "flag", "logits given; cpu.reference takes ids and weights");
    if (atomic_load(&layer->ready) < layer->shape.local)
        return moert_fail(err, MOERT_E_USAGE, "state", "layer has no weights yet: %u of %u experts are prepared",
                          atomic_load(&layer->ready), layer->shape.local);
    return MOERT_OK;
}

/* One optional or mandatory matrix; an absent optional one leaves data NULL. */
static moert_status_t bind(const struct moert_drv_tensor *tensor, const char *name, const char *code, uint32_t dtypes,
                           uint64_t rows, uint64_t cols, int writes, struct mcpu_matrix *ret, struct moert_error *err)
{
    struct mcpu_want want = {
        .name = name, .code = code, .dtypes = dtypes, .rank = 2, .shape = {rows, cols}, .writes = (uint32_t)writes};

    return mcpu_matrix(tensor, &want, ret, err);
}

static moert_status_t bind_vector(const struct moert_drv_tensor *tensor, const char *name, uint64_t n, int writes,
                                  struct mcpu_matrix *ret, struct moert_error *err)
{
    struct mcpu_want want = {.name = name,
                             .code = name,
                             .dtypes = MCPU_DTYPE(MOERT_I32),
                             .rank = 1,
                             .shape = {n},
                             .writes = (uint32_t)writes};

    return mcpu_matrix(tensor, &want, ret, err);
}

static moert_status_t bind_input(struct mref_run *run, const struct moert_run_args *args, struct moert_error *err)
{
    const struct mref_shape *shape = run->shape;
    moert_status_t status;

    if (!mcpu_given(&args->x_scale))
        return bind(&args->x, "hidden_states", "x", MCPU_DTYPE(shape->dtype), run->tokens, shape->hidden, 0, &run->x,
                    err);
    if (shape->activations != MOERT_SCHEME_MXFP8)
        return moert_fail(err, MOERT_E_DTYPE, "x-dtype",
                          "hidden_states are MXFP8 codes, the layer's activation_scheme is none");
    if (shape->input_weight)
        return moert_fail(err, MOERT_E_USAGE, "input-weight",
                          "hidden_states are MXFP8 codes: the router weight cannot be put on the input any more");
    status =
        bind(&args->x, "hidden_states", "x", MCPU_DTYPE(MOERT_F8_E4M3), run->tokens, shape->hidden, 0, &run->x, err);
    if (status)
        return status;
    return bind(&args->x_scale, "hidden_states_scale", "x", MCPU_DTYPE(MOERT_U8) | MCPU_DTYPE(MOERT_F8_E8M0),
                run->tokens, shape->hidden / MREF_BLOCK, 0, &run->x_scale, err);
}

/* With a map every value must be a local id or negative; without one ids are local ids, so there must be as many. */
static moert_status_t bind_map(struct mref_run *run, const struct moert_run_args *args, struct moert_error *err)
{
    const struct mref_shape *shape = run->shape;
    moert_status_t status;

    if (!mcpu_given(&args->expert_map)) {
        if (shape->local >= shape->ids)
            return MOERT_OK;
        return moert_fail(err, MOERT_E_SHAPE, "experts",
                          "w13_weight has %u experts, the router %u, and there is no expert map", shape->local,
                          shape->ids);
    }
    status = bind_vector(&args->expert_map, "map", shape->ids, 0, &run->map, err);
    for (uint64_t e = 0; !status && e < shape->ids; e++) {
        int32_t local = mcpu_int_at(&run->map, 0, e);
        if (local >= 0 && (uint32_t)local >= shape->local)
            status = moert_fail(err, MOERT_E_VALUE, "map",
                                "expert_map[%" PRIu64 "] is %" PRId32 "; local ids are 0..%" PRIu32, e, local,
                                shape->local - 1);
    }
    return status;
}

static moert_status_t bind_routing(struct mref_run *run, const struct moert_run_args *args, struct moert_error *err)
{
    const struct mref_shape *shape = run->shape;
    moert_status_t status =
        bind(&args->ids, "topk_ids", "ids", MCPU_DTYPE(MOERT_I32), run->tokens, shape->slots, 0, &run->ids, err);
    int unweighted = args->flags & MOERT_RUN_F_UNWEIGHTED && !shape->input_weight;

    if (!status && !(unweighted && !mcpu_given(&args->weights)))
        status = bind(&args->weights, "topk_weights", "weights", MCPU_DTYPE(MOERT_F32), run->tokens, shape->slots, 0,
                      &run->weights, err);
    if (!status)
        status = bind_map(run, args, err);
    run->real = run->tokens;
    if (!status && mcpu_given(&args->token_count)) {
        struct mcpu_matrix count = {0};
        status = bind_vector(&args->token_count, "count", 1, 0, &count, err);
        if (!status) {
            int32_t n = mcpu_int_at(&count, 0, 0);
            if (n < 0 || (uint64_t)n < run->tokens)
                run->real = n < 0 ? 0 : (uint64_t)n;
        }
    }
    return status;
}

static moert_status_t bind_output(struct mref_run *run, const struct moert_run_args *args, struct moert_error *err)
{
    const struct mref_shape *shape = run->shape;
    int unreduced = (args->flags & MOERT_RUN_F_UNREDUCED) != 0;
    moert_status_t status = bind(&args->output, "output", "out", MCPU_DTYPE(shape->dtype),
                                 unreduced ? run->rows : run->tokens, shape->hidden, 1, &run->output, err);

    if (status)
        return status;
    if (unreduced)
        return bind_vector(&args->index, "index", run->rows, 1, &run->index, err);
    run->output_scale = (float)args->output_scale;
    if (!mcpu_given(&args->shared))
        return MOERT_OK;
    return bind(&args->shared, "shared", "x", MCPU_DTYPE(shape->dtype) | MCPU_DTYPE(MOERT_F32), run->tokens,
                shape->hidden, 0, &run->shared, err);
}

static moert_status_t bind_dumps(struct mref_run *run, const struct moert_run_dumps *dumps, struct moert_error *err)
{
    const struct mref_shape *shape = run->shape;
    uint32_t code = MCPU_DTYPE(MOERT_F8_E4M3) | MCPU_DTYPE(MOERT_U8);
    uint32_t scale = MCPU_DTYPE(MOERT_U8) | MCPU_DTYPE(MOERT_F8_E8M0);
    uint32_t d = MCPU_DTYPE(shape->dtype), f64 = MCPU_DTYPE(MOERT_F64);
    uint64_t t = run->tokens, r = run->rows, h = shape->hidden, i = shape->inner, n = shape->rows13;
    moert_status_t status;

    if (!dumps)
        return MOERT_OK;
    status = moert_check_size(err, "moert_run_dumps", dumps->size, MCPU_SIZE_TO(struct moert_run_dumps, s2));
    const struct {
        const struct moert_drv_tensor *tensor;
        const char *name;
        uint32_t dtypes;
        uint64_t rows, cols;
        struct mcpu_matrix *to;
    } all[] = {
        {&dumps->a1_codes, "dump a1_codes", code, t, h, &run->dump.a1_codes},
        {&dumps->a1_scales, "dump a1_scales", scale, t, h / MREF_BLOCK, &run->dump.a1_scales},
        {&dumps->c1, "dump c1", d, r, n, &run->dump.c1},
        {&dumps->c2, "dump c2", d, r, i, &run->dump.c2},
        {&dumps->a2_codes, "dump a2_codes", code, r, i, &run->dump.a2_codes},
        {&dumps->a2_scales, "dump a2_scales", scale, r, i / MREF_BLOCK, &run->dump.a2_scales},
        {&dumps->c3, "dump c3", d, r, h, &run->dump.c3},
        {&dumps->y1, "dump y1", f64, r, n, &run->dump.y1},
        {&dumps->s1, "dump s1", f64, r, n, &run->dump.s1},
        {&dumps->y2, "dump y2", f64, r, h, &run->dump.y2},
        {&dumps->s2, "dump s2", f64, r, h, &run->dump.s2},
    };
    for (size_t k = 0; !status && k < sizeof(all) / sizeof(all[0]); k++)
        if (mcpu_given(all[k].tensor))
            status =
                bind(all[k].tensor, all[k].name, "out", all[k].dtypes, all[k].rows, all[k].cols, 1, all[k].to, err);
    return status;
}

/* Addresses of the plan's parts. Threads: as many as are wanted and have scratch. */
static moert_status_t bind_workspace(struct mref_run *run, moert_drv *drv, const struct moert_run_args *args,
                                     const struct mref_plan *plan, struct moert_error *err)
{
    const struct mref_shape *shape = run->shape;
    uint64_t need = plan->base + plan->scratch_bytes, room;
    uint8_t *base;

    if (!args->workspace)
        return moert_fail_null(err, "workspace");
    if (args->workspace_offset > args->workspace->bytes ||
        args->workspace_bytes > args->workspace->bytes - args->workspace_offset)
        return moert_fail(err, MOERT_E_VALUE, "range",
                          "workspace: %" PRIu64 " bytes at offset %" PRIu64 " of a buffer of %" PRIu64,
                          args->workspace_bytes, args->workspace_offset, args->workspace->bytes);
    if (args->workspace_bytes < need)
        return moert_fail(err, MOERT_E_NOMEM, "workspace",
                          "%" PRIu64 " tokens need %" PRIu64 " bytes of workspace, %" PRIu64 " given", run->tokens,
                          need, args->workspace_bytes);
    base = args->workspace->data + args->workspace_offset;
    if ((uintptr_t)base % 64)
        return moert_fail(err, MOERT_E_USAGE, "alignment", "the workspace is not aligned to 256 bytes");
    room = (args->workspace_bytes - plan->base) / plan->scratch_bytes;
    run->threads = mcpu_threads(drv);
    if (run->threads > room)
        run->threads = (uint32_t)room;
    run->scratch = base + plan->scratch;
    run->scratch_bytes = plan->scratch_bytes;
    run->expert = (void *)(base + plan->expert);
    run->order = (void *)(base + plan->order);
    run->first = (void *)(base + plan->first);
    run->active = (void *)(base + plan->active);
    run->a1 =
        (struct mref_rows){base + plan->a1_codes, base + plan->a1_scales, (void *)(base + plan->wide), shape->hidden};
    run->a2 =
        (struct mref_rows){base + plan->a2_codes, base + plan->a2_scales, (void *)(base + plan->wide), shape->inner};
    run->c1 = mcpu_dense(base + plan->c, shape->dtype, run->rows, shape->rows13);
    run->c2 = mcpu_dense(base + plan->c2, shape->dtype, run->rows, shape->inner);
    run->c3 = args->flags & MOERT_RUN_F_UNREDUCED ? run->output
                                                  : mcpu_dense(base + plan->c, shape->dtype, run->rows, shape->hidden);
    return MOERT_OK;
}

moert_status_t mref_bind(struct mref_run *run, moert_drv_queue *queue, const struct moert_run_args *args,
                         struct moert_error *err)
{
    struct mref_plan plan;
    moert_status_t status = check_header(run->layer, args, err);

    if (!status && !queue)
        status = moert_fail_null(err, "queue");
    if (!status)
        status = mref_plan(&run->layer->shape, args->tokens, &plan, err);
    if (status)
        return status;
    run->shape = &run->layer->shape;
    run->flags = args->flags;
    run->tokens = args->tokens;
    run->rows = args->tokens * run->shape->slots; /* fits: mref_plan checked it */
    status = bind_input(run, args, err);
    if (!status)
        status = bind_routing(run, args, err);
    if (!status)
        status = bind_output(run, args, err);
    if (!status)
        status = bind_dumps(run, args->dumps, err);
    return status ? status : bind_workspace(run, queue->device->drv, args, &plan, err);
}
