/* core/oracle/select.c: the walk from a layer description to a decision (oracle.md 4):
 *
 *   question   -> who asks for what: layer, phase, a backend named by the user
 *   collect    -> every candidate (candidates.c)
 *   ask        -> every check of every candidate (checks.c)
 *   remove     -> what the rules rule out; today the one rule is the user's --backend
 *   rank       -> order of trial (rank.c)
 *   choose     -> the first eligible one whose self-test passes
 *   explain    -> fallback, warnings, reason; the record is made when it is read (explain.c)
 */
#include "config.h"

#include "core/oracle/trail.h"

#include "core/base/error.h"
#include "core/layer/describe.h"
#include "core/base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DECODE_MAX_TOKENS 64 /* oracle.md 3 */
#define LAYER_SIZE_MAX    65536

void moert_oracle_warn(struct moert_oracle_trail *trail, const char *text)
{
    if (trail->warning_count < sizeof(trail->warnings) / sizeof(*trail->warnings))
        trail->warnings[trail->warning_count++] = text;
}

/* ------------------------------------------------------------------ the question */

static moert_status_t read_options(const struct moert_select_options *options, struct moert_select_options *ret,
                                   struct moert_error *err)
{
    *ret = (struct moert_select_options){.size = sizeof(*ret)};
    if (!options)
        return MOERT_OK;
    if (moert_check_size(err, "moert_select_options", options->size, sizeof(*options)))
        return MOERT_E_USAGE;
    if (options->flags)
        return moert_fail(err, MOERT_E_USAGE, "flag", "unknown flag bit %d", __builtin_ctz(options->flags));
    if (options->described_count && !options->described)
        return moert_fail_null(err, "described");
    if (options->policy_name && !moert_text_same_name(options->policy_name, "default"))
        return moert_fail(err, MOERT_E_VALUE, "field", "unknown policy \"%.80s\"; known: default",
                          options->policy_name);
    *ret = *options;
    return MOERT_OK;
}

/* "NAME@DEVICE" into its halves. */
static void read_forced(struct moert_oracle_trail *trail, const char *backend)
{
    char *name = moert_arena_text(&trail->arena, backend), *at = strchr(name, '@');

    if (at) {
        *at = 0;
        trail->question.force_device = at + 1;
    }
    trail->question.force_name = name;
}

/* The completed description with its tail of fields that are unknown here: backends abstain on those (oracle.md 12,
 * Q12). Inside the core the struct is as large as the core knows it. */
static void keep_tail(struct moert_oracle_trail *trail, const struct moert_layer_config *layer)
{
    struct moert_oracle_question *q = &trail->question;
    char *whole = moert_arena_alloc(&trail->arena, layer->size, 1);

    q->layer.size = sizeof(q->layer);
    q->asked = whole ? (const struct moert_layer_config *)(void *)whole : &q->layer;
    if (!whole)
        return;
    memcpy(whole, layer, layer->size);
    memcpy(whole, &q->layer, sizeof(q->layer));
    ((struct moert_layer_config *)(void *)whole)->size = layer->size;
}

static moert_status_t read_question(struct moert_oracle_trail *trail, const struct moert_layer_config *layer,
                                    const struct moert_select_options *options, struct moert_error *err)
{
    struct moert_oracle_question *q = &trail->question;
    moert_status_t status = moert_check_size(err, "moert_layer_config", layer->size, sizeof(*layer));
    int32_t *map;

    if (!status && layer->size > LAYER_SIZE_MAX)
        status = moert_fail(err, MOERT_E_USAGE, "struct-size",
                            "struct moert_layer_config has size %u, more than %d of any version", layer->size,
                            LAYER_SIZE_MAX);
    if (status)
        return status;
    q->layer = *layer;
    status = moert_layer_config_check(&q->layer, err);
    if (status)
        return status;
    if (q->layer.expert_map_length) {
        map = moert_arena_alloc(&trail->arena, q->layer.expert_map_length, sizeof(*map));
        if (map)
            memcpy(map, q->layer.expert_map, q->layer.expert_map_length * sizeof(*map));
        q->layer.expert_map = map;
    }
    keep_tail(trail, layer);
    q->tokens = options->tokens;
    q->phase =
        (q->tokens ? q->tokens : q->layer.max_tokens) <= DECODE_MAX_TOKENS ? MOERT_PHASE_DECODE : MOERT_PHASE_PREFILL;
    q->policy = "default";
    if (options->device)
        q->only_device = moert_arena_text(&trail->arena, options->device);
    if (options->backend)
        read_forced(trail, options->backend);
    return trail->arena.failed ? moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for a decision") : MOERT_OK;
}

