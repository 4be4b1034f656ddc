/* core/io/checkpoint_load.c: feeds one layer from a checkpoint: its experts one after another through one assembly
 * block, then the dense parts around them (router, correction bias, shared expert). */
#include "config.h"

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/io/checkpoint.h"
#include "core/io/safetensors.h"

#include <moert/float8.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ dense parts */

/* Tensors of a file may lie at any address and correction biases must be F32, so every dense part is copied; `blocks`
 * are freed after set_dense. */
enum { BLOCKS = 8 };
struct dense_build {
    const moert_checkpoint_t *c;
    const struct moert_layer_config *layer;
    uint32_t number;
    struct moert_layer_dense dense;
    void *blocks[BLOCKS];
    unsigned used;
    struct moert_error *err;
};

static moert_status_t new_block(struct dense_build *d, uint64_t bytes, void **ret)
{
    void *p;

    if (d->used == BLOCKS || posix_memalign(&p, 256, bytes ? bytes : 1))
        return moert_fail(d->err, MOERT_E_NOMEM, "host-memory", "%s: no memory for %llu bytes", d->c->path,
                          (unsigned long long)bytes);
    d->blocks[d->used++] = p;
    *ret = p;
    return MOERT_OK;
}

/* The tensor `name` (full), when it is there, as a copy. as_f32: converted. */
static moert_status_t add_tensor(struct dense_build *d, const char *name, uint32_t rank, const uint64_t *shape,
                                 int as_f32, struct moert_tensor *ret)
{
    const struct moert_st_tensor *t = moert_checkpoint_tensor(d->c, name);
    uint64_t elements = 0;
    void *copy;
    moert_status_t status;

    if (!t)
        return MOERT_OK;
    status = moert_st_check(d->c->path, t, MOERT_DTYPE_NONE, rank, shape, d->err);
    if (status)
        return status;
    if (!moert_product(shape, rank, &elements))
        return moert_fail(d->err, MOERT_E_TOO_LARGE, "too-large", "%s: %.300s is too large", d->c->path, name);
    as_f32 = as_f32 && t->dtype != MOERT_F32;
    status = new_block(d, as_f32 ? elements * 4 : t->bytes, &copy);
    if (status)
        return status;
    memcpy(copy, t->data, as_f32 ? 0 : t->bytes);
    for (uint64_t i = 0; as_f32 && i < elements; i++) {
        uint8_t element[8]; /* may be unaligned in the file */
        memcpy(element, (const uint8_t *)t->data + i * moert_dtype_size(t->dtype), moert_dtype_size(t->dtype));
        ((float *)copy)[i] = (float)moert_load(element, t->dtype, 0);
    }
    *ret = moert_tensor_host(copy, as_f32 ? MOERT_F32 : t->dtype, rank, shape);
    return MOERT_OK;
}

/* A dense weight X [rows,cols] in the shared scheme: codes (part 0) or scales (part 1) of up to two projections, one
 * below the other. */
static moert_status_t add_weight(struct dense_build *d, const char *const x[2], const char *const suffixes[2], int part,
                                 uint64_t rows, uint64_t cols, struct moert_tensor *ret)
{
    const struct moert_st_tensor *t[2] = {NULL, NULL};
    moert_scheme_t scheme = d->layer->shared.weight_scheme;
    uint64_t shape[3];
    moert_dtype_t dtype;
    void *copy;
    uint32_t rank = moert_part_shape(scheme, part, rows * (x[1] ? 2 : 1), cols, shape, &dtype);
    moert_status_t status = MOERT_OK;

    if (!rank)
        return MOERT_OK;
    for (int i = 0; i < 2 && x[i] && !status; i++)
        status = moert_checkpoint_weight(d->c, x[i], suffixes[part], scheme, part, rows, cols, &t[i], d->err);
    if (!status)
        status = new_block(d, t[0]->bytes + (t[1] ? t[1]->bytes : 0), &copy);
    if (status)
        return status;
    memcpy(copy, t[0]->data, t[0]->bytes);
    if (t[1])
        memcpy((uint8_t *)copy + t[0]->bytes, t[1]->data, t[1]->bytes);
    *ret = moert_tensor_host(copy, dtype, rank, shape);
    return MOERT_OK;
}

static moert_status_t add_shared(struct dense_build *d, const char *const w13[2], const char *w2, int halves)
{
    const uint64_t h = d->layer->hidden_size, i = d->layer->shared.intermediate_size;
    const char *const down[2] = {w2, NULL};
    const char *suffixes[2];
    moert_scheme_t scheme;
    moert_status_t status = moert_checkpoint_scheme(d->c, w13[0], &scheme, suffixes, d->err);
    uint64_t rows = halves == 2 ? i : moert_layer_config_n1(d->layer) / d->layer->intermediate_size * i;

    if (!status && scheme != d->layer->shared.weight_scheme)
        status = moert_fail(d->err, MOERT_E_VALUE, "scheme", "%s: %.300s is %s, the description says %s", d->c->path,
                            w13[0], moert_scheme_name(scheme), moert_scheme_name(d->layer->shared.weight_scheme));
    for (int part = 0; part < 2 && !status; part++) {
        status = add_weight(d, w13, suffixes, part, rows, h, part ? &d->dense.shared_w13_scale : &d->dense.shared_w13);
        if (!status)
            status = add_weight(d, down, suffixes, part, h, i, part ? &d->dense.shared_w2_scale : &d->dense.shared_w2);
    }
    return status;
}

/* Full name of a family's tensor, "" when the family has none. */
static const char *family_name(const struct dense_build *d, const char *rest, char out[MOERT_NAME_MAX])
{
    out[0] = 0;
    if (rest)
        moert_checkpoint_name(d->c, d->number, rest, out);
    return out;
}

