/* core/loader/module.c: one candidate file from its bytes to a running driver: file check, dlopen, gate, probe, open,
 * devices. Whatever goes wrong ends in a state with a reason and never stops the other modules. */
#include "config.h"

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/options.h"
#include "core/loader/loader.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* Devices of one driver beyond this are a mistake. */
#define DEVICES_MAX 4096u

/* ---- host services ---- */

static void host_log(void *ctx, moert_log_level_t level, const char *message)
{
    const struct moert_ctx_driver *driver = ctx;

    moert_log(&driver->context->logger, level, "%s: %s", driver->name, message ? message : "");
}

static void *host_alloc(void *ctx, uint64_t bytes, uint64_t alignment)
{
    void *memory;

    (void)ctx;
    if (alignment < sizeof(void *))
        alignment = sizeof(void *);
    if (bytes > SIZE_MAX || alignment > SIZE_MAX || posix_memalign(&memory, alignment, bytes ? bytes : 1))
        return NULL;
    return memory;
}

static void host_free(void *ctx, void *pointer)
{
    (void)ctx;
    free(pointer);
}

static const char *host_option(void *ctx, const char *name)
{
    (void)ctx;
    return name ? moert_config_by_name(name) : NULL;
}

static void host_fill(struct moert_ctx_driver *driver)
{
    driver->host = (struct moert_host){.size = sizeof(driver->host),
                                       .minor = MOERT_DRIVER_ABI_MINOR,
                                       .ctx = driver,
                                       .log = host_log,
                                       .alloc = host_alloc,
                                       .free = host_free,
                                       .option = host_option};
}

/* ---- devices ---- */

/* Descriptions come from foreign code: strings are ended, the id and the owner are made certain. */
static moert_status_t check_desc(const struct moert_context *context, const struct moert_ctx_driver *driver,
                                 uint32_t index, struct moert_device_desc *desc, struct moert_error *err)
{
    desc->size = sizeof(*desc);
    desc->id[sizeof(desc->id) - 1] = 0;
    desc->arch[sizeof(desc->arch) - 1] = 0;
    desc->name[sizeof(desc->name) - 1] = 0;
    desc->uuid[sizeof(desc->uuid) - 1] = 0;
    desc->pci[sizeof(desc->pci) - 1] = 0;
    desc->runtime[sizeof(desc->runtime) - 1] = 0;
    desc->features[sizeof(desc->features) - 1] = 0;
    strncpy(desc->driver, driver->name, sizeof(desc->driver) - 1);
    desc->driver[sizeof(desc->driver) - 1] = 0;
    desc->flags |= MOERT_DEVICE_F_PRESENT;
    if (!desc->id[0] || !desc->arch[0])
        return moert_fail(err, MOERT_E_INTERNAL, "driver-state", "device %u has no %s", index,
                          desc->id[0] ? "arch" : "id");
    for (uint32_t i = 0; i < context->device_count; i++)
        if (!strcmp(context->devices[i]->desc.id, desc->id))
            return moert_fail(err, MOERT_E_INTERNAL, "driver-state", "device id \"%s\" belongs to driver %s already",
                              desc->id, context->devices[i]->driver->name);
    return MOERT_OK;
}

static moert_status_t add_devices(struct moert_context *context, struct moert_ctx_driver *driver, uint32_t *ret_count,
                                  struct moert_error *err)
{
    const struct moert_driver_ops *ops = driver->table->ops;
    uint32_t count = 0;
    moert_status_t status = ops->device_count(driver->handle, &count, err);

    if (!status && count > DEVICES_MAX)
        status = moert_fail(err, MOERT_E_INTERNAL, "driver-state", "%u devices; %u are possible", count, DEVICES_MAX);
    for (uint32_t i = 0; i < count && !status; i++) {
        struct moert_device_desc desc = {.size = sizeof(desc)};
        status = ops->device_info(driver->handle, i, &desc, err);
        if (!status)
            status = check_desc(context, driver, i, &desc, err);
        if (!status)
            status = moert_loader_add_device(context, driver, i, &desc, err);
    }
    if (!status)
        *ret_count = count;
    return status;
}

/* Takes back the devices of a driver that failed half way; they are the last ones. */
static void drop_devices(struct moert_context *context, const struct moert_ctx_driver *driver)
{
    while (context->device_count && context->devices[context->device_count - 1]->driver == driver)
        free(context->devices[--context->device_count]);
}

/* ---- start ---- */

static void set_failed(struct moert_ctx_driver *driver, const char *step, const struct moert_error *error)
{
    moert_loader_state(driver, MOERT_DRIVER_LOAD_FAILED, "%s: %.900s", step,
                       error->text[0] ? error->text : "failed without a reason");
}

