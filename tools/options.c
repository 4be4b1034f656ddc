/* tools/options.c: command lines of every subcommand by getopt_long, from the command's table of options. Unknown
 * options and words are answered with the nearest known one. */
#include "config.h"

#include "tools/tools.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* getopt_long's value of option i of a command is FIRST + i; common options use letters. */
enum { FIRST = 1000, OPTION_VERSION = 999, OPTION_JSON = 998 };

static const struct option common_options[] = {
    {"json", no_argument, NULL, OPTION_JSON},
    {"quiet", no_argument, NULL, 'q'},
    {"verbose", no_argument, NULL, 'v'},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, OPTION_VERSION},
};
enum { COMMON = sizeof(common_options) / sizeof(*common_options) };

static size_t option_count(const struct tool_command *command)
{
    size_t n = 0;
    while (command && command->options && command->options[n].name)
        n++;
    return n;
}

/* Edit distance over lower case with '-' equal to '_'; words longer than 63 bytes are cut. */
static unsigned distance(const char *a, const char *b)
{
    unsigned row[64];
    size_t la = strlen(a) < 63 ? strlen(a) : 63, lb = strlen(b) < 63 ? strlen(b) : 63;

    for (size_t j = 0; j <= lb; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= la; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= lb; j++) {
            int x = a[i - 1] == '_' ? '-' : tolower((unsigned char)a[i - 1]);
            int y = b[j - 1] == '_' ? '-' : tolower((unsigned char)b[j - 1]);
            unsigned best = diagonal + (x != y);
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[lb];
}

const char *tool_nearest(const char *word, const char *const *list)
{
    const char *nearest = NULL;
    unsigned best = (unsigned)strlen(word) / 3 + 1;

    for (; *list; list++) {
        unsigned d = distance(word, *list);
        if (d <= best && (!nearest || d < best)) {
            best = d;
            nearest = *list;
        }
    }
    return nearest;
}

int tool_usage_error(struct tool *tool, const char *format, ...)
{
    struct moert_error err = {.size = sizeof(err), .status = MOERT_E_USAGE, .code = "usage"};
    const char *name = tool->command ? tool->command->name : NULL;
    va_list ap;

    va_start(ap, format);
    vsnprintf(err.text, sizeof(err.text), format, ap);
    va_end(ap);
    tool_error(tool, &err);
    fprintf(stderr, "Try 'moert %s%s--help'.\n", name ? name : "", name ? " " : "");
    return TOOL_USAGE;
}

/* The command's options, then the common ones, for getopt_long. */
static struct option *build_table(const struct tool_command *command)
{
    size_t n = option_count(command);
    struct option *table = calloc(n + COMMON + 1, sizeof(*table));

    for (size_t i = 0; table && i < n; i++) {
        table[i].name = command->options[i].name;
        table[i].has_arg = command->options[i].value ? required_argument : no_argument;
        table[i].val = FIRST + (int)i;
    }
    if (table)
        memcpy(table + n, common_options, sizeof(common_options));
    return table;
}

static void unknown_option(struct tool *tool, const char *word)
{
    const struct option *table = tool->getopt_table;
    size_t n = option_count(tool->command) + COMMON, length = strcspn(word, "=");
    const char **names = calloc(n + 1, sizeof(*names)), *nearest = NULL;
    char name[64];

    snprintf(name, sizeof(name), "%.*s", (int)(length < 63 ? length : 63), word);
    for (size_t i = 0; names && i < n; i++)
        names[i] = table[i].name;
    if (names && !strncmp(name, "--", 2))
        nearest = tool_nearest(name + 2, names);
    if (nearest)
        tool_usage_error(tool, "unknown option \"%s\"; did you mean \"--%s\"?", name, nearest);
    else
        tool_usage_error(tool, "unknown option \"%s\"", name);
    free(names);
}

/* '?' of getopt: unknown, ambiguous, or an argument for a flag. */
static void bad_option(struct tool *tool, char **argv)
{
    const char *word = argv[optind - 1];

    if (optopt >= FIRST || optopt == OPTION_JSON || optopt == OPTION_VERSION || (optopt && !strncmp(word, "--", 2)))
        tool_usage_error(tool, "option \"%.*s\" takes no argument", (int)strcspn(word, "="), word);
    else if (optopt) {
        char text[3] = {'-', (char)optopt, 0};
        unknown_option(tool, text);
    } else
        unknown_option(tool, word);
}

static int stop(struct tool *tool, int status)
{
    free(tool->getopt_table);
    tool->getopt_table = NULL;
    tool->status = status;
    return TOOL_STOP;
}

/* --json wherever it stands: a usage error before it is reported as a document too. */
static void scan_json(struct tool *tool, int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--"); i++)
        if (!strcmp(argv[i], "--json"))
            tool->json = 1;
}

int tool_option(struct tool *tool, int argc, char **argv, const char **ret_value)
{
    if (!tool->getopt_table) {
        tool->getopt_table = build_table(tool->command);
        if (!tool->getopt_table)
            return stop(tool, TOOL_DEVICE);
        if (tool->command)
            scan_json(tool, argc, argv);
        optind = 0; /* glibc, musl: start anew */
        opterr = 0;
    }
    for (;;) {
        int c = getopt_long(argc, argv, tool->command ? ":hqv" : "+:hqv", tool->getopt_table, NULL);
        if (c >= FIRST) {
            *ret_value = optarg;
            return c - FIRST;
        }
        switch (c) {
        case -1: stop(tool, TOOL_DONE); return TOOL_OPERANDS;
        case OPTION_JSON: tool->json = 1; break;
        case 'q': tool->quiet = 1; break;
        case 'v': tool->verbose = 1; break;
        case OPTION_VERSION: printf("moert %s\n", moert_version()); return stop(tool, TOOL_DONE);
        case 'h':
            if (tool->command)
                tool_print_help(tool->command);
            else
                tool_print_program_help();
            return stop(tool, TOOL_DONE);
        case ':':
            tool_usage_error(tool, "option \"%s\" needs an argument", argv[optind - 1]);
            return stop(tool, TOOL_USAGE);
        default: bad_option(tool, argv); return stop(tool, TOOL_USAGE);
        }
    }
}

int tool_operands(struct tool *tool, int argc, char **argv, int count, const char *names)
{
    if (argc - optind > count)
        return tool_usage_error(tool, "extra argument \"%s\"%s%s", argv[optind + count],
                                count ? "; expected only " : "", count ? names : "");
    if (argc - optind < count)
        return tool_usage_error(tool, "missing argument: %s expected, %d given", names, argc - optind);
    return 0;
}

int tool_number(struct tool *tool, const char *what, const char *text, uint64_t min, uint64_t max, uint64_t *ret)
{
    char *end = NULL;
    unsigned long long v;

    errno = 0;
    v = isdigit((unsigned char)*text) ? strtoull(text, &end, 10) : 0;
    if (!end || *end)
        return tool_usage_error(tool, "%s takes a number, got \"%s\"", what, text);
    if (errno || v < min || v > max)
        return tool_usage_error(tool, "%s is %s; allowed %llu..%llu", what, text, (unsigned long long)min,
                                (unsigned long long)max);
    *ret = v;
    return 0;
}

int tool_real(struct tool *tool, const char *what, const char *text, double *ret)
{
    char *end = NULL;
    double v = strtod(text, &end);

    /* x - x is NaN for infinities and NaN. */
    if (end == text || *end || !(v - v == 0))
        return tool_usage_error(tool, "%s takes a finite number, got \"%s\"", what, text);
    *ret = v;
    return 0;
}

int tool_word(struct tool *tool, const char *what, const char *text, const char *const *words)
{
    char known[512];
    size_t n = 0;
    const char *nearest;

    for (int i = 0; words[i]; i++)
        if (!strcmp(words[i], text))
            return i;
    known[0] = 0;
    for (int i = 0; words[i] && n < sizeof(known); i++)
        n += (size_t)snprintf(known + n, sizeof(known) - n, "%s%s", i ? ", " : "", words[i]);
    nearest = tool_nearest(text, words);
    if (nearest)
        tool_usage_error(tool, "%s: unknown \"%s\"; did you mean \"%s\"? known: %s", what, text, nearest, known);
    else
        tool_usage_error(tool, "%s: unknown \"%s\"; known: %s", what, text, known);
    return -1;
}

/* Prints text wrapped at 100 columns, continuation lines indented. */
static void print_wrapped(const char *text, int column, int indent)
{
    while (*text) {
        size_t word = strcspn(text, " \n");
        if (column > indent && column + 1 + (int)word > 100) {
            printf("\n%*s", indent, "");
            column = indent;
        }
        column += printf("%.*s", (int)word, text);
        text += word;
        if (*text == '\n') {
            printf("\n%*s", indent, "");
            column = indent;
            text++;
        } else if (*text) {
            text++;
            if (column + 1 + (int)strcspn(text, " \n") <= 100)
                column += printf(" ");
        }
    }
    printf("\n");
}

static void print_option(char letter, const char *name, const char *value, const char *help)
{
    int n = printf("  %c%c%c --%s%s%s", letter ? '-' : ' ', letter ? letter : ' ', letter ? ',' : ' ', name,
                   value ? " " : "", value ? value : "");

    if (n > 30) {
        printf("\n");
        n = 0;
    }
    printf("%*s", 32 - n, "");
    print_wrapped(help, 32, 32);
}

static void print_common(void)
{
    print_option(0, "json", NULL, "one JSON document on standard output");
    print_option('q', "quiet", NULL, "no messages but errors");
    print_option('v', "verbose", NULL, "more messages");
    print_option('h', "help", NULL, "this text");
    print_option(0, "version", NULL, "version of the program");
}

void tool_print_help(const struct tool_command *command)
{
    const char *line = command->synopsis;

    printf("Usage: moert %s ", command->name);
    while (*line) {
        size_t n = strcspn(line, "\n");
        printf("%.*s\n%s", (int)n, line, line[n] ? "           " : "");
        line += n + (line[n] != 0);
    }
    printf("\n");
    print_wrapped(command->help, 0, 0);
    printf("\nOptions:\n");
    for (size_t i = 0; i < option_count(command); i++)
        print_option(0, command->options[i].name, command->options[i].value, command->options[i].help);
    print_common();
    if (command->details) {
        printf("\n");
        print_wrapped(command->details, 0, 0);
    }
}

void tool_print_program_help(void)
{
    printf("Usage: moert COMMAND [OPTION]...\n\n"
           "Runs the routed expert layers of Mixture-of-Experts models.\n\nCommands:\n");
    for (const struct tool_command *const *c = tool_commands; *c; c++)
        printf("  %-12s %s\n", (*c)->name, (*c)->help);
    printf("\nOptions:\n");
    print_common();
    printf("\n'moert COMMAND --help' describes a command; moert(1) is the manual.\n");
}
