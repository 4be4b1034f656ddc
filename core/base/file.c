/* core/base/file.c: whole files in memory, and files that appear complete or not at all. */
#include "config.h"

#include "core/base/file.h"
#include "core/base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <sha256.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static moert_status_t read_whole(int fd, const char *path, uint64_t size, uint8_t *out, struct moert_error *err)
{
    for (uint64_t done = 0; done < size;) {
        ssize_t n = read(fd, out + done, size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return moert_fail(err, MOERT_E_FILE, "st-header", "%s: %s", path, strerror(errno));
        if (n == 0)
            return moert_fail(err, MOERT_E_FILE, "st-header", "%s: ends after %llu of %llu bytes", path,
                              (unsigned long long)done, (unsigned long long)size);
        done += (uint64_t)n;
    }
    return MOERT_OK;
}

moert_status_t moert_file_map(const char *path, int read_all, struct moert_mapping *ret, struct moert_error *err)
{
    struct moert_mapping m = {0};
    moert_status_t status = MOERT_OK;
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0)
        return moert_fail(err, errno == ENOENT || errno == ENOTDIR ? MOERT_E_MISSING : MOERT_E_FILE, "file-missing",
                          "%s: %s", path, strerror(errno));
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        status = moert_fail(err, MOERT_E_FILE, "st-header", "%s is not a regular file", path);
        goto out;
    }
    m.size = (uint64_t)st.st_size;
    if (!m.size || read_all) {
        uint8_t *memory = malloc(m.size ? m.size : 1);
        if (!memory) {
            status = moert_fail(err, MOERT_E_NOMEM, "host-memory", "%s: no memory for %llu bytes", path,
                                (unsigned long long)m.size);
            goto out;
        }
        status = read_whole(fd, path, m.size, memory, err);
        if (status)
            free(memory);
        m.data = memory;
    } else {
        void *p = mmap(NULL, m.size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            status = moert_fail(err, MOERT_E_FILE, "st-header", "%s: cannot map: %s", path, strerror(errno));
            goto out;
        }
        m.data = p;
        m.mapped = 1;
    }
out:
    close(fd);
    if (!status)
        *ret = m;
    return status;
}

void moert_file_unmap(struct moert_mapping *m)
{
    if (m->mapped)
        munmap((void *)(uintptr_t)m->data, m->size);
    else
        free((void *)(uintptr_t)m->data);
    *m = (struct moert_mapping){0};
}

/* Live temporary files, so that an interrupt handler can remove them. */
#define LIVE_MAX 64
static _Atomic(char *) live[LIVE_MAX];

static int live_add(char *path)
{
    for (int i = 0; i < LIVE_MAX; i++) {
        char *none = NULL;
        if (atomic_compare_exchange_strong(&live[i], &none, path))
            return i;
    }
    return -1;
}

void moert_file_writers_unlink(void)
{
    for (int i = 0; i < LIVE_MAX; i++) {
        char *path = atomic_exchange(&live[i], NULL);
        if (path)
            unlink(path);
    }
}

/* What a rename over `path` would destroy: a device, a directory, a pipe, or a link to one, is refused. A link to a regular
 * file is not followed: the rename replaces the link, so that nobody can lead a write to another file by planting one. */
static moert_status_t check_target(const char *path, struct moert_error *err)
{
    struct stat st;

    if (stat(path, &st) || S_ISREG(st.st_mode))
        return MOERT_OK;
    return moert_fail(err, MOERT_E_OUTPUT, "output-write", "%s exists and is %s, not a regular file", path,
                      S_ISDIR(st.st_mode) ? "a directory" : "a device or pipe");
}

/* Creates w->temporary beside w->path under a name nobody can foresee, with the mode that the umask gives. It is in the
 * table of live files before it exists, so that no interrupt can come between. */
