/* SPDX-License-Identifier: Apache-2.0
 * drivers/cpu/cpu.h: the CPU driver as a static object. module.c exports it as a module; tests and the self-test helper
 * link libmoert-cpu.la and register it directly. */
#ifndef MOERT_DRIVERS_CPU_H
#define MOERT_DRIVERS_CPU_H

#include <moert/driver.h>

extern const struct moert_driver mcpu_driver;

#endif
