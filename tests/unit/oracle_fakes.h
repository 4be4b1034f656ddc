/* tests/unit/oracle_fakes.h: drivers whose backends answer by a script, for the tests of the oracle. Nothing here can
 * run a layer: a selection never gets that far. */
#ifndef TESTS_UNIT_ORACLE_FAKES_H
#define TESTS_UNIT_ORACLE_FAKES_H

#include <moert/moert.h>

#include <string.h>

#define FAKE_GIB (UINT64_C(1) << 30)

/* What a backend of the tests says. Zero fields ask nothing. */
struct fake_script {
    const char *const *archs;         /* check arch */
    uint64_t tokens_max;              /* check tokens-max */
    uint32_t routers;                 /* check routing-method: bit set of router kinds */
    uint64_t hidden_multiple;         /* check hidden-multiple */
    const struct moert_check *checks; /* reported as they are, up to code NULL */
    uint64_t weights;                 /* layout.bytes */
    uint64_t workspace;               /* bytes per token */
    int layout_fails;
};

static inline void fake_report(const struct moert_check_sink *sink, const char *code, int pass, moert_check_op_t op,
                               const char *field, struct moert_value have, struct moert_value need, const char *fix)
{
    struct moert_check c = {.size = sizeof(c),
                            .verdict = pass ? MOERT_PASS : MOERT_FAIL,
                            .op = op,
                            .code = code,
                            .field = field,
                            .have = have,
                            .need = need,
                            .fix = fix};
    sink->report(sink->ctx, &c);
}

static inline struct moert_value fake_int(uint64_t v)
{
    return (struct moert_value){.kind = MOERT_VALUE_INT, .integer = (int64_t)v};
}

static inline struct moert_value fake_text(const char *s)
{
    return (struct moert_value){.kind = MOERT_VALUE_STRING, .string = s};
}

static inline void fake_supports(const struct moert_backend *b, const struct moert_device_desc *d,
                                 const struct moert_layer_config *l, const struct moert_check_sink *sink)
{
    const struct fake_script *s = b->data;
    struct moert_value archs = {.kind = MOERT_VALUE_LIST, .list = s->archs};
    int found = 0;

    if (s->archs) {
        for (const char *const *a = s->archs; *a; a++)
            found |= !strcmp(*a, d->arch);
        fake_report(sink, "arch", found, MOERT_OP_IN, "device.arch", fake_text(d->arch), archs, NULL);
    }
    if (s->tokens_max)
        fake_report(sink, "tokens-max", l->max_tokens <= s->tokens_max, MOERT_OP_LE, "max_tokens",
                    fake_int(l->max_tokens), fake_int(s->tokens_max), "max_tokens within the limit");
    if (s->routers)
        fake_report(sink, "routing-method", s->routers >> l->router.kind & 1, MOERT_OP_IN, "router.kind",
                    fake_text(moert_router_kind_name(l->router.kind)), fake_text("softmax"), NULL);
    if (s->hidden_multiple)
        fake_report(sink, "hidden-multiple", l->hidden_size % s->hidden_multiple == 0, MOERT_OP_MULTIPLE, "hidden_size",
                    fake_int(l->hidden_size), fake_int(s->hidden_multiple), NULL);
    for (const struct moert_check *c = s->checks; c && c->code; c++)
        sink->report(sink->ctx, c);
}

static inline moert_status_t fake_layout(const struct moert_backend *b, const struct moert_device_desc *d,
                                         const struct moert_layer_config *l, struct moert_layout *ret,
                                         struct moert_error *err)
{
    const struct fake_script *s = b->data;

    (void)d;
    (void)l;
    if (s->layout_fails) {
        if (err)
            strcpy(err->text, "layout of the tests fails");
        return MOERT_E_TOO_LARGE;
    }
    ret->bytes = s->weights;
    return MOERT_OK;
}

static inline moert_status_t fake_workspace(const struct moert_backend *b, const struct moert_device_desc *d,
                                            const struct moert_layer_config *l, uint64_t tokens,
                                            struct moert_workspace *ret, struct moert_error *err)
{
    (void)d;
    (void)l;
    (void)err;
    ret->bytes = ((const struct fake_script *)b->data)->workspace * tokens;
    return MOERT_OK;
}

/* ------------------------------------------------------------------ ops that a selection never calls */

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define FAKE_UNUSED(name, ...)                                                                                         \
    static inline moert_status_t fake_##name(__VA_ARGS__)                                                              \
    {                                                                                                                  \
        return MOERT_E_UNSUPPORTED;                                                                                    \
    }
