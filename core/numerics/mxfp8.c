/* core/numerics/mxfp8.c: MXFP8 over arrays: profiles, quantise, dequantise, round trip (moert/mxfp8.h). */
#include <moert/float8.h>

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/numerics/bits.h"
#include "core/numerics/mxfp8.h"

#define BLOCK MOERT_MXFP8_BLOCK

/* mxfp8.md 4; "torchao" is moert's default since its pull request 4725. */
static const struct {
    const char *name;
    struct moert_mxfp8_params params;
} profiles[] = {
    {"moert", {sizeof(struct moert_mxfp8_params), MOERT_RCEIL, MOERT_NONFINITE_POISON, 0, 0}},
    {"torchao", {sizeof(struct moert_mxfp8_params), MOERT_RCEIL, MOERT_NONFINITE_POISON, 0, 0}},
    {"ocp", {sizeof(struct moert_mxfp8_params), MOERT_FLOOR, MOERT_NONFINITE_POISON, 0, 0}},
    {"te", {sizeof(struct moert_mxfp8_params), MOERT_RCEIL, MOERT_NONFINITE_CONTAIN, 0, 0}},
    {"vllm-rocm", {sizeof(struct moert_mxfp8_params), MOERT_RCEIL, MOERT_NONFINITE_CONTAIN, 0, 0x1p-126}},
    {"vllm-torch", {sizeof(struct moert_mxfp8_params), MOERT_RCEIL, MOERT_NONFINITE_NAN_BLOCK, 0, 0x1p-126}},
    {"flashinfer", {sizeof(struct moert_mxfp8_params), MOERT_RCEIL, MOERT_NONFINITE_SATURATE_POS, 1, 0}},
    {"aiter-hip", {sizeof(struct moert_mxfp8_params), MOERT_RCEIL, MOERT_NONFINITE_INF_BLOCK, 0, 1e-10}},
    {"aiter-triton", {sizeof(struct moert_mxfp8_params), MOERT_T175, MOERT_NONFINITE_CONTAIN, 0, 0}},
};

moert_status_t moert_mxfp8_profile(const char *name, struct moert_mxfp8_params *ret, struct moert_error *err)
{
    if (!name || !ret)
        return moert_fail_null(err, name ? "ret" : "profile name");
    for (size_t i = 0; i < sizeof(profiles) / sizeof(*profiles); i++)
        if (!strcmp(name, profiles[i].name)) {
            *ret = profiles[i].params;
            return MOERT_OK;
        }
    return moert_fail(
        err, MOERT_E_VALUE, "field",
        "unknown MXFP8 profile \"%s\"; known: moert, torchao, ocp, te, vllm-rocm, vllm-torch, flashinfer, "
        "aiter-hip, aiter-triton",
        name);
}

uint8_t moert_mxfp8_scale_byte(float amax, moert_scale_rule_t rule)
{
    return moert_scale_from_bits(moert_f32_bits(amax) & 0x7FFFFFFF, rule);
}

/* ------------------------------------------------------------------ quantise */

/* The matrix of a call. */
struct matrix {
    const unsigned char *data;
    uint64_t rows, cols, pitch; /* pitch in bytes */
};

static moert_status_t check_matrix(const void *x, uint64_t rows, uint64_t cols, uint64_t stride, uint32_t element_size,
                                   struct matrix *ret, struct moert_error *err)
{
    uint64_t pitch, n;

    if (!stride)
        stride = cols;
    if (stride < cols)
        return moert_fail(err, MOERT_E_SHAPE, "x-shape", "row pitch %llu is below the %llu columns",
                          (unsigned long long)stride, (unsigned long long)cols);
    if (cols > UINT64_MAX - BLOCK || !moert_mul(stride, element_size, &pitch) || !moert_mul(rows, pitch, &n) ||
        n > SIZE_MAX)
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large",
                          "%llu rows of %llu elements exceed the address space; give fewer rows",
                          (unsigned long long)rows, (unsigned long long)stride);
    *ret = (struct matrix){x, rows, cols, pitch};
    return MOERT_OK;
}

