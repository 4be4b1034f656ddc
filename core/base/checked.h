/* core/base/checked.h: products and sums that cannot wrap. Each returns 1 when the result fits, else 0. */
#ifndef MOERT_BASE_CHECKED_H
#define MOERT_BASE_CHECKED_H

#include <stddef.h>
#include <stdint.h>

static inline int moert_mul(uint64_t a, uint64_t b, uint64_t *ret)
{
    return !__builtin_mul_overflow(a, b, ret);
}

static inline int moert_add(uint64_t a, uint64_t b, uint64_t *ret)
{
    return !__builtin_add_overflow(a, b, ret);
}

static inline int moert_round_up(uint64_t a, uint64_t step, uint64_t *ret)
{
    return moert_add(a, (step - a % step) % step, ret);
}

/* Product of `rank` sizes. */
static inline int moert_product(const uint64_t *shape, uint32_t rank, uint64_t *ret)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i < rank; i++)
        if (!moert_mul(n, shape[i], &n))
            return 0;
    *ret = n;
    return 1;
}

#endif
