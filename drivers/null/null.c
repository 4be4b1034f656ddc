/* drivers/null/null.c: the module's export and the driver ops. The loader calls, in this order: moert_driver_v1, probe,
 * open, device_count, device_info for each device; much later close. */
#include "config.h"

#include "drivers/null/null.h"

#include <string.h>

/* Cheap, and "no" is not an error: a GPU driver would look for the vendor's library and a device node here. Nothing
 * that it allocates may outlive the call. */
static moert_status_t probe(const struct moert_host *host, struct moert_probe *ret, struct moert_error *err)
{
    (void)host;
    (void)err;
    ret->state = MOERT_PROBE_AVAILABLE;
    return MOERT_OK;
}

/* The driver keeps the host's services; all memory of the driver comes from them. */
static moert_status_t open_driver(const struct moert_host *host, moert_drv **ret, struct moert_error *err)
{
    moert_drv *drv = host->alloc(host->ctx, sizeof(*drv), 0);

    if (!drv)
        return moert_fail(err, MOERT_E_NOMEM, "host-memory", "no memory for the null driver");
    drv->host = host;
    *ret = drv; /* outputs are written on success only */
    return MOERT_OK;
}

static void close_driver(moert_drv *drv)
{
    drv->host->free(drv->host->ctx, drv);
}

static moert_status_t device_count(moert_drv *drv, uint32_t *ret, struct moert_error *err)
{
    (void)drv;
    (void)err;
    *ret = 1;
    return MOERT_OK;
}

void mnull_describe(struct moert_device_desc *ret)
{
    uint32_t size = ret->size;

    /* The caller's struct may be of an earlier or later minor: write what both know. */
    memset(ret, 0, size < sizeof(*ret) ? size : sizeof(*ret));
    ret->size = size;
    ret->flags = MOERT_DEVICE_F_PRESENT | MOERT_DEVICE_F_HOST_MEMORY | MOERT_DEVICE_F_BINARY64;
    strcpy(ret->id, "null"); /* a driver of several devices numbers them: "cuda:0" */
    strcpy(ret->driver, "null");
    strcpy(ret->arch, "null");
    strcpy(ret->name, "imaginary device");
    strcpy(ret->runtime, PACKAGE_VERSION);
    ret->kind = MOERT_DEVICE_ACCELERATOR;
    ret->compute_units = 1;
    ret->alignment = 1;
}

/* Describes without opening the device. */
static moert_status_t device_info(moert_drv *drv, uint32_t index, struct moert_device_desc *ret,
                                  struct moert_error *err)
{
    (void)drv;
    if (index > 0)
        return moert_fail(err, MOERT_E_VALUE, "size", "device %u of 1", index);
    mnull_describe(ret);
    return MOERT_OK;
}

static const struct moert_driver_ops driver_ops = {.size = sizeof(driver_ops),
                                                   .probe = probe,
                                                   .open = open_driver,
                                                   .close = close_driver,
                                                   .device_count = device_count,
                                                   .device_info = device_info};

static const struct moert_backend *const backends[] = {&mnull_zero};

static const struct moert_driver driver = {
    .size = sizeof(driver),
    .minor = MOERT_DRIVER_ABI_MINOR,
    .sanitizer = MOERT_SANITIZER_ID,
    .name = "null", /* the file is moert_null.so */
    .version = PACKAGE_VERSION,
    .vendor = "moert",
    .ops = &driver_ops,
    .device = &mnull_device_ops,
    .steps = NULL, /* the core does single steps on the host */
    .backends = backends,
    .backend_count = sizeof(backends) / sizeof(*backends),
};

/* The one exported symbol. Pure: the same constant table at every call. */
__attribute__((visibility("default"))) const struct moert_driver *moert_driver_v1(uint32_t host_minor);
const struct moert_driver *moert_driver_v1(uint32_t host_minor)
{
    (void)host_minor; /* a driver that needs a younger host returns NULL here */
    return &driver;
}
