/* tests/unit/test_checkpoint.c: every row of layer.md 9.2 from a generated checkpoint of two layers: description, the
 * canonical form of an expert against the generator's numbers, and the refusals. */
#include "config.h"

#include <moert/checkpoint.h>
#include <moert/layer_config.h>
#include <moert/lutb.h>

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { E = 4, H = 64, I = 128, N1 = 2 * I };

static char dir[64];

static void make_dir(void)
{
    snprintf(dir, sizeof(dir), "/tmp/moert-cp-XXXXXX");
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

static void put_text(const char *name, const char *text)
{
    char path[200];
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    f = fopen(path, "w");
    cr_assert(f);
    fputs(text, f);
    fclose(f);
}

/* ---- generator: a list of tensors whose element i of tensor number k is bf16 pattern/byte f(k, i) ---- */

struct made {
    char name[160];
    moert_dtype_t dtype;
    uint32_t rank;
    uint64_t shape[4], bytes;
    uint8_t *data;
};
static struct made made[400];
static unsigned made_count;

/* Finite in every dtype used: bf16 values near 1, codes below 0x70. */
static void add(moert_dtype_t dtype, uint32_t rank, const uint64_t *shape, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void add(moert_dtype_t dtype, uint32_t rank, const uint64_t *shape, const char *format, ...)
{
    struct made *m = &made[made_count++];
    uint64_t n = 1;
    va_list ap;

    va_start(ap, format);
    vsnprintf(m->name, sizeof(m->name), format, ap);
    va_end(ap);
    m->dtype = dtype;
    m->rank = rank;
    for (uint32_t i = 0; i < rank; i++)
        n *= m->shape[i] = shape[i];
    m->bytes = n * moert_dtype_size(dtype);
    free(m->data); /* of an earlier case */
    m->data = calloc(1, m->bytes ? m->bytes : 1);
    for (uint64_t i = 0; i < n; i++) {
        uint32_t v = (uint32_t)(i * 2654435761u + made_count * 40503u) >> 9;
        uint16_t bf16 = (uint16_t)(0x3F00 + (v & 0x7F));
        float f = (float)(v & 1023) / 1024;
        if (dtype == MOERT_BF16 || dtype == MOERT_F16)
            memcpy(m->data + 2 * i, &bf16, 2);
        else if (dtype == MOERT_F32)
            memcpy(m->data + 4 * i, &f, 4);
        else
            m->data[i] = (uint8_t)(v % 0x70);
    }
}
#define S(...) ((const uint64_t[]){__VA_ARGS__})

static const struct made *get(const char *format, ...) __attribute__((format(printf, 1, 2)));
static const struct made *get(const char *format, ...)
{
    char name[160];
    va_list ap;

    va_start(ap, format);
    vsnprintf(name, sizeof(name), format, ap);
    va_end(ap);
    for (unsigned i = 0; i < made_count; i++)
        if (!strcmp(made[i].name, name))
            return &made[i];
    cr_assert(0, "the test has no tensor %s", name);
    return NULL;
}

/* Writes tensors [first, last) to `name`. */
static void write_file(const char *name, unsigned first, unsigned last, const char *layer)
{
    struct moert_error err = MOERT_ERROR_INIT;
    char path[200];
    moert_st_writer_t *w;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    cr_assert_eq(moert_st_writer_create(path, &w, &err), MOERT_OK, "%s", err.text);
    if (layer)
        cr_assert_eq(moert_st_writer_metadata(w, "moert.layer", layer, &err), MOERT_OK);
    for (unsigned i = first; i < last; i++)
        cr_assert_eq(moert_st_writer_declare(w, made[i].name, made[i].dtype, made[i].rank, made[i].shape, &err),
                     MOERT_OK);
    for (unsigned i = first; i < last; i++)
        cr_assert_eq(moert_st_writer_append(w, made[i].data, made[i].bytes, &err), MOERT_OK);
    cr_assert_eq(moert_st_writer_commit(w, &err), MOERT_OK, "%s", err.text);
    moert_st_writer_destroy(w);
}

/* Two files and an index over them. */
static void write_shards(void)
{
    unsigned half = made_count / 2;
    char path[200];
    FILE *f;

    write_file("model-00001-of-00002.safetensors", 0, half, NULL);
    write_file("model-00002-of-00002.safetensors", half, made_count, NULL);
    snprintf(path, sizeof(path), "%s/model.safetensors.index.json", dir);
    f = fopen(path, "w");
    cr_assert(f);
    fprintf(f, "{\"metadata\":{\"total_size\":1},\"weight_map\":{");
    for (unsigned i = 0; i < made_count; i++)
        fprintf(f, "%s\"%s\":\"model-0000%d-of-00002.safetensors\"", i ? "," : "", made[i].name, i < half ? 1 : 2);
    fprintf(f, "}}");
    fclose(f);
}

static void config(const char *type, const char *more)
{
    char text[2000];

    snprintf(text, sizeof(text),
             "{\"model_type\":\"%s\",\"torch_dtype\":\"bfloat16\",\"hidden_size\":%d,\"num_experts_per_tok\":2,"
             "\"hidden_act\":\"silu\"%s%s}",
             type, H, *more ? "," : "", more);
    put_text("config.json", text);
}

/* One projection X [rows,cols] in a form: "bf16", "mxfp8", "inv", "e8m0", "lutb", "block". */
static void add_weight(const char *form, uint64_t rows, uint64_t cols, const char *x)
{
    if (!strcmp(form, "bf16")) {
        add(MOERT_BF16, 2, S(rows, cols), "%s", x);
    } else if (!strcmp(form, "lutb") || !strcmp(form, "rowexp")) {
        add(MOERT_U8, 3, S(rows / 8, cols / 64, 192), "%s_packed", x);
        add(MOERT_F8_E4M3, 3, S(rows / 8, cols / 64, 8), "%s_codebook", x);
        if (!strcmp(form, "rowexp"))
            add(MOERT_I8, 1, S(rows), "%s_rowexp", x);
    } else {
        add(MOERT_F8_E4M3, 2, S(rows, cols), "%s", x);
        if (!strcmp(form, "block"))
            add(MOERT_F32, 2, S((rows + 127) / 128, (cols + 127) / 128), "%s_scale_inv", x);
        else
            add(!strcmp(form, "e8m0") ? MOERT_F8_E8M0 : MOERT_U8, 2, S(rows, cols / 32), "%s_scale%s", x,
                strcmp(form, "inv") ? "" : "_inv");
    }
}

static void add_experts(const char *form, const char *path, const char *const names[3])
{
    char x[160];

    for (int l = 0; l < 2; l++)
        for (int e = 0; e < E; e++)
            for (int p = 0; p < 3; p++) {
                snprintf(x, sizeof(x), "model.layers.%d.%s%d.%s.weight", l, path, e, names[p]);
                add_weight(form, p == 2 ? H : I, p == 2 ? I : H, x);
            }
}

static const char *const proj[3] = {"gate_proj", "up_proj", "down_proj"}, *const w132[3] = {"w1", "w3", "w2"};

static moert_checkpoint_t *open_ok(void)
{
    struct moert_error err = MOERT_ERROR_INIT;
    moert_checkpoint_t *c = NULL;

    cr_assert_eq(moert_checkpoint_open(dir, NULL, &c, &err), MOERT_OK, "%s: %s", err.code, err.text);
    return c;
}

static struct moert_layer_config describe_ok(moert_checkpoint_t *c, uint32_t layer)
{
    struct moert_error err = MOERT_ERROR_INIT;
    struct moert_layer_config config;

    cr_assert_eq(moert_checkpoint_layer_config(c, layer, &config, &err), MOERT_OK, "%s: %s", err.code, err.text);
    return config;
}

static void refuse_layer(const struct moert_checkpoint_options *options, moert_status_t status, const char *code,
                         const char *text)
{
    struct moert_error err = MOERT_ERROR_INIT;
    struct moert_layer_config config;
    moert_checkpoint_t *c = NULL;
    moert_status_t got = moert_checkpoint_open(dir, options, &c, &err);

    if (!got)
        got = moert_checkpoint_layer_config(c, 1, &config, &err);
    cr_expect_eq(got, status, "%s: %s", err.code, err.text);
    cr_expect_str_eq(err.code, code, "%s: %s", err.code, err.text);
    cr_expect(strstr(err.text, text), "\"%s\" lacks \"%s\"", err.text, text);
    moert_checkpoint_close(c);
}

/* w13 of expert e in layer l is gate then up; w2 is down; with their second parts. */
static void expect_experts(moert_checkpoint_t *c, const char *path, const char *const names[3], const char *s0,
                           const char *s1)
{
    struct moert_error err = MOERT_ERROR_INIT;

    for (uint32_t l = 0; l < 2; l++)
        for (uint32_t e = 0; e < E; e++) {
            struct moert_layer_weights w;
            const struct made *g = get("model.layers.%u.%s%u.%s.weight%s", l, path, e, names[0], s0),
                              *u = get("model.layers.%u.%s%u.%s.weight%s", l, path, e, names[1], s0),
                              *d = get("model.layers.%u.%s%u.%s.weight%s", l, path, e, names[2], s0);
            void *block;
            cr_assert_eq(moert_checkpoint_expert(c, l, e, &w, &block, &err), MOERT_OK, "%s", err.text);
            cr_expect_eq(w.first, e);
            cr_expect_eq(memcmp(w.w13.data, g->data, g->bytes), 0);
            cr_expect_eq(memcmp((uint8_t *)w.w13.data + g->bytes, u->data, u->bytes), 0);
            cr_expect_eq(memcmp(w.w2.data, d->data, d->bytes), 0);
            if (s1) {
                g = get("model.layers.%u.%s%u.%s.weight%s", l, path, e, names[0], s1);
                u = get("model.layers.%u.%s%u.%s.weight%s", l, path, e, names[1], s1);
                d = get("model.layers.%u.%s%u.%s.weight%s", l, path, e, names[2], s1);
                cr_expect_eq(memcmp(w.w13_scale.data, g->data, g->bytes), 0);
                cr_expect_eq(memcmp((uint8_t *)w.w13_scale.data + g->bytes, u->data, u->bytes), 0);
                cr_expect_eq(memcmp(w.w2_scale.data, d->data, d->bytes), 0);
            } else {
                cr_expect_eq(w.w13_scale.rank, 0);
            }
            moert_free(block);
        }
}

TestSuite(checkpoint, .init = make_dir, .fini = remove_dir);

#define QWEN "\"num_experts\":4,\"moe_intermediate_size\":128,\"norm_topk_prob\":true"

Test(checkpoint, qwen3_moe_in_shards)
{
    moert_checkpoint_t *c;
    struct moert_layer_config l;

    config("qwen3_moe", QWEN);
    add_experts("bf16", "mlp.experts.", proj);
    write_shards();
    c = open_ok();
    cr_expect_str_eq(moert_checkpoint_family(c), "qwen3_moe");
    cr_expect_eq(moert_checkpoint_layer_count(c), 2);
    cr_expect_eq(moert_checkpoint_file_count(c), 2);
    cr_expect_eq(moert_checkpoint_layer_number(c, 1), 1);
    l = describe_ok(c, 1);
    cr_expect_str_eq(l.name, "model.layers.1.mlp.experts");
    cr_expect_eq(l.index, 1);
    cr_expect_eq(l.hidden_size, H);
    cr_expect_eq(l.intermediate_size, I);
    cr_expect_eq(l.num_experts, E);
    cr_expect_eq(l.top_k, 2);
    cr_expect_eq(l.weight_scheme, MOERT_SCHEME_BF16);
    cr_expect_eq(l.router.kind, MOERT_ROUTER_SOFTMAX);
    cr_expect_eq(l.router.renormalize, 1);
    expect_experts(c, "mlp.experts.", proj, "", NULL);
    cr_expect(moert_checkpoint_is_expert_weight(c, "model.layers.0.mlp.experts.3.up_proj.weight"));
    cr_expect_not(moert_checkpoint_is_expert_weight(c, "model.layers.0.mlp.gate.weight"));
    cr_expect_not(moert_checkpoint_is_expert_weight(c, "model.layers.0.mlp.experts.3.up_proj.bias"));
    cr_expect_not(moert_checkpoint_is_expert_weight(c, "model.layers.x.mlp.experts.3.up_proj.weight"));
    moert_checkpoint_close(c);
}

Test(checkpoint, qwen2_moe_shared_expert)
{
    moert_checkpoint_t *c;
    struct moert_layer_config l;

    config("qwen2_moe", "\"num_experts\":4,\"moe_intermediate_size\":128");
    add_experts("bf16", "mlp.experts.", proj);
    for (int i = 0; i < 2; i++) {
        add(MOERT_BF16, 2, S(192, H), "model.layers.%d.mlp.shared_expert.gate_proj.weight", i);
        add(MOERT_BF16, 2, S(192, H), "model.layers.%d.mlp.shared_expert.up_proj.weight", i);
        add(MOERT_BF16, 2, S(H, 192), "model.layers.%d.mlp.shared_expert.down_proj.weight", i);
        add(MOERT_BF16, 2, S(1, H), "model.layers.%d.mlp.shared_expert_gate.weight", i);
    }
    write_file("model.safetensors", 0, made_count, NULL);
    c = open_ok();
    l = describe_ok(c, 0);
    cr_expect_eq(l.router.renormalize, 0, "the family's default");
    cr_expect_eq(l.shared.intermediate_size, 192);
    cr_expect_eq(l.shared.gated, 1);
    cr_expect_eq(l.shared.weight_scheme, MOERT_SCHEME_BF16);
    moert_checkpoint_close(c);
}

Test(checkpoint, mixtral_both_namings)
{
    for (int k = 0; k < 2; k++) {
        const char *const *names = k ? proj : w132;
        moert_checkpoint_t *c;
        made_count = 0;
        config("mixtral", "\"num_local_experts\":4,\"intermediate_size\":128");
        add_experts("bf16", "block_sparse_moe.experts.", names);
        write_file("model.safetensors", 0, made_count, NULL);
        c = open_ok();
        cr_expect_eq(describe_ok(c, 1).router.renormalize, 1);
        expect_experts(c, "block_sparse_moe.experts.", names, "", NULL);
        moert_checkpoint_close(c);
    }
}

Test(checkpoint, deepseek_and_glm_grouped)
{
    static const char *const types[] = {"deepseek_v2", "deepseek_v3", "glm4_moe"};

    for (size_t k = 0; k < 3; k++) {
        moert_checkpoint_t *c;
        struct moert_layer_config l;
        made_count = 0;
        config(types[k], "\"n_routed_experts\":4,\"moe_intermediate_size\":128,\"n_group\":2,\"topk_group\":1,"
                         "\"routed_scaling_factor\":2.5,\"norm_topk_prob\":true,\"scoring_func\":\"sigmoid\","
                         "\"first_k_dense_replace\":1");
        add_experts("bf16", "mlp.experts.", proj);
        made_count -= 3 * E; /* layer 0 stays, layer 1 of the experts becomes layer 7 */
        for (int e = 0; e < E; e++)
            for (int p = 0; p < 3; p++)
                add(MOERT_BF16, 2, p == 2 ? S(H, I) : S(I, H), "model.layers.7.mlp.experts.%d.%s.weight", e, proj[p]);
        add(MOERT_BF16, 2, S(I, H), "model.layers.7.mlp.shared_experts.gate_proj.weight");
        write_file("model.safetensors", 0, made_count, NULL);
        c = open_ok();
        cr_expect_eq(moert_checkpoint_layer_count(c), 2);
        cr_expect_eq(moert_checkpoint_layer_number(c, 1), 7);
        l = describe_ok(c, 7);
        cr_expect_eq(l.router.kind, MOERT_ROUTER_GROUPED);
        cr_expect_eq(l.router.scoring, MOERT_SCORING_SIGMOID);
        cr_expect_eq(l.router.num_groups, 2);
        cr_expect_eq(l.router.topk_groups, 1);
        cr_expect_eq(l.router.scale_at, MOERT_SCALE_AT_OUTPUT);
        cr_expect_float_eq(l.router.scaling_factor, 2.5, 0);
        cr_expect_eq(l.router.logits_dtype, MOERT_F32);
        cr_expect_eq(l.shared.intermediate_size, I);
        cr_expect_eq(l.shared.gated, 0);
        moert_checkpoint_close(c);
    }
}

Test(checkpoint, minimax_m2)
{
    moert_checkpoint_t *c;
    struct moert_layer_config l;

    config("minimax_m2", "\"num_local_experts\":4,\"intermediate_size\":128");
    add_experts("bf16", "block_sparse_moe.experts.", w132);
    write_file("model.safetensors", 0, made_count, NULL);
    c = open_ok();
    l = describe_ok(c, 1);
    cr_expect_eq(l.router.kind, MOERT_ROUTER_SIGMOID);
    cr_expect_eq(l.router.renormalize, 1);
    expect_experts(c, "block_sparse_moe.experts.", w132, "", NULL);
    moert_checkpoint_close(c);
}

/* fused[e][k][n] against canonical[n][k] */
static void expect_turned(const struct made *fused, uint32_t e, uint64_t rows, uint64_t cols, const void *canonical)
{
    const uint16_t *f = (const uint16_t *)(const void *)fused->data, *c = canonical;
    uint64_t wrong = 0;

    for (uint64_t n = 0; n < rows; n++)
        for (uint64_t k = 0; k < cols; k++)
            wrong += c[n * cols + k] != f[(e * cols + k) * rows + n];
    cr_expect_eq(wrong, 0, "%s", fused->name);
}

static void expect_fused(moert_checkpoint_t *c, const char *path, int transposed)
{
    struct moert_error err = MOERT_ERROR_INIT;

    for (uint32_t l = 0; l < 2; l++)
        for (uint32_t e = 0; e < E; e++) {
            const struct made *w13 = get("model.layers.%u.%sgate_up_proj", l, path),
                              *w2 = get("model.layers.%u.%sdown_proj", l, path);
            struct moert_layer_weights w;
            void *block;
            cr_assert_eq(moert_checkpoint_expert(c, l, e, &w, &block, &err), MOERT_OK, "%s", err.text);
            if (transposed) {
                expect_turned(w13, e, N1, H, w.w13.data);
                expect_turned(w2, e, H, I, w.w2.data);
            } else {
                cr_expect_eq(memcmp(w.w13.data, w13->data + e * w13->bytes / E, w13->bytes / E), 0);
                cr_expect_eq(memcmp(w.w2.data, w2->data + e * w2->bytes / E, w2->bytes / E), 0);
            }
            if (w.w13_bias.rank) {
                const struct made *b = get("model.layers.%u.%sgate_up_proj_bias", l, path);
                cr_expect_eq(memcmp(w.w13_bias.data, b->data + e * b->bytes / E, b->bytes / E), 0);
            }
            moert_free(block);
        }
}

static void add_fused(const char *path, int transposed)
{
    for (int l = 0; l < 2; l++) {
        add(MOERT_BF16, 3, transposed ? S(E, H, N1) : S(E, N1, H), "model.layers.%d.%sgate_up_proj", l, path);
        add(MOERT_BF16, 3, transposed ? S(E, I, H) : S(E, H, I), "model.layers.%d.%sdown_proj", l, path);
    }
}

Test(checkpoint, gpt_oss_transposed_interleaved_bias)
{
    moert_checkpoint_t *c;
    struct moert_layer_config l;

    config("gpt_oss", "\"num_local_experts\":4,\"intermediate_size\":128,\"swiglu_limit\":7.0");
    add_fused("mlp.experts.", 1);
    for (int i = 0; i < 2; i++) {
        add(MOERT_BF16, 2, S(E, N1), "model.layers.%d.mlp.experts.gate_up_proj_bias", i);
        add(MOERT_BF16, 2, S(E, H), "model.layers.%d.mlp.experts.down_proj_bias", i);
    }
    write_file("model.safetensors", 0, made_count, NULL);
    c = open_ok();
    l = describe_ok(c, 1);
    cr_expect_eq(l.activation, MOERT_ACT_SWIGLUOAI);
    cr_expect_eq(l.w13_order, MOERT_W13_INTERLEAVED);
    cr_expect_eq(l.has_bias, 1);
    cr_expect_eq(l.router.kind, MOERT_ROUTER_TOPK_SOFTMAX);
    expect_fused(c, "mlp.experts.", 1);
    moert_checkpoint_close(c);
}

Test(checkpoint, gpt_oss_mxfp4_is_refused)
{
    config("gpt_oss", "\"num_local_experts\":4,\"intermediate_size\":128,"
                      "\"quantization_config\":{\"quant_method\":\"mxfp4\"}");
    for (int i = 0; i < 2; i++) {
        add(MOERT_U8, 4, S(E, N1, H / 32, 16), "model.layers.%d.mlp.experts.gate_up_proj_blocks", i);
        add(MOERT_U8, 3, S(E, N1, H / 32), "model.layers.%d.mlp.experts.gate_up_proj_scales", i);
    }
    write_file("model.safetensors", 0, made_count, NULL);
    refuse_layer(NULL, MOERT_E_VALUE, "scheme", "mxfp4");
}

Test(checkpoint, llama4_weight_on_input)
{
    moert_checkpoint_t *c;
    struct moert_layer_config l;

    put_text("config.json", "{\"model_type\":\"llama4\",\"text_config\":{\"hidden_size\":64,\"num_experts_per_tok\":1,"
                            "\"num_local_experts\":4,\"intermediate_size\":128,\"hidden_act\":\"silu\"}}");
    add_fused("feed_forward.experts.", 1);
    write_file("model.safetensors", 0, made_count, NULL);
    c = open_ok();
    l = describe_ok(c, 0);
    cr_expect_eq(l.apply_router_weight_on_input, 1);
    cr_expect_eq(l.router.kind, MOERT_ROUTER_TOPK_SIGMOID);
    cr_expect_eq(l.w13_order, MOERT_W13_GATE_UP);
    expect_fused(c, "feed_forward.experts.", 1);
    moert_checkpoint_close(c);
}

Test(checkpoint, other_fused_needs_the_order)
{
    struct moert_checkpoint_options options = {sizeof(options), -1, NULL};
    struct moert_error err = MOERT_ERROR_INIT;

    for (int transposed = 0; transposed < 2; transposed++) {
        moert_checkpoint_t *c;
        made_count = 0;
        config("qwen3_vl_moe", QWEN);
        add_fused("mlp.experts.", transposed);
        write_file("model.safetensors", 0, made_count, NULL);
        options.fused_transposed = -1;
        refuse_layer(&options, MOERT_E_VALUE, "tensor-ambiguous", "fused_transposed");
        options.fused_transposed = transposed;
        cr_assert_eq(moert_checkpoint_open(dir, &options, &c, &err), MOERT_OK, "%s", err.text);
        expect_fused(c, "mlp.experts.", transposed);
        moert_checkpoint_close(c);
    }
}

/* ---- quantised forms ---- */

#define CT(weights, format)                                                                                            \
    "\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"" format                            \
    "\",\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],\"weights\":{" weights "}}}}"
#define CT_MXFP8                                                                                                       \
    CT("\"num_bits\":8,\"type\":\"float\",\"strategy\":\"group\",\"group_size\":32,\"symmetric\":true,"                \
       "\"scale_dtype\":\"uint8\"",                                                                                    \
       "mxfp8-quantized")
#define CT_LUTB(block)                                                                                                 \
    CT("\"num_bits\":3,\"type\":\"codebook\",\"strategy\":\"block\",\"block_structure\":" block ",\"symmetric\":true", \
       "lut-b")

static const struct form {
    const char *what, *form, *more, *modelopt;
    moert_scheme_t scheme;
    const char *s0, *s1;
} forms[] = {
    {"ModelOpt file", "mxfp8", QWEN,
     "{\"quantization\":{\"quant_algo\":\"MXFP8\",\"kv_cache_quant_algo\":null,\"exclude_modules\":[]}}",
     MOERT_SCHEME_MXFP8, "", "_scale"},
    {"ModelOpt in config.json", "mxfp8", QWEN ",\"quantization_config\":{\"quant_algo\":\"MXFP8\"}", NULL,
     MOERT_SCHEME_MXFP8, "", "_scale"},
    {"MiniMax style", "inv", QWEN ",\"quantization_config\":{\"quant_method\":\"mxfp8\",\"ignored_layers\":[]}", NULL,
     MOERT_SCHEME_MXFP8, "", "_scale_inv"},
    {"compressed-tensors", "mxfp8", QWEN "," CT_MXFP8, NULL, MOERT_SCHEME_MXFP8, "", "_scale"},
    {"scales named F8_E8M0", "e8m0", QWEN "," CT_MXFP8, NULL, MOERT_SCHEME_MXFP8, "", "_scale"},
    {"LUT-B", "lutb", QWEN "," CT_LUTB("[8,64]"), NULL, MOERT_SCHEME_LUT_B, "_packed", "_codebook"},
};

Test(checkpoint, quantised_forms)
{
    for (size_t k = 0; k < sizeof(forms) / sizeof(*forms); k++) {
        moert_checkpoint_t *c;
        made_count = 0;
        remove_dir();
        make_dir();
        config("qwen3_moe", forms[k].more);
        if (forms[k].modelopt)
            put_text("hf_quant_config.json", forms[k].modelopt);
        add_experts(forms[k].form, "mlp.experts.", proj);
        write_shards();
        c = open_ok();
        cr_expect_eq(describe_ok(c, 1).weight_scheme, forms[k].scheme, "%s", forms[k].what);
        cr_expect_eq(describe_ok(c, 1).activation_scheme, MOERT_SCHEME_MXFP8);
        expect_experts(c, "mlp.experts.", proj, forms[k].s0, forms[k].s1);
        moert_checkpoint_close(c);
    }
}

static const struct refusal {
    const char *form, *more, *modelopt;
    moert_status_t status;
    const char *code, *text;
} refusals[] = {
    {"block", QWEN ",\"quantization_config\":{\"quant_method\":\"fp8\"}", NULL, MOERT_E_VALUE, "scheme", "fp8-block"},
    {"block", QWEN ",\"quantization_config\":{\"quant_method\":\"mxfp8\"}", NULL, MOERT_E_VALUE, "scheme",
     "scales are F32"},
    {"lutb", QWEN "," CT_LUTB("[16,64]"), NULL, MOERT_E_VALUE, "scheme", "block_structure [8,64]"},
    {"lutb", QWEN "," CT("\"num_bits\":4,\"type\":\"codebook\"", "lut-b"), NULL, MOERT_E_VALUE, "scheme", "num_bits 3"},
    {"lutb", QWEN "," CT("\"num_bits\":3", "moert-lut-b-rowexp"), NULL, MOERT_E_VALUE, "scheme", "moert-lut-b-rowexp"},
    {"rowexp", QWEN "," CT_LUTB("[8,64]"), NULL, MOERT_E_VALUE, "scheme", "moert-lut-b-rowexp"},
    {"lutb", QWEN, NULL, MOERT_E_VALUE, "scheme", "does not say format \"lut-b\""},
    {"mxfp8", QWEN, NULL, MOERT_E_VALUE, "scheme", "does not say mxfp8"},
    {"mxfp8", QWEN, "{\"quantization\":{\"quant_algo\":\"MXFP8\",\"exclude_modules\":[]}}", MOERT_E_MISSING, "required",
     "quantization.kv_cache_quant_algo"},
    {"mxfp8", QWEN, "{\"quantization\":{\"quant_algo\":\"MXFP8\",\"kv_cache_quant_algo\":null}}", MOERT_E_MISSING,
     "required", "quantization.exclude_modules"},
    {"bf16", "\"num_experts\":4", NULL, MOERT_E_MISSING, "required", "\"moe_intermediate_size\" is required"},
    {"bf16", "\"num_experts\":0,\"moe_intermediate_size\":128", NULL, MOERT_E_VALUE, "field", "\"num_experts\" is 0"},
    {"bf16", QWEN ",\"scoring_func\":1,\"hidden_act\":\"silu2\"", NULL, MOERT_E_VALUE, "field", "hidden_act"},
    {"bf16", "\"num_experts\":5,\"moe_intermediate_size\":128", NULL, MOERT_E_MISSING, "tensor-missing",
     "no tensor \"model.layers.1.mlp.experts.4.gate_proj.weight\"; nearest: \"model.layers.1.mlp.experts."},
    {"bf16", "\"num_experts\":3,\"moe_intermediate_size\":128", NULL, MOERT_E_VALUE, "tensor-extra",
     "expert 3 in the file, num_experts is 3"},
};

Test(checkpoint, refusals_name_the_fault)
{
    for (size_t k = 0; k < sizeof(refusals) / sizeof(*refusals); k++) {
        made_count = 0;
        remove_dir();
        make_dir();
        config("qwen3_moe", refusals[k].more);
        if (refusals[k].modelopt)
            put_text("hf_quant_config.json", refusals[k].modelopt);
        add_experts(refusals[k].form, "mlp.experts.", proj);
        write_file("model.safetensors", 0, made_count, NULL);
        refuse_layer(NULL, refusals[k].status, refusals[k].code, refusals[k].text);
    }
}

Test(checkpoint, files_and_index)
{
    char path[200];

    config("qwen3_moe", QWEN);
    refuse_layer(NULL, MOERT_E_MISSING, "index-missing", "neither model.safetensors nor model.safetensors.index.json");
    add_experts("bf16", "mlp.experts.", proj);
    write_shards();
    snprintf(path, sizeof(path), "%s/model-00002-of-00002.safetensors", dir);
    unlink(path);
    refuse_layer(NULL, MOERT_E_MISSING, "file-missing",
                 "model-00002-of-00002.safetensors is named by the index and absent");
    put_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"../a.safetensors\"}}");
    refuse_layer(NULL, MOERT_E_FILE, "st-json", "a plain file name is expected");
    put_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":7}}");
    refuse_layer(NULL, MOERT_E_FILE, "st-json", "a plain file name is expected");
    put_text("model.safetensors.index.json", "{}");
    refuse_layer(NULL, MOERT_E_FILE, "st-json", "weight_map");
    put_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\"}}");
    refuse_layer(NULL, MOERT_E_MISSING, "tensor-missing", "tensor \"a\" is not in model-00001");
    put_text("config.json", "{\"hidden_size\":64}");
    refuse_layer(NULL, MOERT_E_MISSING, "required", "\"model_type\" is required");
    put_text("config.json", "[");
    refuse_layer(NULL, MOERT_E_FILE, "st-json", "config.json");
}

