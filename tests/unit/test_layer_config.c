/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/test_layer_config.c: the description of a layer (layer.md 1, 2, 7): defaults, every error of the
 * description once with its values in the text, sizes of layer.md 6. */
#include <moert/activation.h>
#include <moert/layer_config.h>

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A legal layer: H 128, I 64, E 8, K 2, mxfp8. */
static struct moert_layer_config legal(void)
{
    struct moert_layer_config c;

    moert_layer_config_init(&c);
    strcpy(c.name, "model.layers.3.mlp.experts");
    c.index = 3;
    c.hidden_size = 128;
    c.intermediate_size = 64;
    c.num_experts = 8;
    c.top_k = 2;
    c.weight_scheme = MOERT_SCHEME_MXFP8;
    c.router.kind = MOERT_ROUTER_SOFTMAX;
    return c;
}

Test(layer_config, defaults_of_init)
{
    struct moert_layer_config c;

    memset(&c, 0xA5, sizeof(c));
    moert_layer_config_init(&c);
    cr_assert_eq(c.size, sizeof(c));
    cr_assert_eq(c.index, -1);
    cr_assert_eq(c.dtype, MOERT_BF16);
    cr_assert_eq(c.activation, MOERT_ACT_SILU);
    cr_assert_eq(c.max_tokens, 8192);
    cr_assert_eq(c.role, MOERT_ROLE_MAIN);
    cr_assert_str_eq(c.name, "");
    cr_assert_eq(c.shared.intermediate_size, 0);
}

Test(layer_config, check_resolves_what_depends_on_other_fields)
{
    struct moert_layer_config c = legal();

    c.num_fused_shared = 2;
    cr_assert_eq(moert_layer_config_check(&c, NULL), MOERT_OK);
    cr_assert_eq(c.num_local_experts, 10);
    cr_assert_eq(c.activation_scheme, MOERT_SCHEME_MXFP8);
    cr_assert_eq(c.w13_order, MOERT_W13_GATE_UP);
    cr_assert_eq(c.router.scaling_factor, 1.0);
    cr_assert_eq(c.router.shared_weight, 1.0);

    c = legal();
    c.weight_scheme = MOERT_SCHEME_BF16;
    c.activation = MOERT_ACT_SWIGLUOAI;
    cr_assert_eq(moert_layer_config_check(&c, NULL), MOERT_OK);
    cr_assert_eq(c.activation_scheme, MOERT_SCHEME_NONE);
    cr_assert_eq(c.w13_order, MOERT_W13_INTERLEAVED);

    c = legal();
    c.activation_scheme = MOERT_SCHEME_NONE; /* a given value is not a missing one */
    c.activation = MOERT_ACT_SWIGLUOAI;
    c.w13_order = MOERT_W13_GATE_UP;
    cr_assert_eq(moert_layer_config_check(&c, NULL), MOERT_OK);
    cr_assert_eq(c.activation_scheme, MOERT_SCHEME_NONE);
    cr_assert_eq(c.w13_order, MOERT_W13_GATE_UP);

    c = legal();
    c.num_fused_shared = 1;
    c.router.scaling_factor = 2.5;
    c.router.scale_at = MOERT_SCALE_AT_OUTPUT;
    cr_assert_eq(moert_layer_config_check(&c, NULL), MOERT_OK);
    cr_assert_eq(c.router.shared_weight, 1 / 2.5, "net factor 1");

    c = legal();
    c.shared.intermediate_size = 96;
    cr_assert_eq(moert_layer_config_check(&c, NULL), MOERT_OK);
    cr_assert_eq(c.shared.weight_scheme, MOERT_SCHEME_MXFP8);
}

/* ---- one error each ---- */

static int32_t map8[8] = {0, 1, 2, 3, 4, 5, 6, 7};
static const int32_t mask9[9] = {0, 0, 1, 1, 0, 1, 0, 1, 0};

#define BREAK(name, ...)                                                                                               \
    static void name(struct moert_layer_config *c)                                                                     \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }

BREAK(small_struct, c->size = 64;)
BREAK(small_router, c->router.size = 8;)
BREAK(endless_name, memset(c->name, 'x', sizeof(c->name));)
BREAK(no_hidden, c->hidden_size = 0;)
BREAK(no_intermediate, c->intermediate_size = 0;)
BREAK(no_experts, c->num_experts = 0;)
BREAK(no_tokens, c->max_tokens = 0;)
BREAK(many_experts, c->num_experts = 0x7fffffffu; c->num_fused_shared = 1;)
BREAK(huge, c->hidden_size = c->intermediate_size = 1ull << 40;)
BREAK(bad_role, c->role = 7;)
BREAK(bad_dtype, c->dtype = MOERT_F64;)
BREAK(bad_flag, c->has_bias = 2;)
BREAK(bad_params, c->params_set = 1u << 7;)
BREAK(bad_scheme, c->weight_scheme = MOERT_SCHEME_NONE;)
BREAK(bad_activation_scheme, c->activation_scheme = MOERT_SCHEME_LUT_B;)
BREAK(bad_multiple, c->intermediate_size = 2880 + 16;)
BREAK(bad_hidden_multiple, c->weight_scheme = MOERT_SCHEME_LUT_B; c->hidden_size = 96;)
BREAK(bad_shared_multiple, c->shared.intermediate_size = 40; c->shared.weight_scheme = MOERT_SCHEME_MXFP8;)
BREAK(bad_activation, c->activation = 99;)
BREAK(no_limit, c->activation = MOERT_ACT_SWIGLUOAI_UNINTERLEAVE;)
BREAK(extra_limit, c->activation = MOERT_ACT_GELU; c->params_set = MOERT_PARAM_SWIGLU_LIMIT; c->swiglu_limit = 7;)
BREAK(bad_order, c->activation = MOERT_ACT_RELU2_NO_MUL; c->w13_order = MOERT_W13_INTERLEAVED;)
BREAK(top_k_9, c->top_k = 9;)
BREAK(top_k_groups, c->num_experts = 16; c->top_k = 9; c->router.kind = MOERT_ROUTER_GROUPED; c->router.num_groups = 4;
      c->router.topk_groups = 2;)
BREAK(groups_7, c->num_experts = 64; c->router.kind = MOERT_ROUTER_GROUPED; c->router.num_groups = 7;)
BREAK(groups_9, c->router.kind = MOERT_ROUTER_GROUPED; c->router.num_groups = 8; c->router.topk_groups = 9;)
BREAK(bad_factor, c->router.scaling_factor = NAN;)
BREAK(few_rows, c->num_local_experts = 4;)
BREAK(many_rows, c->num_local_experts = 9;)
BREAK(map_value, map8[5] = 8; c->expert_map = map8; c->expert_map_length = 8;)
BREAK(map_twice, map8[5] = 3; map8[7] = -1; c->expert_map = map8; c->expert_map_length = 8;)
BREAK(map_mask, c->expert_map = mask9; c->expert_map_length = 9;)
BREAK(map_null, c->expert_map_length = 8;)
BREAK(input_weight, c->top_k = 8; c->apply_router_weight_on_input = 1;)
BREAK(input_fused, c->top_k = 1; c->num_fused_shared = 1; c->apply_router_weight_on_input = 1;)

