/* tests/loader/test_race.c: one context used by many threads at once (include/moert/context.h: thread-safe). Plain C
 * that speaks TAP: Criterion does not run under ThreadSanitizer, this does. */
#include "config.h"

#include "core/loader/context.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS 8
#define ROUNDS  50

static moert_context_t *context;
static atomic_int faults;

static void expect(int ok, const char *what)
{
    if (!ok) {
        atomic_fetch_add(&faults, 1);
        printf("# %s\n", what);
    }
}

/* Opens the device at the same moment as the others, reads the tables, moves bytes on a queue of its own. */
static void *work(void *arg)
{
    struct moert_device_desc desc = {.size = sizeof(desc)};
    struct moert_driver_info info = {.size = sizeof(info)};
    char in[32], out[32];
    uint32_t index;

    snprintf(in, sizeof(in), "thread %d", *(int *)arg);
    for (int i = 0; i < ROUNDS; i++) {
        moert_queue_t *queue = NULL;
        moert_buffer_t *buffer = NULL;
        expect(!moert_queue_create(context, 0, 0, &queue, NULL), "queue_create");
        expect(!moert_buffer_alloc(context, 0, MOERT_MEMORY_DEVICE, sizeof(in), 0, &buffer, NULL), "buffer_alloc");
        expect(!moert_copy_in(queue, buffer, 0, in, sizeof(in), NULL), "copy_in");
        expect(!moert_copy_out(queue, out, buffer, 0, sizeof(out), NULL), "copy_out");
        expect(!memcmp(in, out, strlen(in)), "bytes");
        expect(!moert_device_get(context, 0, &desc, NULL) && !strcmp(desc.id, "good"), "device_get");
        expect(!moert_driver_get(context, 0, &info, NULL) && info.device_count == 1, "driver_get");
        expect(!moert_backend_find(context, "good.second", &index, NULL) && index == 1, "backend_find");
        expect(moert_self_test_peek(context, 0, 0, out, sizeof(out)) == MOERT_SELF_TEST_PASSED, "peek");
        moert_buffer_free(buffer);
        moert_queue_destroy(queue);
    }
    return NULL;
}

static void *create_and_destroy(void *arg)
{
    struct moert_context_options options = {.size = sizeof(options), .driver_path = arg, .drivers = ""};

    for (int i = 0; i < 5; i++) {
        moert_context_t *own = NULL;
        expect(!moert_context_create(&options, &own, NULL), "context_create");
        expect(moert_device_count(own) == 1, "device_count");
        moert_context_destroy(own);
    }
    return NULL;
}

/* <build>/tests/loader/race-modules/moert_good.so, made by the makefile. */
static void module_directory(char *out, size_t size)
{
    const char *build = getenv("MOERT_TEST_BUILDDIR");

    snprintf(out, size, "%s/tests/loader/race-modules", build ? build : ".");
}

int main(void)
{
    char directory[1024];
    struct moert_context_options options = {
        .size = sizeof(options), .flags = MOERT_CONTEXT_F_NO_SELF_TEST, .driver_path = directory, .drivers = ""};
    pthread_t threads[THREADS + 1];
    int numbers[THREADS];

    puts("1..2");
    module_directory(directory, sizeof(directory));
    if (moert_context_create(&options, &context, NULL) || moert_device_count(context) != 1) {
        puts("Bail out! the module is missing");
        return 1;
    }
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        pthread_create(&threads[i], NULL, work, &numbers[i]);
    }
    pthread_create(&threads[THREADS], NULL, create_and_destroy, directory);
    for (int i = 0; i <= THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("%s 1 - %d threads share a context\n", atomic_load(&faults) ? "not ok" : "ok", THREADS);
    moert_context_destroy(context);

    atomic_store(&faults, 0);
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, create_and_destroy, directory);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    printf("%s 2 - contexts come and go in 4 threads\n", atomic_load(&faults) ? "not ok" : "ok");
    return 0;
}