Test(checkpoint, both_namings_are_ambiguous)
{
    config("qwen3_moe", QWEN);
    add_experts("bf16", "mlp.experts.", proj);
    add_fused("mlp.experts.", 0);
    write_file("model.safetensors", 0, made_count, NULL);
    refuse_layer(NULL, MOERT_E_VALUE, "tensor-ambiguous", "both fused and per-expert names present for layer 1");
}

Test(checkpoint, wrong_shape_and_unknown_layer)
{
    struct moert_error err = MOERT_ERROR_INIT;
    struct moert_layer_config l;
    struct moert_layer_weights w;
    moert_checkpoint_t *c;
    void *block = NULL;

    config("qwen3_moe", "\"num_experts\":4,\"moe_intermediate_size\":1099511627776");
    add_experts("bf16", "mlp.experts.", proj);
    write_file("model.safetensors", 0, made_count, NULL);
    c = open_ok();
    cr_expect_eq(moert_checkpoint_layer_config(c, 5, &l, &err), MOERT_E_MISSING);
    cr_expect(strstr(err.text, "layer 5 has no routed experts; layers with experts: 2 layers from 0 to 1"), "%s",
              err.text);
    cr_expect_eq(moert_checkpoint_expert(c, 0, 0, &w, &block, &err), MOERT_E_SHAPE, "%s", err.text);
    cr_expect_str_eq(err.code, "tensor-shape");
    cr_expect(strstr(err.text, "[128,64], expected [1099511627776,64]"), "%s", err.text);
    cr_expect_eq(moert_checkpoint_expert(c, 0, 9, &w, &block, &err), MOERT_E_VALUE);
    cr_expect_null(block);
    moert_checkpoint_close(c);
}

