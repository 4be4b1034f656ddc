/* core/loader/tables.c: the context's tables: adding entries, and reading them through the public API. */
#include "config.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/loader/loader.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- adding ---- */

/* Room for one more pointer. Tables hold tens of entries, so they grow one by one. */
static int grow(void *table, uint32_t count)
{
    void *grown = realloc(*(void **)table, ((size_t)count + 1) * sizeof(void *));

    if (!grown)
        return -1;
    *(void **)table = grown;
    return 0;
}

static moert_status_t no_memory(struct moert_error *err)
{
    return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for the context's tables");
}

struct moert_ctx_driver *moert_loader_add_driver(struct moert_context *context, const char *path, const char *name)
{
    struct moert_ctx_driver *driver = calloc(1, sizeof(*driver));

    if (!driver)
        return NULL;
    driver->state = MOERT_DRIVER_PENDING;
    driver->context = context;
    driver->path = strdup(path);
    driver->name = strdup(name);
    driver->version = strdup("");
    driver->vendor = strdup("");
    driver->reason = strdup("");
    if (!driver->path || !driver->name || !driver->version || !driver->vendor || !driver->reason ||
        grow(&context->drivers, context->driver_count)) {
        free(driver->path);
        free(driver->name);
        free(driver->version);
        free(driver->vendor);
        free(driver->reason);
        free(driver);
        return NULL;
    }
    context->drivers[context->driver_count++] = driver;
    return driver;
}

moert_status_t moert_loader_add_device(struct moert_context *context, struct moert_ctx_driver *driver, uint32_t index,
                                       const struct moert_device_desc *desc, struct moert_error *err)
{
    struct moert_ctx_device *device = calloc(1, sizeof(*device));

    if (!device || grow(&context->devices, context->device_count)) {
        free(device);
        return no_memory(err);
    }
    device->driver = driver;
    device->index_in_driver = index;
    device->desc = *desc;
    context->devices[context->device_count++] = device;
    return MOERT_OK;
}

moert_status_t moert_loader_add_backends(struct moert_context *context, struct moert_ctx_driver *driver,
                                         struct moert_error *err)
{
    for (uint32_t i = 0; i < driver->table->backend_count; i++) {
        struct moert_ctx_backend *backend = calloc(1, sizeof(*backend));
        if (!backend || grow(&context->backends, context->backend_count)) {
            free(backend);
            return no_memory(err);
        }
        backend->driver = driver;
        backend->table = driver->table->backends[i];
        context->backends[context->backend_count++] = backend;
    }
    return MOERT_OK;
}

void moert_loader_set(char **field, const char *value)
{
    char *copy = strdup(value);

    if (!copy)
        return;
    free(*field);
    *field = copy;
}

void moert_loader_state(struct moert_ctx_driver *driver, moert_driver_state_t state, const char *format, ...)
{
    char reason[MOERT_REASON_MAX];
    va_list args;

    va_start(args, format);
    vsnprintf(reason, sizeof(reason), format, args);
    va_end(args);
    driver->state = state;
    moert_loader_set(&driver->reason, reason);
}

/* ---- reading ---- */

static void lock(const struct moert_context *context)
{
    pthread_mutex_lock(&((struct moert_context *)(uintptr_t)context)->lock);
}

static void unlock(const struct moert_context *context)
{
    pthread_mutex_unlock(&((struct moert_context *)(uintptr_t)context)->lock);
}

static uint32_t locked_count(const struct moert_context *context, const uint32_t *count)
{
    uint32_t n;

    lock(context);
    n = *count;
    unlock(context);
    return n;
}

uint32_t moert_driver_count(const moert_context_t *context)
{
    return context ? locked_count(context, &context->driver_count) : 0;
}

uint32_t moert_device_count(const moert_context_t *context)
{
    return context ? locked_count(context, &context->device_count) : 0;
}

uint32_t moert_backend_count(const moert_context_t *context)
{
    return context ? locked_count(context, &context->backend_count) : 0;
}

const char *moert_driver_state_name(moert_driver_state_t state)
{
    static const char *const names[MOERT_DRIVER_STATE_COUNT] = {"ready",    "no-device",    "disabled",
                                                                "shadowed", "incompatible", "load-failed"};

    return state < MOERT_DRIVER_STATE_COUNT ? names[state] : NULL;
}

static moert_status_t check_arguments(const void *context, const void *ret, struct moert_error *err)
{
    if (!context)
        return moert_fail_null(err, "context");
    if (!ret)
        return moert_fail_null(err, "ret");
    return MOERT_OK;
}

static moert_status_t no_entry(struct moert_error *err, const char *what, uint32_t index, uint32_t count)
{
    return moert_fail(err, MOERT_E_VALUE, "size", "%s %u of %u", what, index, count);
}

moert_status_t moert_driver_get(const moert_context_t *context, uint32_t index, struct moert_driver_info *ret,
                                struct moert_error *err)
{
    moert_status_t status = check_arguments(context, ret, err);
    const struct moert_ctx_driver *d;

