/* tools/source.h: where a layer comes from: a description (--config), a layer file (--layer) or a checkpoint (--model),
 * and the context and decision that follow. Failures have printed their message; 0 is success. */
#ifndef MOERT_TOOLS_SOURCE_H
#define MOERT_TOOLS_SOURCE_H

#include "tools/tools.h"

#include <moert/checkpoint.h>
#include <moert/context.h>
#include <moert/layer.h>
#include <moert/oracle.h>

struct tool_source {
    const char *config_path, *layer_path, *model_path; /* options as given */
    const char *index_text;                            /* of --layer-index, or NULL */
    moert_checkpoint_t *checkpoint;                    /* NULL for a bare description */
    uint32_t number;                                   /* decoder layer */
    struct moert_layer_config config;
    int has_config;
};
/* Exactly one of --layer, --model (and --config alone when `description` is set) must be given. `need_index`: --model
 * needs --layer-index. Opens it and reads the checked description. */
int tool_source_open(struct tool *tool, struct tool_source *source, int description, int need_index);
void tool_source_close(struct tool_source *source);

int tool_context(struct tool *tool, moert_context_t **ret);

#endif
