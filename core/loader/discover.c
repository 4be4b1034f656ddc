/* core/loader/discover.c: which files are candidates. Directories come from options, MOERT_DRIVER_PATH or the installed
 * place, absolute ones only; never the current directory. The first file of a name wins, the rest are shadowed. */
#include "config.h"

#include "core/base/error.h"
#include "core/base/options.h"
#include "core/base/text.h"
#include "core/loader/loader.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "moert_"
#define SUFFIX ".so"
/* Longest legal name: it has to fit struct moert_device_desc.driver. */
#define NAME_MAX_BYTES 31
/* Files beyond this in one directory are a mistake, not an installation. */
#define FILES_MAX 4096

int moert_loader_name_is_legal(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_");

    return n > 0 && n <= NAME_MAX_BYTES && !name[n];
}

/* "moert_cuda.so" -> "cuda", malloc'ed; NULL when the file is not named like a module (*ret_nomem tells the two apart).
 */
static char *module_name(const char *file, int *ret_nomem)
{
    size_t n = strlen(file), p = sizeof(PREFIX) - 1, s = sizeof(SUFFIX) - 1;
    char *name;

    if (n <= p + s || strncmp(file, PREFIX, p) || strcmp(file + n - s, SUFFIX))
        return NULL;
    name = strndup(file + p, n - p - s);
    if (!name)
        *ret_nomem = 1;
    return name;
}

static moert_status_t add_file(struct moert_context *context, const char *directory, const char *file,
                               struct moert_error *err)
{
    struct moert_text path = {0};
    int nomem = 0;
    char *name = module_name(file, &nomem);
    struct moert_ctx_driver *driver = NULL;

    if (!name && !nomem)
        return MOERT_OK;
    moert_text_add(&path, "%s%s%s", directory, directory[strlen(directory) - 1] == '/' ? "" : "/", file);
    if (name && !path.failed)
        driver = moert_loader_add_driver(context, path.text, name);
    if (driver && !moert_loader_name_is_legal(name))
        moert_loader_state(driver, MOERT_DRIVER_INCOMPATIBLE,
                           "the name \"%s\" is not a driver name: 1 to %d of a-z, 0-9 and _", name, NAME_MAX_BYTES);
    moert_text_free(&path);
    free(name);
    return driver ? MOERT_OK : moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for the list of modules");
}

static moert_status_t scan_directory(struct moert_context *context, const char *directory, struct moert_error *err)
{
    moert_status_t status = MOERT_OK;
    struct dirent *entry;
    unsigned files = 0;
    DIR *dir = opendir(directory);

    if (!dir) {
        /* A missing directory is an installation without modules; anything else deserves a word. */
        if (errno != ENOENT)
            moert_log(&context->logger, MOERT_LOG_WARN, "module directory %s: %s", directory, strerror(errno));
        return MOERT_OK;
    }
    while (!status && (entry = readdir(dir))) {
        if (++files > FILES_MAX) {
            moert_log(&context->logger, MOERT_LOG_WARN,
                      "module directory %s has more than %d files; the rest is ignored", directory, FILES_MAX);
            break;
        }
        status = add_file(context, directory, entry->d_name, err);
    }
    closedir(dir);
    return status;
}

static moert_status_t scan_path(struct moert_context *context, const char *path, struct moert_error *err)
{
    moert_status_t status = MOERT_OK;
    char *copy = strdup(path), *save = NULL;

    if (!copy)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for the module path");
    for (char *entry = strtok_r(copy, ":", &save); entry && !status; entry = strtok_r(NULL, ":", &save)) {
        if (entry[0] == '/')
            status = scan_directory(context, entry, err);
        else
            moert_log(&context->logger, MOERT_LOG_WARN,
                      "module directory \"%s\" is ignored: only absolute directories are searched", entry);
    }
    free(copy);
    return status;
}

/* Order by name. Directories were scanned in order, so entries of one name are put in order of their arrival, which
 * readdir cannot disturb: a directory holds a name once. */
