/* tests/unit/test_permute_combine.c: permute, unpermute and combine against routing.md 5 (P1, P2), its test table (C04,
 * C05, C07, C10, C18, C31, C32, C40, C41) and tests/data/vectors/reduce.safetensors. */
#include "config.h"

#include <moert/float8.h>
#include <moert/routing.h>

#include "unit/routing_vectors.h"

#include <math.h>

static const int32_t p_ids[6] = {0, 2, 3, 1, 2, 0}, p_map[4] = {-1, 0, -1, 1};

Test(permute, p1)
{
    static const int64_t want_first[5] = {0, 2, 3, 5, 6};
    static const int32_t want_perm[6] = {0, 5, 3, 1, 4, 2}, want_inv[6] = {0, 3, 5, 2, 4, 1};
    int64_t first[5];
    int32_t perm[6], inv[6];

    cr_assert_eq(moert_permute_indices(p_ids, 3, 2, 4, NULL, 4, first, perm, inv, NULL), MOERT_OK);
    cr_expect_arr_eq(first, want_first, sizeof(first));
    cr_expect_arr_eq(perm, want_perm, sizeof(perm));
    cr_expect_arr_eq(inv, want_inv, sizeof(inv));
}

Test(permute, p2_with_a_map)
{
    static const int64_t want_first[3] = {0, 1, 2};
    static const int32_t want_perm[6] = {3, 2, 6, 6, 6, 6}, want_inv[6] = {-1, -1, 1, 0, -1, -1};
    int64_t first[3];
    int32_t perm[6], inv[6];

    cr_assert_eq(moert_permute_indices(p_ids, 3, 2, 4, p_map, 2, first, perm, inv, NULL), MOERT_OK);
    cr_expect_arr_eq(first, want_first, sizeof(first));
    cr_expect_arr_eq(perm, want_perm, sizeof(perm));
    cr_expect_arr_eq(inv, want_inv, sizeof(inv));
}

/* Gather and scatter back: weights from both slots, NaN in the rows that nobody wrote. */
Test(permute, rows_and_back)
{
    enum { T = 3, K = 2, H = 700 };
    static const float weights[6] = {NAN, NAN, 0.25f, 0.5f, NAN, NAN};
    float *x = malloc(T * H * 4), *rows = malloc(T * K * H * 4), *out = malloc(T * H * 4);
    int64_t first[3];
    int32_t perm[6], inv[6];

    for (int i = 0; i < T * H; i++)
        x[i] = (float)i;
    memset(rows, 0xFF, T * K * H * 4);
    memset(out, 0xFF, T * H * 4);
    cr_assert_eq(moert_permute_indices(p_ids, T, K, 4, p_map, 2, first, perm, inv, NULL), MOERT_OK);
    moert_permute_rows(x, H * 4, K, perm, (uint64_t)first[2], rows);
    cr_expect_arr_eq(rows, x + 1 * H, H * 4, "slot 3 is of token 1");
    cr_expect_arr_eq(rows + H, x + 1 * H, H * 4, "slot 2 is of token 1");
    cr_expect(isnan(rows[2 * H]), "rows behind the used ones are not written");
    cr_assert_eq(moert_unpermute(rows, MOERT_F32, inv, weights, T, K, H, out, NULL), MOERT_OK);
    for (int i = 0; i < H; i++) {
        cr_expect_eq(out[i], 0);
        cr_expect_eq(out[H + i], 0.75f * x[H + i]);
        cr_expect_eq(out[2 * H + i], 0);
    }
    free(x);
    free(rows);
    free(out);
}

Test(permute, errors)
{
    struct moert_error err = MOERT_ERROR_INIT;
    int64_t first[5];
    int32_t perm[6], inv[6];

    cr_expect_eq(moert_permute_indices(p_ids, 3, 2, 4, NULL, 3, first, perm, inv, &err), MOERT_E_SHAPE);
    cr_expect_str_eq(err.code, "experts");
    cr_expect_eq(moert_permute_indices(p_ids, 3, 2, 4, p_map, 1, first, perm, inv, &err), MOERT_E_VALUE);
    cr_expect_str_eq(err.code, "map");
    cr_expect_eq(moert_permute_indices(p_ids, 0x80000000u, 2, 4, NULL, 4, first, perm, inv, &err), MOERT_E_TOO_LARGE);
    cr_expect_eq(moert_permute_indices(NULL, 3, 2, 4, NULL, 4, first, perm, inv, &err), MOERT_E_USAGE);
    cr_expect_eq(moert_unpermute(perm, MOERT_I32, inv, NULL, 1, 1, 1, perm, &err), MOERT_E_DTYPE);
    cr_expect_eq(moert_permute_indices(NULL, 0, 2, 4, NULL, 4, first, NULL, NULL, NULL), MOERT_OK, "C40");
    cr_expect_eq(first[4], 0);
}

