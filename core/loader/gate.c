/* core/loader/gate.c: is a driver's table one that the core can call? Sizes, flags, names and every mandatory op are
 * looked at once here, so that no later code has to. The first fault found is the reason. */
#include "config.h"

#include "core/base/text.h"
#include "core/loader/loader.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define BACKEND_FLAGS  0x1ffu /* MOERT_BACKEND_F_* of this minor */
#define BACKENDS_MAX   1024u
#define NAME_MAX_BYTES 63u

/* One mandatory op: its name and where its pointer is. A table that is too short for it does not have it. */
struct op {
    const char *name;
    size_t offset;
};

#define OP(type, field)                                                                                                \
    {                                                                                                                  \
#field, offsetof(struct type, field)                                                                           \
    }
static const struct op driver_ops[] = {OP(moert_driver_ops, probe),       OP(moert_driver_ops, open),
                                       OP(moert_driver_ops, close),       OP(moert_driver_ops, device_count),
                                       OP(moert_driver_ops, device_info), {NULL, 0}};
static const struct op device_ops[] = {OP(moert_device_ops, open),
                                       OP(moert_device_ops, close),
                                       OP(moert_device_ops, info),
                                       OP(moert_device_ops, buffer_alloc),
                                       OP(moert_device_ops, buffer_import),
                                       OP(moert_device_ops, buffer_free),
                                       OP(moert_device_ops, buffer_info),
                                       OP(moert_device_ops, queue_create),
                                       OP(moert_device_ops, queue_destroy),
                                       OP(moert_device_ops, queue_native),
                                       OP(moert_device_ops, queue_last),
                                       OP(moert_device_ops, queue_query),
                                       OP(moert_device_ops, queue_wait),
                                       OP(moert_device_ops, queue_wait_queue),
                                       OP(moert_device_ops, copy_in),
                                       OP(moert_device_ops, copy_out),
                                       OP(moert_device_ops, copy),
                                       OP(moert_device_ops, fill),
                                       {NULL, 0}};
static const struct op backend_ops[] = {OP(moert_backend_ops, supports),  OP(moert_backend_ops, layout),
                                        OP(moert_backend_ops, workspace), OP(moert_backend_ops, create),
                                        OP(moert_backend_ops, prepare),   OP(moert_backend_ops, update),
                                        OP(moert_backend_ops, run),       OP(moert_backend_ops, release),
                                        OP(moert_backend_ops, counters),  {NULL, 0}};
#undef OP

