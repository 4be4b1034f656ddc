/* core/loader/queue.c: queues, copies and graphs of the public API: arguments are checked here, the driver does the
 * rest. */
#include "config.h"

#include "core/base/error.h"
#include "core/loader/loader.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

/* Ids are never used again, so that a pool keyed by one cannot meet a later queue. */
static _Atomic uint64_t next_id = 1;

static struct moert_ctx_device *device_of(const struct moert_queue *queue)
{
    return queue->context->devices[queue->device];
}

static const struct moert_device_ops *ops_of(const struct moert_queue *queue)
{
    return device_of(queue)->driver->table->device;
}

moert_status_t moert_queue_create(moert_context_t *context, uint32_t device, uint64_t native, moert_queue_t **ret,
                                  struct moert_error *err)
{
    struct moert_ctx_device *d = NULL;
    moert_drv_queue *handle = NULL;
    struct moert_queue *queue;
    moert_status_t status;

    if (!context || !ret)
        return moert_fail_null(err, context ? "ret" : "context");
    status = moert_ctx_device_open(context, device, &d, err);
    if (!status)
        status = d->driver->table->device->queue_create(d->handle, native, &handle, err);
    if (!status && !handle)
        status = moert_fail(err, MOERT_E_INTERNAL, "device-call", "driver %s made a queue and returned nothing",
                            d->driver->name);
    if (status)
        return status;
    queue = malloc(sizeof(*queue));
    if (!queue) {
        d->driver->table->device->queue_destroy(handle);
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for a queue object");
    }
    *queue = (struct moert_queue){
        .context = context, .device = device, .handle = handle, .id = atomic_fetch_add(&next_id, 1)};
    *ret = queue;
    return MOERT_OK;
}

void moert_queue_destroy(moert_queue_t *queue)
{
    if (!queue)
        return;
    if (queue->context->owner_pid == getpid())
        ops_of(queue)->queue_destroy(queue->handle);
    free(queue);
}

uint64_t moert_queue_native(const moert_queue_t *queue)
{
    return queue ? ops_of(queue)->queue_native(queue->handle) : 0;
}

uint64_t moert_queue_last(const moert_queue_t *queue)
{
    return queue ? ops_of(queue)->queue_last(queue->handle) : 0;
}

/* UINT64_MAX stands for all work enqueued so far. */
static moert_status_t resolve(const moert_queue_t *queue, uint64_t *sequence, struct moert_error *err)
{
    uint64_t last;

    if (!queue)
        return moert_fail_null(err, "queue");
    last = moert_queue_last(queue);
    if (*sequence == UINT64_MAX)
        *sequence = last;
    if (*sequence > last)
        return moert_fail(err, MOERT_E_VALUE, "size", "sequence %llu is not enqueued yet; the last is %llu",
                          (unsigned long long)*sequence, (unsigned long long)last);
    return MOERT_OK;
}

moert_status_t moert_queue_query(moert_queue_t *queue, uint64_t sequence, uint32_t *ret_done, struct moert_error *err)
{
    moert_status_t status = resolve(queue, &sequence, err);

    if (!status && !ret_done)
        status = moert_fail_null(err, "ret_done");
    return status ? status : ops_of(queue)->queue_query(queue->handle, sequence, ret_done, err);
}

moert_status_t moert_queue_wait(moert_queue_t *queue, uint64_t sequence, uint64_t timeout_ns, uint32_t *ret_done,
                                struct moert_error *err)
{
    moert_status_t status = resolve(queue, &sequence, err);

    return status ? status : ops_of(queue)->queue_wait(queue->handle, sequence, timeout_ns, ret_done, err);
}

moert_status_t moert_queue_wait_queue(moert_queue_t *queue, moert_queue_t *other, uint64_t sequence,
                                      struct moert_error *err)
{
    moert_status_t status;

