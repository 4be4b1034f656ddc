/* core/io/families.c: the rows of layer.md 9.2: what each model family calls its tensors and configuration keys. A new
 * family is a new row. Names are those of the hub's checkpoints, as vLLM's loaders map them. */
#include "core/io/checkpoint.h"

#include <string.h>

#define GATE_UP_DOWN                                                                                                   \
    {                                                                                                                  \
        "gate_proj", "up_proj", "down_proj"                                                                            \
    }
#define W1_W3_W2                                                                                                       \
    {                                                                                                                  \
        "w1", "w3", "w2"                                                                                               \
    }

#define SOFTMAX_BY_KEY(fallback)                                                                                       \
    {                                                                                                                  \
        .kind = MOERT_ROUTER_SOFTMAX, .renormalize_key = "norm_topk_prob", .renormalize = (fallback)                   \
    }

/* DeepSeek's configuration: scoring, groups, factor; logits in f32. */
#define GROUPED(scores, normal)                                                                                        \
    {                                                                                                                  \
        .kind = MOERT_ROUTER_GROUPED, .renormalize_key = "norm_topk_prob", .renormalize = (normal),                    \
        .scoring = (scores), .scoring_key = "scoring_func", .groups_key = "n_group", .topk_groups_key = "topk_group",  \
        .factor_key = "routed_scaling_factor", .logits_dtype = MOERT_F32                                               \
    }

#define DEEPSEEK(type, scores, normal)                                                                                 \
    {                                                                                                                  \
        .model_type = (type), .experts = "mlp.experts.", .projections = {GATE_UP_DOWN},                                \
        .intermediate_keys = {"moe_intermediate_size"}, .router = "mlp.gate.weight",                                   \
        .correction = "mlp.gate.e_score_correction_bias", .shared = "mlp.shared_experts.",                             \
        .routing = GROUPED(scores, normal)                                                                             \
    }

const struct moert_family moert_families[] = {
    {.model_type = "qwen3_moe",
     .experts = "mlp.experts.",
     .projections = {GATE_UP_DOWN},
     .intermediate_keys = {"moe_intermediate_size"},
     .router = "mlp.gate.weight",
     .routing = SOFTMAX_BY_KEY(0)},
    {.model_type = "qwen2_moe",
     .experts = "mlp.experts.",
     .projections = {GATE_UP_DOWN},
     .intermediate_keys = {"moe_intermediate_size"},
     .router = "mlp.gate.weight",
     .shared = "mlp.shared_expert.",
     .shared_gate = "mlp.shared_expert_gate.weight",
     .routing = SOFTMAX_BY_KEY(0)},
    {.model_type = "mixtral",
     .experts = "block_sparse_moe.experts.",
     .projections = {W1_W3_W2, GATE_UP_DOWN},
     .intermediate_keys = {"intermediate_size"},
     .router = "block_sparse_moe.gate.weight",
     .routing = {.kind = MOERT_ROUTER_SOFTMAX, .renormalize = 1}},
    DEEPSEEK("deepseek_v2", MOERT_SCORING_SOFTMAX, 0),
    DEEPSEEK("deepseek_v3", MOERT_SCORING_SIGMOID, 1),
    DEEPSEEK("glm4_moe", MOERT_SCORING_SIGMOID, 1),
    {.model_type = "minimax_m2",
     .experts = "block_sparse_moe.experts.",
     .projections = {W1_W3_W2, GATE_UP_DOWN},
     .intermediate_keys = {"intermediate_size"},
     .router = "block_sparse_moe.gate.weight",
     .correction = "block_sparse_moe.e_score_correction_bias",
     .routing = {.kind = MOERT_ROUTER_SIGMOID, .renormalize = 1}},
    {.model_type = "gpt_oss",
     .experts = "mlp.experts.",
     .projections = {GATE_UP_DOWN},
     .fused = 1,
     .transposed = 1,
     .order = MOERT_W13_INTERLEAVED,
     .intermediate_keys = {"intermediate_size"},
     .activation = "swigluoai", /* config.json says silu */
     .router = "mlp.router.weight",
     .router_bias = "mlp.router.bias",
     .routing = {.kind = MOERT_ROUTER_TOPK_SOFTMAX}},
    {.model_type = "llama4",
     .experts = "feed_forward.experts.",
     .projections = {GATE_UP_DOWN},
     .fused = 1,
     .transposed = 1,
     .intermediate_keys = {"intermediate_size"},
     .router = "feed_forward.router.weight",
     .shared = "feed_forward.shared_expert.",
     .weight_on_input = 1,
     .routing = {.kind = MOERT_ROUTER_TOPK_SIGMOID}},
    {.model_type = "", /* every other family with fused experts */
     .experts = "mlp.experts.",
     .projections = {GATE_UP_DOWN},
     .fused = 1,
     .transposed = -1,
     .intermediate_keys = {"moe_intermediate_size", "intermediate_size"},
     .router = "mlp.gate.weight",
     .routing = SOFTMAX_BY_KEY(1)},
    {.model_type = NULL},
};

const struct moert_family *moert_family_find(const char *model_type)
{
    const struct moert_family *f = moert_families;
    size_t length = strlen(model_type);

    if (length > 5 && !strcmp(model_type + length - 5, "_text")) /* text part of a multimodal model */
        length -= 5;
    while (*f->model_type && (strlen(f->model_type) != length || strncmp(f->model_type, model_type, length)))
        f++;
    return f;
}