Test(checkpoint, nan_level_is_refused)
{
    struct moert_error err = MOERT_ERROR_INIT;
    struct moert_layer_weights w;
    moert_checkpoint_t *c;
    void *block = NULL;

    config("qwen3_moe", QWEN "," CT_LUTB("[8,64]"));
    add_experts("lutb", "mlp.experts.", proj);
    ((struct made *)(uintptr_t)get("model.layers.0.mlp.experts.2.up_proj.weight_codebook"))->data[11] = 0x7F;
    write_file("model.safetensors", 0, made_count, NULL);
    c = open_ok();
    cr_expect_eq(moert_checkpoint_expert(c, 0, 1, &w, &block, &err), MOERT_OK);
    moert_free(block);
    cr_expect_eq(moert_checkpoint_expert(c, 0, 2, &w, &block, &err), MOERT_E_VALUE);
    cr_expect(strstr(err.text, "expert 2 w13 codebook"), "%s", err.text);
    moert_checkpoint_close(c);
}

/* ---- canonical layer files ---- */

#define LAYER(scheme)                                                                                                  \
    "{\"name\":\"m.experts\",\"index\":3,\"hidden_size\":64,\"intermediate_size\":128,\"num_experts\":4,\"top_k\":2,"  \
    "\"weight_scheme\":\"" scheme "\"}"

