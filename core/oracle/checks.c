/* core/oracle/checks.c: asking one candidate. The backend's own checks are collected as it reports them; the core adds
 * driver-state, class, opt-in, self-test or quarantine, workspace and memory. */
#include "config.h"

#include "core/oracle/trail.h"

#include "core/base/checked.h"
#include "core/base/options.h"
#include "core/base/text.h"
#include "core/layer/chunk.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAX_CHECKS   1024 /* a backend that reports more is cut; its verdict counts all the same */
#define MAX_LIST     64   /* entries of a list of values */
#define RESERVE_PART 20   /* 1/20 = 5 % of the device's memory is kept free: oracle.md 4.4 */

const char *const moert_oracle_codes[] = {
    "driver-state",
    "arch",
    "feature",
    "runtime",
    "memory",
    "scheme",
    "dtype",
    "act-and-mul",
    "activation",
    "activation-param",
    "w13-order",
    "bias",
    "experts-max",
    "topk-max",
    "tokens-max",
    "format",
    "hidden-multiple",
    "parallel",
    "map-kind",
    "hash-routing",
    "decomposed",
    "routing-method",
    "logits-dtype",
    "input-weight",
    "hook",
    "batch-invariance",
    "lora",
    "workspace",
    "class",
    "self-test",
    "quarantine",
    "opt-in",
    "rule-never",
    "rule-must",
    "not-provided",
    "unknown-name",
    "intermediate-multiple",
    NULL,
};

/* Codes whose failure means "not this device": such a candidate is no fallback (oracle.md 4.7). */
static const char *const device_codes[] = {"driver-state", "arch", "feature", "runtime", "scheme", "class", NULL};

/* ------------------------------------------------------------------ collecting */

/* Where reports go. */
struct sink_ctx {
    struct moert_arena *arena;
    struct moert_oracle_checks *checks;
};

static void copy_value(struct moert_arena *arena, struct moert_value *ret, const struct moert_value *value)
{
    *ret = (struct moert_value){.kind = value->kind, .integer = value->integer};
    if (value->kind == MOERT_VALUE_STRING) {
        ret->string = moert_arena_text(arena, value->string);
    } else if (value->kind == MOERT_VALUE_LIST) {
        const char **list;
        size_t n = 0;
        while (value->list && n < MAX_LIST && value->list[n])
            n++;
        ret->list = list = moert_arena_alloc(arena, n + 1, sizeof(*list));
        for (size_t i = 0; list && i < n; i++)
            list[i] = moert_arena_text(arena, value->list[i]);
    } else if (value->kind > MOERT_VALUE_BOOL) {
        ret->kind = MOERT_VALUE_NULL;
    }
}

static void report(void *pointer, const struct moert_check *check)
{
    struct sink_ctx *ctx = pointer;
    struct moert_oracle_checks *checks = ctx->checks;
    struct moert_check *c;

    if (!check || !MOERT_HAS(check, need)) {
        checks->fails++; /* cannot be read, so it cannot be taken for a pass */
        return;
    }
    /* A verdict of a later version counts as a failure. */
    checks->fails += check->verdict != MOERT_PASS && check->verdict != MOERT_ABSTAIN;
    if (checks->count == MAX_CHECKS)
        return;
    if (checks->count == checks->room) {
        uint32_t room = checks->room ? checks->room * 2 : 16;
        struct moert_check *grown = moert_arena_alloc(ctx->arena, room, sizeof(*grown));
        if (!grown)
            return;
        if (checks->count)
            memcpy(grown, checks->items, checks->count * sizeof(*grown));
        checks->items = grown;
        checks->room = room;
    }
    c = &checks->items[checks->count++];
    c->size = sizeof(*c);
    c->verdict = check->verdict > MOERT_ABSTAIN ? MOERT_FAIL : check->verdict;
    c->op = check->op > MOERT_OP_HAS ? MOERT_OP_NONE : check->op;
    c->code = moert_arena_text(ctx->arena, check->code);
    c->field = moert_arena_text(ctx->arena, check->field);
    copy_value(ctx->arena, &c->have, &check->have);
    copy_value(ctx->arena, &c->need, &check->need);
    c->fix = MOERT_HAS(check, fix) && check->fix ? moert_arena_text(ctx->arena, check->fix) : NULL;
}

static struct moert_value text_value(const char *text)
{
    return (struct moert_value){.kind = MOERT_VALUE_STRING, .string = text};
}

