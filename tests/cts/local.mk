# tests/cts: the conformance suite on what is linked in; other folders run it on their modules.
if DRIVER_CPU
check_PROGRAMS += tests/cts/cts
tests_cts_cts_SOURCES = tests/cts/cts.c
tests_cts_cts_CFLAGS = $(AM_CFLAGS)
tests_cts_cts_LDADD = libmoert-cpu.la libmoert.la
TESTS += tests/cts/cpu.sh
EXTRA_DIST += tests/cts/cpu.sh tests/cts/cpu.expect

helper_PROGRAMS += moert-selftest
moert_selftest_SOURCES = tools/selftest.c
moert_selftest_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
moert_selftest_LDADD = libmoert-cpu.la libmoert.la $(JANSSON_LIBS)
endif
