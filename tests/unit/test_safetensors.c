/* tests/unit/test_safetensors.c: the reader of layer.md 9.1 refuses every malformed file with its own message, and the
 * writer's files appear complete or not at all. */
#include "config.h"

#include <moert/safetensors.h>

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[64];

static void make_dir(void)
{
    snprintf(dir, sizeof(dir), "/tmp/moert-st-XXXXXX");
    cr_assert(mkdtemp(dir));
}

static void remove_dir(void)
{
    char path[400];
    DIR *d = opendir(dir);
    struct dirent *e;

    while (d && (e = readdir(d))) {
        snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
        unlink(path);
    }
    if (d)
        closedir(d);
    rmdir(dir);
}

static int files_in_dir(void)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    int n = 0;

    while (d && (e = readdir(d)))
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static const char *in_dir(const char *name)
{
    static char path[128];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return path;
}

static void put_bytes(const char *path, const void *bytes, size_t count)
{
    FILE *f = fopen(path, "wb");
    cr_assert(f);
    cr_assert_eq(fwrite(bytes, 1, count, f), count);
    fclose(f);
}

/* Header length, header, `data` bytes 0, 1, 2, ... */
static void put_file(const char *path, uint64_t length, const char *header, size_t data)
{
    size_t n = strlen(header);
    uint8_t *all = malloc(8 + n + data);

    for (unsigned i = 0; i < 8; i++)
        all[i] = (uint8_t)(length >> (8 * i));
    memcpy(all + 8, header, n);
    for (size_t i = 0; i < data; i++)
        all[8 + n + i] = (uint8_t)i;
    put_bytes(path, all, 8 + n + data);
    free(all);
}

