# The CPU driver: libmoert-cpu.la is the driver, moert_cpu.so its module.
if DRIVER_CPU
noinst_LTLIBRARIES += libmoert-cpu.la libmoert-cpu-probe.la

# Runs before anything is known of the machine: no instruction-set flags, no link-time optimisation.
libmoert_cpu_probe_la_SOURCES = drivers/cpu/probe.c
libmoert_cpu_probe_la_CFLAGS = $(AM_CFLAGS) -fPIC -fno-lto

libmoert_cpu_la_SOURCES = \
	drivers/cpu/cpu.h drivers/cpu/internal.h drivers/cpu/fpu.h drivers/cpu/tensor.h drivers/cpu/tensor.c \
	drivers/cpu/driver.c drivers/cpu/device.c drivers/cpu/threads.c drivers/cpu/steps.c drivers/cpu/backends.c \
	drivers/cpu/ref/ref.h drivers/cpu/ref/shape.c drivers/cpu/ref/weights.c drivers/cpu/ref/args.c \
	drivers/cpu/ref/layer.c drivers/cpu/ref/decode.c drivers/cpu/ref/quantise.c drivers/cpu/ref/gemm.c \
	drivers/cpu/ref/activation.c drivers/cpu/ref/combine.c
libmoert_cpu_la_CFLAGS = $(AM_CFLAGS) $(OPENMP_CFLAGS) -fPIC
libmoert_cpu_la_LIBADD = libmoert-cpu-probe.la libmoert-driver-common.la libmoert-numerics.la
libmoert_cpu_la_LDFLAGS = $(AM_LDFLAGS) $(OPENMP_CFLAGS)

module_LTLIBRARIES += moert_cpu.la
moert_cpu_la_SOURCES = drivers/cpu/module.c
moert_cpu_la_CFLAGS = $(AM_CFLAGS) $(OPENMP_CFLAGS)
moert_cpu_la_LIBADD = libmoert-cpu.la -lm
moert_cpu_la_LDFLAGS = $(MODULE_LDFLAGS) $(OPENMP_CFLAGS)
endif