static struct moert_combine_args args_of(moert_dtype_t dtype, const void *rows, const int32_t *ids, uint32_t experts,
                                         uint64_t tokens, uint32_t k, uint64_t hidden, void *out)
{
    return (struct moert_combine_args){.size = sizeof(struct moert_combine_args),
                                       .dtype = dtype,
                                       .rows = rows,
                                       .ids = ids,
                                       .num_experts = experts,
                                       .top_k = k,
                                       .tokens = tokens,
                                       .hidden_size = hidden,
                                       .out = out};
}

Test(combine, vector_files)
{
    moert_safetensors_t *f = open_vectors("reduce.safetensors");
    int cases = 0;
    char name[128];

    for (uint64_t i = 0; i < moert_safetensors_count(f); i++) {
        const struct moert_st_tensor *x, *out, *map;
        struct moert_combine_args a;
        uint64_t n;
        uint8_t *have;

        if (!case_with_field(f, i, "out", name, sizeof(name)))
            continue;
        x = field_of(f, name, "x");
        out = field_of(f, name, "out");
        map = field_of(f, name, "expert_map");
        have = malloc(out->bytes + 1);
        memset(have, 0xFF, out->bytes + 1);
        n = out->shape[0] * out->shape[1];
        a = args_of(x->dtype, x->data, data_of(f, name, "topk_ids"), map ? (uint32_t)map->shape[0] : 1000, x->shape[0],
                    (uint32_t)x->shape[1], x->shape[2], have);
        if (!map && a.ids)
            a.num_experts = (uint32_t)int_param(f, name, "E", 1000);
        a.map = map ? map->data : NULL;
        cr_assert_eq(moert_combine(&a, NULL), MOERT_OK, "%s", name);
        for (uint64_t k = 0; k < n; k++) {
            double y = moert_load(have, out->dtype, k), want = moert_load(out->data, out->dtype, k);
            cr_expect(y == want || (isnan(y) && isnan(want)), "%s[%lu]: %g, expected %g", name, k, y, want);
        }
        free(have);
        cases++;
    }
    cr_assert_geq(cases, 23, "%d cases", cases);
    moert_safetensors_close(f);
}

/* Rows of slots that are not local lie on a page that can not be read, and so do the weights behind the used ones. */
Test(combine, rows_of_other_slots_are_not_read)
{
    static const int32_t ids[6] = {1, 3, -1, 0, 4, INT32_MAX}, map[4] = {-1, 0, -1, -1};
    float *rows = guarded(2 * sizeof(float)), *weights = guarded(sizeof(float)), out[2];
    struct moert_combine_args a = args_of(MOERT_F32, rows, ids, 4, 1, 6, 2, out);

    rows[0] = 3;
    rows[1] = -5;
    weights[0] = 0.5f;
    a.map = map;
    cr_assert_eq(moert_combine(&a, NULL), MOERT_OK);
    cr_expect_eq(out[0], 3);
    cr_expect_eq(out[1], -5);
    a.weights = weights;
    cr_assert_eq(moert_combine(&a, NULL), MOERT_OK);
    cr_expect_eq(out[0], 1.5f);
}

Test(combine, c04_weighted_with_a_map)
{
    static const int32_t ids[2] = {-1, 2}, map[4] = {-1, -1, 0, 1};
    static const float weights[2] = {0.25f, 0.75f}, rows[2] = {2, 1}; /* local l returns (l + 1) x, x = 1 */
    float out = NAN;
    struct moert_combine_args a = args_of(MOERT_F32, rows, ids, 4, 1, 2, 1, &out);

    a.map = map;
    a.weights = weights;
    cr_assert_eq(moert_combine(&a, NULL), MOERT_OK);
    cr_expect_eq(out, 0.75f);
}

