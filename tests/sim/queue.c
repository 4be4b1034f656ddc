/* tests/sim/queue.c: queues that are threads, sequence numbers, capture and replay, and the table of device ops. */
#include "config.h"

#include "tests/sim/sim.h"
#include "core/base/error.h"
#include "drivers/cpu/cpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

moert_status_t sim_device_lost(moert_drv_device *device, struct moert_error *err)
{
    int lost;

    pthread_mutex_lock(&device->lock);
    lost = device->lost;
    pthread_mutex_unlock(&device->lock);
    return lost ? moert_fail(err, MOERT_E_DEVICE, "device-call", "%s", device->lost_text) : MOERT_OK;
}

/* ---- work ---- */

static moert_status_t copy_work(struct sim_work *w)
{
    uint8_t *dst = w->dst ? sim_open(w->dst) + w->dst_offset : w->host;
    uint8_t *src = w->src ? sim_open(w->src) + w->src_offset : w->host;

    memmove(dst, src, w->bytes);
    if (w->dst)
        sim_close(w->dst);
    if (w->src)
        sim_close(w->src);
    return MOERT_OK;
}

static moert_status_t wait_work(struct sim_work *w)
{
    pthread_mutex_lock(&w->other->lock);
    while (w->other->done < w->sequence)
        pthread_cond_wait(&w->other->changed, &w->other->lock);
    pthread_mutex_unlock(&w->other->lock);
    return MOERT_OK;
}

static moert_status_t do_work(moert_drv_queue *q, struct sim_work *w, struct moert_error *err)
{
    moert_status_t status = sim_device_lost(q->device, err);

    if (status)
        return status;
    switch (w->kind) {
    case SIM_COPY_IN:
    case SIM_COPY_OUT:
    case SIM_COPY: return copy_work(w);
    case SIM_FILL:
        memset(sim_open(w->dst) + w->dst_offset, w->value, w->bytes);
        sim_close(w->dst);
        return MOERT_OK;
    case SIM_WAIT: return wait_work(w);
    case SIM_RUN: return sim_layer_run(q, w, err);
    case SIM_UPDATE: return sim_layer_store(w->layer, q, &w->weights, err);
    default: return sim_inner_step(q, w, err);
    }
}

/* The queue's thread: takes work in order, a little late, so that nobody can mistake it for synchronous. */
static void *work_loop(void *arg)
{
    moert_drv_queue *q = arg;
    struct moert_error err = MOERT_ERROR_INIT;

    pthread_mutex_lock(&q->lock);
    for (;;) {
        struct sim_work work;
        moert_status_t status;
        while (q->done == q->enqueued && !q->stop)
            pthread_cond_wait(&q->changed, &q->lock);
        if (q->done == q->enqueued)
            break;
        work = q->ring[q->done % SIM_RING];
        pthread_mutex_unlock(&q->lock);
        usleep(q->device->drv->fault == SIM_FAULT_SLOW ? 20000 : 30);
        status = do_work(q, &work, &err);
        pthread_mutex_lock(&q->lock);
        if (status && !q->failure) {
            q->failure = status;
            snprintf(q->failure_text, sizeof(q->failure_text), "%.250s", err.text);
        }
        q->done++;
        pthread_cond_broadcast(&q->changed);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

static moert_status_t record(moert_drv_graph *g, const struct sim_work *work, struct moert_error *err)
{
    if (g->count == g->room) {
        uint32_t room = g->room ? 2 * g->room : 16;
        struct sim_work *grown = realloc(g->work, room * sizeof(*grown));
        if (!grown)
            return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for a capture");
        g->work = grown;
        g->room = room;
    }
    g->work[g->count++] = *work;
    return MOERT_OK;
}

moert_status_t sim_enqueue(moert_drv_queue *q, const struct sim_work *work, struct moert_error *err)
{
    moert_status_t status = sim_device_lost(q->device, err);

    if (status)
        return status;
    if (q->capture)
        return record(q->capture, work, err);
    pthread_mutex_lock(&q->lock);
    if (q->failure) {
        status = moert_fail(err, q->failure, "device-call", "%s", q->failure_text);
    } else if (q->enqueued - q->done == SIM_RING) {
        status = moert_fail(err, MOERT_E_NOMEM, "device-memory", "the queue holds %u pieces of work already", SIM_RING);
    } else {
        q->ring[q->enqueued++ % SIM_RING] = *work;
        pthread_cond_broadcast(&q->changed);
    }
    pthread_mutex_unlock(&q->lock);
    return status;
}

/* ---- queues ---- */

static moert_status_t queue_create(moert_drv_device *device, uint64_t native, moert_drv_queue **ret,
                                   struct moert_error *err)
{
    moert_drv_queue *q = calloc(1, sizeof(*q));
    moert_status_t status = sim_device_lost(device, err);

    if (!q || status) {
        free(q);
        return status ? status : moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for a queue");
    }
    q->device = device;
    q->native = native;
    q->ring = calloc(SIM_RING, sizeof(*q->ring));
    status = mcpu_driver.device->queue_create(device->cpu, 0, &q->cpu, err);
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->changed, NULL);
    if (!status && (!q->ring || pthread_create(&q->thread, NULL, work_loop, q)))
        status = moert_fail(err, MOERT_E_NOMEM, "host-memory", "no thread for a queue");
    if (status) {
        if (q->cpu)
            mcpu_driver.device->queue_destroy(q->cpu);
        free(q->ring);
        free(q);
        return status;
    }
    *ret = q;
    return MOERT_OK;
}

static void queue_destroy(moert_drv_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->stop = 1;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->thread, NULL);
    mcpu_driver.device->queue_destroy(q->cpu);
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->changed);
    free(q->ring);
    free(q);
}

