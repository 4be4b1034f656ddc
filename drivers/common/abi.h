/* drivers/common/abi.h: small things that every driver needs at the boundary: reading struct moert_drv_tensor safely,
 * logging through the host, the note that names a vendor's library. Header only; pure. */
#ifndef MOERT_DRIVERS_COMMON_ABI_H
#define MOERT_DRIVERS_COMMON_ABI_H

#include "core/base/checked.h"
#include "core/base/error.h"

#include <moert/driver.h>

#include <stdarg.h>
#include <stdio.h>

/* ---- tensors ---- */

static inline int mdrv_tensor_given(const struct moert_drv_tensor *t)
{
    return t->buffer != NULL;
}

/* Number of elements; 0 returned when the product does not fit or the rank is out of range. */
static inline int mdrv_tensor_count(const struct moert_drv_tensor *t, uint64_t *ret)
{
    return t->rank <= MOERT_MAX_RANK && moert_product(t->shape, t->rank, ret);
}

/* 1 when the tensor is dense and row-major. Axes of length 1 may have any stride; an empty tensor is dense. */
static inline int mdrv_tensor_is_dense(const struct moert_drv_tensor *t)
{
    uint64_t expected = 1;

    for (uint32_t i = 0; i < t->rank && i < MOERT_MAX_RANK; i++)
        if (!t->shape[i])
            return 1;
    for (uint32_t i = t->rank < MOERT_MAX_RANK ? t->rank : MOERT_MAX_RANK; i-- > 0;) {
        if (t->shape[i] != 1 && (t->strides[i] < 0 || (uint64_t)t->strides[i] != expected))
            return 0;
        if (!moert_mul(expected, t->shape[i], &expected))
            return 0;
    }
    return 1;
}

/* Bytes of a dense tensor. */
static inline int mdrv_tensor_bytes(const struct moert_drv_tensor *t, uint64_t *ret)
{
    uint64_t n;

    return mdrv_tensor_count(t, &n) && moert_mul(n, moert_dtype_size(t->dtype), ret);
}

/* Byte offset, inside the buffer, of the element with the given indices; formed in 64 bits (layer.md 8). */
static inline uint64_t mdrv_tensor_at(const struct moert_drv_tensor *t, const uint64_t *index)
{
    uint64_t elements = 0;

    for (uint32_t i = 0; i < t->rank && i < MOERT_MAX_RANK; i++)
        elements += index[i] * (uint64_t)t->strides[i];
    return t->offset + elements * moert_dtype_size(t->dtype);
}

/* One past the last byte that the tensor touches; 0 returned when it wraps or a stride is negative. */
static inline int mdrv_tensor_end(const struct moert_drv_tensor *t, uint64_t *ret)
{
    uint64_t last = 0, step, bytes;

    if (t->rank > MOERT_MAX_RANK)
        return 0;
    for (uint32_t i = 0; i < t->rank; i++) {
        if (!t->shape[i]) {
            *ret = t->offset;
            return 1;
        }
        if (t->strides[i] < 0 || !moert_mul(t->shape[i] - 1, (uint64_t)t->strides[i], &step) ||
            !moert_add(last, step, &last))
            return 0;
    }
    return moert_add(last, 1, &last) && moert_mul(last, moert_dtype_size(t->dtype), &bytes) &&
           moert_add(t->offset, bytes, ret);
}

/* Checks that a tensor lies inside a buffer of `bytes` bytes. `what` names it in the message. */
static inline moert_status_t mdrv_tensor_check(const struct moert_drv_tensor *t, uint64_t bytes, const char *what,
                                               struct moert_error *err)
{
    uint64_t end;

    if (!moert_dtype_size(t->dtype))
        return moert_fail(err, MOERT_E_DTYPE, "tensor-dtype", "%s has dtype %u, which does not exist", what, t->dtype);
    if (!mdrv_tensor_end(t, &end))
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large", "%s does not fit 64-bit offsets", what);
    if (end > bytes)
        return moert_fail(err, MOERT_E_SHAPE, "tensor-shape", "%s ends at byte %llu of a buffer of %llu", what,
                          (unsigned long long)end, (unsigned long long)bytes);
    return MOERT_OK;
}

/* A range of a copy or fill against its buffer. */
static inline moert_status_t mdrv_range_check(uint64_t offset, uint64_t bytes, uint64_t size, struct moert_error *err)
{
    if (offset <= size && bytes <= size - offset)
        return MOERT_OK;
    return moert_fail(err, MOERT_E_VALUE, "size", "%llu bytes at offset %llu pass the end of a buffer of %llu",
                      (unsigned long long)bytes, (unsigned long long)offset, (unsigned long long)size);
}

/* ---- log ---- */

__attribute__((format(printf, 3, 4))) static inline void mdrv_log(const struct moert_host *host,
                                                                  moert_log_level_t level, const char *format, ...)
{
    char text[512];
    va_list args;

    if (!host || !host->log)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    host->log(host->ctx, level, text);
}

/* ---- libraries opened at run time ----
 * Puts a note into the module that says which library it opens with dlopen, so that packagers' tools find the
 * dependency although the linker does not know it. Format: ELF package metadata, "FDO" notes of type 0x407c0c0a holding
 * a JSON array (https://uapi-group.org/specifications/specs/elf_dlopen_metadata/). priority: "required", "recommended",
 * "suggested". Use at file level: MDRV_DLOPEN_NOTE(cuda, "NVIDIA driver", "suggested", "\"libcuda.so.1\""); */
#define MDRV_DLOPEN_NOTE(word, description, priority, sonames)                                                         \
    static const struct {                                                                                              \
        uint32_t name_size, text_size, type;                                                                           \
        char name[4];                                                                                                  \
        char text[sizeof("[{\"feature\":\"" #word "\",\"description\":\"" description "\",\"priority\":\"" priority    \
                         "\",\"soname\":[" sonames "]}]")];                                                            \
    } mdrv_dlopen_note_##word __attribute__((used, section(".note.dlopen"), aligned(4))) = {                           \
        sizeof("FDO"), sizeof(mdrv_dlopen_note_##word.text), 0x407c0c0au, "FDO",                                       \
        "[{\"feature\":\"" #word "\",\"description\":\"" description "\",\"priority\":\"" priority                     \
        "\",\"soname\":[" sonames "]}]"}

#endif
