/* core/io/st_check.c: a tensor found by name and held against an expected dtype and shape, with messages that show
 * both. */
#include "config.h"

#include "core/io/safetensors.h"
#include "core/base/error.h"
#include "core/base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Names compared for "nearest": enough for any checkpoint's shard, and a bound for hostile files. */
#define NEAREST_MAX 50000u

char *moert_st_shape_text(uint32_t rank, const uint64_t *shape, char *out, size_t size)
{
    size_t at = 0;

    for (uint32_t i = 0; i < rank && at + 24 < size; i++) {
        if (shape[i] == UINT64_MAX)
            at += (size_t)snprintf(out + at, size - at, "%c*", i ? ',' : '[');
        else
            at += (size_t)snprintf(out + at, size - at, "%c%llu", i ? ',' : '[', (unsigned long long)shape[i]);
    }
    snprintf(out + at, size - at, "%s", rank ? "]" : "[]");
    return out;
}

const char *moert_st_nearest(const moert_safetensors_t *file, const char *name)
{
    uint64_t count = moert_safetensors_count(file);
    const char **list, *nearest;

    if (count > NEAREST_MAX)
        count = NEAREST_MAX;
    list = calloc(count + 1, sizeof(*list));
    if (!list)
        return NULL;
    for (uint64_t i = 0; i < count; i++)
        list[i] = moert_safetensors_at(file, i)->name;
    nearest = moert_text_nearest(name, list);
    free(list);
    return nearest;
}

static int is_floating(moert_dtype_t dtype)
{
    return dtype == MOERT_F32 || dtype == MOERT_BF16 || dtype == MOERT_F16;
}

moert_status_t moert_st_check(const char *path, const struct moert_st_tensor *t, moert_dtype_t dtype, uint32_t rank,
                              const uint64_t *shape, struct moert_error *err)
{
    char have[224], want[224];
    int same = !shape || t->rank == rank;

    if (dtype ? t->dtype != dtype : !is_floating(t->dtype))
        return moert_fail(err, MOERT_E_DTYPE, "tensor-dtype", "%s: %.200s is %s, expected %s", path, t->name,
                          moert_dtype_name(t->dtype), dtype ? moert_dtype_name(dtype) : "F32, BF16 or F16");
    for (uint32_t i = 0; same && shape && i < rank; i++)
        same = shape[i] == UINT64_MAX || shape[i] == t->shape[i];
    if (same)
        return MOERT_OK;
    return moert_fail(err, MOERT_E_SHAPE, "tensor-shape", "%s: %.200s is %s, expected %s", path, t->name,
                      moert_st_shape_text(t->rank, t->shape, have, sizeof(have)),
                      moert_st_shape_text(rank, shape, want, sizeof(want)));
}

moert_status_t moert_safetensors_get(const moert_safetensors_t *file, const char *name, moert_dtype_t dtype,
                                     uint32_t rank, const uint64_t *shape, const struct moert_st_tensor **ret,
                                     struct moert_error *err)
{
    const struct moert_st_tensor *t;
    moert_status_t status;

    if (!file || !name || !ret)
        return moert_fail_null(err, !file ? "file" : !name ? "name" : "ret");
    t = moert_safetensors_find(file, name);
    if (!t) {
        const char *nearest = moert_st_nearest(file, name);
        return moert_fail(err, MOERT_E_MISSING, "tensor-missing", "%s: no tensor \"%.200s\"%s%.200s%s",
                          moert_safetensors_path(file), name, nearest ? "; nearest: \"" : "", nearest ? nearest : "",
                          nearest ? "\"" : "");
    }
    status = moert_st_check(moert_safetensors_path(file), t, dtype, rank, shape, err);
    if (!status)
        *ret = t;
    return status;
}
