/* core/oracle/candidates.c: who could serve: every backend of every module on every device of its driver, present or
 * described; modules that could not be asked; names that are known and not provided. First step of select.c. */
#include "config.h"

#include "core/oracle/trail.h"

#include "core/base/error.h"

#include <string.h>

static moert_status_t no_memory(struct moert_error *err)
{
    return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for the candidates");
}

/* The context's tables as they are now; entries never move, the arrays may. */
static moert_status_t snapshot(struct moert_oracle_trail *trail, uint32_t described, struct moert_error *err)
{
    struct moert_context *context = trail->context;
    struct moert_arena *arena = &trail->arena;
    uint32_t n = 0;

    pthread_mutex_lock(&context->lock);
    trail->backends = moert_arena_alloc(arena, context->backend_count, sizeof(void *));
    trail->drivers = moert_arena_alloc(arena, context->driver_count, sizeof(void *));
    trail->devices = moert_arena_alloc(arena, (size_t)context->device_count + described, sizeof(*trail->devices));
    if (!arena->failed) {
        for (; n < context->backend_count; n++)
            trail->backends[n] = context->backends[n];
        trail->backend_count = n;
        for (n = 0; n < context->driver_count; n++)
            trail->drivers[n] = context->drivers[n];
        trail->driver_count = n;
        for (n = 0; n < context->device_count; n++) {
            trail->devices[n].desc = context->devices[n]->desc;
            trail->devices[n].driver = context->devices[n]->driver;
            trail->devices[n].index = n;
        }
        trail->device_count = n;
    }
    pthread_mutex_unlock(&context->lock);
    return arena->failed ? no_memory(err) : MOERT_OK;
}

/* Free memory as it is now, where the driver can say. A driver that fails here leaves the description of the start. */
static void refresh_devices(struct moert_oracle_trail *trail)
{
    for (uint32_t i = 0; i < trail->device_count; i++) {
        struct moert_device_desc now = {.size = sizeof(now)};
        if (!moert_device_get(trail->context, trail->devices[i].index, &now, NULL))
            trail->devices[i].desc = now;
    }
}

static moert_status_t add_described(struct moert_oracle_trail *trail, const struct moert_select_options *options,
                                    struct moert_error *err)
{
    for (uint32_t i = 0; i < options->described_count; i++) {
        const struct moert_device_desc *d = &options->described[i];
        struct moert_oracle_device *device = &trail->devices[trail->device_count];

        if (moert_check_size(err, "moert_device_desc", d->size, sizeof(*d)))
            return MOERT_E_USAGE;
        if (d->flags & MOERT_DEVICE_F_PRESENT)
            return moert_fail(err, MOERT_E_USAGE, "flag", "described device \"%.31s\" has the flag PRESENT", d->id);
        if (!memchr(d->id, 0, sizeof(d->id)) || !d->id[0] || !memchr(d->driver, 0, sizeof(d->driver)))
            return moert_fail(err, MOERT_E_USAGE, "field", "described device %u has no id or an unterminated string",
                              i);
        for (uint32_t j = 0; j < trail->device_count; j++)
            if (!strcmp(trail->devices[j].desc.id, d->id))
                return moert_fail(err, MOERT_E_VALUE, "field",
                                  "described device \"%s\" has the id of another device; give it an id of its own",
                                  d->id);
        device->desc = *d;
        device->index = MOERT_NO_INDEX;
        trail->device_count++;
    }
    return MOERT_OK;
}

static struct moert_oracle_candidate *add(struct moert_oracle_trail *trail, const char *backend,
                                          const struct moert_oracle_device *device)
{
    struct moert_oracle_candidate *c = moert_arena_alloc(&trail->arena, 1, sizeof(*c));

    if (trail->candidate_count == trail->candidate_room) {
        uint32_t room = trail->candidate_room ? trail->candidate_room * 2 : 32;
        struct moert_oracle_candidate **grown = moert_arena_alloc(&trail->arena, room, sizeof(*grown));
        if (!grown)
            return NULL;
        if (trail->candidate_count)
            memcpy(grown, trail->candidates, trail->candidate_count * sizeof(*grown));
        trail->candidates = grown;
        trail->candidate_room = room;
    }
    if (!c)
        return NULL;
    c->backend = backend;
    c->backend_index = MOERT_NO_INDEX;
    c->device = device;
    c->id = moert_arena_format(&trail->arena, "%s@%s", backend, device ? device->desc.id : "none");
    trail->candidates[trail->candidate_count++] = c;
    return c;
}

