/* SPDX-License-Identifier: Apache-2.0
 * tests/unit/test_cpu_vectors.c: cpu.reference against every case of tests/data/vectors/layer_*.safetensors: results of
 * independent implementations (README there, section 8): each element inside [lo, hi], the intermediate tensors equal
 * byte for byte, and with f32 throughout the distance to the exact result. */
#include "config.h"

#include "tests/unit/cpu_rig.h"

#include <math.h>
#include <moert/safetensors.h>

struct file {
    struct rig rig;
    moert_safetensors_t *st;
    struct moert_layer_config config; /* H, I, E, activation */
    int cases, elements;
};

static const struct moert_st_tensor *find(const struct file *f, const char *format, ...)
{
    char name[160];
    va_list args;

    va_start(args, format);
    vsnprintf(name, sizeof(name), format, args);
    va_end(args);
    return moert_safetensors_find(f->st, name);
}

static int32_t parameter(const struct file *f, const char *c, const char *name)
{
    const struct moert_st_tensor *t = find(f, "%s.p.%s", c, name);
    int32_t v;

    cr_assert_not_null(t, "%s.p.%s", c, name);
    memcpy(&v, t->data, sizeof(v));
    return v;
}

/* Expert `global` of a [E, ...] tensor as a [1, ...] tensor. */
static struct moert_drv_tensor slice(struct file *f, const struct moert_st_tensor *t, uint32_t global)
{
    struct moert_drv_tensor r = {.dtype = t->dtype, .rank = t->rank};
    uint64_t n = 1;

    for (uint32_t i = t->rank; i-- > 0; n *= r.shape[i]) {
        r.shape[i] = i ? t->shape[i] : 1;
        r.strides[i] = (int64_t)n;
    }
    r.buffer = rig_buffer(&f->rig, t->data, t->bytes);
    r.offset = global * n * moert_dtype_size(t->dtype);
    return r;
}

static void prepare(struct file *f, moert_drv_layer *layer, const char *kind, uint32_t local, uint32_t global)
{
    struct moert_expert_weights w = {.size = sizeof(w), .first = local, .count = 1};
    const char *main = !strcmp(kind, "lutb") ? "_packed" : !strcmp(kind, "mxfp8") ? "_q" : "";
    const char *scale = !strcmp(kind, "lutb") ? "_codebook" : "_s";

    w.w13 = slice(f, find(f, "w.%s.w13%s", kind, main), global);
    w.w2 = slice(f, find(f, "w.%s.w2%s", kind, main), global);
    if (strcmp(kind, "bf16")) {
        w.w13_scale = slice(f, find(f, "w.%s.w13%s", kind, scale), global);
        w.w2_scale = slice(f, find(f, "w.%s.w2%s", kind, scale), global);
    }
    RIG_OK(&f->rig, f->rig.backend->ops->prepare(layer, &w, &f->rig.err));
}

/* One (case, weight kind, activation quantisation, d). */
struct variant {
    const char *name, *kind;
    char quantised;
    moert_dtype_t d;
    int tokens, k, map, input_weight;
    const void *x, *weights;
};

static moert_drv_layer *make_layer(struct file *f, const struct variant *v, struct moert_layer_config *config)
{
    const struct moert_st_tensor *map = find(f, "%s.expert_map", v->name);
    uint32_t experts = f->config.num_experts, local = experts;
    moert_drv_layer *layer;

    *config = f->config;
    config->dtype = v->d;
    config->top_k = (uint32_t)v->k;
    config->apply_router_weight_on_input = (uint32_t)v->input_weight;
    config->weight_scheme = !strcmp(v->kind, "lutb")    ? MOERT_SCHEME_LUT_B
                            : !strcmp(v->kind, "mxfp8") ? MOERT_SCHEME_MXFP8
                                                        : MOERT_SCHEME_BF16;
    config->activation_scheme = v->quantised == 'q' ? MOERT_SCHEME_MXFP8 : MOERT_SCHEME_NONE;
    for (uint32_t g = 0; map && g < experts; g++)
        local -= ((const int32_t *)map->data)[g] < 0;
    config->num_local_experts = local;
    layer = rig_layer(&f->rig, config);
    for (uint32_t g = 0; g < experts; g++) {
        int32_t l = map ? ((const int32_t *)map->data)[g] : (int32_t)g;
        if (l >= 0)
            prepare(f, layer, v->kind, (uint32_t)l, g);
    }
    return layer;
}

/* Memory that dumps go to. */
struct intermediate {
    const char *field;
    void *data;
    moert_dtype_t dtype;
    int rows, cols;
};

