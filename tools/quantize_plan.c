/* tools/quantize_plan.c: which tensors of a file are converted, and whether they can be (cli.md, quantize). Pure: reads
 * names, dtypes and shapes only. */
#include "config.h"

#include "tools/files.h"
#include "tools/quantize_file.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int is_floating(moert_dtype_t dtype)
{
    return dtype == MOERT_F32 || dtype == MOERT_BF16 || dtype == MOERT_F16 || dtype == MOERT_F64;
}

static int matches(const char *const *patterns, unsigned count, const char *name)
{
    for (unsigned i = 0; i < count; i++)
        if (!fnmatch(patterns[i], name, 0))
            return 1;
    return 0;
}

/* A layer file's router, biases and shared parts keep their form: only its experts have a scheme. */
static int is_layer_weight(const char *name)
{
    return !strcmp(name, "w13_weight") || !strcmp(name, "w2_weight");
}

static int chosen(const struct quant_run *run, const moert_safetensors_t *in, const struct moert_st_tensor *t)
{
    const struct quant_options *o = run->options;

    if (!is_floating(t->dtype) || t->rank < 2 || matches(o->exclude, o->excludes, t->name))
        return 0;
    if (o->includes)
        return matches(o->include, o->includes, t->name);
    if (run->checkpoint)
        return moert_checkpoint_is_expert_weight(run->checkpoint, t->name);
    return moert_safetensors_metadata(in, "moert.layer") ? is_layer_weight(t->name) : 1;
}

/* ------------------------------------------------------------------ encode */

static moert_status_t check_shape(const struct moert_st_tensor *t, moert_scheme_t scheme, struct moert_error *err)
{
    uint64_t n = t->shape[t->rank - 2], k = t->shape[t->rank - 1];

    if (t->dtype == MOERT_F64)
        return tool_set_error(err, MOERT_E_DTYPE, "tensor-dtype",
                              "tensor \"%.200s\" is F64, expected F32, BF16 or F16; --exclude leaves it as it is",
                              t->name);
    if (scheme == MOERT_SCHEME_LUT_B && (n % MOERT_LUTB_ROWS || k % MOERT_LUTB_COLS))
        return tool_set_error(
            err, MOERT_E_SHAPE, "tensor-shape",
            "%.200s is [%llu,%llu]; LUT-B needs N %% 8 = 0 and K %% 64 = 0; --exclude leaves it as it is", t->name,
            (unsigned long long)n, (unsigned long long)k);
    if (scheme == MOERT_SCHEME_MXFP8 && k % MOERT_MXFP8_BLOCK)
        return tool_set_error(err, MOERT_E_SHAPE, "tensor-shape",
                              "%.200s is [%llu,%llu]; MXFP8 needs K %% 32 = 0; --exclude leaves it as it is", t->name,
                              (unsigned long long)n, (unsigned long long)k);
    if (t->rank == MOERT_ST_MAX_RANK && scheme == MOERT_SCHEME_LUT_B)
        return tool_set_error(err, MOERT_E_SHAPE, "tensor-shape", "%.200s has %u dimensions; LUT-B takes at most %u",
                              t->name, t->rank, MOERT_ST_MAX_RANK - 1);
    return MOERT_OK;
}

/* Blocks run along K, which must be the last axis: fused tensors stored [E,K,N] are refused, and so are those of which
 * nobody said how they are stored. */
static moert_status_t check_orientation(const struct quant_run *run, const struct moert_st_tensor *t,
                                        struct moert_error *err)
{
    int transposed;

    if (!run->checkpoint || t->rank != 3 || !moert_checkpoint_is_expert_weight(run->checkpoint, t->name))
        return MOERT_OK;
    transposed = moert_checkpoint_fused_transposed(run->checkpoint);
    if (transposed > 0)
        return tool_set_error(
            err, MOERT_E_VALUE, "scheme",
            "tensor \"%.200s\": fused experts of %s are stored [E,K,N]; blocks run along K, which must "
            "be the last axis",
            t->name, moert_checkpoint_family(run->checkpoint));
    if (transposed < 0)
        return tool_set_error(err, MOERT_E_VALUE, "tensor-ambiguous",
                              "tensor \"%.200s\": %s is a family without a rule for fused experts; give "
                              "\"fused_transposed\" (true: [E,K,N], false: [E,N,K]) in config.json",
                              t->name, moert_checkpoint_family(run->checkpoint));
    return MOERT_OK;
}