/* ------------------------------------------------------------------ rules */

static moert_status_t check_device_name(const struct moert_oracle_trail *trail, const char *id, struct moert_error *err)
{
    struct moert_text known = {0};

    if (!id)
        return MOERT_OK;
    for (uint32_t i = 0; i < trail->device_count; i++) {
        if (moert_text_same_name(trail->devices[i].desc.id, id))
            return MOERT_OK;
        moert_text_add(&known, "%s%s", i ? ", " : "", trail->devices[i].desc.id);
    }
    moert_fail(err, MOERT_E_VALUE, "device-unknown", "unknown device \"%.80s\"; known: %s", id,
               known.text ? known.text : "none");
    moert_text_free(&known);
    return MOERT_E_VALUE;
}

static int on_device(const struct moert_oracle_candidate *c, const char *id)
{
    return !id || (c->device && moert_text_same_name(c->device->desc.id, id));
}

/* Does the user's --backend name this candidate's backend? A module that could not be asked is named by its prefix. */
static int is_named(const struct moert_oracle_candidate *c, const char *name)
{
    if (c->table)
        return moert_oracle_name_matches(c->table, name);
    return !c->not_provided && moert_text_glob(c->backend, name, 1);
}

/* Names first: a name that leads nowhere is told before anything is asked. Marks the candidates that are named. */
static moert_status_t read_rules(struct moert_oracle_trail *trail, struct moert_error *err)
{
    const struct moert_oracle_question *q = &trail->question;
    moert_status_t status = check_device_name(trail, q->force_device, err);

    if (!status)
        status = check_device_name(trail, q->only_device, err);
    if (!status && q->force_name)
        status = moert_oracle_resolve(trail, q->force_name, err);
    if (status || !q->force_name)
        return status;
    for (uint32_t i = 0; i < trail->candidate_count; i++)
        trail->candidates[i]->named =
            is_named(trail->candidates[i], q->force_name) && on_device(trail->candidates[i], q->force_device);
    return MOERT_OK;
}

/* --backend is the user's rule "must NAME onfail error", the device option narrows likewise. The levels of rules files
 * (oracle.md 4.2: user, model, platform) are walked here. */
static void remove_by_rules(struct moert_oracle_trail *trail)
{
    const struct moert_oracle_question *q = &trail->question;

    for (uint32_t i = 0; i < trail->candidate_count; i++) {
        struct moert_oracle_candidate *c = trail->candidates[i];
        const char *rule = NULL;

        if (c->verdict == MOERT_CANDIDATE_NOT_PROVIDED)
            continue;
        if (q->force_name && !c->named)
            rule = "--backend";
        else if (!on_device(c, q->only_device))
            rule = "--device";
        if (!rule)
            continue;
        c->removed_by.level = MOERT_LEVEL_USER;
        c->removed_by.rule = rule;
        c->removed_by.code = "rule-must";
        c->verdict = MOERT_CANDIDATE_REMOVED;
    }
}

/* ------------------------------------------------------------------ choosing */

static int may_be_chosen(const struct moert_oracle_candidate *c)
{
    return c->verdict == MOERT_CANDIDATE_ELIGIBLE && (c->named || !(c->table->flags & MOERT_BACKEND_F_OPT_IN));
}

/* The self-test of a candidate that is about to win. A failure refuses it and is no error of the selection. */
static moert_status_t self_test(struct moert_oracle_trail *trail, struct moert_oracle_candidate *c,
                                struct moert_error *err)
{
    moert_self_test_outcome_t outcome = MOERT_SELF_TEST_UNKNOWN;
    char detail[512] = "";
    moert_status_t status;

    if (c->device->index == MOERT_NO_INDEX)
        return MOERT_OK;
    for (uint32_t i = 0; i < c->checks.count; i++)
        if (!strcmp(c->checks.items[i].code, "self-test") && c->checks.items[i].verdict == MOERT_PASS)
            return MOERT_OK;
    status = moert_self_test(trail->context, c->backend_index, c->device->index, &outcome, detail, sizeof(detail), err);
    if (status)
        return moert_prefix(err, status, "self-test of %s: ", c->id);
    moert_oracle_self_test_result(trail, c, outcome, detail);
    if (outcome != MOERT_SELF_TEST_PASSED)
        c->verdict = MOERT_CANDIDATE_REFUSED;
    return MOERT_OK;
}

