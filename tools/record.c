/* tools/record.c: the explain record, the one source of what `select` prints, as tables. */
#include "config.h"

#include "tools/record.h"

#include <stdio.h>
#include <string.h>

static const char *string_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* A value of a check in few characters: numbers, words, lists joined by commas. */
static const char *value_text(const json_t *value, char *text, size_t size)
{
    size_t n = 0;

    text[0] = 0;
    switch (json_typeof(value)) {
    case JSON_STRING: snprintf(text, size, "%s", json_string_value(value)); break;
    case JSON_INTEGER: snprintf(text, size, "%lld", (long long)json_integer_value(value)); break;
    case JSON_REAL: snprintf(text, size, "%g", json_real_value(value)); break;
    case JSON_TRUE: snprintf(text, size, "yes"); break;
    case JSON_FALSE: snprintf(text, size, "no"); break;
    case JSON_ARRAY:
        for (size_t i = 0; i < json_array_size(value) && n + 1 < size; i++) {
            char item[128];
            int k = snprintf(text + n, size - n, "%s%s", i ? ", " : "",
                             value_text(json_array_get(value, i), item, sizeof(item)));
            n += k > 0 ? (size_t)k : 0;
        }
        break;
    default: snprintf(text, size, "-"); break;
    }
    return text;
}

/* "need at least 5": the condition of a check in words. */
static const char *need_text(const json_t *check, char *text, size_t size)
{
    static const struct {
        const char *op, *words;
    } names[] = {{"eq", ""},         {"in", "one of "},    {"ge", "at least "},
                 {"le", "at most "}, {"lt", "less than "}, {"multiple", "multiple of "},
                 {"has", "has "}};
    const json_t *need = json_object_get(check, "need");
    const char *op = string_of(check, "op"), *words = "";
    char value[400];

    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (!strcmp(names[i].op, op))
            words = names[i].words;
    snprintf(text, size, "%s%s", words, need ? value_text(need, value, sizeof(value)) : "-");
    return text;
}

/* A check whose `have` is a sentence (op none, nothing needed) is that sentence; else code, have and need. */
static int check_text(const json_t *check, char *text, size_t size)
{
    const json_t *have = json_object_get(check, "have"), *need = json_object_get(check, "need");
    char got[400], wanted[420];

    if (json_is_string(have) && (!need || json_is_null(need)))
        return snprintf(text, size, "%s", json_string_value(have));
    return snprintf(text, size, "%s have %s need %s", string_of(check, "code"),
                    have ? value_text(have, got, sizeof(got)) : "-", need_text(check, wanted, sizeof(wanted)));
}

/* Failing checks of a candidate in one line. */
static void failing(const json_t *candidate, char *text, size_t size)
{
    const json_t *checks = json_object_get(candidate, "checks"), *removed = json_object_get(candidate, "removed_by");
    size_t n = 0;

    text[0] = 0;
    for (size_t i = 0; i < json_array_size(checks) && n + 1 < size; i++) {
        const json_t *check = json_array_get(checks, i);
        char one[1000];
        int k;
        if (strcmp(string_of(check, "verdict"), "fail"))
            continue;
        check_text(check, one, sizeof(one));
        k = snprintf(text + n, size - n, "%s%s", n ? "; " : "", one);
        n += k > 0 ? (size_t)k : 0;
    }
    if (!n && json_is_object(removed))
        snprintf(text, size, "removed by %s (%s)", string_of(removed, "code"), string_of(removed, "level"));
}

const json_t *tool_record_winner(const json_t *record)
{
    const json_t *decision = json_object_get(record, "decision"), *candidates = json_object_get(record, "candidates");
    const char *id = string_of(json_array_get(json_object_get(decision, "buckets"), 0), "candidate");

    for (size_t i = 0; i < json_array_size(candidates); i++)
        if (*id && !strcmp(string_of(json_array_get(candidates, i), "id"), id))
            return json_array_get(candidates, i);
    return NULL;
}