static uint64_t queue_native(const moert_drv_queue *q)
{
    return q->native;
}

static uint64_t queue_last(const moert_drv_queue *q)
{
    moert_drv_queue *mine = (moert_drv_queue *)(uintptr_t)q;
    uint64_t last;

    pthread_mutex_lock(&mine->lock);
    last = q->enqueued;
    pthread_mutex_unlock(&mine->lock);
    return last;
}

static moert_status_t failure(moert_drv_queue *q, struct moert_error *err)
{
    return q->failure ? moert_fail(err, q->failure, "device-call", "%s", q->failure_text) : MOERT_OK;
}

static moert_status_t queue_query(moert_drv_queue *q, uint64_t sequence, uint32_t *ret_done, struct moert_error *err)
{
    moert_status_t status;

    pthread_mutex_lock(&q->lock);
    status = failure(q, err);
    if (!status)
        *ret_done = q->done >= sequence;
    pthread_mutex_unlock(&q->lock);
    return status;
}

static moert_status_t queue_wait(moert_drv_queue *q, uint64_t sequence, uint64_t timeout_ns, uint32_t *ret_done,
                                 struct moert_error *err)
{
    struct timespec until;
    moert_status_t status;
    int late = 0;

    if (q->capture)
        return moert_fail(err, MOERT_E_USAGE, "state", "a wait inside a capture");
    clock_gettime(CLOCK_REALTIME, &until);
    if (timeout_ns != UINT64_MAX) {
        uint64_t ns = (uint64_t)until.tv_nsec + timeout_ns % 1000000000u;
        until.tv_sec += (time_t)(timeout_ns / 1000000000u + ns / 1000000000u);
        until.tv_nsec = (long)(ns % 1000000000u);
    }
    pthread_mutex_lock(&q->lock);
    while (q->done < sequence && !late) {
        if (timeout_ns == UINT64_MAX)
            pthread_cond_wait(&q->changed, &q->lock);
        else
            late = pthread_cond_timedwait(&q->changed, &q->lock, &until) == ETIMEDOUT;
    }
    status = failure(q, err);
    if (!status && ret_done)
        *ret_done = q->done >= sequence;
    pthread_mutex_unlock(&q->lock);
    return status;
}

static moert_status_t queue_wait_queue(moert_drv_queue *q, moert_drv_queue *other, uint64_t sequence,
                                       struct moert_error *err)
{
    struct sim_work w = {.kind = SIM_WAIT, .other = other, .sequence = sequence};
    return sim_enqueue(q, &w, err);
}

/* ---- copies ---- */

static int inside(const moert_drv_buffer *b, uint64_t offset, uint64_t bytes)
{
    return offset <= b->bytes && bytes <= b->bytes - offset;
}

static moert_status_t outside(const moert_drv_buffer *b, uint64_t offset, uint64_t bytes, struct moert_error *err)
{
    return moert_fail(err, MOERT_E_VALUE, "size", "bytes %llu..%llu are outside a buffer of %llu",
                      (unsigned long long)offset, (unsigned long long)(offset + bytes), (unsigned long long)b->bytes);
}

static moert_status_t copy_in(moert_drv_queue *q, moert_drv_buffer *dst, uint64_t offset, const void *host,
                              uint64_t bytes, struct moert_error *err)
{
    struct sim_work w = {.kind = SIM_COPY_IN, .dst = dst, .dst_offset = offset, .bytes = bytes};

    w.host = (void *)(uintptr_t)host;
    return inside(dst, offset, bytes) ? sim_enqueue(q, &w, err) : outside(dst, offset, bytes, err);
}

static moert_status_t copy_out(moert_drv_queue *q, void *host, moert_drv_buffer *src, uint64_t offset, uint64_t bytes,
                               struct moert_error *err)
{
    struct sim_work w = {.kind = SIM_COPY_OUT, .src = src, .src_offset = offset, .bytes = bytes, .host = host};

    return inside(src, offset, bytes) ? sim_enqueue(q, &w, err) : outside(src, offset, bytes, err);
}

