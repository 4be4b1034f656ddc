# Compiler warnings, coverage, version script, OpenMP: the build's general switches.

# MOERT_TRY_CFLAG(VARIABLE, FLAG): adds FLAG to VARIABLE when the compiler takes it.
AC_DEFUN([MOERT_TRY_CFLAG], [
  AS_VAR_PUSHDEF([cache], [moert_cv_cflag_$2])
  AC_CACHE_CHECK([whether $CC accepts $2], [cache], [
    moert_save_CFLAGS=$CFLAGS
    CFLAGS="$CFLAGS -Werror $2"
    AC_COMPILE_IFELSE([AC_LANG_PROGRAM()], [AS_VAR_SET([cache], [yes])], [AS_VAR_SET([cache], [no])])
    CFLAGS=$moert_save_CFLAGS])
  AS_VAR_IF([cache], [yes], [AS_VAR_APPEND([$1], [" $2"])])
  AS_VAR_POPDEF([cache])])

AC_DEFUN([MOERT_WARNINGS], [
  AC_ARG_ENABLE([werror], [AS_HELP_STRING([--enable-werror], [treat compiler warnings as errors (CI does)])],
    [], [enable_werror=no])
  moert_warn=
  m4_foreach_w([flag], [-Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes
                        -Wpointer-arith -Wwrite-strings -Wformat=2 -Wvla -Wno-unknown-warning-option],
    [MOERT_TRY_CFLAG([moert_warn], flag)])
  AS_IF([test "x$enable_werror" = xyes], [moert_warn="$moert_warn -Werror"])
  AC_SUBST([WARN_CFLAGS], [$moert_warn])
  # Same bits everywhere: no fused contraction behind our back.
  moert_num=
  MOERT_TRY_CFLAG([moert_num], [-ffp-contract=off])
  MOERT_TRY_CFLAG([moert_num], [-fvisibility=hidden])
  AC_SUBST([BASE_CFLAGS], ["-std=gnu11$moert_num"])])

AC_DEFUN([MOERT_COVERAGE], [
  AC_ARG_ENABLE([coverage], [AS_HELP_STRING([--enable-coverage], [instrument for gcov])], [], [enable_coverage=no])
  AS_IF([test "x$enable_coverage" = xyes], [
    AC_SUBST([COVERAGE_CFLAGS], ["-O0 --coverage"])
    AC_SUBST([COVERAGE_LDFLAGS], ["--coverage"])])])

AC_DEFUN([MOERT_VERSION_SCRIPT], [
  AC_CACHE_CHECK([whether the linker takes a version script], [moert_cv_version_script], [
    moert_save_LDFLAGS=$LDFLAGS
    echo '{ local: *; };' > conftest.map
    LDFLAGS="$LDFLAGS -shared -fPIC -Wl,--version-script=conftest.map"
    AC_LINK_IFELSE([AC_LANG_SOURCE([int x;])], [moert_cv_version_script=yes], [moert_cv_version_script=no])
    LDFLAGS=$moert_save_LDFLAGS
    rm -f conftest.map])
  AM_CONDITIONAL([HAVE_VERSION_SCRIPT], [test "x$moert_cv_version_script" = xyes])])

