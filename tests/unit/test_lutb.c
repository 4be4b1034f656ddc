/* LUT-B: packing, decode, assignment, the three fits and their properties (lut-b.md 1, 3, 7; vectors README 4). */
#include "numerics.h"

#include <math.h>

#define TILES 2000 /* per property, as many as the specification's own checks */

static double tile_error(const float *x, const double *w, const uint8_t *codes)
{
    float levels[8];
    uint8_t indices[512];
    double sum = 0;

    for (int i = 0; i < 8; i++)
        levels[i] = moert_e4m3_decode(codes[i]);
    moert_lutb_assign(x, levels, indices);
    for (int p = 0; p < 512; p++) {
        double d = (double)levels[indices[p]] - (double)x[p];
        sum += (w ? w[p] : 1) * d * d;
    }
    return sum;
}

static void make_tile(uint32_t *seed, double factor, float x[512])
{
    for (int p = 0; p < 512; p++)
        x[p] = bell(seed, factor);
}

/* Tiles of many kinds: wide and narrow, bf16 and f32, with outliers and saturation. */
static void varied_tile(uint32_t *seed, int n, float x[512])
{
    make_tile(seed, ldexp(1, n % 17 - 3), x);
    for (int p = 0; p < 512; p++) {
        if (n % 3 == 0)
            x[p] = moert_bf16_to_float(moert_bf16_from_float(x[p]));
        if (n % 5 == 0 && xorshift(seed) % 100 == 0)
            x[p] *= 10;
    }
}

/* ------------------------------------------------------------------ packing */

Test(lutb, pack_vectors)
{
    static const struct {
        uint8_t at, value, bytes[3];
    } single[] = {{0, 1, {0x01, 0, 0}},
                  {2, 1, {0x40, 0, 0}},
                  {2, 7, {0xC0, 0x01, 0}},
                  {5, 5, {0, 0x80, 0x02}},
                  {7, 7, {0, 0, 0xE0}}};
    uint8_t indices[512], packed[192];

    for (int i = 0; i < 5; i++) {
        memset(indices, 0, sizeof(indices));
        indices[single[i].at] = single[i].value;
        moert_lutb_pack(indices, packed);
        cr_expect_eq(first_difference(packed, single[i].bytes, 3), 3u, "vector %d", i);
    }
    for (int p = 0; p < 512; p++)
        indices[p] = (uint8_t)(p % 8);
    moert_lutb_pack(indices, packed);
    cr_expect(packed[0] == 0x88 && packed[1] == 0xC6 && packed[2] == 0xFA);
    cr_expect_eq(fnv(FNV_START, packed, 192), 0xae614bfec8156325u);
    for (int p = 0; p < 512; p++)
        indices[p] = (uint8_t)((5 * p + p / 64) % 8);
    moert_lutb_pack(indices, packed);
    cr_expect_eq(fnv(FNV_START, packed, 192), 0x3d69fbc1553feca5u);
    memset(indices, 0, sizeof(indices));
    indices[511] = 7;
    indices[64] = 0xFF; /* higher bits are ignored */
    moert_lutb_pack(indices, packed);
    cr_expect(packed[191] == 0xE0 && packed[24] == 0x07);
}

Test(lutb, decode_vector)
{
    static const uint8_t codebook[] = {0xB8, 0xB0, 0xA8, 0x00, 0x28, 0x30, 0x38, 0x40};
    uint8_t indices[512], *packed = malloc(192); /* exact size: a read of byte 192 is a sanitizer's report */
    uint16_t out[512];

    for (int p = 0; p < 512; p++)
        indices[p] = (uint8_t)(p % 8);
    moert_lutb_pack(indices, packed);
    cr_assert_eq(moert_lutb_decode(packed, codebook, 8, 64, out, MOERT_BF16, NULL), MOERT_OK);
    cr_expect_eq(fnv(FNV_START, out, sizeof(out)), 0xb8fcee2f9a729725u);
    moert_lutb_unpack(packed, indices);
    for (int p = 0; p < 512; p++)
        cr_expect_eq(indices[p], p % 8);
    free(packed);
}

