/* tests/loader/test_modules.c: every candidate file ends in exactly one state with a reason, and no bad module keeps a
 * good one from serving (architecture.md 2). */
#include "config.h"

#include "tests/loader/util.h"

#include <elf.h>
#include <pthread.h>
#include <sys/wait.h>

TestSuite(modules, .init = make_dir, .fini = remove_dir, .timeout = 60);

/* ---- each way of being bad ---- */

struct expectation {
    const char *variant;
    moert_driver_state_t state;
    const char *reason; /* part of the reason */
};

#define INCOMPATIBLE MOERT_DRIVER_INCOMPATIBLE
#define FAILED       MOERT_DRIVER_LOAD_FAILED

static const struct expectation expectations[] = {
    {"no_driver_probe", INCOMPATIBLE, "driver op probe is missing"},
    {"no_driver_open", INCOMPATIBLE, "driver op open is missing"},
    {"no_driver_close", INCOMPATIBLE, "driver op close is missing"},
    {"no_driver_device_count", INCOMPATIBLE, "driver op device_count is missing"},
    {"no_driver_device_info", INCOMPATIBLE, "driver op device_info is missing"},
    {"no_device_open", INCOMPATIBLE, "device op open is missing"},
    {"no_device_close", INCOMPATIBLE, "device op close is missing"},
    {"no_device_info", INCOMPATIBLE, "device op info is missing"},
    {"no_device_buffer_alloc", INCOMPATIBLE, "device op buffer_alloc is missing"},
    {"no_device_buffer_import", INCOMPATIBLE, "device op buffer_import is missing"},
    {"no_device_buffer_free", INCOMPATIBLE, "device op buffer_free is missing"},
    {"no_device_buffer_info", INCOMPATIBLE, "device op buffer_info is missing"},
    {"no_device_queue_create", INCOMPATIBLE, "device op queue_create is missing"},
    {"no_device_queue_destroy", INCOMPATIBLE, "device op queue_destroy is missing"},
    {"no_device_queue_native", INCOMPATIBLE, "device op queue_native is missing"},
    {"no_device_queue_last", INCOMPATIBLE, "device op queue_last is missing"},
    {"no_device_queue_query", INCOMPATIBLE, "device op queue_query is missing"},
    {"no_device_queue_wait", INCOMPATIBLE, "device op queue_wait is missing"},
    {"no_device_queue_wait_queue", INCOMPATIBLE, "device op queue_wait_queue is missing"},
    {"no_device_copy_in", INCOMPATIBLE, "device op copy_in is missing"},
    {"no_device_copy_out", INCOMPATIBLE, "device op copy_out is missing"},
    {"no_device_copy", INCOMPATIBLE, "device op copy is missing"},
    {"no_device_fill", INCOMPATIBLE, "device op fill is missing"},
    {"no_backend_supports", INCOMPATIBLE, "no_backend_supports.zero: backend op supports is missing"},
    {"no_backend_layout", INCOMPATIBLE, "backend op layout is missing"},
    {"no_backend_workspace", INCOMPATIBLE, "backend op workspace is missing"},
    {"no_backend_create", INCOMPATIBLE, "backend op create is missing"},
    {"no_backend_prepare", INCOMPATIBLE, "backend op prepare is missing"},
    {"no_backend_update", INCOMPATIBLE, "backend op update is missing"},
    {"no_backend_run", INCOMPATIBLE, "backend op run is missing"},
    {"no_backend_release", INCOMPATIBLE, "backend op release is missing"},
    {"no_backend_counters", INCOMPATIBLE, "backend op counters is missing"},
    {"no_ops", INCOMPATIBLE, "the table of driver ops is missing"},
    {"no_device_table", INCOMPATIBLE, "the table of device ops is missing"},
    {"backend_ops", INCOMPATIBLE, "the table of backend ops is missing"},
    {"half_graph", INCOMPATIBLE, "1 of 4 are there"},
    {"refuses_host", INCOMPATIBLE, "refuses a host of ABI 1.0"},
    {"wrong_name", INCOMPATIBLE, "named moert_other.so"},
    {"bad_name", INCOMPATIBLE, "\"Bad-Name\" is not 1 to 31 of a-z"},
    {"no_version", INCOMPATIBLE, "version is NULL"},
    {"flag_bit", INCOMPATIBLE, "unknown flag bits 0x4"},
    {"sanitizer", INCOMPATIBLE, "--enable-sanitizers"},
    {"sanitizer_9", INCOMPATIBLE, "unknown sanitizer 9"},
    {"small", INCOMPATIBLE, "at least"},
    {"no_backends", INCOMPATIBLE, "backend_count is 2 and the array is NULL"},
    {"backend_prefix", INCOMPATIBLE, "it must be \"backend_prefix.\" and a word"},
    {"backend_word", INCOMPATIBLE, "backend_word.zero-Upper"},
    {"backend_nameless", INCOMPATIBLE, "backend 0 has no name"},
    {"backend_small", INCOMPATIBLE, "struct moert_backend 0 has size"},
    {"backend_class", INCOMPATIBLE, "numeric class 4 of 4"},
    {"backend_flags", INCOMPATIBLE, "unknown flag bits 0x40000000"},
    {"backend_reason", INCOMPATIBLE, "gives no auto_reason"},
    {"backend_priority", INCOMPATIBLE, "0 to 100"},
    {"backend_block", INCOMPATIBLE, "block_size is 0"},
    {"backend_schemes", INCOMPATIBLE, "lists no schemes"},
    {"backend_scheme_pair", INCOMPATIBLE, "scheme pair 0 is (4, 5)"},
    {"backend_null", INCOMPATIBLE, "backend 1 is NULL"},
    {"backend_twice", INCOMPATIBLE, "belongs to backend backend_twice.zero already"},
    {"probe_none", MOERT_DRIVER_NO_DEVICE, "no /dev/variant here"},
    {"probe_old", INCOMPATIBLE, "vendor runtime 1.0 is older than 2.0"},
    {"probe_error", FAILED, "vendorInit failed: 999"},
    {"open_error", FAILED, "vendorOpen failed: 3"},
    {"count_none", MOERT_DRIVER_NO_DEVICE, "found no device"},
    {"nameless_device", FAILED, "device 0 has no id"},
    {"takes_good", INCOMPATIBLE, "alias \"good.zero\" of backend takes_good.zero belongs to backend good.zero already"},
};
#define EXPECTATIONS (sizeof(expectations) / sizeof(*expectations))

