/* core/io/safetensors.h: what the readers of core/io share about tensors in files: shapes as text, checks, nearest
 * names. */
#ifndef MOERT_IO_SAFETENSORS_H
#define MOERT_IO_SAFETENSORS_H

#include <moert/safetensors.h>

/* "[8,256,128]" into out; UINT64_MAX entries as "*". Returns out. */
char *moert_st_shape_text(uint32_t rank, const uint64_t *shape, char *out, size_t size);

/* dtype and shape of a tensor as moert_safetensors_get checks them. path: for the message. */
moert_status_t moert_st_check(const char *path, const struct moert_st_tensor *tensor, moert_dtype_t dtype,
                              uint32_t rank, const uint64_t *shape, struct moert_error *err);

/* The name of `file` that is nearest to `name`, NULL when nothing is near. */
const char *moert_st_nearest(const moert_safetensors_t *file, const char *name);

#endif
