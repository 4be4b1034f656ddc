/* SPDX-License-Identifier: Apache-2.0
 * drivers/cpu/probe.c: the description of this machine: architecture, instruction sets, memory. It runs before anything
 * is known, so it holds no vector instruction: it is built without instruction-set flags and without LTO.
 *
 * A feature is named only when the processor has it (CPUID) and the operating system saves its registers (XCR0).
 * Register bits: Intel SDM volume 2A, CPUID; volume 1, 13.3. Arm: Linux's asm/hwcap.h. */
#include "config.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("no-avx")
#endif

#include "drivers/cpu/internal.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

static void add_word(struct moert_device_desc *desc, const char *word)
{
    size_t used = strlen(desc->features);

    snprintf(desc->features + used, sizeof(desc->features) - used, "%s%s", used ? " " : "", word);
}

#if defined(__x86_64__)

enum { LEAF_1_ECX, LEAF_7_EBX, LEAF_7_ECX, LEAF_7_EDX, LEAF_7_1_EAX, REGISTERS };

/* XCR0 bits: 1 SSE, 2 AVX, 5..7 the parts of AVX-512. */
#define XCR0_AVX    0x06u
#define XCR0_AVX512 0xe6u

static const struct {
    const char *word;
    uint8_t reg, bit;
    uint8_t xcr0;
} features[] = {
    {"avx", LEAF_1_ECX, 28, XCR0_AVX},           {"f16c", LEAF_1_ECX, 29, XCR0_AVX},
    {"fma", LEAF_1_ECX, 12, XCR0_AVX},           {"avx2", LEAF_7_EBX, 5, XCR0_AVX},
    {"avx512f", LEAF_7_EBX, 16, XCR0_AVX512},    {"avx512bw", LEAF_7_EBX, 30, XCR0_AVX512},
    {"avx512vl", LEAF_7_EBX, 31, XCR0_AVX512},   {"avx512vbmi", LEAF_7_ECX, 1, XCR0_AVX512},
    {"avx512vnni", LEAF_7_ECX, 11, XCR0_AVX512}, {"avx512bf16", LEAF_7_1_EAX, 5, XCR0_AVX512},
    {"avx512fp16", LEAF_7_EDX, 23, XCR0_AVX512},
};

static uint32_t read_xcr0(void)
{
    uint32_t low, high;

    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static void describe_features(struct moert_device_desc *desc)
{
    uint32_t a, b, c, d, reg[REGISTERS] = {0}, xcr0 = 0;

    if (__get_cpuid(1, &a, &b, &c, &d)) {
        reg[LEAF_1_ECX] = c;
        if (c & (1u << 27)) /* OSXSAVE: xgetbv may be used */
            xcr0 = read_xcr0();
    }
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        uint32_t last = a;
        reg[LEAF_7_EBX] = b;
        reg[LEAF_7_ECX] = c;
        reg[LEAF_7_EDX] = d;
        if (last >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d))
            reg[LEAF_7_1_EAX] = a;
    }
    for (size_t i = 0; i < sizeof(features) / sizeof(features[0]); i++)
        if ((reg[features[i].reg] >> features[i].bit & 1) && (xcr0 & features[i].xcr0) == features[i].xcr0)
            add_word(desc, features[i].word);
}

/* The brand string of CPUID 0x80000002..4, without its leading blanks. */
static void describe_name(struct moert_device_desc *desc)
{
    char brand[49] = {0};
    const char *start = brand;

    for (uint32_t i = 0; i < 3; i++) {
        uint32_t r[4];
        if (!__get_cpuid(0x80000002u + i, &r[0], &r[1], &r[2], &r[3]))
            return;
        memcpy(brand + 16 * i, r, 16);
    }
    while (*start == ' ')
        start++;
    snprintf(desc->name, sizeof(desc->name), "%s", start);
}

#define ARCH "x86_64"

#elif defined(__aarch64__)

static const struct {
    const char *word;
    uint32_t second; /* AT_HWCAP2 */
    uint32_t bit;
} features[] = {
    {"asimd", 0, 1}, {"asimddp", 0, 20}, {"sve", 0, 22}, {"sve2", 1, 1}, {"i8mm", 1, 13}, {"bf16", 1, 14},
};

static void describe_features(struct moert_device_desc *desc)
{
    unsigned long caps[2] = {getauxval(AT_HWCAP), getauxval(AT_HWCAP2)};

    for (size_t i = 0; i < sizeof(features) / sizeof(features[0]); i++)
        if (caps[features[i].second] >> features[i].bit & 1)
            add_word(desc, features[i].word);
}

static void describe_name(struct moert_device_desc *desc)
{
    (void)desc;
}

#define ARCH "aarch64"

#else

static void describe_features(struct moert_device_desc *desc)
{
    (void)desc;
    (void)add_word;
}

static void describe_name(struct moert_device_desc *desc)
{
    (void)desc;
}

#define ARCH "generic"

#endif

/* Value in bytes of a "<key>:   <n> kB" line of /proc/meminfo; 0 when there is none. */
static uint64_t meminfo(const char *text, const char *key)
{
    const char *line = strstr(text, key);

    return line ? strtoull(line + strlen(key), NULL, 10) * 1024 : 0;
}

void mcpu_memory(uint64_t *ret_total, uint64_t *ret_free)
{
    char text[2048];
    FILE *file = fopen("/proc/meminfo", "re");
    size_t n = 0;
    long page = sysconf(_SC_PAGESIZE), pages = sysconf(_SC_PHYS_PAGES);

    if (file) {
        n = fread(text, 1, sizeof(text) - 1, file);
        fclose(file);
    }
    text[n] = 0;
    *ret_total = meminfo(text, "MemTotal:");
    *ret_free = meminfo(text, "MemAvailable:");
    if (!*ret_total && page > 0 && pages > 0)
        *ret_total = (uint64_t)page * (uint64_t)pages;
}

uint32_t mcpu_affinity_count(void)
{
    long online;
#ifdef __linux__
    cpu_set_t set;

    if (!sched_getaffinity(0, sizeof(set), &set)) {
        int n = CPU_COUNT(&set);
        if (n > 0)
            return (uint32_t)n;
    }
#endif
    online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint32_t)online : 1;
}

void mcpu_describe(struct moert_device_desc *ret)
{
    uint32_t size = ret->size;

    memset(ret, 0, MCPU_SIZE_TO(struct moert_device_desc, reserved)); /* an older caller's struct ends there */
    ret->size = size;
    ret->flags = MOERT_DEVICE_F_PRESENT | MOERT_DEVICE_F_HOST_MEMORY | MOERT_DEVICE_F_BINARY64;
    snprintf(ret->id, sizeof(ret->id), "cpu");
    snprintf(ret->driver, sizeof(ret->driver), "cpu");
    snprintf(ret->arch, sizeof(ret->arch), ARCH);
    describe_name(ret);
    if (!ret->name[0])
        snprintf(ret->name, sizeof(ret->name), "%s processor", ARCH);
    describe_features(ret);
    ret->kind = MOERT_DEVICE_CPU;
    ret->compute_units = mcpu_affinity_count();
    mcpu_memory(&ret->memory_total, &ret->memory_free);
    ret->max_buffer = PTRDIFF_MAX;
    ret->alignment = 1;
}
