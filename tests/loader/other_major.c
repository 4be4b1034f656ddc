/* tests/loader/other_major.c: a driver of a later ABI. None of its code may run. */
#include "config.h"

#include <stdint.h>
#include <stdlib.h>

const void *moert_driver_v2(uint32_t host_minor);
__attribute__((visibility("default"))) const void *moert_driver_v2(uint32_t host_minor)
{
    (void)host_minor;
    abort();
}

__attribute__((constructor)) static void never(void)
{
    abort();
}
