/* core/verify/steps.c: single steps of a driver against the core, byte for byte: codecs, top-k, align, activation,
 * combine. */
#include "config.h"

#include "core/verify/session.h"
#include "core/base/error.h"

#include <moert/activation.h>
#include <moert/float8.h>
#include <moert/lutb.h>
#include <moert/mxfp8.h>
#include <moert/routing.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Named byte arrays of one step: inputs, expected and got results, freed together. */
struct arena {
    void *blocks[16];
    int count;
};

static void *take(struct arena *a, uint64_t bytes)
{
    void *p = calloc(bytes ? bytes : 1, 1);
    if (p)
        a->blocks[a->count++] = p;
    return p;
}

static void release(struct arena *a)
{
    while (a->count)
        free(a->blocks[--a->count]);
}

static struct moert_tensor tensor(const void *data, moert_dtype_t dtype, uint64_t rows, uint64_t cols)
{
    uint64_t shape[2] = {rows, cols};
    return moert_tensor_host(data, dtype, 2, shape);
}

/* First byte that differs, as a finding. nan_code: 7F and FF are the same. */
static void differ(struct moert_finding *f, const char *what, const void *have, const void *want, uint64_t n,
                   int nan_code)
{
    const uint8_t *a = have, *b = want;

    for (uint64_t i = 0; !f->failed && i < n; i++)
        if (a[i] != b[i] && !(nan_code && (a[i] & b[i] & 0x7F) == 0x7F)) {
            f->failed = 1;
            snprintf(f->detail, sizeof(f->detail), "%s: byte %llu is %02X, expected %02X", what, (unsigned long long)i,
                     a[i], b[i]);
        }
}

/* Turns the status of a step into a report. */
static void report(struct moert_session *s, const char *op, const char *name, moert_status_t status,
                   const struct moert_error *own, struct moert_finding *f)
{
    if (status == MOERT_E_UNSUPPORTED) {
        moert_session_report(s, op, name, MOERT_VERIFY_SKIPPED, NULL, "the driver leaves this step to the core");
        return;
    }
    if (status) {
        f->failed = 1;
        snprintf(f->detail, sizeof(f->detail), "%s: %.300s", moert_status_name(status), own->text);
    }
    moert_session_report(s, op, name, f->failed ? MOERT_VERIFY_FAILED : MOERT_VERIFY_PASSED, f, NULL);
}

/* Rows for the quantiser: ordinary, wide, subnormal, zero, ties of the block maximum, non-finite. */
static void fill_rows(void *x, moert_dtype_t dtype, uint64_t rows, uint64_t cols, uint64_t seed)
{
    uint64_t rng = seed;

    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < cols; c++) {
            double v = moert_case_gauss(&rng),
                   scale = ldexp(1.0, (int)(r % 8 ? 0 : moert_case_random(&rng) % 200) - 100);
            switch (r % 8) {
            case 0: v *= scale; break;
            case 1: v = c % 32 == 5 ? 448.0 * ldexp(1.0, (int)(c / 32) - 3) : v; break;
            case 2: v = c % 32 ? v : 1.75 * ldexp(1.0, (int)(c / 32)); break;
            case 3: v = c % 2 ? -0.0 : 0.0; break;
            case 4: v = ldexp(v, -130); break;
            case 5: v = c == 40 ? (double)NAN : v; break;
            case 6: v = c == 70 ? -(double)INFINITY : v; break;
            default: break;
            }
            moert_store(x, dtype, r * cols + c, v);
        }
}

static void quantise_case(struct moert_session *s, moert_dtype_t dtype, const char *name)
{
    enum { ROWS = 40, COLS = 160 };
    struct moert_error own = MOERT_ERROR_INIT;
    struct moert_finding f = {.step = ""};
    struct arena a = {{NULL}, 0};
    uint8_t *x = take(&a, ROWS * COLS * 4), *want = take(&a, ROWS * COLS), *want_s = take(&a, ROWS * COLS / 32);
    uint8_t *have = take(&a, ROWS * COLS), *have_s = take(&a, ROWS * COLS / 32);
    struct moert_tensor tx = tensor(x, dtype, ROWS, COLS), tc = tensor(have, MOERT_F8_E4M3, ROWS, COLS);
    struct moert_tensor ts = tensor(have_s, MOERT_U8, ROWS, COLS / 32);
    struct moert_mxfp8_params params = {.size = sizeof(params)};
    moert_status_t status = MOERT_E_NOMEM;

    if (a.count == 5) {
        fill_rows(x, dtype, ROWS, COLS, s->options.seed);
        status = moert_mxfp8_quantize(x, dtype, ROWS, COLS, 0, &params, want, want_s, NULL, &own);
        if (!status)
            status = moert_step_quantize(s->subject.queue, &params, &tx, &tc, &ts, &own);
        if (!status) {
            differ(&f, "scales", have_s, want_s, ROWS * COLS / 32, 0);
            differ(&f, "codes", have, want, ROWS * COLS, 1);
        }
    }
    report(s, "codec", name, status, &own, &f);
    release(&a);
}