static moert_status_t open_layer(const char *config_path, moert_checkpoint_t **ret, struct moert_error *err)
{
    struct moert_checkpoint_options options = {sizeof(options), -1, config_path};
    char path[200];

    snprintf(path, sizeof(path), "%s/l.safetensors", dir);
    return moert_checkpoint_open_layer(path, &options, ret, err);
}

Test(checkpoint, layer_files)
{
    struct moert_error err = MOERT_ERROR_INIT;
    struct moert_layer_weights w;
    moert_checkpoint_t *c;
    char path[200];
    void *block;

    add(MOERT_F8_E4M3, 3, S(E, N1, H), "w13_weight");
    add(MOERT_U8, 3, S(E, N1, H / 32), "w13_weight_scale");
    add(MOERT_F8_E4M3, 3, S(E, H, I), "w2_weight");
    add(MOERT_U8, 3, S(E, H, I / 32), "w2_weight_scale");
    write_file("l.safetensors", 0, made_count, NULL);
    cr_expect_eq(open_layer(NULL, &c, &err), MOERT_E_MISSING);
    cr_expect_str_eq(err.code, "required");
    write_file("l.safetensors", 0, made_count, LAYER("mxfp8"));
    cr_assert_eq(open_layer(NULL, &c, &err), MOERT_OK, "%s", err.text);
    cr_expect_str_eq(moert_checkpoint_family(c), "layer");
    cr_expect_eq(moert_checkpoint_layer_number(c, 0), 3);
    cr_assert_eq(moert_checkpoint_expert(c, 3, 2, &w, &block, &err), MOERT_OK, "%s", err.text);
    cr_expect_eq(memcmp(w.w13.data, get("w13_weight")->data + 2 * N1 * H, N1 * H), 0);
    cr_expect_eq(memcmp(w.w2_scale.data, get("w2_weight_scale")->data + 2 * H * I / 32, H * I / 32), 0);
    moert_free(block);
    moert_checkpoint_close(c);

    put_text("other.json", LAYER("lut-b")); /* --config wins over the metadata, and does not fit these tensors */
    snprintf(path, sizeof(path), "%s/other.json", dir);
    cr_assert_eq(open_layer(path, &c, &err), MOERT_OK, "%s", err.text);
    cr_expect_eq(moert_checkpoint_expert(c, 3, 0, &w, &block, &err), MOERT_E_VALUE, "%s", err.text);
    cr_expect_str_eq(err.code, "scheme");
    moert_checkpoint_close(c);
}

