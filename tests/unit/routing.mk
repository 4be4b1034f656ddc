# Routing.
TESTS += tests/unit/counts_type.sh
EXTRA_DIST += tests/unit/counts_type.sh tests/unit/routing_vectors.h
if HAVE_CRITERION
ROUTING_TESTS = tests/unit/test_router tests/unit/test_align tests/unit/test_expert_map tests/unit/test_permute_combine
check_PROGRAMS += $(ROUTING_TESTS)
TESTS += $(ROUTING_TESTS)
tests_unit_test_router_CPPFLAGS = $(TEST_CPPFLAGS)
tests_unit_test_router_CFLAGS = $(TEST_CFLAGS)
tests_unit_test_router_LDADD = $(TEST_LDADD)
tests_unit_test_align_CPPFLAGS = $(TEST_CPPFLAGS)
tests_unit_test_align_CFLAGS = $(TEST_CFLAGS)
tests_unit_test_align_LDADD = $(TEST_LDADD)
tests_unit_test_expert_map_CPPFLAGS = $(TEST_CPPFLAGS)
tests_unit_test_expert_map_CFLAGS = $(TEST_CFLAGS)
tests_unit_test_expert_map_LDADD = $(TEST_LDADD)
tests_unit_test_permute_combine_CPPFLAGS = $(TEST_CPPFLAGS)
tests_unit_test_permute_combine_CFLAGS = $(TEST_CFLAGS)
tests_unit_test_permute_combine_LDADD = $(TEST_LDADD)
endif