    if (!queue)
        return moert_fail_null(err, "queue");
    if (!other)
        return moert_fail_null(err, "other");
    status = resolve(other, &sequence, err);
    if (status)
        return status;
    if (device_of(queue)->driver == device_of(other)->driver)
        return ops_of(queue)->queue_wait_queue(queue->handle, other->handle, sequence, err);
    /* Two drivers know nothing of each other: the host waits in the place of the queue. */
    return ops_of(other)->queue_wait(other->handle, sequence, UINT64_MAX, NULL, err);
}

static moert_status_t no_events(const moert_queue_t *queue, struct moert_error *err)
{
    return moert_fail(err, MOERT_E_UNSUPPORTED, "unsupported", "driver %s has no native events",
                      device_of(queue)->driver->name);
}

moert_status_t moert_queue_wait_event(moert_queue_t *queue, uint64_t native_event, struct moert_error *err)
{
    if (!queue)
        return moert_fail_null(err, "queue");
    if (!MOERT_DRV_OP(ops_of(queue), queue_wait_event))
        return no_events(queue, err);
    return ops_of(queue)->queue_wait_event(queue->handle, native_event, err);
}

moert_status_t moert_queue_record_event(moert_queue_t *queue, uint64_t native_event, struct moert_error *err)
{
    if (!queue)
        return moert_fail_null(err, "queue");
    if (!MOERT_DRV_OP(ops_of(queue), queue_record_event))
        return no_events(queue, err);
    return ops_of(queue)->queue_record_event(queue->handle, native_event, err);
}

/* ---- copies ---- */

static moert_status_t wrong_device(const moert_queue_t *queue, const moert_buffer_t *buffer, struct moert_error *err)
{
    return moert_fail(err, MOERT_E_USAGE, "device-mismatch", "the buffer is on %s, the queue on %s",
                      buffer->context->devices[buffer->device]->desc.id, device_of(queue)->desc.id);
}

/* The range inside its buffer, wherever that is. */
static moert_status_t check_bytes(const moert_queue_t *queue, const moert_buffer_t *buffer, uint64_t offset,
                                  uint64_t bytes, struct moert_error *err)
{
    if (!queue)
        return moert_fail_null(err, "queue");
    if (!buffer)
        return moert_fail_null(err, "buffer");
    if (offset > buffer->bytes || bytes > buffer->bytes - offset)
        return moert_fail(err, MOERT_E_VALUE, "size", "%llu bytes at offset %llu pass the end of a buffer of %llu",
                          (unsigned long long)bytes, (unsigned long long)offset, (unsigned long long)buffer->bytes);
    return MOERT_OK;
}

static moert_status_t check_range(const moert_queue_t *queue, const moert_buffer_t *buffer, uint64_t offset,
                                  uint64_t bytes, struct moert_error *err)
{
    if (queue && buffer && (queue->context != buffer->context || queue->device != buffer->device))
        return wrong_device(queue, buffer, err);
    return check_bytes(queue, buffer, offset, bytes, err);
}

moert_status_t moert_copy_in(moert_queue_t *queue, moert_buffer_t *dst, uint64_t offset, const void *host,
                             uint64_t bytes, struct moert_error *err)
{
    moert_status_t status = check_range(queue, dst, offset, bytes, err);

    if (!status && bytes && !host)
        status = moert_fail_null(err, "host");
    return status ? status : ops_of(queue)->copy_in(queue->handle, dst->handle, offset, host, bytes, err);
}

moert_status_t moert_copy_out(moert_queue_t *queue, void *host, moert_buffer_t *src, uint64_t offset, uint64_t bytes,
                              struct moert_error *err)
{
    moert_status_t status = check_range(queue, src, offset, bytes, err);

    if (!status && bytes && !host)
        status = moert_fail_null(err, "host");
    return status ? status : ops_of(queue)->copy_out(queue->handle, host, src->handle, offset, bytes, err);
}