/* A context that has the good driver beside a bad one still serves. */
static void check_serves(moert_context_t *context, const char *device_id)
{
    struct moert_error err = MOERT_ERROR_INIT;
    char in[] = "bytes", out[sizeof(in)] = "";
    moert_queue_t *queue = NULL;
    moert_buffer_t *buffer = NULL;
    uint32_t device;

    cr_assert_eq(moert_device_find(context, device_id, &device, &err), MOERT_OK, "%s", err.text);
    cr_assert_eq(moert_queue_create(context, device, 0, &queue, &err), MOERT_OK, "%s", err.text);
    cr_assert_eq(moert_buffer_alloc(context, device, MOERT_MEMORY_DEVICE, sizeof(in), 0, &buffer, &err), MOERT_OK);
    cr_assert_eq(moert_copy_in(queue, buffer, 0, in, sizeof(in), &err), MOERT_OK);
    cr_assert_eq(moert_copy_out(queue, out, buffer, 0, sizeof(out), &err), MOERT_OK);
    cr_assert_eq(moert_queue_wait(queue, UINT64_MAX, UINT64_MAX, NULL, &err), MOERT_OK);
    cr_expect_str_eq(out, in);
    moert_buffer_free(buffer);
    moert_queue_destroy(queue);
}

Test(modules, every_bad_variant_has_its_state_and_reason)
{
    moert_context_t *context;

    install("", "variants.so", "good");
    for (size_t i = 0; i < EXPECTATIONS; i++)
        install("", "variants.so", expectations[i].variant);
    context = make_context(NULL, NULL);
    cr_expect_eq(moert_driver_count(context), EXPECTATIONS + 1);
    for (size_t i = 0; i < EXPECTATIONS; i++) {
        const struct expectation *e = &expectations[i];
        struct moert_driver_info info = find_driver(context, e->variant);
        cr_expect_eq(info.state, e->state, "%s is %s: %s", e->variant, moert_driver_state_name(info.state),
                     info.reason);
        cr_expect_not_null(strstr(info.reason, e->reason), "%s: %s", e->variant, info.reason);
        cr_expect_eq(info.device_count, 0);
        cr_expect_eq(strlen(info.sha256), 64);
    }
    cr_expect_eq(find_driver(context, "good").state, MOERT_DRIVER_READY);
    cr_expect_eq(moert_device_count(context), 1);
    check_serves(context, "good");
    moert_context_destroy(context);
}

