# quantize and dequantize, with a helper that knows the library's rules
check_PROGRAMS += tests/cli/quantize_check
tests_cli_quantize_check_CFLAGS = $(AM_CFLAGS)
tests_cli_quantize_check_LDADD = libmoert.la
TESTS += tests/cli/quantize.sh
EXTRA_DIST += tests/cli/quantize.sh
# tests/cli: the command from outside: exit status, messages, golden output, the shipped model.
check_PROGRAMS += tests/cli/mkst
tests_cli_mkst_SOURCES = tests/cli/mkst.c
tests_cli_mkst_CFLAGS = $(AM_CFLAGS)
CLI_TESTS = tests/cli/usage.sh tests/cli/steps.sh tests/cli/run.sh tests/cli/bad_input.sh tests/cli/model.sh \
	tests/cli/bench.sh tests/cli/documents.sh tests/cli/examples.sh
TESTS += $(CLI_TESTS)
EXTRA_DIST += $(CLI_TESTS) tests/cli/lib.sh tests/cli/golden