static int refuse(char *reason, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int refuse(char *reason, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(reason, MOERT_REASON_MAX, format, args);
    va_end(args);
    return -1;
}

/* `table` begins with its uint32_t size. */
static int check_ops(const void *table, const struct op *ops, const char *group, char *reason)
{
    uint32_t size;

    if (!table)
        return refuse(reason, "the table of %s ops is missing", group);
    memcpy(&size, table, sizeof(size));
    for (; ops->name; ops++) {
        void (*pointer)(void) = NULL;
        if (ops->offset + sizeof(pointer) <= size)
            memcpy(&pointer, (const char *)table + ops->offset, sizeof(pointer));
        if (!pointer)
            return refuse(reason, "%s op %s is missing", group, ops->name);
    }
    return 0;
}

/* Graph ops come as a set: half of it cannot be used. */
static int check_graph_ops(const struct moert_device_ops *ops, char *reason)
{
    int n = !!MOERT_DRV_OP(ops, capture_begin) + !!MOERT_DRV_OP(ops, capture_end) + !!MOERT_DRV_OP(ops, graph_launch) +
            !!MOERT_DRV_OP(ops, graph_destroy);

    if (n && n != 4)
        return refuse(reason,
                      "device ops capture_begin, capture_end, graph_launch and graph_destroy come together; "
                      "%d of 4 are there",
                      n);
    return 0;
}

static int check_schemes(const struct moert_backend *b, char *reason)
{
    if (!b->schemes || !b->scheme_count)
        return refuse(reason, "backend %s lists no schemes", b->name);
    for (uint32_t i = 0; i < b->scheme_count; i++) {
        const struct moert_scheme_pair *pair = &b->schemes[i];
        if (pair->weight == MOERT_SCHEME_NONE || pair->weight >= MOERT_SCHEME_COUNT ||
            (pair->activation != MOERT_SCHEME_NONE && pair->activation != MOERT_SCHEME_MXFP8))
            return refuse(reason, "backend %s: scheme pair %u is (%u, %u), which does not exist", b->name, i,
                          pair->weight, pair->activation);
    }
    return 0;
}

/* "cpu.reference" in driver "cpu". */
static int check_backend_name(const struct moert_driver *t, const struct moert_backend *b, uint32_t index, char *reason)
{
    size_t n = strlen(t->name);

    if (!b->name)
        return refuse(reason, "backend %u has no name", index);
    if (strncmp(b->name, t->name, n) || b->name[n] != '.' || strlen(b->name) > NAME_MAX_BYTES || !b->name[n + 1] ||
        b->name[n + 1 + strspn(b->name + n + 1, "abcdefghijklmnopqrstuvwxyz0123456789_")])
        return refuse(reason, "backend %u is named \"%.64s\"; it must be \"%s.\" and a word of a-z, 0-9 and _", index,
                      b->name, t->name);
    return 0;
}

static int check_backend(const struct moert_driver *t, uint32_t index, char *reason)
{
    const struct moert_backend *b = t->backends[index];

    if (!b)
        return refuse(reason, "backend %u is NULL", index);
    if (!MOERT_HAS(b, ops))
        return refuse(reason, "struct moert_backend %u has size %u, at least %zu is needed", index, b->size,
                      offsetof(struct moert_backend, ops) + sizeof(b->ops));
    if (check_backend_name(t, b, index, reason))
        return -1;
    if (b->flags & ~BACKEND_FLAGS)
        return refuse(reason, "backend %s: unknown flag bits 0x%x", b->name, b->flags & ~BACKEND_FLAGS);
    if ((b->flags & MOERT_BACKEND_F_OPT_IN) && (!b->auto_reason || !*b->auto_reason))
        return refuse(reason, "backend %s is opt-in and gives no auto_reason", b->name);
    if (b->numeric_class >= MOERT_CLASS_COUNT)
        return refuse(reason, "backend %s: numeric class %u of %d", b->name, b->numeric_class, MOERT_CLASS_COUNT);
    if (b->priority_decode > 100 || b->priority_prefill > 100)
        return refuse(reason, "backend %s: priorities %u and %u; 0 to 100 is the range", b->name, b->priority_decode,
                      b->priority_prefill);
    if (!b->block_size)
        return refuse(reason, "backend %s: block_size is 0; 1 means none", b->name);
    if (check_schemes(b, reason))
        return -1;
    if (check_ops(b->ops, backend_ops, "backend", reason)) {
        char missing[160];
        snprintf(missing, sizeof(missing), "%.150s", reason);
        return refuse(reason, "%s: %s", b->name, missing);
    }
    return 0;
}

/* Every name or alias of a backend. Index 0 is the name. NULL past the end. */
static const char *backend_word(const struct moert_backend *b, uint32_t index)
{
    if (!index)
        return b->name;
    if (!b->aliases)
        return NULL;
    for (uint32_t i = 0; i < index - 1; i++)
        if (!b->aliases[i])
            return NULL;
    return b->aliases[index - 1];
}

/* A word must lead to one backend: oracle.md 11. */
static int check_words(const struct moert_backend *a, const struct moert_backend *other, char *reason)
{
    const char *word, *taken;

    for (uint32_t i = 0; (word = backend_word(a, i)); i++)
        for (uint32_t j = 0; (taken = backend_word(other, j)); j++)
            if (moert_text_same_name(word, taken))
                return refuse(reason, "%s \"%s\" of backend %s belongs to backend %s already", i ? "alias" : "name",
                              word, a->name, other->name);
    return 0;
}

static int check_unique(const struct moert_context *context, const struct moert_driver *t, char *reason)
{
    for (uint32_t i = 0; i < t->backend_count; i++) {
        for (uint32_t j = 0; j < i; j++)
            if (check_words(t->backends[i], t->backends[j], reason))
                return -1;
        for (uint32_t j = 0; j < context->backend_count; j++)
            if (check_words(t->backends[i], context->backends[j]->table, reason))
                return -1;
    }
    return 0;
}

static int check_table(const struct moert_driver *t, const char *file_name, char *reason)
{
    static const char *const sanitizers[] = {"no sanitizer", "AddressSanitizer", "ThreadSanitizer"};

    if (!MOERT_HAS(t, backend_count))
        return refuse(reason, "struct moert_driver has size %u, at least %zu is needed", t->size,
                      offsetof(struct moert_driver, backend_count) + sizeof(t->backend_count));
    if (t->flags)
        return refuse(reason, "unknown flag bits 0x%x", t->flags);
    if (t->sanitizer > MOERT_SANITIZER_THREAD)
        return refuse(reason, "unknown sanitizer %u", t->sanitizer);
    if (t->sanitizer && t->sanitizer != MOERT_SANITIZER_ID)
        return refuse(reason, "is built with %s and libmoert with %s; build both with the same --enable-sanitizers",
                      sanitizers[t->sanitizer], sanitizers[MOERT_SANITIZER_ID]);
    if (!t->name || !moert_loader_name_is_legal(t->name))
        return refuse(reason, "driver name \"%.64s\" is not 1 to 31 of a-z, 0-9 and _", t->name ? t->name : "(NULL)");
    if (file_name && strcmp(t->name, file_name))
        return refuse(reason, "the driver calls itself \"%s\"; a file of that driver is named moert_%s.so", t->name,
                      t->name);
    if (!t->version || !t->vendor)
        return refuse(reason, "the driver's %s is NULL", t->version ? "vendor" : "version");
    if (t->backend_count > BACKENDS_MAX || (t->backend_count && !t->backends))
        return refuse(reason, "backend_count is %u and the array is %s", t->backend_count,
                      t->backends ? "there; at most 1024 are possible" : "NULL");
    return 0;
}

moert_driver_state_t moert_loader_gate(const struct moert_context *context, const struct moert_driver *table,
                                       const char *file_name, char reason[MOERT_REASON_MAX])
{
    if (check_table(table, file_name, reason) || check_ops(table->ops, driver_ops, "driver", reason) ||
        check_ops(table->device, device_ops, "device", reason) || check_graph_ops(table->device, reason))
        return MOERT_DRIVER_INCOMPATIBLE;
    for (uint32_t i = 0; i < table->backend_count; i++)
        if (check_backend(table, i, reason))
            return MOERT_DRIVER_INCOMPATIBLE;
    if (check_unique(context, table, reason))
        return MOERT_DRIVER_INCOMPATIBLE;
    return MOERT_DRIVER_READY;
}
