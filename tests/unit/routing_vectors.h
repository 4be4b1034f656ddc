/* tests/unit/routing_vectors.h: tensors and parameters of a case in tests/data/vectors, and memory with guards. */
#ifndef MOERT_TESTS_ROUTING_VECTORS_H
#define MOERT_TESTS_ROUTING_VECTORS_H

#include <moert/safetensors.h>

#include <criterion/criterion.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static inline moert_safetensors_t *open_vectors(const char *file)
{
    struct moert_error err = MOERT_ERROR_INIT;
    moert_safetensors_t *f = NULL;
    char path[1024];

    snprintf(path, sizeof(path), "%s/vectors/%s", getenv("MOERT_TEST_DATA"), file);
    cr_assert_eq(moert_safetensors_open(path, 0, &f, &err), MOERT_OK, "%s", err.text);
    return f;
}

/* Tensor <name>.<field>, NULL when absent. */
static inline const struct moert_st_tensor *field_of(const moert_safetensors_t *f, const char *name, const char *field)
{
    char full[256];

    snprintf(full, sizeof(full), "%s.%s", name, field);
    return moert_safetensors_find(f, full);
}

static inline const void *data_of(const moert_safetensors_t *f, const char *name, const char *field)
{
    const struct moert_st_tensor *t = field_of(f, name, field);

    return t ? t->data : NULL;
}

static inline int32_t int_param(const moert_safetensors_t *f, const char *name, const char *param, int32_t otherwise)
{
    char full[64];
    int32_t v = otherwise;
    const void *p;

    snprintf(full, sizeof(full), "p.%s", param);
    p = data_of(f, name, full);
    if (p)
        memcpy(&v, p, sizeof(v));
    return v;
}

static inline float float_param(const moert_safetensors_t *f, const char *name, const char *param, float otherwise)
{
    char full[64];
    float v = otherwise;
    const void *p;

    snprintf(full, sizeof(full), "p.%s", param);
    p = data_of(f, name, full);
    if (p)
        memcpy(&v, p, sizeof(v));
    return v;
}

/* If tensor i is "<case>.<field>", copies the case's name. */
static inline int case_with_field(const moert_safetensors_t *f, uint64_t i, const char *field, char *name, size_t size)
{
    const char *full = moert_safetensors_at(f, i)->name, *dot = strchr(full, '.');

    if (!dot || strcmp(dot + 1, field) || (size_t)(dot - full) >= size)
        return 0;
    memcpy(name, full, (size_t)(dot - full));
    name[dot - full] = 0;
    return 1;
}

/* `bytes` that end at an unreadable page: what lies behind them can not be read or written. */
static inline void *guarded(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page;
    char *p = mmap(NULL, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    cr_assert_neq(p, MAP_FAILED);
    memset(p, 0xFF, whole);
    cr_assert_eq(mprotect(p + whole, page, PROT_NONE), 0);
    return p + whole - bytes;
}

/* int32 array with guard words on both sides, filled with a pattern that no function writes. */
#define GUARD_WORDS 64
#define GUARD_VALUE 0x5AFE5AFE

static inline int32_t *fenced(uint64_t count)
{
    int32_t *p = malloc((count + 2 * GUARD_WORDS) * sizeof(*p));

    for (uint64_t i = 0; i < count + 2 * GUARD_WORDS; i++)
        p[i] = GUARD_VALUE;
    return p + GUARD_WORDS;
}

static inline void free_fenced(int32_t *p, uint64_t count)
{
    for (uint64_t i = 0; i < GUARD_WORDS; i++) {
        cr_expect_eq(p[-1 - (int64_t)i], GUARD_VALUE, "written before the array");
        cr_expect_eq(p[count + i], GUARD_VALUE, "written behind the array");
    }
    free(p - GUARD_WORDS);
}

static inline uint64_t mix(uint64_t x)
{
    uint64_t z = x + 0x9E3779B97F4A7C15u;

    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static inline uint64_t fnv(const void *data, size_t bytes)
{
    const uint8_t *p = data;
    uint64_t h = 0xCBF29CE484222325u;

    for (size_t i = 0; i < bytes; i++)
        h = (h ^ p[i]) * 0x100000001B3u;
    return h;
}

#endif