Test(lutb, golden_pack)
{
    static const char *const names[] = {"pack_random", "pack_single", "pack_fixed"};
    moert_safetensors_t *file = golden_open("lutb");

    for (int i = 0; i < 3; i++) {
        const struct moert_st_tensor *indices = golden(file, names[i], "indices"),
                                     *want = golden(file, names[i], "packed");
        for (uint64_t t = 0; t < indices->bytes / 512; t++) {
            const uint8_t *in = (const uint8_t *)indices->data + 512 * t, *out = (const uint8_t *)want->data + 192 * t;
            uint8_t packed[192], back[512];
            moert_lutb_pack(in, packed);
            moert_lutb_unpack(out, back);
            cr_expect_eq(first_difference(packed, out, 192), 192u, "%s %llu", names[i], (unsigned long long)t);
            cr_expect_eq(first_difference(back, in, 512), 512u, "%s %llu", names[i], (unsigned long long)t);
        }
    }
    moert_safetensors_close(file);
}

Test(lutb, golden_decode)
{
    static const char *const names[] = {"decode_random", "decode_ascending", "decode_descending", "decode_special"};
    static const struct {
        const char *field;
        moert_dtype_t dtype;
    } outputs[] = {{"w_codes", MOERT_F8_E4M3}, {"w_f32", MOERT_F32}, {"w_bf16", MOERT_BF16}};
    moert_safetensors_t *file = golden_open("lutb");

    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 3; k++) {
            const struct moert_st_tensor *packed = golden(file, names[i], "packed");
            const struct moert_st_tensor *codebook = golden(file, names[i], "codebook");
            const struct moert_st_tensor *want = golden(file, names[i], outputs[k].field);
            uint64_t cols = want->shape[want->rank - 1], rows = elements(want) / cols, bad;
            uint8_t *out = malloc(want->bytes);
            cr_assert_eq(moert_lutb_decode(packed->data, codebook->data, rows, cols, out, outputs[k].dtype, NULL),
                         MOERT_OK);
            for (bad = 0; k == 1 && bad < elements(want); bad++) { /* any NaN stands for NaN */
                uint32_t a, b;
                memcpy(&a, out + 4 * bad, 4);
                memcpy(&b, (const char *)want->data + 4 * bad, 4);
                cr_expect(a == b || ((a & 0x7FFFFFFF) > 0x7F800000 && (b & 0x7FFFFFFF) > 0x7F800000));
            }
            for (bad = 0; k == 2 && bad < elements(want); bad++) {
                uint16_t a, b;
                memcpy(&a, out + 2 * bad, 2);
                memcpy(&b, (const char *)want->data + 2 * bad, 2);
                cr_expect(a == b || ((a & 0x7FFF) > 0x7F80 && (b & 0x7FFF) > 0x7F80));
            }
            if (k == 0)
                cr_expect_eq(first_difference(out, want->data, want->bytes), want->bytes, "%s", names[i]);
            free(out);
        }
    moert_safetensors_close(file);
}

/* ------------------------------------------------------------------ assignment */

static int by_value(const void *a, const void *b)
{
    float x = moert_e4m3_decode(*(const uint8_t *)a), y = moert_e4m3_decode(*(const uint8_t *)b);
    return (x > y) - (x < y);
}

Test(lutb, golden_assign)
{
    static const char *const names[] = {"assign_sorted", "assign_unsorted", "assign_ties", "assign_bf16"};
    moert_safetensors_t *file = golden_open("lutb");

    for (int i = 0; i < 4; i++) {
        const struct moert_st_tensor *w = golden(file, names[i], "w"), *in = golden(file, names[i], "codebook_in");
        const struct moert_st_tensor *want = golden(file, names[i], "codebook"),
                                     *packed = golden(file, names[i], "packed");
        for (uint64_t t = 0; t < 4; t++) { /* 2 x 2 tiles of a 16 x 128 matrix */
            float x[512], levels[8];
            uint8_t codes[8], indices[512], out[192];
            for (uint64_t k = 0; k < 8; k++)
                codes[k] = moert_e4m3_encode((float)moert_load(in->data, MOERT_F32, 8 * t + k), 127);
            qsort(codes, 8, 1, by_value);
            cr_expect_eq(first_difference(codes, (const uint8_t *)want->data + 8 * t, 8), 8u);
            for (int k = 0; k < 8; k++)
                levels[k] = moert_e4m3_decode(codes[k]);
            for (uint64_t p = 0; p < 512; p++)
                x[p] = (float)moert_load(w->data, w->dtype, (t / 2 * 8 + p / 64) * 128 + t % 2 * 64 + p % 64);
            moert_lutb_assign(x, levels, indices);
            moert_lutb_pack(indices, out);
            cr_expect_eq(first_difference(out, (const uint8_t *)packed->data + 192 * t, 192), 192u, "%s %llu", names[i],
                         (unsigned long long)t);
        }
    }
    moert_safetensors_close(file);
}

