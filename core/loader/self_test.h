/* core/loader/self_test.h: the parts of the self-test: running the helper program, remembering results (oracle.md 8).
 */
#ifndef MOERT_LOADER_SELF_TEST_H
#define MOERT_LOADER_SELF_TEST_H

#include "core/loader/context.h"

#define MOERT_SELF_TEST_DETAIL     1024
#define MOERT_SELF_TEST_TIMEOUT_MS 30000u

/* spawn.c: runs argv[0] (an absolute path) in a process group of its own, standard output into a pipe, and judges its
 * end: 1 passed, 0 failed; detail says why. Past timeout_ms the whole group is killed. A status only when no process
 * could be started. Protocol: one JSON line {"schema":1,"outcome":"pass"|"fail","detail":"..."}, exit status 0 or 1. */
moert_status_t moert_self_test_spawn(char *const argv[], uint32_t timeout_ms, int *ret_passed,
                                     char detail[MOERT_SELF_TEST_DETAIL], struct moert_error *err);

/* quarantine.c: results by module file, arch and backend in <state directory>/quarantine.json. */
struct moert_quarantine_key {
    const char *sha256, *arch, *backend;
};
/* 1 when an entry was found. A file that is damaged or not ours counts as empty, with a warning. */
int moert_quarantine_find(const struct moert_logger *logger, const struct moert_quarantine_key *key, int *ret_passed,
                          char detail[MOERT_SELF_TEST_DETAIL]);
/* Replaces the entry; detail NULL: removes it. Without a usable directory only a debug line is logged: the process
 * remembers, the next one tests again. */
void moert_quarantine_store(const struct moert_logger *logger, const struct moert_quarantine_key *key, int passed,
                            const char *detail);

#endif