static struct moert_value list_value(const char *const *list)
{
    return (struct moert_value){.kind = MOERT_VALUE_LIST, .list = list};
}

static struct moert_value bytes_value(uint64_t bytes)
{
    return (struct moert_value){.kind = MOERT_VALUE_INT, .integer = bytes > INT64_MAX ? INT64_MAX : (int64_t)bytes};
}

static void add(struct moert_oracle_trail *trail, struct moert_oracle_candidate *c, struct moert_check check)
{
    struct sink_ctx ctx = {&trail->arena, &c->checks};

    check.size = sizeof(check);
    report(&ctx, &check);
}

/* ------------------------------------------------------------------ checks of the core */

/* A present device needs an open driver; a described one only the module that holds the backend. */
static void check_driver_state(struct moert_oracle_trail *trail, struct moert_oracle_candidate *c)
{
    static const char *const described_need[] = {"ready", "no-device", NULL};
    int described = c->device && c->device->index == MOERT_NO_INDEX;
    const char *have = c->driver ? moert_driver_state_name(c->driver->state) : "not installed";
    int pass = c->table &&
               (c->driver->state == MOERT_DRIVER_READY || (described && c->driver->state == MOERT_DRIVER_NO_DEVICE));
    struct moert_check check = {.code = "driver-state",
                                .verdict = pass ? MOERT_PASS : MOERT_FAIL,
                                .op = described ? MOERT_OP_IN : MOERT_OP_EQ,
                                .field = "driver.state",
                                .have = text_value(have ? have : "pending"),
                                .need = described ? list_value(described_need) : text_value("ready")};

    if (!pass && c->driver && c->driver->reason[0])
        check.fix = moert_arena_format(&trail->arena, "remove the cause: %s", c->driver->reason);
    else if (!pass && !c->driver)
        check.fix = moert_arena_format(&trail->arena, "install the module moert_%s.so", c->driver_name);
    else if (pass && !c->device) {
        check.verdict = MOERT_FAIL;
        check.have = text_value("no-device");
    }
    add(trail, c, check);
    if (c->device && (c->device->desc.flags & MOERT_DEVICE_F_LOST))
        add(trail, c,
            (struct moert_check){.code = "driver-state",
                                 .verdict = MOERT_FAIL,
                                 .op = MOERT_OP_EQ,
                                 .field = "device.state",
                                 .have = text_value("lost"),
                                 .need = text_value("usable"),
                                 .fix = "restart the process that uses the device"});
}

static void check_class(struct moert_oracle_trail *trail, struct moert_oracle_candidate *c)
{
    const char *list[MOERT_CLASS_COUNT + 1];
    uint32_t n = 0, allowed = MOERT_CLASSES_DEFAULT;

    if (c->named)
        allowed |= 1u << c->table->numeric_class;
    for (moert_class_t i = 0; i < MOERT_CLASS_COUNT; i++)
        if (allowed >> i & 1)
            list[n++] = moert_class_name(i);
    list[n] = NULL;
    add(trail, c,
        (struct moert_check){.code = "class",
                             .verdict = allowed >> c->table->numeric_class & 1 ? MOERT_PASS : MOERT_FAIL,
                             .op = MOERT_OP_IN,
                             .field = "class",
                             .have = text_value(moert_class_name(c->table->numeric_class)),
                             .need = list_value(list),
                             .fix = allowed >> c->table->numeric_class & 1 ? NULL : "name the backend by --backend"});
}

/* Abstains while nobody names the backend: it could serve, and is never chosen by itself. */
static void check_opt_in(struct moert_oracle_trail *trail, struct moert_oracle_candidate *c)
{
    if (!(c->table->flags & MOERT_BACKEND_F_OPT_IN))
        return;
    add(trail, c,
        (struct moert_check){.code = "opt-in",
                             .verdict = c->named ? MOERT_PASS : MOERT_ABSTAIN,
                             .op = MOERT_OP_EQ,
                             .field = "auto",
                             .have = text_value(c->named ? "named" : "not named"),
                             .need = text_value("named"),
                             .fix = c->named ? NULL : "name the backend by --backend"});
}

