/* core/base/options.h: the effective MOERT_* options. The environment is read once, here and nowhere else. */
#ifndef MOERT_BASE_OPTIONS_H
#define MOERT_BASE_OPTIONS_H

#include <moert/base.h>

enum moert_config_id {
#define OPTION(id, name, type, fallback, setid, help) MOERT_CFG_##id,
#include "core/base/config.def"
#undef OPTION
    MOERT_CFG_COUNT
};

/* Value as text, never NULL. Static. Thread-safe. */
const char *moert_config_string(enum moert_config_id id);
/* Value of a size ("512M") or count option; a malformed value gives the default (and was warned about). */
uint64_t moert_config_number(enum moert_config_id id);
/* Value by name ("MOERT_THREADS"), NULL when there is no such option. */
const char *moert_config_by_name(const char *name);
/* $XDG_<what>_HOME or its default below $HOME; "" when neither is set or in a set-id process. `out` is always filled. */
void moert_config_xdg_dir(const char *variable, const char *fallback, char *out, size_t size);

#endif
