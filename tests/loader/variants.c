/* tests/loader/variants.c: one module that is bad in many ways. It looks at the name of the file that it was loaded
 * from and alters a copy of the null driver's table accordingly, so that a test makes a bad module by copying this
 * file: moert_no_device_copy.so lacks the device op copy, moert_flag_bit.so sets an unknown flag, moert_good*.so are
 * sound. Copies, not links: the dynamic linker takes two links to one file for the same module. */
#include "config.h"

/* The whole null driver, under another entry point. */
#define moert_driver_v1 null_driver_v1
#include "drivers/null/null.c"
#undef moert_driver_v1

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

/* Room behind the structs for the fields of a later minor. */
#define LATER_BYTES 64

static struct {
    struct moert_driver driver;
    unsigned char later[LATER_BYTES];
} top;
static struct {
    struct moert_device_ops ops;
    unsigned char later[LATER_BYTES];
} device_table;
static struct {
    struct moert_backend backend;
    unsigned char later[LATER_BYTES];
} first;
static struct moert_driver_ops driver_table;
static struct moert_backend_ops backend_table;
static struct moert_backend second;
static const struct moert_backend *backend_list[2];
static char variant[32], backend_name[80], second_name[80];

/* ---- altered ops ---- */

static moert_status_t named_info(moert_drv *drv, uint32_t index, struct moert_device_desc *ret, struct moert_error *err)
{
    (void)drv;
    (void)index;
    (void)err;
    mnull_describe(ret);
    snprintf(ret->id, sizeof(ret->id), "%s", strncmp(variant, "same_device", 11) ? variant : "twin");
    snprintf(ret->driver, sizeof(ret->driver), "%s", variant);
    if (!strcmp(variant, "small_device"))
        ret->max_buffer = 1 << 20;
    return MOERT_OK;
}

static moert_status_t nameless_info(moert_drv *drv, uint32_t index, struct moert_device_desc *ret,
                                    struct moert_error *err)
{
    moert_status_t status = named_info(drv, index, ret, err);

    ret->id[0] = 0;
    return status;
}

static moert_status_t count_none(moert_drv *drv, uint32_t *ret, struct moert_error *err)
{
    (void)drv;
    (void)err;
    *ret = 0;
    return MOERT_OK;
}

static moert_status_t probe_none(const struct moert_host *host, struct moert_probe *ret, struct moert_error *err)
{
    (void)host;
    (void)err;
    ret->state = MOERT_PROBE_NO_DEVICE;
    strcpy(ret->reason, "no /dev/variant here");
    return MOERT_OK;
}

static moert_status_t probe_old(const struct moert_host *host, struct moert_probe *ret, struct moert_error *err)
{
    (void)host;
    (void)err;
    ret->state = MOERT_PROBE_INCOMPATIBLE;
    strcpy(ret->reason, "vendor runtime 1.0 is older than 2.0");
    return MOERT_OK;
}

static moert_status_t probe_error(const struct moert_host *host, struct moert_probe *ret, struct moert_error *err)
{
    (void)host;
    (void)ret;
    return moert_fail(err, MOERT_E_DEVICE, "device-call", "vendorInit failed: 999");
}

static moert_status_t open_error(const struct moert_host *host, moert_drv **ret, struct moert_error *err)
{
    (void)host;
    (void)ret;
    return moert_fail(err, MOERT_E_DEVICE, "device-call", "vendorOpen failed: 3");
}

static moert_status_t device_open_error(moert_drv *drv, uint32_t index, const struct moert_allocator *allocator,
                                        moert_drv_device **ret, struct moert_error *err)
{
    (void)drv;
    (void)index;
    (void)allocator;
    (void)ret;
    return moert_fail(err, MOERT_E_DEVICE, "device-call", "vendorDeviceOpen failed: 2");
}

static moert_status_t silent_begin(moert_drv_queue *queue, struct moert_error *err)
{
    (void)queue;
    (void)err;
    return MOERT_OK;
}

static moert_status_t some_end(moert_drv_queue *queue, moert_drv_graph **ret, struct moert_error *err)
{
    (void)err;
    *ret = (moert_drv_graph *)queue;
    return MOERT_OK;
}