static moert_status_t collect_checkpoint(struct dense_build *d)
{
    const struct moert_family *f = d->c->family;
    const uint64_t h = d->layer->hidden_size, router[] = {d->layer->num_experts, h}, gate[] = {1, h};
    char name[MOERT_NAME_MAX], gate_proj[MOERT_NAME_MAX + 32], up_proj[MOERT_NAME_MAX + 32],
        down_proj[MOERT_NAME_MAX + 32];
    const char *const w13[2] = {gate_proj, up_proj};
    moert_status_t status = add_tensor(d, family_name(d, f->router, name), 2, router, 0, &d->dense.router_weight);

    if (!status)
        status = add_tensor(d, family_name(d, f->router_bias, name), 1, router, 0, &d->dense.router_bias);
    if (!status)
        status = add_tensor(d, family_name(d, f->correction, name), 1, router, 1, &d->dense.correction_bias);
    if (status || !d->layer->shared.intermediate_size)
        return status;
    if (f->shared_gate)
        status = add_tensor(d, family_name(d, f->shared_gate, name), 2, gate, 0, &d->dense.shared_gate);
    moert_checkpoint_name(d->c, d->number, f->shared, name);
    snprintf(gate_proj, sizeof(gate_proj), "%sgate_proj.weight", name);
    snprintf(up_proj, sizeof(up_proj), "%sup_proj.weight", name);
    snprintf(down_proj, sizeof(down_proj), "%sdown_proj.weight", name);
    return status ? status : add_shared(d, w13, down_proj, 2);
}

static moert_status_t collect_layer_file(struct dense_build *d)
{
    static const char *const w13[2] = {"shared_w13_weight", NULL};
    const uint64_t h = d->layer->hidden_size, router[] = {d->layer->num_experts, h}, gate[] = {1, h};
    moert_status_t status = add_tensor(d, "router_weight", 2, router, 0, &d->dense.router_weight);

    if (!status)
        status = add_tensor(d, "router_bias", 1, router, 0, &d->dense.router_bias);
    if (!status)
        status = add_tensor(d, "correction_bias", 1, router, 1, &d->dense.correction_bias);
    if (!status)
        status = add_tensor(d, "shared_gate_weight", 2, gate, 0, &d->dense.shared_gate);
    if (status || !d->layer->shared.intermediate_size)
        return status;
    return add_shared(d, w13, "shared_w2_weight", 1);
}

static moert_status_t load_dense(const moert_checkpoint_t *c, const struct moert_layer_config *config, uint32_t number,
                                 moert_layer_t *layer, struct moert_error *err)
{
    struct dense_build d = {.c = c, .layer = config, .number = number, .err = err};
    moert_status_t status;

    d.dense.size = sizeof(d.dense);
    status = c->family ? collect_checkpoint(&d) : collect_layer_file(&d);
    if (!status && d.used)
        status = moert_layer_set_dense(layer, &d.dense, err);
    for (unsigned i = 0; i < d.used; i++)
        free(d.blocks[i]);
    return status;
}

/* ------------------------------------------------------------------ experts */

/* Global expert of local row `local`: a checkpoint holds all experts, the layer's map says which live here. */
static uint32_t global_expert(const struct moert_layer_config *layer, uint32_t local)
{
    for (uint32_t e = 0; e < layer->expert_map_length; e++)
        if (layer->expert_map[e] == (int32_t)local)
            return e;
    return local;
}

static moert_status_t load_experts(const moert_checkpoint_t *c, const struct moert_layer_config *file,
                                   const struct moert_layer_config *target, uint32_t number, moert_layer_t *layer,
                                   struct moert_error *err)
{
    struct moert_expert_build build;
    moert_status_t status = moert_expert_build_init(&build, c, file, number, err);

    for (uint32_t local = 0; local < target->num_local_experts && !status; local++) {
        uint32_t e = c->family ? global_expert(target, local) : local;
        struct moert_layer_weights weights;
        status = moert_expert_assemble(&build, e, &weights);
        if (status)
            break;
        weights.first = local;
        status = moert_layer_set_weights(layer, &weights, err);
    }
    free(build.block);
    return status;
}

moert_status_t moert_checkpoint_load(moert_checkpoint_t *c, uint32_t number, moert_layer_t *layer,
                                     struct moert_error *err)
{
    const struct moert_layer_config *target;
    struct moert_layer_config config;
    moert_status_t status;

    if (!c || !layer)
        return moert_fail_null(err, c ? "layer" : "checkpoint");
    status = moert_checkpoint_layer_config(c, number, &config, err);
    if (status)
        return status;
    target = moert_layer_get_config(layer);
    if (target->hidden_size != config.hidden_size || target->intermediate_size != config.intermediate_size ||
        target->num_experts != config.num_experts || target->weight_scheme != config.weight_scheme)
        status = moert_fail(err, MOERT_E_SHAPE, "experts",
                            "%s: layer %u is H %llu, I %llu, %u experts, %s; the layer to load is H %llu, I %llu, %u "
                            "experts, %s",
                            c->path, number, (unsigned long long)config.hidden_size,
                            (unsigned long long)config.intermediate_size, config.num_experts,
                            moert_scheme_name(config.weight_scheme), (unsigned long long)target->hidden_size,
                            (unsigned long long)target->intermediate_size, target->num_experts,
                            moert_scheme_name(target->weight_scheme));
    if (!status)
        status = load_experts(c, &config, target, number, layer, err);
    if (!status)
        status = load_dense(c, &config, number, layer, err);
    moert_layer_config_clear(&config);
    return status;
}
