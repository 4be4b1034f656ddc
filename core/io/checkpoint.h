/* core/io/checkpoint.h: parts of a checkpoint and how its tensors are found; internal to core/io.
 *
 * Flow: checkpoint_open.c maps the files and indexes their tensors by name; checkpoint_config.c reads config.json by
 * the family's row (families.c); checkpoint_layer.c describes one layer and finds how its experts are stored;
 * checkpoint_expert.c assembles one expert; checkpoint_load.c feeds a layer. */
#ifndef MOERT_IO_CHECKPOINT_H
#define MOERT_IO_CHECKPOINT_H

#include <moert/checkpoint.h>
#include <moert/layer_config.h>

#include <jansson.h>

#define MOERT_NAME_MAX 512

/* One way in which a router is described by config.json. Keys NULL: the fixed value holds. */
struct moert_family_router {
    moert_router_kind_t kind;
    const char *renormalize_key;
    uint32_t renormalize; /* without the key */
    moert_scoring_t scoring;
    const char *scoring_key;
    const char *groups_key, *topk_groups_key, *factor_key;
    moert_dtype_t logits_dtype;
};

/* A row of layer.md 9.2. Names follow "<base>layers.<L>.". */
struct moert_family {
    const char *model_type;        /* NULL ends the table; "" is the row of other fused families */
    const char *experts;           /* "mlp.experts." */
    const char *projections[2][3]; /* gate, up, down; the second set is an alternative */
    int fused;                     /* 1: gate_up_proj and down_proj with an expert axis */
    int transposed;                /* fused: 1 [E,H,2I], 0 [E,2I,H], -1 must be given */
    moert_w13_order_t order;
    const char *intermediate_keys[2];
    const char *activation; /* NULL: hidden_act */
    const char *router, *router_bias, *correction;
    const char *shared, *shared_gate;
    uint32_t weight_on_input;
    struct moert_family_router routing;
};
const struct moert_family *moert_family_find(const char *model_type); /* never NULL */
extern const struct moert_family moert_families[];

/* What the configuration files say about quantised weights. */
enum moert_quant_form { MOERT_QUANT_NONE, MOERT_QUANT_MXFP8, MOERT_QUANT_LUT_B, MOERT_QUANT_OTHER };

struct moert_named_tensor {
    const struct moert_st_tensor *tensor;
    uint32_t file;
};

struct moert_checkpoint {
    char *path; /* directory or layer file */
    struct moert_checkpoint_options options;
    char model_type[64];
    const struct moert_family *family; /* NULL: a layer file */
    json_t *config;                    /* config.json; NULL for a layer file */
    const json_t *model;               /* config or its text_config */
    enum moert_quant_form quant;
    char quant_name[64]; /* as the configuration writes it, for messages */
    char base[64];       /* "model." */
    moert_safetensors_t **files;
    uint32_t file_count;
    struct moert_named_tensor *tensors; /* by name */
    uint64_t tensor_count;
    uint32_t *layers; /* ascending */
    uint32_t layer_count;
    struct moert_layer_config layer; /* layer file: its description, checked */
};

/* How the experts of one layer are stored. X + suffixes[0] holds codes or plain weights, X + suffixes[1] scales or
 * codebooks. */
struct moert_experts {
    int stacked;    /* one tensor with an expert axis; else one per expert and projection */
    int transposed; /* stacked: [E,K,N] */
    moert_scheme_t scheme;
    const char *suffixes[2];
    char prefix[MOERT_NAME_MAX];
    const char *names[3];  /* single: gate, up, down; stacked: w13, NULL, w2 */
    const char *biases[2]; /* stacked: w13, w2 */
};

/* checkpoint_open.c */
const struct moert_st_tensor *moert_checkpoint_tensor(const moert_checkpoint_t *c, const char *name);
/* The same with moert_st_check; tensor-missing with the nearest name. */
moert_status_t moert_checkpoint_get(const moert_checkpoint_t *c, const char *name, moert_dtype_t dtype, uint32_t rank,
                                    const uint64_t *shape, const struct moert_st_tensor **ret, struct moert_error *err);
/* Index of the first name that is not before `prefix`. */
uint64_t moert_checkpoint_lower_bound(const moert_checkpoint_t *c, const char *prefix);
moert_status_t moert_checkpoint_missing(const moert_checkpoint_t *c, const char *name, struct moert_error *err);

/* checkpoint_config.c */
moert_status_t moert_checkpoint_read_config(moert_checkpoint_t *c, struct moert_error *err);
/* Sizes, activation and router of config.json into `ret` (initialised). */
moert_status_t moert_checkpoint_describe(const moert_checkpoint_t *c, struct moert_layer_config *ret,
                                         struct moert_error *err);

/* checkpoint_layer.c */
moert_status_t moert_checkpoint_experts(const moert_checkpoint_t *c, const struct moert_layer_config *layer,
                                        uint32_t number, struct moert_experts *ret, struct moert_error *err);
/* Scheme and suffixes of the weight X as its tensors show them. */
moert_status_t moert_checkpoint_scheme(const moert_checkpoint_t *c, const char *x, moert_scheme_t *ret,
                                       const char *ret_suffixes[2], struct moert_error *err);
/* "<base>layers.<number>.<rest>" */
void moert_checkpoint_name(const moert_checkpoint_t *c, uint32_t number, const char *rest, char out[MOERT_NAME_MAX]);

/* checkpoint_expert.c: shape and dtype of X + suffix for `rows` x `cols` weights (rank 2 or, lut-b, 3); part 0 codes, 1
 * scales. */
uint32_t moert_part_shape(moert_scheme_t scheme, int part, uint64_t rows, uint64_t cols, uint64_t ret[3],
                          moert_dtype_t *ret_dtype);
moert_status_t moert_checkpoint_weight(const moert_checkpoint_t *c, const char *x, const char *suffix,
                                       moert_scheme_t scheme, int part, uint64_t rows, uint64_t cols,
                                       const struct moert_st_tensor **ret, struct moert_error *err);

/* Assembly of a layer's experts, one after another, in one block: w13, its scales, its bias, w2, its scales, its bias.
 * init, assemble for each expert (valid until the next), free(block). */
struct moert_expert_build {
    const moert_checkpoint_t *c;
    const struct moert_layer_config *layer;
    struct moert_experts experts;
    uint32_t expert, experts_in_file;
    uint64_t n1;
    uint8_t *block; /* malloc'ed */
    uint64_t block_bytes;
    struct moert_error *err;
};
moert_status_t moert_expert_build_init(struct moert_expert_build *build, const moert_checkpoint_t *c,
                                       const struct moert_layer_config *layer, uint32_t number,
                                       struct moert_error *err);
moert_status_t moert_expert_assemble(struct moert_expert_build *build, uint32_t expert,
                                     struct moert_layer_weights *ret);

#endif