#define T(dtype, shape, offsets) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const struct bad_file {
    const char *header;
    size_t data;
    int64_t length_offset; /* added to the true header length */
    const char *code, *text;
} bad_files[] = {
    {"", 0, 0, "st-header", "header length is 0"},
    {"{}", 0, 1, "st-header", "header length 3 exceeds the file (10 bytes)"},
    {"{}", 0, 4294967294, "st-header", "header length 4294967296 exceeds the file (10 bytes)"},
    {"{}", 0, -3, "st-header", "header length 18446744073709551615 exceeds the file"},
    {"[]", 0, 0, "st-json", "not a JSON object"},
    {"{", 0, 0, "st-json", "header is not JSON"},
    {"{\"a\":}", 0, 0, "st-json", "unexpected token"},
    {"{} x", 0, 0, "st-json", "end of file expected"},
    {"\"text\"", 0, 0, "st-json", "header is not JSON"},
    {"{\"\xff\":1}", 0, 0, "st-json", "byte 0xff"},
    {"{\"a\\u0000b\":1}", 0, 0, "st-json", "\\u0000"},
    {"{\"a\":" T("F32", "[99999999999999999999]", "[0,4]") "}", 4, 0, "st-json", "too big integer"},
    {"{\"a\":1}", 0, 0, "st-header", "tensor \"a\": entry is not an object"},
    {"{\"a\":" T("U8", "[1]", "[0,1]") ",\"a\":" T("U8", "[1]", "[1,2]") "}", 2, 0, "st-duplicate", "\"a\""},
    {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, 0, "st-duplicate",
     "\"dtype\""},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, 0, "st-header", "tensor \"a\": \"dtype\" is missing"},
    {"{\"a\":{\"dtype\":8,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, 0, "st-header", "\"dtype\" is not a string"},
    {"{\"a\":" T("F3", "[1]", "[0,1]") "}", 1, 0, "st-header", "unknown dtype \"F3\"; known: F64"},
    {"{\"a\":" T("u8", "[1]", "[0,1]") "}", 1, 0, "st-header", "unknown dtype \"u8\""},
    {"{\"a\":" T("float32", "[1]", "[0,4]") "}", 4, 0, "st-header", "unknown dtype \"float32\""},
    {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, 0, "st-header", "\"shape\" is missing"},
    {"{\"a\":" T("U8", "1", "[0,1]") "}", 1, 0, "st-header", "\"shape\" is not an array"},
    {"{\"a\":" T("U8", "[1,-1]", "[0,1]") "}", 1, 0, "st-header", "shape[1] is not a whole number"},
    {"{\"a\":" T("U8", "[1.0]", "[0,1]") "}", 1, 0, "st-header", "shape[0] is not a whole number"},
    {"{\"a\":" T("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, 0, "st-header", "has 9 dimensions; at most 8"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, 0, "st-header", "\"data_offsets\" is missing"},
    {"{\"a\":" T("U8", "[1]", "[0]") "}", 1, 0, "st-offsets", "not two whole numbers"},
    {"{\"a\":" T("U8", "[1]", "[-1,1]") "}", 1, 0, "st-offsets", "not two whole numbers"},
    {"{\"a\":" T("U8", "[1]", "[0,\"1\"]") "}", 1, 0, "st-offsets", "not two whole numbers"},
    {"{\"w2_weight\":" T("U8", "[256]", "[512,256]") "}", 512, 0, "st-offsets",
     "tensor \"w2_weight\": data_offsets [512,256] run backwards"},
    {"{\"a\":" T("U8", "[2]", "[0,2]") "}", 1, 0, "st-offsets", "data_offsets [0,2] exceed the 1 bytes of data"},
    {"{\"a\":" T("U8", "[2]", "[9223372036854775800,9223372036854775802]") "}", 1, 0, "st-offsets",
     "exceed the 1 bytes"},
    {"{\"a\":" T("F32", "[2]", "[0,4]") "}", 4, 0, "st-offsets", "need 8 bytes, data_offsets [0,4] hold 4"},
    {"{\"a\":" T("U8", "[4294967296,4294967296]", "[0,0]") "}", 0, 0, "st-offsets", "exceeds 64 bits"},
    {"{\"a\":" T("F64", "[4611686018427387904]", "[0,0]") "}", 0, 0, "st-offsets", "exceeds 64 bits"},
    {"{\"a\":" T("U8", "[2]", "[0,2]") ",\"b\":" T("U8", "[2]", "[1,3]") "}", 3, 0, "st-offsets",
     "tensor \"b\" begins at 1, inside \"a\" that ends at 2"},
    {"{\"a\":" T("U8", "[2]", "[0,2]") ",\"b\":" T("U8", "[2]", "[0,2]") "}", 2, 0, "st-offsets", "inside"},
    {"{\"a\":" T("U8", "[2]", "[0,2]") ",\"b\":" T("U8", "[2]", "[3,5]") "}", 5, 0, "st-offsets",
     "1 bytes before tensor \"b\" (offset 3) belong to no tensor"},
    {"{\"a\":" T("U8", "[2]", "[1,3]") "}", 3, 0, "st-offsets", "1 bytes before tensor \"a\""},
    {"{\"a\":" T("U8", "[2]", "[0,2]") "}", 7, 0, "st-offsets", "the last 5 of 7 bytes of data belong to no tensor"},
    {"{}", 1, 0, "st-offsets", "the last 1 of 1 bytes"},
    {"{\"__metadata__\":[]}", 0, 0, "st-header", "__metadata__ is not an object"},
    {"{\"__metadata__\":{\"n\":1}}", 0, 0, "st-header", "__metadata__ \"n\" is not a string"},
};
#define BAD_COUNT (sizeof(bad_files) / sizeof(*bad_files))
_Static_assert(BAD_COUNT >= 30, "at least 30 malformed files");

TestSuite(safetensors, .init = make_dir, .fini = remove_dir);

Test(safetensors, each_malformed_file_has_its_message)
{
    for (size_t i = 0; i < BAD_COUNT; i++) {
        const struct bad_file *b = &bad_files[i];
        const char *path = in_dir("bad.safetensors");
        for (uint32_t flags = 0; flags <= MOERT_ST_OPEN_READ; flags++) {
            struct moert_error err = MOERT_ERROR_INIT;
            moert_safetensors_t *file = NULL;
            put_file(path, (uint64_t)((int64_t)strlen(b->header) + b->length_offset), b->header, b->data);
            cr_expect_eq(moert_safetensors_open(path, flags, &file, &err), MOERT_E_FILE, "case %zu: %s", i, b->header);
            cr_expect_null(file, "case %zu", i);
            cr_expect_str_eq(err.code, b->code, "case %zu: %s: %s", i, err.code, err.text);
            cr_expect(strstr(err.text, b->text), "case %zu: \"%s\" lacks \"%s\"", i, err.text, b->text);
            cr_expect(strstr(err.text, path), "case %zu: \"%s\" names no file", i, err.text);
            cr_expect_eq(moert_safetensors_open(path, flags, &file, NULL), MOERT_E_FILE); /* err may be NULL */
        }
    }
}

