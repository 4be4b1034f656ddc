/* tools/source.c: opening what --config, --layer and --model name. */
#include "config.h"

#include "tools/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check_options(struct tool *tool, const struct tool_source *source, int description, int need_index)
{
    int given = (source->layer_path != NULL) + (source->model_path != NULL);

    if (given > 1)
        return tool_usage_error(tool, "--layer and --model exclude each other");
    if (source->model_path && source->config_path)
        return tool_usage_error(tool, "--config describes a layer file; a model directory has its own config.json");
    if (!given && !(description && source->config_path))
        return tool_usage_error(tool, description ? "one of --config, --layer or --model is needed"
                                                  : "one of --layer or --model is needed");
    if (source->index_text && !source->model_path)
        return tool_usage_error(tool, "--layer-index goes with --model");
    if (need_index && source->model_path && !source->index_text)
        return tool_usage_error(tool, "--model needs --layer-index N");
    return 0;
}

/* Decoder layer of the checkpoint: --layer-index, or the first one that has experts. */
static int find_number(struct tool *tool, struct tool_source *source)
{
    uint32_t count = moert_checkpoint_layer_count(source->checkpoint);
    uint64_t wanted = 0;
    char known[256];
    size_t n = 0;

    if (source->index_text) {
        int status = tool_number(tool, "--layer-index", source->index_text, 0, INT32_MAX, &wanted);
        if (status)
            return status;
    } else if (count) {
        source->number = moert_checkpoint_layer_number(source->checkpoint, 0);
        return 0;
    }
    known[0] = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t number = moert_checkpoint_layer_number(source->checkpoint, i);
        if (number == wanted) {
            source->number = number;
            return 0;
        }
        if (n + 16 < sizeof(known))
            n += (size_t)snprintf(known + n, sizeof(known) - n, "%s%u", i ? ", " : "", number);
    }
    return tool_fail(tool, MOERT_E_VALUE, "layer-index",
                     "%s: no layer %llu with routed experts; layers that have them: %s", source->model_path,
                     (unsigned long long)wanted, count ? known : "none");
}

static int read_description(struct tool *tool, struct tool_source *source)
{
    struct moert_error err = MOERT_ERROR_INIT;
    char *text = NULL;
    int status = tool_read_text(tool, source->config_path, &text);

    if (status)
        return status;
    if (moert_layer_config_parse(text, source->config_path, &source->config, &err))
        status = tool_error(tool, &err);
    else
        source->has_config = 1;
    free(text);
    if (!status && moert_layer_config_check(&source->config, &err))
        status = tool_error(tool, &err);
    return status;
}

int tool_source_open(struct tool *tool, struct tool_source *source, int description, int need_index)
{
    struct moert_checkpoint_options options = {.size = sizeof(options), .fused_transposed = -1};
    struct moert_error err = MOERT_ERROR_INIT;
    moert_status_t status;
    int exit_status = check_options(tool, source, description, need_index);

    if (exit_status)
        return exit_status;
    if (!source->layer_path && !source->model_path)
        return read_description(tool, source);
    options.layer_config = source->config_path;
    if (source->layer_path)
        status = moert_checkpoint_open_layer(source->layer_path, &options, &source->checkpoint, &err);
    else
        status = moert_checkpoint_open(source->model_path, &options, &source->checkpoint, &err);
    if (status)
        return tool_error(tool, &err);
    exit_status = find_number(tool, source);
    if (exit_status)
        return exit_status;
    if (moert_checkpoint_layer_config(source->checkpoint, source->number, &source->config, &err))
        return tool_error(tool, &err);
    source->has_config = 1;
    return 0;
}

void tool_source_close(struct tool_source *source)
{
    if (source->has_config)
        moert_layer_config_clear(&source->config);
    moert_checkpoint_close(source->checkpoint);
}

int tool_context(struct tool *tool, moert_context_t **ret)
{
    struct moert_error err = MOERT_ERROR_INIT;

    return moert_context_create(NULL, ret, &err) ? tool_error(tool, &err) : 0;
}
