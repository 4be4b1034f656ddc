/* core/io/st_writer.c: writes a safetensors file: every tensor is declared first, so that the header is final before
 * the data; the data are then streamed in any piece size into a temporary file that commit renames over the target. */
#include "config.h"

#include <moert/safetensors.h>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/text.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Runs of zero bytes of at least this size become holes where the file system can have them. */
#define HOLE (64u << 10)

struct entry {
    char *name;
    moert_dtype_t dtype;
    uint32_t rank;
    uint64_t shape[MOERT_ST_MAX_RANK];
    uint64_t bytes;
};

struct moert_st_writer {
    struct moert_file_writer out;
    char *path;
    json_t *metadata; /* NULL until a key is set */
    struct entry *entries;
    uint64_t count, room;
    uint64_t declared, appended; /* data bytes */
    uint64_t header;             /* bytes before the data */
    int begun, failed, done;
    int hole_at_end; /* the file must be set to its length at the end */
};

static moert_status_t state(const moert_st_writer_t *w, const char *what, struct moert_error *err)
{
    return moert_fail(err, MOERT_E_USAGE, "state", "%s: %s", w->path, what);
}

static moert_status_t no_memory(const moert_st_writer_t *w, struct moert_error *err)
{
    return moert_fail(err, MOERT_E_NOMEM, "host-memory", "%s: no memory for the header", w->path);
}

moert_status_t moert_st_writer_create(const char *path, moert_st_writer_t **ret, struct moert_error *err)
{
    moert_st_writer_t *w;
    moert_status_t status;

    if (!path || !ret)
        return moert_fail_null(err, path ? "ret" : "path");
    w = calloc(1, sizeof(*w));
    if (!w || !(w->path = strdup(path))) {
        free(w);
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "%s: no memory", path);
    }
    status = moert_file_writer_open(path, &w->out, err);
    if (status) {
        free(w->path);
        free(w);
        return status;
    }
    *ret = w;
    return MOERT_OK;
}

moert_status_t moert_st_writer_metadata(moert_st_writer_t *w, const char *key, const char *value,
                                        struct moert_error *err)
{
    json_t *string;

    if (!w || !key || !value)
        return moert_fail_null(err, !w ? "writer" : !key ? "key" : "value");
    if (w->begun)
        return state(w, "metadata after the header was written", err);
    string = json_string(value);
    if (!string)
        return moert_fail(err, MOERT_E_VALUE, "st-header", "%s: metadata \"%.200s\" is not UTF-8", w->path, key);
    if (!w->metadata)
        w->metadata = json_object();
    if (!w->metadata || json_object_set_new(w->metadata, key, string))
        return moert_fail(err, MOERT_E_VALUE, "st-header", "%s: metadata key \"%.200s\" is not UTF-8", w->path, key);
    return MOERT_OK;
}

static moert_status_t entry_room(moert_st_writer_t *w, struct moert_error *err)
{
    uint64_t room = w->room ? 2 * w->room : 64;
    struct entry *grown;

    if (w->count < w->room)
        return MOERT_OK;
    grown = realloc(w->entries, room * sizeof(*grown));
    if (!grown)
        return no_memory(w, err);
    w->entries = grown;
    w->room = room;
    return MOERT_OK;
}

