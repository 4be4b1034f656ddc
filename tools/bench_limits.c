/* tools/bench_limits.c: what this machine can do at most, measured in the same run as everything that is compared with
 * it: copy and read bandwidth, F32 multiply-add rate, all threads. */
#include "config.h"

#include "tools/bench.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* ---- the machine ---- */

static uint64_t last_level_cache(void)
{
    long size = -1;

#ifdef _SC_LEVEL3_CACHE_SIZE
    size = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (size <= 0)
        size = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    return size > 0 ? (uint64_t)size : UINT64_C(32) << 20;
}

static void cpu_name(char *name, size_t size)
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[256];

    snprintf(name, size, "unknown");
    while (file && fgets(line, sizeof(line), file)) {
        char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !value)
            continue;
        value += 1 + strspn(value + 1, " ");
        value[strcspn(value, "\n")] = 0;
        snprintf(name, size, "%s", value);
        break;
    }
    if (file)
        fclose(file);
}

void bench_machine_describe(struct bench_machine *machine)
{
    cpu_set_t set;
    long pages = sysconf(_SC_AVPHYS_PAGES), page = sysconf(_SC_PAGESIZE);

    memset(machine, 0, sizeof(*machine));
    machine->threads = !sched_getaffinity(0, sizeof(set), &set) ? (unsigned)CPU_COUNT(&set) : 1;
    for (uint32_t i = 0; i < moert_option_count(); i++) {
        struct moert_option_info o = {.size = sizeof(o)};
        if (!moert_option_get(i, &o, NULL) && !strcmp(o.name, "MOERT_THREADS") && atoi(o.value) > 0)
            machine->threads = (unsigned)atoi(o.value);
    }
    machine->cache = last_level_cache();
    machine->memory = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
    cpu_name(machine->cpu, sizeof(machine->cpu));
    if (getloadavg(&machine->load, 1) != 1)
        machine->load = 0;
}

void bench_flush_caches(uint64_t bytes)
{
    uint64_t n = bytes / sizeof(uint64_t);
    uint64_t *memory = malloc(bytes ? (size_t)bytes : 1);
    volatile uint64_t sink = 0;

    for (uint64_t i = 0; memory && i < n; i += 8)
        memory[i] = i;
    for (uint64_t i = 0; memory && i < n; i += 8)
        sink += memory[i];
    free(memory);
}

/* ---- multiply-add rate ---- */

enum { CHAINS = 12, ROUNDS = 1 << 16 };

/* Each returns the operations done: CHAINS independent chains of F32 multiply-adds, so that latency is hidden. */
static double generic_fma(float *sink)
{
    float a[CHAINS * 16];
    const float m = 0.999f, c = 1e-3f;

    for (int i = 0; i < CHAINS * 16; i++)
        a[i] = (float)i;
    for (int r = 0; r < ROUNDS / 4; r++)
        for (int i = 0; i < CHAINS * 16; i++)
            a[i] = a[i] * m + c;
    for (int i = 0; i < CHAINS * 16; i++)
        *sink += a[i];
    return 2.0 * CHAINS * 16 * (ROUNDS / 4);
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static double avx512_fma(float *sink)
{
    __m512 a[CHAINS], m = _mm512_set1_ps(0.999f), c = _mm512_set1_ps(1e-3f);

    for (int i = 0; i < CHAINS; i++)
        a[i] = _mm512_set1_ps((float)i);
    for (int r = 0; r < ROUNDS; r++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++)
            a[i] = _mm512_fmadd_ps(a[i], m, c);
    for (int i = 0; i < CHAINS; i++)
        *sink += _mm512_reduce_add_ps(a[i]);
    return 2.0 * CHAINS * 16 * ROUNDS;
}

__attribute__((target("avx2,fma"))) static double avx2_fma(float *sink)
{
    __m256 a[CHAINS], m = _mm256_set1_ps(0.999f), c = _mm256_set1_ps(1e-3f);
    float out[8];

    for (int i = 0; i < CHAINS; i++)
        a[i] = _mm256_set1_ps((float)i);
    for (int r = 0; r < ROUNDS; r++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++)
            a[i] = _mm256_fmadd_ps(a[i], m, c);
    for (int i = 0; i < CHAINS; i++) {
        _mm256_storeu_ps(out, a[i]);
        *sink += out[0];
    }
    return 2.0 * CHAINS * 8 * ROUNDS;
}
#endif

static double multiply_adds(float *sink)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return avx512_fma(sink);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return avx2_fma(sink);
#endif
    return generic_fma(sink);
}

/* ---- all threads at once ---- */

enum what { COPY, READ, MULTIPLY_ADD, WHATS };
static const char *const what_names[] = {"copy", "read", "multiply-add"};
enum { SAMPLES = 7 };

struct worker {
    pthread_t thread;
    pthread_barrier_t *barrier;
    enum what what;
    uint64_t seed, words; /* 64-bit words of each of the two buffers */
    double amount;        /* bytes or operations of one sample */
    double start, stop;   /* of one sample, on this thread's own watch */
    float sink;
};

typedef uint64_t words8 __attribute__((vector_size(64), aligned(8), may_alias));