const char *tool_record_reason(const json_t *record, char text[256])
{
    const json_t *buckets = json_object_get(json_object_get(record, "decision"), "buckets");
    const json_t *by = json_object_get(json_array_get(buckets, 0), "decided_by");
    const char *detail = string_of(by, "detail");

    snprintf(text, 256, "%s%s%s", string_of(by, "level"), *detail ? ": " : "", detail);
    return text;
}

static void print_checks(const struct tool *tool, const json_t *candidate)
{
    static const char *const heads[] = {"check", "verdict", "what was found, what is needed, what would change it"};
    struct tool_table *table = tool_table_create(3, heads);
    const json_t *checks = json_object_get(candidate, "checks");

    printf("\n%s\n", string_of(candidate, "id"));
    for (size_t i = 0; i < json_array_size(checks); i++) {
        const json_t *check = json_array_get(checks, i), *have = json_object_get(check, "have");
        const json_t *need = json_object_get(check, "need");
        char got[400], wanted[420];
        const char *fix = string_of(check, "fix");
        tool_table_cell(table, "%s", string_of(check, "code"));
        tool_table_cell(table, "%s", string_of(check, "verdict"));
        tool_table_cell(table, "%s%s%s%s%s", have ? value_text(have, got, sizeof(got)) : "-",
                        need && !json_is_null(need) ? "; need " : "",
                        need && !json_is_null(need) ? need_text(check, wanted, sizeof(wanted)) : "", *fix ? "; " : "",
                        fix);
    }
    tool_table_print(tool, table, "  ");
}

static int is_not_provided(const json_t *candidate)
{
    return !strcmp(string_of(candidate, "verdict"), "not-provided");
}

/* Names of other stacks that moert knows and has no backend for: one line, the reasons are for --explain. */
static void print_not_provided(const json_t *candidates)
{
    const char *before = "\n  known by name, not provided here (--explain has the reasons): ";

    for (size_t i = 0; i < json_array_size(candidates); i++)
        if (is_not_provided(json_array_get(candidates, i))) {
            printf("%s%s", before, string_of(json_array_get(candidates, i), "backend"));
            before = ", ";
        }
    if (*before == ',')
        printf("\n");
}

void tool_record_candidates(const struct tool *tool, const json_t *record, int every_check)
{
    static const char *const heads[] = {"candidate", "verdict", "class", "weights", "why"};
    struct tool_table *table = tool_table_create(5, heads);
    const json_t *candidates = json_object_get(record, "candidates"), *winner = tool_record_winner(record);

    tool_table_right(table, 3);
    for (size_t i = 0; i < json_array_size(candidates); i++) {
        const json_t *c = json_array_get(candidates, i), *cost = json_object_get(c, "cost");
        const char *class = string_of(c, "class");
        char why[3000], bytes[32], reason[256];
        if (!every_check && is_not_provided(c))
            continue;
        failing(c, why, sizeof(why));
        if (c == winner)
            snprintf(why, sizeof(why), "%s", tool_record_reason(record, reason));
        else if (!*why)
            snprintf(why, sizeof(why), "%s", string_of(c, "auto_reason"));
        tool_table_cell(table, "%s", string_of(c, "id"));
        tool_table_cell(table, "%s", string_of(c, "verdict"));
        tool_table_cell(table, "%s", *class ? class : "-");
        tool_table_cell(table, "%s",
                        json_is_object(cost)
                            ? tool_bytes((uint64_t)json_integer_value(json_object_get(cost, "weights")), bytes)
                            : "-");
        tool_table_cell(table, "%s", why);
    }
    tool_table_print(tool, table, "  ");
    if (!every_check)
        print_not_provided(candidates);
    for (size_t i = 0; every_check && i < json_array_size(candidates); i++)
        print_checks(tool, json_array_get(candidates, i));
}