moert_status_t moert_st_writer_declare(moert_st_writer_t *w, const char *name, moert_dtype_t dtype, uint32_t rank,
                                       const uint64_t *shape, struct moert_error *err)
{
    struct entry e = {.dtype = dtype, .rank = rank};
    uint64_t elements, total;
    moert_status_t status;

    if (!w || !name || (rank && !shape))
        return moert_fail_null(err, !w ? "writer" : !name ? "name" : "shape");
    if (w->begun)
        return state(w, "declaration after the header was written", err);
    if (!moert_dtype_size(dtype))
        return moert_fail(err, MOERT_E_DTYPE, "tensor-dtype", "%s: tensor \"%.200s\" has no dtype (%u)", w->path, name,
                          dtype);
    if (rank > MOERT_ST_MAX_RANK)
        return moert_fail(err, MOERT_E_SHAPE, "tensor-shape", "%s: tensor \"%.200s\" has %u dimensions; at most %d",
                          w->path, name, rank, MOERT_ST_MAX_RANK);
    if (!strcmp(name, "__metadata__"))
        return moert_fail(err, MOERT_E_VALUE, "st-header", "%s: __metadata__ cannot be a tensor's name", w->path);
    for (uint32_t i = 0; i < rank; i++)
        e.shape[i] = shape[i];
    if (!moert_product(e.shape, rank, &elements) || !moert_mul(elements, moert_dtype_size(dtype), &e.bytes) ||
        !moert_add(w->declared, e.bytes, &total) || total > INT64_MAX)
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large", "%s: tensor \"%.200s\" makes the file exceed 2^63 bytes",
                          w->path, name);
    status = entry_room(w, err);
    if (status)
        return status;
    e.name = strdup(name);
    if (!e.name)
        return no_memory(w, err);
    w->entries[w->count++] = e;
    w->declared = total;
    return MOERT_OK;
}

