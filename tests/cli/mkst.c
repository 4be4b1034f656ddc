/* tests/cli/mkst.c: writes a safetensors file, sound or damaged, from a description on standard input:
 *
 *   meta KEY VALUE...            entry of __metadata__ (the rest of the line; quotes are escaped)
 *   tensor NAME DTYPE SHAPE FILL SHAPE 2x3, or - for a scalar; FILL zero, seq, rand, const:X or list:1,2,3
 *   header TEXT...               this header instead of the one that follows from the tensors
 *   length N                     header length that is written (default: the true one)
 *   data N                       N zero bytes of data after it (with header)
 *   cut N                        file ends after N bytes
 *
 * It knows nothing of the library, so that it can write what the library refuses. Usage: mkst FILE <description
 * mkst --widen: BF16 values on standard input as F32 on standard output. */
#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    unsigned size;
} dtypes[] = {{"F32", 4},     {"BF16", 2},    {"F16", 2}, {"F64", 8}, {"I32", 4},  {"I64", 8},
              {"F8_E4M3", 1}, {"F8_E8M0", 1}, {"U8", 1},  {"I8", 1},  {"BOOL", 1}, {"U32", 4}};

struct file {
    char *header, *meta, *data;
    size_t header_used, meta_used, data_used;
    char *text_header;
    uint64_t length, cut;
    int has_length, has_cut;
};

static void die(const char *what, const char *word)
{
    fprintf(stderr, "mkst: %s: %s\n", what, word);
    exit(2);
}

static void append(char **text, size_t *used, const void *bytes, size_t count)
{
    *text = realloc(*text, *used + count + 1);
    if (!*text)
        die("memory", "out");
    memcpy(*text + *used, bytes, count);
    *used += count;
    (*text)[*used] = 0;
}

static void append_text(char **text, size_t *used, const char *bytes)
{
    append(text, used, bytes, strlen(bytes));
}

/* A number as an element of the dtype: enough for the values tests write. */
static void append_value(struct file *f, const char *dtype, unsigned size, double value)
{
    unsigned char bytes[8] = {0};
    float single = (float)value;
    int64_t whole = (int64_t)value;
    uint32_t bits;

    memcpy(&bits, &single, sizeof(bits));
    if (!strcmp(dtype, "BF16")) {
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
        memcpy(bytes, &bits, 2);
    } else if (!strcmp(dtype, "F32"))
        memcpy(bytes, &bits, 4);
    else if (!strcmp(dtype, "F64"))
        memcpy(bytes, &value, 8);
    else
        memcpy(bytes, &whole, size);
    append(&f->data, &f->data_used, bytes, size);
}

static double fill_value(const char *fill, uint64_t index)
{
    uint64_t x = (index + 1) * 0x9E3779B97F4A7C15u;

    if (!strcmp(fill, "seq"))
        return (double)index;
    if (!strncmp(fill, "const:", 6))
        return strtod(fill + 6, NULL);
    if (!strcmp(fill, "rand")) {
        x = (x ^ x >> 31) * 0xBF58476D1CE4E5B9u;
        return (double)((x ^ x >> 29) >> 11) * 0x1p-52 - 1;
    }
    return 0;
}

static void add_tensor(struct file *f, char *words)
{
    char *name = strtok(words, " "), *dtype = strtok(NULL, " "), *shape = strtok(NULL, " "), *fill = strtok(NULL, " ");
    char text[400];
    uint64_t count = 1;
    size_t begin = f->data_used;
    unsigned size = 0;

    if (!fill)
        die("tensor needs", "NAME DTYPE SHAPE FILL");
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(*dtypes); i++)
        if (!strcmp(dtypes[i].name, dtype))
            size = dtypes[i].size;
    if (!size)
        die("dtype", dtype);
    for (char *p = shape; *p; p++)
        if (*p == 'x')
            *p = ',';
    if (!strcmp(shape, "-"))
        *shape = 0;
    for (const char *p = shape; *p; p += strcspn(p, ","), p += *p == ',')
        count *= strtoull(p, NULL, 10);
    if (!strncmp(fill, "list:", 5)) {
        char *p = fill + 5;
        for (uint64_t i = 0; i < count; i++, p += *p == ',')
            append_value(f, dtype, size, strtod(p, &p));
    } else
        for (uint64_t i = 0; i < count; i++)
            append_value(f, dtype, size, fill_value(fill, i));
    snprintf(text, sizeof(text), "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
             f->header_used ? "," : "", name, dtype, shape, begin, f->data_used);
    append_text(&f->header, &f->header_used, text);
}