static void matrix_of(const struct moert_st_tensor *t, struct quant_step *s)
{
    s->cols = t->shape[t->rank - 1];
    s->rows = 1;
    for (uint32_t i = 0; i + 1 < t->rank; i++)
        s->rows *= t->shape[i]; /* cannot overflow: the reader checked the product */
}

static moert_status_t plan_encode(const struct quant_run *run, const moert_safetensors_t *in, struct quant_step *s,
                                  struct moert_error *err)
{
    moert_status_t status;

    if (!chosen(run, in, s->tensor))
        return MOERT_OK;
    status = check_shape(s->tensor, run->options->scheme, err);
    if (!status)
        status = check_orientation(run, s->tensor, err);
    s->action = QUANT_ENCODE;
    s->scheme = run->options->scheme;
    matrix_of(s->tensor, s);
    return status;
}

/* ------------------------------------------------------------------ decode */

/* The tensor `name` in this file, else in another one of the checkpoint. */
static const struct moert_st_tensor *find(const struct quant_run *run, const moert_safetensors_t *in, const char *name)
{
    const struct moert_st_tensor *t = moert_safetensors_find(in, name);

    for (uint32_t i = 0; !t && run->checkpoint && i < moert_checkpoint_file_count(run->checkpoint); i++)
        t = moert_safetensors_find(moert_checkpoint_file(run->checkpoint, i), name);
    return t;
}

static const struct moert_st_tensor *find_joined(const struct quant_run *run, const moert_safetensors_t *in,
                                                 const char *x, size_t length, const char *suffix)
{
    size_t room = length + strlen(suffix) + 1;
    char *name = malloc(room);
    const struct moert_st_tensor *t = NULL;

    if (name) {
        snprintf(name, room, "%.*s%s", (int)length, x, suffix);
        t = find(run, in, name);
    }
    free(name);
    return t;
}

/* Length of X when name is X + suffix, else 0. */
static size_t stem(const char *name, const char *suffix)
{
    size_t n = strlen(name), s = strlen(suffix);
    return n > s && !strcmp(name + n - s, suffix) ? n - s : 0;
}

static int same_axes(const struct moert_st_tensor *a, const struct moert_st_tensor *b, uint32_t rank)
{
    for (uint32_t i = 0; i < rank; i++)
        if (a->shape[i] != b->shape[i])
            return 0;
    return 1;
}

static int is_lutb_pair(const struct moert_st_tensor *packed, const struct moert_st_tensor *codebook)
{
    uint32_t r = packed->rank;

    return codebook && packed->dtype == MOERT_U8 && codebook->dtype == MOERT_F8_E4M3 && r >= 3 && codebook->rank == r &&
           packed->shape[r - 1] == MOERT_LUTB_PACKED && codebook->shape[r - 1] == MOERT_LUTB_LEVELS &&
           same_axes(packed, codebook, r - 1);
}

static int is_mxfp8_pair(const struct moert_st_tensor *codes, const struct moert_st_tensor *scales)
{
    uint32_t r = codes->rank;

    return scales && codes->dtype == MOERT_F8_E4M3 && (scales->dtype == MOERT_U8 || scales->dtype == MOERT_F8_E8M0) &&
           r >= 2 && scales->rank == r && scales->shape[r - 1] * MOERT_MXFP8_BLOCK == codes->shape[r - 1] &&
           same_axes(codes, scales, r - 1);
}

