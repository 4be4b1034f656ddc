/* tests/loader/needs_symbol.c: a driver that needs a function nobody has: dlopen refuses it. */
#include "config.h"

#include <stdint.h>

const void *moert_driver_v1(uint32_t host_minor);
int moert_test_function_that_nobody_has(void);
__attribute__((visibility("default"))) const void *moert_driver_v1(uint32_t host_minor)
{
    return moert_test_function_that_nobody_has() == (int)host_minor ? "" : (const void *)0;
}
