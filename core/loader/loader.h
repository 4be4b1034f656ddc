/* core/loader/loader.h: what the files of core/loader share. discover.c -> elf.c -> module.c (dlopen) -> gate.c. */
#ifndef MOERT_LOADER_LOADER_H
#define MOERT_LOADER_LOADER_H

#include "core/loader/context.h"

/* State of an entry that no step has decided yet. */
#define MOERT_DRIVER_PENDING ((moert_driver_state_t)MOERT_DRIVER_STATE_COUNT)

#define MOERT_REASON_MAX 1024

/* tables.c: entries are appended and never move; NULL or an error when memory is out. The caller holds the lock, or is
 * the only one who knows the context. */
struct moert_ctx_driver *moert_loader_add_driver(struct moert_context *context, const char *path, const char *name);
moert_status_t moert_loader_add_device(struct moert_context *context, struct moert_ctx_driver *driver, uint32_t index,
                                       const struct moert_device_desc *desc, struct moert_error *err);
moert_status_t moert_loader_add_backends(struct moert_context *context, struct moert_ctx_driver *driver,
                                         struct moert_error *err);
/* Replaces a string of an entry; keeps the old one when memory is out. */
void moert_loader_set(char **field, const char *value);
void moert_loader_state(struct moert_ctx_driver *driver, moert_driver_state_t state, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* discover.c: one entry per candidate file, sorted by name; entries that are to be loaded stay PENDING. */
moert_status_t moert_loader_discover(struct moert_context *context, const char *driver_path, const char *filter,
                                     struct moert_error *err);
/* [a-z0-9_]+, at most 31 bytes (the room in struct moert_device_desc). */
int moert_loader_name_is_legal(const char *name);

/* elf.c: reads the file before the dynamic linker does. READY: may be opened; else the state with its reason. */
moert_driver_state_t moert_loader_check_file(const char *path, char reason[MOERT_REASON_MAX]);

/* gate.c: is this table one that the core can call? READY or INCOMPATIBLE with its reason. `file_name`: the name that
 * the module's file promises, NULL for a registered driver. */
moert_driver_state_t moert_loader_gate(const struct moert_context *context, const struct moert_driver *table,
                                       const char *file_name, char reason[MOERT_REASON_MAX]);

/* self_test.c: the results that a context holds. */
void moert_loader_self_tests_free(struct moert_context *context);

/* module.c: takes a PENDING entry to its final state. */
void moert_loader_load(struct moert_context *context, struct moert_ctx_driver *driver);
/* The same for a table in the process: gate, probe, open, devices, backends. */
void moert_loader_start(struct moert_context *context, struct moert_ctx_driver *driver,
                        const struct moert_driver *table, const char *file_name);

#endif
