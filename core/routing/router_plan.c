/* core/routing/router_plan.c: checks of a router description and of a routing call (routing.md 2.2, 2.3), defaults, and
 * the scratch memory of one row. */
#include "config.h"

#include "core/base/checked.h"
#include "core/base/error.h"
#include "core/routing/router.h"
#include "core/routing/rows.h"
#include "core/routing/slot.h"

#include <math.h>
#include <stdlib.h>

static uint32_t groups_of(const struct moert_router_config *r)
{
    return r->kind == MOERT_ROUTER_GROUPED && r->num_groups ? r->num_groups : 1;
}

static uint32_t kept_groups_of(const struct moert_router_config *r)
{
    return r->kind == MOERT_ROUTER_GROUPED && r->topk_groups ? r->topk_groups : groups_of(r);
}

static moert_status_t check_fields(const struct moert_router_config *r, uint32_t num_experts, struct moert_error *err)
{
    if (r->kind >= MOERT_ROUTER_KIND_COUNT)
        return moert_fail(err, MOERT_E_VALUE, "field", "router.kind is %u; must be below %u", r->kind,
                          MOERT_ROUTER_KIND_COUNT);
    if (r->scoring >= MOERT_SCORING_COUNT)
        return moert_fail(err, MOERT_E_VALUE, "field", "router.scoring is %u; must be below %u", r->scoring,
                          MOERT_SCORING_COUNT);
    if (r->scale_at >= MOERT_SCALE_AT_COUNT)
        return moert_fail(err, MOERT_E_VALUE, "field", "router.scale_at is %u; must be below %u", r->scale_at,
                          MOERT_SCALE_AT_COUNT);
    if (!num_experts || num_experts > MOERT_MAX_EXPERTS)
        return moert_fail(err, MOERT_E_VALUE, "size", "num_experts is %u; must be 1..%u", num_experts,
                          MOERT_MAX_EXPERTS);
    return MOERT_OK;
}

static moert_status_t check_groups(uint32_t groups, uint32_t kept, uint32_t num_experts, int bias,
                                   struct moert_error *err)
{
    if (num_experts % groups)
        return moert_fail(err, MOERT_E_VALUE, "groups", "%u experts do not divide into %u groups", num_experts, groups);
    if (kept > groups)
        return moert_fail(err, MOERT_E_VALUE, "groups", "topk_groups %u of %u", kept, groups);
    if (bias && groups > 1 && num_experts / groups < 2)
        return moert_fail(err, MOERT_E_VALUE, "groups",
                          "correction bias needs groups of at least 2 experts; %u experts in %u groups", num_experts,
                          groups);
    return MOERT_OK;
}

moert_status_t moert_router_check(const struct moert_router_config *router, uint32_t num_experts, uint32_t top_k,
                                  int bias, struct moert_error *err)
{
    moert_status_t status;
    uint32_t groups, kept, most;

    if (!router)
        return moert_fail_null(err, "router");
    status = moert_check_size(err, "moert_router_config", router->size, sizeof(*router));
    if (!status)
        status = check_fields(router, num_experts, err);
    if (status)
        return status;
    groups = groups_of(router);
    kept = kept_groups_of(router);
    status = check_groups(groups, kept, num_experts, bias, err);
    if (status)
        return status;
    most = kept * (num_experts / groups);
    if (top_k >= 1 && top_k <= most)
        return MOERT_OK;
    if (!top_k)
        return moert_fail(err, MOERT_E_VALUE, "topk-range", "top_k is 0; allowed 1..%u", most);
    if (groups > 1)
        return moert_fail(err, MOERT_E_VALUE, "topk-range",
                          "top_k %u exceeds the %u experts that can be selected (%u groups of %u); allowed 1..%u",
                          top_k, most, kept, num_experts / groups, most);
    return moert_fail(err, MOERT_E_VALUE, "topk-range", "top_k %u exceeds the %u experts; allowed 1..%u", top_k, most,
                      most);
}

static moert_status_t check_bias(const float *bias, uint32_t num_experts, struct moert_error *err)
{
    for (uint32_t e = 0; bias && e < num_experts; e++)
        if (!isfinite(bias[e]))
            return moert_fail(err, MOERT_E_VALUE, "nonfinite-bias", "correction_bias[%u] is %s; must be finite", e,
                              isnan(bias[e]) ? "NaN"
                              : bias[e] > 0  ? "Inf"
                                             : "-Inf");
    return MOERT_OK;
}

/* Pointers, dtype and the extent of every array of the call. */
static moert_status_t check_arrays(const struct moert_route_args *a, uint32_t columns, uint64_t stride,
                                   struct moert_error *err)
{
    const char *name = moert_dtype_name(a->logits_dtype);
    uint64_t n;

