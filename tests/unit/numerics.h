/* tests/unit/numerics.h: helpers of the numerics tests: hashes, the generator of the specification, golden files. */
#ifndef MOERT_TEST_UNIT_NUMERICS_H
#define MOERT_TEST_UNIT_NUMERICS_H

#include <moert/moert.h>

#include "core/numerics/bits.h"

#include <criterion/criterion.h>

#include <fenv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FNV_START 0xcbf29ce484222325u

static inline uint64_t fnv_byte(uint64_t hash, uint8_t byte)
{
    return (hash ^ byte) * 0x100000001b3u;
}

static inline uint64_t fnv(uint64_t hash, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    while (bytes--)
        hash = fnv_byte(hash, *p++);
    return hash;
}

/* The generator of mxfp8.md 10 and lut-b.md 3; start at SEED. */
#define SEED 0x2545F491u
static inline uint32_t xorshift(uint32_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 17;
    *x ^= *x << 5;
    return *x;
}

/* Roughly Gaussian: sum of four draws, standard deviation about 0.018 * 2^scale. */
static inline float bell(uint32_t *x, double factor)
{
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += xorshift(x) >> 16;
    return (float)((sum - 131070) * 0x1p-21 * factor);
}

static inline int exhaustive(void)
{
    const char *value = getenv("MOERT_TEST_EXHAUSTIVE");
    return value && !strcmp(value, "1");
}

/* A file of tests/data/vectors; ends the test when it is not there. */
static inline moert_safetensors_t *golden_open(const char *file)
{
    struct moert_error err = MOERT_ERROR_INIT;
    moert_safetensors_t *ret = NULL;
    char path[4096];

    cr_assert_not_null(getenv("MOERT_TEST_DATA"), "MOERT_TEST_DATA is not set");
    snprintf(path, sizeof(path), "%s/vectors/%s.safetensors", getenv("MOERT_TEST_DATA"), file);
    cr_assert_eq(moert_safetensors_open(path, MOERT_ST_OPEN_READ, &ret, &err), MOERT_OK, "%s", err.text);
    return ret;
}

/* Tensor "<name>.<field>"; NULL when absent. */
static inline const struct moert_st_tensor *golden_find(const moert_safetensors_t *file, const char *name,
                                                        const char *field)
{
    char key[256];
    snprintf(key, sizeof(key), "%s.%s", name, field);
    return moert_safetensors_find(file, key);
}

static inline const struct moert_st_tensor *golden(const moert_safetensors_t *file, const char *name, const char *field)
{
    const struct moert_st_tensor *t = golden_find(file, name, field);
    cr_assert_not_null(t, "no golden tensor %s.%s", name, field);
    return t;
}

static inline uint64_t elements(const struct moert_st_tensor *t)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i < t->rank; i++)
        n *= t->shape[i];
    return n;
}

/* Position of the first difference, or n. */
static inline uint64_t first_difference(const void *a, const void *b, uint64_t n)
{
    const uint8_t *p = a, *q = b;
    uint64_t i = 0;
    while (i < n && p[i] == q[i])
        i++;
    return i;
}

/* Hostile floating-point environments. Flushing is set where the test knows how. */
enum { ENV_PLAIN, ENV_UP, ENV_DOWN, ENV_ZERO, ENV_FLUSH, ENV_COUNT };

#if defined(__SSE2__)
#include <xmmintrin.h>
#define ENV_FLUSHES 1
#else
#define ENV_FLUSHES 0
#endif

static inline void enter_environment(int which)
{
    static const int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO, FE_TONEAREST};
    fesetround(modes[which]);
#if ENV_FLUSHES
    _mm_setcsr((_mm_getcsr() & ~0x8040u) | (which == ENV_FLUSH ? 0x8040u : 0)); /* FTZ and DAZ */
#endif
}

#endif