static void compare_intermediates(struct file *f, const struct variant *v, const struct intermediate *all, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct moert_st_tensor *t = find(f, "%s.%s.%c.dbg.%s", v->name, v->kind, v->quantised, all[i].field);
        if (!t)
            continue;
        for (uint64_t b = 0; b < t->bytes; b++)
            cr_assert_eq(((const uint8_t *)t->data)[b], ((const uint8_t *)all[i].data)[b],
                         "%s %s.%c %s: byte %d is %02x, expected %02x", v->name, v->kind, v->quantised, all[i].field,
                         (int)b, ((const uint8_t *)all[i].data)[b], ((const uint8_t *)t->data)[b]);
        f->elements += (int)t->bytes;
    }
}

static void run_variant(struct file *f, const struct variant *v, void *out, int dumps)
{
    struct rig *rig = &f->rig;
    struct moert_layer_config config;
    struct moert_run_args args = {.tokens = (uint64_t)v->tokens, .output_scale = 1};
    struct moert_run_dumps d = {.size = sizeof(d)};
    moert_drv_layer *layer = make_layer(f, v, &config);
    const struct moert_st_tensor *map = find(f, "%s.expert_map", v->name);
    int h = (int)config.hidden_size, i = (int)config.intermediate_size, r = v->tokens * v->k;
    int n1 = moert_activation_is_gated(config.activation) ? 2 * i : i;
    struct intermediate all[] = {{"a1_q", NULL, MOERT_U8, v->tokens, h},
                                 {"a1_s", NULL, MOERT_U8, v->tokens, h / 32},
                                 {"gemm1", NULL, v->d, r, n1},
                                 {"act", NULL, v->d, r, i},
                                 {"a2_q", NULL, MOERT_U8, r, i},
                                 {"a2_s", NULL, MOERT_U8, r, i / 32},
                                 {"gemm2", NULL, v->d, r, h}};
    struct moert_drv_tensor *to[] = {&d.a1_codes, &d.a1_scales, &d.c1, &d.c2, &d.a2_codes, &d.a2_scales, &d.c3};

    args.x = rig_tensor(rig, v->x, v->d, 2, v->tokens, h);
    args.ids = rig_tensor(rig, find(f, "%s.topk_ids", v->name)->data, MOERT_I32, 2, v->tokens, v->k);
    args.weights = rig_tensor(rig, v->weights, MOERT_F32, 2, v->tokens, v->k);
    if (map)
        args.expert_map = rig_tensor(rig, map->data, MOERT_I32, 1, (int)config.num_experts);
    args.output = rig_tensor(rig, out, v->d, 2, v->tokens, h);
    for (size_t j = 0; dumps && j < 7; j++) {
        size_t bytes = (size_t)all[j].rows * (size_t)all[j].cols * moert_dtype_size(all[j].dtype);
        all[j].data = rig_memory(rig, bytes, 0);
        *to[j] = rig_tensor(rig, all[j].data, all[j].dtype, 2, all[j].rows, all[j].cols);
    }
    args.dumps = dumps ? &d : NULL;
    RIG_OK(rig, rig_run(rig, layer, &config, &args));
    if (dumps)
        compare_intermediates(f, v, all, 7);
    rig->backend->ops->release(layer);
}

/* d = bf16: every element inside the enclosure. */
static void check_bf16(struct file *f, struct variant *v)
{
    const struct moert_st_tensor *lo = find(f, "%s.%s.%c.lo", v->name, v->kind, v->quantised);
    const struct moert_st_tensor *hi = find(f, "%s.%s.%c.hi", v->name, v->kind, v->quantised);
    uint64_t n = lo->bytes / 2;
    void *out = rig_memory(&f->rig, lo->bytes, 0xff);

    v->d = MOERT_BF16;
    v->x = find(f, "%s.x", v->name)->data;
    v->weights = find(f, "%s.topk_w", v->name)->data;
    run_variant(f, v, out, find(f, "%s.%s.%c.dbg.gemm1", v->name, v->kind, v->quantised) != NULL);
    for (uint64_t e = 0; e < n; e++) {
        float y = rig_value(out, MOERT_BF16, e), l = rig_value(lo->data, MOERT_BF16, e);
        float u = rig_value(hi->data, MOERT_BF16, e);
        cr_assert(y >= l && y <= u, "%s %s.%c: element %d is %.9g, outside [%.9g, %.9g]", v->name, v->kind,
                  v->quantised, (int)e, (double)y, (double)l, (double)u);
    }
    f->elements += (int)n;
}

/* d = f32: relative L2 distance to the exact result. With the weight on the input the vectors take P0 in bf16; the same
 * x is given here, with weights of 1. */