/* A tie goes to the lower entry; midpoints are of values, not of codes; subnormal inputs count under DAZ. */
Test(lutb, assign_boundaries)
{
    const float levels[8] = {-3, -1, 0, 1, 2, 4, 8, 448};
    float x[512] = {-2, -1.9999f, 0.5f, 0.50001f, 3, 3.0001f, 228, 228.001f, -0.0f, 1000, -1000};
    const uint8_t want[] = {0, 1, 2, 3, 4, 5, 6, 7, 2, 7, 0};
    const float around_zero[8] = {-1, 1, 1, 1, 1, 1, 1, 1};
    uint8_t indices[512];

    moert_lutb_assign(x, levels, indices);
    cr_expect_eq(first_difference(indices, want, sizeof(want)), sizeof(want));
    x[0] = 0x1p-149f;
    x[1] = -0x1p-149f;
    enter_environment(ENV_FLUSH);
    moert_lutb_assign(x, around_zero, indices);
    enter_environment(ENV_PLAIN);
    cr_expect(indices[0] == 1 && indices[1] == 0 && indices[8] == 0);
}

/* ------------------------------------------------------------------ the optimal fit */

/* The definition, written plainly: full cost matrix, no pruning, qsort. Tie for tie the same codebooks are expected. */
struct plain {
    double v[512], W[513], S[513], Q[513], g[253], c[253][253], D[8][253];
    uint8_t code[253];
    int pos[253], P[8][253], m;
};

static double plain_part(const struct plain *t, int i, int j, double g)
{
    return (t->Q[j] - t->Q[i]) - 2 * g * (t->S[j] - t->S[i]) + g * g * (t->W[j] - t->W[i]);
}

static const float *plain_values;

static int by_value_and_position(const void *a, const void *b)
{
    int i = *(const int *)a, j = *(const int *)b;
    float x = plain_values[i], y = plain_values[j];
    return x < y ? -1 : x > y ? 1 : i - j;
}

static void plain_prepare(struct plain *t, const float *x, const double *w)
{
    int order[512], lo = 0, hi = 252, p = 0;
    double grid[253];
    uint8_t codes[253];

    for (int i = 0; i < 512; i++)
        order[i] = i;
    plain_values = x;
    qsort(order, 512, sizeof(int), by_value_and_position);
    t->W[0] = t->S[0] = t->Q[0] = 0;
    for (int i = 0; i < 512; i++) {
        double weight = w ? w[order[i]] : 1, v = (double)x[order[i]];
        t->v[i] = v;
        t->W[i + 1] = t->W[i] + weight;
        t->S[i + 1] = t->S[i] + weight * v;
        t->Q[i + 1] = t->Q[i] + weight * v * v;
    }
    for (int c = 0; c < 127; c++) {
        codes[126 + c] = (uint8_t)c;
        codes[126 - c] = (uint8_t)(c ? 0x80 + c : 0);
    }
    for (int i = 0; i < 253; i++)
        grid[i] = (double)moert_e4m3_decode(codes[i]);
    while (lo < 252 && grid[lo + 1] <= t->v[0])
        lo++;
    while (hi > lo && grid[hi - 1] >= t->v[511])
        hi--;
    t->m = hi - lo + 1;
    for (int a = 0; a < t->m; a++) {
        t->g[a] = grid[lo + a];
        t->code[a] = codes[lo + a];
        while (p < 512 && t->v[p] < t->g[a])
            p++;
        t->pos[a] = p;
    }
}

