/* core/numerics/mxfp8.h: one MXFP8 block at a time, for moert/mxfp8.h's array functions and for the layer reference. */
#ifndef MOERT_NUMERICS_MXFP8_H
#define MOERT_NUMERICS_MXFP8_H

#include <moert/mxfp8.h>

/* Parameters of a call, checked and in the form that the block functions use. */
struct moert_quantizer {
    moert_dtype_t dtype;
    uint32_t element_size;
    moert_scale_rule_t rule;
    moert_nonfinite_t nonfinite;
    uint32_t flush_tiny;
    uint32_t amax_min; /* binary32 pattern */
};

/* Checks dtype and params (NULL: defaults). */
moert_status_t moert_quantizer_init(struct moert_quantizer *ret, moert_dtype_t dtype,
                                    const struct moert_mxfp8_params *params, struct moert_error *err);

/* x: n = 1..32 elements, the missing ones count as +0 -> 32 codes; returns the scale byte. Adds cut elements to
 * *saturated. MOERT_NONFINITE_ERROR is the caller's to check; here it acts as POISON. */
uint8_t moert_quantizer_block(const struct moert_quantizer *q, const void *x, unsigned n, uint8_t codes[32],
                              uint64_t *saturated);

#endif
