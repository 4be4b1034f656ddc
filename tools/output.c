/* tools/output.c: what the command prints: errors, notes, JSON documents, tables and units for people. */
#include "config.h"

#include "tools/tools.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Text that may hold names out of a file: control characters must not reach a terminal. Lines of our own stay. */
static void print_safely(const char *text)
{
    for (; *text; text++)
        putc((unsigned char)*text < 32 && *text != '\n' ? '?' : *text == 127 ? '?' : *text, stderr);
}

int tool_error(struct tool *tool, const struct moert_error *err)
{
    fprintf(stderr, "moert: %s%s", tool->command ? tool->command->name : "", tool->command ? ": " : "");
    print_safely(err->text);
    putc('\n', stderr);
    if (tool->json && !tool->json_printed)
        tool_print_json(tool, json_pack("{s:{s:s?, s:s, s:o, s:i}}", "error", "status", moert_status_name(err->status),
                                        "code", err->code, "text", tool_json_string(err->text), "exit",
                                        moert_status_exit_code(err->status)));
    return moert_status_exit_code(err->status);
}

int tool_fail(struct tool *tool, moert_status_t status, const char *code, const char *format, ...)
{
    struct moert_error err = {.size = sizeof(err), .status = status};
    va_list ap;

    snprintf(err.code, sizeof(err.code), "%s", code);
    va_start(ap, format);
    vsnprintf(err.text, sizeof(err.text), format, ap);
    va_end(ap);
    return tool_error(tool, &err);
}

static void message(const char *format, va_list ap)
{
    fprintf(stderr, "moert: ");
    vfprintf(stderr, format, ap);
    fprintf(stderr, "\n");
}

void tool_note(const struct tool *tool, const char *format, ...)
{
    va_list ap;

    if (tool->quiet)
        return;
    va_start(ap, format);
    message(format, ap);
    va_end(ap);
}

void tool_detail(const struct tool *tool, const char *format, ...)
{
    va_list ap;

    if (!tool->verbose || tool->quiet)
        return;
    va_start(ap, format);
    message(format, ap);
    va_end(ap);
}

/* ---- JSON ---- */

int tool_print_json(struct tool *tool, json_t *document)
{
    int failed = !document;

    tool->json_printed = 1;
    if (document && !json_object_get(document, "schema")) {
        /* "schema" first, for readers. */
        json_t *with = json_pack("{s:i}", "schema", 1);
        failed |= !with || json_object_update(with, document);
        json_decref(document);
        document = with;
    }
    if (!failed)
        failed = json_dumpf(document, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(17)) < 0;
    json_decref(document);
    if (failed) {
        fprintf(stderr, "moert: the JSON document could not be made: memory is out or standard output failed\n");
        return TOOL_OUTPUT;
    }
    printf("\n");
    return TOOL_DONE;
}

json_t *tool_json_string(const char *text)
{
    json_t *json;
    char *copy;

    if (!text)
        return json_null();
    json = json_string(text);
    if (json)
        return json;
    copy = strdup(text);
    for (char *p = copy; p && *p; p++)
        if ((unsigned char)*p >= 0x80)
            *p = '?';
    json = copy ? json_string(copy) : NULL;
    free(copy);
    return json;
}

json_t *tool_json_real(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *tool_json_size(uint64_t value)
{
    return json_integer(value > INT64_MAX ? INT64_MAX : (json_int_t)value);
}

/* ---- tables ---- */

enum { WIDTH = 100, MAX_COLUMNS = 12, GAP = 2 };

struct tool_table {
    unsigned columns;
    size_t cells, room;
    char **text; /* row-major; the first row is the heading */
    unsigned char right[MAX_COLUMNS];
};

static void add_cell(struct tool_table *table, const char *text)
{
    if (table->cells == table->room) {
        size_t room = table->room ? 2 * table->room : 64;
        char **grown = realloc(table->text, room * sizeof(*grown));
        if (!grown)
            return;
        table->text = grown;
        table->room = room;
    }
    table->text[table->cells++] = strdup(text);
}

struct tool_table *tool_table_create(unsigned columns, const char *const *headings)
{
    struct tool_table *table = calloc(1, sizeof(*table));

    if (!table || columns > MAX_COLUMNS) {
        free(table);
        return NULL;
    }
    table->columns = columns;
    for (unsigned i = 0; i < columns; i++)
        add_cell(table, headings[i]);
    return table;
}

void tool_table_cell(struct tool_table *table, const char *format, ...)
{
    char text[4096];
    va_list ap;

    if (!table)
        return;
    va_start(ap, format);
    vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    add_cell(table, text);
}

void tool_table_right(struct tool_table *table, unsigned column)
{
    if (table && column < table->columns)
        table->right[column] = 1;
}

static const char *cell(const struct tool_table *table, size_t index)
{
    return index < table->cells && table->text[index] ? table->text[index] : "";
}

/* Columns that a UTF-8 text takes, for the scripts the program prints. */
static size_t columns_of(const char *text)
{
    size_t n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xC0) != 0x80;
    return n;
}