static void dequantise_case(struct moert_session *s, moert_dtype_t dtype, const char *name)
{
    enum { ROWS = 256, COLS = 256 };
    struct moert_error own = MOERT_ERROR_INIT;
    struct moert_finding f = {.step = ""};
    struct arena a = {{NULL}, 0};
    uint64_t z = moert_dtype_size(dtype);
    uint8_t *codes = take(&a, ROWS * COLS), *scales = take(&a, ROWS * COLS / 32);
    uint8_t *want = take(&a, ROWS * COLS * z), *have = take(&a, ROWS * COLS * z);
    struct moert_tensor tc = tensor(codes, MOERT_F8_E4M3, ROWS, COLS), ts = tensor(scales, MOERT_U8, ROWS, COLS / 32);
    struct moert_tensor to = tensor(have, dtype, ROWS, COLS);
    moert_status_t status = MOERT_E_NOMEM;

    if (a.count == 4) {
        /* every code under every scale byte: row r has byte r, its columns all 256 codes */
        for (uint64_t i = 0; i < ROWS * COLS; i++)
            codes[i] = (uint8_t)i;
        for (uint64_t i = 0; i < ROWS * COLS / 32; i++)
            scales[i] = (uint8_t)(i / (COLS / 32));
        status = moert_mxfp8_dequantize(codes, scales, ROWS, COLS, want, dtype, &own);
        if (!status)
            status = moert_step_dequantize(s->subject.queue, &tc, &ts, &to, &own);
        for (uint64_t i = 0; !status && !f.failed && i < ROWS * COLS; i++) {
            double x = moert_load(have, dtype, i), y = moert_load(want, dtype, i);
            if (!(isnan(x) && isnan(y)) && memcmp(have + i * z, want + i * z, z)) {
                f.failed = 1;
                snprintf(f.detail, sizeof(f.detail), "code %02X under byte %llu gives %.9g, expected %.9g", codes[i],
                         (unsigned long long)(i / COLS), x, y);
            }
        }
    }
    report(s, "codec", name, status, &own, &f);
    release(&a);
}

static void lutb_case(struct moert_session *s, moert_dtype_t dtype, const char *name)
{
    enum { N = 32, K = 192, TILES = N / 8 * (K / 64) };
    struct moert_error own = MOERT_ERROR_INIT;
    struct moert_finding f = {.step = ""};
    struct arena a = {{NULL}, 0};
    uint64_t z = moert_dtype_size(dtype), rng = s->options.seed;
    uint64_t p[3] = {N / 8, K / 64, 192}, c[3] = {N / 8, K / 64, 8}, o[2] = {N, K};
    uint8_t *packed = take(&a, TILES * 192), *book = take(&a, TILES * 8);
    uint8_t *want = take(&a, N * K * z), *have = take(&a, N * K * z);
    struct moert_tensor tp = moert_tensor_host(packed, MOERT_U8, 3, p);
    struct moert_tensor tb = moert_tensor_host(book, MOERT_F8_E4M3, 3, c), to = moert_tensor_host(have, dtype, 2, o);
    moert_status_t status = MOERT_E_NOMEM;

    if (a.count == 4) {
        for (int i = 0; i < TILES * 192; i++)
            packed[i] = (uint8_t)moert_case_random(&rng);
        for (int i = 0; i < TILES * 8; i++) { /* any finite code, unsorted, -0 and duplicates among them */
            book[i] = (uint8_t)(i % 11 == 0 ? 0x80 : i % 13 == 0 ? 0x7E : moert_case_random(&rng));
            if ((book[i] & 0x7F) == 0x7F)
                book[i] = 1;
        }
        status = moert_lutb_decode(packed, book, N, K, want, dtype, &own);
        if (!status)
            status = moert_step_lutb_decode(s->subject.queue, &tp, &tb, &to, &own);
        if (!status)
            differ(&f, "decoded weights", have, want, N * K * z, 0);
    }
    report(s, "codec", name, status, &own, &f);
    release(&a);
}

