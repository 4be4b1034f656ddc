/* tools/files.c: small files and copies that appear complete or not at all. While a temporary file exists, SIGINT,
 * SIGTERM and SIGHUP are held back and looked for between pieces, so that nothing unfinished stays. */
#include "config.h"

#include "tools/files.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE (1u << 20)

moert_status_t tool_set_error(struct moert_error *err, moert_status_t status, const char *code, const char *format, ...)
{
    va_list ap;

    if (!err)
        return status;
    err->status = status;
    snprintf(err->code, sizeof(err->code), "%s", code);
    va_start(ap, format);
    vsnprintf(err->text, sizeof(err->text), format, ap);
    va_end(ap);
    return status;
}

moert_status_t tool_no_memory(struct moert_error *err)
{
    return tool_set_error(err, MOERT_E_NOMEM, "host-memory", "no memory");
}

char *tool_path_join(const char *directory, const char *name)
{
    size_t length = strlen(directory) + strlen(name) + 2;
    char *path = malloc(length);

    if (path)
        snprintf(path, length, "%s/%s", directory, name);
    return path;
}

int tool_same_file(const char *a, const char *b)
{
    struct stat x, y;

    return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

struct out {
    char *temporary;
    const char *path;
    int fd;
    sigset_t old;
};

static const int held[] = {SIGINT, SIGTERM, SIGHUP};

static int interrupted(void)
{
    sigset_t pending;

    if (sigpending(&pending))
        return 0;
    for (size_t i = 0; i < 3; i++)
        if (sigismember(&pending, held[i]))
            return 1;
    return 0;
}

static moert_status_t out_fail(const struct out *o, struct moert_error *err)
{
    return tool_set_error(err, MOERT_E_OUTPUT, "output-write", "%s: %s", o->path, strerror(errno));
}

static moert_status_t out_open(struct out *o, const char *path, struct moert_error *err)
{
    size_t length = strlen(path) + 16;
    sigset_t hold;

    *o = (struct out){.path = path, .fd = -1, .temporary = malloc(length)};
    if (!o->temporary)
        return tool_no_memory(err);
    snprintf(o->temporary, length, "%s.tmp.XXXXXX", path);
    sigemptyset(&hold);
    for (size_t i = 0; i < 3; i++)
        sigaddset(&hold, held[i]);
    pthread_sigmask(SIG_BLOCK, &hold, &o->old);
    o->fd = mkostemp(o->temporary, O_CLOEXEC);
    if (o->fd < 0) {
        moert_status_t status = out_fail(o, err);
        pthread_sigmask(SIG_SETMASK, &o->old, NULL);
        free(o->temporary);
        return status;
    }
    return MOERT_OK;
}

static moert_status_t out_write(const struct out *o, const uint8_t *data, size_t bytes, struct moert_error *err)
{
    while (bytes) {
        ssize_t n = write(o->fd, data, bytes < PIECE ? bytes : PIECE);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return out_fail(o, err);
        data += n;
        bytes -= (size_t)n;
    }
    return MOERT_OK;
}

/* Renames when all went well, removes otherwise; then lets the signals through (an interrupt ends the program here). */
static moert_status_t out_close(struct out *o, mode_t mode, moert_status_t status, struct moert_error *err)
{
    if (!status && (fchmod(o->fd, mode) || (fsync(o->fd) && errno != EINVAL && errno != EROFS)))
        status = out_fail(o, err);
    close(o->fd);
    if (!status && !interrupted() && rename(o->temporary, o->path))
        status = out_fail(o, err);
    if (status || interrupted())
        unlink(o->temporary);
    free(o->temporary);
    pthread_sigmask(SIG_SETMASK, &o->old, NULL);
    return status;
}

static mode_t new_file_mode(void)
{
    mode_t mask = umask(022);
    umask(mask);
    return 0666 & ~mask;
}

moert_status_t tool_file_write(const char *path, const void *data, size_t bytes, struct moert_error *err)
{
    struct out o;
    moert_status_t status = out_open(&o, path, err);

    if (status)
        return status;
    status = out_write(&o, data, bytes, err);
    return out_close(&o, new_file_mode(), status, err);
}

static int all_zero(const uint8_t *p, size_t bytes)
{
    return !p[0] && !memcmp(p, p + 1, bytes - 1);
}

static moert_status_t copy_bytes(int in, const char *from, struct out *o, struct moert_error *err)
{
    uint8_t *piece = malloc(PIECE);
    moert_status_t status = piece ? MOERT_OK : tool_no_memory(err);
    off_t size = 0;

    while (!status && !interrupted()) {
        ssize_t n = read(in, piece, PIECE);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            status = tool_set_error(err, MOERT_E_FILE, "st-header", "%s: %s", from, strerror(errno));
        if (n <= 0)
            break;
        size += n;
        if (n == PIECE && all_zero(piece, PIECE) && lseek(o->fd, n, SEEK_CUR) >= 0)
            continue;
        status = out_write(o, piece, (size_t)n, err);
    }
    if (!status && ftruncate(o->fd, size))
        status = out_fail(o, err);
    free(piece);
    return status;
}

moert_status_t tool_file_copy(const char *from, const char *to, struct moert_error *err)
{
    struct stat st;
    struct out o;
    moert_status_t status;
    int in = open(from, O_RDONLY | O_CLOEXEC);

    if (in < 0 || fstat(in, &st)) {
        status = tool_set_error(err, MOERT_E_FILE, "file-missing", "%s: %s", from, strerror(errno));
        if (in >= 0)
            close(in);
        return status;
    }
    status = out_open(&o, to, err);
    if (!status) {
        status = copy_bytes(in, from, &o, err);
        status = out_close(&o, st.st_mode & 0777, status, err);
    }
    close(in);
    return status;
}