static void plain_fit(const float *x, const double *w, uint8_t *codes)
{
    static struct plain t;
    double best = INFINITY;
    int at = 7;

    plain_prepare(&t, x, w);
    for (int i = 0; t.m <= 8 && i < 8; i++)
        codes[i] = t.code[i < t.m ? i : t.m - 1];
    if (t.m <= 8)
        return;
    for (int a = 0; a < t.m; a++)
        for (int b = a + 1, p = t.pos[a]; b < t.m; b++) {
            while (p < t.pos[b] && t.v[p] <= 0.5 * (t.g[a] + t.g[b]))
                p++;
            t.c[a][b] = plain_part(&t, t.pos[a], p, t.g[a]) + plain_part(&t, p, t.pos[b], t.g[b]);
        }
    for (int b = 0; b < t.m; b++)
        t.D[0][b] = plain_part(&t, 0, t.pos[b], t.g[b]);
    for (int j = 1; j < 8; j++)
        for (int b = j; b < t.m; b++) {
            t.D[j][b] = INFINITY;
            for (int a = j - 1; a < b; a++)
                if (t.D[j - 1][a] + t.c[a][b] < t.D[j][b]) {
                    t.D[j][b] = t.D[j - 1][a] + t.c[a][b];
                    t.P[j][b] = a;
                }
        }
    for (int b = 7; b < t.m; b++) {
        double d = t.D[7][b] + plain_part(&t, t.pos[b], 512, t.g[b]);
        if (d < best) {
            best = d;
            at = b;
        }
    }
    for (int j = 7; j >= 0; j--) {
        codes[j] = t.code[at];
        at = j ? t.P[j][at] : 0;
    }
}

Test(lutb, optimal_equals_the_plain_program)
{
    uint32_t seed = SEED;

    for (int n = 0; n < 1000; n++) {
        float x[512];
        double w[512];
        uint8_t fast[8], plain[8];
        varied_tile(&seed, n, x);
        for (int p = 0; p < 512; p++) {
            w[p] = n % 7 == 0 ? (double)(xorshift(&seed) % 3) : ldexp(1, (int)(xorshift(&seed) % 12));
            if (n % 11 == 0)
                x[p] = moert_e4m3_decode((uint8_t)(xorshift(&seed) % 14)); /* many equal values: ties */
        }
        moert_lutb_fit_tile(x, n % 2 ? w : NULL, MOERT_FIT_OPTIMAL, 0, fast);
        plain_fit(x, n % 2 ? w : NULL, plain);
        cr_assert_eq(first_difference(fast, plain, 8), 8u, "tile %d", n);
    }
}

struct encode_case {
    moert_lutb_fit_t fit;
    int weighted;
    double error, tolerance;
    uint64_t hash;
    uint8_t first[8];
};