static void sort_by_name(struct moert_context *context)
{
    for (uint32_t i = 1; i < context->driver_count; i++) {
        struct moert_ctx_driver *driver = context->drivers[i];
        uint32_t at = i;
        for (; at > 0 && strcmp(context->drivers[at - 1]->name, driver->name) > 0; at--)
            context->drivers[at] = context->drivers[at - 1];
        context->drivers[at] = driver;
    }
}

static void mark_shadowed(struct moert_context *context)
{
    struct moert_ctx_driver *first = NULL;

    for (uint32_t i = 0; i < context->driver_count; i++) {
        struct moert_ctx_driver *driver = context->drivers[i];
        if (first && !strcmp(first->name, driver->name))
            moert_loader_state(driver, MOERT_DRIVER_SHADOWED, "%s comes first in the search path", first->path);
        else
            first = driver;
    }
}

static int listed(const char *const *names, const char *name)
{
    for (; *names; names++)
        if (moert_text_same_name(*names, name))
            return 1;
    return 0;
}

static void warn_unknown(struct moert_context *context, const char *const *words)
{
    const char **known = calloc((size_t)context->driver_count + 1, sizeof(*known));

    if (!known)
        return;
    for (uint32_t i = 0; i < context->driver_count; i++)
        known[i] = context->drivers[i]->name;
    for (; *words; words++)
        if (!listed(known, *words)) {
            const char *nearest = moert_text_nearest(*words, known);
            moert_log(&context->logger, MOERT_LOG_WARN, "MOERT_DRIVERS: there is no module \"%s\"%s%s%s", *words,
                      nearest ? "; did you mean \"" : "", nearest ? nearest : "", nearest ? "\"?" : "");
        }
    free(known);
}

/* Cuts "^a, b" into words in place; returns how many. Words of the other sign are warned about and dropped. */
static size_t split_filter(struct moert_context *context, char *list, int negate, const char **ret_words, size_t room)
{
    size_t n = 0;
    char *save = NULL;

    for (char *word = strtok_r(list, ", \t", &save); word; word = strtok_r(NULL, ", \t", &save)) {
        int minus = word[0] == '^';
        if (minus && !negate)
            moert_log(&context->logger, MOERT_LOG_WARN,
                      "MOERT_DRIVERS: \"%s\" is ignored: a list names either drivers to load or, beginning with ^, "
                      "drivers to leave out",
                      word);
        else if (word[minus] && n < room)
            ret_words[n++] = word + minus;
    }
    return n;
}

static moert_status_t apply_filter(struct moert_context *context, const char *filter, struct moert_error *err)
{
    size_t room = strlen(filter) / 2 + 2, n;
    char *copy = strdup(filter);
    const char **words = calloc(room, sizeof(*words));
    int negate = filter[strspn(filter, ", \t")] == '^';

    if (!copy || !words) {
        free(copy);
        free(words);
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for the list of drivers");
    }
    n = split_filter(context, copy, negate, words, room - 1);
    for (uint32_t i = 0; n && i < context->driver_count; i++) {
        struct moert_ctx_driver *driver = context->drivers[i];
        if (driver->state == MOERT_DRIVER_PENDING && listed(words, driver->name) == negate)
            moert_loader_state(driver, MOERT_DRIVER_DISABLED, "%s MOERT_DRIVERS=%s",
                               negate ? "left out by" : "not among", filter);
    }
    warn_unknown(context, words);
    free(copy);
    free(words);
    return MOERT_OK;
}

moert_status_t moert_loader_discover(struct moert_context *context, const char *driver_path, const char *filter,
                                     struct moert_error *err)
{
    moert_status_t status;

    if (!driver_path)
        driver_path = moert_config_string(MOERT_CFG_DRIVER_PATH);
    if (!*driver_path)
        driver_path = MOERT_MODULEDIR;
    if (!filter)
        filter = moert_config_string(MOERT_CFG_DRIVERS);
    status = scan_path(context, driver_path, err);
    if (status)
        return status;
    sort_by_name(context);
    mark_shadowed(context);
    return apply_filter(context, filter, err);
}
