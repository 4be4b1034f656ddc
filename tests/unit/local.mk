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

# The CPU driver through its ABI, linked statically.
if HAVE_CRITERION
if DRIVER_CPU
check_PROGRAMS += tests/unit/test_cpu_vectors tests/unit/test_cpu_reference
TESTS += tests/unit/test_cpu_vectors tests/unit/test_cpu_reference
tests_unit_test_cpu_vectors_SOURCES = tests/unit/test_cpu_vectors.c tests/unit/cpu_rig.h
tests_unit_test_cpu_vectors_CPPFLAGS = $(TEST_CPPFLAGS)
tests_unit_test_cpu_vectors_CFLAGS = $(TEST_CFLAGS)
tests_unit_test_cpu_vectors_LDADD = libmoert-cpu.la $(TEST_LDADD) $(OPENMP_CFLAGS)
tests_unit_test_cpu_reference_SOURCES = tests/unit/test_cpu_reference.c tests/unit/cpu_rig.h
tests_unit_test_cpu_reference_CPPFLAGS = $(TEST_CPPFLAGS)
tests_unit_test_cpu_reference_CFLAGS = $(TEST_CFLAGS)
# Without libmoert: the driver needs nothing of it.
tests_unit_test_cpu_reference_LDADD = libmoert-cpu.la $(CRITERION_LIBS) $(OPENMP_CFLAGS) -lm
endif
endif

include tests/unit/oracle.mk

# Numerics: they also link the convenience library, whose inner functions libmoert.so hides.
if HAVE_CRITERION
NUMERICS_TESTS = tests/unit/test_float8 tests/unit/test_exact_math tests/unit/test_activation tests/unit/test_mxfp8 \
	tests/unit/test_lutb
check_PROGRAMS += $(NUMERICS_TESTS)
TESTS += $(NUMERICS_TESTS)
EXTRA_DIST += tests/unit/numerics.h
tests_unit_test_float8_CPPFLAGS = $(TEST_CPPFLAGS)
tests_unit_test_float8_CFLAGS = $(TEST_CFLAGS)
tests_unit_test_float8_LDADD = libmoert-numerics.la $(TEST_LDADD)
tests_unit_test_exact_math_CPPFLAGS = $(TEST_CPPFLAGS)
tests_unit_test_exact_math_CFLAGS = $(TEST_CFLAGS)
tests_unit_test_exact_math_LDADD = libmoert-numerics.la $(TEST_LDADD)
tests_unit_test_activation_CPPFLAGS = $(TEST_CPPFLAGS)
tests_unit_test_activation_CFLAGS = $(TEST_CFLAGS)
tests_unit_test_activation_LDADD = libmoert-numerics.la $(TEST_LDADD)
tests_unit_test_mxfp8_CPPFLAGS = $(TEST_CPPFLAGS)
tests_unit_test_mxfp8_CFLAGS = $(TEST_CFLAGS)
tests_unit_test_mxfp8_LDADD = libmoert-numerics.la $(TEST_LDADD)
tests_unit_test_lutb_CPPFLAGS = $(TEST_CPPFLAGS)
tests_unit_test_lutb_CFLAGS = $(TEST_CFLAGS)
tests_unit_test_lutb_LDADD = libmoert-numerics.la $(TEST_LDADD)
endif

# core/layer
if HAVE_CRITERION
check_PROGRAMS += tests/unit/test_layer_config tests/unit/test_chunk
TESTS += tests/unit/test_layer_config tests/unit/test_chunk
tests_unit_test_layer_config_CPPFLAGS = $(TEST_CPPFLAGS)
tests_unit_test_layer_config_CFLAGS = $(TEST_CFLAGS)
tests_unit_test_layer_config_LDADD = $(TEST_LDADD)
tests_unit_test_chunk_SOURCES = tests/unit/test_chunk.c core/layer/chunk.c
tests_unit_test_chunk_CPPFLAGS = $(TEST_CPPFLAGS)
tests_unit_test_chunk_CFLAGS = $(TEST_CFLAGS)
tests_unit_test_chunk_LDADD = libmoert-numerics.la $(TEST_LDADD)
endif
if HAVE_CRITERION
if DRIVER_CPU
check_PROGRAMS += tests/unit/test_layer_device tests/unit/test_layer_run tests/unit/test_layer_weights
TESTS += tests/unit/test_layer_device tests/unit/test_layer_run tests/unit/test_layer_weights
tests_unit_test_layer_device_SOURCES = tests/unit/test_layer_device.c tests/unit/layer_rig.h
tests_unit_test_layer_device_CPPFLAGS = $(TEST_CPPFLAGS)
tests_unit_test_layer_device_CFLAGS = $(TEST_CFLAGS)
tests_unit_test_layer_device_LDADD = libmoert-cpu.la $(TEST_LDADD) $(OPENMP_CFLAGS)
tests_unit_test_layer_run_SOURCES = tests/unit/test_layer_run.c tests/unit/layer_rig.h
tests_unit_test_layer_run_CPPFLAGS = $(TEST_CPPFLAGS)
tests_unit_test_layer_run_CFLAGS = $(TEST_CFLAGS) -pthread
tests_unit_test_layer_run_LDADD = libmoert-cpu.la $(TEST_LDADD) $(OPENMP_CFLAGS) -lpthread
tests_unit_test_layer_weights_SOURCES = tests/unit/test_layer_weights.c tests/unit/layer_rig.h
tests_unit_test_layer_weights_CPPFLAGS = $(TEST_CPPFLAGS)
tests_unit_test_layer_weights_CFLAGS = $(TEST_CFLAGS)
tests_unit_test_layer_weights_LDADD = libmoert-cpu.la $(TEST_LDADD) $(OPENMP_CFLAGS)
endif
endif

if HAVE_CRITERION
check_PROGRAMS += tests/unit/test_checkpoint
TESTS += tests/unit/test_checkpoint
tests_unit_test_checkpoint_CPPFLAGS = $(TEST_CPPFLAGS)
tests_unit_test_checkpoint_CFLAGS = $(TEST_CFLAGS)
tests_unit_test_checkpoint_LDADD = $(TEST_LDADD)
endif

include tests/unit/routing.mk