/* Encode vectors of lut-b.md 3. */
Test(lutb, encode_vectors)
{
    static const struct encode_case cases[] = {{MOERT_FIT_OPTIMAL,
                                                0,
                                                0.305274150917,
                                                1e-11,
                                                0xa8633e951b779de5u,
                                                {0x91, 0x8B, 0x86, 0x82, 0x03, 0x08, 0x0D, 0x12}},
                                               {MOERT_FIT_OPTIMAL,
                                                1,
                                                671.217153141,
                                                1e-11,
                                                0x864d781895072834u,
                                                {0x91, 0x8C, 0x87, 0x83, 0x02, 0x06, 0x0B, 0x12}},
                                               {MOERT_FIT_FARTHEST, 0, 0.387855551789, 0.01, 0, {0}},
                                               {MOERT_FIT_MULTISTART, 0, 0.358943031752, 0.01, 0, {0}}};
    static const uint8_t first_indices[] = {3, 5, 2, 4, 3, 4, 3, 0};
    static float x[64][512];
    double squares = 0, w[512];
    uint32_t seed = SEED;

    for (int t = 0; t < 64; t++)
        make_tile(&seed, 1, x[t]);
    for (int i = 0; i < 64 * 512; i++)
        squares += (double)x[i / 512][i % 512] * (double)x[i / 512][i % 512];
    for (int p = 0; p < 512; p++)
        w[p] = ldexp(1, 2 * (p % 8));
    cr_expect_eq(fnv(FNV_START, x, sizeof(x)), 0x30fa123526b87a33u);
    cr_expect(fabs(squares - 10.7105148971) < 1e-9);
    for (int c = 0; c < 4; c++) {
        uint64_t hash = FNV_START;
        double error = 0;
        for (int t = 0; t < 64; t++) {
            uint8_t codes[8], indices[512], packed[192];
            float levels[8];
            moert_lutb_fit_tile(x[t], cases[c].weighted ? w : NULL, cases[c].fit, 0, codes);
            for (int i = 0; i < 8; i++)
                levels[i] = moert_e4m3_decode(codes[i]);
            moert_lutb_assign(x[t], levels, indices);
            moert_lutb_pack(indices, packed);
            hash = fnv(fnv(hash, packed, 192), codes, 8);
            error += tile_error(x[t], cases[c].weighted ? w : NULL, codes);
            if (t == 0 && cases[c].hash)
                cr_expect_eq(first_difference(codes, cases[c].first, 8), 8u, "case %d", c);
            if (t == 0 && c == 0)
                cr_expect_eq(first_difference(indices, first_indices, 8), 8u);
        }
        cr_expect(!cases[c].hash || hash == cases[c].hash, "case %d: %016llx", c, (unsigned long long)hash);
        cr_expect(fabs(error - cases[c].error) <= cases[c].tolerance * cases[c].error, "case %d: %.12f", c, error);
    }
}

/* Acceptance of a fit in README 4, through the whole encoder and decoder. */
static void check_fit(const moert_safetensors_t *file, const char *name, int exact)
{
    const struct moert_st_tensor *w = golden(file, name, "w"), *opt = golden(file, name, "opt.sse");
    const struct moert_st_tensor *ct = golden(file, name, "ct.sse");
    uint64_t cols = w->shape[w->rank - 1], rows = elements(w) / cols, tiles = rows / 8 * (cols / 64);
    uint8_t *packed = malloc(tiles * 192), *codebook = malloc(tiles * 8);
    float *out = malloc(rows * cols * 4);
    struct moert_lutb_stats stats = {.size = sizeof(stats)};
    double sum = 0, ct_sum = 0;

    cr_assert_eq(moert_lutb_encode(w->data, w->dtype, rows, cols, 0, NULL, packed, codebook, &stats, NULL), MOERT_OK);
    cr_assert_eq(moert_lutb_decode(packed, codebook, rows, cols, out, MOERT_F32, NULL), MOERT_OK);
    for (uint64_t t = 0; t < tiles; t++) {
        double sse = 0, best = moert_load(opt->data, MOERT_F64, t);
        for (uint64_t p = 0; p < 512; p++) {
            uint64_t at = (t / (cols / 64) * 8 + p / 64) * cols + t % (cols / 64) * 64 + p % 64;
            double d = (double)out[at] - moert_load(w->data, w->dtype, at);
            sse += d * d;
        }
        cr_expect(fabs(sse - best) <= 1e-9 * best, "%s tile %llu: %.12g, optimum %.12g", name, (unsigned long long)t,
                  sse, best);
        sum += sse;
        ct_sum += moert_load(ct->data, MOERT_F64, t);
    }
    cr_expect(sum <= 1.02 * ct_sum + 1e-12);
    cr_expect(!exact || sum <= 0, "%s must be exact", name);
    cr_expect(fabs(stats.squared_error - sum) <= 1e-9 * sum);
    cr_expect_eq(stats.tiles, tiles);
    free(packed);
    free(codebook);
    free(out);
}

Test(lutb, golden_fit)
{
    static const struct {
        const char *name;
        int exact;
    } cases[] = {{"fit_gauss_002", 0}, {"fit_gauss_05", 0}, {"fit_gauss_05_bf16", 0}, {"fit_heavy", 0},
                 {"fit_large", 0},     {"fit_constant", 0}, {"fit_eight", 0},         {"fit_constant_exact", 1},
                 {"fit_zero", 1},      {"fit_negzero", 1},  {"fit_two", 1},           {"fit_outlier", 0},
                 {"fit_tiny", 0}};
    moert_safetensors_t *file = golden_open("lutb");

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        check_fit(file, cases[i].name, cases[i].exact);
    moert_safetensors_close(file);
}

