/* core/base/names.c: names of enum values as files and messages write them. One table per enum. */
#include "core/base/error.h"
#include "core/base/text.h"

#include <stdlib.h>
#include <string.h>

struct name {
    const char *name;
    uint32_t value;
};

/* A list's first entry for a value is its name; later ones are aliases for reading. */
#define NAMES(fn, type, ...)                                                                                           \
    static const struct name fn##_names[] = {__VA_ARGS__};                                                             \
    const char *moert_##fn##_name(type v)                                                                              \
    {                                                                                                                  \
        for (size_t i = 0; i < sizeof(fn##_names) / sizeof(*fn##_names); i++)                                          \
            if (fn##_names[i].value == v)                                                                              \
                return fn##_names[i].name;                                                                             \
        return NULL;                                                                                                   \
    }                                                                                                                  \
    int moert_##fn##_from_name(const char *name, type *ret)                                                            \
    {                                                                                                                  \
        for (size_t i = 0; name && i < sizeof(fn##_names) / sizeof(*fn##_names); i++)                                  \
            if (moert_text_same_name(fn##_names[i].name, name)) {                                                      \
                *ret = fn##_names[i].value;                                                                            \
                return 0;                                                                                              \
            }                                                                                                          \
        return -1;                                                                                                     \
    }

NAMES(dtype, moert_dtype_t, {"F32", MOERT_F32}, {"BF16", MOERT_BF16}, {"F16", MOERT_F16}, {"F64", MOERT_F64},
      {"F8_E4M3", MOERT_F8_E4M3}, {"F8_E5M2", MOERT_F8_E5M2}, {"F8_E8M0", MOERT_F8_E8M0}, {"U8", MOERT_U8},
      {"I8", MOERT_I8}, {"I16", MOERT_I16}, {"U16", MOERT_U16}, {"I32", MOERT_I32}, {"U32", MOERT_U32},
      {"I64", MOERT_I64}, {"U64", MOERT_U64}, {"BOOL", MOERT_BOOL}, {"float32", MOERT_F32}, {"bfloat16", MOERT_BF16},
      {"float16", MOERT_F16})
NAMES(scheme, moert_scheme_t, {"none", MOERT_SCHEME_NONE}, {"bf16", MOERT_SCHEME_BF16}, {"f16", MOERT_SCHEME_F16},
      {"f32", MOERT_SCHEME_F32}, {"mxfp8", MOERT_SCHEME_MXFP8}, {"lut-b", MOERT_SCHEME_LUT_B})
NAMES(activation, moert_activation_t, {"silu", MOERT_ACT_SILU}, {"gelu", MOERT_ACT_GELU},
      {"gelu_tanh", MOERT_ACT_GELU_TANH}, {"gelu_pytorch_tanh", MOERT_ACT_GELU_TANH}, {"swigluoai", MOERT_ACT_SWIGLUOAI},
      {"swigluoai_uninterleave", MOERT_ACT_SWIGLUOAI_UNINTERLEAVE}, {"swiglustep", MOERT_ACT_SWIGLUSTEP},
      {"situ", MOERT_ACT_SITU}, {"relu2", MOERT_ACT_RELU2}, {"silu_no_mul", MOERT_ACT_SILU_NO_MUL},
      {"gelu_no_mul", MOERT_ACT_GELU_NO_MUL}, {"gelu_tanh_no_mul", MOERT_ACT_GELU_TANH_NO_MUL},
      {"relu2_no_mul", MOERT_ACT_RELU2_NO_MUL})
NAMES(w13_order, moert_w13_order_t, {"gate_up", MOERT_W13_GATE_UP}, {"up_gate", MOERT_W13_UP_GATE},
      {"interleaved", MOERT_W13_INTERLEAVED})
NAMES(role, moert_role_t, {"main", MOERT_ROLE_MAIN}, {"draft", MOERT_ROLE_DRAFT}, {"shared", MOERT_ROLE_SHARED})
NAMES(router_kind, moert_router_kind_t, {"given", MOERT_ROUTER_GIVEN}, {"softmax", MOERT_ROUTER_SOFTMAX},
      {"topk-softmax", MOERT_ROUTER_TOPK_SOFTMAX}, {"sigmoid", MOERT_ROUTER_SIGMOID},
      {"topk-sigmoid", MOERT_ROUTER_TOPK_SIGMOID}, {"sqrt-softplus", MOERT_ROUTER_SQRT_SOFTPLUS},
      {"grouped", MOERT_ROUTER_GROUPED})
NAMES(scoring, moert_scoring_t, {"auto", MOERT_SCORING_AUTO}, {"softmax", MOERT_SCORING_SOFTMAX},
      {"sigmoid", MOERT_SCORING_SIGMOID}, {"sqrt-softplus", MOERT_SCORING_SQRT_SOFTPLUS})
NAMES(scale_at, moert_scale_at_t, {"router", MOERT_SCALE_AT_ROUTER}, {"output", MOERT_SCALE_AT_OUTPUT})
NAMES(class, moert_class_t, {"exact", MOERT_CLASS_EXACT}, {"same-arithmetic", MOERT_CLASS_SAME_ARITHMETIC},
      {"higher-precision", MOERT_CLASS_HIGHER_PRECISION}, {"lower-precision", MOERT_CLASS_LOWER_PRECISION})
NAMES(scale_rule, moert_scale_rule_t, {"rceil", MOERT_RCEIL}, {"floor", MOERT_FLOOR}, {"ceil", MOERT_CEIL},
      {"even", MOERT_EVEN}, {"t175", MOERT_T175})
NAMES(nonfinite, moert_nonfinite_t, {"poison", MOERT_NONFINITE_POISON}, {"contain", MOERT_NONFINITE_CONTAIN},
      {"saturate-pos", MOERT_NONFINITE_SATURATE_POS}, {"error", MOERT_NONFINITE_ERROR},
      {"nan-block", MOERT_NONFINITE_NAN_BLOCK}, {"inf-block", MOERT_NONFINITE_INF_BLOCK})

size_t moert_dtype_size(moert_dtype_t dtype)
{
    static const uint8_t sizes[MOERT_DTYPE_COUNT] = {
        [MOERT_F32] = 4,     [MOERT_BF16] = 2,    [MOERT_F16] = 2, [MOERT_F64] = 8, [MOERT_F8_E4M3] = 1,
        [MOERT_F8_E5M2] = 1, [MOERT_F8_E8M0] = 1, [MOERT_U8] = 1,  [MOERT_I8] = 1,  [MOERT_I16] = 2,
        [MOERT_U16] = 2,     [MOERT_I32] = 4,     [MOERT_U32] = 4, [MOERT_I64] = 8, [MOERT_U64] = 8,
        [MOERT_BOOL] = 1};
    return dtype < MOERT_DTYPE_COUNT ? sizes[dtype] : 0;
}

static const struct {
    moert_status_t status;
    int exit_code;
    const char *name;
} statuses[] = {
    {MOERT_OK, 0, "MOERT_OK"},
    {MOERT_E_USAGE, 2, "MOERT_E_USAGE"},
    {MOERT_E_VALUE, 3, "MOERT_E_VALUE"},
    {MOERT_E_SHAPE, 3, "MOERT_E_SHAPE"},
    {MOERT_E_DTYPE, 3, "MOERT_E_DTYPE"},
    {MOERT_E_FILE, 3, "MOERT_E_FILE"},
    {MOERT_E_MISSING, 3, "MOERT_E_MISSING"},
    {MOERT_E_TOO_LARGE, 3, "MOERT_E_TOO_LARGE"},
    {MOERT_E_RULES, 3, "MOERT_E_RULES"},
    {MOERT_E_NO_BACKEND, 4, "MOERT_E_NO_BACKEND"},
    {MOERT_E_NOMEM, 5, "MOERT_E_NOMEM"},
    {MOERT_E_DEVICE, 5, "MOERT_E_DEVICE"},
    {MOERT_E_AGREE, 5, "MOERT_E_AGREE"},
    {MOERT_E_OUTPUT, 6, "MOERT_E_OUTPUT"},
    {MOERT_E_INTERNAL, 5, "MOERT_E_INTERNAL"},
    {MOERT_E_UNSUPPORTED, 5, "MOERT_E_UNSUPPORTED"},
};

const char *moert_status_name(moert_status_t status)
{
    for (size_t i = 0; i < sizeof(statuses) / sizeof(*statuses); i++)
        if (statuses[i].status == status)
            return statuses[i].name;
    return "unknown status";
}

int moert_status_exit_code(moert_status_t status)
{
    for (size_t i = 0; i < sizeof(statuses) / sizeof(*statuses); i++)
        if (statuses[i].status == status)
            return statuses[i].exit_code;
    return 5;
}

void moert_free(void *pointer)
{
    free(pointer);
}

static struct moert_tensor dense(moert_dtype_t dtype, uint32_t rank, const uint64_t *shape)
{
    struct moert_tensor t = {0};
    int64_t stride = 1;

    if (rank > MOERT_MAX_RANK)
        return t;
    t.dtype = dtype;
    t.rank = rank;
    for (uint32_t i = rank; i-- > 0;) {
        t.shape[i] = shape[i];
        t.strides[i] = stride;
        stride = (int64_t)((uint64_t)stride * shape[i]);
    }
    return t;
}

struct moert_tensor moert_tensor_host(const void *data, moert_dtype_t dtype, uint32_t rank, const uint64_t *shape)
{
    struct moert_tensor t = dense(dtype, rank, shape);
    t.data = (void *)(uintptr_t)data;
    return t;
}

struct moert_tensor moert_tensor_device(moert_buffer_t *buffer, uint64_t offset, moert_dtype_t dtype, uint32_t rank,
                                        const uint64_t *shape)
{
    struct moert_tensor t = dense(dtype, rank, shape);
    t.buffer = buffer;
    t.offset = offset;
    return t;
}
