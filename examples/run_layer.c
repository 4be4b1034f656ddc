/* examples/run_layer.c: open a checkpoint, let the oracle choose, run one expert layer on random-looking input.
 * cc run_layer.c $(pkg-config --cflags --libs moert) -o run_layer && ./run_layer MODEL_DIR LAYER */
#include <moert/moert.h>
#include <stdio.h>
#include <stdlib.h>

static struct moert_error err = MOERT_ERROR_INIT;
static void must(moert_status_t status)
{
    if (status) {
        fprintf(stderr, "%s\n", err.text);
        exit(moert_status_exit_code(status));
    }
}

int main(int argc, char **argv)
{
    moert_context_t *context;
    moert_checkpoint_t *model;
    moert_decision_t *decision;
    moert_layer_t *layer;
    moert_queue_t *queue;
    struct moert_layer_config config;
    uint32_t number = argc > 2 ? (uint32_t)atoi(argv[2]) : 0;

    must(moert_context_create(NULL, &context, &err));
    must(moert_checkpoint_open(argc > 1 ? argv[1] : "model", NULL, &model, &err));
    must(moert_checkpoint_layer_config(model, number, &config, &err));
    config.dtype = MOERT_F32;
    must(moert_select(context, &config, NULL, &decision, &err));
    must(moert_layer_create(context, &config, decision, &layer, &err));
    must(moert_checkpoint_load(model, number, layer, &err));
    must(moert_queue_create(context, moert_layer_device(layer), 0, &queue, &err));

    uint64_t shape[2] = {4, config.hidden_size};
    float *x = malloc(shape[0] * shape[1] * sizeof(float)), *y = malloc(shape[0] * shape[1] * sizeof(float));
    for (uint64_t i = 0; i < shape[0] * shape[1]; i++)
        x[i] = (float)(i * 2654435761u % 1000) / 500.0f - 1.0f;
    struct moert_layer_args args = {.size = sizeof(args)};
    args.x = moert_tensor_host(x, MOERT_F32, 2, shape);
    args.output = moert_tensor_host(y, MOERT_F32, 2, shape); /* ids and weights come from the model's own router */
    must(moert_layer_run(layer, queue, &args, &err));
    printf("%s on %s (%s): y[0] = %g %g %g %g ...\n", moert_decision_backend(decision), moert_decision_device(decision),
           moert_decision_reason(decision), (double)y[0], (double)y[1], (double)y[2], (double)y[3]);

    free(x);
    free(y);
    moert_queue_destroy(queue);
    moert_layer_destroy(layer);
    moert_decision_destroy(decision);
    moert_layer_config_clear(&config);
    moert_checkpoint_close(model);
    moert_context_destroy(context);
    return 0;
}