static const struct moert_router_config routers[] = {
    {.size = sizeof(routers[0]), .kind = MOERT_ROUTER_SOFTMAX, .renormalize = 1},
    {.size = sizeof(routers[0]), .kind = MOERT_ROUTER_SIGMOID},
    {.size = sizeof(routers[0]), .kind = MOERT_ROUTER_SQRT_SOFTPLUS, .renormalize = 1, .scaling_factor = 1.5},
    {.size = sizeof(routers[0]),
     .kind = MOERT_ROUTER_GROUPED,
     .scoring = MOERT_SCORING_SIGMOID,
     .renormalize = 1,
     .num_groups = 4,
     .topk_groups = 2,
     .scaling_factor = 2.5},
};

static void topk_case(struct moert_session *s, const struct moert_router_config *router, int use_bias)
{
    enum { T = 70, E = 64, K = 6 };
    struct moert_error own = MOERT_ERROR_INIT;
    struct moert_finding f = {.step = ""};
    struct arena a = {{NULL}, 0};
    char name[64];
    uint64_t rng = s->options.seed;
    float *logits = take(&a, T * E * 4), *bias = take(&a, E * 4), *want_w = take(&a, T * K * 4);
    float *have_w = take(&a, T * K * 4);
    int32_t *want = take(&a, T * K * 4), *have = take(&a, T * K * 4);
    struct moert_tensor tl = tensor(logits, MOERT_F32, T, E), tb = tensor(bias, MOERT_F32, 1, E);
    struct moert_tensor ti = tensor(have, MOERT_I32, T, K), tw = tensor(have_w, MOERT_F32, T, K);
    struct moert_route_args args = {.size = sizeof(args), .num_experts = E, .top_k = K, .tokens = T};
    moert_status_t status = MOERT_E_NOMEM;

    tb.rank = 1;
    tb.shape[0] = E;
    tb.strides[0] = 1;
    snprintf(name, sizeof(name), "%s%s", moert_router_kind_name(router->kind), use_bias ? "-bias" : "");
    if (a.count == 6) {
        for (int i = 0; i < T * E; i++)
            logits[i] = (float)moert_case_gauss(&rng);
        for (int e = 0; e < E; e++) { /* ties, NaN, infinities */
            logits[3 * E + e] = 1.0f;
            logits[5 * E + e] = e % 3 ? logits[5 * E + e] : NAN;
            logits[7 * E + e] = e % 5 ? logits[7 * E + e] : (e % 2 ? INFINITY : -INFINITY);
            bias[e] = (float)(moert_case_gauss(&rng) * 0.1);
        }
        args.logits = logits;
        args.logits_dtype = MOERT_F32;
        args.correction_bias = use_bias ? bias : NULL;
        args.ids = want;
        args.weights = want_w;
        status = moert_route(router, &args, &own);
        if (!status)
            status = moert_step_topk(s->subject.queue, router, K, &tl, use_bias ? &tb : NULL, &ti, &tw, &own);
        if (!status) {
            differ(&f, "ids", have, want, T * K * 4, 0);
            differ(&f, "weights", have_w, want_w, T * K * 4, 0);
        }
    }
    report(s, "topk", name, status, &own, &f);
    release(&a);
}

static void align_case(struct moert_session *s, uint32_t experts, uint32_t block, int mode_i, const char *name)
{
    enum { T = 200, K = 4 };
    struct moert_error own = MOERT_ERROR_INIT;
    struct moert_finding f = {.step = ""};
    struct arena a = {{NULL}, 0};
    struct moert_align_params params = {
        .size = sizeof(params), .num_experts = experts, .block_size = block, .ignore_invalid = (uint32_t)mode_i};
    struct moert_align_sizes sizes;
    uint64_t rng = s->options.seed;
    int32_t *ids = take(&a, T * K * 4), *map = take(&a, experts * 4ull), totals[2] = {0, 0};
    int32_t *want = NULL, *have = NULL, *want_e = NULL, *have_e = NULL;
    moert_status_t status = moert_align_sizes(T * K, &params, &sizes, &own);

    if (!status) {
        want = take(&a, sizes.sorted * 4);
        have = take(&a, sizes.sorted * 4);
        want_e = take(&a, sizes.expert_ids * 4);
        have_e = take(&a, sizes.expert_ids * 4);
        status = a.count == 6 ? MOERT_OK : MOERT_E_NOMEM;
    }
    if (!status) {
        struct moert_tensor ti = tensor(ids, MOERT_I32, T, K), tm = tensor(map, MOERT_I32, 1, experts);
        struct moert_tensor ts = tensor(have, MOERT_I32, 1, sizes.sorted),
                            te = tensor(have_e, MOERT_I32, 1, sizes.expert_ids);
        struct moert_tensor tt = tensor(&totals[0], MOERT_I32, 1, 1);
        for (int i = 0; i < T * K; i++)
            ids[i] = (int32_t)(moert_case_random(&rng) % (experts + 2)) - 1;
        for (uint32_t e = 0; e < experts; e++)
            map[e] = e % 2 ? -1 : (int32_t)(e / 2);
        status = moert_align(ids, T, K, mode_i ? map : NULL, &params, want, want_e, &totals[1], NULL, &own);
        if (!status)
            status = moert_step_align(s->subject.queue, &params, &ti, mode_i ? &tm : NULL, &ts, &te, &tt, &own);
        if (!status) {
            differ(&f, "total", &totals[0], &totals[1], 4, 0);
            differ(&f, "sorted_token_ids", have, want, sizes.sorted * 4, 0);
            differ(&f, "expert_ids", have_e, want_e, sizes.expert_ids * 4, 0);
        }
    }
    report(s, "align", name, status, &own, &f);
    release(&a);
}

