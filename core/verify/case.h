/* core/verify/case.h: a layer with made-up weights and one batch for it, the material of every comparison. */
#ifndef MOERT_VERIFY_CASE_H
#define MOERT_VERIFY_CASE_H

#include <moert/verify.h>

enum {
    CASE_BIAS = 1u << 0,
    CASE_MAP = 1u << 1,          /* half of the experts live elsewhere */
    CASE_INPUT_WEIGHT = 1u << 2, /* router weight on the input, K = 1 */
    CASE_INVALID_IDS = 1u << 3,  /* -1, E, INT32_MIN, INT32_MAX among the ids; their weights are NaN */
    CASE_EMPTY_EXPERT = 1u << 4, /* expert 0 gets no token */
    CASE_REPEATED_IDS = 1u << 5, /* both slots of a token name one expert */
    CASE_SKEWED = 1u << 6,       /* nearly all slots go to one expert */
    CASE_LOGITS = 1u << 7,       /* softmax router from logits */
    CASE_MXFP8_INPUT = 1u << 8,  /* x given as codes and scales */
    CASE_UNREDUCED = 1u << 9,    /* rows and index instead of the sum */
    CASE_DEVICE = 1u << 10,      /* every tensor in device buffers */
    CASE_WIDE = 1u << 11         /* activations over many binades, zero rows, subnormals */
};

struct moert_case {
    const char *name;
    moert_scheme_t weight, activation_scheme;
    moert_dtype_t dtype;
    moert_activation_t activation;
    moert_w13_order_t order;
    uint32_t hidden, intermediate, experts, top_k, tokens;
    uint32_t flags;
    uint32_t quick; /* also in the self-test's short list */
};

extern const struct moert_case moert_cases[];
extern const uint32_t moert_case_count;

/* Everything a case needs, in one allocation arena. */
struct moert_case_data {
    const struct moert_case *c;
    struct moert_layer_config config; /* checked */
    int32_t *map;                     /* [E] or NULL */
    void *w13, *w13_scale, *w13_bias, *w2, *w2_scale, *w2_bias;
    uint64_t w13_bytes, w13_scale_bytes, w2_bytes, w2_scale_bytes;
    double *w2_values; /* decoded w2 [E_l,H,I] */
    void *x;           /* [T,H] d */
    uint8_t *x_codes, *x_scales;
    int32_t *ids;   /* [T,K] */
    float *weights; /* [T,K] */
    float *logits;  /* [T,E] or NULL */
    void **blocks;
    uint32_t block_count;
};

/* Builds the data of `c` from a seed. */
moert_status_t moert_case_make(const struct moert_case *c, uint64_t seed, struct moert_case_data *ret,
                               struct moert_error *err);
void moert_case_free(struct moert_case_data *data);
/* Gives the weights of all local experts to a layer. */
moert_status_t moert_case_load(const struct moert_case_data *data, moert_layer_t *layer, struct moert_error *err);
/* Canonical weights of local experts [first, first+count) as host tensors. */
struct moert_layer_weights moert_case_weights(const struct moert_case_data *data, uint32_t first, uint32_t count);
/* The batch as host tensors (output and the rest are the caller's). */
struct moert_layer_args moert_case_args(const struct moert_case_data *data);
/* 1 when slot s of the batch is local. */
int moert_case_local(const struct moert_case_data *data, uint64_t slot, uint32_t *ret_expert);

/* Deterministic numbers. */
uint64_t moert_case_random(uint64_t *state);
double moert_case_gauss(uint64_t *state);

#endif
