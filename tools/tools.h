/* tools/tools.h: what the subcommands of `moert` share. One file per subcommand; each defines a `struct tool_command`
 * that feeds dispatch, option parsing, --help, completion and the man page check. Only the public API of libmoert is
 * used.
 *
 * A subcommand: static int run(struct tool *tool, int argc, char **argv) - parse with tool_option(), do the work, print
 * to stdout, return an exit status. Messages go to stderr as `moert: <message>`. */
#ifndef MOERT_TOOLS_H
#define MOERT_TOOLS_H

#include <moert/base.h>

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* Exit status (cli.md). Those of library failures come from moert_status_exit_code(). */
enum {
    TOOL_DONE = 0,
    TOOL_NO = 1,    /* the answer is "no" */
    TOOL_USAGE = 2, /* wrong options */
    TOOL_INPUT = 3, /* bad file, shape or value */
    TOOL_NO_BACKEND = 4,
    TOOL_DEVICE = 5,
    TOOL_OUTPUT = 6,         /* an output could not be written */
    TOOL_NOTHING_TO_DO = 77, /* verify: nothing to test */
    TOOL_INTERRUPTED = 130
};

/* One long option. The index in the command's table is what tool_option() returns; the table ends with name NULL. The
 * options of every command (--json, --quiet, --verbose, --help, --version) are not listed. */
struct tool_option {
    const char *name;  /* without the dashes */
    const char *value; /* NULL: a flag; else how help shows the argument: "FILE", "DIR", "N", "mxfp8|lut-b" */
    const char *help;
};

struct tool;

struct tool_command {
    const char *name;
    int (*run)(struct tool *tool, int argc, char **argv);
    const char *help;     /* one line */
    const char *synopsis; /* after "moert NAME ", lines separated by \n */
    const struct tool_option *options;
    const char *details; /* paragraph of --help, or NULL */
};

/* State of one invocation. */
struct tool {
    const struct tool_command *command; /* NULL before a subcommand is known */
    int json, quiet, verbose;
    int colour; /* stdout is a terminal that takes colours */
    int status; /* exit status when tool_option() returned TOOL_STOP */
    int json_printed;
    void *getopt_table;
};

/* The subcommands, each in tools/<name>.c. */
extern const struct tool_command cmd_info;
extern const struct tool_command cmd_select;
extern const struct tool_command cmd_quantize;
extern const struct tool_command cmd_dequantize;
extern const struct tool_command cmd_route;
extern const struct tool_command cmd_align;
extern const struct tool_command cmd_run;
extern const struct tool_command cmd_verify;
extern const struct tool_command cmd_bench;

/* NULL-terminated, in the order of --help. */
extern const struct tool_command *const tool_commands[];

/* ---- options.c: command lines ---- */

enum { TOOL_OPERANDS = -1, TOOL_STOP = -2 };
/* Next option: its index in command->options and *ret_value (NULL for a flag); TOOL_OPERANDS when only operands are
 * left, argv[optind] on; TOOL_STOP when the run ends here (help, version, usage error): return tool->status. */
int tool_option(struct tool *tool, int argc, char **argv, const char **ret_value);
/* 0 when there are exactly `count` operands; else TOOL_USAGE, with a message naming them ("SRC DST"). */
int tool_operands(struct tool *tool, int argc, char **argv, int count, const char *names);
/* Prints `moert NAME: <message>` and where help is; returns TOOL_USAGE. */
int tool_usage_error(struct tool *tool, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Decimal number of an option or operand in [min,max]; 0, or TOOL_USAGE after a message. */
int tool_number(struct tool *tool, const char *what, const char *text, uint64_t min, uint64_t max, uint64_t *ret);
int tool_real(struct tool *tool, const char *what, const char *text, double *ret);
/* Index of `text` in a NULL-terminated list of words, or -1 after a message with the nearest one (exit TOOL_USAGE). */
int tool_word(struct tool *tool, const char *what, const char *text, const char *const *words);
/* Nearest word of a NULL-terminated list, or NULL when none is near enough to be meant. */
const char *tool_nearest(const char *word, const char *const *list);
void tool_print_help(const struct tool_command *command);
void tool_print_program_help(void);

/* ---- output.c: messages, JSON, tables ---- */

/* Prints the error (and, with --json, a document holding it); returns its exit status. */
int tool_error(struct tool *tool, const struct moert_error *err);
/* The same for a failure that the command itself found. */
int tool_fail(struct tool *tool, moert_status_t status, const char *code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* A message on stderr: dropped by --quiet / printed only with --verbose. */
void tool_note(const struct tool *tool, const char *format, ...) __attribute__((format(printf, 2, 3)));
void tool_detail(const struct tool *tool, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Prints {"schema":1, ...} and frees it. One document per run; `document` gains "schema" when it has none. */
int tool_print_json(struct tool *tool, json_t *document);
json_t *tool_json_string(const char *text); /* bytes that are not UTF-8 are replaced; NULL gives null */
json_t *tool_json_real(double value);       /* null for NaN and infinities */
json_t *tool_json_size(uint64_t value);     /* largest int64 when it does not fit */

/* Text table of at most 100 columns; the last column wraps. Cells are copied. */
struct tool_table;
struct tool_table *tool_table_create(unsigned columns, const char *const *headings);
void tool_table_cell(struct tool_table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
void tool_table_right(struct tool_table *table, unsigned column); /* right-aligned: numbers */
void tool_table_print(const struct tool *tool, struct tool_table *table, const char *indent); /* and frees it */

/* "1.21 GB", "12.3 ms" for people, in `text`. */
const char *tool_bytes(uint64_t bytes, char text[32]);
const char *tool_time(double nanoseconds, char text[32]);

/* Whole text file, malloc'ed, NUL-terminated, at most 16 MiB; 0, or an exit status after a message. */
int tool_read_text(struct tool *tool, const char *path, char **ret);

#endif
