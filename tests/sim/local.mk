# tests/sim: the simulated accelerator, a module that the conformance suite and the core's tests run on.
if DRIVER_CPU
check_LTLIBRARIES += tests/sim/moert_sim.la
tests_sim_moert_sim_la_SOURCES = tests/sim/driver.c tests/sim/inner.c tests/sim/layer.c tests/sim/memory.c \
	tests/sim/queue.c tests/sim/sim.h
tests_sim_moert_sim_la_CFLAGS = $(AM_CFLAGS) -pthread
tests_sim_moert_sim_la_LDFLAGS = $(MODULE_LDFLAGS) -rpath /nowhere
tests_sim_moert_sim_la_LIBADD = libmoert-cpu.la

TESTS += tests/sim/cts.sh tests/sim/ranking.sh
EXTRA_DIST += tests/sim/cts.sh tests/sim/ranking.sh tests/sim/sim.expect
if HAVE_CRITERION
check_PROGRAMS += tests/sim/test_sim
TESTS += tests/sim/test_sim
tests_sim_test_sim_CPPFLAGS = $(TEST_CPPFLAGS)
tests_sim_test_sim_CFLAGS = $(TEST_CFLAGS)
tests_sim_test_sim_LDADD = libmoert-cpu.la $(TEST_LDADD)
endif
endif
