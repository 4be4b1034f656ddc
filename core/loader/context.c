/* core/loader/context.c: a context's birth, growth by registered drivers, and end. */
#include "config.h"

#include "core/base/error.h"
#include "core/loader/loader.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONTEXT_FLAGS (MOERT_CONTEXT_F_NO_MODULES | MOERT_CONTEXT_F_NO_SELF_TEST)

/* Copies the caller's options into a struct of this library's size. A larger struct of a later header is accepted as
 * long as the part that is unknown here is all zero. */
static moert_status_t read_options(const struct moert_context_options *options, struct moert_context_options *ret,
                                   struct moert_error *err)
{
    size_t n;

    memset(ret, 0, sizeof(*ret));
    ret->size = sizeof(*ret);
    if (!options)
        return MOERT_OK;
    if (moert_check_size(err, "moert_context_options", options->size,
                         offsetof(struct moert_context_options, driver_path)))
        return MOERT_E_USAGE;
    n = options->size < sizeof(*ret) ? options->size : sizeof(*ret);
    memcpy(ret, options, n);
    ret->size = sizeof(*ret);
    for (size_t i = sizeof(*ret); i < options->size; i++)
        if (((const unsigned char *)options)[i])
            return moert_fail(err, MOERT_E_USAGE, "struct-size",
                              "struct moert_context_options has size %u and sets fields past the %zu bytes that this "
                              "version of the library knows",
                              options->size, sizeof(*ret));
    if (ret->flags & ~(uint32_t)CONTEXT_FLAGS)
        return moert_fail(err, MOERT_E_USAGE, "flag", "unknown flag bit %d",
                          __builtin_ctz(ret->flags & ~(uint32_t)CONTEXT_FLAGS));
    if (ret->allocator && (!MOERT_HAS(ret->allocator, free) || !ret->allocator->alloc || !ret->allocator->free))
        return moert_fail(err, MOERT_E_USAGE, "null", "the allocator lacks alloc or free");
    return MOERT_OK;
}

moert_status_t moert_context_create(const struct moert_context_options *options, moert_context_t **ret,
                                    struct moert_error *err)
{
    struct moert_context_options o;
    struct moert_context *context;
    moert_status_t status;

    if (!ret)
        return moert_fail_null(err, "ret");
    status = read_options(options, &o, err);
    if (status)
        return status;
    context = calloc(1, sizeof(*context));
    if (!context)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for a context");
    pthread_mutex_init(&context->lock, NULL);
    context->flags = o.flags;
    context->logger = (struct moert_logger){.fn = o.log, .ctx = o.log_ctx};
    context->allocator = o.allocator;
    context->owner_pid = getpid();
    if (!(o.flags & MOERT_CONTEXT_F_NO_MODULES))
        status = moert_loader_discover(context, o.driver_path, o.drivers, err);
    for (uint32_t i = 0; i < context->driver_count && !status; i++)
        if (context->drivers[i]->state == MOERT_DRIVER_PENDING)
            moert_loader_load(context, context->drivers[i]);
    if (status) {
        moert_context_destroy(context);
        return status;
    }
    *ret = context;
    return MOERT_OK;
}

static void close_drivers(struct moert_context *context)
{
    /* A forked child shares the vendor's objects with its parent and must not touch them. */
    if (context->owner_pid != getpid())
        return;
    for (uint32_t i = context->device_count; i-- > 0;)
        if (context->devices[i]->handle)
            context->devices[i]->driver->table->device->close(context->devices[i]->handle);
    for (uint32_t i = context->driver_count; i-- > 0;)
        if (context->drivers[i]->handle)
            context->drivers[i]->table->ops->close(context->drivers[i]->handle);
}

void moert_context_destroy(moert_context_t *context)
{
    if (!context)
        return;
    close_drivers(context);
    moert_loader_self_tests_free(context);
    for (uint32_t i = 0; i < context->device_count; i++)
        free(context->devices[i]);
    for (uint32_t i = 0; i < context->backend_count; i++)
        free(context->backends[i]);
    for (uint32_t i = 0; i < context->driver_count; i++) {
        struct moert_ctx_driver *driver = context->drivers[i];
        free(driver->path);
        free(driver->name);
        free(driver->version);
        free(driver->vendor);
        free(driver->reason);
        free(driver);
    }
    free(context->devices);
    free(context->backends);
    free(context->drivers);
    pthread_mutex_destroy(&context->lock);
    free(context);
}

moert_status_t moert_ctx_check_process(const struct moert_context *context, struct moert_error *err)
{
    int pid = getpid();

    if (pid == context->owner_pid)
        return MOERT_OK;
    return moert_fail(err, MOERT_E_USAGE, "state",
                      "the context was made by process %d and this is process %d; drivers do not survive fork, make a "
                      "context in the child",
                      context->owner_pid, pid);
}

/* With the lock held. */
static moert_status_t register_locked(struct moert_context *context, const struct moert_driver *table,
                                      struct moert_error *err)
{
    const char *name = MOERT_HAS(table, name) && table->name ? table->name : "";
    struct moert_ctx_driver *driver;

    for (uint32_t i = 0; i < context->driver_count; i++)
        if (!strcmp(context->drivers[i]->name, name) && context->drivers[i]->table)
            return moert_fail(err, MOERT_E_VALUE, "driver-state", "driver %s is there already (%s)", name,
                              context->drivers[i]->path[0] ? context->drivers[i]->path : "registered");
    driver = moert_loader_add_driver(context, "", name);
    if (!driver)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for driver %s", name);
    moert_loader_start(context, driver, table, NULL);
    if (driver->state == MOERT_DRIVER_INCOMPATIBLE || driver->state == MOERT_DRIVER_LOAD_FAILED)
        return moert_fail(err, MOERT_E_VALUE, "driver-state", "driver %s is %s: %s", name,
                          moert_driver_state_name(driver->state), driver->reason);
    return MOERT_OK;
}

moert_status_t moert_context_register(moert_context_t *context, const struct moert_driver *driver,
                                      struct moert_error *err)
{
    moert_status_t status;

    if (!context)
        return moert_fail_null(err, "context");
    if (!driver)
        return moert_fail_null(err, "driver");
    status = moert_ctx_check_process(context, err);
    if (status)
        return status;
    pthread_mutex_lock(&context->lock);
    status = register_locked(context, driver, err);
    pthread_mutex_unlock(&context->lock);
    return status;
}