moert_status_t moert_copy(moert_queue_t *queue, moert_buffer_t *dst, uint64_t dst_offset, moert_buffer_t *src,
                          uint64_t src_offset, uint64_t bytes, struct moert_error *err)
{
    moert_status_t status = check_range(queue, dst, dst_offset, bytes, err);
    const struct moert_ctx_device *from;

    if (!status)
        status = check_bytes(queue, src, src_offset, bytes, err);
    if (status)
        return status;
    if (queue->context == src->context && queue->device == src->device)
        return ops_of(queue)->copy(queue->handle, dst->handle, dst_offset, src->handle, src_offset, bytes, err);
    from = src->context->devices[src->device];
    if (queue->context != src->context || from->driver != device_of(queue)->driver)
        return wrong_device(queue, src, err);
    if (!MOERT_DRV_OP(ops_of(queue), copy_peer))
        return moert_fail(err, MOERT_E_UNSUPPORTED, "unsupported", "driver %s does not copy between devices",
                          from->driver->name);
    return ops_of(queue)->copy_peer(queue->handle, dst->handle, dst_offset, from->handle, src->handle, src_offset,
                                    bytes, err);
}

moert_status_t moert_fill(moert_queue_t *queue, moert_buffer_t *dst, uint64_t offset, uint8_t value, uint64_t bytes,
                          struct moert_error *err)
{
    moert_status_t status = check_range(queue, dst, offset, bytes, err);

    return status ? status : ops_of(queue)->fill(queue->handle, dst->handle, offset, value, bytes, err);
}

/* ---- graphs ---- */

static moert_status_t unsupported(const moert_queue_t *queue, struct moert_error *err)
{
    return moert_fail(err, MOERT_E_UNSUPPORTED, "unsupported", "driver %s captures no graphs",
                      device_of(queue)->driver->name);
}

moert_status_t moert_capture_begin(moert_queue_t *queue, struct moert_error *err)
{
    if (!queue)
        return moert_fail_null(err, "queue");
    if (!MOERT_DRV_OP(ops_of(queue), capture_begin))
        return unsupported(queue, err);
    return ops_of(queue)->capture_begin(queue->handle, err);
}

moert_status_t moert_capture_end(moert_queue_t *queue, moert_graph_t **ret, struct moert_error *err)
{
    struct moert_graph *graph;
    moert_drv_graph *handle = NULL;
    moert_status_t status;

    if (!queue || !ret)
        return moert_fail_null(err, queue ? "ret" : "queue");
    if (!MOERT_DRV_OP(ops_of(queue), capture_end))
        return unsupported(queue, err);
    graph = malloc(sizeof(*graph));
    if (!graph)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for a graph object");
    status = ops_of(queue)->capture_end(queue->handle, &handle, err);
    if (status) {
        free(graph);
        return status;
    }
    *graph = (struct moert_graph){.context = queue->context, .device = queue->device, .handle = handle};
    *ret = graph;
    return MOERT_OK;
}

moert_status_t moert_graph_launch(moert_queue_t *queue, moert_graph_t *graph, struct moert_error *err)
{
    if (!queue)
        return moert_fail_null(err, "queue");
    if (!graph)
        return moert_fail_null(err, "graph");
    if (queue->context != graph->context || queue->device != graph->device)
        return moert_fail(err, MOERT_E_USAGE, "device-mismatch", "the graph is of %s, the queue of %s",
                          graph->context->devices[graph->device]->desc.id, device_of(queue)->desc.id);
    return ops_of(queue)->graph_launch(queue->handle, graph->handle, err);
}

void moert_graph_destroy(moert_graph_t *graph)
{
    if (!graph)
        return;
    if (graph->context->owner_pid == getpid())
        graph->context->devices[graph->device]->driver->table->device->graph_destroy(graph->handle);
    free(graph);
}

uint32_t moert_queue_capture_state(const moert_queue_t *queue)
{
    if (!queue || !MOERT_DRV_OP(ops_of(queue), capture_state))
        return MOERT_CAPTURE_NONE;
    return ops_of(queue)->capture_state(queue->handle);
}
