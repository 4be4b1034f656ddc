/* tools/select.c: `moert select`: asks the oracle which backend would run a layer, and why, without running anything.
 */
#include "config.h"

#include "tools/record.h"
#include "tools/source.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG, LAYER, MODEL, LAYER_INDEX, BACKEND, POLICY, POLICY_NAME, DEVICE, TOKENS, EXPLAIN };

static const struct tool_option options[] = {
    [CONFIG] = {"config", "FILE.json", "layer description; beside --layer: description of that file"},
    [LAYER] = {"layer", "FILE.safetensors", "layer file"},
    [MODEL] = {"model", "DIR", "checkpoint directory"},
    [LAYER_INDEX] = {"layer-index", "N", "decoder layer of the checkpoint (default: the first with experts)"},
    [BACKEND] = {"backend", "NAME", "ask for this backend (name or alias) and no other"},
    [POLICY] = {"policy", "FILE", "rules file (not available yet)"},
    [POLICY_NAME] = {"policy-name", "default|vllm-compat", "policy for what no rule decides (only default in this version)"},
    [DEVICE] = {"device", "FILE.json", "add a described device that is not present (what if); may be repeated"},
    [TOKENS] = {"tokens", "N", "tokens per call (default: max_tokens of the layer)"},
    [EXPLAIN] = {"explain", NULL, "every candidate with every check"},
    {NULL, NULL, NULL},
};

struct request {
    struct tool_source source;
    struct moert_select_options select;
    struct moert_device_desc *described;
    int explain;
};

static int add_device(struct tool *tool, struct request *r, const char *path)
{
    struct moert_error err = MOERT_ERROR_INIT;
    struct moert_device_desc *grown = realloc(r->described, (r->select.described_count + 1) * sizeof(*grown));
    char *text = NULL;
    int status;

    if (!grown)
        return tool_fail(tool, MOERT_E_NOMEM, "host-memory", "memory is out");
    r->described = grown;
    status = tool_read_text(tool, path, &text);
    if (status)
        return status;
    memset(grown + r->select.described_count, 0, sizeof(*grown));
    grown[r->select.described_count].size = sizeof(*grown);
    if (moert_device_desc_parse(text, path, grown + r->select.described_count, &err))
        status = tool_error(tool, &err);
    else
        r->select.described_count++;
    free(text);
    return status;
}

static int set_option(struct tool *tool, struct request *r, int option, const char *value)
{
    switch (option) {
    case CONFIG: r->source.config_path = value; return 0;
    case LAYER: r->source.layer_path = value; return 0;
    case MODEL: r->source.model_path = value; return 0;
    case LAYER_INDEX: r->source.index_text = value; return 0;
    case BACKEND: r->select.backend = value; return 0;
    case POLICY: return tool_usage_error(tool, "--policy: rules files are not available in this version");
    case POLICY_NAME:
        if (!strcmp(value, "vllm-compat"))
            return tool_usage_error(tool, "--policy-name: vllm-compat is not available in this version");
        r->select.policy_name = value;
        return 0;
    case DEVICE: return add_device(tool, r, value);
    case TOKENS: return tool_number(tool, "--tokens", value, 1, INT64_MAX, &r->select.tokens);
    default: r->explain = 1; return 0;
    }
}

static void print_text(const struct tool *tool, const struct request *r, const json_t *record)
{
    const json_t *winner = tool_record_winner(record), *cost = json_object_get(winner, "cost");
    const json_t *device = json_object_get(winner, "device");
    const struct moert_layer_config *c = &r->source.config;
    char weights[32], workspace[32], reason[256];

    printf("layer      %s", *c->name ? c->name : "(no name)");
    if (c->index >= 0)
        printf(" #%d", c->index);
    printf("\nsizes      %s weights, hidden %llu, intermediate %llu, %u experts, top %u\n",
           moert_scheme_name(c->weight_scheme), (unsigned long long)c->hidden_size,
           (unsigned long long)c->intermediate_size, c->num_experts, c->top_k);
    if (winner) {
        int here = json_is_true(json_object_get(device, "present"));
        printf("backend    %s\n", json_string_value(json_object_get(winner, "backend")));
        printf("device     %s (%s)%s\n", json_string_value(json_object_get(device, "id")),
               json_string_value(json_object_get(device, "name")), here ? "" : " - not present: what if");
        printf("class      %s\n", json_string_value(json_object_get(winner, "class")));
        if (json_is_object(cost))
            printf("memory     %s of weights, %s of workspace\n",
                   tool_bytes((uint64_t)json_integer_value(json_object_get(cost, "weights")), weights),
                   tool_bytes((uint64_t)json_integer_value(json_object_get(cost, "workspace")), workspace));
        printf("decided by %s\n", tool_record_reason(record, reason));
    }
    printf("\n");
    tool_record_candidates(tool, record, r->explain);
}

static int print_decision(struct tool *tool, const struct request *r, const moert_decision_t *decision)
{
    json_error_t error;
    json_t *record = json_loads(moert_decision_json(decision), 0, &error);

    if (!record)
        return tool_fail(tool, MOERT_E_INTERNAL, "drift", "the explain record is not JSON: %s", error.text);
    if (tool->json)
        return tool_print_json(tool, record);
    print_text(tool, r, record);
    json_decref(record);
    return 0;
}

static int ask(struct tool *tool, struct request *r)
{
    struct moert_error err = MOERT_ERROR_INIT;
    moert_context_t *context = NULL;
    moert_decision_t *decision = NULL;
    moert_status_t asked;
    int status = tool_source_open(tool, &r->source, 1, 0);

    if (!status)
        status = tool_context(tool, &context);
    if (status)
        goto out;
    r->select.described = r->described;
    asked = moert_select(context, &r->source.config, &r->select, &decision, &err);
    if (decision)
        status = print_decision(tool, r, decision);
    if (asked) {
        /* The record was printed; the message goes to stderr all the same. */
        int printed = status;
        status = tool_error(tool, &err);
        status = printed ? printed : status;
    }
out:
    moert_decision_destroy(decision);
    moert_context_destroy(context);
    return status;
}

static int run(struct tool *tool, int argc, char **argv)
{
    struct request r = {.select = {.size = sizeof(r.select)}};
    const char *value;
    int option, status = 0;

    while (!status && (option = tool_option(tool, argc, argv, &value)) >= 0)
        status = set_option(tool, &r, option, value);
    if (!status)
        status = option == TOOL_STOP ? tool->status : tool_operands(tool, argc, argv, 0, "");
    if (!status && option != TOOL_STOP)
        status = ask(tool, &r);
    tool_source_close(&r.source);
    free(r.described);
    return status;
}

const struct tool_command cmd_select = {
    .name = "select",
    .run = run,
    .help = "which backend would run a layer, and why",
    .synopsis = "(--config FILE.json | --layer FILE.safetensors | --model DIR [--layer-index N])\n"
                "[--backend NAME] [--policy-name NAME] [--device FILE.json]... [--tokens N]\n"
                "[--explain] [--json]",
    .options = options,
    .details = "Nothing is run. --json prints the whole explain record. Exit status 4 when no backend can serve the "
               "layer; the record and the message then hold every candidate with its failing checks.",
};
