/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/test_chunk.c: workspace totals and chunks of layer.md 6, 64-bit offsets (routing.md C39). Links chunk.c
 * itself: the functions are pure and hidden in the library. */
#include "core/layer/chunk.h"

#include <moert/layer.h>

#include <criterion/criterion.h>
#include <string.h>

#define MIB (1ull << 20)

static struct moert_layer_config model(uint64_t h, uint64_t i, uint32_t e, uint32_t k)
{
    struct moert_layer_config c;

    moert_layer_config_init(&c);
    c.hidden_size = h;
    c.intermediate_size = i;
    c.num_experts = e;
    c.top_k = k;
    c.weight_scheme = MOERT_SCHEME_BF16;
    c.max_tokens = 1 << 20;
    return c;
}

static const struct {
    const char *name;
    uint64_t h, i;
    uint32_t e, k;
    uint64_t t1, t64, t4096;
} models[] = {
    {"Qwen3-30B-A3B", 2048, 768, 128, 8, 58112, 3492096, 219350016},
    {"Mixtral-8x7B", 4096, 14336, 8, 2, 207360, 13177600, 843092480},
    {"DeepSeek-V3", 7168, 2048, 256, 8, 176128, 11124992, 703726592},
    {"gpt-oss-120b", 2880, 2880, 128, 4, 86528, 5441024, 344072704},
};

Test(chunk, reference_workspace_of_known_models)
{
    for (size_t m = 0; m < sizeof(models) / sizeof(*models); m++) {
        struct moert_layer_config c = model(models[m].h, models[m].i, models[m].e, models[m].k);
        const uint64_t tokens[] = {1, 64, 4096}, want[] = {models[m].t1, models[m].t64, models[m].t4096};

        for (int i = 0; i < 3; i++) {
            uint64_t bytes = 0;
            cr_assert_eq(moert_layer_reference_workspace(&c, tokens[i], 128, &bytes, NULL), MOERT_OK);
            cr_expect_eq(bytes, want[i], "%s T %llu: %llu", models[m].name, (unsigned long long)tokens[i],
                         (unsigned long long)bytes);
        }
    }
}

Test(chunk, reference_workspace_refuses_what_does_not_fit)
{
    struct moert_layer_config c = model(4096, 14336, 8, 2);
    struct moert_error err = MOERT_ERROR_INIT;
    uint64_t bytes = 7;

    cr_assert_eq(moert_layer_reference_workspace(&c, UINT64_MAX / 2 + 1, 128, &bytes, &err), MOERT_E_TOO_LARGE);
    cr_assert_str_eq(err.code, "too-large");
    cr_assert_eq(bytes, 7, "outputs are written only on success");
    cr_assert_eq(moert_layer_reference_workspace(NULL, 1, 128, &bytes, NULL), MOERT_E_USAGE);
}

/* ---- chunks ---- */

static moert_status_t reference(void *ctx, uint64_t tokens, uint64_t *ret, struct moert_error *err)
{
    return moert_layer_reference_workspace(ctx, tokens, 128, ret, err);
}

static moert_status_t cut(struct moert_layer_config *c, uint64_t tokens, uint64_t limit, uint64_t *chunk,
                          struct moert_error *err)
{
    struct moert_chunk_limits limits = {
        .layer = c, .block_size = 128, .workspace_max = limit, .workspace = reference, .ctx = c};
    uint64_t workspace = 0, again = 1;
    moert_status_t status = moert_chunk_tokens(&limits, tokens, chunk, &workspace, err);

    if (!status) {
        cr_assert_leq(workspace, limit);
        cr_assert_eq(moert_layer_reference_workspace(c, *chunk, 128, &again, NULL), MOERT_OK);
        cr_assert_eq(workspace, again, "the workspace is that of the chunk");
    }
    return status;
}

Test(chunk, examples_with_512_mib)
{
    static const struct {
        int model;
        uint64_t tokens, first, rest;
    } rows[] = {{1, 4096, 2560, 1536}, {2, 4096, 3072, 1024}, {0, 16384, 9984, 6400}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        struct moert_layer_config c =
            model(models[rows[i].model].h, models[rows[i].model].i, models[rows[i].model].e, models[rows[i].model].k);
        uint64_t chunk = 0;

        cr_assert_eq(cut(&c, rows[i].tokens, 512 * MIB, &chunk, NULL), MOERT_OK);
        cr_expect_eq(chunk, rows[i].first, "%s: %llu", models[rows[i].model].name, (unsigned long long)chunk);
        cr_expect_eq(rows[i].tokens - chunk, rows[i].rest);
    }
}

