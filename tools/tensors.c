/* tools/tensors.c: safetensors files as inputs and outputs of a subcommand. */
#include "config.h"

#include "tools/tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const moert_dtype_t tool_float_dtypes[] = {MOERT_F32, MOERT_BF16, MOERT_F16, MOERT_DTYPE_NONE};
const moert_dtype_t tool_f32_dtype[] = {MOERT_F32, MOERT_DTYPE_NONE};
const moert_dtype_t tool_i32_dtype[] = {MOERT_I32, MOERT_DTYPE_NONE};

int tool_input_open(struct tool *tool, const char *path, struct tool_input *ret)
{
    struct moert_error err = MOERT_ERROR_INIT;

    if (moert_safetensors_open(path, MOERT_ST_OPEN_MAP, &ret->file, &err))
        return tool_error(tool, &err);
    return 0;
}

void tool_input_close(struct tool_input *input)
{
    for (size_t i = 0; i < input->copy_count; i++)
        free(input->copies[i]);
    free(input->copies);
    moert_safetensors_close(input->file);
    memset(input, 0, sizeof(*input));
}

int tool_input_has(const struct tool_input *input, const char *name)
{
    return moert_safetensors_find(input->file, name) != NULL;
}

void *tool_alloc(struct tool *tool, uint64_t count, uint64_t size)
{
    uint64_t bytes;
    void *memory = NULL;

    if (!__builtin_mul_overflow(count, size, &bytes) && bytes <= PTRDIFF_MAX)
        memory = malloc(bytes ? (size_t)bytes : 1);
    if (!memory)
        tool_fail(tool, MOERT_E_NOMEM, "host-memory", "%llu x %llu bytes of memory wanted", (unsigned long long)count,
                  (unsigned long long)size);
    return memory;
}

/* Memory of `bytes` that is freed with the input. */
static void *input_memory(struct tool *tool, struct tool_input *input, uint64_t bytes)
{
    void **grown = realloc(input->copies, (input->copy_count + 1) * sizeof(*grown));
    void *memory = NULL;

    if (grown) {
        input->copies = grown;
        memory = tool_alloc(tool, bytes, 1);
    } else
        tool_fail(tool, MOERT_E_NOMEM, "host-memory", "memory is out");
    if (memory)
        input->copies[input->copy_count++] = memory;
    return memory;
}

static int wrong_dtype(struct tool *tool, const struct tool_input *input, const struct moert_st_tensor *t,
                       const moert_dtype_t *dtypes)
{
    char want[64];
    size_t n = 0;

    for (size_t i = 0; dtypes[i] != MOERT_DTYPE_NONE; i++)
        n += (size_t)snprintf(want + n, sizeof(want) - n, "%s%s", i ? (dtypes[i + 1] ? ", " : " or ") : "",
                              moert_dtype_name(dtypes[i]));
    return tool_fail(tool, MOERT_E_DTYPE, "tensor-dtype", "%s: tensor \"%s\" is %s, expected %s",
                     moert_safetensors_path(input->file), t->name, moert_dtype_name(t->dtype), want);
}

int tool_input_tensor(struct tool *tool, struct tool_input *input, const char *name, const moert_dtype_t *dtypes,
                      uint32_t rank, struct moert_tensor *ret)
{
    static const char *const axes[] = {"", "[n]", "[rows, columns]"};
    struct moert_error err = MOERT_ERROR_INIT;
    const struct moert_st_tensor *t = moert_safetensors_find(input->file, name);
    const void *data;
    int known = 0;

    if (!t) {
        /* The library's message names the nearest tensor. */
        if (moert_safetensors_get(input->file, name, MOERT_DTYPE_NONE, rank, NULL, &t, &err))
            return tool_error(tool, &err);
    }
    for (size_t i = 0; dtypes[i] != MOERT_DTYPE_NONE; i++)
        known |= dtypes[i] == t->dtype;
    if (!known)
        return wrong_dtype(tool, input, t, dtypes);
    if (t->rank != rank)
        return tool_fail(tool, MOERT_E_SHAPE, "tensor-shape", "%s: tensor \"%s\" has %u dimensions, expected %u: %s",
                         moert_safetensors_path(input->file), name, t->rank, rank, rank < 3 ? axes[rank] : "");
    data = t->data;
    if ((uintptr_t)data % moert_dtype_size(t->dtype)) {
        void *copy = input_memory(tool, input, t->bytes);
        if (!copy)
            return TOOL_DEVICE;
        memcpy(copy, data, t->bytes);
        data = copy;
    }
    *ret = moert_tensor_host(data, t->dtype, rank, t->shape);
    return 0;
}

int tool_input_ids(struct tool *tool, struct tool_input *input, const char *name, struct moert_tensor *ret)
{
    static const moert_dtype_t id_dtypes[] = {MOERT_I32, MOERT_I64, MOERT_DTYPE_NONE};
    struct moert_tensor ids;
    int status = tool_input_tensor(tool, input, name, id_dtypes, 2, &ids);

    if (status)
        return status;
    if (ids.dtype == MOERT_I64) {
        const int64_t *wide = ids.data;
        uint64_t n = tool_elements(&ids);
        int32_t *narrow = input_memory(tool, input, n * sizeof(*narrow));
        if (!narrow)
            return TOOL_DEVICE;
        for (uint64_t i = 0; i < n; i++)
            narrow[i] = wide[i] < 0 || wide[i] > INT32_MAX ? -1 : (int32_t)wide[i];
        ids = moert_tensor_host(narrow, MOERT_I32, 2, ids.shape);
    }
    *ret = ids;
    return 0;
}

uint64_t tool_elements(const struct moert_tensor *tensor)
{
    uint64_t n = 1;

    for (uint32_t i = 0; i < tensor->rank; i++)
        if (__builtin_mul_overflow(n, tensor->shape[i], &n))
            return UINT64_MAX;
    return n;
}

int tool_write_tensors(struct tool *tool, const char *path, const struct tool_output_tensor *tensors, size_t count)
{
    struct moert_error err = MOERT_ERROR_INIT;
    moert_st_writer_t *writer = NULL;
    moert_status_t status = moert_st_writer_create(path, &writer, &err);

    for (size_t i = 0; !status && i < count; i++) {
        const struct moert_tensor *t = &tensors[i].tensor;
        if (t->dtype != MOERT_DTYPE_NONE)
            status = moert_st_writer_declare(writer, tensors[i].name, t->dtype, t->rank, t->shape, &err);
    }
    if (!status)
        status = moert_st_writer_begin(writer, &err);
    for (size_t i = 0; !status && i < count; i++) {
        const struct moert_tensor *t = &tensors[i].tensor;
        if (t->dtype != MOERT_DTYPE_NONE)
            status = moert_st_writer_append(writer, t->data, tool_elements(t) * moert_dtype_size(t->dtype), &err);
    }
    if (!status)
        status = moert_st_writer_commit(writer, &err);
    moert_st_writer_destroy(writer);
    return status ? tool_error(tool, &err) : 0;
}