Test(modules, ready_driver_tells_all_about_itself)
{
    struct moert_backend_info backend = {.size = sizeof(backend)};
    struct moert_driver_info info;
    moert_context_t *context;

    install("", "variants.so", "good");
    context = make_context(NULL, NULL);
    info = find_driver(context, "good");
    cr_expect_eq(info.state, MOERT_DRIVER_READY);
    cr_expect_str_eq(info.reason, "");
    cr_expect_str_eq(info.path, path_of("moert_good.so"));
    cr_expect_str_eq(info.version, PACKAGE_VERSION);
    cr_expect_str_eq(info.vendor, "moert");
    cr_expect_eq(strspn(info.sha256, "0123456789abcdef"), 64);
    cr_expect_eq(info.device_count, 1);
    cr_expect_eq(info.backend_count, 2);
    cr_assert_eq(moert_backend_get(context, 1, &backend, NULL), MOERT_OK);
    cr_expect_str_eq(backend.name, "good.second");
    cr_expect_str_eq(backend.driver, "good");
    cr_expect_null(backend.aliases[0]);
    cr_expect_eq(backend.driver_state, MOERT_DRIVER_READY);
    cr_expect_eq(backend.numeric_class, MOERT_CLASS_LOWER_PRECISION);
    cr_expect_not_null(backend.auto_reason);
    moert_context_destroy(context);
}

Test(modules, backends_of_a_driver_without_device_are_listed)
{
    struct moert_backend_info backend = {.size = sizeof(backend)};
    moert_context_t *context;

    install("", "variants.so", "probe_none");
    context = make_context(NULL, NULL);
    cr_assert_eq(moert_backend_count(context), 2);
    cr_assert_eq(moert_backend_get(context, 0, &backend, NULL), MOERT_OK);
    cr_expect_eq(backend.driver_state, MOERT_DRIVER_NO_DEVICE);
    cr_expect_eq(moert_device_count(context), 0);
    cr_expect_str_eq(log_text, "", "no device is not worth a warning: %s", log_text);
    moert_context_destroy(context);
}

Test(modules, two_drivers_with_one_alias_or_device_id)
{
    moert_context_t *context;

    install("", "variants.so", "alias_a");
    install("", "variants.so", "alias_b");
    install("", "variants.so", "same_device_a");
    install("", "variants.so", "same_device_b");
    context = make_context(NULL, NULL);
    cr_expect_eq(find_driver(context, "alias_a").state, MOERT_DRIVER_READY);
    cr_expect_eq(find_driver(context, "alias_b").state, MOERT_DRIVER_INCOMPATIBLE);
    cr_expect_not_null(strstr(find_driver(context, "alias_b").reason, "belongs to backend alias_a.zero already"));
    cr_expect_eq(find_driver(context, "same_device_a").state, MOERT_DRIVER_READY);
    cr_expect_eq(find_driver(context, "same_device_b").state, MOERT_DRIVER_LOAD_FAILED);
    cr_expect_not_null(strstr(find_driver(context, "same_device_b").reason, "belongs to driver same_device_a already"));
    cr_expect_eq(moert_device_count(context), 2);
    moert_context_destroy(context);
}