static int string_before(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static moert_status_t check_names(const moert_st_writer_t *w, struct moert_error *err)
{
    const char **names = calloc(w->count + 1, sizeof(*names));
    moert_status_t status = MOERT_OK;

    if (!names)
        return no_memory(w, err);
    for (uint64_t i = 0; i < w->count; i++)
        names[i] = w->entries[i].name;
    qsort(names, w->count, sizeof(*names), string_before);
    for (uint64_t i = 1; i < w->count && !status; i++)
        if (!strcmp(names[i - 1], names[i]))
            status = moert_fail(err, MOERT_E_VALUE, "st-duplicate", "%s: tensor \"%.200s\" is declared twice", w->path,
                                names[i]);
    free(names);
    return status;
}

/* `name` as a JSON string, or -1 when it is not UTF-8. */
static int add_string(struct moert_text *text, const char *name)
{
    json_t *string = json_string(name);
    char *quoted = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;

    json_decref(string);
    if (!quoted)
        return -1;
    moert_text_add(text, "%s", quoted);
    free(quoted);
    return 0;
}

static moert_status_t header_text(const moert_st_writer_t *w, struct moert_text *text, struct moert_error *err)
{
    uint64_t at = 0;

    moert_text_add(text, "{");
    if (w->metadata) {
        char *metadata = json_dumps(w->metadata, JSON_COMPACT | JSON_SORT_KEYS);
        if (!metadata)
            return no_memory(w, err);
        moert_text_add(text, "\"__metadata__\":%s%s", metadata, w->count ? "," : "");
        free(metadata);
    }
    for (uint64_t i = 0; i < w->count; i++) {
        const struct entry *e = &w->entries[i];
        if (add_string(text, e->name))
            return moert_fail(err, MOERT_E_VALUE, "st-header", "%s: tensor name %llu is not UTF-8", w->path,
                              (unsigned long long)i);
        moert_text_add(text, ":{\"dtype\":\"%s\",\"shape\":[", moert_dtype_name(e->dtype));
        for (uint32_t d = 0; d < e->rank; d++)
            moert_text_add(text, "%s%llu", d ? "," : "", (unsigned long long)e->shape[d]);
        moert_text_add(text, "],\"data_offsets\":[%llu,%llu]}%s", (unsigned long long)at,
                       (unsigned long long)(at + e->bytes), i + 1 < w->count ? "," : "");
        at += e->bytes;
    }
    moert_text_add(text, "}");
    while (text->length % 8 && !text->failed) /* data start at a multiple of 8 */
        moert_text_add(text, " ");
    return text->failed ? no_memory(w, err) : MOERT_OK;
}

moert_status_t moert_st_writer_begin(moert_st_writer_t *w, struct moert_error *err)
{
    struct moert_text text = {0};
    uint8_t length[8];
    moert_status_t status;

    if (!w)
        return moert_fail_null(err, "writer");
    if (w->begun)
        return state(w, "the header was already written", err);
    status = check_names(w, err);
    if (!status)
        status = header_text(w, &text, err);
    if (!status) {
        w->begun = 1;
        w->header = 8 + text.length;
        for (unsigned i = 0; i < 8; i++)
            length[i] = (uint8_t)((uint64_t)text.length >> (8 * i));
        status = moert_file_writer_write(&w->out, length, sizeof(length), err);
        if (!status)
            status = moert_file_writer_write(&w->out, text.text, text.length, err);
        w->failed = status != MOERT_OK;
    }
    moert_text_free(&text);
    return status;
}

static int all_zero(const uint8_t *p, uint64_t bytes)
{
    return !p[0] && (bytes < 2 || !memcmp(p, p + 1, bytes - 1));
}

/* Bytes of a run of HOLE-sized zero blocks at p, 0 when the first one holds data. */
static uint64_t zero_run(const uint8_t *p, uint64_t bytes)
{
    uint64_t n = 0;

    while (bytes - n >= HOLE && all_zero(p + n, HOLE))
        n += HOLE;
    return n;
}

/* Bytes before the next HOLE-sized zero block, at least one block or all that is left. */
static uint64_t data_run(const uint8_t *p, uint64_t bytes)
{
    uint64_t n = bytes < HOLE ? bytes : HOLE;

    while (bytes - n >= HOLE && !all_zero(p + n, HOLE))
        n += HOLE;
    return bytes - n < HOLE ? bytes : n;
}

static moert_status_t write_piece(moert_st_writer_t *w, const uint8_t *p, uint64_t bytes, struct moert_error *err)
{
    moert_status_t status = MOERT_OK;

    while (bytes && !status) {
        uint64_t n = zero_run(p, bytes);
        w->hole_at_end = 0;
        if (n && lseek(w->out.fd, (off_t)n, SEEK_CUR) >= 0) {
            w->hole_at_end = 1;
        } else {
            n = data_run(p, bytes);
            status = moert_file_writer_write(&w->out, p, n, err);
        }
        p += n;
        bytes -= n;
    }
    return status;
}

moert_status_t moert_st_writer_append(moert_st_writer_t *w, const void *data, uint64_t bytes, struct moert_error *err)
{
    moert_status_t status = MOERT_OK;

    if (!w || (bytes && !data))
        return moert_fail_null(err, !w ? "writer" : "data");
    if (w->done || w->failed)
        return state(w, w->done ? "already committed" : "an earlier write failed", err);
    if (!w->begun)
        status = moert_st_writer_begin(w, err);
    if (status)
        return status;
    if (bytes > w->declared - w->appended)
        return moert_fail(err, MOERT_E_USAGE, "state", "%s: %llu bytes appended, %llu of %llu declared bytes are left",
                          w->path, (unsigned long long)bytes, (unsigned long long)(w->declared - w->appended),
                          (unsigned long long)w->declared);
    status = write_piece(w, data, bytes, err);
    if (status)
        w->failed = 1;
    else
        w->appended += bytes;
    return status;
}

moert_status_t moert_st_writer_commit(moert_st_writer_t *w, struct moert_error *err)
{
    moert_status_t status = MOERT_OK;

    if (!w)
        return moert_fail_null(err, "writer");
    if (w->done || w->failed)
        return state(w, w->done ? "already committed" : "an earlier write failed", err);
    if (!w->begun)
        status = moert_st_writer_begin(w, err);
    if (status)
        return status;
    if (w->appended != w->declared)
        return moert_fail(err, MOERT_E_USAGE, "state", "%s: %llu of %llu declared bytes were appended", w->path,
                          (unsigned long long)w->appended, (unsigned long long)w->declared);
    if (w->hole_at_end && ftruncate(w->out.fd, (off_t)(w->header + w->declared))) {
        w->failed = 1;
        return moert_fail(err, MOERT_E_OUTPUT, "output-write", "%s: %s", w->path, strerror(errno));
    }
    w->done = 1;
    return moert_file_writer_commit(&w->out, err);
}

void moert_st_writer_destroy(moert_st_writer_t *w)
{
    if (!w)
        return;
    moert_file_writer_abort(&w->out);
    json_decref(w->metadata);
    for (uint64_t i = 0; i < w->count; i++)
        free(w->entries[i].name);
    free(w->entries);
    free(w->path);
    free(w);
}

void moert_st_writers_unlink(void)
{
    moert_file_writers_unlink();
}