/* MOERT_NONFINITE_ERROR looks before anything is written. */
static moert_status_t refuse_nonfinite(const struct matrix *x, moert_dtype_t dtype, struct moert_error *err)
{
    for (uint64_t r = 0; r < x->rows; r++)
        for (uint64_t c = 0; c < x->cols; c++) {
            uint64_t u = moert_f64_bits(moert_load(x->data + r * x->pitch, dtype, c));
            if ((u & 0x7FF0000000000000u) == 0x7FF0000000000000u)
                return moert_fail(err, MOERT_E_VALUE, "nonfinite", "element [%llu,%llu] is %s; all must be finite",
                                  (unsigned long long)r, (unsigned long long)c,
                                  u << 12   ? "NaN"
                                  : u >> 63 ? "-Inf"
                                            : "Inf");
        }
    return MOERT_OK;
}

static moert_status_t quantize(const void *x, moert_dtype_t dtype, uint64_t rows, uint64_t cols, uint64_t x_stride,
                               const struct moert_mxfp8_params *params, uint8_t *codes, uint8_t *scales,
                               struct moert_mxfp8_stats *stats, struct moert_error *err)
{
    struct moert_quantizer q;
    struct matrix m;
    uint64_t poisoned = 0, saturated = 0, blocks = (cols + BLOCK - 1) / BLOCK;
    moert_status_t status = moert_quantizer_init(&q, dtype, params, err);

    if (status)
        return status;
    if ((status = check_matrix(x, rows, cols, x_stride, q.element_size, &m, err)))
        return status;
    if (rows && cols && (!x || !codes || !scales))
        return moert_fail_null(err, !x ? "x" : !codes ? "codes" : "scales");
    if (stats && (status = moert_check_size(err, "moert_mxfp8_stats", stats->size, sizeof(*stats))))
        return status;
    if (q.nonfinite == MOERT_NONFINITE_ERROR && (status = refuse_nonfinite(&m, dtype, err)))
        return status;
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t b = 0; b < blocks; b++) {
            uint64_t left = cols - b * BLOCK;
            uint8_t byte = moert_quantizer_block(&q, m.data + r * m.pitch + b * BLOCK * q.element_size,
                                                 left < BLOCK ? (unsigned)left : BLOCK, codes, &saturated);
            *scales++ = byte;
            codes += BLOCK;
            poisoned += byte == 0xFF;
        }
    if (stats) {
        stats->blocks += rows * blocks;
        stats->poisoned_blocks += poisoned;
        stats->saturated += saturated;
    }
    return MOERT_OK;
}

static moert_status_t check_block_multiple(uint64_t cols, struct moert_error *err)
{
    if (cols % BLOCK)
        return moert_fail(err, MOERT_E_SHAPE, "multiple", "%llu columns are not a multiple of 32 (an MXFP8 block)",
                          (unsigned long long)cols);
    return MOERT_OK;
}

moert_status_t moert_mxfp8_quantize(const void *x, moert_dtype_t dtype, uint64_t rows, uint64_t cols, uint64_t x_stride,
                                    const struct moert_mxfp8_params *params, uint8_t *codes, uint8_t *scales,
                                    struct moert_mxfp8_stats *stats, struct moert_error *err)
{
    moert_status_t status = check_block_multiple(cols, err);
    return status ? status : quantize(x, dtype, rows, cols, x_stride, params, codes, scales, stats, err);
}

moert_status_t moert_mxfp8_quantize_padded(const void *x, moert_dtype_t dtype, uint64_t rows, uint64_t cols,
                                           uint64_t x_stride, const struct moert_mxfp8_params *params, uint8_t *codes,
                                           uint8_t *scales, struct moert_mxfp8_stats *stats, struct moert_error *err)
{
    return quantize(x, dtype, rows, cols, x_stride, params, codes, scales, stats, err);
}

/* ------------------------------------------------------------------ dequantise */

/* Bytes whose products with every E4M3 value are normal binary32 numbers: multiplying by the power of two is exact
 * there, whatever the rounding mode, and meets no subnormal. */
#define PLAIN_BYTE_MIN 10
#define PLAIN_BYTE_MAX 246