Test(combine, c05_map_and_nan)
{
    static const int32_t ids[2] = {0, 3}, map[4] = {0, -1, -1, -1};
    static const float rows[2] = {2, NAN};
    float out = NAN;
    struct moert_combine_args a = args_of(MOERT_F32, rows, ids, 4, 1, 2, 1, &out);

    a.map = map;
    cr_assert_eq(moert_combine(&a, NULL), MOERT_OK);
    cr_expect_eq(out, 2);
}

Test(combine, c07_map_is_read_after_the_range_test)
{
    int32_t *map = guarded(4 * sizeof(*map));
    static const int32_t ids[2][2] = {{4, 1}, {-1, 1}};
    static const float rows[2] = {NAN, 7};
    float out[2];

    map[0] = map[2] = map[3] = -1;
    map[1] = 0;
    for (int i = 0; i < 2; i++) {
        struct moert_combine_args a = args_of(MOERT_F32, rows, ids[i], 4, 1, 2, 1, &out[i]);
        int64_t first[2];
        int32_t perm[2], inv[2];

        a.map = map;
        cr_assert_eq(moert_combine(&a, NULL), MOERT_OK);
        cr_expect_eq(out[i], 7);
        cr_assert_eq(moert_permute_indices(ids[i], 1, 2, 4, map, 1, first, perm, inv, NULL), MOERT_OK);
        cr_expect_eq(first[1], 1);
        cr_expect_eq(perm[0], 1);
    }
}

/* An id of E without a map is not summed either. */
Test(combine, ids_beyond_the_experts)
{
    static const int32_t ids[4] = {4, 3, -7, 5};
    static const float rows[4] = {NAN, 2, NAN, NAN};
    float out = NAN;
    struct moert_combine_args a = args_of(MOERT_F32, rows, ids, 4, 1, 4, 1, &out);

    cr_assert_eq(moert_combine(&a, NULL), MOERT_OK);
    cr_expect_eq(out, 2);
}

Test(combine, c10_nothing_local_gives_exact_zero)
{
    enum { T = 3, K = 2, H = 600 };
    static const int32_t ids[6] = {0, 1, 2, 3, 1, 0}, map[8] = {-1, -1, -1, -1, 0, 1, 2, 3};
    uint16_t rows[T * K], out[T * H];
    struct moert_combine_args a = args_of(MOERT_BF16, rows, ids, 8, T, K, H, out);

    memset(out, 0xFF, sizeof(out));
    a.map = map;
    cr_assert_eq(moert_combine(&a, NULL), MOERT_OK); /* rows are far too short to be read */
    for (int i = 0; i < T * H; i++)
        cr_expect_eq(out[i], 0);
}

Test(combine, c18_repeated_ids_both_count)
{
    static const int32_t ids[2] = {2, 2};
    static const float weights[2] = {0.25f, 0.75f}, rows[2] = {3, 3};
    float out = NAN;
    struct moert_combine_args a = args_of(MOERT_F32, rows, ids, 4, 1, 2, 1, &out);

    a.weights = weights;
    cr_assert_eq(moert_combine(&a, NULL), MOERT_OK);
    cr_expect_eq(out, 3);
}

/* C31, output side: F multiplies the routed sum once, before the shared output is added. */
Test(combine, c31_output_scale_and_shared)
{
    static const int32_t id = 0;
    static const float one = 1, shared = 10;
    float out = NAN;
    struct moert_combine_args a = args_of(MOERT_F32, &one, &id, 1, 1, 1, 1, &out);

    a.output_scale = 2.5;
    cr_assert_eq(moert_combine(&a, NULL), MOERT_OK);
    cr_expect_eq(out, 2.5f);
    a.shared = &shared;
    cr_assert_eq(moert_combine(&a, NULL), MOERT_OK);
    cr_expect_eq(out, 12.5f);
    a.ids = &(const int32_t){-1};
    cr_assert_eq(moert_combine(&a, NULL), MOERT_OK);
    cr_expect_eq(out, 10);
}