static moert_status_t choose(struct moert_oracle_trail *trail, struct moert_error *err)
{
    for (uint32_t i = 0; i < trail->candidate_count && !trail->winner; i++) {
        struct moert_oracle_candidate *c = trail->candidates[i];
        moert_status_t status = MOERT_OK;

        if (!may_be_chosen(c))
            continue;
        status = self_test(trail, c, err);
        if (status)
            return status;
        if (c->verdict == MOERT_CANDIDATE_ELIGIBLE) {
            c->verdict = MOERT_CANDIDATE_CHOSEN;
            trail->winner = c;
        }
    }
    return MOERT_OK;
}

/* Who decided. Measured results and rules files add their levels here. */
static void decide(struct moert_oracle_trail *trail)
{
    const struct moert_oracle_question *q = &trail->question;
    struct moert_oracle_candidate *c = trail->winner;

    if (q->force_name) {
        trail->level = MOERT_LEVEL_USER;
        trail->rule = "--backend";
        trail->detail = moert_arena_format(&trail->arena, "--backend %s%s%s", q->force_name, q->force_device ? "@" : "",
                                           q->force_device ? q->force_device : "");
    } else {
        trail->level = MOERT_LEVEL_STATIC;
        trail->detail = moert_arena_format(&trail->arena, "priority %u", c->priority);
    }
    trail->class_crossed = !(MOERT_CLASSES_DEFAULT >> c->table->numeric_class & 1);
}

/* Right devices that refuse the layer before the winner: each is worth a warning, not silence. The record's fallback is
 * the first of them. */
static void find_fallback(struct moert_oracle_trail *trail)
{
    const struct moert_layer_config *layer = &trail->question.layer;

    for (uint32_t i = 0; trail->candidates[i] != trail->winner; i++) {
        const struct moert_oracle_candidate *c = trail->candidates[i];
        const char *reason, *warning;

        if (c->verdict != MOERT_CANDIDATE_REFUSED || !moert_oracle_applicable(c))
            continue;
        reason = moert_oracle_fails_text(&trail->arena, c);
        if (!trail->fallback_from) {
            trail->fallback_from = c;
            trail->fallback_reason = reason;
        }
        warning = moert_arena_format(&trail->arena, "layer %s#%d, rank 0: %s cannot serve (%s); %s (%s) is used",
                                     layer->name, layer->index, c->id, reason, trail->winner->id,
                                     moert_class_name(trail->winner->table->numeric_class));
        moert_oracle_warn(trail, warning);
        moert_log(&trail->context->logger, MOERT_LOG_WARN, "%s", warning);
    }
}

/* One line per candidate with everything that stands against it. */
static moert_status_t fail_all(struct moert_oracle_trail *trail, struct moert_error *err)
{
    const struct moert_oracle_question *q = &trail->question;
    struct moert_text text = {0};
    uint32_t lines = 0;

    for (uint32_t i = 0; i < trail->candidate_count; i++) {
        const struct moert_oracle_candidate *c = trail->candidates[i];
        if (c->verdict == MOERT_CANDIDATE_REMOVED || (q->force_name && c->not_provided))
            continue;
        moert_text_add(
            &text, "%s%s%s %s%s", lines ? "\n" : "", q->force_name ? "" : "  ", c->not_provided ? c->backend : c->id,
            c->not_provided ? "is " : "cannot serve: ",
            c->verdict == MOERT_CANDIDATE_ELIGIBLE
                ? moert_arena_format(&trail->arena, "opt-in have not named need named (%s)", c->table->auto_reason)
                : moert_oracle_fails_text(&trail->arena, c));
        lines++;
    }
    if (!lines)
        moert_text_add(&text, "%s does not run on %s", q->force_name ? q->force_name : "no backend",
                       q->force_device  ? q->force_device
                       : q->only_device ? q->only_device
                                        : "any device here");
    moert_fail(err, MOERT_E_NO_BACKEND, "backend-refused", "%s%s%s",
               moert_loader_any_ready(trail->context)
                   ? ""
                   : "no driver module is ready (moert info shows where they were looked for; MOERT_DRIVER_PATH)\n",
               q->force_name ? "" : "no backend can serve it:\n", text.text && !text.failed ? text.text : "");
    moert_text_free(&text);
    return moert_layer_prefix(&q->layer, err, MOERT_E_NO_BACKEND);
}

static moert_status_t walk(struct moert_oracle_trail *trail, const struct moert_select_options *options,
                           struct moert_error *err)
{
    moert_status_t status = moert_oracle_collect(trail, options, err);

