/* tools/tensors.h: safetensors files as inputs and outputs of a subcommand. Every function that fails has printed the
 * message and returns the exit status; 0 is success. */
#ifndef MOERT_TOOLS_TENSORS_H
#define MOERT_TOOLS_TENSORS_H

#include "tools/tools.h"

#include <moert/safetensors.h>

/* An open file and the aligned copies made of its tensors; zero-initialise, end with tool_input_close. */
struct tool_input {
    moert_safetensors_t *file;
    void **copies;
    size_t copy_count;
};
int tool_input_open(struct tool *tool, const char *path, struct tool_input *ret);
void tool_input_close(struct tool_input *input);
int tool_input_has(const struct tool_input *input, const char *name);
/* The named tensor with one of the dtypes (list ended by MOERT_DTYPE_NONE), of the rank, its data aligned to the
 * element's size. Lives as long as the input. */
int tool_input_tensor(struct tool *tool, struct tool_input *input, const char *name, const moert_dtype_t *dtypes,
                      uint32_t rank, struct moert_tensor *ret);
/* Ids I32 or I64 [T,K] as I32; 64-bit values beyond 32 bits mean "no expert" and become -1. */
int tool_input_ids(struct tool *tool, struct tool_input *input, const char *name, struct moert_tensor *ret);

extern const moert_dtype_t tool_float_dtypes[]; /* F32, BF16, F16 */
extern const moert_dtype_t tool_f32_dtype[];
extern const moert_dtype_t tool_i32_dtype[];

/* Writes host tensors to a file that appears complete or not at all; absent ones (data NULL, elements not 0) are
 * skipped. */
struct tool_output_tensor {
    const char *name;
    struct moert_tensor tensor;
};
int tool_write_tensors(struct tool *tool, const char *path, const struct tool_output_tensor *tensors, size_t count);

uint64_t tool_elements(const struct moert_tensor *tensor);
/* malloc(count*size, at least 1) with a checked product; NULL after a message. */
void *tool_alloc(struct tool *tool, uint64_t count, uint64_t size);

#endif
