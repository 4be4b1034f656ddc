/* tests/loader/util.h: a directory of its own for each test, filled with modules, scripts and odd files. */
#ifndef MOERT_TESTS_LOADER_UTIL_H
#define MOERT_TESTS_LOADER_UTIL_H

#include <criterion/criterion.h>

#include <moert/context.h>

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_ROOM 1024

static char dir[64];         /* of this test */
static char log_text[65536]; /* what the library logged, a line per message */

static void log_line(void *ctx, moert_log_level_t level, const char *message)
{
    size_t n = strlen(log_text);

    (void)ctx;
    if (level <= MOERT_LOG_WARN)
        snprintf(log_text + n, sizeof(log_text) - n, "%s\n", message);
}

__attribute__((unused)) static const char *path_of(const char *name)
{
    static char path[4][PATH_ROOM];
    static int next;

    next = (next + 1) % 4;
    snprintf(path[next], sizeof(path[next]), "%s/%s", dir, name);
    return path[next];
}

__attribute__((unused)) static void write_file(const char *name, const void *data, size_t bytes, unsigned mode)
{
    FILE *file = fopen(path_of(name), "wb");

    cr_assert_not_null(file);
    cr_assert_eq(fwrite(data, 1, bytes, file), bytes);
    cr_assert_eq(fclose(file), 0);
    cr_assert_eq(chmod(path_of(name), mode), 0);
}

/* Whole file, malloc'ed. */
__attribute__((unused)) static char *read_file(const char *path, size_t *ret_bytes)
{
    FILE *file = fopen(path, "rb");
    struct stat st;
    char *data;

    cr_assert_not_null(file, "%s", path);
    cr_assert_eq(fstat(fileno(file), &st), 0);
    data = malloc((size_t)st.st_size + 1);
    cr_assert_not_null(data);
    *ret_bytes = fread(data, 1, (size_t)st.st_size, file);
    data[*ret_bytes] = 0;
    fclose(file);
    return data;
}

/* A file of the build: "tests/loader/.libs/variants.so". */
__attribute__((unused)) static char *read_built(const char *name, size_t *ret_bytes)
{
    const char *build = getenv("MOERT_TEST_BUILDDIR");
    char path[PATH_ROOM];

    snprintf(path, sizeof(path), "%s/tests/loader/.libs/%s", build ? build : ".", name);
    return read_file(path, ret_bytes);
}

/* Copies a built module to <directory>/moert_<variant>.so. */
__attribute__((unused)) static void install(const char *directory, const char *built, const char *variant)
{
    size_t bytes;
    char *data = read_built(built, &bytes), name[256];

    snprintf(name, sizeof(name), "%s%smoert_%s.so", directory, *directory ? "/" : "", variant);
    write_file(name, data, bytes, 0755);
    free(data);
}

static void make_dir(void)
{
    strcpy(dir, "/tmp/moert-loader.XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    log_text[0] = 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *walk)
{
    (void)st;
    (void)type;
    (void)walk;
    return remove(path);
}

static void remove_dir(void)
{
    nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* A context over `path` (NULL: the test's directory) and `drivers` (NULL: all). */
__attribute__((unused)) static moert_context_t *make_context(const char *path, const char *drivers)
{
    struct moert_context_options options = {
        .size = sizeof(options), .driver_path = path ? path : dir, .drivers = drivers ? drivers : "", .log = log_line};
    struct moert_error err = MOERT_ERROR_INIT;
    moert_context_t *context = NULL;

    cr_assert_eq(moert_context_create(&options, &context, &err), MOERT_OK, "%s", err.text);
    return context;
}

/* The entry of a name, the first one of it. */
__attribute__((unused)) static struct moert_driver_info find_driver(const moert_context_t *context, const char *name)
{
    struct moert_driver_info info = {.size = sizeof(info)};

    for (uint32_t i = 0; i < moert_driver_count(context); i++) {
        cr_assert_eq(moert_driver_get(context, i, &info, NULL), MOERT_OK);
        if (!strcmp(info.name, name))
            return info;
    }
    cr_assert_fail("driver %s is not listed", name);
    return info;
}

#endif
