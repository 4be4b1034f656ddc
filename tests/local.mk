# Tests. Every program speaks TAP; tests/run.sh adds the counts up. Data are found through MOERT_TEST_DATA.
AM_TESTS_ENVIRONMENT = \
	MOERT_TEST_DATA='$(abs_top_srcdir)/tests/data' MOERT_TEST_SRCDIR='$(abs_top_srcdir)' \
	MOERT_TEST_BUILDDIR='$(abs_top_builddir)' MOERT_TEST_PYTHON='$(PYTHON3)' MOERT_TEST_READELF='$(READELF)'; \
	export MOERT_TEST_DATA MOERT_TEST_SRCDIR MOERT_TEST_BUILDDIR MOERT_TEST_PYTHON MOERT_TEST_READELF; \
	CRITERION_OUTPUTS=tap:-; export CRITERION_OUTPUTS; \
	LSAN_OPTIONS='suppressions=$(abs_top_srcdir)/tests/lsan.supp:print_suppressions=0'; export LSAN_OPTIONS; \
	ASAN_OPTIONS='allocator_may_return_null=1:handle_segv=0'; export ASAN_OPTIONS; \
	unset MOERT_DRIVER_PATH MOERT_DRIVERS;
EXTRA_DIST += tests/lsan.supp
LOG_DRIVER = env AM_TAP_AWK='$(AWK)' $(SHELL) $(top_srcdir)/build-aux/tap-driver.sh --ignore-exit --merge
TEST_EXTENSIONS = .sh
SH_LOG_DRIVER = $(LOG_DRIVER)
SH_LOG_COMPILER = $(SHELL)

EXTRA_DIST += tests/minimum tests/readme.sh tests/run.sh

TEST_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir)/tests
TEST_CFLAGS = $(AM_CFLAGS) $(CRITERION_CFLAGS)
TEST_LDADD = libmoert.la $(CRITERION_LIBS) -lm

include tests/unit/local.mk
include tests/loader/local.mk
include tests/sim/local.mk
include tests/cts/local.mk
include tests/cli/local.mk

# Data that tests read; vectors/ is listed by its manifest.
EXTRA_DIST += tests/data/README.md tests/data/vectors

# The sanitizer pass of tests/run.sh: everything but the command's scripts, whose spawned self-tests come near their 30 s limit
# in a sanitised build on a small machine. `make check` in such a build runs those too.
check-sanitizers:
	$(MAKE) check TESTS='$(filter-out tests/cli/% tests/sim/ranking.sh,$(TESTS))'
.PHONY: check-sanitizers
