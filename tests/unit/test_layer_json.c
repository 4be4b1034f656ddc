/* Layer descriptions as JSON: layer.md 1 (fields, defaults, unknown keys) and 7 (codes). */
#include <moert/layer_config.h>

#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>

#define BASE "\"hidden_size\":256,\"intermediate_size\":128,\"num_experts\":8,\"top_k\":2,\"weight_scheme\":\"mxfp8\""

/* The example of layer.md 1. */
static const char example[] =
    "{\"name\":\"model.layers.3.mlp.experts\",\"index\":3,\"hidden_size\":7168,\"intermediate_size\":2048,"
    "\"num_experts\":256,\"top_k\":8,\"dtype\":\"bf16\",\"weight_scheme\":\"mxfp8\",\"activation\":\"silu\","
    "\"router\":{\"kind\":\"grouped\",\"scoring\":\"sigmoid\",\"renormalize\":true,\"num_groups\":8,\"topk_groups\":4,"
    "\"scaling_factor\":2.5,\"scale_at\":\"output\"},"
    "\"shared\":{\"intermediate_size\":2048,\"gated\":false,\"weight_scheme\":\"bf16\"}}";

static struct moert_layer_config parsed(const char *json)
{
    struct moert_error err = MOERT_ERROR_INIT;
    struct moert_layer_config c = {0};

    cr_assert(!moert_layer_config_parse(json, "t.json", &c, &err), "%s", err.text);
    return c;
}

static void refused(const char *json, moert_status_t status, const char *code, const char *text)
{
    struct moert_error err = MOERT_ERROR_INIT;
    struct moert_layer_config c, before;

    memset(&c, 0x5a, sizeof(c));
    before = c;
    cr_expect_eq(moert_layer_config_parse(json, "t.json", &c, &err), status, "%s: %s %s", json, err.code, err.text);
    cr_expect_str_eq(err.code, code, "%s: %s %s", json, err.code, err.text);
    cr_expect(strstr(err.text, text), "%s: \"%s\" lacks \"%s\"", json, err.text, text);
    cr_expect(!strncmp(err.text, "t.json", 6), "%s", err.text);
    cr_expect(!memcmp(&c, &before, sizeof(c)), "%s: output touched", json);
    cr_expect_eq(moert_layer_config_parse(json, NULL, &c, NULL), status);
}

Test(layer_json, example_of_the_specification)
{
    struct moert_layer_config c = parsed(example);

    cr_expect_str_eq(c.name, "model.layers.3.mlp.experts");
    cr_expect_eq(c.index, 3);
    cr_expect_eq(c.hidden_size, 7168);
    cr_expect_eq(c.intermediate_size, 2048);
    cr_expect_eq(c.num_experts, 256);
    cr_expect_eq(c.top_k, 8);
    cr_expect_eq(c.dtype, MOERT_BF16);
    cr_expect_eq(c.weight_scheme, MOERT_SCHEME_MXFP8);
    cr_expect_eq(c.activation, MOERT_ACT_SILU);
    cr_expect_eq(c.router.kind, MOERT_ROUTER_GROUPED);
    cr_expect_eq(c.router.scoring, MOERT_SCORING_SIGMOID);
    cr_expect_eq(c.router.renormalize, 1);
    cr_expect_eq(c.router.num_groups, 8);
    cr_expect_eq(c.router.topk_groups, 4);
    cr_expect_eq(c.router.scaling_factor, 2.5);
    cr_expect_eq(c.router.scale_at, MOERT_SCALE_AT_OUTPUT);
    cr_expect_eq(c.shared.intermediate_size, 2048);
    cr_expect_eq(c.shared.gated, 0);
    cr_expect_eq(c.shared.weight_scheme, MOERT_SCHEME_BF16);
    cr_expect_eq(c.max_tokens, 8192);
    moert_layer_config_clear(&c);
}

Test(layer_json, required_fields)
{
    refused("{}", MOERT_E_MISSING, "required", "field \"hidden_size\" is required");
    refused("{\"hidden_size\":1,\"intermediate_size\":1,\"num_experts\":8,\"weight_scheme\":\"bf16\"}", MOERT_E_MISSING,
            "required", "field \"top_k\" is required");
    refused("{\"hidden_size\":1,\"intermediate_size\":1,\"num_experts\":8,\"top_k\":1,\"weight_scheme\":null}",
            MOERT_E_MISSING, "required", "field \"weight_scheme\" is required");
    refused("{" BASE ",\"router\":{}}", MOERT_E_MISSING, "required", "field \"router.kind\" is required");
    refused("{" BASE ",\"shared\":{\"gated\":true}}", MOERT_E_MISSING, "required",
            "field \"shared.intermediate_size\" is required");
}