static moert_status_t create_temporary(struct moert_file_writer *w, struct moert_error *err)
{
    for (int tries = 0; tries < 16; tries++) {
        uint64_t name;
        if (getrandom(&name, sizeof(name), 0) != sizeof(name))
            continue;
        sprintf(w->temporary, "%s.tmp.%016llx", w->path, (unsigned long long)name);
        w->slot = live_add(w->temporary);
        w->fd = open(w->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (w->fd >= 0)
            return MOERT_OK;
        if (w->slot >= 0)
            atomic_store(&live[w->slot], NULL);
        if (errno != EEXIST)
            break;
    }
    return moert_fail(err, MOERT_E_OUTPUT, "output-write", "%s: %s", w->path, strerror(errno));
}

moert_status_t moert_file_writer_open(const char *path, struct moert_file_writer *ret, struct moert_error *err)
{
    struct moert_file_writer w = {.fd = -1, .slot = -1};
    moert_status_t refused = check_target(path, err);

    if (refused)
        return refused;
    w.path = strdup(path);
    w.temporary = malloc(strlen(path) + sizeof(".tmp.0123456789abcdef"));
    if (w.path && w.temporary)
        refused = create_temporary(&w, err);
    else
        refused = moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for a temporary file");
    if (refused) {
        free(w.path);
        free(w.temporary);
        return refused;
    }
    *ret = w;
    return MOERT_OK;
}

moert_status_t moert_file_writer_write(struct moert_file_writer *w, const void *data, uint64_t bytes,
                                       struct moert_error *err)
{
    const uint8_t *p = data;

    while (bytes) {
        ssize_t n = write(w->fd, p, bytes < (1u << 30) ? bytes : (1u << 30));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return moert_fail(err, MOERT_E_OUTPUT, "output-write", "%s: %s", w->path, strerror(errno));
        p += n;
        bytes -= (uint64_t)n;
    }
    return MOERT_OK;
}

static void writer_close(struct moert_file_writer *w, int remove)
{
    if (!w->path)
        return;
    if (w->fd >= 0)
        close(w->fd);
    if (remove)
        unlink(w->temporary);
    if (w->slot >= 0)
        atomic_store(&live[w->slot], NULL);
    free(w->path);
    free(w->temporary);
    *w = (struct moert_file_writer){.fd = -1, .slot = -1};
}

moert_status_t moert_file_writer_commit(struct moert_file_writer *w, struct moert_error *err)
{
    moert_status_t status = MOERT_OK;

    if (fsync(w->fd) && errno != EINVAL && errno != EROFS)
        status = moert_fail(err, MOERT_E_OUTPUT, "output-write", "%s: %s", w->path, strerror(errno));
    else if (rename(w->temporary, w->path))
        status = moert_fail(err, MOERT_E_OUTPUT, "output-write", "%s: %s", w->path, strerror(errno));
    writer_close(w, status != MOERT_OK);
    return status;
}

void moert_file_writer_abort(struct moert_file_writer *w)
{
    writer_close(w, 1);
}

moert_status_t moert_file_write_all(const char *path, const void *data, uint64_t bytes, struct moert_error *err)
{
    struct moert_file_writer w;
    moert_status_t status = moert_file_writer_open(path, &w, err);

    if (status)
        return status;
    status = moert_file_writer_write(&w, data, bytes, err);
    if (status) {
        moert_file_writer_abort(&w);
        return status;
    }
    return moert_file_writer_commit(&w, err);
}

moert_status_t moert_file_sha256(const char *path, char ret[65], struct moert_error *err)
{
    struct moert_mapping m;
    uint8_t digest[SHA256_DIGEST_LENGTH];
    SHA2_CTX ctx;
    moert_status_t status = moert_file_map(path, 0, &m, err);

    if (status)
        return status;
    SHA256Init(&ctx);
    SHA256Update(&ctx, m.data, m.size);
    SHA256Final(digest, &ctx);
    moert_file_unmap(&m);
    for (int i = 0; i < SHA256_DIGEST_LENGTH; i++)
        snprintf(ret + 2 * i, 3, "%02x", digest[i]);
    return MOERT_OK;
}