Test(checkpoint, layer_file_with_per_expert_names)
{
    struct moert_error err = MOERT_ERROR_INIT;
    struct moert_layer_weights w;
    moert_checkpoint_t *c;
    void *block;

    for (int e = 0; e < E; e++)
        for (int p = 0; p < 3; p++)
            add(MOERT_BF16, 2, p == 2 ? S(H, I) : S(I, H), "m.experts.%d.%s.weight", e, proj[p]);
    write_file("l.safetensors", 0, made_count, LAYER("bf16"));
    cr_assert_eq(open_layer(NULL, &c, &err), MOERT_OK, "%s", err.text);
    cr_assert_eq(moert_checkpoint_expert(c, 3, 1, &w, &block, &err), MOERT_OK, "%s", err.text);
    cr_expect_eq(memcmp((uint8_t *)w.w13.data + I * H * 2, get("m.experts.1.up_proj.weight")->data, I * H * 2), 0);
    moert_free(block);
    moert_checkpoint_close(c);
    made_count = 0;
    add(MOERT_BF16, 2, S(1, 1), "w3_weight");
    write_file("l.safetensors", 0, made_count, LAYER("bf16"));
    cr_assert_eq(open_layer(NULL, &c, &err), MOERT_OK, "%s", err.text);
    cr_expect_eq(moert_checkpoint_expert(c, 3, 0, &w, &block, &err), MOERT_E_MISSING);
    cr_expect(strstr(err.text, "no tensor \"w13_weight\" nor per-expert names under \"m.experts\""), "%s", err.text);
    moert_checkpoint_close(c);
}