Test(layer_json, unknown_keys_name_the_nearest)
{
    refused("{\"hiden_size\":7}", MOERT_E_VALUE, "field",
            "unknown field \"hiden_size\"; did you mean \"hidden_size\"?");
    refused("{" BASE ",\"router\":{\"knd\":\"softmax\"}}", MOERT_E_VALUE, "field",
            "unknown field \"router.knd\"; did you mean \"router.kind\"?");
    refused("{" BASE ",\"shared\":{\"gatd\":true}}", MOERT_E_VALUE, "field", "did you mean \"shared.gated\"?");
    refused("{" BASE ",\"zzzzzzzzzzzz\":1}", MOERT_E_VALUE, "field",
            "unknown field \"zzzzzzzzzzzz\"; known: name, index");
}

Test(layer_json, wrong_types_tell_value_and_expectation)
{
    refused("{" BASE ",\"top_k\":2}", MOERT_E_VALUE, "field", "duplicate");
    refused("{" BASE ",\"index\":\"3\"}", MOERT_E_VALUE, "field", "field \"index\" is \"3\"; expected an integer");
    refused("{" BASE ",\"index\":3.5}", MOERT_E_VALUE, "field", "field \"index\" is 3.5; expected an integer");
    refused("{" BASE ",\"has_bias\":1}", MOERT_E_VALUE, "field", "field \"has_bias\" is 1; expected true or false");
    refused("{" BASE ",\"name\":[]}", MOERT_E_VALUE, "field", "field \"name\" is []; expected a string");
    refused("{" BASE ",\"router\":\"softmax\"}", MOERT_E_VALUE, "field", "expected an object");
    refused("{" BASE ",\"dtype\":3}", MOERT_E_VALUE, "field", "expected one of f32, bf16, f16");
    refused("{" BASE ",\"swiglu_limit\":\"7\"}", MOERT_E_VALUE, "activation-param", "expected a number");
    refused("{" BASE ",\"expert_map\":{}}", MOERT_E_VALUE, "map", "expected a list");
    refused("{" BASE ",\"expert_map\":[0,\"x\"]}", MOERT_E_VALUE, "map", "expert_map[1] is \"x\"");
    refused("{" BASE ",\"expert_map\":[0,1,2,3,2147483648]}", MOERT_E_VALUE, "map", "expert_map[4] is 2147483648");
}

Test(layer_json, names_are_checked)
{
    refused("{\"hidden_size\":1,\"intermediate_size\":1,\"num_experts\":8,\"top_k\":1,\"weight_scheme\":\"fp8-block\"}",
            MOERT_E_VALUE, "scheme",
            "weight_scheme \"fp8-block\" is not supported; known: bf16, f16, f32, mxfp8, lut-b");
    refused("{" BASE ",\"activation\":\"silu2\"}", MOERT_E_VALUE, "activation",
            "unknown activation \"silu2\"; known: silu, gelu, gelu_tanh");
    refused("{" BASE ",\"dtype\":\"f64\"}", MOERT_E_VALUE, "field", "unknown dtype \"f64\"; known: f32, bf16, f16");
    refused("{" BASE ",\"w13_order\":\"gate\"}", MOERT_E_VALUE, "order", "gate_up, up_gate, interleaved");
    refused("{" BASE ",\"activation_scheme\":\"bf16\"}", MOERT_E_VALUE, "scheme", "known: none, mxfp8");
    refused("{" BASE ",\"router\":{\"kind\":\"hash\"}}", MOERT_E_VALUE, "field", "unknown router.kind \"hash\"");
}

Test(layer_json, numbers_are_in_range)
{
    char text[700], name[300];

    refused("{\"hidden_size\":0}", MOERT_E_VALUE, "size", "hidden_size is 0; must be at least 1");
    refused("{\"hidden_size\":-5}", MOERT_E_VALUE, "size", "hidden_size is -5; must be at least 1");
    refused("{\"hidden_size\":99999999999999999999}", MOERT_E_VALUE, "field", "too big integer");
    refused("{\"hidden_size\":1,\"intermediate_size\":1,\"num_experts\":2147483648}", MOERT_E_VALUE, "size",
            "num_experts is 2147483648; must be at most 2147483647");
    refused("{\"hidden_size\":1,\"intermediate_size\":1,\"num_experts\":8,\"top_k\":0}", MOERT_E_VALUE, "topk-range",
            "top_k is 0; must be at least 1");
    refused("{" BASE ",\"index\":-2}", MOERT_E_VALUE, "field", "index is -2; must be at least -1");
    refused("{" BASE ",\"max_tokens\":0}", MOERT_E_VALUE, "size", "max_tokens is 0");
    refused("{" BASE ",\"swiglu_limit\":1e999}", MOERT_E_VALUE, "field", "real number overflow");
    refused("{" BASE ",\"router\":{\"kind\":\"softmax\",\"scaling_factor\":0}}", MOERT_E_VALUE, "field",
            "expected a number above 0");
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = 0;
    snprintf(text, sizeof(text), "{" BASE ",\"name\":\"%s\"}", name);
    refused(text, MOERT_E_VALUE, "field", "at most 255 bytes, got 299");
}