void moert_oracle_self_test_result(struct moert_oracle_trail *trail, struct moert_oracle_candidate *c,
                                   moert_self_test_outcome_t outcome, const char *detail)
{
    struct moert_check check = {.code = outcome == MOERT_SELF_TEST_QUARANTINE ? "quarantine" : "self-test",
                                .op = MOERT_OP_EQ,
                                .field = "backend.self_test",
                                .need = text_value("passed")};

    /* The answer of a peek gives way to that of the test. */
    for (uint32_t i = 0; i < c->checks.count; i++)
        if (!strcmp(c->checks.items[i].code, "self-test") && c->checks.items[i].verdict == MOERT_ABSTAIN) {
            memmove(&c->checks.items[i], &c->checks.items[i + 1], (c->checks.count - i - 1) * sizeof(*c->checks.items));
            c->checks.count--;
            break;
        }
    switch (outcome) {
    case MOERT_SELF_TEST_PASSED:
        check.verdict = MOERT_PASS;
        check.have = text_value("passed");
        break;
    case MOERT_SELF_TEST_UNKNOWN:
        check.verdict = MOERT_ABSTAIN;
        check.have = text_value("not run");
        break;
    default:
        check.verdict = MOERT_FAIL;
        check.have = text_value(detail && *detail ? detail : "failed");
        check.fix = "replace the module file, or pass `moert verify --backend` on it";
        break;
    }
    add(trail, c, check);
}

static void check_self_test(struct moert_oracle_trail *trail, struct moert_oracle_candidate *c)
{
    char detail[512] = "";
    moert_self_test_outcome_t outcome;

    /* A described device cannot be tested; a failing candidate is never tested. */
    if (c->device->index == MOERT_NO_INDEX || c->driver->state != MOERT_DRIVER_READY)
        return;
    outcome = moert_self_test_peek(trail->context, c->backend_index, c->device->index, detail, sizeof(detail));
    moert_oracle_self_test_result(trail, c, outcome, detail);
}

/* ------------------------------------------------------------------ memory */

struct workspace_ctx {
    const struct moert_oracle_candidate *candidate;
    const struct moert_layer_config *layer;
};

static moert_status_t workspace_of(void *pointer, uint64_t tokens, uint64_t *ret, struct moert_error *err)
{
    const struct workspace_ctx *ctx = pointer;
    const struct moert_oracle_candidate *c = ctx->candidate;
    struct moert_workspace workspace = {.size = sizeof(workspace)};
    moert_status_t status = c->table->ops->workspace(c->table, &c->device->desc, ctx->layer, tokens, &workspace, err);

    if (!status)
        *ret = workspace.bytes;
    return status;
}

/* Workspace of the largest chunk of up to max_tokens, cut as a run is (layer.md 6): it is one buffer. */
static int check_workspace(struct moert_oracle_trail *trail, struct moert_oracle_candidate *c, struct moert_error *err)
{
    struct workspace_ctx ctx = {c, &trail->question.layer};
    uint64_t chunk = 0, option = moert_config_number(MOERT_CFG_WORKSPACE_MAX), buffer = c->device->desc.max_buffer;
    struct moert_chunk_limits limits = {.layer = ctx.layer,
                                        .block_size = c->table->block_size,
                                        .workspace_max = buffer && buffer < option ? buffer : option,
                                        .workspace = workspace_of,
                                        .ctx = &ctx};
    struct moert_check check = {.code = "workspace", .verdict = MOERT_FAIL, .op = MOERT_OP_LE, .field = "workspace"};

    if (!moert_chunk_tokens(&limits, ctx.layer->max_tokens, &chunk, &c->workspace, err))
        return 0;
    if (strcmp(err->code, "workspace") || workspace_of(&ctx, 1, &c->workspace, err)) {
        check.op = MOERT_OP_NONE;
        check.have = text_value(err->text);
        add(trail, c, check);
        return -1;
    }
    check.have = bytes_value(c->workspace);
    check.need = bytes_value(limits.workspace_max);
    check.fix = c->workspace > option
                    ? moert_arena_format(&trail->arena, "MOERT_WORKSPACE_MAX of at least %" PRIu64, c->workspace)
                    : "a device with larger buffers";
    add(trail, c, check);
    return -1;
}