static void add_meta(struct file *f, char *words)
{
    char *value = strchr(words, ' ');

    if (!value)
        die("meta needs", "KEY VALUE");
    *value++ = 0;
    append_text(&f->meta, &f->meta_used, f->meta_used ? ",\"" : "\"");
    append_text(&f->meta, &f->meta_used, words);
    append_text(&f->meta, &f->meta_used, "\":\"");
    for (; *value; value++) {
        if (*value == '"' || *value == '\\')
            append_text(&f->meta, &f->meta_used, "\\");
        append(&f->meta, &f->meta_used, value, 1);
    }
    append_text(&f->meta, &f->meta_used, "\"");
}

static void read_line(struct file *f, char *line)
{
    char *rest = line + strcspn(line, " ");

    if (!*line || *line == '#')
        return;
    if (*rest)
        *rest++ = 0;
    if (!strcmp(line, "tensor"))
        add_tensor(f, rest);
    else if (!strcmp(line, "meta"))
        add_meta(f, rest);
    else if (!strcmp(line, "header"))
        f->text_header = strdup(rest);
    else if (!strcmp(line, "length")) {
        f->length = strtoull(rest, NULL, 10);
        f->has_length = 1;
    } else if (!strcmp(line, "cut")) {
        f->cut = strtoull(rest, NULL, 10);
        f->has_cut = 1;
    } else if (!strcmp(line, "data"))
        for (uint64_t n = strtoull(rest, NULL, 10); n; n--)
            append(&f->data, &f->data_used, "", 1);
    else
        die("unknown line", line);
}

static void write_file(struct file *f, const char *path)
{
    FILE *out = fopen(path, "wb");
    char *all = NULL;
    size_t used = 0, header = 0;
    char *text = f->text_header;
    unsigned char length[8];

    if (!text) {
        append_text(&text, &header, "{");
        if (f->meta_used) {
            append_text(&text, &header, "\"__metadata__\":{");
            append_text(&text, &header, f->meta);
            append_text(&text, &header, f->header_used ? "}," : "}");
        }
        append_text(&text, &header, f->header_used ? f->header : "");
        append_text(&text, &header, "}");
    }
    header = strlen(text);
    if (!f->has_length)
        f->length = header;
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)(f->length >> (8 * i));
    append(&all, &used, length, 8);
    append(&all, &used, text, header);
    append(&all, &used, f->data_used ? f->data : "", f->data_used);
    if (f->has_cut && f->cut < used)
        used = (size_t)f->cut;
    if (!out || fwrite(all, 1, used, out) != used || fclose(out))
        die("cannot write", path);
    free(all);
    free(text);
}

static int widen(void)
{
    unsigned char value[4] = {0};

    while (fread(value + 2, 2, 1, stdin) == 1)
        if (fwrite(value, 4, 1, stdout) != 1)
            return 2;
    return fflush(stdout) ? 2 : 0;
}

int main(int argc, char **argv)
{
    struct file f = {0};
    static char line[1 << 16];

    if (argc == 2 && !strcmp(argv[1], "--widen"))
        return widen();

    if (argc != 2)
        die("usage", "mkst FILE <description");
    while (fgets(line, sizeof(line), stdin)) {
        line[strcspn(line, "\n")] = 0;
        read_line(&f, line);
    }
    write_file(&f, argv[1]);
    free(f.header);
    free(f.meta);
    free(f.data);
    return 0;
}