Test(safetensors, short_and_special_files)
{
    struct moert_error err = MOERT_ERROR_INIT;
    moert_safetensors_t *file;

    put_bytes(in_dir("short"), "1234567", 7);
    cr_expect_eq(moert_safetensors_open(in_dir("short"), 0, &file, &err), MOERT_E_FILE);
    cr_expect(strstr(err.text, "file has 7 bytes"), "%s", err.text);
    put_bytes(in_dir("empty"), "", 0);
    cr_expect_eq(moert_safetensors_open(in_dir("empty"), 0, &file, &err), MOERT_E_FILE);
    cr_expect(strstr(err.text, "file has 0 bytes"), "%s", err.text);
    cr_expect_eq(moert_safetensors_open(in_dir("absent"), 0, &file, &err), MOERT_E_MISSING);
    cr_expect_str_eq(err.code, "file-missing");
    cr_expect_eq(moert_safetensors_open(dir, 0, &file, &err), MOERT_E_FILE);
    cr_expect(strstr(err.text, "not a regular file"), "%s", err.text);
    cr_expect_eq(moert_safetensors_open(NULL, 0, &file, &err), MOERT_E_USAGE);
    cr_expect_eq(moert_safetensors_open("x", 0, NULL, &err), MOERT_E_USAGE);
    cr_expect_eq(moert_safetensors_open("x", 8, &file, &err), MOERT_E_USAGE);
    cr_expect_str_eq(err.code, "flag");
}

/* A header beyond 100 MB inside a (sparse) file large enough for it. */
Test(safetensors, header_limit)
{
    struct moert_error err = MOERT_ERROR_INIT;
    moert_safetensors_t *file;

    put_file(in_dir("large"), 100000001, "{}", 0);
    cr_assert_eq(truncate(in_dir("large"), 200000000), 0);
    cr_expect_eq(moert_safetensors_open(in_dir("large"), 0, &file, &err), MOERT_E_FILE);
    cr_expect(strstr(err.text, "header length 100000001 exceeds the limit of 100000000 bytes"), "%s", err.text);
}

/* A file of 100 bytes may not make the reader allocate more than a little, whatever it claims. */
Test(safetensors, hostile_small_file_stays_small)
{
    struct rlimit limit = {256u << 20, 256u << 20};
    struct moert_error err = MOERT_ERROR_INIT;
    moert_safetensors_t *file;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    cr_assert_eq(setrlimit(RLIMIT_AS, &limit), 0);
#else
    (void)limit;
#endif
    put_file(in_dir("h1"), 4000000000u, "{\"a\":1}", 40);
    cr_expect_eq(moert_safetensors_open(in_dir("h1"), 0, &file, &err), MOERT_E_FILE);
    put_file(in_dir("h2"), strlen("{\"a\":" T("U8", "[1099511627776]", "[0,1099511627776]") "}"),
             "{\"a\":" T("U8", "[1099511627776]", "[0,1099511627776]") "}", 1);
    cr_expect_eq(moert_safetensors_open(in_dir("h2"), 0, &file, &err), MOERT_E_FILE);
    cr_expect(strstr(err.text, "exceed the 1 bytes"), "%s", err.text);
}

Test(safetensors, deep_nesting_is_refused)
{
    struct moert_error err = MOERT_ERROR_INIT;
    moert_safetensors_t *file;
    char *header = malloc(100001);

    memset(header, '[', 100000);
    header[100000] = 0;
    memcpy(header, "{\"a\":", 5);
    put_file(in_dir("deep"), 100000, header, 0);
    free(header);
    cr_expect_eq(moert_safetensors_open(in_dir("deep"), 0, &file, &err), MOERT_E_FILE);
    cr_expect_str_eq(err.code, "st-json");
}