/* ---- other minors ---- */

Test(modules, older_minor_serves_and_its_missing_ops_are_missing)
{
    struct moert_error err = MOERT_ERROR_INIT;
    moert_context_t *context;
    moert_queue_t *queue = NULL;

    install("", "variants.so", "older");
    context = make_context(NULL, NULL);
    cr_assert_eq(find_driver(context, "older").state, MOERT_DRIVER_READY, "%s", find_driver(context, "older").reason);
    check_serves(context, "older");
    cr_assert_eq(moert_queue_create(context, 0, 0, &queue, &err), MOERT_OK);
    cr_expect_eq(moert_capture_begin(queue, &err), MOERT_E_UNSUPPORTED, "the op lies past the end of the table");
    moert_queue_destroy(queue);
    moert_context_destroy(context);
}

Test(modules, newer_minor_serves)
{
    moert_context_t *context;

    install("", "variants.so", "newer");
    context = make_context(NULL, NULL);
    cr_assert_eq(find_driver(context, "newer").state, MOERT_DRIVER_READY, "%s", find_driver(context, "newer").reason);
    check_serves(context, "newer");
    moert_context_destroy(context);
}

/* ---- files that are no modules ---- */

static void check_file(moert_context_t *context, const char *name, moert_driver_state_t state, const char *reason)
{
    struct moert_driver_info info = find_driver(context, name);

    cr_expect_eq(info.state, state, "%s is %s: %s", name, moert_driver_state_name(info.state), info.reason);
    cr_expect_not_null(strstr(info.reason, reason), "%s: %s", name, info.reason);
}

Test(modules, files_of_every_wrong_kind)
{
    moert_context_t *context;
    size_t bytes;
    char *data;

    install("", "variants.so", "good");
    install("", "no_symbol.so", "stranger");
    install("", "other_major.so", "later");
    install("", "needs_symbol.so", "needy");
    write_file("moert_text.so", "hello", 5, 0755);
    write_file("moert_empty.so", "", 0, 0755);
    write_file("README", "not a candidate", 15, 0644);
    write_file("moert_old.so.bak", "not a candidate", 15, 0644);
    write_file("moert_.so", "not a candidate", 15, 0644);
    write_file("moert_Caps.so", "x", 1, 0755);
    cr_assert_eq(mkdir(path_of("moert_folder.so"), 0755), 0);
    cr_assert_eq(symlink("/nonexistent/target", path_of("moert_dangling.so")), 0);

    data = read_built("variants.so", &bytes);
    ((Elf64_Ehdr *)(void *)data)->e_machine =
        ((Elf64_Ehdr *)(void *)data)->e_machine == EM_AARCH64 ? EM_X86_64 : EM_AARCH64;
    write_file("moert_machine.so", data, bytes, 0755);
    data[EI_CLASS] = ELFCLASS32;
    write_file("moert_class.so", data, bytes, 0755);
    free(data);
    data = read_built("variants.so", &bytes);
    ((Elf64_Ehdr *)(void *)data)->e_type = ET_EXEC;
    write_file("moert_program.so", data, bytes, 0755);
    write_file("moert_header.so", data, 40, 0755);
    ((Elf64_Ehdr *)(void *)data)->e_type = ET_DYN;
    write_file("moert_cut.so", data, 8192, 0755); /* inside the code; debug sections come later */
    ((Elf64_Ehdr *)(void *)data)->e_phoff = bytes - 8;
    write_file("moert_segments.so", data, bytes, 0755);
    free(data);

    context = make_context(NULL, NULL);
    cr_expect_eq(moert_driver_count(context), 15);
    check_file(context, "stranger", INCOMPATIBLE, "it does not export moert_driver_v1");
    check_file(context, "later", INCOMPATIBLE, "is for driver ABI 2, this libmoert has ABI 1");
    check_file(context, "needy", FAILED, "moert_test_function_that_nobody_has");
    check_file(context, "text", FAILED, "is not an ELF file (5 bytes)");
    check_file(context, "empty", FAILED, "is not an ELF file (0 bytes)");
    check_file(context, "Caps", INCOMPATIBLE, "is not a driver name");
    check_file(context, "folder", FAILED, "not a regular file");
    check_file(context, "dangling", FAILED, "symbolic link to a file that is missing");
    check_file(context, "class", INCOMPATIBLE, "is a 32-bit module, this process is 64-bit");
    check_file(context, "program", FAILED, "no shared object");
    check_file(context, "cut", FAILED, "is cut short");
    check_file(context, "segments", FAILED, "program headers are not inside the file");
    check_file(context, "header", FAILED, "ends inside its ELF header (40 bytes)");
#if defined(__x86_64__)
    check_file(context, "machine", INCOMPATIBLE, "is for aarch64, this process is x86_64");
#endif
    check_serves(context, "good");
    moert_context_destroy(context);
}

