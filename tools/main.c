/* tools/main.c: the moert command: finds the subcommand, sets up what all share, ends with an exit status of cli.md. */
#include "config.h"

#include "tools/tools.h"

#include <moert/safetensors.h>

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct tool_command *const tool_commands[] = {
    &cmd_info, &cmd_select, &cmd_quantize, &cmd_dequantize, &cmd_route, &cmd_align, &cmd_run, &cmd_verify, &cmd_bench, NULL,
};

/* NO_COLOR (https://no-color.org) and TERM are the terminal's business, not options of moert. */
static int wants_colour(void)
{
    const char *no_colour = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(STDOUT_FILENO) && !(no_colour && *no_colour) && !(term && !strcmp(term, "dumb"));
}

static const struct tool_command *find_command(struct tool *tool, const char *name)
{
    const char *names[16];
    const char *nearest;
    size_t n = 0;

    for (const struct tool_command *const *c = tool_commands; *c; c++) {
        if (!strcmp((*c)->name, name))
            return *c;
        if (n < 15)
            names[n++] = (*c)->name;
    }
    names[n] = NULL;
    nearest = tool_nearest(name, names);
    if (nearest)
        tool_usage_error(tool, "unknown command \"%s\"; did you mean \"%s\"?", name, nearest);
    else
        tool_usage_error(tool, "unknown command \"%s\"", name);
    return NULL;
}

/* Removes unfinished outputs and ends with 128 + signal, as a shell expects. */
static void on_signal(int number)
{
    moert_st_writers_unlink();
    _exit(128 + number);
}

static void catch_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};

    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of write, with a message */
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
        struct sigaction action = {0}, old;
        action.sa_handler = on_signal;
        sigemptyset(&action.sa_mask);
        /* A signal that the parent had ignored (nohup) stays ignored. */
        if (!sigaction(numbers[i], NULL, &old) && old.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
    }
}

/* What was printed must have arrived; a full disk is an error, not a silence. */
static int finish(struct tool *tool, int status)
{
    free(tool->getopt_table);
    if (fflush(stdout) || ferror(stdout)) {
        fprintf(stderr, "moert: standard output: %s\n", strerror(errno));
        return TOOL_OUTPUT;
    }
    return status;
}

int main(int argc, char **argv)
{
    struct tool tool = {0};
    const char *value;

    catch_signals();
    tool.colour = wants_colour();
    if (tool_option(&tool, argc, argv, &value) == TOOL_STOP)
        return finish(&tool, tool.status);
    if (optind >= argc)
        return finish(&tool, tool_usage_error(&tool, "a command is expected"));
    argc -= optind;
    argv += optind;
    tool.command = find_command(&tool, argv[0]);
    if (!tool.command)
        return finish(&tool, TOOL_USAGE);
    return finish(&tool, tool.command->run(&tool, argc, argv));
}