/* ------------------------------------------------------------------ properties, section 7 */

Test(lutb, optimal_is_never_worse)
{
    uint32_t seed = SEED;

    for (int n = 0; n < TILES; n++) {
        float x[512];
        uint8_t optimal[8], farthest[8], multistart[8];
        varied_tile(&seed, n, x);
        moert_lutb_fit_tile(x, NULL, MOERT_FIT_OPTIMAL, 0, optimal);
        moert_lutb_fit_tile(x, NULL, MOERT_FIT_FARTHEST, 0, farthest);
        moert_lutb_fit_tile(x, NULL, MOERT_FIT_MULTISTART, 0, multistart);
        double least = tile_error(x, NULL, optimal) * (1 - 1e-12);
        cr_assert(least <= tile_error(x, NULL, farthest) && least <= tile_error(x, NULL, multistart), "tile %d", n);
        for (int i = 0; i < 8; i++) {
            cr_assert(optimal[i] != 0x80 && farthest[i] != 0x80 && multistart[i] != 0x80, "-0 in a codebook");
            cr_assert(i == 0 || moert_e4m3_decode(optimal[i - 1]) <= moert_e4m3_decode(optimal[i]), "not ascending");
        }
    }
}

/* Encoding a decoded tile reproduces every value; weights on 8 grid points fit exactly. */
Test(lutb, fixed_point)
{
    uint32_t seed = SEED;

    for (int n = 0; n < TILES; n++) {
        float x[512], y[512], z[512];
        uint8_t packed[192], codes[8];
        varied_tile(&seed, n, x);
        cr_assert_eq(moert_lutb_encode(x, MOERT_F32, 8, 64, 0, NULL, packed, codes, NULL, NULL), MOERT_OK);
        cr_assert_eq(moert_lutb_decode(packed, codes, 8, 64, y, MOERT_F32, NULL), MOERT_OK);
        cr_assert_eq(moert_lutb_encode(y, MOERT_F32, 8, 64, 0, NULL, packed, codes, NULL, NULL), MOERT_OK);
        cr_assert_eq(moert_lutb_decode(packed, codes, 8, 64, z, MOERT_F32, NULL), MOERT_OK);
        cr_assert_eq(first_difference(y, z, sizeof(y)), sizeof(y), "tile %d", n);
    }
}

/* Weight 0 changes no error; weights times a power of two change no byte, however large. */
Test(lutb, weights)
{
    uint32_t seed = SEED;

    for (int n = 0; n < TILES; n++) {
        float x[512];
        double w[512], scaled[512];
        uint8_t codes[8], other[8];
        int shift = n % 4 == 0 ? 1000 : n % 4 == 1 ? -1000 : n % 41 - 20;
        varied_tile(&seed, n, x);
        for (int p = 0; p < 512; p++) {
            w[p] = xorshift(&seed) % 4 ? 1 + (double)(xorshift(&seed) >> 16) : 0;
            scaled[p] = ldexp(w[p], shift);
        }
        moert_lutb_fit_tile(x, w, MOERT_FIT_OPTIMAL, 0, codes);
        moert_lutb_fit_tile(x, scaled, MOERT_FIT_OPTIMAL, 0, other);
        cr_assert_eq(first_difference(codes, other, 8), 8u, "tile %d, 2^%d", n, shift);
        double before = tile_error(x, w, codes);
        for (int p = 0; p < 512; p++)
            if (w[p] <= 0)
                x[p] = 0;
        moert_lutb_fit_tile(x, w, MOERT_FIT_OPTIMAL, 0, other);
        cr_assert(fabs(tile_error(x, w, other) - before) <= 1e-9 * before, "tile %d", n);
    }
}