/* Weights and workspace against the free memory less a reserve; nothing is said when the free memory is not known. */
static void check_memory(struct moert_oracle_trail *trail, struct moert_oracle_candidate *c)
{
    struct moert_error err = MOERT_ERROR_INIT;
    struct moert_layout layout = {.size = sizeof(layout)};
    const struct moert_device_desc *d = &c->device->desc;
    uint64_t need, usable, reserve = (d->memory_total ? d->memory_total : d->memory_free) / RESERVE_PART;

    if (c->table->ops->layout(c->table, d, &trail->question.layer, &layout, &err)) {
        add(trail, c,
            (struct moert_check){
                .code = "memory", .verdict = MOERT_FAIL, .field = "layout", .have = text_value(err.text)});
        return;
    }
    c->weights = layout.bytes;
    c->load_ns = layout.load_ns;
    if (check_workspace(trail, c, &err))
        return;
    c->has_cost = 1;
    if (!d->memory_free)
        return;
    usable = d->memory_free > reserve ? d->memory_free - reserve : 0;
    if (!moert_add(c->weights, c->workspace, &need))
        need = UINT64_MAX;
    add(trail, c,
        (struct moert_check){
            .code = "memory",
            .verdict = usable >= need ? MOERT_PASS : MOERT_FAIL,
            .op = MOERT_OP_GE,
            .field = "device.memory_free",
            .have = bytes_value(usable),
            .need = bytes_value(need),
            .fix = usable >= need
                       ? NULL
                       : moert_arena_format(&trail->arena, "free %" PRIu64 " more bytes on %s", need - usable, d->id)});
}

/* ------------------------------------------------------------------ asking */

void moert_oracle_ask(struct moert_oracle_trail *trail, struct moert_oracle_candidate *c)
{
    struct sink_ctx ctx = {&trail->arena, &c->checks};
    struct moert_check_sink sink = {.size = sizeof(sink), .ctx = &ctx, .report = report};

    if (c->not_provided) {
        add(trail, c,
            (struct moert_check){.code = "not-provided",
                                 .verdict = MOERT_FAIL,
                                 .field = "backend",
                                 .have = text_value(c->not_provided)});
        c->verdict = MOERT_CANDIDATE_NOT_PROVIDED;
        return;
    }
    /* The backend's checks of the device come first in the list (C51), so the core's follow. */
    if (c->table && c->device)
        c->table->ops->supports(c->table, &c->device->desc, trail->question.asked, &sink);
    check_driver_state(trail, c);
    if (c->table && c->device) {
        check_class(trail, c);
        check_opt_in(trail, c);
        check_self_test(trail, c);
        /* Sizes of a layer that the backend refuses mean nothing. */
        if (!c->checks.fails)
            check_memory(trail, c);
    }
    c->verdict = c->checks.fails ? MOERT_CANDIDATE_REFUSED : MOERT_CANDIDATE_ELIGIBLE;
}

int moert_oracle_applicable(const struct moert_oracle_candidate *c)
{
    if (!c->table || !c->device)
        return 0;
    for (uint32_t i = 0; i < c->checks.count; i++)
        for (const char *const *code = device_codes; *code; code++)
            if (c->checks.items[i].verdict == MOERT_FAIL && !strcmp(c->checks.items[i].code, *code))
                return 0;
    return 1;
}

/* ------------------------------------------------------------------ text */

static void value_text(struct moert_text *text, const struct moert_value *v)
{
    switch (v->kind) {
    case MOERT_VALUE_INT: moert_text_add(text, "%" PRId64, v->integer); break;
    case MOERT_VALUE_BOOL: moert_text_add(text, "%s", v->integer ? "true" : "false"); break;
    case MOERT_VALUE_STRING: moert_text_add(text, "%s", v->string); break;
    case MOERT_VALUE_LIST:
        for (const char *const *s = v->list; s && *s; s++)
            moert_text_add(text, "%s%s", s == v->list ? "" : ", ", *s);
        break;
    default: moert_text_add(text, "nothing"); break;
    }
}

static void check_text(struct moert_text *text, const struct moert_check *check)
{
    static const char *const before[] = {"", "", "one of ", ">= ", "<= ", "< ", "multiple of ", ""};

    moert_text_add(text, "%s have ", check->code);
    value_text(text, &check->have);
    if (check->need.kind == MOERT_VALUE_NULL)
        return;
    moert_text_add(text, " need %s", before[check->op]);
    value_text(text, &check->need);
}

const char *moert_oracle_fails_text(struct moert_arena *arena, const struct moert_oracle_candidate *c)
{
    struct moert_text text = {0};
    const char *ret;

    if (c->not_provided)
        return moert_arena_format(arena, "not provided here: %s", c->not_provided);
    for (uint32_t i = 0; i < c->checks.count; i++) {
        if (c->checks.items[i].verdict != MOERT_FAIL)
            continue;
        if (text.length)
            moert_text_add(&text, "; ");
        check_text(&text, &c->checks.items[i]);
    }
    ret = moert_arena_text(arena, text.text ? text.text : "");
    moert_text_free(&text);
    return ret;
}
