# tests/unit

# The driver ABI: pinned offsets, and the headers alone as C11 and C++17.
TESTS += tests/unit/headers.sh
EXTRA_DIST += tests/unit/headers.sh
if HAVE_CRITERION
check_PROGRAMS += tests/unit/test_abi
TESTS += tests/unit/test_abi
tests_unit_test_abi_CPPFLAGS = $(TEST_CPPFLAGS)
tests_unit_test_abi_CFLAGS = $(TEST_CFLAGS)
tests_unit_test_abi_LDADD = $(TEST_LDADD)
endif

# core/io
if HAVE_CRITERION
check_PROGRAMS += tests/unit/test_safetensors
TESTS += tests/unit/test_safetensors
tests_unit_test_safetensors_CPPFLAGS = $(TEST_CPPFLAGS)
tests_unit_test_safetensors_CFLAGS = $(TEST_CFLAGS)
tests_unit_test_safetensors_LDADD = $(TEST_LDADD)
endif