Test(layer_json, text_that_is_no_object)
{
    refused("", MOERT_E_FILE, "st-json", "t.json:1");
    refused("{\"hidden_size\":1", MOERT_E_FILE, "st-json", "t.json:1");
    refused("[]", MOERT_E_FILE, "st-json", "is not an object");
    refused("{\"name\":\"\\u0000\"}", MOERT_E_FILE, "st-json", "t.json:1");
    refused("{\"name\":\"\xff\"}", MOERT_E_FILE, "st-json", "unable to decode byte 0xff");
    refused("{\"a\":1,\"a\":2}", MOERT_E_VALUE, "field", "duplicate object key");
}

Test(layer_json, null_arguments)
{
    struct moert_layer_config c;
    struct moert_error err = MOERT_ERROR_INIT;
    char *text;

    cr_expect_eq(moert_layer_config_parse(NULL, "x", &c, &err), MOERT_E_USAGE);
    cr_expect_str_eq(err.code, "null");
    cr_expect_eq(moert_layer_config_parse("{}", "x", NULL, NULL), MOERT_E_USAGE);
    cr_expect_eq(moert_layer_config_format(NULL, &text, NULL), MOERT_E_USAGE);
    moert_layer_config_init(&c);
    c.size = 8;
    cr_expect_eq(moert_layer_config_format(&c, &text, &err), MOERT_E_USAGE);
    cr_expect_str_eq(err.code, "struct-size");
}

/* parse(format(c)) = c and format(parse(format(c))) = format(c), before and after the check. */
static void round_trip(const char *json)
{
    struct moert_error err = MOERT_ERROR_INIT;
    struct moert_layer_config a = parsed(json), b;
    char *first, *second;

    for (int checked = 0; checked < 2; checked++) {
        if (checked)
            cr_assert(!moert_layer_config_check(&a, &err), "%s", err.text);
        cr_assert(!moert_layer_config_format(&a, &first, &err), "%s", err.text);
        cr_expect(!strchr(first, '\n'));
        b = parsed(first);
        cr_assert(!moert_layer_config_format(&b, &second, &err), "%s", err.text);
        cr_expect_str_eq(first, second);
        cr_expect_eq(a.expert_map_length, b.expert_map_length);
        if (a.expert_map_length)
            cr_expect(!memcmp(a.expert_map, b.expert_map, a.expert_map_length * sizeof(int32_t)));
        moert_layer_config_clear(&b);
        b.expert_map = a.expert_map;
        b.expert_map_length = a.expert_map_length;
        if (checked)
            cr_assert(!moert_layer_config_check(&b, &err), "%s", err.text);
        cr_expect(!memcmp(&a, &b, sizeof(a)), "%s", first);
        moert_free(first);
        moert_free(second);
    }
    moert_layer_config_clear(&a);
}

Test(layer_json, round_trips)
{
    round_trip(example);
    round_trip("{" BASE "}");
    round_trip("{" BASE ",\"num_local_experts\":4,\"expert_map\":[0,1,-1,-1,-1,-1,2,3],\"role\":\"draft\"}");
    round_trip("{" BASE ",\"activation\":\"swigluoai_uninterleave\",\"swiglu_limit\":7.5,\"swiglu_alpha\":1.702,"
               "\"swiglu_beta\":1}");
    round_trip("{" BASE ",\"activation\":\"situ\",\"situ_beta\":0.1,\"situ_linear_beta\":0,\"dtype\":\"f16\"}");
    round_trip("{" BASE ",\"activation\":\"relu2_no_mul\",\"has_bias\":true,\"activation_scheme\":\"none\"}");
    round_trip("{" BASE ",\"w13_order\":\"up_gate\",\"max_tokens\":64,\"num_fused_shared\":1,"
               "\"router\":{\"kind\":\"sigmoid\",\"logits_dtype\":\"f32\",\"shared_weight\":0.5}}");
}

Test(layer_json, non_finite_values_are_not_written)
{
    struct moert_error err = MOERT_ERROR_INIT;
    struct moert_layer_config c = parsed("{" BASE ",\"swiglu_limit\":7}");
    char *text = NULL;

    c.swiglu_limit = 1.0 / 0.0;
    cr_expect_eq(moert_layer_config_format(&c, &text, &err), MOERT_E_VALUE);
    cr_expect_str_eq(err.code, "activation-param");
    cr_expect_null(text);
}