    if (!status)
        status = moert_check_size(err, "moert_driver_info", ret->size, sizeof(*ret));
    if (status)
        return status;
    lock(context);
    if (index >= context->driver_count) {
        status = no_entry(err, "driver", index, context->driver_count);
    } else {
        d = context->drivers[index];
        ret->state = d->state;
        ret->path = d->path;
        ret->name = d->name;
        ret->version = d->version;
        ret->vendor = d->vendor;
        ret->reason = d->reason;
        ret->sha256 = d->sha256;
        ret->backend_count = d->table ? d->table->backend_count : 0;
        ret->device_count = 0;
        for (uint32_t i = 0; i < context->device_count; i++)
            ret->device_count += context->devices[i]->driver == d;
    }
    unlock(context);
    return status;
}

static const char *const no_aliases[] = {NULL};

moert_status_t moert_backend_get(const moert_context_t *context, uint32_t index, struct moert_backend_info *ret,
                                 struct moert_error *err)
{
    moert_status_t status = check_arguments(context, ret, err);
    const struct moert_backend *b;

    if (!status)
        status = moert_check_size(err, "moert_backend_info", ret->size, sizeof(*ret));
    if (status)
        return status;
    lock(context);
    if (index >= context->backend_count) {
        status = no_entry(err, "backend", index, context->backend_count);
    } else {
        b = context->backends[index]->table;
        ret->flags = b->flags;
        ret->name = b->name;
        ret->aliases = b->aliases ? b->aliases : no_aliases;
        ret->driver = context->backends[index]->driver->name;
        ret->auto_reason = b->flags & MOERT_BACKEND_F_OPT_IN ? b->auto_reason : NULL;
        ret->numeric_class = b->numeric_class;
        ret->block_size = b->block_size;
        ret->priority_decode = b->priority_decode;
        ret->priority_prefill = b->priority_prefill;
        ret->accumulator_unit = b->accumulator_unit;
        ret->activation_eps = b->activation_eps;
        ret->schemes = b->schemes;
        ret->scheme_count = b->scheme_count;
        ret->driver_state = context->backends[index]->driver->state;
    }
    unlock(context);
    return status;
}

static int backend_has_name(const struct moert_backend *b, const char *name)
{
    if (moert_text_same_name(b->name, name))
        return 1;
    for (const char *const *alias = b->aliases ? b->aliases : no_aliases; *alias; alias++)
        if (moert_text_same_name(*alias, name))
            return 1;
    return 0;
}

/* Error `backend-unknown` with the nearest of all names and aliases. */
static moert_status_t unknown_backend(const struct moert_context *context, const char *name, struct moert_error *err)
{
    size_t n = 0;
    const char **words, *nearest;
    moert_status_t status;

    for (uint32_t i = 0; i < context->backend_count; i++) {
        const char *const *alias = context->backends[i]->table->aliases;
        for (n++; alias && *alias; alias++)
            n++;
    }
    words = calloc(n + 1, sizeof(*words));
    if (!words)
        return no_memory(err);
    n = 0;
    for (uint32_t i = 0; i < context->backend_count; i++) {
        const char *const *alias = context->backends[i]->table->aliases;
        words[n++] = context->backends[i]->table->name;
        for (; alias && *alias; alias++)
            words[n++] = *alias;
    }
    nearest = moert_text_nearest(name, words);
    if (nearest)
        status = moert_fail(err, MOERT_E_NO_BACKEND, "backend-unknown", "unknown backend \"%s\"; did you mean \"%s\"?",
                            name, nearest);
    else
        status = moert_fail(err, MOERT_E_NO_BACKEND, "backend-unknown", "unknown backend \"%s\"; %u are known", name,
                            context->backend_count);
    free(words);
    return status;
}

moert_status_t moert_backend_find(const moert_context_t *context, const char *name, uint32_t *ret,
                                  struct moert_error *err)
{
    moert_status_t status = check_arguments(context, ret, err);
    uint32_t i;

    if (!status && !name)
        status = moert_fail_null(err, "name");
    if (status)
        return status;
    lock(context);
    for (i = 0; i < context->backend_count && !backend_has_name(context->backends[i]->table, name); i++)
        ;
    if (i < context->backend_count)
        *ret = i;
    else
        status = unknown_backend(context, name, err);
    unlock(context);
    return status;
}

moert_status_t moert_device_find(moert_context_t *context, const char *id, uint32_t *ret, struct moert_error *err)
{
    moert_status_t status = check_arguments(context, ret, err);
    struct moert_text known = {0};
    uint32_t i;

    if (!status && !id)
        status = moert_fail_null(err, "id");
    if (status)
        return status;
    lock(context);
    for (i = 0; i < context->device_count && strcmp(context->devices[i]->desc.id, id) != 0; i++)
        moert_text_add(&known, "%s%s", i ? ", " : "", context->devices[i]->desc.id);
    if (i < context->device_count)
        *ret = i;
    else
        status = moert_fail(err, MOERT_E_VALUE, "device-unknown", "unknown device \"%s\"; known: %s", id,
                            known.text ? known.text : "none");
    unlock(context);
    moert_text_free(&known);
    return status;
}