/* Every cut of a module and every byte of its headers changed: a state, never a crash. dlopen sees only what passes. */
Test(modules, damaged_elf_headers_never_crash_the_look)
{
    size_t bytes;
    char *data = read_built("no_symbol.so", &bytes), name[64];
    Elf64_Ehdr header;
    moert_context_t *context;

    memcpy(&header, data, sizeof(header));
    for (size_t i = 0; i < 24; i++) {
        size_t at = i < 12 ? EI_NIDENT + 4 * i : (size_t)header.e_shoff + 8 * (i - 12);
        char kept = data[at];
        data[at] = (char)(kept ^ 0x5a);
        snprintf(name, sizeof(name), "moert_flip%zu.so", i);
        write_file(name, data, bytes, 0755);
        data[at] = kept;
        snprintf(name, sizeof(name), "moert_cut%zu.so", i);
        write_file(name, data, bytes * i / 24, 0755);
    }
    free(data);
    context = make_context(NULL, NULL);
    cr_expect_eq(moert_driver_count(context), 48);
    for (uint32_t i = 0; i < moert_driver_count(context); i++) {
        struct moert_driver_info info = {.size = sizeof(info)};
        moert_driver_get(context, i, &info, NULL);
        cr_expect(info.state == INCOMPATIBLE || info.state == FAILED, "%s", info.name);
        cr_expect_str_neq(info.reason, "");
    }
    moert_context_destroy(context);
}

/* ---- search and filter ---- */

Test(modules, first_directory_wins_the_rest_is_shadowed)
{
    struct moert_driver_info info = {.size = sizeof(info)};
    char path[256], missing[128];
    moert_context_t *context;

    mkdir(path_of("a"), 0755);
    mkdir(path_of("b"), 0755);
    install("a", "variants.so", "good");
    install("b", "variants.so", "good");
    install("b", "variants.so", "alias_x");
    snprintf(missing, sizeof(missing), "%s/missing", dir);
    snprintf(path, sizeof(path), "%s:%s:%s:tests/relative:.", missing, path_of("a"), path_of("b"));
    context = make_context(path, NULL);
    cr_assert_eq(moert_driver_count(context), 3);
    moert_driver_get(context, 0, &info, NULL);
    cr_expect_str_eq(info.name, "alias_x", "sorted by name");
    moert_driver_get(context, 1, &info, NULL);
    cr_expect_eq(info.state, MOERT_DRIVER_READY);
    cr_expect_str_eq(info.path, path_of("a/moert_good.so"));
    moert_driver_get(context, 2, &info, NULL);
    cr_expect_eq(info.state, MOERT_DRIVER_SHADOWED);
    cr_expect_not_null(strstr(info.reason, path_of("a/moert_good.so")), "%s", info.reason);
    cr_expect_not_null(strstr(log_text, "\"tests/relative\" is ignored: only absolute"), "%s", log_text);
    cr_expect_not_null(strstr(log_text, "\".\" is ignored"), "%s", log_text);
    cr_expect_null(strstr(log_text, "/missing"), "a missing directory is no fault");
    moert_context_destroy(context);
}

