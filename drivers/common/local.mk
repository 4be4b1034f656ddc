# What drivers share. Drivers link it beside libmoert-numerics.la.
noinst_LTLIBRARIES += libmoert-driver-common.la
libmoert_driver_common_la_SOURCES = drivers/common/abi.h drivers/common/checks.c drivers/common/checks.h