/* Parameters that each kind needs. */
static void set_parameters(struct moert_layer_config *l)
{
    switch (l->activation) {
    case MOERT_ACT_SWIGLUOAI_UNINTERLEAVE:
        l->params_set = MOERT_PARAM_SWIGLU_LIMIT | MOERT_PARAM_SWIGLU_ALPHA | MOERT_PARAM_SWIGLU_BETA;
        l->swiglu_limit = 7;
        l->swiglu_alpha = 1.702;
        l->swiglu_beta = 1;
        break;
    case MOERT_ACT_SITU:
        l->params_set = MOERT_PARAM_SITU_BETA | MOERT_PARAM_SITU_LINEAR_BETA;
        l->situ_beta = 1;
        l->situ_linear_beta = 1.5;
        break;
    default: break;
    }
}

static void activation_case(struct moert_session *s, moert_activation_t kind, moert_dtype_t dtype)
{
    enum { ROWS = 64, I = 64 };
    const struct moert_backend *table = s->subject.table;
    struct moert_error own = MOERT_ERROR_INIT;
    struct moert_finding f = {.step = ""};
    struct arena a = {{NULL}, 0};
    struct moert_layer_config l;
    struct moert_activation_params p;
    char name[64];
    uint64_t rng = s->options.seed, z = moert_dtype_size(dtype), n1;
    double eps = table->activation_eps > 0 ? table->activation_eps : 0x1p-20, u = moert_unit_roundoff(dtype);
    uint8_t *c1 = take(&a, ROWS * 2 * I * z), *want = take(&a, ROWS * I * z), *have = take(&a, ROWS * I * z);
    struct moert_tensor t1, t2 = tensor(have, dtype, ROWS, I);
    moert_status_t status;

    moert_layer_config_init(&l);
    l.hidden_size = l.intermediate_size = I;
    l.num_experts = l.top_k = 1;
    l.dtype = dtype;
    l.weight_scheme = MOERT_SCHEME_BF16;
    l.activation = kind;
    set_parameters(&l);
    snprintf(name, sizeof(name), "%s-%s", moert_activation_name(kind), moert_dtype_name(dtype));
    status = a.count == 3 ? moert_layer_config_check(&l, &own) : MOERT_E_NOMEM;
    if (!status)
        status = moert_activation_resolve(&l, &p, &own);
    if (!status) {
        n1 = moert_layer_config_n1(&l);
        t1 = tensor(c1, dtype, ROWS, n1);
        for (uint64_t i = 0; i < ROWS * n1; i++)
            moert_store(c1, dtype, i, moert_case_gauss(&rng) * (i % 7 ? 1.5 : 12));
        status = moert_activation_apply(&p, l.w13_order, c1, want, dtype, ROWS, I, &own);
        if (!status)
            status = moert_step_activation(s->subject.queue, &l, &t1, &t2, &own);
        for (uint64_t i = 0; !status && !f.failed && i < ROWS * I; i++) {
            double x = moert_load(have, dtype, i), y = moert_load(want, dtype, i);
            double tol = table->numeric_class == MOERT_CLASS_EXACT ? 0 : 2 * u * fabs(y) + eps * fabs(y);
            if (!(fabs(x - y) <= tol) && !(isnan(x) && isnan(y))) {
                f.failed = 1;
                snprintf(f.detail, sizeof(f.detail), "element %llu: got %.9g, expected %.9g +- %.3g",
                         (unsigned long long)i, x, y, tol);
            }
        }
    }
    report(s, "activation", name, status, &own, &f);
    release(&a);
}