    if (!status)
        status = read_rules(trail, err);
    if (status && status != MOERT_E_NO_BACKEND)
        return status;
    for (uint32_t i = 0; i < trail->candidate_count; i++)
        moert_oracle_ask(trail, trail->candidates[i]);
    moert_oracle_rank(trail->candidates, trail->candidate_count);
    if (status)
        return status; /* an unknown name: the record shows what there is */
    remove_by_rules(trail);
    status = choose(trail, err);
    if (!status && !trail->winner)
        status = fail_all(trail, err);
    if (status)
        return status;
    decide(trail);
    find_fallback(trail);
    return MOERT_OK;
}

/* ------------------------------------------------------------------ the decision */

static const char *const level_names[] = {"static", "measured", "platform", "model", "user"};

static void fill_decision(struct moert_decision *decision, struct moert_oracle_trail *trail,
                          const struct moert_error *err)
{
    const struct moert_oracle_candidate *c = trail->winner;

    decision->failed = !c;
    decision->backend = decision->device = MOERT_NO_INDEX;
    decision->numeric_class = MOERT_CLASS_COUNT;
    if (!c) {
        trail->error_code = moert_arena_text(&trail->arena, err->code);
        trail->error_text = moert_arena_text(&trail->arena, err->text);
        decision->reason = (char *)(uintptr_t)trail->error_text;
        return;
    }
    decision->what_if = c->device->index == MOERT_NO_INDEX;
    decision->backend = c->backend_index;
    decision->device = c->device->index;
    decision->numeric_class = c->table->numeric_class;
    decision->backend_name = moert_arena_text(&trail->arena, c->backend);
    decision->device_id = moert_arena_text(&trail->arena, c->device->desc.id);
    decision->reason = moert_arena_format(&trail->arena, "%s: %s", level_names[trail->level], trail->detail);
}

moert_status_t moert_select(moert_context_t *context, const struct moert_layer_config *layer,
                            const struct moert_select_options *options, moert_decision_t **ret, struct moert_error *err)
{
    struct moert_error own = MOERT_ERROR_INIT, *e = err ? err : &own;
    struct moert_select_options o;
    struct moert_decision *decision;
    moert_status_t status;

    if (!context || !layer)
        return moert_fail_null(err, context ? "layer" : "context");
    status = read_options(options, &o, e);
    if (!status)
        status = moert_ctx_check_process(context, e);
    if (status)
        return status;
    decision = calloc(1, sizeof(*decision));
    if (!decision || !(decision->trail = calloc(1, sizeof(*decision->trail)))) {
        free(decision);
        return moert_fail(e, MOERT_E_NOMEM, "host-memory", "no memory for a decision");
    }
    pthread_mutex_init(&decision->lock, NULL);
    decision->trail->context = context;
    status = read_question(decision->trail, layer, &o, e);
    if (!status)
        status = walk(decision->trail, &o, e);
    if (!status || status == MOERT_E_NO_BACKEND)
        fill_decision(decision, decision->trail, e);
    if (decision->trail->arena.failed)
        status = moert_fail(e, MOERT_E_NOMEM, "host-memory", "no memory for a decision");
    if (ret && (!status || status == MOERT_E_NO_BACKEND))
        *ret = decision;
    else
        moert_decision_destroy(decision);
    return status;
}

void moert_decision_destroy(moert_decision_t *decision)
{
    if (!decision)
        return;
    if (decision->trail)
        moert_arena_free(&decision->trail->arena);
    free(decision->trail);
    free(decision->json);
    pthread_mutex_destroy(&decision->lock);
    free(decision);
}

const char *moert_decision_backend(const moert_decision_t *decision)
{
    return decision ? decision->backend_name : NULL;
}

const char *moert_decision_device(const moert_decision_t *decision)
{
    return decision ? decision->device_id : NULL;
}

moert_class_t moert_decision_class(const moert_decision_t *decision)
{
    return decision ? decision->numeric_class : MOERT_CLASS_COUNT;
}

int moert_decision_is_what_if(const moert_decision_t *decision)
{
    return decision && decision->what_if;
}

const char *moert_decision_reason(const moert_decision_t *decision)
{
    return decision ? decision->reason : NULL;
}

const char *moert_decision_json(const moert_decision_t *decision)
{
    struct moert_decision *d = (struct moert_decision *)(uintptr_t)decision;
    const char *json;

    if (!d)
        return NULL;
    pthread_mutex_lock(&d->lock);
    if (!d->json && d->trail)
        d->json = moert_oracle_explain(d->trail);
    json = d->json;
    pthread_mutex_unlock(&d->lock);
    return json;
}