Test(combine, one_rounding_to_the_output)
{
    /* 1 + 2^-9 + 2^-9 = 1 + 2^-8 is a tie in bf16 (step 2^-7) and stays 1; + shared 2^-12 it rounds up. Rounded after
     * each addition it would stay 1. */
    static const uint16_t rows[3] = {0x3F80, 0x3B00, 0x3B00};
    static const float shared = 0x1p-12f;
    uint16_t out = 0;
    struct moert_combine_args a = args_of(MOERT_BF16, rows, NULL, 1, 1, 3, 1, &out);

    cr_assert_eq(moert_combine(&a, NULL), MOERT_OK);
    cr_expect_eq(out, 0x3F80);
    a.shared = &shared;
    cr_assert_eq(moert_combine(&a, NULL), MOERT_OK);
    cr_expect_eq(out, 0x3F81);
}

/* (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24: rounded to f32 the last term is lost, a fused multiply-add to -1 - 2^-11 keeps it.
 */
Test(combine, product_is_rounded_before_it_is_added)
{
    static const float rows[2] = {-(1 + 0x1p-11f), 1 + 0x1p-12f}, weights[2] = {1, 1 + 0x1p-12f};
    float out = NAN;
    struct moert_combine_args a = args_of(MOERT_F32, rows, NULL, 1, 1, 2, 1, &out);

    a.weights = weights;
    cr_assert_eq(moert_combine(&a, NULL), MOERT_OK);
    cr_expect_eq(out, 0, "%g", (double)out);
}

Test(combine, c41_slot_order)
{
    static const float rows[3] = {1e8f, 1, -1e8f}, weights[3] = {1, 1, 1};
    static const int32_t ids[3] = {0, 1, 2};
    float out, first;
    struct moert_combine_args a = args_of(MOERT_F32, rows, ids, 3, 1, 3, 1, &out);

    cr_assert_eq(moert_combine(&a, NULL), MOERT_OK);
    cr_expect_eq(out, 0);
    a.weights = weights;
    for (int i = 0; i < 100; i++) {
        cr_assert_eq(moert_combine(&a, NULL), MOERT_OK);
        first = i ? first : out;
        cr_expect_eq(memcmp(&out, &first, 4), 0);
    }
    cr_expect_eq(first, 0);
}

Test(combine, strides)
{
    /* [T=2, K=2, H=2] stored slot-major with a gap: token stride 3, slot stride 8 */
    float rows[16], out[4];
    struct moert_combine_args a = args_of(MOERT_F32, rows, NULL, 1, 2, 2, 2, out);

    for (int i = 0; i < 16; i++)
        rows[i] = (float)(1 << i);
    a.stride_token = 3;
    a.stride_slot = 8;
    cr_assert_eq(moert_combine(&a, NULL), MOERT_OK);
    cr_expect_eq(out[0], 1 + 256);
    cr_expect_eq(out[1], 2 + 512);
    cr_expect_eq(out[2], 8 + 2048);
    cr_expect_eq(out[3], 16 + 4096);
}

Test(combine, errors)
{
    struct moert_error err = MOERT_ERROR_INIT;
    static const int32_t ids[1] = {0}, map[1] = {0};
    float rows[1] = {1}, out = 5;
    struct moert_combine_args a = args_of(MOERT_F32, rows, ids, 1, 1, 1, 1, &out);

    a.dtype = MOERT_F8_E4M3;
    cr_expect_eq(moert_combine(&a, &err), MOERT_E_DTYPE);
    cr_expect_str_eq(err.code, "tensor-dtype");
    a.dtype = MOERT_F32;
    a.ids = NULL;
    a.map = map;
    cr_expect_eq(moert_combine(&a, &err), MOERT_E_USAGE);
    a.map = NULL;
    a.rows = NULL;
    cr_expect_eq(moert_combine(&a, &err), MOERT_E_USAGE);
    a.rows = rows;
    a.tokens = UINT64_MAX / 2;
    cr_expect_eq(moert_combine(&a, &err), MOERT_E_TOO_LARGE);
    a.tokens = 1;
    a.size = 8;
    cr_expect_eq(moert_combine(&a, &err), MOERT_E_USAGE);
    cr_expect_eq(moert_combine(NULL, NULL), MOERT_E_USAGE);
    cr_expect_eq(out, 5, "written on failure");
}

Test(combine, c40_no_tokens)
{
    struct moert_combine_args a = args_of(MOERT_BF16, NULL, NULL, 1, 0, 2, 4, NULL);

    cr_expect_eq(moert_combine(&a, NULL), MOERT_OK);
    cr_expect_eq(moert_unpermute(NULL, MOERT_F32, NULL, NULL, 0, 2, 4, NULL, NULL), MOERT_OK);
}
