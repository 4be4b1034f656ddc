# tests/cli

# quantize and dequantize, with a helper that knows the library's rules
check_PROGRAMS += tests/cli/quantize_check
tests_cli_quantize_check_CFLAGS = $(AM_CFLAGS)
tests_cli_quantize_check_LDADD = libmoert.la
TESTS += tests/cli/quantize.sh
EXTRA_DIST += tests/cli/quantize.sh