/* Header length 57 + 8 leaves the F32 data at an odd address: legal. Order is that of the data, not of the header. */
Test(safetensors, legal_oddities)
{
    static const char header[] = "{ \"z\":" T("F32", "[]", "[3,7]") ", \"e2\":" T("F16", "[0,5]", "[3,3]") ",\"a\":" T(
        "U8", "[3]", "[0,3]") ",\"__metadata__\":{\"k\":\"v\",\"a\":\"b\"}}   ";
    struct moert_error err = MOERT_ERROR_INIT;
    moert_safetensors_t *f;
    const struct moert_st_tensor *t;

    put_file(in_dir("odd"), strlen(header), header, 7);
    cr_assert_eq(moert_safetensors_open(in_dir("odd"), 0, &f, &err), MOERT_OK, "%s", err.text);
    cr_assert_eq(moert_safetensors_count(f), 3);
    cr_expect_str_eq(moert_safetensors_at(f, 0)->name, "a");
    cr_expect_str_eq(moert_safetensors_at(f, 1)->name, "e2");
    cr_expect_str_eq(moert_safetensors_at(f, 2)->name, "z");
    cr_expect_null(moert_safetensors_at(f, 3));
    t = moert_safetensors_find(f, "z");
    cr_assert(t);
    cr_expect_eq(t->rank, 0);
    cr_expect_eq(t->bytes, 4);
    cr_expect_eq(memcmp(t->data, "\3\4\5\6", 4), 0);
    cr_expect_null(moert_safetensors_find(f, "zz"));
    cr_expect_str_eq(moert_safetensors_metadata(f, "k"), "v");
    cr_expect_null(moert_safetensors_metadata(f, "none"));
    cr_expect_str_eq(moert_safetensors_metadata_key(f, 0), "a");
    cr_expect_str_eq(moert_safetensors_metadata_key(f, 1), "k");
    cr_expect_null(moert_safetensors_metadata_key(f, 2));
    moert_safetensors_close(f);
    moert_safetensors_close(NULL);
    put_file(in_dir("none"), 2, "{}", 0);
    cr_assert_eq(moert_safetensors_open(in_dir("none"), 0, &f, &err), MOERT_OK);
    cr_expect_eq(moert_safetensors_count(f), 0);
    cr_expect_null(moert_safetensors_find(f, "x"));
    moert_safetensors_close(f);
}

Test(safetensors, get_checks_dtype_and_shape)
{
    static const char header[] = "{\"w2_weight\":" T("U8", "[2,3]", "[0,6]") ",\"x\":" T("BF16", "[1]", "[6,8]") "}";
    const uint64_t right[] = {2, UINT64_MAX}, wrong[] = {2, 4};
    struct moert_error err = MOERT_ERROR_INIT;
    const struct moert_st_tensor *t = NULL;
    moert_safetensors_t *f;

    put_file(in_dir("get"), strlen(header), header, 8);
    cr_assert_eq(moert_safetensors_open(in_dir("get"), 0, &f, &err), MOERT_OK);
    cr_expect_eq(moert_safetensors_get(f, "w2_weight", MOERT_U8, 2, right, &t, &err), MOERT_OK);
    cr_expect_eq(moert_safetensors_get(f, "x", MOERT_DTYPE_NONE, 0, NULL, &t, &err), MOERT_OK);
    t = NULL;
    cr_expect_eq(moert_safetensors_get(f, "w2_weight", MOERT_U8, 2, wrong, &t, &err), MOERT_E_SHAPE);
    cr_expect_str_eq(err.code, "tensor-shape");
    cr_expect(strstr(err.text, "w2_weight is [2,3], expected [2,4]"), "%s", err.text);
    cr_expect_eq(moert_safetensors_get(f, "w2_weight", MOERT_U8, 1, right, &t, &err), MOERT_E_SHAPE);
    cr_expect_eq(moert_safetensors_get(f, "w2_weight", MOERT_F32, 2, right, &t, &err), MOERT_E_DTYPE);
    cr_expect(strstr(err.text, "w2_weight is U8, expected F32"), "%s", err.text);
    cr_expect_eq(moert_safetensors_get(f, "w2_weight", MOERT_DTYPE_NONE, 2, right, &t, &err), MOERT_E_DTYPE);
    cr_expect_eq(moert_safetensors_get(f, "w2_wieght", MOERT_U8, 2, right, &t, &err), MOERT_E_MISSING);
    cr_expect_str_eq(err.code, "tensor-missing");
    cr_expect(strstr(err.text, "nearest: \"w2_weight\""), "%s", err.text);
    cr_expect_null(t);
    moert_safetensors_close(f);
}

