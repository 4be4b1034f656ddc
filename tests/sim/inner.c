/* tests/sim/inner.c: the way from simulated memory to the inner reference driver: buffers are opened for the time of
 * one piece of work and given to it as host memory. */
#include "config.h"

#include "tests/sim/sim.h"
#include "core/base/error.h"
#include "drivers/cpu/cpu.h"

moert_status_t sim_inner_tensor(struct sim_inner *inner, struct moert_drv_tensor *t, struct moert_error *err)
{
    const struct moert_device_ops *cpu = mcpu_driver.device;
    moert_drv_buffer *mine = t->buffer, *host = NULL;
    uint8_t *memory;
    moert_status_t status;

    if (!mine)
        return MOERT_OK;
    memory = sim_open(mine);
    status = cpu->buffer_import(inner->device, MOERT_MEMORY_HOST, (uint64_t)(uintptr_t)memory, mine->bytes, &host, err);
    if (status) {
        sim_close(mine);
        return status;
    }
    inner->opened[inner->count] = mine;
    inner->imported[inner->count++] = host;
    t->buffer = host;
    return MOERT_OK;
}

void sim_inner_end(struct sim_inner *inner)
{
    for (int i = 0; i < inner->count; i++) {
        mcpu_driver.device->buffer_free(inner->device, inner->imported[i]);
        sim_close(inner->opened[i]);
    }
    inner->count = 0;
}

moert_status_t sim_inner_step(moert_drv_queue *q, struct sim_work *w, struct moert_error *err)
{
    const struct moert_step_ops *cpu = mcpu_driver.steps;
    struct sim_inner inner = {.device = q->device->cpu};
    struct moert_drv_tensor *t = w->tensors;
    moert_status_t status = MOERT_OK;

    for (int i = 0; !status && i < SIM_STEP_TENSORS; i++)
        status = sim_inner_tensor(&inner, &t[i], err);
    if (!status)
        switch (w->step) {
        case STEP_QUANTIZE: status = cpu->quantize(q->cpu, &w->params, &t[0], &t[1], &t[2], err); break;
        case STEP_DEQUANTIZE: status = cpu->dequantize(q->cpu, &t[0], &t[1], &t[2], err); break;
        case STEP_DECODE: status = cpu->lutb_decode(q->cpu, &t[0], &t[1], &t[2], err); break;
        case STEP_ACTIVATION: status = cpu->activation(q->cpu, &w->config, &t[0], &t[1], err); break;
        default:
            status = cpu->combine(q->cpu, &w->config, &t[0], &t[1], t[2].buffer ? &t[2] : NULL,
                                  t[3].buffer ? &t[3] : NULL, &t[4], err);
            break;
        }
    sim_inner_end(&inner);
    return status;
}

/* ---- the step ops: each enqueues itself ---- */

static moert_status_t step(moert_drv_queue *q, struct sim_work *w, enum sim_step which,
                           const struct moert_drv_tensor *a, const struct moert_drv_tensor *b,
                           const struct moert_drv_tensor *c, struct moert_error *err)
{
    w->kind = SIM_STEP;
    w->step = which;
    w->tensors[0] = *a;
    w->tensors[1] = *b;
    if (c)
        w->tensors[2] = *c;
    return sim_enqueue(q, w, err);
}

static moert_status_t quantize(moert_drv_queue *q, const struct moert_mxfp8_params *params,
                               const struct moert_drv_tensor *x, const struct moert_drv_tensor *codes,
                               const struct moert_drv_tensor *scales, struct moert_error *err)
{
    struct sim_work w = {.params = *params};
    return step(q, &w, STEP_QUANTIZE, x, codes, scales, err);
}

static moert_status_t dequantize(moert_drv_queue *q, const struct moert_drv_tensor *codes,
                                 const struct moert_drv_tensor *scales, const struct moert_drv_tensor *out,
                                 struct moert_error *err)
{
    struct sim_work w = {0};
    return step(q, &w, STEP_DEQUANTIZE, codes, scales, out, err);
}

static moert_status_t decode(moert_drv_queue *q, const struct moert_drv_tensor *packed,
                             const struct moert_drv_tensor *codebook, const struct moert_drv_tensor *out,
                             struct moert_error *err)
{
    struct sim_work w = {0};
    return step(q, &w, STEP_DECODE, packed, codebook, out, err);
}

static moert_status_t activation(moert_drv_queue *q, const struct moert_layer_config *layer,
                                 const struct moert_drv_tensor *c1, const struct moert_drv_tensor *c2,
                                 struct moert_error *err)
{
    struct sim_work w = {.config = *layer};
    return step(q, &w, STEP_ACTIVATION, c1, c2, NULL, err);
}

static moert_status_t combine(moert_drv_queue *q, const struct moert_layer_config *layer,
                              const struct moert_drv_tensor *rows, const struct moert_drv_tensor *ids,
                              const struct moert_drv_tensor *map, const struct moert_drv_tensor *weights,
                              const struct moert_drv_tensor *out, struct moert_error *err)
{
    struct sim_work w = {.config = *layer};

    if (weights)
        w.tensors[3] = *weights;
    w.tensors[4] = *out;
    return step(q, &w, STEP_COMBINE, rows, ids, map, err);
}

const struct moert_step_ops sim_step_ops = {
    .size = sizeof(sim_step_ops),
    .quantize = quantize,
    .dequantize = dequantize,
    .lutb_decode = decode,
    .activation = activation,
    .combine = combine,
};