static int serves(const struct moert_ctx_driver *driver, const struct moert_oracle_device *device)
{
    return device->driver ? device->driver == driver : !strcmp(device->desc.driver, driver->name);
}

/* A backend on each of its devices, or on none when there is no device of its driver. */
static void add_backend(struct moert_oracle_trail *trail, uint32_t index)
{
    const struct moert_ctx_backend *b = trail->backends[index];
    uint32_t first = trail->candidate_count;

    for (uint32_t i = 0; i < trail->device_count; i++)
        if (serves(b->driver, &trail->devices[i]))
            add(trail, b->table->name, &trail->devices[i]);
    if (first == trail->candidate_count)
        add(trail, b->table->name, NULL);
    for (; first < trail->candidate_count; first++) {
        struct moert_oracle_candidate *c = trail->candidates[first];
        c->backend_index = index;
        c->table = b->table;
        c->driver = b->driver;
        c->driver_name = b->driver->name;
        c->priority =
            trail->question.phase == MOERT_PHASE_DECODE ? b->table->priority_decode : b->table->priority_prefill;
    }
}

/* Was this module refused while another entry of its name serves, or is listed already? */
static int is_spare(const struct moert_oracle_trail *trail, uint32_t index)
{
    for (uint32_t i = 0; i < trail->driver_count; i++)
        if (i != index && (trail->drivers[i]->table || i < index) &&
            !strcmp(trail->drivers[i]->name, trail->drivers[index]->name))
            return 1;
    return 0;
}

/* A module whose backends are not known: one candidate "cuda.*" per described device of it, or one in all. */
static void add_silent_driver(struct moert_oracle_trail *trail, const struct moert_ctx_driver *driver)
{
    const char *name = moert_arena_format(&trail->arena, "%s.*", driver->name);
    uint32_t first = trail->candidate_count;

    for (uint32_t i = 0; i < trail->device_count; i++)
        if (serves(driver, &trail->devices[i]))
            add(trail, name, &trail->devices[i]);
    if (first == trail->candidate_count)
        add(trail, name, NULL);
    for (; first < trail->candidate_count; first++) {
        trail->candidates[first]->driver = driver;
        trail->candidates[first]->driver_name = driver->name;
    }
}

/* Described devices of a driver that has no module here. */
static void add_missing_driver(struct moert_oracle_trail *trail, const struct moert_oracle_device *device)
{
    struct moert_oracle_candidate *c;

    for (uint32_t i = 0; i < trail->driver_count; i++)
        if (trail->drivers[i]->state != MOERT_DRIVER_SHADOWED && serves(trail->drivers[i], device))
            return;
    c = add(trail, moert_arena_format(&trail->arena, "%s.*", device->desc.driver), device);
    if (c)
        c->driver_name = device->desc.driver;
}

static void add_not_provided(struct moert_oracle_trail *trail, const struct moert_oracle_known *known)
{
    struct moert_oracle_candidate *c;

    for (uint32_t i = 0; i < trail->backend_count; i++) {
        if (moert_oracle_name_matches(trail->backends[i]->table, known->name))
            return;
        for (uint32_t j = 0; j < 3 && known->aliases[j]; j++)
            if (moert_oracle_name_matches(trail->backends[i]->table, known->aliases[j]))
                return;
    }
    c = add(trail, known->name, NULL);
    if (c)
        c->not_provided = known->reason;
}

moert_status_t moert_oracle_collect(struct moert_oracle_trail *trail, const struct moert_select_options *options,
                                    struct moert_error *err)
{
    moert_status_t status = snapshot(trail, options->described_count, err);

    if (status)
        return status;
    refresh_devices(trail);
    status = add_described(trail, options, err);
    if (status)
        return status;
    for (uint32_t i = 0; i < trail->backend_count; i++)
        if (trail->backends[i]->driver->state != MOERT_DRIVER_SHADOWED)
            add_backend(trail, i);
    for (uint32_t i = 0; i < trail->driver_count; i++)
        if (!trail->drivers[i]->table && trail->drivers[i]->state != MOERT_DRIVER_SHADOWED && !is_spare(trail, i))
            add_silent_driver(trail, trail->drivers[i]);
    for (uint32_t i = 0; i < trail->device_count; i++)
        if (!trail->devices[i].driver)
            add_missing_driver(trail, &trail->devices[i]);
    for (uint32_t i = 0; i < moert_oracle_known_count; i++)
        if (moert_oracle_known_names[i].reason)
            add_not_provided(trail, &moert_oracle_known_names[i]);
    return trail->arena.failed ? no_memory(err) : MOERT_OK;
}
