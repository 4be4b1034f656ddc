/* tools/quantize_file.h: what quantize and dequantize share. Flow: quantize.c / dequantize.c read the options;
 * quantize_checkpoint.c walks a directory; quantize_file.c streams one file by the steps of quantize_plan.c;
 * quantize_work.c encodes or decodes a tensor in pieces on several threads. */
#ifndef MOERT_QUANTIZE_FILE_H
#define MOERT_QUANTIZE_FILE_H

#include "tools/progress.h"
#include "tools/tools.h"

#include <moert/checkpoint.h>
#include <moert/lutb.h>
#include <moert/mxfp8.h>
#include <moert/safetensors.h>

enum { QUANT_GLOBS = 64 };

#define QUANT_JOURNAL ".moert-quantize.json" /* of an unfinished run, in its directory */
#define QUANT_INDEX   "model.safetensors.index.json"

struct quant_options {
    int decode;            /* dequantize */
    moert_scheme_t scheme; /* of the output, or NONE for dequantize */
    struct moert_lutb_params lutb;
    struct moert_mxfp8_params mxfp8;
    moert_dtype_t dtype; /* dequantize: BF16 or F32 */
    const char *include[QUANT_GLOBS], *exclude[QUANT_GLOBS];
    unsigned includes, excludes;
    unsigned jobs;
    int measure; /* errors are wanted (lut-b has them anyway) */
    int resume;
    int force; /* a directory that is not empty: its checkpoint is replaced */
};

/* One invocation. */
struct quant_run {
    struct tool *tool;
    const struct quant_options *options;
    moert_checkpoint_t *checkpoint; /* NULL: a single file */
    json_t *rows;                   /* report: one object per tensor */
    struct tool_progress progress;
    uint64_t tensors;             /* converted */
    uint64_t resumed;             /* of them by an earlier run */
    uint64_t unmeasured;          /* of them without sums of squares */
    uint64_t bytes_in, bytes_out; /* of converted tensors */
    double error, signal;         /* sums of squares over them */
};

/* What happens to a tensor of the source. */
enum quant_action { QUANT_COPY, QUANT_ENCODE, QUANT_DECODE, QUANT_DROP };
struct quant_step {
    const char *path; /* of the source */
    const struct moert_st_tensor *tensor;
    const struct moert_st_tensor *partner; /* DECODE: scales or codebooks */
    enum quant_action action;
    moert_scheme_t scheme;
    char *name;          /* DECODE: of the result */
    uint64_t rows, cols; /* of the matrix, leading axes folded into rows */
};

/* Steps of a file, in the order of its data; free with quant_plan_free. */
moert_status_t quant_plan(const struct quant_run *run, const moert_safetensors_t *in, struct quant_step **ret,
                          struct moert_error *err);
void quant_plan_free(struct quant_step *steps, uint64_t count);

/* Every pattern of --include must choose something in one of the files. */
moert_status_t quant_check_patterns(const struct quant_run *run, const moert_safetensors_t *const *files,
                                    uint32_t count, struct moert_error *err);

/* Something must be converted: of one file, or of a checkpoint (`in` NULL). Says what was looked for. */
moert_status_t quant_check_any(const struct quant_run *run, const moert_safetensors_t *in, const char *source,
                               uint64_t converted, struct moert_error *err);
/* The experts of a layer take one form, or nothing can open it. `seen` (an object) carries what became of the weights
 * of files that were looked at before. */
moert_status_t quant_check_layers(const struct quant_run *run, const moert_safetensors_t *in,
                                  const struct quant_step *steps, json_t *seen, struct moert_error *err);
uint64_t quant_count(const struct quant_step *steps, uint64_t count);

/* Writes `path` from `in`. */
moert_status_t quant_file(struct quant_run *run, const moert_safetensors_t *in, const char *path,
                          struct moert_error *err);
moert_status_t quant_checkpoint(struct quant_run *run, const char *source, const char *destination,
                                struct moert_error *err);

/* Makes and locks the directory `destination`, or refuses it: nothing has been written then. Closing *ret_fd ends the
 * lock. */
moert_status_t quant_target_open(const struct quant_run *run, const char *source, const char *destination, int *ret_fd,
                                 struct moert_error *err);
/* An existing one is fine. */
moert_status_t quant_make_directory(const char *path, struct moert_error *err);

/* Source bytes of a file's tensors. */
uint64_t quant_bytes(const moert_safetensors_t *file);

/* Measured while converting; sums are taken in the order of the pieces, so that they do not depend on the threads. */
struct quant_stats {
    double error, signal, max_error; /* sums of squares, largest difference */
    uint64_t saturated, poisoned;
};
/* Converts rows [first, first+count) of a step: codes (or values) to out, scales or codebooks to out2. */
moert_status_t quant_work(const struct quant_run *run, const struct quant_step *step, uint64_t first, uint64_t count,
                          uint8_t *out, uint8_t *out2, struct quant_stats *stats, struct moert_error *err);
/* Bytes per row of: the source, the first and the second output. Rows come in eights for lut-b. */
void quant_row_bytes(const struct quant_run *run, const struct quant_step *step, uint64_t ret[3]);

/* The whole of quantize and dequantize once the options are known. */
int quant_main(struct tool *tool, const struct quant_options *options, const char *source, const char *destination,
               const char *report);

#endif