static moert_status_t some_launch(moert_drv_queue *queue, moert_drv_graph *graph, struct moert_error *err)
{
    (void)err;
    queue->last += graph != NULL;
    return MOERT_OK;
}

static void no_destroy(moert_drv_graph *graph)
{
    (void)graph;
}

static moert_status_t classify_odd(moert_drv_device *device, uint64_t native, struct moert_memory_info *ret,
                                   struct moert_error *err)
{
    (void)device;
    (void)err;
    ret->known = native & 1;
    ret->kind = MOERT_MEMORY_DEVICE;
    ret->device_index = native == 3 ? 77 : 0;
    ret->native = native;
    return MOERT_OK;
}

/* A pointer that must never be called. */
static moert_status_t trap_begin(moert_drv_queue *queue, struct moert_error *err)
{
    (void)queue;
    (void)err;
    abort();
}

/* ---- variants ---- */

static void missing_op(void)
{
#define TABLE(table, type, prefix, op)                                                                                 \
    {                                                                                                                  \
        prefix #op, &table, offsetof(struct type, op)                                                                  \
    }
    static const struct {
        const char *name;
        void *table;
        size_t offset;
    } ops[] = {
#define D(op) TABLE(driver_table, moert_driver_ops, "no_driver_", op)
        D(probe),       D(open),        D(close),        D(device_count),     D(device_info),
#undef D
#define D(op) TABLE(device_table.ops, moert_device_ops, "no_device_", op)
        D(open),        D(close),       D(info),         D(buffer_alloc),     D(buffer_import),
        D(buffer_free), D(buffer_info), D(queue_create), D(queue_destroy),    D(queue_native),
        D(queue_last),  D(queue_query), D(queue_wait),   D(queue_wait_queue), D(copy_in),
        D(copy_out),    D(copy),        D(fill),
#undef D
#define D(op) TABLE(backend_table, moert_backend_ops, "no_backend_", op)
        D(supports),    D(layout),      D(workspace),    D(create),           D(prepare),
        D(update),      D(run),         D(release),      D(counters)
#undef D
    };
#undef TABLE
    for (size_t i = 0; i < sizeof(ops) / sizeof(*ops); i++)
        if (!strcmp(variant, ops[i].name))
            memset((char *)ops[i].table + ops[i].offset, 0, sizeof(void (*)(void)));
}

static int is(const char *name)
{
    return !strcmp(variant, name);
}

static void alter_driver(void)
{
    struct moert_driver *d = &top.driver;

    if (is("wrong_name"))
        d->name = "other";
    if (is("bad_name"))
        d->name = "Bad-Name";
    if (is("no_version"))
        d->version = NULL;
    if (is("flag_bit"))
        d->flags = 4;
    if (is("sanitizer"))
        d->sanitizer = MOERT_SANITIZER_ID == MOERT_SANITIZER_ADDRESS ? MOERT_SANITIZER_THREAD : MOERT_SANITIZER_ADDRESS;
    if (is("sanitizer_9"))
        d->sanitizer = 9;
    if (is("small"))
        d->size = offsetof(struct moert_driver, backend_count);
    if (is("no_ops"))
        d->ops = NULL;
    if (is("no_device_table"))
        d->device = NULL;
    if (is("no_backends"))
        d->backends = NULL;
    if (is("probe_none"))
        driver_table.probe = probe_none;
    if (is("probe_old"))
        driver_table.probe = probe_old;
    if (is("probe_error"))
        driver_table.probe = probe_error;
    if (is("open_error"))
        driver_table.open = open_error;
    if (is("count_none"))
        driver_table.device_count = count_none;
    if (is("nameless_device"))
        driver_table.device_info = nameless_info;
    if (is("device_open_error"))
        device_table.ops.open = device_open_error;
    if (is("half_graph"))
        device_table.ops.capture_begin = silent_begin;
    if (is("classify"))
        device_table.ops.pointer_classify = classify_odd;
    if (is("graph")) {
        device_table.ops.capture_begin = silent_begin;
        device_table.ops.capture_end = some_end;
        device_table.ops.graph_launch = some_launch;
        device_table.ops.graph_destroy = no_destroy;
    }
}