static const struct {
    void (*change)(struct moert_layer_config *c);
    moert_status_t status;
    const char *code, *text;
} errors[] = {
    {small_struct, MOERT_E_USAGE, "struct-size", "struct moert_layer_config has size 64"},
    {small_router, MOERT_E_USAGE, "struct-size", "struct moert_router_config has size 8"},
    {endless_name, MOERT_E_VALUE, "field", "name is longer than 255 bytes"},
    {no_hidden, MOERT_E_VALUE, "size", "hidden_size is 0; must be at least 1"},
    {no_intermediate, MOERT_E_VALUE, "size", "intermediate_size is 0; must be at least 1"},
    {no_experts, MOERT_E_VALUE, "size", "num_experts is 0; must be at least 1"},
    {no_tokens, MOERT_E_VALUE, "size", "max_tokens is 0; must be at least 1"},
    {many_experts, MOERT_E_TOO_LARGE, "too-large", "num_experts 2147483647 + num_fused_shared 1 exceeds 2147483647"},
    {huge, MOERT_E_TOO_LARGE, "too-large", "1099511627776"},
    {bad_role, MOERT_E_VALUE, "field", "role is 7"},
    {bad_dtype, MOERT_E_VALUE, "field", "dtype is F64; must be BF16, F16 or F32"},
    {bad_flag, MOERT_E_VALUE, "field", "has_bias is 2; must be 0 or 1"},
    {bad_params, MOERT_E_USAGE, "flag", "unknown flag bit 7"},
    {bad_scheme, MOERT_E_VALUE, "scheme",
     "weight_scheme \"none\" is not supported; known: bf16, f16, f32, mxfp8, lut-b"},
    {bad_activation_scheme, MOERT_E_VALUE, "scheme",
     "activation_scheme \"lut-b\" is not supported; known: none, mxfp8"},
    {bad_multiple, MOERT_E_SHAPE, "multiple", "intermediate_size 2896 is not a multiple of 32 (needed by mxfp8)"},
    {bad_hidden_multiple, MOERT_E_SHAPE, "multiple", "hidden_size 96 is not a multiple of 64 (needed by lut-b)"},
    {bad_shared_multiple, MOERT_E_SHAPE, "multiple", "shared.intermediate_size 40 is not a multiple of 32"},
    {bad_activation, MOERT_E_VALUE, "activation", "unknown activation 99; known: silu"},
    {no_limit, MOERT_E_VALUE, "activation", "swigluoai_uninterleave needs swiglu_limit"},
    {extra_limit, MOERT_E_VALUE, "activation-param", "gelu takes no swiglu_limit (got 7)"},
    {bad_order, MOERT_E_VALUE, "order", "w13_order \"interleaved\" with non-gated relu2_no_mul"},
    {top_k_9, MOERT_E_VALUE, "topk-range", "top_k 9 exceeds the 8 experts"},
    {top_k_groups, MOERT_E_VALUE, "topk-range",
     "top_k 9 exceeds the 8 experts that can be selected (2 groups of 4); allowed 1..8"},
    {groups_7, MOERT_E_VALUE, "groups", "64 experts do not divide into 7 groups"},
    {groups_9, MOERT_E_VALUE, "groups", "topk_groups 9 of 8"},
    {bad_factor, MOERT_E_VALUE, "", "scaling_factor is"},
    {few_rows, MOERT_E_SHAPE, "experts", "w13_weight has 4 experts, the router 8, and there is no expert map"},
    {many_rows, MOERT_E_SHAPE, "experts", "w13_weight has 9 experts, the router 8"},
    {map_value, MOERT_E_VALUE, "map", "expert_map[5] is 8; local ids are 0..7"},
    {map_twice, MOERT_E_VALUE, "map", "local id 3 appears twice"},
    {map_mask, MOERT_E_VALUE, "map", "a 0/1 mask of length 9, a map of length 8 is needed"},
    {map_null, MOERT_E_USAGE, "null", "expert_map is NULL"},
    {input_weight, MOERT_E_VALUE, "input-weight", "apply_router_weight_on_input needs top_k 1, got 8"},
    {input_fused, MOERT_E_VALUE, "input-weight", "apply_router_weight_on_input needs num_fused_shared 0, got 1"},
};

Test(layer_config, each_error_once_with_its_numbers)
{
    for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++) {
        struct moert_layer_config c = legal(), before;
        struct moert_error err = MOERT_ERROR_INIT;
        moert_status_t status;

        for (int e = 0; e < 8; e++)
            map8[e] = e;
        errors[i].change(&c);
        before = c;
        status = moert_layer_config_check(&c, &err);
        cr_expect_eq(status, errors[i].status, "row %zu: %d %s: %s", i, status, err.code, err.text);
        if (*errors[i].code)
            cr_expect_str_eq(err.code, errors[i].code, "row %zu: %s", i, err.text);
        cr_expect_not_null(strstr(err.text, errors[i].text), "row %zu: %s", i, err.text);
        if (strcmp(err.code, "struct-size") && !strstr(err.text, "name is longer"))
            cr_expect_eq(strncmp(err.text, "layer model.layers.3.mlp.experts#3: ", 36), 0, "row %zu: %s", i, err.text);
        cr_expect_eq(memcmp(&c, &before, sizeof(c)), 0, "row %zu: an error leaves the description as it was", i);
        cr_expect_eq(moert_layer_config_check(&c, NULL), status, "row %zu: without an error buffer", i);
    }
    cr_assert_eq(moert_layer_config_check(NULL, NULL), MOERT_E_USAGE);
}

