/* SPDX-License-Identifier: Apache-2.0
 * drivers/cpu/module.c: the one export of moert_cpu.so. */
#include "drivers/cpu/cpu.h"

__attribute__((visibility("default"))) const struct moert_driver *moert_driver_v1(uint32_t host_minor);

const struct moert_driver *moert_driver_v1(uint32_t host_minor)
{
    (void)host_minor; /* every minor of ABI 1 is served: later fields are only read when a struct holds them */
    return &mcpu_driver;
}
