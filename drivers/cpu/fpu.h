/* SPDX-License-Identifier: Apache-2.0
 * drivers/cpu/fpu.h: the floating-point state of the calling thread: results must not depend on a caller's rounding
 * mode or flush-to-zero bits (MXCSR on x86, FPCR on Arm). */
#ifndef MOERT_DRIVERS_CPU_FPU_H
#define MOERT_DRIVERS_CPU_FPU_H

#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>

typedef uint32_t mcpu_fpu_state;

/* 0x1f80: all exceptions masked, nearest even, FTZ and DAZ clear. */
static inline mcpu_fpu_state mcpu_fpu_default(void)
{
    mcpu_fpu_state saved = _mm_getcsr();
    _mm_setcsr(0x1f80);
    return saved;
}

static inline void mcpu_fpu_restore(mcpu_fpu_state saved)
{
    _mm_setcsr(saved);
}

#elif defined(__aarch64__)

typedef uint64_t mcpu_fpu_state;

static inline mcpu_fpu_state mcpu_fpu_default(void)
{
    mcpu_fpu_state saved;
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved)::"memory");
    __asm__ volatile("msr fpcr, %0" ::"r"((uint64_t)0) : "memory");
    return saved;
}

static inline void mcpu_fpu_restore(mcpu_fpu_state saved)
{
    __asm__ volatile("msr fpcr, %0" ::"r"(saved) : "memory");
}

#else
#include <fenv.h>

typedef fenv_t mcpu_fpu_state;

static inline mcpu_fpu_state mcpu_fpu_default(void)
{
    mcpu_fpu_state saved;
    fegetenv(&saved);
    fesetenv(FE_DFL_ENV);
    return saved;
}

static inline void mcpu_fpu_restore(mcpu_fpu_state saved)
{
    fesetenv(&saved);
}

#endif
#endif