static void alter_backend(void)
{
    static const char *const shared_alias[] = {"shared-word", NULL}, *const name_alias[] = {"good.zero", NULL};
    static const struct moert_scheme_pair odd[] = {{MOERT_SCHEME_MXFP8, MOERT_SCHEME_LUT_B}};
    struct moert_backend *b = &first.backend;

    if (is("backend_prefix"))
        b->name = "elsewhere.zero";
    if (is("backend_word"))
        strcat(backend_name, "-Upper");
    if (is("backend_nameless"))
        b->name = NULL;
    if (is("backend_small"))
        b->size = offsetof(struct moert_backend, ops);
    if (is("backend_class"))
        b->numeric_class = MOERT_CLASS_COUNT;
    if (is("backend_flags"))
        b->flags |= 1u << 30;
    if (is("backend_reason"))
        b->auto_reason = NULL;
    if (is("backend_priority"))
        b->priority_decode = 101;
    if (is("backend_block"))
        b->block_size = 0;
    if (is("backend_schemes"))
        b->scheme_count = 0;
    if (is("backend_scheme_pair")) {
        b->schemes = odd;
        b->scheme_count = 1;
    }
    if (is("backend_null"))
        backend_list[1] = NULL;
    if (is("backend_twice"))
        second.name = backend_name;
    if (is("backend_ops"))
        b->ops = NULL;
    if (!strncmp(variant, "alias_", 6))
        b->aliases = shared_alias;
    if (is("takes_good"))
        b->aliases = name_alias;
}

/* Shorter structs with junk behind their ends, and longer ones with fields that this host does not know. */
static void alter_size(void)
{
    if (is("older")) {
        top.driver.size = offsetof(struct moert_driver, features);
        first.backend.size = offsetof(struct moert_backend, data);
        device_table.ops.size = offsetof(struct moert_device_ops, copy_peer);
        device_table.ops.capture_begin = trap_begin;
        top.driver.features = ~0ull;
    }
    if (is("newer")) {
        top.driver.minor = MOERT_DRIVER_ABI_MINOR + 7;
        top.driver.size = sizeof(top);
        first.backend.size = sizeof(first);
        device_table.ops.size = sizeof(device_table);
        memset(top.later, 0xa5, sizeof(top.later));
        memset(first.later, 0xa5, sizeof(first.later));
        memset(device_table.later, 0xa5, sizeof(device_table.later));
    }
}

/* "/x/moert_good.so" -> variant "good". */
static void read_variant(void)
{
    Dl_info info;
    const char *base;

    if (!dladdr((void *)(uintptr_t)&top, &info) || !info.dli_fname)
        return;
    base = strrchr(info.dli_fname, '/');
    base = (base ? base + 1 : info.dli_fname) + strlen("moert_");
    snprintf(variant, sizeof(variant), "%.*s", (int)strcspn(base, "."), base);
}

/* Once: the table must not change under a second context. */
static void build(void)
{
    read_variant();
    top.driver = *null_driver_v1(MOERT_DRIVER_ABI_MINOR);
    driver_table = *top.driver.ops;
    device_table.ops = *top.driver.device;
    first.backend = mnull_zero;
    backend_table = *mnull_zero.ops;
    snprintf(backend_name, sizeof(backend_name), "%s.zero", variant);
    snprintf(second_name, sizeof(second_name), "%s.second", variant);
    driver_table.device_info = named_info;
    first.backend.name = backend_name;
    first.backend.ops = &backend_table;
    second = first.backend;
    second.name = second_name;
    backend_list[0] = &first.backend;
    backend_list[1] = &second;
    top.driver.name = variant;
    top.driver.ops = &driver_table;
    top.driver.device = &device_table.ops;
    top.driver.backends = backend_list;
    top.driver.backend_count = 2;
    alter_driver();
    alter_backend();
    alter_size();
    missing_op();
}

__attribute__((visibility("default"))) const struct moert_driver *moert_driver_v1(uint32_t host_minor);
const struct moert_driver *moert_driver_v1(uint32_t host_minor)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)host_minor;
    pthread_once(&once, build);
    return is("refuses_host") ? NULL : &top.driver;
}