Test(layer_config, swigluoai_uninterleave_with_a_limit_is_served)
{
    struct moert_layer_config c = legal();

    c.activation = MOERT_ACT_SWIGLUOAI_UNINTERLEAVE;
    c.params_set = MOERT_PARAM_SWIGLU_LIMIT;
    c.swiglu_limit = 7;
    cr_assert_eq(moert_layer_config_check(&c, NULL), MOERT_OK);
}

Test(layer_config, a_copy_owns_its_map)
{
    const int32_t map[8] = {-1, 0, -1, 1, 2, 3, -1, -1};
    struct moert_layer_config c = legal(), copy;

    c.num_local_experts = 4;
    c.expert_map = map;
    c.expert_map_length = 8;
    cr_assert_eq(moert_layer_config_check(&c, NULL), MOERT_OK);
    cr_assert_eq(moert_layer_config_copy(&c, &copy, NULL), MOERT_OK);
    cr_assert_neq(copy.expert_map, map);
    cr_assert_eq(memcmp(copy.expert_map, map, sizeof(map)), 0);
    moert_layer_config_clear(&copy);
    cr_assert_null(copy.expert_map);
    cr_assert_eq(copy.expert_map_length, 0);
    moert_layer_config_clear(&copy);
    moert_layer_config_clear(NULL);
}

/* Bytes of one layer's weights, layer.md 6. */
static const struct {
    const char *name;
    uint64_t h, i;
    uint32_t e, k;
    uint64_t bf16, mxfp8, lutb;
} models[] = {
    {"Qwen3-30B-A3B", 2048, 768, 128, 8, 1207959552, 622854144, 235929600},
    {"Mixtral-8x7B", 4096, 14336, 8, 2, 2818572288, 1453326336, 550502400},
    {"DeepSeek-V3", 7168, 2048, 256, 8, 22548578304, 11626610688, 4404019200},
    {"gpt-oss-120b", 2880, 2880, 128, 4, 6370099200, 3284582400, 1244160000},
};

Test(layer_config, weight_bytes_of_known_models)
{
    for (size_t m = 0; m < sizeof(models) / sizeof(*models); m++) {
        struct moert_layer_config c = legal();

        c.hidden_size = models[m].h;
        c.intermediate_size = models[m].i;
        c.num_experts = models[m].e;
        c.top_k = models[m].k;
        cr_expect_eq(moert_layer_config_weight_bytes(&c), models[m].mxfp8, "%s", models[m].name);
        c.weight_scheme = MOERT_SCHEME_BF16;
        cr_expect_eq(moert_layer_config_weight_bytes(&c), models[m].bf16, "%s", models[m].name);
        c.weight_scheme = MOERT_SCHEME_LUT_B;
        cr_expect_eq(moert_layer_config_weight_bytes(&c), models[m].lutb, "%s", models[m].name);
        cr_expect_eq(moert_layer_config_check(&c, NULL), MOERT_OK, "%s", models[m].name);
        cr_expect_eq(moert_layer_config_n1(&c), 2 * models[m].i);
        c.activation = MOERT_ACT_RELU2_NO_MUL;
        cr_expect_eq(moert_layer_config_n1(&c), models[m].i);
    }
}

Test(layer_config, weight_bytes_do_not_wrap)
{
    struct moert_layer_config c = legal();

    c.hidden_size = c.intermediate_size = 1ull << 40;
    cr_assert_eq(moert_layer_config_weight_bytes(&c), UINT64_MAX);
    c.hidden_size = 1ull << 31;
    c.intermediate_size = 1ull << 31;
    c.num_experts = 1;
    c.weight_scheme = MOERT_SCHEME_F32;
    cr_assert_eq(moert_layer_config_weight_bytes(&c), UINT64_MAX, "the elements fit, the bytes do not");
}