/* Is this tensor the second half of a pair whose first half is decoded? */
static int is_absorbed(const struct quant_run *run, const moert_safetensors_t *in, const struct moert_st_tensor *t)
{
    static const char *const scale[] = {"_scale", "_scale_inv"};
    const struct moert_st_tensor *first;
    size_t n = stem(t->name, "_codebook");

    if (n) {
        first = find_joined(run, in, t->name, n, "_packed");
        return first && is_lutb_pair(first, t);
    }
    for (size_t i = 0; i < 2; i++) {
        n = stem(t->name, scale[i]);
        first = n ? find_joined(run, in, t->name, n, "") : NULL;
        if (first && is_mxfp8_pair(first, t))
            return 1;
    }
    return 0;
}

static moert_status_t plan_lutb(const struct quant_run *run, const moert_safetensors_t *in, size_t n,
                                struct quant_step *s, struct moert_error *err)
{
    const struct moert_st_tensor *t = s->tensor, *codebook = find_joined(run, in, t->name, n, "_codebook");
    uint64_t tiles = 1;

    if (!codebook)
        return tool_set_error(err, MOERT_E_MISSING, "tensor-missing",
                              "tensor \"%.200s\" has no \"%.*s_codebook\" beside it", t->name, (int)(n < 200 ? n : 200),
                              t->name);
    if (!is_lutb_pair(t, codebook))
        return tool_set_error(err, MOERT_E_SHAPE, "tensor-shape",
                              "tensor \"%.200s\" and its codebook are not LUT-B: U8 [..,N/8,K/64,192] and F8_E4M3 "
                              "[..,N/8,K/64,8] are expected",
                              t->name);
    for (uint32_t i = 0; i + 1 < t->rank; i++)
        tiles *= t->shape[i];
    s->cols = t->shape[t->rank - 2] * MOERT_LUTB_COLS;
    s->rows = s->cols ? tiles / t->shape[t->rank - 2] * MOERT_LUTB_ROWS : 0;
    s->scheme = MOERT_SCHEME_LUT_B;
    s->partner = codebook;
    s->name = strndup(t->name, n);
    s->action = QUANT_DECODE;
    return s->name ? MOERT_OK : tool_no_memory(err);
}

static moert_status_t plan_decode(const struct quant_run *run, const moert_safetensors_t *in, struct quant_step *s,
                                  struct moert_error *err)
{
    const struct moert_st_tensor *t = s->tensor, *scales;
    size_t n = stem(t->name, "_packed");

    if (is_absorbed(run, in, t)) {
        s->action = QUANT_DROP;
        return MOERT_OK;
    }
    if (n && t->dtype == MOERT_U8)
        return plan_lutb(run, in, n, s, err);
    if (t->dtype != MOERT_F8_E4M3 || t->rank < 2)
        return MOERT_OK;
    scales = find_joined(run, in, t->name, strlen(t->name), "_scale");
    if (!scales)
        scales = find_joined(run, in, t->name, strlen(t->name), "_scale_inv");
    if (!scales || !is_mxfp8_pair(t, scales)) /* another use of E4M3 */
        return MOERT_OK;
    matrix_of(t, s);
    s->scheme = MOERT_SCHEME_MXFP8;
    s->partner = scales;
    s->name = strdup(t->name);
    s->action = QUANT_DECODE;
    return s->name ? MOERT_OK : tool_no_memory(err);
}

/* ------------------------------------------------------------------ public */

moert_status_t quant_plan(const struct quant_run *run, const moert_safetensors_t *in, struct quant_step **ret,
                          struct moert_error *err)
{
    uint64_t count = moert_safetensors_count(in);
    struct quant_step *steps = calloc(count + 1, sizeof(*steps));
    moert_status_t status = steps ? MOERT_OK : tool_no_memory(err);

    for (uint64_t i = 0; i < count && !status; i++) {
        steps[i].tensor = moert_safetensors_at(in, i);
        steps[i].path = moert_safetensors_path(in);
        status = run->options->decode ? plan_decode(run, in, &steps[i], err) : plan_encode(run, in, &steps[i], err);
        if (status) {
            struct moert_error inner = err ? *err : (struct moert_error)MOERT_ERROR_INIT;
            tool_set_error(err, status, inner.code, "%s: %.7000s", moert_safetensors_path(in), inner.text);
        }
    }
    if (status)
        quant_plan_free(steps, count);
    else
        *ret = steps;
    return status;
}

