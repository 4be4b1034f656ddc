/* tests/cli/quantize_check.c: the helper of quantize.sh: compares files with the library's rules, makes checkpoints,
 * runs a command under watch. Prints what is wrong; exit 0 when all is right. */
#include "config.h"

#include <moert/float8.h>
#include <moert/lutb.h>
#include <moert/mxfp8.h>
#include <moert/safetensors.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct moert_error err = MOERT_ERROR_INIT;

static void stop(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, err.text);
    exit(2);
}

static moert_safetensors_t *open_file(const char *path)
{
    moert_safetensors_t *f;
    if (moert_safetensors_open(path, 0, &f, &err))
        stop(path);
    return f;
}

static const struct moert_st_tensor *joined(const moert_safetensors_t *f, const char *name, const char *suffix)
{
    char full[400];
    snprintf(full, sizeof(full), "%s%s", name, suffix);
    return moert_safetensors_find(f, full);
}

static int same(const char *name, const void *want, uint64_t bytes, const struct moert_st_tensor *have)
{
    if (have && have->bytes == bytes && !memcmp(want, have->data, bytes))
        return 1;
    printf("%s differs\n", name);
    return 0;
}

static void *aligned(const struct moert_st_tensor *t)
{
    void *copy = malloc(t->bytes + 1);
    return copy ? memcpy(copy, t->data, t->bytes) : NULL;
}

/* bytes SRC DST FORMAT: each converted tensor equals one call of the library over the whole tensor; all others are
 * equal. */
static int bytes(const char *source, const char *destination, const char *format)
{
    moert_safetensors_t *a = open_file(source), *b = open_file(destination);
    int lutb = !strcmp(format, "lut-b"), right = 1;
    unsigned converted = 0;

    for (uint64_t i = 0; i < moert_safetensors_count(a); i++) {
        const struct moert_st_tensor *t = moert_safetensors_at(a, i);
        const struct moert_st_tensor *scale = joined(b, t->name, lutb ? "_codebook" : "_scale");
        uint64_t rows = t->shape[0], cols = t->shape[1];
        uint8_t *codes, *scales;
        void *x;
        if (!scale) {
            right &= same(t->name, t->data, t->bytes, moert_safetensors_find(b, t->name));
            continue;
        }
        converted++;
        codes = malloc(rows * cols);
        scales = malloc(rows * cols);
        x = aligned(t);
        if (lutb ? moert_lutb_encode(x, t->dtype, rows, cols, 0, NULL, codes, scales, NULL, &err)
                 : moert_mxfp8_quantize(x, t->dtype, rows, cols, 0, NULL, codes, scales, NULL, &err))
            stop(t->name);
        right &= same(t->name, codes, lutb ? rows * cols / 512 * 192 : rows * cols,
                      joined(b, t->name, lutb ? "_packed" : ""));
        right &= same(scale->name, scales, lutb ? rows * cols / 64 : rows * cols / 32, scale);
        free(codes);
        free(scales);
        free(x);
    }
    printf("# %u converted tensors compared\n", converted);
    moert_safetensors_close(a);
    moert_safetensors_close(b);
    return right && converted ? 0 : 1;
}

/* decoded QUANTISED DST: each pair of QUANTISED decodes to the tensor of DST. */
static int decoded(const char *quantised, const char *destination)
{
    moert_safetensors_t *a = open_file(quantised), *b = open_file(destination);
    unsigned compared = 0;
    int right = 1;

    for (uint64_t i = 0; i < moert_safetensors_count(b); i++) {
        const struct moert_st_tensor *t = moert_safetensors_at(b, i), *packed = joined(a, t->name, "_packed");
        const struct moert_st_tensor *scale = joined(a, t->name, packed ? "_codebook" : "_scale");
        void *out;
        if (!scale) {
            right &= same(t->name, t->data, t->bytes, moert_safetensors_find(a, t->name));
            continue;
        }
        out = malloc(t->bytes);
        if (packed ? moert_lutb_decode(packed->data, scale->data, t->shape[0], t->shape[1], out, t->dtype, &err)
                   : moert_mxfp8_dequantize(moert_safetensors_find(a, t->name)->data, scale->data, t->shape[0],
                                            t->shape[1], out, t->dtype, &err))
            stop(t->name);
        right &= same(t->name, out, t->bytes, t);
        compared++;
        free(out);
    }
    printf("# %u decoded tensors compared\n", compared);
    moert_safetensors_close(a);
    moert_safetensors_close(b);
    return right && compared ? 0 : 1;
}

