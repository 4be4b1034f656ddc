/* core/base/file.h: whole files in memory, and files that appear complete or not at all. */
#ifndef MOERT_BASE_FILE_H
#define MOERT_BASE_FILE_H

#include <moert/base.h>

struct moert_mapping {
    const uint8_t *data;
    uint64_t size;
    int mapped; /* by mmap; else malloc'ed */
};
/* Regular files only. read_all: into memory instead of a mapping. Errors: file-missing, st-header (unreadable). */
moert_status_t moert_file_map(const char *path, int read_all, struct moert_mapping *ret, struct moert_error *err);
void moert_file_unmap(struct moert_mapping *mapping);

/* A file written beside its target (same directory, unpredictable name, mode as umask gives) and renamed over it. */
struct moert_file_writer {
    int fd;
    int slot; /* in the table of live temporary files */
    char *path, *temporary;
};
moert_status_t moert_file_writer_open(const char *path, struct moert_file_writer *ret, struct moert_error *err);
moert_status_t moert_file_writer_write(struct moert_file_writer *writer, const void *data, uint64_t bytes,
                                       struct moert_error *err);
/* Syncs, renames; the writer is closed whatever the outcome. */
moert_status_t moert_file_writer_commit(struct moert_file_writer *writer, struct moert_error *err);
void moert_file_writer_abort(struct moert_file_writer *writer); /* removes the temporary file; fine after commit */
void moert_file_writers_unlink(void);                           /* async-signal-safe: all live temporary files */

/* Text in one go. */
moert_status_t moert_file_write_all(const char *path, const void *data, uint64_t bytes, struct moert_error *err);

/* Hex SHA-256 of a file. */
moert_status_t moert_file_sha256(const char *path, char ret[65], struct moert_error *err);

#endif
