/* tools/quantize_target.c: the directory that a conversion writes. It lies apart from the source, belongs to one run at
 * a time, and holds nothing that the run would mix with its own files. */
#include "config.h"

#include "tools/files.h"
#include "tools/quantize_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static int lies_in(const char *inner, const char *outer)
{
    size_t n = strlen(outer);
    return !strncmp(inner, outer, n) && (inner[n] == 0 || inner[n] == '/' || !strcmp(outer, "/"));
}

/* Absolute path of a directory that may not exist yet: then of its parent, which holds it. NULL when neither is there.
 */
static char *resolve(const char *path)
{
    char *real = realpath(path, NULL), *copy, *end;

    if (real)
        return real;
    copy = strdup(path);
    if (!copy)
        return NULL;
    end = copy + strlen(copy);
    while (end > copy + 1 && end[-1] == '/')
        *--end = 0;
    end = strrchr(copy, '/');
    if (end)
        end[end == copy] = 0; /* the root stays "/" */
    real = realpath(end ? copy : ".", NULL);
    free(copy);
    return real;
}

/* Looks before anything is made. An existing destination may not hold the source either. */
static moert_status_t check_apart(const char *source, const char *destination, struct moert_error *err)
{
    char *a = realpath(source, NULL), *b = resolve(destination);
    struct stat st;
    const char *inner = NULL, *outer = NULL;

    if (a && b && lies_in(b, a))
        inner = destination, outer = source;
    else if (a && b && !stat(destination, &st) && lies_in(a, b))
        inner = source, outer = destination;
    free(a);
    free(b);
    if (inner)
        return tool_set_error(err, MOERT_E_USAGE, "overlap", "%s lies in %s; give another directory", inner, outer);
    return MOERT_OK;
}

moert_status_t quant_make_directory(const char *path, struct moert_error *err)
{
    struct stat st;

    if (!mkdir(path, 0777) || (errno == EEXIST && !stat(path, &st) && S_ISDIR(st.st_mode)))
        return MOERT_OK;
    return tool_set_error(err, MOERT_E_OUTPUT, "output-write", "%s: %s", path, strerror(errno));
}

/* The lock is on the directory itself: files in it are replaced by renaming, which would leave a lock on one of them
 * behind. It ends with the process, however that ends. */
static moert_status_t lock(const struct quant_run *run, const char *path, int *ret_fd, struct moert_error *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return tool_set_error(err, MOERT_E_OUTPUT, "output-write", "%s: %s", path, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB)) {
        if (errno == EWOULDBLOCK) {
            close(fd);
            return tool_set_error(err, MOERT_E_OUTPUT, "output-write",
                                  "another run is writing to %s; wait for it, or give another directory", path);
        }
        tool_note(run->tool, "%s cannot be locked (%s): start no second run into it", path, strerror(errno));
    }
    *ret_fd = fd;
    return MOERT_OK;
}

/* Calls `each` for every entry until one fails. */
static moert_status_t scan(const struct quant_run *run, const char *path,
                           moert_status_t (*each)(const struct quant_run *, const char *directory, const char *name,
                                                  struct moert_error *),
                           struct moert_error *err)
{
    DIR *directory = opendir(path);
    const struct dirent *entry;
    moert_status_t status = MOERT_OK;

    if (!directory)
        return tool_set_error(err, MOERT_E_OUTPUT, "output-write", "%s: %s", path, strerror(errno));
    while (!status && (entry = readdir(directory)))
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            status = each(run, path, entry->d_name, err);
    closedir(directory);
    return status;
}

static moert_status_t refuse_entry(const struct quant_run *run, const char *directory, const char *name,
                                   struct moert_error *err)
{
    (void)name;
    return tool_set_error(err, MOERT_E_OUTPUT, "output-write",
                          "%s is not empty%s; give a new directory, or %s--force to replace what is there", directory,
                          run->options->resume ? " and holds no unfinished run" : "",
                          run->options->resume ? "" : "--resume to go on with an unfinished run, or ");
}

/* What a killed run leaves behind; and what makes a checkpoint of a directory: left in place, an old index would name
 * shards beside the new ones. --resume removes the former only. */
static int is_obsolete(const struct quant_run *run, const char *name)
{
    static const char *const patterns[] = {"*.safetensors.tmp.*", QUANT_JOURNAL ".tmp.*", "config.json", QUANT_INDEX,
                                           "model*.safetensors"};
    size_t count = run->options->force ? sizeof(patterns) / sizeof(*patterns) : 2;

    for (size_t i = 0; i < count; i++)
        if (!fnmatch(patterns[i], name, 0))
            return 1;
    return 0;
}

/* A source may hold links into the directory. */
static moert_status_t check_source(const struct quant_run *run, const char *directory, const char *name,
                                   struct moert_error *err)
{
    char *path = tool_path_join(directory, name);
    moert_status_t status = path ? MOERT_OK : tool_no_memory(err);

    for (uint32_t f = 0; !status && f < moert_checkpoint_file_count(run->checkpoint); f++) {
        const char *source = moert_safetensors_path(moert_checkpoint_file(run->checkpoint, f));
        if (tool_same_file(path, source))
            status = tool_set_error(err, MOERT_E_USAGE, "overlap", "%s and %s are the same file; give another DST",
                                    source, path);
    }
    free(path);
    return status;
}

static moert_status_t remove_obsolete(const struct quant_run *run, const char *directory, const char *name,
                                      struct moert_error *err)
{
    char *path;
    moert_status_t status = MOERT_OK;

    if (!is_obsolete(run, name))
        return MOERT_OK;
    path = tool_path_join(directory, name);
    if (!path)
        return tool_no_memory(err);
    if (unlink(path) && errno != ENOENT)
        status = tool_set_error(err, MOERT_E_OUTPUT, "output-write", "%s: %s", path, strerror(errno));
    free(path);
    return status;
}

/* config.json goes first: without it nothing opens what is left. */
static moert_status_t clear(const struct quant_run *run, const char *path, struct moert_error *err)
{
    moert_status_t status = remove_obsolete(run, path, "config.json", err);
    return status ? status : scan(run, path, remove_obsolete, err);
}

static moert_status_t check_content(const struct quant_run *run, const char *path, struct moert_error *err)
{
    char *journal = tool_path_join(path, QUANT_JOURNAL);
    int unfinished = journal && !access(journal, F_OK);
    moert_status_t status = journal ? scan(run, path, check_source, err) : tool_no_memory(err);

    free(journal);
    if (status)
        return status;
    if (run->options->force)
        return clear(run, path, err);
    if (run->options->resume && unfinished)
        return scan(run, path, remove_obsolete, err);
    return scan(run, path, refuse_entry, err);
}

moert_status_t quant_target_open(const struct quant_run *run, const char *source, const char *destination, int *ret_fd,
                                 struct moert_error *err)
{
    int fd = -1;
    moert_status_t status = check_apart(source, destination, err);

    if (!status)
        status = quant_make_directory(destination, err);
    if (!status)
        status = lock(run, destination, &fd, err);
    if (!status)
        status = check_content(run, destination, err);
    if (!status)
        *ret_fd = fd;
    else if (fd >= 0)
        close(fd);
    return status;
}