static void check_f32(struct file *f, struct variant *v)
{
    const struct moert_st_tensor *exact = find(f, "%s.%s.%c.exact", v->name, v->kind, v->quantised);
    const struct moert_st_tensor *x = find(f, "%s.x", v->name), *w = find(f, "%s.topk_w", v->name);
    uint64_t n = exact->bytes / 4, h = f->config.hidden_size;
    float *out = rig_memory(&f->rig, exact->bytes, 0xff), *wide = rig_memory(&f->rig, n * 4, 0);
    float *ones = rig_memory(&f->rig, w->bytes, 0);
    struct variant u = *v;
    double error = 0, norm = 0;

    memcpy(ones, w->data, w->bytes);
    for (uint64_t e = 0; e < n; e++) {
        wide[e] = rig_value(x->data, MOERT_BF16, e);
        if (v->input_weight) {
            float rounded = moert_bf16_to_float(moert_bf16_from_float(rig_value(w->data, MOERT_F32, e / h)));
            wide[e] = moert_bf16_to_float(moert_bf16_from_double((double)wide[e] * (double)rounded));
            ones[e / h] = 1;
        }
    }
    u.d = MOERT_F32;
    u.x = wide;
    u.weights = ones;
    u.input_weight = 0;
    run_variant(f, &u, out, 0);
    for (uint64_t e = 0; e < n; e++) {
        double y = (double)rig_value(exact->data, MOERT_F32, e);
        error += ((double)out[e] - y) * ((double)out[e] - y);
        norm += y * y;
    }
    cr_assert_leq(sqrt(error), (v->quantised == 'q' ? 0x1p-12 : 0x1p-19) * sqrt(norm) + 1e-300,
                  "%s %s.%c: f32 differs from exact by %.3g of %.3g", v->name, v->kind, v->quantised, sqrt(error),
                  sqrt(norm));
}

static void run_case(struct file *f, const char *name)
{
    static const char *const kinds[] = {"lutb", "mxfp8", "bf16"};
    int tokens = parameter(f, name, "T");

    for (int k = 0; k < 3; k++)
        for (int q = 0; q < 2 && tokens; q++) {
            struct variant v = {.name = name,
                                .kind = kinds[k],
                                .quantised = "qn"[q],
                                .tokens = tokens,
                                .k = parameter(f, name, "k"),
                                .map = parameter(f, name, "has_map"),
                                .input_weight = parameter(f, name, "weight_on_input")};
            if (!find(f, "%s.%s.%c.out", name, v.kind, v.quantised))
                continue;
            check_bf16(f, &v);
            check_f32(f, &v);
            f->cases++;
        }
}

/* `least`: variants that the file must have given. */
static void run_file(const char *file, moert_activation_t activation, int least)
{
    struct file *f = calloc(1, sizeof(*f));
    const char *data = getenv("MOERT_TEST_DATA");
    char path[512];

    cr_assert(f && data, "MOERT_TEST_DATA names the test data");
    rig_open(&f->rig, "0");
    snprintf(path, sizeof(path), "%s/vectors/%s.safetensors", data, file);
    RIG_OK(&f->rig, moert_safetensors_open(path, 0, &f->st, &f->rig.err));
    f->config = rig_config((uint64_t)parameter(f, "w", "H"), (uint64_t)parameter(f, "w", "I"),
                           (uint32_t)parameter(f, "w", "E"), 1, MOERT_BF16, MOERT_SCHEME_BF16, MOERT_SCHEME_NONE);
    f->config.activation = activation;
    if (parameter(f, "w", "interleaved"))
        f->config.w13_order = MOERT_W13_INTERLEAVED;
    for (uint64_t i = 0; i < moert_safetensors_count(f->st); i++) {
        char name[128];
        const char *at = moert_safetensors_at(f->st, i)->name, *end = strstr(at, ".topk_ids");
        if (!end)
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)(end - at), at);
        run_case(f, name);
    }
    cr_assert_geq(f->cases, least, "%s gave %d variants, %d are expected", file, f->cases, least);
    moert_safetensors_close(f->st);
    rig_close(&f->rig);
    free(f);
}

Test(cpu_vectors, silu_all_kinds)
{
    run_file("layer_h128_i128_e4", MOERT_ACT_SILU, 66);
}

Test(cpu_vectors, silu_odd_sizes)
{
    run_file("layer_h256_i192_e8", MOERT_ACT_SILU, 8);
}

Test(cpu_vectors, relu2_plain)
{
    run_file("layer_h128_i64_e8_relu2", MOERT_ACT_RELU2_NO_MUL, 6);
}

Test(cpu_vectors, swigluoai_interleaved)
{
    run_file("layer_h256_i128_e4_swigluoai", MOERT_ACT_SWIGLUOAI, 8);
}

Test(cpu_vectors, gelu_tanh)
{
    run_file("layer_h256_i256_e4_gelu_tanh", MOERT_ACT_GELU_TANH, 3);
}