    if (!moert_row_dtype(a->logits_dtype))
        return moert_fail(err, MOERT_E_DTYPE, "tensor-dtype", "logits are %s, expected F32, BF16 or F16",
                          name ? name : "of an unknown dtype");
    if (stride < columns)
        return moert_fail(err, MOERT_E_SHAPE, "tensor-shape", "logits_stride is %llu, rows have %u columns",
                          (unsigned long long)stride, columns);
    if (!moert_mul(a->tokens, stride, &n) || !moert_mul(n, sizeof(double), &n) ||
        !moert_mul(a->tokens, (uint64_t)a->top_k + a->num_fused_shared, &n) || !moert_mul(n, sizeof(double), &n))
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large",
                          "%llu tokens with rows of %llu logits do not fit in memory", (unsigned long long)a->tokens,
                          (unsigned long long)stride);
    if (!a->tokens)
        return MOERT_OK;
    if (!a->logits)
        return moert_fail_null(err, "logits");
    if (!a->ids)
        return moert_fail_null(err, "ids");
    if (!a->weights)
        return moert_fail_null(err, "weights");
    return MOERT_OK;
}

static moert_status_t check_call(const struct moert_router_config *router, const struct moert_route_args *args,
                                 struct moert_error *err)
{
    moert_status_t status;
    double factor;

    if (!args)
        return moert_fail_null(err, "args");
    status = moert_check_size(err, "moert_route_args", args->size, sizeof(*args));
    if (!status)
        status = moert_router_check(router, args->num_experts, args->top_k, args->correction_bias != NULL, err);
    if (!status)
        status = check_bias(args->correction_bias, args->num_experts, err);
    if (status)
        return status;
    if (router->kind == MOERT_ROUTER_GIVEN)
        return moert_fail(err, MOERT_E_VALUE, "field",
                          "router kind \"given\" takes ids and weights from the caller; there is nothing to route");
    if ((uint64_t)args->num_experts + args->num_fused_shared > MOERT_MAX_EXPERTS)
        return moert_fail(err, MOERT_E_TOO_LARGE, "too-large", "%u experts + %u fused shared exceed %u",
                          args->num_experts, args->num_fused_shared, MOERT_MAX_EXPERTS);
    factor = router->scaling_factor;
    if (!isfinite(factor) || factor < 0)
        return moert_fail(err, MOERT_E_VALUE, "field", "router.scaling_factor is %g; must be finite and above 0",
                          factor);
    return MOERT_OK;
}

static moert_scoring_t scoring_of(const struct moert_router_config *r, int bias)
{
    switch (r->kind) {
    case MOERT_ROUTER_SIGMOID:
    case MOERT_ROUTER_TOPK_SIGMOID: return MOERT_SCORING_SIGMOID;
    case MOERT_ROUTER_SQRT_SOFTPLUS: return MOERT_SCORING_SQRT_SOFTPLUS;
    case MOERT_ROUTER_GROUPED:
        if (r->scoring != MOERT_SCORING_AUTO)
            return r->scoring;
        return bias ? MOERT_SCORING_SIGMOID : MOERT_SCORING_SOFTMAX;
    default: return MOERT_SCORING_SOFTMAX;
    }
}

static int renormalizes(const struct moert_router_config *r)
{
    if (r->kind == MOERT_ROUTER_TOPK_SOFTMAX)
        return 1;
    return r->kind != MOERT_ROUTER_TOPK_SIGMOID && r->renormalize;
}

/* One block for all scratch, widest elements first. */
static int take_scratch(struct moert_router_plan *p)
{
    uint64_t k = p->args->top_k, e = p->args->num_experts;
    uint64_t doubles = e + 2 * k + p->kept_groups;

    p->memory = malloc(doubles * sizeof(double) + p->kept_groups * sizeof(int32_t) + p->columns * sizeof(float));
    if (!p->memory)
        return 0;
    p->keys = p->memory;
    p->best = p->keys + e;
    p->log_scores = p->best + k;
    p->group_best = p->log_scores + k;
    p->group_ids = (int32_t *)(p->group_best + p->kept_groups);
    p->x = (float *)(p->group_ids + p->kept_groups);
    return 1;
}

moert_status_t moert_router_plan_make(const struct moert_router_config *router, const struct moert_route_args *args,
                                      struct moert_router_plan *ret, struct moert_error *err)
{
    moert_status_t status = check_call(router, args, err);
    struct moert_router_plan p = {.args = args};
    double factor;
    int at_output;

    if (status)
        return status;
    factor = router->scaling_factor != 0 ? router->scaling_factor : 1;
    at_output = router->scale_at == MOERT_SCALE_AT_OUTPUT;
    p.scoring = scoring_of(router, args->correction_bias != NULL);
    p.renormalize = renormalizes(router);
    p.factor = at_output ? 1 : factor;
    p.shared_weight = router->shared_weight != 0 ? router->shared_weight : at_output ? 1 / factor : 1;
    p.groups = groups_of(router);
    p.kept_groups = kept_groups_of(router);
    p.columns = args->num_experts + (args->shared_columns ? args->num_fused_shared : 0);
    p.stride = args->logits_stride ? args->logits_stride : p.columns;
    status = check_arrays(args, p.columns, p.stride, err);
    if (status)
        return status;
    if (!take_scratch(&p))
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for a router row of %u experts",
                          args->num_experts);
    *ret = p;
    return MOERT_OK;
}

void moert_router_plan_clear(struct moert_router_plan *plan)
{
    free(plan->memory);
    plan->memory = NULL;
}
