/* tools/info.c: `moert info`: version, modules, devices, backends, effective options: what there is and why not more.
 */
#include "config.h"

#include "tools/source.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DRIVERS, DEVICES, BACKENDS, CONFIG, REQUIRE };

static const struct tool_option options[] = {
    [DRIVERS] = {"drivers", NULL, "only the driver modules"},
    [DEVICES] = {"devices", NULL, "only the devices"},
    [BACKENDS] = {"backends", NULL, "only the backends"},
    [CONFIG] = {"config", NULL, "only the effective MOERT_* options"},
    [REQUIRE] = {"require", "DRIVER", "exit 1 unless this driver is ready; may be repeated"},
    {NULL, NULL, NULL},
};

/* Device nodes of vendors and the drivers that can serve them. */
static const struct {
    const char *node, *vendor;
    const char *drivers[3];
} nodes[] = {
    {"/dev/nvidiactl", "NVIDIA", {"cuda", "opencl", NULL}},
    {"/dev/kfd", "AMD", {"rocm", "opencl", NULL}},
};
enum { NODES = sizeof(nodes) / sizeof(*nodes) };

static struct moert_driver_info driver_at(const moert_context_t *context, uint32_t index)
{
    struct moert_driver_info info = {.size = sizeof(info)};
    moert_driver_get(context, index, &info, NULL);
    return info;
}

static int is_ready(const moert_context_t *context, const char *name)
{
    for (uint32_t i = 0; i < moert_driver_count(context); i++) {
        struct moert_driver_info info = driver_at(context, i);
        if (info.state == MOERT_DRIVER_READY && !strcmp(info.name, name))
            return 1;
    }
    return 0;
}

/* A device node that no ready module serves: its index in nodes, from `start` on; -1 at the end. */
static int next_hint(const moert_context_t *context, int start)
{
    for (int i = start; i < NODES; i++) {
        int served = 0;
        for (const char *const *name = nodes[i].drivers; *name; name++)
            served |= is_ready(context, *name);
        if (!served && !access(nodes[i].node, F_OK))
            return i;
    }
    return -1;
}

static void hint_text(int node, char text[160])
{
    snprintf(text, 160, "%s exists (%s device) but no module serves it; drivers for it: %s, %s", nodes[node].node,
             nodes[node].vendor, nodes[node].drivers[0], nodes[node].drivers[1]);
}

/* ---- JSON ---- */

static json_t *driver_json(const struct moert_driver_info *d)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:s, s:o, s:o, s:i, s:i}", "path", tool_json_string(d->path), "name",
                     tool_json_string(d->name), "version", tool_json_string(d->version), "vendor",
                     tool_json_string(d->vendor), "state", moert_driver_state_name(d->state), "reason",
                     tool_json_string(d->reason), "sha256", tool_json_string(d->sha256), "devices",
                     (int)d->device_count, "backends", (int)d->backend_count);
}

static json_t *words_json(const char *words)
{
    json_t *list = json_array();
    const char *p = words;

    while (*p) {
        size_t n = strcspn(p, " ");
        if (n)
            json_array_append_new(list, json_stringn(p, n));
        p += n + (p[n] != 0);
    }
    return list;
}

static json_t *device_json(const struct moert_device_desc *d)
{
    static const char *const kind[] = {"cpu", "gpu", "accelerator"};

    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:s, s:o, s:i, s:o, s:o, s:o}", "id", tool_json_string(d->id),
                     "driver", tool_json_string(d->driver), "name", tool_json_string(d->name), "arch",
                     tool_json_string(d->arch), "uuid", tool_json_string(d->uuid), "pci", tool_json_string(d->pci),
                     "runtime", tool_json_string(d->runtime), "kind", d->kind < 3 ? kind[d->kind] : "accelerator",
                     "features", words_json(d->features), "compute_units", (int)d->compute_units, "memory_total",
                     tool_json_size(d->memory_total), "memory_free", tool_json_size(d->memory_free), "max_buffer",
                     tool_json_size(d->max_buffer));
}