/* Returns 0 when the driver may be opened. */
static int probe(struct moert_ctx_driver *driver)
{
    struct moert_error error = MOERT_ERROR_INIT;
    struct moert_probe answer = {.size = sizeof(answer)};

    if (driver->table->ops->probe(&driver->host, &answer, &error)) {
        set_failed(driver, "probe", &error);
        return -1;
    }
    answer.reason[sizeof(answer.reason) - 1] = 0;
    if (answer.state == MOERT_PROBE_AVAILABLE)
        return 0;
    moert_loader_state(driver,
                       answer.state == MOERT_PROBE_NO_DEVICE ? MOERT_DRIVER_NO_DEVICE : MOERT_DRIVER_INCOMPATIBLE, "%s",
                       answer.reason[0] ? answer.reason : "the driver gives no reason");
    return -1;
}

static void open_driver(struct moert_context *context, struct moert_ctx_driver *driver)
{
    struct moert_error error = MOERT_ERROR_INIT;
    const struct moert_driver_ops *ops = driver->table->ops;
    uint32_t devices = 0;

    if (ops->open(&driver->host, &driver->handle, &error)) {
        driver->handle = NULL;
        set_failed(driver, "open", &error);
        return;
    }
    if (add_devices(context, driver, &devices, &error)) {
        drop_devices(context, driver);
        set_failed(driver, "devices", &error);
    } else if (!devices) {
        moert_loader_state(driver, MOERT_DRIVER_NO_DEVICE, "the driver opened and found no device");
    } else {
        moert_loader_state(driver, MOERT_DRIVER_READY, "%s", "");
        return;
    }
    ops->close(driver->handle);
    driver->handle = NULL;
}

void moert_loader_start(struct moert_context *context, struct moert_ctx_driver *driver,
                        const struct moert_driver *table, const char *file_name)
{
    struct moert_error error = MOERT_ERROR_INIT;
    char reason[MOERT_REASON_MAX] = "";
    moert_driver_state_t state = moert_loader_gate(context, table, file_name, reason);

    if (state != MOERT_DRIVER_READY) {
        moert_loader_state(driver, state, "%s", reason);
        return;
    }
    driver->table = table;
    moert_loader_set(&driver->name, table->name);
    moert_loader_set(&driver->version, table->version);
    moert_loader_set(&driver->vendor, table->vendor);
    host_fill(driver);
    if (moert_loader_add_backends(context, driver, &error)) {
        set_failed(driver, "backends", &error);
        return;
    }
    if (!probe(driver))
        open_driver(context, driver);
}

/* ---- the file ---- */

/* NULL after the state has been set. */
static const struct moert_driver *open_module(struct moert_ctx_driver *driver)
{
    moert_driver_entry_t entry;
    const struct moert_driver *table;
    /* NODELETE: a vendor's library below may have threads and exit handlers; unmapping it has crashed programs. */
    void *handle = dlopen(driver->path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

    if (!handle) {
        const char *text = dlerror();
        moert_loader_state(driver, MOERT_DRIVER_LOAD_FAILED, "dlopen: %.900s", text ? text : "failed");
        return NULL;
    }
    *(void **)&entry = dlsym(handle, MOERT_DRIVER_SYMBOL);
    if (!entry) {
        moert_loader_state(driver, MOERT_DRIVER_INCOMPATIBLE, "is no moert driver: it does not export %s",
                           MOERT_DRIVER_SYMBOL);
        return NULL;
    }
    table = entry(MOERT_DRIVER_ABI_MINOR);
    if (!table)
        moert_loader_state(driver, MOERT_DRIVER_INCOMPATIBLE, "the driver refuses a host of ABI %d.%d",
                           MOERT_DRIVER_ABI_MAJOR, MOERT_DRIVER_ABI_MINOR);
    return table;
}

void moert_loader_load(struct moert_context *context, struct moert_ctx_driver *driver)
{
    char reason[MOERT_REASON_MAX] = "";
    struct moert_error error = MOERT_ERROR_INIT;
    const struct moert_driver *table;
    moert_driver_state_t state = moert_loader_check_file(driver->path, reason);

    if (state != MOERT_DRIVER_READY) {
        moert_loader_state(driver, state, "%s", reason);
    } else if (moert_file_sha256(driver->path, driver->sha256, &error)) {
        set_failed(driver, "read", &error);
    } else {
        table = open_module(driver);
        if (table) {
            char *file_name = strdup(driver->name);
            if (file_name)
                moert_loader_start(context, driver, table, file_name);
            else
                moert_loader_state(driver, MOERT_DRIVER_LOAD_FAILED, "no memory");
            free(file_name);
        }
    }
    /* A file that exists and does not load is a fault of the installation; no device is none. */
    moert_log(&context->logger,
              driver->state == MOERT_DRIVER_INCOMPATIBLE || driver->state == MOERT_DRIVER_LOAD_FAILED ? MOERT_LOG_WARN
                                                                                                      : MOERT_LOG_DEBUG,
              "driver %s (%s): %s%s%s", driver->name, driver->path, moert_driver_state_name(driver->state),
              driver->reason[0] ? ": " : "", driver->reason);
}
