/* core/oracle/trail.h: what one selection looked at and found: the question, every candidate with its checks, the
 * outcome. Made by select.c, printed by explain.c. All memory is the arena's. */
#ifndef MOERT_ORACLE_TRAIL_H
#define MOERT_ORACLE_TRAIL_H

#include "core/loader/context.h"
#include "core/oracle/arena.h"
#include "core/oracle/decision.h"

#define MOERT_NO_INDEX UINT32_MAX

/* Numeric classes that need no permission (oracle.md 4.3). */
#define MOERT_CLASSES_DEFAULT ((1u << MOERT_CLASS_EXACT) | (1u << MOERT_CLASS_SAME_ARITHMETIC))

typedef enum { MOERT_PHASE_DECODE, MOERT_PHASE_PREFILL } moert_phase_t;

/* Verdict on a candidate; the schema's names are in explain.c. */
typedef enum {
    MOERT_CANDIDATE_ELIGIBLE,
    MOERT_CANDIDATE_CHOSEN,
    MOERT_CANDIDATE_REFUSED,     /* a check failed */
    MOERT_CANDIDATE_REMOVED,     /* by a rule */
    MOERT_CANDIDATE_NOT_PROVIDED /* a name that vLLM knows and nothing here answers to */
} moert_candidate_verdict_t;

/* Who decides, weakest first. Rules files (oracle.md 5) and measurements (7) use the levels between. */
typedef enum {
    MOERT_LEVEL_STATIC,
    MOERT_LEVEL_MEASURED,
    MOERT_LEVEL_PLATFORM,
    MOERT_LEVEL_MODEL,
    MOERT_LEVEL_USER
} moert_level_t;

struct moert_oracle_checks {
    struct moert_check *items; /* strings copied */
    uint32_t count, room, fails;
};

struct moert_oracle_device {
    struct moert_device_desc desc;
    uint32_t index;                        /* in context->devices; MOERT_NO_INDEX: described */
    const struct moert_ctx_driver *driver; /* of a present device */
};

struct moert_oracle_candidate {
    const char *id, *backend;                 /* "cpu.reference@cpu", "cpu.reference" */
    uint32_t backend_index;                   /* in context->backends, or MOERT_NO_INDEX */
    const struct moert_backend *table;        /* NULL: the module could not be asked, or not provided */
    const struct moert_ctx_driver *driver;    /* NULL: no such module here, or not provided */
    const char *driver_name;                  /* NULL: not provided */
    const struct moert_oracle_device *device; /* NULL: none */
    const char *not_provided;                 /* reason */
    moert_candidate_verdict_t verdict;
    struct moert_oracle_checks checks;
    struct {
        moert_level_t level;
        const char *rule, *code; /* code NULL: not removed */
    } removed_by;
    uint32_t priority; /* of the phase */
    int named;         /* a user's rule names it: opt-in and class gate are open */
    int has_cost;
    uint64_t weights, workspace, load_ns; /* bytes, bytes, ns */
};

struct moert_oracle_question {
    struct moert_layer_config layer;        /* complete; the map is in the arena */
    const struct moert_layer_config *asked; /* the same with what a later header's caller wrote behind it */
    uint64_t tokens;                        /* 0: not given */
    moert_phase_t phase;
    const char *policy;
    const char *force_name, *force_device; /* --backend NAME@DEVICE; NULL: not given */
    const char *only_device;
};

struct moert_oracle_trail {
    struct moert_arena arena;
    struct moert_context *context;
    struct moert_oracle_question question;
    struct moert_ctx_backend **backends; /* as they were at the start */
    struct moert_ctx_driver **drivers;
    uint32_t backend_count, driver_count;
    struct moert_oracle_device *devices;
    uint32_t device_count;
    struct moert_oracle_candidate **candidates; /* in the order of rank.c after ordering */
    uint32_t candidate_count, candidate_room;
    struct moert_oracle_candidate *winner; /* NULL: failed */
    moert_level_t level;                   /* who decided */
    const char *rule, *detail;
    int class_crossed;
    const struct moert_oracle_candidate *fallback_from;
    const char *fallback_reason;
    const char *warnings[8];
    uint32_t warning_count;
    const char *error_code, *error_text; /* NULL: none */
};

void moert_oracle_warn(struct moert_oracle_trail *trail, const char *text); /* text lives in the arena */

/* candidates.c: fills backends, drivers, devices and candidates. */
moert_status_t moert_oracle_collect(struct moert_oracle_trail *trail, const struct moert_select_options *options,
                                    struct moert_error *err);

/* checks.c: asks one candidate; the checks that the core adds come before and after the backend's own. */
void moert_oracle_ask(struct moert_oracle_trail *trail, struct moert_oracle_candidate *candidate);
/* Adds the result of a self-test that was run just now. */
void moert_oracle_self_test_result(struct moert_oracle_trail *trail, struct moert_oracle_candidate *candidate,
                                   moert_self_test_outcome_t outcome, const char *detail);
/* Right device, wrong layer: its driver-state, arch, feature, runtime, scheme checks and the class gate pass. */
int moert_oracle_applicable(const struct moert_oracle_candidate *candidate);
/* "arch have sm_90 need sm_107; hidden-multiple have 2880 need multiple of 128" of all failing checks. */
const char *moert_oracle_fails_text(struct moert_arena *arena, const struct moert_oracle_candidate *candidate);
/* The stable check codes of oracle.md 3, NULL-terminated. */
extern const char *const moert_oracle_codes[];

/* rank.c: pure. Orders candidates: static order of oracle.md 4.5. */
void moert_oracle_rank(struct moert_oracle_candidate **candidates, uint32_t count);

/* names.c */
struct moert_oracle_known {
    const char *name;       /* as vLLM's moe_backend writes it */
    const char *aliases[3]; /* moert's, NULL-terminated */
    const char *reason;     /* why nothing here answers to it; NULL: not an MXFP8 backend there */
};
extern const struct moert_oracle_known moert_oracle_known_names[];
extern const uint32_t moert_oracle_known_count;
const struct moert_oracle_known *moert_oracle_known_find(const char *name);
/* Does `name` (case folded, '-' = '_') name this backend, by name or alias? */
int moert_oracle_name_matches(const struct moert_backend *backend, const char *name);
/* Resolves --backend NAME: backend-unknown, drift when two backends answer. OK when something answers. */
moert_status_t moert_oracle_resolve(struct moert_oracle_trail *trail, const char *name, struct moert_error *err);

/* drift.c: names unique, no alias equal to another's name or alias: oracle.md 11. MOERT_E_INTERNAL `drift`. */
moert_status_t moert_oracle_drift(struct moert_ctx_backend *const *backends, uint32_t count, struct moert_error *err);

/* explain.c: the record as JSON text, malloc'ed; NULL when memory is out. */
char *moert_oracle_explain(const struct moert_oracle_trail *trail);

#endif
