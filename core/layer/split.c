/* core/layer/split.c: a call whose host tensors do not fit the device's largest buffer runs in parts.
 *
 * Host tensors are staged whole, one device buffer each. A device with a small largest buffer (OpenCL's, say) gets them
 * in parts of so many tokens that each fits; every step is row-local, so the bytes are those of one call. */
#include "config.h"

#include "core/layer/layer.h"

/* Bytes of one token's rows when the tensor has to be staged, else 0. */
static uint64_t staged_row(const struct moert_tensor *t)
{
    uint64_t bytes = moert_dtype_size(t->dtype);

    if (!t->data)
        return 0;
    for (uint32_t i = 1; i < t->rank; i++)
        bytes *= t->shape[i];
    return bytes;
}

uint64_t moert_call_part(const struct moert_call *call)
{
    const struct moert_layer_args *a = call->args;
    const struct moert_device_desc *d = &call->layer->device->desc;
    const struct moert_tensor *tensors[] = {&a->x,      &a->x_scale, &a->ids,     &a->weights,
                                            &a->logits, &a->output,  &a->out_ids, &a->out_weights};
    uint64_t widest = 1;

    /* what numbers its slots or tokens over the whole call stays whole: the device then says what it cannot hold */
    if (!d->max_buffer || d->flags & MOERT_DEVICE_F_HOST_MEMORY || a->flags & MOERT_RUN_F_UNREDUCED || a->hook ||
        a->dumps || a->token_count.data || a->token_count.buffer)
        return call->tokens;
    for (size_t i = 0; i < sizeof(tensors) / sizeof(*tensors); i++) {
        uint64_t row = staged_row(tensors[i]);
        widest = row > widest ? row : widest;
    }
    return d->max_buffer / widest && d->max_buffer / widest < call->tokens ? d->max_buffer / widest : call->tokens;
}

static void slice(struct moert_tensor *t, uint64_t first, uint64_t count)
{
    int64_t bytes = (int64_t)first * t->strides[0] * (int64_t)moert_dtype_size(t->dtype);

    if (!t->data && !t->buffer)
        return;
    t->shape[0] = count;
    if (t->data)
        t->data = (uint8_t *)t->data + bytes;
    else
        t->offset = (uint64_t)((int64_t)t->offset + bytes);
}

moert_status_t moert_call_split(const struct moert_call *call, uint64_t part, struct moert_error *err)
{
    moert_status_t status = MOERT_OK;

    for (uint64_t first = 0; first < call->tokens && !status; first += part) {
        struct moert_layer_args a = *call->args;
        struct moert_tensor *tensors[] = {&a.x,      &a.x_scale, &a.ids,     &a.weights,
                                          &a.logits, &a.output,  &a.out_ids, &a.out_weights};
        uint64_t count = call->tokens - first < part ? call->tokens - first : part;
        for (size_t i = 0; i < sizeof(tensors) / sizeof(*tensors); i++)
            slice(tensors[i], first, count);
        status = moert_layer_run(call->layer, call->queue, &a, err);
    }
    return status;
}