FAKE_UNUSED(create, moert_drv_device *a, const struct moert_backend *b, const struct moert_layer_config *c,
            moert_drv_layer **d, struct moert_error *e)
FAKE_UNUSED(prepare, moert_drv_layer *a, const struct moert_expert_weights *b, struct moert_error *e)
FAKE_UNUSED(update, moert_drv_layer *a, moert_drv_queue *b, const struct moert_expert_weights *c, struct moert_error *e)
FAKE_UNUSED(run, moert_drv_layer *a, moert_drv_queue *b, const struct moert_run_args *c, struct moert_error *e)
FAKE_UNUSED(counters, moert_drv_layer *a, struct moert_counters *b, struct moert_error *e)
FAKE_UNUSED(info, moert_drv_device *a, struct moert_device_desc *b, struct moert_error *e)
FAKE_UNUSED(device_open, moert_drv *a, uint32_t b, const struct moert_allocator *c, moert_drv_device **d,
            struct moert_error *e)
FAKE_UNUSED(buffer_alloc, moert_drv_device *a, moert_memory_kind_t b, uint64_t c, uint64_t d, moert_drv_buffer **f,
            struct moert_error *e)
FAKE_UNUSED(buffer_import, moert_drv_device *a, moert_memory_kind_t b, uint64_t c, uint64_t d, moert_drv_buffer **f,
            struct moert_error *e)
FAKE_UNUSED(buffer_info, moert_drv_device *a, const moert_drv_buffer *b, struct moert_memory_info *c,
            struct moert_error *e)
FAKE_UNUSED(queue_create, moert_drv_device *a, uint64_t b, moert_drv_queue **c, struct moert_error *e)
FAKE_UNUSED(queue_query, moert_drv_queue *a, uint64_t b, uint32_t *c, struct moert_error *e)
FAKE_UNUSED(queue_wait, moert_drv_queue *a, uint64_t b, uint64_t c, uint32_t *d, struct moert_error *e)
FAKE_UNUSED(queue_wait_queue, moert_drv_queue *a, moert_drv_queue *b, uint64_t c, struct moert_error *e)
FAKE_UNUSED(copy_in, moert_drv_queue *a, moert_drv_buffer *b, uint64_t c, const void *d, uint64_t f,
            struct moert_error *e)
FAKE_UNUSED(copy_out, moert_drv_queue *a, void *b, moert_drv_buffer *c, uint64_t d, uint64_t f, struct moert_error *e)
FAKE_UNUSED(copy, moert_drv_queue *a, moert_drv_buffer *b, uint64_t c, moert_drv_buffer *d, uint64_t f, uint64_t g,
            struct moert_error *e)
FAKE_UNUSED(fill, moert_drv_queue *a, moert_drv_buffer *b, uint64_t c, uint8_t d, uint64_t f, struct moert_error *e)
#undef FAKE_UNUSED
#pragma GCC diagnostic pop

static inline void fake_release(moert_drv_layer *layer)
{
    (void)layer;
}
static inline void fake_device_close(moert_drv_device *device)
{
    (void)device;
}
static inline void fake_buffer_free(moert_drv_device *device, moert_drv_buffer *buffer)
{
    (void)device;
    (void)buffer;
}
static inline void fake_queue_destroy(moert_drv_queue *queue)
{
    (void)queue;
}
static inline uint64_t fake_queue_number(const moert_drv_queue *queue)
{
    (void)queue;
    return 0;
}

static const struct moert_backend_ops fake_backend_ops = {.size = sizeof(fake_backend_ops),
                                                          .supports = fake_supports,
                                                          .layout = fake_layout,
                                                          .workspace = fake_workspace,
                                                          .create = fake_create,
                                                          .prepare = fake_prepare,
                                                          .update = fake_update,
                                                          .run = fake_run,
                                                          .release = fake_release,
                                                          .counters = fake_counters};

static const struct moert_device_ops fake_device_ops = {.size = sizeof(fake_device_ops),
                                                        .open = fake_device_open,
                                                        .close = fake_device_close,
                                                        .info = fake_info,
                                                        .buffer_alloc = fake_buffer_alloc,
                                                        .buffer_import = fake_buffer_import,
                                                        .buffer_free = fake_buffer_free,
                                                        .buffer_info = fake_buffer_info,
                                                        .queue_create = fake_queue_create,
                                                        .queue_destroy = fake_queue_destroy,
                                                        .queue_native = fake_queue_number,
                                                        .queue_last = fake_queue_number,
                                                        .queue_query = fake_queue_query,
                                                        .queue_wait = fake_queue_wait,
                                                        .queue_wait_queue = fake_queue_wait_queue,
                                                        .copy_in = fake_copy_in,
                                                        .copy_out = fake_copy_out,
                                                        .copy = fake_copy,
                                                        .fill = fake_fill};

