# The loader against modules that are bad in each way. Hidden functions are tested, so the programs hold the loader itself.
TESTS += tests/loader/needed.sh
EXTRA_DIST += tests/loader/needed.sh

# -rpath makes libtool build shared objects of what is never installed.
LOADER_TEST_MODULE = $(AM_LDFLAGS) -module -avoid-version -shared -rpath /nowhere
check_LTLIBRARIES += tests/loader/variants.la tests/loader/no_symbol.la tests/loader/other_major.la \
	tests/loader/needs_symbol.la
tests_loader_variants_la_SOURCES = tests/loader/variants.c drivers/null/backend.c drivers/null/device.c
tests_loader_variants_la_CPPFLAGS = $(TEST_CPPFLAGS)
tests_loader_variants_la_LDFLAGS = $(LOADER_TEST_MODULE)
tests_loader_variants_la_LIBADD = libmoert-driver-common.la libmoert-numerics.la -ldl
tests_loader_no_symbol_la_SOURCES = tests/loader/no_symbol.c
tests_loader_no_symbol_la_LDFLAGS = $(LOADER_TEST_MODULE)
tests_loader_other_major_la_SOURCES = tests/loader/other_major.c
tests_loader_other_major_la_LDFLAGS = $(LOADER_TEST_MODULE)
tests_loader_needs_symbol_la_SOURCES = tests/loader/needs_symbol.c
tests_loader_needs_symbol_la_LDFLAGS = $(LOADER_TEST_MODULE)

check_LTLIBRARIES += libmoert-loader-test.la
libmoert_loader_test_la_SOURCES = \
	core/base/file.c core/base/log.c core/base/options.c core/loader/context.c core/loader/device.c \
	core/loader/discover.c core/loader/elf.c core/loader/gate.c core/loader/memory.c core/loader/module.c \
	core/loader/quarantine.c core/loader/queue.c core/loader/self_test.c core/loader/spawn.c core/loader/tables.c
libmoert_loader_test_la_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS) $(LIBMD_CFLAGS) -pthread
libmoert_loader_test_la_LIBADD = libmoert-numerics.la $(JANSSON_LIBS) $(LIBMD_LIBS) -ldl -lm

if HAVE_CRITERION
LOADER_TESTS = tests/loader/test_modules tests/loader/test_context tests/loader/test_self_test tests/loader/test_checks \
	tests/loader/test_null
check_PROGRAMS += $(LOADER_TESTS)
TESTS += $(LOADER_TESTS)
EXTRA_DIST += tests/loader/util.h
tests_loader_test_modules_CPPFLAGS = $(TEST_CPPFLAGS)
tests_loader_test_modules_CFLAGS = $(TEST_CFLAGS) -pthread
tests_loader_test_modules_LDADD = libmoert-loader-test.la $(CRITERION_LIBS)
tests_loader_test_context_CPPFLAGS = $(TEST_CPPFLAGS)
tests_loader_test_context_CFLAGS = $(TEST_CFLAGS) -pthread
tests_loader_test_context_LDADD = libmoert-loader-test.la $(CRITERION_LIBS)
tests_loader_test_self_test_CPPFLAGS = $(TEST_CPPFLAGS)
tests_loader_test_self_test_CFLAGS = $(TEST_CFLAGS) -pthread
tests_loader_test_self_test_LDADD = libmoert-loader-test.la $(CRITERION_LIBS)
tests_loader_test_checks_CPPFLAGS = $(TEST_CPPFLAGS)
tests_loader_test_checks_CFLAGS = $(TEST_CFLAGS)
tests_loader_test_checks_LDADD = libmoert-driver-common.la libmoert-numerics.la $(CRITERION_LIBS) -lm
tests_loader_test_null_SOURCES = tests/loader/test_null.c drivers/null/backend.c drivers/null/device.c drivers/null/null.c
tests_loader_test_null_CPPFLAGS = $(TEST_CPPFLAGS)
tests_loader_test_null_CFLAGS = $(TEST_CFLAGS)
tests_loader_test_null_LDADD = libmoert-driver-common.la libmoert-numerics.la $(CRITERION_LIBS) -lm
endif

# Needs no Criterion, so that it also runs under ThreadSanitizer.
check_PROGRAMS += tests/loader/test_race
TESTS += tests/loader/test_race
tests_loader_test_race_CFLAGS = $(AM_CFLAGS) -pthread
tests_loader_test_race_LDADD = libmoert-loader-test.la
check_SCRIPTS += tests/loader/race-modules/moert_good.so
tests/loader/race-modules/moert_good.so: tests/loader/variants.la
	@$(MKDIR_P) tests/loader/race-modules
	$(AM_V_GEN)cp tests/loader/.libs/variants.so $@
CLEANFILES += tests/loader/race-modules/moert_good.so
