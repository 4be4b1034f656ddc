# libmoert. core/numerics (with the one base file it needs) is a library of its own because drivers link it too.

moertincludedir = $(includedir)/moert
moertinclude_HEADERS = \
	include/moert/activation.h include/moert/base.h include/moert/checkpoint.h include/moert/context.h \
	include/moert/driver.h include/moert/float8.h include/moert/layer.h include/moert/layer_config.h \
	include/moert/lutb.h include/moert/moert.h include/moert/mxfp8.h include/moert/oracle.h \
	include/moert/routing.h include/moert/safetensors.h include/moert/verify.h

noinst_LTLIBRARIES += libmoert-numerics.la
libmoert_numerics_la_SOURCES =
libmoert_numerics_la_LIBADD =

lib_LTLIBRARIES += libmoert.la
libmoert_la_SOURCES =
libmoert_la_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS) $(LIBMD_CFLAGS) -pthread
libmoert_la_LIBADD = libmoert-numerics.la $(JANSSON_LIBS) $(LIBMD_LIBS) -ldl -lm
libmoert_la_LDFLAGS = $(AM_LDFLAGS) -version-info $(MOERT_LT_VERSION) -no-undefined -pthread
if HAVE_VERSION_SCRIPT
libmoert_la_LDFLAGS += -Wl,--version-script=$(top_srcdir)/core/libmoert.map
endif
EXTRA_DIST += core/libmoert.map

include core/base/local.mk
include core/numerics/local.mk
include core/routing/local.mk
include core/layer/local.mk
include core/oracle/local.mk
include core/loader/local.mk
include core/io/local.mk
include core/verify/local.mk
