/* SPDX-License-Identifier: Apache-2.0
 * moert/base.h: what every public header needs: visibility, names of enum values, tensors of the caller, memory. */
#ifndef MOERT_BASE_H
#define MOERT_BASE_H

#include <moert/driver.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MOERT_API __attribute__((visibility("default")))
#else
#define MOERT_API
#endif

/* Sets up an error buffer: struct moert_error err = MOERT_ERROR_INIT; */
#define MOERT_ERROR_INIT { sizeof(struct moert_error), 0, {0}, {0} }

/* Version of the library that runs, "0.1.0". Static. Thread-safe. */
MOERT_API const char *moert_version(void);

/* "MOERT_E_SHAPE"; "unknown status" for other values. Static. Thread-safe. */
MOERT_API const char *moert_status_name(moert_status_t status);

/* Exit status of the command for a status (cli.md): 0, 2, 3, 4, 5 or 6. */
MOERT_API int moert_status_exit_code(moert_status_t status);

/* Frees what a moert function returned as "malloc'ed" (strings mostly). NULL is legal. Thread-safe. */
MOERT_API void moert_free(void *pointer);

/* Names of enum values, as in files and messages: "F8_E4M3", "lut-b", "silu", "gate_up", ... NULL for values that do not
 * exist. Static. Thread-safe. */
MOERT_API const char *moert_dtype_name(moert_dtype_t v);
MOERT_API const char *moert_scheme_name(moert_scheme_t v);
MOERT_API const char *moert_activation_name(moert_activation_t v);
MOERT_API const char *moert_w13_order_name(moert_w13_order_t v);
MOERT_API const char *moert_role_name(moert_role_t v);
MOERT_API const char *moert_router_kind_name(moert_router_kind_t v);
MOERT_API const char *moert_scoring_name(moert_scoring_t v);
MOERT_API const char *moert_scale_at_name(moert_scale_at_t v);
MOERT_API const char *moert_class_name(moert_class_t v);
MOERT_API const char *moert_scale_rule_name(moert_scale_rule_t v);
MOERT_API const char *moert_nonfinite_name(moert_nonfinite_t v);

/* The reverse. Return 0 and set *ret, or -1 when the name is unknown (aliases such as "gelu_pytorch_tanh" are known). */
MOERT_API int moert_dtype_from_name(const char *name, moert_dtype_t *ret);
MOERT_API int moert_scheme_from_name(const char *name, moert_scheme_t *ret);
MOERT_API int moert_activation_from_name(const char *name, moert_activation_t *ret);
MOERT_API int moert_w13_order_from_name(const char *name, moert_w13_order_t *ret);
MOERT_API int moert_role_from_name(const char *name, moert_role_t *ret);
MOERT_API int moert_router_kind_from_name(const char *name, moert_router_kind_t *ret);
MOERT_API int moert_scoring_from_name(const char *name, moert_scoring_t *ret);
MOERT_API int moert_scale_at_from_name(const char *name, moert_scale_at_t *ret);
MOERT_API int moert_class_from_name(const char *name, moert_class_t *ret);
MOERT_API int moert_scale_rule_from_name(const char *name, moert_scale_rule_t *ret);
MOERT_API int moert_nonfinite_from_name(const char *name, moert_nonfinite_t *ret);

/* Bytes of one element; 0 for NONE and unknown values. */
MOERT_API size_t moert_dtype_size(moert_dtype_t dtype);

/* A buffer on a device, made by moert_buffer_alloc or _import (moert/context.h). */
typedef struct moert_buffer moert_buffer_t;

/* A tensor of the caller. Host memory: `data` points to it. Device memory: `buffer` and byte `offset`, data NULL.
 * Neither: the tensor is not given. shape and strides count elements, slowest axis first. The memory stays the
 * caller's and must live until the queue has done the work that uses it. */
struct moert_tensor {
    void *data;
    moert_buffer_t *buffer;
    uint64_t offset;
    moert_dtype_t dtype;
    uint32_t rank;
    uint64_t shape[MOERT_MAX_RANK];
    int64_t strides[MOERT_MAX_RANK];
};

/* Dense row-major tensors; rank <= MOERT_MAX_RANK (larger ranks give an absent tensor). */
MOERT_API struct moert_tensor moert_tensor_host(const void *data, moert_dtype_t dtype, uint32_t rank,
                                                const uint64_t *shape);
MOERT_API struct moert_tensor moert_tensor_device(moert_buffer_t *buffer, uint64_t offset, moert_dtype_t dtype,
                                                  uint32_t rank, const uint64_t *shape);

#ifdef __cplusplus
}
#endif
#endif