/* Every dtype, odd pieces, escaped names, holes: read back equal, and a second writing gives the same bytes. */
static void write_all(const char *path, const uint8_t *data, uint64_t piece)
{
    struct moert_error err = MOERT_ERROR_INIT;
    const uint64_t large[] = {3, 100000};
    moert_st_writer_t *w;
    uint64_t total = 0;

    cr_assert_eq(moert_st_writer_create(path, &w, &err), MOERT_OK, "%s", err.text);
    cr_assert_eq(moert_st_writer_metadata(w, "quote\"", "line\nend", &err), MOERT_OK);
    for (moert_dtype_t d = 1; d < MOERT_DTYPE_COUNT; d++) {
        const uint64_t shape[] = {d, 3};
        cr_assert_eq(moert_st_writer_declare(w, moert_dtype_name(d), d, 2, shape, &err), MOERT_OK, "%s", err.text);
        total += (uint64_t)d * 3 * moert_dtype_size(d);
    }
    cr_assert_eq(moert_st_writer_declare(w, "a \"b\" \xc3\xa9", MOERT_F32, 2, large, &err), MOERT_OK);
    cr_assert_eq(moert_st_writer_declare(w, "scalar", MOERT_U8, 0, NULL, &err), MOERT_OK);
    total += 3 * 100000 * 4 + 1;
    for (uint64_t at = 0; at < total; at += piece) {
        uint64_t n = total - at < piece ? total - at : piece;
        cr_assert_eq(moert_st_writer_append(w, data + at, n, &err), MOERT_OK, "%s", err.text);
    }
    cr_assert_eq(moert_st_writer_commit(w, &err), MOERT_OK, "%s", err.text);
    moert_st_writer_destroy(w);
}

Test(safetensors, round_trip)
{
    struct moert_error err = MOERT_ERROR_INIT;
    uint8_t *data = calloc(1, 2000000);
    moert_safetensors_t *f;
    uint64_t at = 0;

    for (size_t i = 0; i < 400000; i++) /* the rest stays zero: a hole, and a data tail */
        data[i] = (uint8_t)(i * 7 + i / 251);
    write_all(in_dir("r1"), data, 70001);
    write_all(in_dir("r2"), data, 2000000);
    for (unsigned k = 0; k < 2; k++) {
        cr_assert_eq(moert_safetensors_open(in_dir(k ? "r2" : "r1"), 0, &f, &err), MOERT_OK, "%s", err.text);
        cr_expect_str_eq(moert_safetensors_metadata(f, "quote\""), "line\nend");
        cr_expect_eq(moert_safetensors_count(f), MOERT_DTYPE_COUNT - 1 + 2);
        cr_expect(moert_safetensors_find(f, "a \"b\" \xc3\xa9"));
        at = 0;
        for (uint64_t i = 0; i < moert_safetensors_count(f); i++) {
            const struct moert_st_tensor *t = moert_safetensors_at(f, i);
            cr_expect_eq(memcmp(t->data, data + at, t->bytes), 0, "%s", t->name);
            cr_expect(i || (uintptr_t)t->data % 8 == 0); /* the data section is aligned to 8 */
            at += t->bytes;
        }
        moert_safetensors_close(f);
    }
    cr_expect_eq(files_in_dir(), 2);
    free(data);
}

