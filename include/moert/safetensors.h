/* SPDX-License-Identifier: Apache-2.0
 * moert/safetensors.h: safetensors files, read by mapping, written to a temporary file and renamed.
 * Files are untrusted: header, shapes and offsets are checked before anything is used (layer.md 9.1). */
#ifndef MOERT_SAFETENSORS_H
#define MOERT_SAFETENSORS_H

#include <moert/base.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MOERT_ST_MAX_RANK 8

/* An open file. Immutable after open: thread-safe for reading. */
typedef struct moert_safetensors moert_safetensors_t;

struct moert_st_tensor {
    const char *name;
    moert_dtype_t dtype;
    uint32_t rank;
    uint64_t shape[MOERT_ST_MAX_RANK];
    const void *data; /* inside the mapping; any alignment */
    uint64_t bytes;
};

enum {
    MOERT_ST_OPEN_MAP = 0,          /* map (default) */
    MOERT_ST_OPEN_READ = 1u << 0    /* read into memory: safe against truncation by others */
};

/* Errors: file-missing (MISSING), st-header, st-json, st-offsets, st-duplicate (FILE); the text names file and tensor. */
MOERT_API moert_status_t moert_safetensors_open(const char *path, uint32_t flags, moert_safetensors_t **ret,
                                                struct moert_error *err);
MOERT_API void moert_safetensors_close(moert_safetensors_t *file);
MOERT_API const char *moert_safetensors_path(const moert_safetensors_t *file);
MOERT_API uint64_t moert_safetensors_count(const moert_safetensors_t *file);
/* In the order of the data. Index < count. */
MOERT_API const struct moert_st_tensor *moert_safetensors_at(const moert_safetensors_t *file, uint64_t index);
/* NULL when absent. O(log n). */
MOERT_API const struct moert_st_tensor *moert_safetensors_find(const moert_safetensors_t *file, const char *name);
/* Value of a key of __metadata__, NULL when absent; and the i-th key (NULL past the end). */
MOERT_API const char *moert_safetensors_metadata(const moert_safetensors_t *file, const char *key);
MOERT_API const char *moert_safetensors_metadata_key(const moert_safetensors_t *file, uint64_t index);
/* find + check: dtype (NONE: any of the floating ones), rank and shape (NULL: any; entries UINT64_MAX: any).
 * Errors: tensor-missing with the nearest name, tensor-dtype, tensor-shape; the text names file, tensor, both shapes. */
MOERT_API moert_status_t moert_safetensors_get(const moert_safetensors_t *file, const char *name, moert_dtype_t dtype,
                                               uint32_t rank, const uint64_t *shape,
                                               const struct moert_st_tensor **ret, struct moert_error *err);

/* Writer. The header is fixed first (declare every tensor), then data is streamed in declared order, any piece size;
 * commit renames the temporary file over the target; destroy without commit removes it. One thread at a time. */
typedef struct moert_st_writer moert_st_writer_t;
MOERT_API moert_status_t moert_st_writer_create(const char *path, moert_st_writer_t **ret, struct moert_error *err);
MOERT_API moert_status_t moert_st_writer_metadata(moert_st_writer_t *writer, const char *key, const char *value,
                                                  struct moert_error *err);
MOERT_API moert_status_t moert_st_writer_declare(moert_st_writer_t *writer, const char *name, moert_dtype_t dtype,
                                                 uint32_t rank, const uint64_t *shape, struct moert_error *err);
/* Ends the declarations and writes the header; called by the first append when it was not. */
MOERT_API moert_status_t moert_st_writer_begin(moert_st_writer_t *writer, struct moert_error *err);
/* Next bytes of the data, in declared order; pieces may cross tensors. output-write: full disk and the like. */
MOERT_API moert_status_t moert_st_writer_append(moert_st_writer_t *writer, const void *data, uint64_t bytes,
                                                struct moert_error *err);
/* All declared bytes must have been appended. Syncs and renames. */
MOERT_API moert_status_t moert_st_writer_commit(moert_st_writer_t *writer, struct moert_error *err);
MOERT_API void moert_st_writer_destroy(moert_st_writer_t *writer);
/* Removes temporary files of every live writer; async-signal-safe, for an interrupt handler of a command. */
MOERT_API void moert_st_writers_unlink(void);

#ifdef __cplusplus
}
#endif
#endif