Test(lutb, keep_zero)
{
    uint32_t seed = SEED;

    for (int n = 0; n < 300; n++) {
        float x[512];
        uint8_t codes[8], free_codes[8];
        int zeros = 0;
        varied_tile(&seed, n, x);
        for (int p = 0; p < 512 && n % 3 == 1; p++) /* all above zero: the range must be extended */
            x[p] = fabsf(x[p]) + 0.25f;
        moert_lutb_fit_tile(x, NULL, MOERT_FIT_OPTIMAL, 1, codes);
        moert_lutb_fit_tile(x, NULL, MOERT_FIT_OPTIMAL, 0, free_codes);
        for (int i = 0; i < 8; i++)
            zeros += codes[i] == 0;
        cr_assert_geq(zeros, 1, "tile %d", n);
        cr_assert(tile_error(x, NULL, codes) >= tile_error(x, NULL, free_codes) * (1 - 1e-12));
        for (int i = 0; i < 8; i++) /* the free optimum with a zero is the bound optimum */
            if (free_codes[i] == 0)
                cr_assert_eq(first_difference(codes, free_codes, 8), 8u, "tile %d", n);
    }
}

Test(lutb, special_tiles)
{
    static const uint8_t zeros[8] = {0};
    float x[512] = {0};
    uint8_t codes[8], packed[192];
    struct moert_lutb_stats stats = {.size = sizeof(stats)};

    for (uint32_t fit = 0; fit < MOERT_FIT_COUNT; fit++) {
        struct moert_lutb_params params = {.size = sizeof(params), .fit = fit};
        for (int p = 0; p < 512; p++)
            x[p] = p % 2 ? 0.0f : -0.0f;
        cr_assert_eq(moert_lutb_encode(x, MOERT_F32, 8, 64, 0, &params, packed, codes, NULL, NULL), MOERT_OK);
        cr_expect_eq(first_difference(codes, zeros, 8), 8u, "all zero, fit %u", fit);
        for (int i = 0; i < 192; i++)
            cr_expect_eq(packed[i], 0);
        for (int p = 0; p < 512; p++)
            x[p] = -1.5f;
        moert_lutb_fit_tile(x, NULL, fit, 0, codes);
        cr_expect_leq(tile_error(x, NULL, codes), 0.0, "all equal, fit %u", fit);
        for (int p = 0; p < 512; p++)
            x[p] = p == 77 ? 7e4f : p % 2 ? 500 : -1e4f;
        moert_lutb_fit_tile(x, NULL, fit, 0, codes);
        cr_expect(codes[0] == 0xFE && codes[7] == 0x7E, "saturation, fit %u: %02X %02X", fit, codes[0], codes[7]);
    }
    cr_assert_eq(moert_lutb_encode(x, MOERT_F32, 8, 64, 0, NULL, packed, codes, &stats, NULL), MOERT_OK);
    cr_expect_eq(stats.saturated, 512u);
    cr_expect_float_eq((float)(stats.max_error), 7e4f - 448, 1e-2f);
}

/* The matrix encoder cuts tiles where it should, and channel weights follow the columns. */
Test(lutb, matrix)
{
    enum { N = 24, K = 192, PITCH = 200 };
    static float w[N * PITCH];
    static uint8_t packed[9 * 192], codes[9 * 8];
    double channel[K];
    struct moert_lutb_params params = {.size = sizeof(params), .channel_weights = channel};
    uint32_t seed = SEED;

    for (int i = 0; i < N * PITCH; i++)
        w[i] = i % PITCH < K ? bell(&seed, 3) : NAN;
    for (int k = 0; k < K; k++)
        channel[k] = 1 + k % 5 + k / 64;
    cr_assert_eq(moert_lutb_encode(w, MOERT_F32, N, K, PITCH, &params, packed, codes, NULL, NULL), MOERT_OK);
    for (int t = 0; t < 9; t++) {
        float x[512], levels[8];
        double weights[512];
        uint8_t want[8], indices[512], bytes[192];
        for (int p = 0; p < 512; p++) {
            x[p] = w[(t / 3 * 8 + p / 64) * PITCH + t % 3 * 64 + p % 64];
            weights[p] = channel[t % 3 * 64 + p % 64];
        }
        moert_lutb_fit_tile(x, weights, MOERT_FIT_OPTIMAL, 0, want);
        for (int i = 0; i < 8; i++)
            levels[i] = moert_e4m3_decode(want[i]);
        moert_lutb_assign(x, levels, indices);
        moert_lutb_pack(indices, bytes);
        cr_expect_eq(first_difference(codes + 8 * t, want, 8), 8u, "tile %d", t);
        cr_expect_eq(first_difference(packed + 192 * t, bytes, 192), 192u, "tile %d", t);
    }
}