Test(chunk, whole_multiple_of_128_or_less)
{
    struct moert_layer_config c = model(2880, 2880, 128, 4);
    struct moert_error err = MOERT_ERROR_INIT;
    uint64_t chunk = 0, need = 0;

    cr_assert_eq(cut(&c, 4095, 512 * MIB, &chunk, NULL), MOERT_OK);
    cr_assert_eq(chunk, 4095, "a call that fits is not cut");
    cr_assert_eq(moert_layer_reference_workspace(&c, 130, 128, &need, NULL), MOERT_OK);
    cr_assert_eq(cut(&c, 4095, need, &chunk, NULL), MOERT_OK);
    cr_assert_eq(chunk, 128, "130 would fit, but chunks are multiples of 128");
    cr_assert_eq(moert_layer_reference_workspace(&c, 100, 128, &need, NULL), MOERT_OK);
    cr_assert_eq(cut(&c, 4095, need, &chunk, NULL), MOERT_OK);
    cr_assert_eq(chunk, 100, "the largest below 128 that fits");
    cr_assert_eq(cut(&c, 1, 86528, &chunk, NULL), MOERT_OK);
    cr_assert_eq(chunk, 1);
    chunk = 9;
    cr_assert_eq(cut(&c, 1, 65536, &chunk, &err), MOERT_E_NOMEM);
    cr_assert_str_eq(err.code, "workspace");
    cr_assert_str_eq(err.text, "one token needs 86528 bytes of workspace, limit 65536");
    cr_assert_eq(chunk, 9);
}

Test(chunk, calls_above_max_tokens_are_cut)
{
    struct moert_layer_config c = model(2048, 768, 128, 8);
    uint64_t chunk = 0;

    c.max_tokens = 300;
    cr_assert_eq(cut(&c, 1000, 512 * MIB, &chunk, NULL), MOERT_OK);
    cr_assert_eq(chunk, 256);
    c.max_tokens = 100;
    cr_assert_eq(cut(&c, 1000, 512 * MIB, &chunk, NULL), MOERT_OK);
    cr_assert_eq(chunk, 100);
    cr_assert_eq(cut(&c, 99, 512 * MIB, &chunk, NULL), MOERT_OK);
    cr_assert_eq(chunk, 99);
}

static moert_status_t nothing(void *ctx, uint64_t tokens, uint64_t *ret, struct moert_error *err)
{
    (void)ctx;
    (void)tokens;
    (void)err;
    *ret = 0;
    return MOERT_OK;
}

Test(chunk, slot_numbers_stay_int32)
{
    struct moert_layer_config c = model(2048, 768, 256, 8);
    struct moert_chunk_limits limits = {.layer = &c, .block_size = 128, .workspace_max = 1, .workspace = nothing};
    struct moert_error err = MOERT_ERROR_INIT;
    uint64_t chunk = 0, workspace = 0;

    c.max_tokens = INT64_MAX;
    cr_assert_eq(moert_chunk_tokens(&limits, 268435456, &chunk, &workspace, NULL), MOERT_OK);
    cr_assert_leq(chunk * 8 + 256 * 127, 2147483647u);
    cr_assert_gt((chunk + 128) * 8 + 256 * 127, 2147483647u);
    cr_assert_eq(chunk % 128, 0);
    c.num_experts = 20000000; /* 20000000*127 alone is too much: chunks cannot help */
    cr_assert_eq(moert_chunk_tokens(&limits, 1, &chunk, &workspace, &err), MOERT_E_TOO_LARGE);
    cr_assert_str_eq(err.code, "too-large");
    cr_assert_not_null(strstr(err.text, "x 8 + 20000000*127 slots exceed 2147483647"), "%s", err.text);
}

Test(chunk, element_offsets_are_64_bit)
{
    cr_assert_eq(moert_element_offset(52429, 40960, 0), 2147491840ull);
    cr_assert_eq(moert_element_offset(448000, 7168, 0), 3211264000ull);
    cr_assert_eq(moert_element_offset(1525201, 2816, 2570), 4294968586ull);
}