Test(safetensors, writer_refusals)
{
    struct moert_error err = MOERT_ERROR_INIT;
    const uint64_t huge[] = {1ull << 40, 1ull << 40}, one[] = {1}, nine[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    moert_st_writer_t *w;

    cr_expect_eq(moert_st_writer_create(in_dir("no/such/dir"), &w, &err), MOERT_E_OUTPUT);
    cr_expect_str_eq(err.code, "output-write");
    cr_assert_eq(moert_st_writer_create(in_dir("w"), &w, &err), MOERT_OK);
    cr_expect_eq(moert_st_writer_declare(w, "t", MOERT_F32, 2, huge, &err), MOERT_E_TOO_LARGE);
    cr_expect_eq(moert_st_writer_declare(w, "t", MOERT_F32, 9, nine, &err), MOERT_E_SHAPE);
    cr_expect_eq(moert_st_writer_declare(w, "t", 99, 1, one, &err), MOERT_E_DTYPE);
    cr_expect_eq(moert_st_writer_declare(w, "__metadata__", MOERT_U8, 1, one, &err), MOERT_E_VALUE);
    cr_expect_eq(moert_st_writer_metadata(w, "k", "\xff", &err), MOERT_E_VALUE);
    cr_expect_eq(moert_st_writer_declare(w, "t", MOERT_U8, 1, one, &err), MOERT_OK);
    cr_expect_eq(moert_st_writer_commit(w, &err), MOERT_E_USAGE);
    cr_expect(strstr(err.text, "0 of 1 declared bytes"), "%s", err.text);
    cr_expect_eq(moert_st_writer_declare(w, "u", MOERT_U8, 1, one, &err), MOERT_E_USAGE);
    cr_expect_eq(moert_st_writer_append(w, "ab", 2, &err), MOERT_E_USAGE);
    cr_expect_eq(moert_st_writer_append(w, "a", 1, &err), MOERT_OK);
    cr_expect_eq(moert_st_writer_commit(w, &err), MOERT_OK);
    cr_expect_eq(moert_st_writer_append(w, "a", 1, &err), MOERT_E_USAGE);
    moert_st_writer_destroy(w);
    cr_assert_eq(moert_st_writer_create(in_dir("w2"), &w, &err), MOERT_OK);
    cr_expect_eq(moert_st_writer_declare(w, "t", MOERT_U8, 1, one, &err), MOERT_OK);
    cr_expect_eq(moert_st_writer_declare(w, "t", MOERT_U8, 1, one, &err), MOERT_OK);
    cr_expect_eq(moert_st_writer_begin(w, &err), MOERT_E_VALUE);
    cr_expect_str_eq(err.code, "st-duplicate");
    moert_st_writer_destroy(w);
    cr_expect_eq(files_in_dir(), 1, "only the committed file is left");
}

/* A file-size limit stands for the full disk: the write fails, the target that was there stays as it was. */
Test(safetensors, full_disk_leaves_the_old_file)
{
    struct rlimit limit = {100000, 100000};
    struct moert_error err = MOERT_ERROR_INIT;
    const uint64_t shape[] = {1000000};
    uint8_t *data = malloc(1000000);
    moert_st_writer_t *w;
    struct stat st;

    memset(data, 1, 1000000);
    put_bytes(in_dir("target"), "old", 3);
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    cr_assert_eq(moert_st_writer_create(in_dir("target"), &w, &err), MOERT_OK);
    cr_assert_eq(moert_st_writer_declare(w, "t", MOERT_U8, 1, shape, &err), MOERT_OK);
    cr_expect_eq(moert_st_writer_append(w, data, 1000000, &err), MOERT_E_OUTPUT);
    cr_expect_str_eq(err.code, "output-write");
    cr_expect(strstr(err.text, "File too large"), "%s", err.text);
    cr_expect_eq(moert_st_writer_append(w, data, 1, &err), MOERT_E_USAGE, "a failed writer stays failed");
    cr_expect_eq(moert_st_writer_commit(w, &err), MOERT_E_USAGE);
    moert_st_writer_destroy(w);
    cr_expect_eq(files_in_dir(), 1);
    cr_expect_eq(stat(in_dir("target"), &st), 0);
    cr_expect_eq(st.st_size, 3);
    free(data);
}

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    moert_st_writers_unlink();
    _exit(130);
}

/* A command's handler removes what an interrupted writer has begun. */
Test(safetensors, interrupt_leaves_nothing)
{
    pid_t child = fork();
    int status;

    if (!child) {
        const uint64_t shape[] = {4};
        moert_st_writer_t *w;
        signal(SIGINT, on_interrupt);
        if (moert_st_writer_create(in_dir("i"), &w, NULL) ||
            moert_st_writer_declare(w, "t", MOERT_U8, 1, shape, NULL) || moert_st_writer_append(w, "ab", 2, NULL))
            _exit(1);
        raise(SIGINT);
        _exit(2);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 130);
    cr_expect_eq(files_in_dir(), 0);
}
