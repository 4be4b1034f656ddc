/* SPDX-License-Identifier: Apache-2.0
 * drivers/cpu/driver.c: the driver object: opening, and its one device's description. */
#include "config.h"

#include "core/base/error.h"
#include "drivers/cpu/cpu.h"
#include "drivers/cpu/internal.h"

#include <stdlib.h>
#include <unistd.h>

static moert_status_t check_host(const struct moert_host *host, struct moert_error *err)
{
    moert_status_t status;

    if (!host)
        return moert_fail_null(err, "host");
    status = moert_check_size(err, "moert_host", host->size, MCPU_SIZE_TO(struct moert_host, option));
    if (status)
        return status;
    if (!host->log || !host->alloc || !host->free || !host->option)
        return moert_fail_null(err, "a service of the host (log, alloc, free, option)");
    return MOERT_OK;
}

static moert_status_t drv_probe(const struct moert_host *host, struct moert_probe *ret, struct moert_error *err)
{
    (void)host;
    if (!ret)
        return moert_fail_null(err, "ret");
    ret->state = MOERT_PROBE_AVAILABLE;
    ret->reason[0] = 0;
    return MOERT_OK;
}

static moert_status_t drv_open(const struct moert_host *host, moert_drv **ret, struct moert_error *err)
{
    moert_status_t status = check_host(host, err);
    const char *threads;
    moert_drv *drv;

    if (status)
        return status;
    if (!ret)
        return moert_fail_null(err, "ret");
    drv = host->alloc(host->ctx, sizeof(*drv), 64);
    if (!drv)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "cpu: %zu bytes wanted for the driver", sizeof(*drv));
    *drv = (moert_drv){.host = host, .affinity = mcpu_affinity_count(), .owner = (int64_t)getpid()};
    threads = host->option(host->ctx, "MOERT_THREADS");
    if (threads) {
        unsigned long n = strtoul(threads, NULL, 10); /* the host has checked the text */
        drv->threads = n > 1024 ? 1024 : (uint32_t)n;
    }
    *ret = drv;
    return MOERT_OK;
}

static void drv_close(moert_drv *drv)
{
    if (drv)
        drv->host->free(drv->host->ctx, drv);
}

static moert_status_t drv_device_count(moert_drv *drv, uint32_t *ret, struct moert_error *err)
{
    (void)drv;
    if (!ret)
        return moert_fail_null(err, "ret");
    *ret = 1;
    return MOERT_OK;
}

static moert_status_t drv_device_info(moert_drv *drv, uint32_t index, struct moert_device_desc *ret,
                                      struct moert_error *err)
{
    moert_status_t status;

    (void)drv;
    if (!ret)
        return moert_fail_null(err, "ret");
    status = moert_check_size(err, "moert_device_desc", ret->size, MCPU_SIZE_TO(struct moert_device_desc, reserved));
    if (status)
        return status;
    if (index)
        return moert_fail(err, MOERT_E_VALUE, "device", "cpu:%u does not exist; the driver has one device, 0", index);
    mcpu_describe(ret);
    return MOERT_OK;
}

const struct moert_driver_ops mcpu_driver_ops = {
    .size = sizeof(struct moert_driver_ops),
    .probe = drv_probe,
    .open = drv_open,
    .close = drv_close,
    .device_count = drv_device_count,
    .device_info = drv_device_info,
};

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZER MOERT_SANITIZER_ADDRESS
#elif defined(__SANITIZE_THREAD__)
#define SANITIZER MOERT_SANITIZER_THREAD
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZER MOERT_SANITIZER_ADDRESS
#elif __has_feature(thread_sanitizer)
#define SANITIZER MOERT_SANITIZER_THREAD
#endif
#endif
#ifndef SANITIZER
#define SANITIZER MOERT_SANITIZER_NONE
#endif

const struct moert_driver mcpu_driver = {
    .size = sizeof(struct moert_driver),
    .minor = MOERT_DRIVER_ABI_MINOR,
    .sanitizer = SANITIZER,
    .name = "cpu",
    .version = PACKAGE_VERSION,
    .vendor = "moert",
    .ops = &mcpu_driver_ops,
    .device = &mcpu_device_ops,
    .steps = &mcpu_step_ops,
    .backends = mcpu_backends,
    .backend_count = MCPU_BACKEND_COUNT,
};