Test(lutb, refusals)
{
    static float w[16 * 128];
    uint8_t packed[4 * 192] = {0xAA}, codes[4 * 8] = {0x38, 0x7E};
    double channel[128] = {0};
    struct moert_lutb_params params = {.size = sizeof(params)};
    struct moert_error err = MOERT_ERROR_INIT;
    moert_lutb_fit_t fit = 9;

    cr_expect_eq(moert_lutb_encode(w, MOERT_F32, 12, 64, 0, NULL, packed, codes, NULL, &err), MOERT_E_SHAPE);
    cr_expect_str_eq(err.text, "weight is [12,64]; LUT-B needs N % 8 = 0 and K % 64 = 0");
    cr_expect_eq(moert_lutb_decode(packed, codes, 8, 96, w, MOERT_F32, &err), MOERT_E_SHAPE);
    cr_expect_eq(moert_lutb_encode(w, MOERT_F64, 8, 64, 0, NULL, packed, codes, NULL, &err), MOERT_E_DTYPE);
    cr_expect_eq(moert_lutb_decode(packed, codes, 8, 64, w, MOERT_F64, &err), MOERT_E_DTYPE);
    cr_expect_eq(moert_lutb_encode(w, MOERT_F32, 8, 128, 64, NULL, packed, codes, NULL, &err), MOERT_E_SHAPE);
    cr_expect_eq(moert_lutb_encode(NULL, MOERT_F32, 8, 64, 0, NULL, packed, codes, NULL, &err), MOERT_E_USAGE);
    cr_expect_eq(moert_lutb_encode(w, MOERT_F32, 1ull << 60, 64, 0, NULL, packed, codes, NULL, &err),
                 MOERT_E_TOO_LARGE);
    cr_expect_eq(moert_lutb_decode(packed, codes, 1ull << 60, 64, w, MOERT_F32, &err), MOERT_E_TOO_LARGE);
    w[9 * 128 + 70] = NAN;
    cr_expect_eq(moert_lutb_encode(w, MOERT_F32, 16, 128, 0, NULL, packed, codes, NULL, &err), MOERT_E_VALUE);
    cr_expect(strstr(err.text, "[9,70]") && strstr(err.text, "NaN"), "%s", err.text);
    cr_expect_eq(packed[0], 0xAA, "written on failure");
    w[9 * 128 + 70] = 0;
    params.channel_weights = channel;
    channel[100] = -1;
    cr_expect_eq(moert_lutb_encode(w, MOERT_F32, 16, 128, 0, &params, packed, codes, NULL, &err), MOERT_E_VALUE);
    cr_expect(strstr(err.text, "channel_weights[100] is -1") != NULL, "%s", err.text);
    channel[100] = 0;
    params.fit = MOERT_FIT_FARTHEST;
    cr_expect_eq(moert_lutb_encode(w, MOERT_F32, 16, 128, 0, &params, packed, codes, NULL, &err), MOERT_E_VALUE);
    params.size = 8;
    cr_expect_eq(moert_lutb_encode(w, MOERT_F32, 16, 128, 0, &params, packed, codes, NULL, &err), MOERT_E_USAGE);
    cr_expect_eq(moert_lutb_check_codebook(codes, 1, &err), MOERT_OK);
    codes[19] = 0xFF;
    cr_expect_eq(moert_lutb_check_codebook(codes, 4, &err), MOERT_E_VALUE);
    cr_expect(strstr(err.text, "entry 3") && strstr(err.text, "tile 2"), "%s", err.text);
    cr_expect_eq(moert_lutb_fit_from_name("multistart", &fit), 0);
    cr_expect_eq(fit, (uint32_t)MOERT_FIT_MULTISTART);
    cr_expect_eq(moert_lutb_fit_from_name("best", &fit), -1);
    cr_expect_str_eq(moert_lutb_fit_name(MOERT_FIT_OPTIMAL), "optimal");
    cr_expect_null(moert_lutb_fit_name(3));
}