void quant_plan_free(struct quant_step *steps, uint64_t count)
{
    for (uint64_t i = 0; steps && i < count; i++)
        free(steps[i].name);
    free(steps);
}

moert_status_t quant_check_patterns(const struct quant_run *run, const moert_safetensors_t *const *files,
                                    uint32_t count, struct moert_error *err)
{
    const struct quant_options *o = run->options;

    for (unsigned p = 0; p < o->includes + o->excludes; p++) {
        const char *pattern = p < o->includes ? o->include[p] : o->exclude[p - o->includes];
        int found = 0;
        for (uint32_t f = 0; f < count && !found; f++)
            for (uint64_t i = 0; i < moert_safetensors_count(files[f]) && !found; i++)
                found = !fnmatch(pattern, moert_safetensors_at(files[f], i)->name, 0);
        if (!found)
            return tool_set_error(err, MOERT_E_MISSING, "tensor-missing", "--%s \"%s\" matches no tensor",
                                  p < o->includes ? "include" : "exclude", pattern);
    }
    return MOERT_OK;
}

uint64_t quant_count(const struct quant_step *steps, uint64_t count)
{
    uint64_t n = 0;

    for (uint64_t i = 0; i < count; i++)
        n += steps[i].action == QUANT_ENCODE || steps[i].action == QUANT_DECODE;
    return n;
}

moert_status_t quant_check_any(const struct quant_run *run, const moert_safetensors_t *in, const char *source,
                               uint64_t converted, struct moert_error *err)
{
    const char *why =
        "F32, BF16 and F16 tensors with two or more dimensions are looked for; dequantize first if the file "
        "is quantised already";

    if (converted)
        return MOERT_OK;
    if (run->options->decode)
        why = "none is MXFP8 or LUT-B";
    else if (!in)
        why = "no routed experts were found and --include names none";
    else if (run->options->includes)
        why = "--include names no F32, BF16 or F16 tensor with two or more dimensions that --exclude does not leave";
    else if (moert_safetensors_metadata(in, "moert.layer"))
        why =
            "a layer file's w13_weight and w2_weight in F32, BF16 or F16 are looked for; dequantize first if they are "
            "quantised already";
    return tool_set_error(err, MOERT_E_VALUE, "tensor-missing", "%s: no tensor to convert; %s", source, why);
}

/* Length of the part of an expert weight's name that names its layer ("model.layers.3."); 0 for a layer file's. */
static size_t layer_length(const char *name)
{
    const char *number = strstr(name, "layers.");

    return number ? (size_t)(number - name) + 7 + strspn(number + 7, "0123456789") : 0;
}

moert_status_t quant_check_layers(const struct quant_run *run, const moert_safetensors_t *in,
                                  const struct quant_step *steps, json_t *seen, struct moert_error *err)
{
    for (uint64_t i = 0; i < moert_safetensors_count(in) && !run->options->decode; i++) {
        const char *name = steps[i].tensor->name, *form = steps[i].action == QUANT_ENCODE ? "converted" : "left";
        const json_t *taken, *left;
        char key[256];
        json_t *layer;
        if (run->checkpoint ? !moert_checkpoint_is_expert_weight(run->checkpoint, name) : !is_layer_weight(name))
            continue;
        snprintf(key, sizeof(key), "%.*s", (int)layer_length(name), name);
        layer = json_object_get(seen, key);
        if (!layer) {
            layer = json_object();
            json_object_set_new(seen, key, layer);
        }
        if (!json_object_get(layer, form))
            json_object_set_new(layer, form, json_string(name));
        taken = json_object_get(layer, "converted");
        left = json_object_get(layer, "left");
        if (taken && left)
            return tool_set_error(err, MOERT_E_USAGE, "scheme",
                                  "\"%.200s\" would be converted and \"%.200s\" not; a layer whose expert weights "
                                  "differ in form cannot be opened: choose all of them or none with --include and "
                                  "--exclude",
                                  json_string_value(taken), json_string_value(left));
    }
    return MOERT_OK;
}