static moert_status_t copy(moert_drv_queue *q, moert_drv_buffer *dst, uint64_t dst_offset, moert_drv_buffer *src,
                           uint64_t src_offset, uint64_t bytes, struct moert_error *err)
{
    struct sim_work w = {
        .kind = SIM_COPY, .dst = dst, .dst_offset = dst_offset, .src = src, .src_offset = src_offset, .bytes = bytes};

    if (!inside(dst, dst_offset, bytes))
        return outside(dst, dst_offset, bytes, err);
    return inside(src, src_offset, bytes) ? sim_enqueue(q, &w, err) : outside(src, src_offset, bytes, err);
}

static moert_status_t copy_peer(moert_drv_queue *q, moert_drv_buffer *dst, uint64_t dst_offset,
                                moert_drv_device *src_device, moert_drv_buffer *src, uint64_t src_offset,
                                uint64_t bytes, struct moert_error *err)
{
    moert_status_t status = sim_device_lost(src_device, err);
    return status ? status : copy(q, dst, dst_offset, src, src_offset, bytes, err);
}

static moert_status_t fill(moert_drv_queue *q, moert_drv_buffer *dst, uint64_t offset, uint8_t value, uint64_t bytes,
                           struct moert_error *err)
{
    struct sim_work w = {.kind = SIM_FILL, .dst = dst, .dst_offset = offset, .bytes = bytes, .value = value};
    return inside(dst, offset, bytes) ? sim_enqueue(q, &w, err) : outside(dst, offset, bytes, err);
}

/* ---- capture ---- */

static uint32_t capture_state(const moert_drv_queue *q)
{
    return q->capture ? MOERT_CAPTURE_ACTIVE : MOERT_CAPTURE_NONE;
}

static moert_status_t capture_begin(moert_drv_queue *q, struct moert_error *err)
{
    if (q->capture)
        return moert_fail(err, MOERT_E_USAGE, "state", "a capture is running already");
    q->capture = calloc(1, sizeof(*q->capture));
    return q->capture ? MOERT_OK : moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for a capture");
}

static void graph_destroy(moert_drv_graph *g)
{
    if (g)
        free(g->work);
    free(g);
}

static moert_status_t capture_end(moert_drv_queue *q, moert_drv_graph **ret, struct moert_error *err)
{
    if (!q->capture)
        return moert_fail(err, MOERT_E_USAGE, "state", "no capture is running");
    *ret = q->capture;
    q->capture = NULL;
    return MOERT_OK;
}

static moert_status_t graph_launch(moert_drv_queue *q, moert_drv_graph *g, struct moert_error *err)
{
    moert_status_t status = MOERT_OK;

    for (uint32_t i = 0; !status && i < g->count; i++)
        status = sim_enqueue(q, &g->work[i], err);
    return status;
}

/* ---- devices ---- */

static moert_status_t device_open(moert_drv *drv, uint32_t index, const struct moert_allocator *allocator,
                                  moert_drv_device **ret, struct moert_error *err)
{
    moert_drv_device *d = calloc(1, sizeof(*d));
    moert_status_t status;

    if (!d)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for a device");
    d->drv = drv;
    d->index = index;
    d->allocator = allocator;
    pthread_mutex_init(&d->lock, NULL);
    status = mcpu_driver.device->open(drv->cpu, 0, NULL, &d->cpu, err);
    if (status) {
        free(d);
        return status;
    }
    *ret = d;
    return MOERT_OK;
}

static void device_close(moert_drv_device *d)
{
    mcpu_driver.device->close(d->cpu);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

moert_status_t sim_describe(uint32_t index, struct moert_device_desc *ret);

static moert_status_t device_info(moert_drv_device *d, struct moert_device_desc *ret, struct moert_error *err)
{
    (void)err;
    sim_describe(d->index, ret);
    pthread_mutex_lock(&d->lock);
    ret->memory_free = SIM_MEMORY - d->used;
    if (d->lost)
        ret->flags |= MOERT_DEVICE_F_LOST;
    pthread_mutex_unlock(&d->lock);
    return MOERT_OK;
}

const struct moert_device_ops sim_device_ops = {
    .size = sizeof(sim_device_ops),
    .open = device_open,
    .close = device_close,
    .info = device_info,
    .buffer_alloc = sim_buffer_alloc,
    .buffer_import = sim_buffer_import,
    .buffer_free = sim_buffer_free,
    .buffer_info = sim_buffer_info,
    .pointer_classify = sim_pointer_classify,
    .queue_create = queue_create,
    .queue_destroy = queue_destroy,
    .queue_native = queue_native,
    .queue_last = queue_last,
    .queue_query = queue_query,
    .queue_wait = queue_wait,
    .queue_wait_queue = queue_wait_queue,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .copy = copy,
    .fill = fill,
    .copy_peer = copy_peer,
    .capture_state = capture_state,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .graph_launch = graph_launch,
    .graph_destroy = graph_destroy,
};