static void combine_case(struct moert_session *s, moert_dtype_t dtype, const char *name)
{
    enum { T = 33, K = 4, H = 72, E = 8 };
    struct moert_error own = MOERT_ERROR_INIT;
    struct moert_finding f = {.step = ""};
    struct arena a = {{NULL}, 0};
    uint64_t rng = s->options.seed, z = moert_dtype_size(dtype), r[3] = {T, K, H};
    uint8_t *rows = take(&a, T * K * H * z), *want = take(&a, T * H * z), *have = take(&a, T * H * z);
    int32_t *ids = take(&a, T * K * 4), *map = take(&a, E * 4);
    struct moert_layer_config l;
    moert_status_t status = MOERT_E_NOMEM;

    moert_layer_config_init(&l);
    l.hidden_size = H;
    l.intermediate_size = 64;
    l.num_experts = E;
    l.top_k = K;
    l.dtype = dtype;
    l.weight_scheme = MOERT_SCHEME_BF16;
    if (a.count == 5)
        status = moert_layer_config_check(&l, &own);
    if (!status) {
        struct moert_tensor tr = moert_tensor_host(rows, dtype, 3, r), ti = tensor(ids, MOERT_I32, T, K);
        struct moert_tensor tm = tensor(map, MOERT_I32, 1, E), to = tensor(have, dtype, T, H);
        struct moert_combine_args args = {.size = sizeof(args),
                                          .dtype = dtype,
                                          .rows = rows,
                                          .ids = ids,
                                          .num_experts = E,
                                          .top_k = K,
                                          .map = map,
                                          .tokens = T,
                                          .hidden_size = H,
                                          .out = want};
        tm.rank = 1;
        tm.shape[0] = E;
        tm.strides[0] = 1;
        for (int e = 0; e < E; e++)
            map[e] = e % 3 == 2 ? -1 : e;
        for (int i = 0; i < T * K; i++)
            ids[i] = (int32_t)(moert_case_random(&rng) % (E + 2)) - 1;
        for (uint64_t i = 0; i < T * K * H; i++) { /* rows that are not local hold NaN and must not be read */
            int32_t id = ids[i / H];
            double v = moert_case_gauss(&rng) * (i % 5 ? 1 : 1000);
            moert_store(rows, dtype, i, id < 0 || id >= E || map[id] < 0 ? (double)NAN : v);
        }
        status = moert_combine(&args, &own);
        if (!status)
            status = moert_step_combine(s->subject.queue, &l, &tr, &ti, &tm, NULL, &to, &own);
        if (!status)
            differ(&f, "output", have, want, T * H * z, 0);
    }
    report(s, "combine", name, status, &own, &f);
    release(&a);
}

moert_status_t moert_verify_steps(struct moert_session *s, struct moert_error *err)
{
    static const struct {
        moert_dtype_t dtype;
        const char *quantise, *dequantise, *lutb, *combine;
    } dtypes[] = {{MOERT_BF16, "quantize-bf16", "dequantize-bf16", "lut-b-bf16", "sum-bf16"},
                  {MOERT_F16, "quantize-f16", "dequantize-f16", "lut-b-f16", "sum-f16"},
                  {MOERT_F32, "quantize-f32", "dequantize-f32", "lut-b-f32", "sum-f32"}};
    uint32_t ops = s->options.ops;

    (void)err;
    for (int i = 0; i < 3; i++) {
        if (ops & MOERT_VERIFY_CODEC) {
            quantise_case(s, dtypes[i].dtype, dtypes[i].quantise);
            dequantise_case(s, dtypes[i].dtype, dtypes[i].dequantise);
            lutb_case(s, dtypes[i].dtype, dtypes[i].lutb);
        }
        if (ops & MOERT_VERIFY_COMBINE)
            combine_case(s, dtypes[i].dtype, dtypes[i].combine);
        for (moert_activation_t k = 0; ops & MOERT_VERIFY_ACTIVATION && k < MOERT_ACT_COUNT; k++)
            activation_case(s, k, dtypes[i].dtype);
    }
    for (size_t i = 0; ops & MOERT_VERIFY_TOPK && i < sizeof(routers) / sizeof(*routers); i++) {
        topk_case(s, &routers[i], 0);
        topk_case(s, &routers[i], 1);
    }
    if (ops & MOERT_VERIFY_ALIGN) {
        align_case(s, 4, 16, 0, "e4-b16");
        align_case(s, 64, 128, 0, "e64-b128");
        align_case(s, 257, 1, 0, "e257-b1");
        align_case(s, 64, 16, 1, "e64-b16-map");
    }
    return MOERT_OK;
}
