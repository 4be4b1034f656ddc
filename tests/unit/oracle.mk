# tests/unit: the oracle and the JSON form of layer descriptions.
if HAVE_CRITERION
check_PROGRAMS += tests/unit/test_layer_json tests/unit/test_oracle tests/unit/test_oracle_self_test
TESTS += tests/unit/test_layer_json tests/unit/test_oracle tests/unit/test_oracle_self_test
tests_unit_test_layer_json_CPPFLAGS = $(TEST_CPPFLAGS)
tests_unit_test_layer_json_CFLAGS = $(TEST_CFLAGS)
tests_unit_test_layer_json_LDADD = $(TEST_LDADD)

ORACLE_TEST_CFLAGS = $(TEST_CFLAGS) $(JANSSON_CFLAGS) $(LIBMD_CFLAGS) -pthread
ORACLE_TEST_LDADD = $(TEST_LDADD) $(JANSSON_LIBS) $(LIBMD_LIBS)
tests_unit_test_oracle_SOURCES = tests/unit/test_oracle.c tests/unit/oracle_fakes.h tests/unit/oracle_world.h \
	core/base/error.c core/base/text.c core/oracle/drift.c core/oracle/names.c core/oracle/arena.c
tests_unit_test_oracle_CPPFLAGS = $(TEST_CPPFLAGS)
tests_unit_test_oracle_CFLAGS = $(ORACLE_TEST_CFLAGS)
tests_unit_test_oracle_LDADD = $(ORACLE_TEST_LDADD)

# Registered drivers are trusted, so here the oracle is linked with a self-test that answers by a script.
tests_unit_test_oracle_self_test_SOURCES = core/layer/config.c tests/unit/test_oracle_self_test.c tests/unit/oracle_fakes.h \
	tests/unit/oracle_world.h core/base/error.c core/base/log.c core/base/options.c core/base/text.c \
	core/io/json_fields.c core/io/layer_json.c core/layer/chunk.c core/oracle/arena.c core/oracle/candidates.c core/oracle/checks.c \
	core/oracle/explain.c core/oracle/names.c core/oracle/rank.c core/oracle/select.c
tests_unit_test_oracle_self_test_CPPFLAGS = $(TEST_CPPFLAGS)
tests_unit_test_oracle_self_test_CFLAGS = $(ORACLE_TEST_CFLAGS)
tests_unit_test_oracle_self_test_LDADD = $(ORACLE_TEST_LDADD)
endif
