/* core/loader/quarantine.c: self-test results that outlive the process. The file is only trusted when it and its
 * directory belong to this user and nobody else may write them; anything odd about it costs a warning and one more
 * self-test. */
#include "config.h"

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/options.h"
#include "core/base/text.h"
#include "core/loader/self_test.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_NAME   "quarantine.json"
#define FILE_MAX    (1 << 20)
#define ENTRIES_MAX 2048u

/* ---- the directory ---- */

/* malloc'ed; NULL when there is no place. */
static char *state_directory(const struct moert_logger *logger)
{
    const char *option = moert_config_string(MOERT_CFG_STATE_DIR);
    struct moert_text path = {0};
    char base[4096];

    if (*option == '/')
        return strdup(option);
    if (*option)
        moert_log(logger, MOERT_LOG_WARN, "MOERT_STATE_DIR=%s is ignored: it must be absolute", option);
    moert_config_xdg_dir("XDG_STATE_HOME", ".local/state", base, sizeof(base));
    if (!base[0])
        return NULL;
    moert_text_add(&path, "%s/moert", base);
    return path.text;
}

/* mkdir -p, private. Errors show when the directory is looked at. */
static void make_directory(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0700);
        *slash = '/';
    }
    mkdir(path, 0700);
}

/* Ours, and nobody else may write there. */
static int is_trusted(const struct stat *st)
{
    return st->st_uid == geteuid() && !(st->st_mode & (S_IWGRP | S_IWOTH));
}

/* A descriptor of the directory, -1 when it is missing or cannot be trusted. */
static int open_directory(const struct moert_logger *logger, char *path, int create)
{
    struct stat st;
    int fd;

    if (create)
        make_directory(path);
    fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        if (create || errno != ENOENT)
            moert_log(logger, MOERT_LOG_DEBUG, "state directory %s: %s", path, strerror(errno));
        return -1;
    }
    if (!fstat(fd, &st) && is_trusted(&st))
        return fd;
    moert_log(logger, MOERT_LOG_WARN,
              "state directory %s is not used: it must belong to user %u and be writable by no one else", path,
              (unsigned)geteuid());
    close(fd);
    return -1;
}

/* ---- the file ---- */

static json_t *parse(int fd, size_t size)
{
    char *text = malloc(size + 1);
    json_t *root = NULL;
    ssize_t n = text ? read(fd, text, size) : -1;

    if (n > 0)
        root = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, NULL);
    free(text);
    if (root && (json_integer_value(json_object_get(root, "schema")) != 1 ||
                 !json_is_array(json_object_get(root, "entries")))) {
        json_decref(root);
        root = NULL;
    }
    return root;
}

static json_t *load(const struct moert_logger *logger, int directory, const char *path)
{
    int fd = openat(directory, FILE_NAME, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    const char *fault = NULL;
    json_t *root = NULL;
    struct stat st;

    if (fd < 0 && errno == ENOENT)
        return NULL;
    if (fd < 0 || fstat(fd, &st))
        fault = strerror(errno);
    else if (!S_ISREG(st.st_mode) || !is_trusted(&st))
        fault = "it is no file of this user that only this user may write";
    else if (st.st_size > FILE_MAX)
        fault = "it is larger than 1 MiB";
    else if (!(root = parse(fd, (size_t)st.st_size)))
        fault = "it is damaged";
    if (fault)
        moert_log(logger, MOERT_LOG_WARN, "%s/" FILE_NAME " is ignored and will be written anew: %s", path, fault);
    if (fd >= 0)
        close(fd);
    return root;
}

static int entry_is(const json_t *entry, const struct moert_quarantine_key *key)
{
    const char *module = json_string_value(json_object_get(entry, "module"));
    const char *arch = json_string_value(json_object_get(entry, "arch"));
    const char *backend = json_string_value(json_object_get(entry, "backend"));

    return module && arch && backend && !strcmp(module, key->sha256) && !strcmp(arch, key->arch) &&
           !strcmp(backend, key->backend);
}

int moert_quarantine_find(const struct moert_logger *logger, const struct moert_quarantine_key *key, int *ret_passed,
                          char detail[MOERT_SELF_TEST_DETAIL])
{
    char *path = state_directory(logger);
    int directory = path ? open_directory(logger, path, 0) : -1, found = 0;
    json_t *root = directory >= 0 ? load(logger, directory, path) : NULL, *entry;
    size_t i;

    json_array_foreach(json_object_get(root, "entries"), i, entry)
    {
        const char *outcome = json_string_value(json_object_get(entry, "outcome"));
        const char *text = json_string_value(json_object_get(entry, "detail"));
        if (found || !outcome || !entry_is(entry, key) ||
            (strcmp(outcome, "pass") != 0 && strcmp(outcome, "fail") != 0))
            continue;
        found = 1;
        *ret_passed = !strcmp(outcome, "pass");
        strncpy(detail, text ? text : "", MOERT_SELF_TEST_DETAIL - 1);
        detail[MOERT_SELF_TEST_DETAIL - 1] = 0;
    }
    json_decref(root);
    if (directory >= 0)
        close(directory);
    free(path);
    return found;
}

/* The entries without the one of `key`, and no more than the file may hold; the oldest go first. */
static json_t *entries_without(json_t *root, const struct moert_quarantine_key *key)
{
    json_t *old = json_object_get(root, "entries"), *kept = json_array(), *entry;
    size_t i, count = json_array_size(old);

    json_array_foreach(old, i, entry) if (i + ENTRIES_MAX > count && !entry_is(entry, key))
        json_array_append(kept, entry);
    return kept;
}

static void save(const struct moert_logger *logger, const char *path, json_t *entries)
{
    struct moert_error error = MOERT_ERROR_INIT;
    struct moert_text file = {0};
    json_t *root = json_pack("{s:i,s:s,s:O}", "schema", 1, "kind", "moert.quarantine", "entries", entries);
    char *text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;

    moert_text_add(&file, "%s/" FILE_NAME, path);
    if (!text || file.failed)
        moert_log(logger, MOERT_LOG_DEBUG, "self-test result is not remembered: no memory");
    else if (moert_file_write_all(file.text, text, strlen(text), &error))
        moert_log(logger, MOERT_LOG_DEBUG, "self-test result is not remembered: %s", error.text);
    moert_text_free(&file);
    free(text);
    json_decref(root);
}

void moert_quarantine_store(const struct moert_logger *logger, const struct moert_quarantine_key *key, int passed,
                            const char *detail)
{
    char *path = state_directory(logger);
    int directory = path ? open_directory(logger, path, detail != NULL) : -1;
    json_t *root, *entries;

    if (directory >= 0) {
        /* Two processes that store at once must not lose each other's entry. */
        flock(directory, LOCK_EX);
        root = load(logger, directory, path);
        entries = entries_without(root, key);
        if (detail)
            json_array_append_new(entries, json_pack("{s:s,s:s,s:s,s:s,s:s}", "module", key->sha256, "arch", key->arch,
                                                     "backend", key->backend, "outcome", passed ? "pass" : "fail",
                                                     "detail", detail));
        if (detail || root)
            save(logger, path, entries);
        json_decref(entries);
        json_decref(root);
        close(directory);
    }
    free(path);
}
