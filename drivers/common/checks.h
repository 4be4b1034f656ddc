/* drivers/common/checks.h: a backend's capabilities as data, and the one function that turns them into support checks.
 *
 * moert_backend_ops.supports of most backends is one call of mdrv_caps_report: it asks every question of oracle.md 3
 * that a device and a layer description can answer, device questions first, and reports each with the values compared
 * and the smallest change that would pass. What is not stated in the table is "no" (architecture.md: capabilities are
 * never inherited). Everything is pure: no allocation, no device call, no log. */
#ifndef MOERT_DRIVERS_COMMON_CHECKS_H
#define MOERT_DRIVERS_COMMON_CHECKS_H

#include <moert/driver.h>

#define MDRV_BIT(value) (1u << (value))

/* All kinds of a set. */
#define MDRV_ANY_ACTIVATION    (MDRV_BIT(MOERT_ACT_COUNT) - 1u)
#define MDRV_GATED_ACTIVATIONS (MDRV_BIT(MOERT_ACT_SILU_NO_MUL) - 1u)
#define MDRV_ANY_W13_ORDER     (MDRV_BIT(MOERT_W13_ORDER_COUNT) - 1u)
#define MDRV_ANY_ROUTER        (MDRV_BIT(MOERT_ROUTER_KIND_COUNT) - 1u)
#define MDRV_FLOAT_DTYPES      (MDRV_BIT(MOERT_F32) | MDRV_BIT(MOERT_BF16) | MDRV_BIT(MOERT_F16))

/* An activation parameter that a backend fixes: for `kind`, `param` (one MOERT_PARAM_* bit) must be `value`, or must
 * not be set at all (MDRV_PARAM_UNSET). A parameter that no entry names is computed as given. */
enum { MDRV_PARAM_EQUALS = 0, MDRV_PARAM_UNSET = 1 };
struct mdrv_param_rule {
    moert_activation_t kind;
    uint32_t param;
    uint32_t rule;
    double value;
};

struct mdrv_caps {
    /* device */
    const char *const *archs;    /* exact names, NULL-terminated; NULL: every arch */
    const char *const *features; /* words that the device must list, NULL-terminated; NULL: none */
    const char *runtime_min;     /* "13.4"; NULL: any */
    /* layer; sets are MDRV_BIT(value) of the enum */
    uint32_t dtypes;
    uint32_t activations;
    uint32_t w13_orders;    /* asked only of gated activations */
    uint32_t bias;          /* 1: w13_bias and w2_bias are added */
    uint32_t expert_map;    /* 1: slots of experts that are not here are skipped */
    uint32_t input_weight;  /* 1: the router weight may be put on the input */
    uint32_t routers;       /* kinds served; asked only of backends with MOERT_BACKEND_F_ROUTES */
    uint32_t logits_dtypes; /* the same */
    uint32_t hidden_multiple, intermediate_multiple; /* 0 or 1: any */
    uint32_t experts_max;                            /* of the id space, fused shared ones included; 0: no limit */
    uint32_t topk_max;                               /* K + n; 0: no limit */
    uint64_t tokens_max;                             /* per run; 0: no limit */
    const struct mdrv_param_rule *param_rules;
    uint32_t param_rule_count;
};

/* Reports every check of `caps` for (device, layer) to `sink`; the scheme pairs are the backend's own. A layer struct
 * that is larger than this header's and not zero there is answered by an `abstain`. */
void mdrv_caps_report(const struct moert_backend *backend, const struct mdrv_caps *caps,
                      const struct moert_device_desc *device, const struct moert_layer_config *layer,
                      const struct moert_check_sink *sink);

/* For questions of a backend's own. Each reports one check; `fix` is used when it fails. Returns 1 when it passed. */
int mdrv_check_at_most(const struct moert_check_sink *sink, const char *code, const char *field, uint64_t have,
                       uint64_t need, const char *fix);
int mdrv_check_at_least(const struct moert_check_sink *sink, const char *code, const char *field, uint64_t have,
                        uint64_t need, const char *fix);
int mdrv_check_multiple(const struct moert_check_sink *sink, const char *code, const char *field, uint64_t have,
                        uint64_t need);
/* `set` NULL-terminated; equal strings. */
int mdrv_check_in(const struct moert_check_sink *sink, const char *code, const char *field, const char *have,
                  const char *const *set, const char *fix);
/* A verdict found by other means, with its values as text (need NULL: none). */
int mdrv_check_text(const struct moert_check_sink *sink, const char *code, const char *field, moert_verdict_t verdict,
                    moert_check_op_t op, const char *have, const char *need, const char *fix);

/* 1 when the words of `device->features` hold `word`. */
int mdrv_device_has(const struct moert_device_desc *device, const char *word);
/* Dotted numbers: < 0, 0, > 0 as a is older than, equal to, newer than b. */
int mdrv_version_compare(const char *a, const char *b);

#endif