/* Ids of the devices of a driver, as a JSON list. */
static json_t *devices_of(moert_context_t *context, const char *driver)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < moert_device_count(context); i++) {
        struct moert_device_desc d = {.size = sizeof(d)};
        if (!moert_device_get(context, i, &d, NULL) && !strcmp(d.driver, driver))
            json_array_append_new(list, tool_json_string(d.id));
    }
    return list;
}

static json_t *backend_json(moert_context_t *context, const struct moert_backend_info *b)
{
    json_t *aliases = json_array(), *schemes = json_array();
    int opt_in = (b->flags & MOERT_BACKEND_F_OPT_IN) != 0;

    for (const char *const *a = b->aliases; *a; a++)
        json_array_append_new(aliases, tool_json_string(*a));
    for (uint32_t i = 0; i < b->scheme_count; i++)
        json_array_append_new(schemes, json_pack("{s:s?, s:s?}", "weight", moert_scheme_name(b->schemes[i].weight),
                                                 "activation", moert_scheme_name(b->schemes[i].activation)));
    return json_pack("{s:s, s:o, s:o, s:s?, s:s, s:s, s:o, s:b, s:o, s:i, s:i, s:i}", "name", b->name, "aliases",
                     aliases, "schemes", schemes, "class", moert_class_name(b->numeric_class), "driver", b->driver,
                     "driver_state", moert_driver_state_name(b->driver_state), "devices",
                     devices_of(context, b->driver), "auto", !opt_in, "auto_reason", tool_json_string(b->auto_reason),
                     "block_size", (int)b->block_size, "priority_decode", (int)b->priority_decode, "priority_prefill",
                     (int)b->priority_prefill);
}

static json_t *build_json(void)
{
    static const char *const sanitizer[] = {"none", "address", "thread"};

    return json_pack("{s:s, s:s, s:b, s:i, s:s}", "compiler", __VERSION__, "sanitizer", sanitizer[MOERT_SANITIZER_ID],
                     "optimised",
#ifdef __OPTIMIZE__
                     1,
#else
                     0,
#endif
                     "driver_abi", MOERT_DRIVER_ABI_MAJOR, "module_directory", MOERT_MODULEDIR);
}

static int print_json(struct tool *tool, moert_context_t *context, json_t *missing)
{
    json_t *drivers = json_array(), *devices = json_array(), *backends = json_array(), *config = json_array();
    json_t *hints = json_array();

    for (uint32_t i = 0; i < moert_driver_count(context); i++) {
        struct moert_driver_info info = driver_at(context, i);
        json_array_append_new(drivers, driver_json(&info));
    }
    for (uint32_t i = 0; i < moert_device_count(context); i++) {
        struct moert_device_desc d = {.size = sizeof(d)};
        if (!moert_device_get(context, i, &d, NULL))
            json_array_append_new(devices, device_json(&d));
    }
    for (uint32_t i = 0; i < moert_backend_count(context); i++) {
        struct moert_backend_info b = {.size = sizeof(b)};
        if (!moert_backend_get(context, i, &b, NULL))
            json_array_append_new(backends, backend_json(context, &b));
    }
    for (uint32_t i = 0; i < moert_option_count(); i++) {
        struct moert_option_info o = {.size = sizeof(o)};
        if (!moert_option_get(i, &o, NULL))
            json_array_append_new(config, json_pack("{s:s, s:o, s:s, s:s, s:s}", "name", o.name, "value",
                                                    tool_json_string(o.value), "source", o.source, "type", o.type,
                                                    "help", o.help));
    }
    for (int i = 0; (i = next_hint(context, i)) >= 0; i++) {
        char text[160];
        hint_text(i, text);
        json_array_append_new(hints, json_string(text));
    }
    return tool_print_json(tool, json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:O}", "version", moert_version(),
                                           "build", build_json(), "drivers", drivers, "devices", devices, "backends",
                                           backends, "config", config, "hints", hints, "missing", missing));
}