static double tile_error(const struct moert_st_tensor *x, uint64_t tile, const uint8_t *packed, const uint8_t *codebook)
{
    uint64_t cols = x->shape[1], per_row = cols / 64, row = tile / per_row * 8, col = tile % per_row * 64;
    uint8_t indices[512];
    double error = 0;

    moert_lutb_unpack(packed + tile * 192, indices);
    for (uint64_t p = 0; p < 512; p++) {
        uint16_t bits;
        double d;
        memcpy(&bits, (const uint8_t *)x->data + 2 * ((row + p / 64) * cols + col + p % 64), 2);
        d = (double)moert_e4m3_decode(codebook[tile * 8 + indices[p]]) - (double)moert_bf16_to_float(bits);
        error += d * d;
    }
    return error;
}

/* better SRC A B: on no tile is A's squared error above B's. SRC is BF16. */
static int better(const char *source, const char *path_a, const char *path_b)
{
    moert_safetensors_t *s = open_file(source), *a = open_file(path_a), *b = open_file(path_b);
    uint64_t tiles = 0, worse = 0, smaller = 0;

    for (uint64_t i = 0; i < moert_safetensors_count(s); i++) {
        const struct moert_st_tensor *x = moert_safetensors_at(s, i);
        const struct moert_st_tensor *pa = joined(a, x->name, "_packed"), *pb = joined(b, x->name, "_packed");
        if (!pa || !pb)
            continue;
        for (uint64_t t = 0; t < pa->bytes / 192; t++, tiles++) {
            double ea = tile_error(x, t, pa->data, joined(a, x->name, "_codebook")->data);
            double eb = tile_error(x, t, pb->data, joined(b, x->name, "_codebook")->data);
            worse += ea > eb * (1 + 1e-12);
            smaller += ea < eb;
        }
    }
    printf("# %llu tiles, better on %llu, worse on %llu\n", (unsigned long long)tiles, (unsigned long long)smaller,
           (unsigned long long)worse);
    moert_safetensors_close(s);
    moert_safetensors_close(a);
    moert_safetensors_close(b);
    return tiles && !worse ? 0 : 1;
}

/* ---- making checkpoints ---- */

static FILE *create(const char *directory, const char *name)
{
    char path[600];
    FILE *f;
    snprintf(path, sizeof(path), "%s/%s", directory, name);
    f = fopen(path, "wb");
    if (!f) {
        perror(path);
        exit(2);
    }
    return f;
}

