/* tools/record.h: an explain record (oracle.md 10) shown to people. */
#ifndef MOERT_TOOLS_RECORD_H
#define MOERT_TOOLS_RECORD_H

#include "tools/tools.h"

/* Candidates with verdict and reason; `every_check`: every check of every candidate below it. */
void tool_record_candidates(const struct tool *tool, const json_t *record, int every_check);
/* The first bucket's candidate, or NULL. */
const json_t *tool_record_winner(const json_t *record);
/* "static: priority 30"; "" when there is none. */
const char *tool_record_reason(const json_t *record, char text[256]);

#endif