static const struct moert_scheme_pair fake_schemes[] = {{MOERT_SCHEME_MXFP8, MOERT_SCHEME_MXFP8}};

/* FAKE_BACKEND(variable, "x.name", priority, &script, .flags = ..., ...); the second form has a priority per phase. */
#define FAKE_BACKEND(variable, name_, priority_, script_, ...)                                                         \
    FAKE_BACKEND_PHASES(variable, name_, priority_, priority_, script_, __VA_ARGS__)
#define FAKE_BACKEND_PHASES(variable, name_, decode_, prefill_, script_, ...)                                          \
    static const struct moert_backend variable = {.size = sizeof(variable),                                            \
                                                  .name = name_,                                                       \
                                                  .block_size = 1,                                                     \
                                                  .priority_decode = decode_,                                          \
                                                  .priority_prefill = prefill_,                                        \
                                                  .schemes = fake_schemes,                                             \
                                                  .scheme_count = 1,                                                   \
                                                  .ops = &fake_backend_ops,                                            \
                                                  .data = script_,                                                     \
                                                  __VA_ARGS__}

/* ------------------------------------------------------------------ driver: one set of ops per number of devices */

static inline moert_status_t fake_probe(const struct moert_host *host, struct moert_probe *ret, struct moert_error *err)
{
    (void)host;
    (void)err;
    ret->state = MOERT_PROBE_AVAILABLE;
    return MOERT_OK;
}

static inline moert_status_t fake_probe_none(const struct moert_host *host, struct moert_probe *ret,
                                             struct moert_error *err)
{
    (void)host;
    (void)err;
    ret->state = MOERT_PROBE_NO_DEVICE;
    strcpy(ret->reason, "no card in the slot");
    return MOERT_OK;
}

static inline void fake_close(moert_drv *drv)
{
    (void)drv;
}

/* Defines the driver `word` with the given devices: arrays of struct moert_device_desc (id, arch, memory). */
#define FAKE_DRIVER(word, probe_, devices_, device_n, ...)                                                             \
    static moert_status_t word##_open(const struct moert_host *host, moert_drv **ret, struct moert_error *err)         \
    {                                                                                                                  \
        static int object;                                                                                             \
        (void)host;                                                                                                    \
        (void)err;                                                                                                     \
        *ret = (moert_drv *)(void *)&object;                                                                           \
        return MOERT_OK;                                                                                               \
    }                                                                                                                  \
    static moert_status_t word##_count(moert_drv *drv, uint32_t *ret, struct moert_error *err)                         \
    {                                                                                                                  \
        (void)drv;                                                                                                     \
        (void)err;                                                                                                     \
        *ret = device_n;                                                                                               \
        return MOERT_OK;                                                                                               \
    }                                                                                                                  \
    static moert_status_t word##_info(moert_drv *drv, uint32_t index, struct moert_device_desc *ret,                   \
                                      struct moert_error *err)                                                         \
    {                                                                                                                  \
        (void)drv;                                                                                                     \
        (void)err;                                                                                                     \
        *ret = (devices_)[index];                                                                                      \
        ret->size = sizeof(*ret);                                                                                      \
        return MOERT_OK;                                                                                               \
    }                                                                                                                  \
    static const struct moert_driver_ops word##_ops = {.size = sizeof(word##_ops),                                     \
                                                       .probe = probe_,                                                \
                                                       .open = word##_open,                                            \
                                                       .close = fake_close,                                            \
                                                       .device_count = word##_count,                                   \
                                                       .device_info = word##_info};                                    \
    static const struct moert_backend *const word##_backends[] = {__VA_ARGS__};                                        \
    static const struct moert_driver word##_driver = {.size = sizeof(word##_driver),                                   \
                                                      .name = #word,                                                   \
                                                      .version = "1.0",                                                \
                                                      .vendor = "tests",                                               \
                                                      .ops = &word##_ops,                                              \
                                                      .device = &fake_device_ops,                                      \
                                                      .backends = word##_backends,                                     \
                                                      .backend_count =                                                 \
                                                          sizeof(word##_backends) / sizeof(*word##_backends)}

#endif
