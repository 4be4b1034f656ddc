/* tools/files.h: small files and copies that appear complete or not at all. */
#ifndef MOERT_FILES_H
#define MOERT_FILES_H

#include <moert/base.h>

/* Writes `bytes` beside `path` and renames. Signals wait until the file is whole. */
moert_status_t tool_file_write(const char *path, const void *data, size_t bytes, struct moert_error *err);
/* Copies a regular file, mode included; holes stay holes. An interrupt removes the unfinished copy. */
moert_status_t tool_file_copy(const char *from, const char *to, struct moert_error *err);
/* Do both paths lead to one file (device and inode, through links)? 0 when either does not exist. */
int tool_same_file(const char *a, const char *b);
/* "directory/name", malloc'ed; NULL without memory. */
char *tool_path_join(const char *directory, const char *name);
moert_status_t tool_no_memory(struct moert_error *err);
/* Fills err and returns status. */
moert_status_t tool_set_error(struct moert_error *err, moert_status_t status, const char *code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