/* ---- for people ---- */

static void heading(const struct tool *tool, const char *text)
{
    printf(tool->colour ? "\n\033[1;36m%s\033[0m\n" : "\n%s\n", text);
}

static void print_drivers(const struct tool *tool, const moert_context_t *context)
{
    static const char *const heads[] = {"name", "version", "state", "file and reason"};
    struct tool_table *table = tool_table_create(4, heads);

    heading(tool, "Drivers");
    if (!moert_driver_count(context))
        printf("  no module in %s\n", MOERT_MODULEDIR);
    for (uint32_t i = 0; i < moert_driver_count(context); i++) {
        struct moert_driver_info d = driver_at(context, i);
        tool_table_cell(table, "%s", d.name);
        tool_table_cell(table, "%s", *d.version ? d.version : "-");
        tool_table_cell(table, "%s", moert_driver_state_name(d.state));
        tool_table_cell(table, "%s%s%s", *d.path ? d.path : "(built in)", *d.reason ? ": " : "", d.reason);
    }
    tool_table_print(tool, table, "  ");
}

static void print_devices(const struct tool *tool, moert_context_t *context)
{
    static const char *const heads[] = {"id", "arch", "total", "free", "name"};
    struct tool_table *table = tool_table_create(5, heads);
    char total[32], available[32];

    heading(tool, "Devices");
    if (!moert_device_count(context))
        printf("  none\n");
    tool_table_right(table, 2);
    tool_table_right(table, 3);
    for (uint32_t i = 0; i < moert_device_count(context); i++) {
        struct moert_device_desc d = {.size = sizeof(d)};
        if (moert_device_get(context, i, &d, NULL))
            continue;
        tool_table_cell(table, "%s", d.id);
        tool_table_cell(table, "%s", d.arch);
        tool_table_cell(table, "%s", d.memory_total ? tool_bytes(d.memory_total, total) : "-");
        tool_table_cell(table, "%s", d.memory_total ? tool_bytes(d.memory_free, available) : "-");
        tool_table_cell(table, "%s%s%s%s%s", d.name, *d.pci ? ", PCI " : "", d.pci, *d.uuid ? ", " : "", d.uuid);
    }
    tool_table_print(tool, table, "  ");
    for (int i = 0; (i = next_hint(context, i)) >= 0; i++) {
        char text[160];
        hint_text(i, text);
        printf("  note: %s\n", text);
    }
}

static void print_backends(const struct tool *tool, moert_context_t *context)
{
    static const char *const heads[] = {"name", "class", "chosen", "schemes (weight/activation), aliases"};
    struct tool_table *table = tool_table_create(4, heads);

    heading(tool, "Backends");
    if (!moert_backend_count(context))
        printf("  none\n");
    for (uint32_t i = 0; i < moert_backend_count(context); i++) {
        struct moert_backend_info b = {.size = sizeof(b)};
        char text[1024];
        size_t n = 0;
        if (moert_backend_get(context, i, &b, NULL))
            continue;
        text[0] = 0;
        for (uint32_t s = 0; s < b.scheme_count && n < sizeof(text) - 32; s++)
            n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s/%s", s ? " " : "",
                                  moert_scheme_name(b.schemes[s].weight), moert_scheme_name(b.schemes[s].activation));
        for (const char *const *a = b.aliases; *a && n < sizeof(text) - 64; a++)
            n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s", a == b.aliases ? "; also " : ", ", *a);
        if (b.auto_reason && n < sizeof(text))
            snprintf(text + n, sizeof(text) - n, "; only by name: %s", b.auto_reason);
        tool_table_cell(table, "%s", b.name);
        tool_table_cell(table, "%s", moert_class_name(b.numeric_class));
        if (b.driver_state != MOERT_DRIVER_READY)
            tool_table_cell(table, "%s", moert_driver_state_name(b.driver_state));
        else
            tool_table_cell(table, "%s", b.flags & MOERT_BACKEND_F_OPT_IN ? "opt-in" : "auto");
        tool_table_cell(table, "%s", text);
    }
    tool_table_print(tool, table, "  ");
}