/* Sum in whole cache lines, four at a time: bound by memory, not by additions. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
static uint64_t sum_words(const uint64_t *words, uint64_t count)
{
    words8 sum[4] = {{0}};
    uint64_t total = 0;

    for (uint64_t i = 0; i + 32 <= count; i += 32)
        for (uint64_t k = 0; k < 4; k++)
            sum[k] += *(const words8 *)(const void *)(words + i + 8 * k);
    for (int k = 0; k < 8; k++)
        total += sum[0][k] + sum[1][k] + sum[2][k] + sum[3][k];
    return total;
}

static double one_sample(struct worker *w, uint64_t *from, uint64_t *to)
{
    uint64_t bytes = w->words * sizeof(*from);

    if (w->what == MULTIPLY_ADD) {
        double done = 0;
        for (int i = 0; i < 8; i++)
            done += multiply_adds(&w->sink);
        return done;
    }
    if (w->what == READ) {
        w->sink += (float)sum_words(from, w->words);
        return (double)bytes;
    }
    memcpy(to, from, bytes);
    w->sink += (float)to[w->words / 2];
    return 2 * (double)bytes;
}

/* First touch by the thread that uses the memory; random words, because zeros may be special. */
static void *work(void *argument)
{
    struct worker *w = argument;
    size_t bytes = (size_t)w->words * sizeof(uint64_t);
    uint64_t *from = w->what == MULTIPLY_ADD ? NULL : malloc(bytes), *to = w->what == COPY ? malloc(bytes) : NULL;
    int usable = w->what == MULTIPLY_ADD || (from && (to || w->what == READ));

    for (uint64_t i = 0; from && i < w->words; i++)
        from[i] = bench_mix(w->seed + i);
    if (to)
        memset(to, 1, bytes);
    for (int i = 0; i < SAMPLES + 1; i++) {
        pthread_barrier_wait(w->barrier);
        w->start = tool_clock();
        w->amount = usable ? one_sample(w, from, to) : 0;
        w->stop = tool_clock();
        pthread_barrier_wait(w->barrier);
        pthread_barrier_wait(w->barrier); /* the watches have been read */
    }
    free(from);
    free(to);
    return NULL;
}

/* From the first start to the last stop. The thread that waits for them all would read its own watch too late: it may get
 * no processor before they are done. */
static double elapsed(const struct worker *workers, unsigned n)
{
    double start = workers[0].start, stop = workers[0].stop;

    for (unsigned i = 1; i < n; i++) {
        start = workers[i].start < start ? workers[i].start : start;
        stop = workers[i].stop > stop ? workers[i].stop : stop;
    }
    return stop - start;
}

/* SAMPLES times in ns; returns bytes or operations of one sample of all threads, 0 when it could not be measured. */
static double measure(const struct bench_machine *machine, enum what what, uint64_t seed, double samples[SAMPLES])
{
    uint64_t bytes = 4 * machine->cache, limit = machine->memory / 8;
    unsigned n = machine->threads, started = 0;
    struct worker *workers = calloc(n, sizeof(*workers));
    pthread_barrier_t barrier;
    double amount = 0;

    if (limit && bytes > limit)
        bytes = limit;
    if (bytes > UINT64_C(1) << 30)
        bytes = UINT64_C(1) << 30;
    if (!workers || pthread_barrier_init(&barrier, NULL, n + 1)) {
        free(workers);
        return 0;
    }
    for (; started < n; started++) {
        workers[started] = (struct worker){
            .barrier = &barrier, .what = what, .seed = seed + started, .words = bytes / n / sizeof(uint64_t) / 32 * 32};
        if (pthread_create(&workers[started].thread, NULL, work, workers + started))
            break;
    }
    /* Without all threads the barrier would never open: the machine cannot be measured, and the process cannot go on.
     */
    if (started < n) {
        fprintf(stderr, "moert: bench: %u threads cannot be started\n", n);
        exit(TOOL_DEVICE);
    }
    for (int i = 0; i < SAMPLES + 1; i++) {
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        if (i)
            samples[i - 1] = elapsed(workers, n);
        pthread_barrier_wait(&barrier);
    }
    for (unsigned i = 0; i < n; i++) {
        pthread_join(workers[i].thread, NULL);
        amount += workers[i].amount;
    }
    pthread_barrier_destroy(&barrier);
    free(workers);
    return amount;
}

void bench_measure_limits(const struct bench_machine *machine, uint64_t seed, struct bench_limits *ret)
{
    double samples[SAMPLES], rate[WHATS];

    for (int what = 0; what < WHATS; what++) {
        double amount = measure(machine, (enum what)what, seed, samples);
        double median = tool_statistics(samples, SAMPLES).median;
        rate[what] = amount > 0 && median > 0 ? amount / median * 1e9 : 0;
    }
    ret->copy = rate[COPY];
    ret->read = rate[READ];
    ret->multiply_adds = rate[MULTIPLY_ADD];
}

int bench_copy(struct tool *tool, const struct bench_request *request, const struct bench_machine *machine,
               json_t *rows)
{
    for (int what = 0; what < WHATS; what++) {
        double samples[SAMPLES], amount = measure(machine, (enum what)what, request->seed, samples), median;
        json_t *row;
        if (!(amount > 0))
            return tool_fail(tool, MOERT_E_NOMEM, "host-memory", "%s: memory for the buffers is missing",
                             what_names[what]);
        median = tool_statistics(samples, SAMPLES).median;
        row = json_pack("{s:s, s:s, s:i}", "bench", "copy", "what", what_names[what], "threads", (int)machine->threads);
        bench_row_times(row, samples, SAMPLES);
        json_object_set_new(row, what == MULTIPLY_ADD ? "operations_per_s" : "bytes_per_s",
                            tool_json_real(amount / median * 1e9));
        json_array_append_new(rows, row);
    }
    return 0;
}