Test(modules, filter_by_name)
{
    moert_context_t *context;

    install("", "variants.so", "good");
    install("", "variants.so", "good_too");
    install("", "variants.so", "flag_bit");
    context = make_context(NULL, "good");
    cr_expect_eq(find_driver(context, "good").state, MOERT_DRIVER_READY);
    cr_expect_eq(find_driver(context, "good_too").state, MOERT_DRIVER_DISABLED);
    cr_expect_eq(find_driver(context, "flag_bit").state, MOERT_DRIVER_DISABLED);
    cr_expect_not_null(strstr(find_driver(context, "flag_bit").reason, "not among MOERT_DRIVERS=good"));
    moert_context_destroy(context);

    context = make_context(NULL, "^good, flag_bit");
    cr_expect_eq(find_driver(context, "good").state, MOERT_DRIVER_DISABLED);
    cr_expect_eq(find_driver(context, "good_too").state, MOERT_DRIVER_READY);
    cr_expect_eq(find_driver(context, "flag_bit").state, MOERT_DRIVER_DISABLED);
    moert_context_destroy(context);
    cr_expect_str_eq(log_text, "");

    context = make_context(NULL, "goof,^good_too");
    cr_expect_eq(find_driver(context, "good").state, MOERT_DRIVER_DISABLED);
    cr_expect_not_null(strstr(log_text, "there is no module \"goof\"; did you mean \"good\"?"), "%s", log_text);
    cr_expect_not_null(strstr(log_text, "\"^good_too\" is ignored"), "%s", log_text);
    moert_context_destroy(context);
}

Test(modules, environment_gives_path_and_filter)
{
    struct moert_context_options options = {.size = sizeof(options), .log = log_line};
    moert_context_t *context = NULL;

    install("", "variants.so", "good");
    install("", "variants.so", "good_too");
    setenv("MOERT_DRIVER_PATH", dir, 1);
    setenv("MOERT_DRIVERS", "^good", 1);
    cr_assert_eq(moert_context_create(&options, &context, NULL), MOERT_OK);
    cr_assert_eq(moert_driver_count(context), 2, "the variable replaces the installed directory");
    cr_expect_eq(find_driver(context, "good").state, MOERT_DRIVER_DISABLED);
    cr_expect_eq(find_driver(context, "good_too").state, MOERT_DRIVER_READY);
    moert_context_destroy(context);
}

Test(modules, no_modules_flag)
{
    struct moert_context_options options = {
        .size = sizeof(options), .flags = MOERT_CONTEXT_F_NO_MODULES, .driver_path = dir, .drivers = "nothing"};
    moert_context_t *context = NULL;

    install("", "variants.so", "good");
    cr_assert_eq(moert_context_create(&options, &context, NULL), MOERT_OK);
    cr_expect_eq(moert_driver_count(context), 0);
    moert_context_destroy(context);
}

Test(modules, state_names)
{
    static const char *const names[] = {"ready", "no-device", "disabled", "shadowed", "incompatible", "load-failed"};

    for (uint32_t i = 0; i < MOERT_DRIVER_STATE_COUNT; i++)
        cr_expect_str_eq(moert_driver_state_name(i), names[i]);
    cr_expect_null(moert_driver_state_name(MOERT_DRIVER_STATE_COUNT));
}