static void print_config(const struct tool *tool)
{
    static const char *const heads[] = {"option", "source", "value"};
    struct tool_table *table = tool_table_create(3, heads);

    heading(tool, "Options");
    for (uint32_t i = 0; i < moert_option_count(); i++) {
        struct moert_option_info o = {.size = sizeof(o)};
        if (moert_option_get(i, &o, NULL))
            continue;
        tool_table_cell(table, "%s", o.name);
        tool_table_cell(table, "%s", o.source);
        tool_table_cell(table, "%s", *o.value ? o.value : "-");
    }
    tool_table_print(tool, table, "  ");
}

static void print_text(const struct tool *tool, moert_context_t *context, unsigned sections)
{
    printf("moert %s, driver ABI %d, %s%s\n", moert_version(), MOERT_DRIVER_ABI_MAJOR, "compiler " __VERSION__,
           MOERT_SANITIZER_ID ? ", sanitizer build" : "");
    if (sections & 1u << DRIVERS)
        print_drivers(tool, context);
    if (sections & 1u << DEVICES)
        print_devices(tool, context);
    if (sections & 1u << BACKENDS)
        print_backends(tool, context);
    if (sections & 1u << CONFIG)
        print_config(tool);
}

/* 1 and a message per required driver that is not ready; their names into `missing`. */
static int check_required(const moert_context_t *context, const char *const *required, size_t count, json_t *missing)
{
    for (size_t i = 0; i < count; i++) {
        const char *state = "not found", *reason = "";
        struct moert_driver_info d;
        if (is_ready(context, required[i]))
            continue;
        for (uint32_t k = moert_driver_count(context); k-- > 0;) {
            d = driver_at(context, k);
            if (!strcmp(d.name, required[i])) {
                state = moert_driver_state_name(d.state);
                reason = d.reason;
            }
        }
        fprintf(stderr, "moert: info: driver \"%s\" is required and not ready: %s%s%s\n", required[i], state,
                *reason ? ": " : "", reason);
        json_array_append_new(missing, tool_json_string(required[i]));
    }
    return json_array_size(missing) ? TOOL_NO : TOOL_DONE;
}

static int run(struct tool *tool, int argc, char **argv)
{
    const char **required = calloc((size_t)argc, sizeof(*required));
    moert_context_t *context = NULL;
    json_t *missing = json_array();
    unsigned sections = 0;
    size_t count = 0;
    const char *value;
    int option, status, printed = 0;

    while ((option = tool_option(tool, argc, argv, &value)) >= 0)
        if (option != REQUIRE)
            sections |= 1u << option;
        else if (required)
            required[count++] = value;
    status = option == TOOL_STOP ? tool->status : tool_operands(tool, argc, argv, 0, "");
    if (option != TOOL_STOP && !status)
        status = tool_context(tool, &context);
    if (context) {
        status = check_required(context, required, count, missing);
        if (tool->json)
            printed = print_json(tool, context, missing);
        else
            print_text(tool, context, sections ? sections : ~0u);
    }
    moert_context_destroy(context);
    json_decref(missing);
    free(required);
    return printed ? printed : status;
}

const struct tool_command cmd_info = {
    .name = "info",
    .run = run,
    .help = "version, driver modules, devices, backends, options",
    .synopsis = "[--drivers] [--devices] [--backends] [--config] [--require DRIVER]... [--json]",
    .options = options,
    .details = "Without a section all of them are printed; --json always prints all. Exit status 0 even without any "
               "device; 1 when a required driver is not ready.",
};