/* split SRC DIR N: the tensors of SRC over N shards, with an index. */
static int split(const char *source, const char *directory, unsigned shards)
{
    moert_safetensors_t *s = open_file(source);
    uint64_t count = moert_safetensors_count(s);
    FILE *index = create(directory, "model.safetensors.index.json");

    fprintf(index, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {");
    for (unsigned k = 0; k < shards; k++) {
        uint64_t first = count * k / shards, last = count * (k + 1) / shards;
        char path[600];
        moert_st_writer_t *w;
        snprintf(path, sizeof(path), "%s/model-%05u-of-%05u.safetensors", directory, k + 1, shards);
        if (moert_st_writer_create(path, &w, &err))
            stop(path);
        for (uint64_t i = first; i < last; i++) {
            const struct moert_st_tensor *t = moert_safetensors_at(s, i);
            fprintf(index, "%s\"%s\": \"%s\"", i ? ", " : "", t->name, strrchr(path, '/') + 1);
            if (moert_st_writer_declare(w, t->name, t->dtype, t->rank, t->shape, &err))
                stop(t->name);
        }
        for (uint64_t i = first; i < last; i++)
            if (moert_st_writer_append(w, moert_safetensors_at(s, i)->data, moert_safetensors_at(s, i)->bytes, &err))
                stop(path);
        if (moert_st_writer_commit(w, &err))
            stop(path);
        moert_st_writer_destroy(w);
    }
    fprintf(index, "}}\n");
    fclose(index);
    moert_safetensors_close(s);
    return 0;
}

/* large DIR: a sparse checkpoint of 8 GiB in two shards: 64 dense tensors of 64 MiB each and two experts per shard. */
static int large(const char *directory)
{
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    FILE *config = create(directory, "config.json"), *index = create(directory, "model.safetensors.index.json");

    fprintf(config,
            "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 512, \"moe_intermediate_size\": 256, \"num_experts\": 2,"
            " \"num_experts_per_tok\": 1, \"hidden_act\": \"silu\"}\n");
    fclose(config);
    fprintf(index, "{\"metadata\": {}, \"weight_map\": {");
    for (int shard = 0; shard < 2; shard++) {
        char name[64], header[20000];
        unsigned long long at = 0, length;
        size_t n = 0;
        FILE *f;
        snprintf(name, sizeof(name), "model-%05d-of-00002.safetensors", shard + 1);
        for (int i = 0; i < 64; i++, at += 64ull << 20) {
            fprintf(index, "%s\"model.layers.%d.big.%d.weight\": \"%s\"", shard + i ? ", " : "", shard, i, name);
            n += (size_t)snprintf(header + n, sizeof(header) - n,
                                  "%s\"model.layers.%d.big.%d.weight\":{\"dtype\":\"BF16\",\"shape\":[8192,4096],"
                                  "\"data_offsets\":[%llu,%llu]}",
                                  i ? "," : "{", shard, i, at, at + (64ull << 20));
        }
        for (int i = 0; i < 6; i++, at += 512 * 256 * 2) {
            const char *shape = i % 3 == 2 ? "512,256" : "256,512";
            fprintf(index, ", \"model.layers.%d.mlp.experts.%d.%s.weight\": \"%s\"", shard, i / 3, names[i % 3], name);
            n += (size_t)snprintf(header + n, sizeof(header) - n,
                                  ",\"model.layers.%d.mlp.experts.%d.%s.weight\":{\"dtype\":\"BF16\",\"shape\":[%s],"
                                  "\"data_offsets\":[%llu,%llu]}",
                                  shard, i / 3, names[i % 3], shape, at, at + 512 * 256 * 2);
        }
        n += (size_t)snprintf(header + n, sizeof(header) - n, "}");
        length = n;
        f = create(directory, name);
        fwrite(&length, 8, 1, f); /* the test machines are little-endian, as the library's vectors are */
        fwrite(header, 1, n, f);
        fflush(f);
        if (ftruncate(fileno(f), (off_t)(8 + n + at)))
            return 2;
        fclose(f);
    }
    fprintf(index, "}}\n");
    fclose(index);
    return 0;
}

/* ---- running ---- */

static pid_t start(char **argv)
{
    pid_t child = fork();

    if (!child) {
        signal(SIGINT, SIG_DFL); /* a shell's background jobs ignore it */
        execv(argv[0], argv);
        _exit(127);
    }
    return child;
}

static int exit_of(int status)
{
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* peak MIB COMMAND...: its exit status, or 1 when its resident memory went beyond MIB. */
static int peak(const char *limit, char **argv)
{
    struct rusage usage;
    int status;

    if (waitpid(start(argv), &status, 0) < 0)
        return 2;
    getrusage(RUSAGE_CHILDREN, &usage);
    printf("# peak %ld MiB, limit %s MiB\n", usage.ru_maxrss / 1024, limit);
    if (exit_of(status))
        return exit_of(status);
    return usage.ru_maxrss / 1024 < atol(limit) ? 0 : 1;
}

/* interrupt FILE COMMAND...: SIGINT as soon as FILE exists; returns the command's exit status. */
static int interrupt(const char *file, char **argv)
{
    const struct timespec pause = {0, 2000000};
    pid_t child = start(argv);
    int status;

    for (int i = 0; i < 15000 && access(file, F_OK); i++) {
        if (waitpid(child, &status, WNOHANG) == child)
            return exit_of(status); /* it ended before */
        nanosleep(&pause, NULL);
    }
    kill(child, SIGINT);
    return waitpid(child, &status, 0) == child ? exit_of(status) : 2;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";

    if (!strcmp(what, "bytes") && argc == 5)
        return bytes(argv[2], argv[3], argv[4]);
    if (!strcmp(what, "decoded") && argc == 4)
        return decoded(argv[2], argv[3]);
    if (!strcmp(what, "better") && argc == 5)
        return better(argv[2], argv[3], argv[4]);
    if (!strcmp(what, "split") && argc == 5)
        return split(argv[2], argv[3], (unsigned)atoi(argv[4]));
    if (!strcmp(what, "large") && argc == 3)
        return large(argv[2]);
    if (!strcmp(what, "peak") && argc > 3)
        return peak(argv[2], argv + 3);
    if (!strcmp(what, "interrupt") && argc > 3)
        return interrupt(argv[2], argv + 3);
    fprintf(stderr, "usage: quantize_check bytes|decoded|better|split|large|peak|interrupt ...\n");
    return 2;
}