/* 32 codes -> binary32 patterns. */
static void dequantize_block(const uint8_t *codes, uint8_t byte, float out[BLOCK])
{
    float scale = moert_e8m0_decode(byte);

    if (byte >= PLAIN_BYTE_MIN && byte <= PLAIN_BYTE_MAX) {
        for (unsigned i = 0; i < BLOCK; i++)
            out[i] = moert_f32_of_bits(moert_e4m3_table[codes[i]]) * scale;
        return;
    }
    for (unsigned i = 0; i < BLOCK; i++) {
        double wide_scale = moert_f64_of_bits((uint64_t)(byte + 896) << 52); /* 2^(byte-127) */
        if (byte == 0xFF || (codes[i] & 0x7F) == 0x7F)
            out[i] = moert_f32_of_bits(MOERT_F32_NAN);
        else /* binary64 holds the product as a normal number */
            out[i] = moert_f32_from_double((double)moert_e4m3_decode(codes[i]) * wide_scale);
    }
}

/* Every value has 4 significant bits. So binary32 holds it exactly, except for overflow to Inf, which is Inf in the
 * other types too, and the step to 16 bits is the only rounding. */
static void store_block(const float in[BLOCK], void *out, moert_dtype_t dtype)
{
    uint16_t h[BLOCK];

    if (dtype == MOERT_F32) {
        memcpy(out, in, BLOCK * sizeof(float));
        return;
    }
    for (unsigned i = 0; i < BLOCK; i++)
        h[i] = dtype == MOERT_BF16 ? moert_bf16_from_float(in[i]) : moert_f16_from_float(in[i]);
    memcpy(out, h, sizeof(h));
}

moert_status_t moert_mxfp8_dequantize(const uint8_t *codes, const uint8_t *scales, uint64_t rows, uint64_t cols,
                                      void *out, moert_dtype_t dtype, struct moert_error *err)
{
    uint64_t n, bytes, element_size = dtype == MOERT_F32 ? 4 : 2;
    moert_status_t status = check_block_multiple(cols, err);
    float block[BLOCK];

    if (status)
        return status;
    if (dtype != MOERT_F32 && dtype != MOERT_BF16 && dtype != MOERT_F16)
        return moert_fail(err, MOERT_E_DTYPE, "out-dtype", "MXFP8 cannot be decoded to dtype %u; give F32, BF16 or F16",
                          dtype);
    if (!moert_mul(rows, cols, &n) || !moert_mul(n, element_size, &bytes) || bytes > SIZE_MAX)
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large", "[%llu,%llu] elements exceed the address space",
                          (unsigned long long)rows, (unsigned long long)cols);
    if (n && (!codes || !scales || !out))
        return moert_fail_null(err, !codes ? "codes" : !scales ? "scales" : "out");
    for (uint64_t b = 0; b < n / BLOCK; b++) {
        dequantize_block(codes + b * BLOCK, scales[b], block);
        store_block(block, (unsigned char *)out + b * BLOCK * element_size, dtype);
    }
    return MOERT_OK;
}

moert_status_t moert_mxfp8_qdq(const void *x, moert_dtype_t dtype, uint64_t rows, uint64_t cols,
                               const struct moert_mxfp8_params *params, void *out, struct moert_error *err)
{
    struct moert_quantizer q;
    struct matrix m;
    uint64_t saturated = 0;
    uint8_t codes[BLOCK], byte;
    float block[BLOCK];
    moert_status_t status = check_block_multiple(cols, err);

    if (status || (status = moert_quantizer_init(&q, dtype, params, err)) ||
        (status = check_matrix(x, rows, cols, 0, q.element_size, &m, err)))
        return status;
    if (rows && cols && (!x || !out))
        return moert_fail_null(err, !x ? "x" : "out");
    if (q.nonfinite == MOERT_NONFINITE_ERROR && (status = refuse_nonfinite(&m, dtype, err)))
        return status;
    for (uint64_t b = 0; b < rows * (cols / BLOCK); b++) {
        uint64_t offset = b * BLOCK * q.element_size;
        byte = moert_quantizer_block(&q, m.data + offset, BLOCK, codes, &saturated);
        dequantize_block(codes, byte, block);
        for (unsigned i = 0; i < BLOCK; i++) /* by way of bfloat16, as the seed's function does */
            block[i] = moert_bf16_to_float(moert_bf16_from_float(block[i]));
        store_block(block, (unsigned char *)out + offset, dtype);
    }
    return MOERT_OK;
}
