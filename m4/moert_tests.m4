# Tests need Criterion; without it `make check` says so instead of passing.
AC_DEFUN([MOERT_TESTS], [
  PKG_CHECK_MODULES([CRITERION], [criterion >= 2.4], [moert_tests=yes], [moert_tests="no (Criterion 2.4 is missing)"])
  AM_CONDITIONAL([HAVE_CRITERION], [test "x$moert_tests" = xyes])
  AC_PATH_PROG([PYTHON3], [python3], [])
  AC_PATH_PROG([READELF], [readelf], [])])
