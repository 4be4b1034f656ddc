/* core/oracle/names.c: what a name given by the user means: a backend's name or alias, a name that vLLM knows and
 * nothing here answers to, or nothing. The table of vLLM's names is oracle.md part A (vLLM 0.33.0, config/kernel.py and
 * fused_moe/oracle/mxfp8.py). */
#include "core/oracle/trail.h"

#include "core/base/error.h"
#include "core/base/text.h"

#include <string.h>

/* Rows with a reason are MXFP8 backends upstream: when no backend answers to the name or an alias, the row is a
 * candidate "not provided". Rows without one are other backends of vLLM. */
const struct moert_oracle_known moert_oracle_known_names[] = {
    {"flashinfer_trtllm", {"trtllm"}, "vendor kernel without a C interface"},
    {"deep_gemm", {"deepgemm"}, "JIT C++ library, SM100 only"},
    {"marlin", {NULL}, "weight-only kernel; use scheme (mxfp8, none)"},
    {"xpu", {NULL}, "Intel vendor kernel; the opencl driver may serve the device under its own name"},
    {"aiter", {"aiter_mxfp8"}, "rocm.mxfp8_gfx950 answers to this name and its driver is not loaded"},
    {"humming", {NULL}, "JIT kernel library"},
    {"triton", {"triton_mxfp8", "native"}, "a backend of the rocm driver answers to this name and it is not loaded"},
    {"emulation", {NULL}, "cpu.reference answers to this name and its driver is not loaded"},
    {"batched_triton", {NULL}, NULL},
    {"deep_gemm_mega_moe", {NULL}, NULL},
    {"cutlass", {NULL}, NULL},
    {"flashinfer_cutlass", {NULL}, NULL},
    {"flashinfer_cutedsl", {NULL}, NULL},
    {"flashinfer_moe_ep_cutedsl", {NULL}, NULL},
    {"flashinfer_b12x", {NULL}, NULL},
    {"b12x", {NULL}, NULL},
    {"flashinfer_moe_ep_mega_deep_gemm", {NULL}, NULL},
    {"triton_unfused", {NULL}, NULL},
    {"aiter_mega_moe", {NULL}, NULL},
    {"aiter_triton_mxfp4_bf16", {NULL}, NULL},
    {"aiter_triton_mxfp4_mxfp4", {NULL}, NULL},
    {"flydsl", {NULL}, NULL},
    {"hpc", {NULL}, NULL},
    {"rdna3", {NULL}, NULL},
    {"vllm_cutlass", {NULL}, NULL},
    {"batched_vllm_cutlass", {NULL}, NULL},
    {"batched_deepgemm", {NULL}, NULL},
    {"cpu_w8a8", {NULL}, NULL},
};
const uint32_t moert_oracle_known_count = sizeof(moert_oracle_known_names) / sizeof(*moert_oracle_known_names);

const struct moert_oracle_known *moert_oracle_known_find(const char *name)
{
    for (uint32_t i = 0; i < moert_oracle_known_count; i++) {
        const struct moert_oracle_known *k = &moert_oracle_known_names[i];
        if (moert_text_same_name(k->name, name))
            return k;
        for (uint32_t j = 0; j < 3 && k->aliases[j]; j++)
            if (moert_text_same_name(k->aliases[j], name))
                return k;
    }
    return NULL;
}

int moert_oracle_name_matches(const struct moert_backend *backend, const char *name)
{
    if (moert_text_same_name(backend->name, name))
        return 1;
    for (const char *const *alias = backend->aliases; alias && *alias; alias++)
        if (moert_text_same_name(*alias, name))
            return 1;
    return 0;
}

/* Nearest of all names that could be meant, or the list of backends when none is near. */
static moert_status_t unknown_name(struct moert_oracle_trail *trail, const char *name, struct moert_error *err)
{
    uint32_t room = moert_oracle_known_count * 4, n = 0;
    struct moert_text known = {0};
    const char **words, *nearest;

    for (uint32_t i = 0; i < trail->backend_count; i++) {
        const char *const *alias = trail->backends[i]->table->aliases;
        for (room++; alias && *alias; alias++)
            room++;
    }
    words = moert_arena_alloc(&trail->arena, room + 1, sizeof(*words));
    if (!words)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for a list of names");
    for (uint32_t i = 0; i < trail->backend_count; i++) {
        const struct moert_backend *b = trail->backends[i]->table;
        words[n++] = b->name;
        moert_text_add(&known, "%s%s", i ? ", " : "", b->name);
        for (const char *const *alias = b->aliases; alias && *alias; alias++)
            words[n++] = *alias;
    }
    for (uint32_t i = 0; i < moert_oracle_known_count; i++) {
        words[n++] = moert_oracle_known_names[i].name;
        for (uint32_t j = 0; j < 3 && moert_oracle_known_names[i].aliases[j]; j++)
            words[n++] = moert_oracle_known_names[i].aliases[j];
    }
    nearest = moert_text_nearest(name, words);
    if (nearest)
        moert_fail(err, MOERT_E_NO_BACKEND, "backend-unknown", "unknown backend \"%.80s\"; did you mean \"%s\"?", name,
                   nearest);
    else
        moert_fail(err, MOERT_E_NO_BACKEND, "backend-unknown", "unknown backend \"%.80s\"; known: %s", name,
                   known.text && known.length ? known.text : "none, no driver is loaded");
    moert_text_free(&known);
    return MOERT_E_NO_BACKEND;
}

/* "cuda.lutb_sm90" where driver cuda is known by its file and could not be asked for its backends. */
static int names_silent_driver(const struct moert_oracle_trail *trail, const char *name)
{
    for (uint32_t i = 0; i < trail->candidate_count; i++) {
        const struct moert_oracle_candidate *c = trail->candidates[i];
        if (!c->table && !c->not_provided && moert_text_glob(c->backend, name, 1))
            return 1;
    }
    return 0;
}

moert_status_t moert_oracle_resolve(struct moert_oracle_trail *trail, const char *name, struct moert_error *err)
{
    const struct moert_oracle_known *known;
    const struct moert_backend *found = NULL;

    for (uint32_t i = 0; i < trail->backend_count; i++) {
        const struct moert_backend *b = trail->backends[i]->table;
        if (!moert_oracle_name_matches(b, name))
            continue;
        if (found && found != b)
            return moert_fail(err, MOERT_E_INTERNAL, "drift", "\"%.80s\" belongs to two backends: %s and %s", name,
                              found->name, b->name);
        found = b;
    }
    if (found || names_silent_driver(trail, name))
        return MOERT_OK;
    known = moert_oracle_known_find(name);
    if (!known)
        return unknown_name(trail, name, err);
    if (known->reason)
        return moert_fail(err, MOERT_E_NO_BACKEND, "backend-unknown", "%s is known, but not provided here: %s",
                          known->name, known->reason);
    return moert_fail(err, MOERT_E_NO_BACKEND, "backend-unknown", "%s is known to vLLM, not an MXFP8 backend",
                      known->name);
}
