/* core/numerics/lutb.h: what the codec and the two fits share. Values are compared as integer keys that rise with the
 * value, +0 and -0 alike, so that FTZ/DAZ cannot move a boundary. */
#ifndef MOERT_NUMERICS_LUTB_H
#define MOERT_NUMERICS_LUTB_H

#include <moert/lutb.h>

#include "core/numerics/bits.h"

#define TILE   MOERT_LUTB_TILE
#define LEVELS MOERT_LUTB_LEVELS

static inline int32_t moert_lutb_key(float x)
{
    uint32_t u = moert_f32_bits(x);
    int32_t magnitude = (int32_t)(u & 0x7FFFFFFF);
    return u >> 31 ? -magnitude : magnitude;
}

/* Clamp to +-448, round to E4M3, +0 for -0. x finite. */
static inline uint8_t moert_lutb_snap(float x)
{
    uint8_t code = moert_e4m3_from_bits(moert_f32_bits(x), 127);
    return code == 0x80 ? 0 : code;
}

/* order[TILE]: positions sorted by (value, position). */
void moert_lutb_order(const float *x, uint16_t *order);

/* The least error over all sets of at most 8 finite E4M3 values (lut-b.md 3); w NULL: all 1. */
void moert_lutb_fit_optimal(const float *x, const double *w, int keep_zero, uint8_t *codes);

/* Lloyd's iteration: MOERT_FIT_FARTHEST or MOERT_FIT_MULTISTART. */
void moert_lutb_fit_lloyd(const float *x, moert_lutb_fit_t fit, uint8_t *codes);

#endif
