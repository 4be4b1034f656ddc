if DRIVER_NULL
module_LTLIBRARIES += moert_null.la
moert_null_la_SOURCES = drivers/null/backend.c drivers/null/device.c drivers/null/null.c drivers/null/null.h
moert_null_la_LDFLAGS = $(MODULE_LDFLAGS)
moert_null_la_LIBADD = libmoert-driver-common.la libmoert-numerics.la
endif