/* The last column: wrapped at blanks, continuation lines below itself. */
static void print_last(const char *text, size_t start)
{
    size_t room = start + 20 < WIDTH ? WIDTH - start : 20;

    while (columns_of(text) > room) {
        size_t cut = room;
        while (cut && text[cut] != ' ')
            cut--;
        if (!cut) {
            cut = room + strcspn(text + room, " ");
            if (!text[cut])
                break;
        }
        printf("%.*s\n%*s", (int)cut, text, (int)start, "");
        text += cut + strspn(text + cut, " ");
    }
    printf("%s\n", text);
}

static void print_row(const struct tool_table *table, size_t row, const size_t *width, const char *indent)
{
    size_t start = strlen(indent);

    printf("%s", indent);
    for (unsigned c = 0; c < table->columns; c++) {
        const char *text = cell(table, row * table->columns + c);
        int pad = (int)(width[c] - columns_of(text));
        if (table->right[c])
            printf("%*s%s", pad, "", text);
        else if (c + 1 < table->columns)
            printf("%s%*s", text, pad, "");
        if (c + 1 < table->columns) {
            printf("%*s", GAP, "");
            start += width[c] + GAP;
        } else if (table->right[c])
            printf("\n");
        else
            print_last(text, start);
    }
}

void tool_table_print(const struct tool *tool, struct tool_table *table, const char *indent)
{
    size_t width[MAX_COLUMNS] = {0}, rows;

    if (!table)
        return;
    rows = (table->cells + table->columns - 1) / table->columns;
    for (size_t i = 0; i < table->cells; i++) {
        size_t n = columns_of(cell(table, i));
        if (n > width[i % table->columns])
            width[i % table->columns] = n;
    }
    /* A heading without rows says nothing. */
    for (size_t row = 0; rows > 1 && row < rows; row++) {
        if (!row && tool->colour)
            printf("\033[1m");
        print_row(table, row, width, indent);
        if (!row && tool->colour)
            printf("\033[0m");
    }
    for (size_t i = 0; i < table->cells; i++)
        free(table->text[i]);
    free(table->text);
    free(table);
}

/* ---- units ---- */

const char *tool_bytes(uint64_t bytes, char text[32])
{
    static const char *const unit[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    double v = (double)bytes;
    unsigned u = 0;

    while (v >= 999.5 && u < 6) {
        v /= 1000;
        u++;
    }
    snprintf(text, 32, u && v < 99.95 ? (v < 9.995 ? "%.2f %s" : "%.1f %s") : "%.0f %s", v, unit[u]);
    return text;
}

const char *tool_time(double nanoseconds, char text[32])
{
    static const char *const unit[] = {"ns", "us", "ms", "s"};
    double v = nanoseconds;
    unsigned u = 0;

    while (v >= 999.5 && u < 3) {
        v /= 1000;
        u++;
    }
    snprintf(text, 32, u && v < 99.95 ? (v < 9.995 ? "%.2f %s" : "%.1f %s") : "%.0f %s", v, unit[u]);
    return text;
}

/* ---- small text files ---- */

int tool_read_text(struct tool *tool, const char *path, char **ret)
{
    enum { LIMIT = 16 << 20 };
    char *text = NULL;
    size_t used = 0, room = 0;
    FILE *file = fopen(path, "re");
    int status = 0;

    if (!file)
        return tool_fail(tool, errno == ENOENT ? MOERT_E_MISSING : MOERT_E_FILE, "file-missing", "%s: %s", path,
                         strerror(errno));
    for (;;) {
        if (used + 1 >= room) {
            char *grown = realloc(text, room = room ? 2 * room : 4096);
            if (!grown) {
                status = tool_fail(tool, MOERT_E_NOMEM, "host-memory", "%s: %zu bytes wanted", path, room);
                goto out;
            }
            text = grown;
        }
        size_t n = fread(text + used, 1, room - used - 1, file);
        used += n;
        if (used > LIMIT) {
            status = tool_fail(tool, MOERT_E_TOO_LARGE, "too-large", "%s: a text of at most %d bytes is expected", path,
                               LIMIT);
            goto out;
        }
        if (!n)
            break;
    }
    if (ferror(file)) {
        status = tool_fail(tool, MOERT_E_FILE, "file-missing", "%s: %s", path, strerror(errno));
        goto out;
    }
    text[used] = 0;
    if (memchr(text, 0, used)) {
        status =
            tool_fail(tool, MOERT_E_FILE, "json", "%s: a text file is expected, byte %zu is NUL", path, strlen(text));
        goto out;
    }
    *ret = text;
    text = NULL;
out:
    free(text);
    fclose(file);
    return status;
}
