/* tests/loader/test_context.c: the public calls of a context: wrong arguments, registered drivers, memory, queues,
 * graphs, and a forked child (include/moert/context.h). */
#include "config.h"

#include "core/loader/context.h"
#include "tests/loader/util.h"

#include <dlfcn.h>
#include <sys/wait.h>

TestSuite(context, .init = make_dir, .fini = remove_dir, .timeout = 60);

static struct moert_error err = MOERT_ERROR_INIT;

#define EXPECT_ERROR(call, wanted_status, wanted_code, part)                                                           \
    do {                                                                                                               \
        err.text[0] = err.code[0] = 0;                                                                                 \
        cr_expect_eq((call), (wanted_status), "%s: %s", #call, err.text);                                              \
        cr_expect_str_eq(err.code, (wanted_code));                                                                     \
        cr_expect_not_null(strstr(err.text, (part)), "%s: %s", #call, err.text);                                       \
    } while (0)

static moert_context_t *with(const char *variant)
{
    install("", "variants.so", variant);
    return make_context(NULL, NULL);
}

/* The table of a variant, as a program that links its driver would have it. */
static const struct moert_driver *table_of(const char *variant)
{
    char file[64];
    void *handle;
    moert_driver_entry_t entry;

    snprintf(file, sizeof(file), "moert_%s.so", variant);
    if (access(path_of(file), F_OK)) /* never overwrite a module that is mapped */
        install("", "variants.so", variant);
    handle = dlopen(path_of(file), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    cr_assert_not_null(handle);
    *(void **)&entry = dlsym(handle, MOERT_DRIVER_SYMBOL);
    cr_assert_not_null(entry);
    return entry(0);
}

Test(context, options_are_checked)
{
    struct {
        struct moert_context_options options;
        uint64_t later;
    } o = {.options = {.size = sizeof(o), .driver_path = dir}};
    struct moert_allocator allocator = {.size = sizeof(allocator)};
    moert_context_t *context = NULL;

    EXPECT_ERROR(moert_context_create(NULL, NULL, &err), MOERT_E_USAGE, "null", "ret is NULL");
    o.later = 1;
    EXPECT_ERROR(moert_context_create(&o.options, &context, &err), MOERT_E_USAGE, "struct-size", "past the");
    o.later = 0;
    cr_expect_eq(moert_context_create(&o.options, &context, &err), MOERT_OK,
                 "an unused tail of a later header is fine");
    moert_context_destroy(context);
    context = NULL;
    o.options.size = 4;
    EXPECT_ERROR(moert_context_create(&o.options, &context, &err), MOERT_E_USAGE, "struct-size", "has size 4");
    o.options.size = sizeof(o.options);
    o.options.flags = 1u << 7;
    EXPECT_ERROR(moert_context_create(&o.options, &context, &err), MOERT_E_USAGE, "flag", "bit 7");
    o.options.flags = 0;
    o.options.allocator = &allocator;
    EXPECT_ERROR(moert_context_create(&o.options, &context, &err), MOERT_E_USAGE, "null", "alloc");
    cr_expect_null(context);
    cr_expect_eq(moert_context_create(&o.options, &context, NULL), MOERT_E_USAGE, "err may be NULL");
    moert_context_destroy(NULL);
}

Test(context, nothing_is_read_past_the_tables)
{
    struct moert_driver_info driver = {.size = sizeof(driver)};
    struct moert_backend_info backend = {.size = sizeof(backend)};
    struct moert_device_desc device = {.size = sizeof(device)};
    moert_context_t *context = with("good");
    uint32_t index = 99;

    EXPECT_ERROR(moert_driver_get(context, 1, &driver, &err), MOERT_E_VALUE, "size", "driver 1 of 1");
    EXPECT_ERROR(moert_backend_get(context, 2, &backend, &err), MOERT_E_VALUE, "size", "backend 2 of 2");
    EXPECT_ERROR(moert_device_get(context, 1, &device, &err), MOERT_E_VALUE, "size", "device 1 of 1");
    driver.size = backend.size = device.size = 8;
    EXPECT_ERROR(moert_driver_get(context, 0, &driver, &err), MOERT_E_USAGE, "struct-size", "moert_driver_info");
    EXPECT_ERROR(moert_backend_get(context, 0, &backend, &err), MOERT_E_USAGE, "struct-size", "moert_backend_info");
    EXPECT_ERROR(moert_device_get(context, 0, &device, &err), MOERT_E_USAGE, "struct-size", "moert_device_desc");
    EXPECT_ERROR(moert_driver_get(NULL, 0, &driver, &err), MOERT_E_USAGE, "null", "context");
    EXPECT_ERROR(moert_driver_get(context, 0, NULL, &err), MOERT_E_USAGE, "null", "ret");
    EXPECT_ERROR(moert_backend_find(context, NULL, &index, &err), MOERT_E_USAGE, "null", "name");
    EXPECT_ERROR(moert_device_find(context, NULL, &index, &err), MOERT_E_USAGE, "null", "id");
    cr_expect_eq(index, 99);
    cr_expect_eq(moert_driver_count(NULL), 0);
    cr_expect_eq(moert_device_count(NULL), 0);
    cr_expect_eq(moert_backend_count(NULL), 0);
    moert_context_destroy(context);
}

Test(context, names_are_found_folded_and_the_nearest_is_told)
{
    moert_context_t *context = with("alias_a");
    uint32_t index = 99;

    cr_expect_eq(moert_backend_find(context, "ALIAS-A.Second", &index, &err), MOERT_OK);
    cr_expect_eq(index, 1);
    cr_expect_eq(moert_backend_find(context, "Shared_Word", &index, &err), MOERT_OK);
    cr_expect_eq(index, 0);
    EXPECT_ERROR(moert_backend_find(context, "shard-word", &index, &err), MOERT_E_NO_BACKEND, "backend-unknown",
                 "unknown backend \"shard-word\"; did you mean \"shared-word\"?");
    EXPECT_ERROR(moert_backend_find(context, "zzzzzzzzzzzzzzzzzzzzzzzz", &index, &err), MOERT_E_NO_BACKEND,
                 "backend-unknown", "2 are known");
    cr_expect_eq(moert_device_find(context, "alias_a", &index, &err), MOERT_OK);
    EXPECT_ERROR(moert_device_find(context, "cuda:0", &index, &err), MOERT_E_VALUE, "device-unknown",
                 "unknown device \"cuda:0\"; known: alias_a");
    moert_context_destroy(context);
}

Test(context, device_description)
{
    struct moert_device_desc desc = {.size = sizeof(desc)};
    moert_context_t *context = with("good");
    struct moert_ctx_device *device = NULL;

    for (int opened = 0; opened < 2; opened++) {
        cr_assert_eq(moert_device_get(context, 0, &desc, &err), MOERT_OK);
        cr_expect_eq(desc.size, sizeof(desc));
        cr_expect_str_eq(desc.id, "good");
        cr_expect_str_eq(desc.driver, "good");
        cr_expect_str_eq(desc.arch, "null");
        cr_expect(desc.flags & MOERT_DEVICE_F_PRESENT);
        cr_expect_eq(context->devices[0]->handle != NULL, opened, "devices open at first use");
        cr_assert_eq(moert_ctx_device_open(context, 0, &device, &err), MOERT_OK);
    }
    cr_expect_eq(device, context->devices[0]);
    EXPECT_ERROR(moert_ctx_device_open(context, 7, &device, &err), MOERT_E_VALUE, "size", "device 7 of 1");
    moert_context_destroy(context);
}

Test(context, device_that_does_not_open)
{
    moert_context_t *context = with("device_open_error");
    moert_queue_t *queue = NULL;

    cr_expect_eq(find_driver(context, "device_open_error").state, MOERT_DRIVER_READY);
    EXPECT_ERROR(moert_queue_create(context, 0, 0, &queue, &err), MOERT_E_DEVICE, "device-call",
                 "vendorDeviceOpen failed: 2");
    cr_expect_null(queue);
    moert_context_destroy(context);
}

/* ---- registered drivers ---- */

Test(context, registered_driver_serves_and_is_gated)
{
    struct moert_context_options options = {.size = sizeof(options), .flags = MOERT_CONTEXT_F_NO_MODULES};
    moert_context_t *context = NULL;
    struct moert_driver_info info;
    uint32_t device;

    cr_assert_eq(moert_context_create(&options, &context, &err), MOERT_OK);
    cr_expect_eq(moert_context_register(context, table_of("good"), &err), MOERT_OK, "%s", err.text);
    info = find_driver(context, "good");
    cr_expect_eq(info.state, MOERT_DRIVER_READY);
    cr_expect_str_eq(info.path, "");
    cr_expect_str_eq(info.sha256, "");
    cr_expect_eq(moert_device_find(context, "good", &device, &err), MOERT_OK);
    EXPECT_ERROR(moert_context_register(context, table_of("good"), &err), MOERT_E_VALUE, "driver-state",
                 "driver good is there already (registered)");
    EXPECT_ERROR(moert_context_register(context, table_of("no_device_copy"), &err), MOERT_E_VALUE, "driver-state",
                 "device op copy is missing");
    cr_expect_eq(find_driver(context, "no_device_copy").state, MOERT_DRIVER_INCOMPATIBLE);
    EXPECT_ERROR(moert_context_register(context, table_of("small"), &err), MOERT_E_VALUE, "driver-state", "has size");
    EXPECT_ERROR(moert_context_register(context, table_of("open_error"), &err), MOERT_E_VALUE, "driver-state",
                 "vendorOpen failed: 3");
    cr_expect_eq(moert_context_register(context, table_of("probe_none"), &err), MOERT_OK, "no device is no error");
    cr_expect_eq(find_driver(context, "probe_none").state, MOERT_DRIVER_NO_DEVICE);
    EXPECT_ERROR(moert_context_register(context, NULL, &err), MOERT_E_USAGE, "null", "driver");
    EXPECT_ERROR(moert_context_register(NULL, table_of("good"), &err), MOERT_E_USAGE, "null", "context");
    moert_context_destroy(context);
}

/* ---- memory ---- */

Test(context, buffers)
{
    moert_context_t *context = with("small_device");
    struct moert_memory_info info = {.size = sizeof(info)};
    moert_buffer_t *buffer = NULL;
    char own[16];

    EXPECT_ERROR(moert_buffer_alloc(context, 0, 3, 16, 0, &buffer, &err), MOERT_E_VALUE, "size", "memory kind 3");
    EXPECT_ERROR(moert_buffer_alloc(context, 0, 0, 16, 48, &buffer, &err), MOERT_E_VALUE, "size", "alignment 48");
    EXPECT_ERROR(moert_buffer_alloc(context, 9, 0, 16, 0, &buffer, &err), MOERT_E_VALUE, "size", "device 9 of 1");
    EXPECT_ERROR(moert_buffer_alloc(context, 0, 0, (1 << 20) + 1, 0, &buffer, &err), MOERT_E_TOO_LARGE, "too-large",
                 "a buffer of 1048577 bytes; 1048576 are possible");
    EXPECT_ERROR(moert_buffer_import(context, 0, MOERT_MEMORY_HOST, 0, 16, &buffer, &err), MOERT_E_USAGE, "null",
                 "native");
    cr_expect_null(buffer);
    for (moert_memory_kind_t kind = 0; kind < 3; kind++) {
        cr_assert_eq(moert_buffer_alloc(context, 0, kind, 100, 4096, &buffer, &err), MOERT_OK, "%s", err.text);
        cr_assert_eq(moert_buffer_info(buffer, &info, &err), MOERT_OK);
        cr_expect_eq(info.kind, kind);
        cr_expect_eq(info.bytes, 100);
        cr_expect_eq((uintptr_t)info.host % 4096, 0);
        moert_buffer_free(buffer);
    }
    cr_assert_eq(moert_buffer_alloc(context, 0, 0, 0, 0, &buffer, &err), MOERT_OK, "0 bytes are legal");
    moert_buffer_free(buffer);
    cr_assert_eq(moert_buffer_import(context, 0, MOERT_MEMORY_HOST, (uintptr_t)own, sizeof(own), &buffer, &err), 0);
    cr_assert_eq(moert_buffer_info(buffer, &info, &err), MOERT_OK);
    cr_expect_eq(info.host, (void *)own);
    info.size = 8;
    EXPECT_ERROR(moert_buffer_info(buffer, &info, &err), MOERT_E_USAGE, "struct-size", "moert_memory_info");
    moert_buffer_free(buffer);
    moert_buffer_free(NULL);
    moert_context_destroy(context);
}

static uint64_t counted_alloc(void *ctx, uint32_t device, uint64_t bytes, uint64_t alignment, uint64_t stream)
{
    (void)device;
    (void)stream;
    if (bytes > 4096)
        return 0;
    *(int *)ctx += 1;
    return (uint64_t)(uintptr_t)aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void counted_free(void *ctx, uint32_t device, uint64_t native, uint64_t stream)
{
    (void)device;
    (void)stream;
    *(int *)ctx -= 1;
    free((void *)(uintptr_t)native);
}

Test(context, callers_allocator_gives_device_memory)
{
    int live = 0;
    struct moert_allocator allocator = {
        .size = sizeof(allocator), .ctx = &live, .alloc = counted_alloc, .free = counted_free};
    struct moert_context_options options = {.size = sizeof(options), .driver_path = dir, .allocator = &allocator};
    moert_context_t *context = NULL;
    moert_buffer_t *device = NULL, *host = NULL;

    install("", "variants.so", "good");
    cr_assert_eq(moert_context_create(&options, &context, &err), MOERT_OK);
    cr_assert_eq(moert_buffer_alloc(context, 0, MOERT_MEMORY_DEVICE, 64, 0, &device, &err), MOERT_OK);
    cr_assert_eq(moert_buffer_alloc(context, 0, MOERT_MEMORY_HOST, 64, 0, &host, &err), MOERT_OK);
    cr_expect_eq(live, 1);
    moert_buffer_free(device);
    moert_buffer_free(host);
    device = NULL;
    EXPECT_ERROR(moert_buffer_alloc(context, 0, MOERT_MEMORY_DEVICE, 4097, 0, &device, &err), MOERT_E_NOMEM,
                 "device-memory", "4097 bytes wanted");
    cr_expect_null(device);
    cr_expect_eq(live, 0);
    moert_context_destroy(context);
}

Test(context, pointer_classify)
{
    moert_context_t *context = with("classify");
    struct moert_memory_info info = {.size = sizeof(info)};
    uint32_t device = 99;

    cr_assert_eq(moert_pointer_classify(context, 0x1001, &device, &info, &err), MOERT_OK, "%s", err.text);
    cr_expect_eq(info.known, 1);
    cr_expect_eq(device, 0);
    cr_expect_eq(info.size, sizeof(info));
    cr_assert_eq(moert_pointer_classify(context, 0x1000, &device, &info, &err), MOERT_OK);
    cr_expect_eq(info.known, 0);
    cr_expect_eq(info.kind, MOERT_MEMORY_HOST);
    EXPECT_ERROR(moert_pointer_classify(context, 3, &device, &info, &err), MOERT_E_INTERNAL, "device-call",
                 "device 77");
    moert_context_destroy(context);
}

/* ---- queues ---- */

Test(context, queues_count_work)
{
    moert_context_t *context = with("good");
    moert_queue_t *queue = NULL, *other = NULL;
    moert_buffer_t *buffer = NULL;
    uint32_t done = 9;
    char bytes[8] = "1234567", back[8];

    cr_assert_eq(moert_queue_create(context, 0, 0x1234, &queue, &err), MOERT_OK);
    cr_assert_eq(moert_queue_create(context, 0, 0, &other, &err), MOERT_OK);
    cr_expect_neq(queue->id, other->id);
    cr_expect_eq(moert_queue_native(queue), 0x1234);
    cr_expect_eq(moert_queue_last(queue), 0);
    cr_assert_eq(moert_buffer_alloc(context, 0, 0, 8, 0, &buffer, &err), MOERT_OK);
    cr_assert_eq(moert_copy_in(queue, buffer, 0, bytes, 8, &err), MOERT_OK);
    cr_assert_eq(moert_fill(queue, buffer, 2, 'x', 3, &err), MOERT_OK);
    cr_assert_eq(moert_copy_out(queue, back, buffer, 0, 8, &err), MOERT_OK);
    cr_expect_eq(moert_queue_last(queue), 3);
    cr_assert_eq(moert_queue_query(queue, 3, &done, &err), MOERT_OK);
    cr_expect_eq(done, 1);
    cr_assert_eq(moert_queue_wait(queue, UINT64_MAX, 0, &done, &err), MOERT_OK);
    cr_expect_str_eq(back, "12xxx67");
    EXPECT_ERROR(moert_queue_query(queue, 4, &done, &err), MOERT_E_VALUE, "size", "sequence 4 is not enqueued yet");
    EXPECT_ERROR(moert_queue_query(queue, 3, NULL, &err), MOERT_E_USAGE, "null", "ret_done");
    cr_expect_eq(moert_queue_wait_queue(other, queue, UINT64_MAX, &err), MOERT_OK);
    EXPECT_ERROR(moert_queue_wait_queue(other, NULL, 0, &err), MOERT_E_USAGE, "null", "other");
    moert_buffer_free(buffer);
    moert_queue_destroy(queue);
    moert_queue_destroy(other);
    moert_queue_destroy(NULL);
    moert_context_destroy(context);
}

Test(context, copies_stay_inside_and_on_their_device)
{
    moert_context_t *context;
    moert_queue_t *queue = NULL, *foreign = NULL;
    moert_buffer_t *buffer = NULL;
    char bytes[8] = {0};

    install("", "variants.so", "good_too");
    context = with("good");
    cr_assert_eq(moert_queue_create(context, 0, 0, &queue, &err), MOERT_OK);
    cr_assert_eq(moert_queue_create(context, 1, 0, &foreign, &err), MOERT_OK);
    cr_assert_eq(moert_buffer_alloc(context, 0, 0, 8, 0, &buffer, &err), MOERT_OK);
    EXPECT_ERROR(moert_copy_in(queue, buffer, 1, bytes, 8, &err), MOERT_E_VALUE, "size", "8 bytes at offset 1");
    EXPECT_ERROR(moert_copy_out(queue, bytes, buffer, 9, 0, &err), MOERT_E_VALUE, "size", "offset 9");
    EXPECT_ERROR(moert_fill(queue, buffer, UINT64_MAX, 0, 8, &err), MOERT_E_VALUE, "size", "buffer of 8");
    EXPECT_ERROR(moert_copy_in(queue, buffer, 0, NULL, 8, &err), MOERT_E_USAGE, "null", "host");
    cr_expect_eq(moert_copy_in(queue, buffer, 8, NULL, 0, &err), MOERT_OK, "nothing at the end is legal");
    EXPECT_ERROR(moert_copy_in(foreign, buffer, 0, bytes, 8, &err), MOERT_E_USAGE, "device-mismatch",
                 "the buffer is on good, the queue on good_too");
    EXPECT_ERROR(moert_copy_in(NULL, buffer, 0, bytes, 8, &err), MOERT_E_USAGE, "null", "queue");
    EXPECT_ERROR(moert_copy_in(queue, NULL, 0, bytes, 8, &err), MOERT_E_USAGE, "null", "buffer");
    cr_expect_eq(moert_queue_wait_queue(foreign, queue, UINT64_MAX, &err), MOERT_OK, "the host waits across drivers");
    moert_buffer_free(buffer);
    moert_queue_destroy(queue);
    moert_queue_destroy(foreign);
    moert_context_destroy(context);
}

Test(context, graphs)
{
    moert_context_t *context;
    moert_queue_t *queue = NULL, *plain = NULL;
    moert_graph_t *graph = NULL;

    install("", "variants.so", "good");
    context = with("graph");
    cr_assert_eq(moert_queue_create(context, 0, 0, &plain, &err), MOERT_OK);
    cr_assert_eq(moert_queue_create(context, 1, 0, &queue, &err), MOERT_OK);
    EXPECT_ERROR(moert_capture_begin(plain, &err), MOERT_E_UNSUPPORTED, "unsupported",
                 "driver good captures no graphs");
    EXPECT_ERROR(moert_capture_end(plain, &graph, &err), MOERT_E_UNSUPPORTED, "unsupported", "driver good");
    cr_assert_eq(moert_capture_begin(queue, &err), MOERT_OK);
    cr_assert_eq(moert_capture_end(queue, &graph, &err), MOERT_OK);
    cr_assert_eq(moert_graph_launch(queue, graph, &err), MOERT_OK);
    cr_expect_eq(moert_queue_last(queue), 1);
    EXPECT_ERROR(moert_graph_launch(plain, graph, &err), MOERT_E_USAGE, "device-mismatch", "the graph is of graph");
    moert_graph_destroy(graph);
    moert_graph_destroy(NULL);
    moert_queue_destroy(queue);
    moert_queue_destroy(plain);
    moert_context_destroy(context);
}

/* ---- fork ---- */

Test(context, forked_child_is_refused_and_may_destroy)
{
    moert_context_t *context = with("good");
    moert_queue_t *queue = NULL;
    moert_buffer_t *buffer = NULL;
    int status;
    pid_t pid;

    cr_assert_eq(moert_queue_create(context, 0, 0, &queue, &err), MOERT_OK);
    pid = fork();
    cr_assert_geq(pid, 0);
    if (!pid) {
        moert_status_t got = moert_buffer_alloc(context, 0, 0, 8, 0, &buffer, &err);
        moert_queue_destroy(queue);
        moert_context_destroy(context);
        _exit(got == MOERT_E_USAGE && strstr(err.text, "make a context in the child") ? 0 : 1);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", status);
    moert_queue_destroy(queue);
    moert_context_destroy(context);
}
