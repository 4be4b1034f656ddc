/* tests/sim/driver.c: the module: two simulated devices and their table. */
#include "config.h"

#include "tests/sim/sim.h"
#include "core/base/error.h"
#include "drivers/cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

moert_status_t sim_describe(uint32_t index, struct moert_device_desc *ret);

moert_status_t sim_describe(uint32_t index, struct moert_device_desc *ret)
{
    uint32_t size = ret->size;

    *ret = (struct moert_device_desc){.size = size,
                                      .flags = MOERT_DEVICE_F_PRESENT | MOERT_DEVICE_F_BINARY64,
                                      .driver = "sim",
                                      .arch = "sim_1",
                                      .runtime = "1.0",
                                      .kind = MOERT_DEVICE_ACCELERATOR,
                                      .compute_units = 1,
                                      .memory_total = SIM_MEMORY,
                                      .memory_free = SIM_MEMORY,
                                      .max_buffer = SIM_MAX_BUFFER,
                                      .alignment = 1};
    snprintf(ret->id, sizeof(ret->id), "sim:%u", index);
    snprintf(ret->name, sizeof(ret->name), "simulated accelerator %u", index);
    return MOERT_OK;
}

static moert_status_t probe(const struct moert_host *host, struct moert_probe *ret, struct moert_error *err)
{
    (void)host;
    (void)err;
    ret->state = MOERT_PROBE_AVAILABLE;
    ret->reason[0] = 0;
    return MOERT_OK;
}

/* SIM_FAULT: word, or word:number. */
static void read_fault(moert_drv *drv)
{
    static const struct {
        const char *word;
        int fault;
    } words[] = {{"alloc", SIM_FAULT_ALLOC}, {"lost", SIM_FAULT_LOST},   {"p", SIM_FAULT_STEP},
                 {"slow", SIM_FAULT_SLOW},   {"crash", SIM_FAULT_CRASH}, {"hang", SIM_FAULT_HANG}};
    const char *text = getenv("SIM_FAULT");

    for (size_t i = 0; text && i < sizeof(words) / sizeof(*words); i++) {
        size_t n = strlen(words[i].word);
        if (!strncmp(text, words[i].word, n)) {
            drv->fault = words[i].fault;
            drv->fault_count = atoi(text + n + (text[n] == ':'));
        }
    }
    if (drv->fault == SIM_FAULT_STEP && (drv->fault_count < 1 || drv->fault_count > 6))
        drv->fault = SIM_FAULT_NONE;
}

static moert_status_t driver_open(const struct moert_host *host, moert_drv **ret, struct moert_error *err)
{
    moert_drv *drv = calloc(1, sizeof(*drv));
    moert_status_t status;

    if (!drv)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for the driver");
    drv->host = host;
    read_fault(drv);
    status = mcpu_driver.ops->open(host, &drv->cpu, err);
    if (status)
        free(drv);
    else
        *ret = drv;
    return status;
}

static void driver_close(moert_drv *drv)
{
    mcpu_driver.ops->close(drv->cpu);
    free(drv);
}

static moert_status_t device_count(moert_drv *drv, uint32_t *ret, struct moert_error *err)
{
    (void)drv;
    (void)err;
    *ret = SIM_DEVICES;
    return MOERT_OK;
}

static moert_status_t device_info(moert_drv *drv, uint32_t index, struct moert_device_desc *ret,
                                  struct moert_error *err)
{
    (void)drv;
    if (index >= SIM_DEVICES)
        return moert_fail(err, MOERT_E_VALUE, "size", "device %u of %d", index, SIM_DEVICES);
    return sim_describe(index, ret);
}

static const struct moert_driver_ops driver_ops = {.size = sizeof(driver_ops),
                                                   .probe = probe,
                                                   .open = driver_open,
                                                   .close = driver_close,
                                                   .device_count = device_count,
                                                   .device_info = device_info};
static const struct moert_backend *const backends[] = {&sim_backend};
static const struct moert_driver driver = {.size = sizeof(driver),
                                           .minor = MOERT_DRIVER_ABI_MINOR,
                                           .sanitizer = MOERT_SANITIZER_ID,
                                           .name = "sim",
                                           .version = "1.0",
                                           .vendor = "moert tests",
                                           .ops = &driver_ops,
                                           .device = &sim_device_ops,
                                           .steps = &sim_step_ops,
                                           .backends = backends,
                                           .backend_count = 1};

__attribute__((visibility("default"))) const struct moert_driver *moert_driver_v1(uint32_t host_minor);

const struct moert_driver *moert_driver_v1(uint32_t host_minor)
{
    (void)host_minor;
    return &driver;
}
