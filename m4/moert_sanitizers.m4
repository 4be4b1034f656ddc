# --enable-sanitizers=LIST, e.g. address,undefined or thread; --enable-fuzzing is a later concern.
# MOERT_SANITIZER_ID goes into libmoert and into each module, so that a mismatch is refused by a sentence, not by a crash.
AC_DEFUN([MOERT_SANITIZERS], [
  AC_ARG_ENABLE([sanitizers],
    [AS_HELP_STRING([--enable-sanitizers=LIST], [build with -fsanitize=LIST: address,undefined or thread])],
    [], [enable_sanitizers=no])
  moert_san=0
  AS_CASE([$enable_sanitizers],
    [no], [],
    [yes], [enable_sanitizers=address,undefined])
  AS_CASE([,$enable_sanitizers,],
    [*,address,*], [moert_san=1],
    [*,thread,*], [moert_san=2])
  AS_IF([test "x$enable_sanitizers" != xno], [
    AC_SUBST([SANITIZER_CFLAGS], ["-fsanitize=$enable_sanitizers -fno-omit-frame-pointer -fno-sanitize-recover=undefined"])
    AC_SUBST([SANITIZER_LDFLAGS], ["-fsanitize=$enable_sanitizers"])])
  AM_CONDITIONAL([SANITIZERS], [test "x$enable_sanitizers" != xno])
  AC_DEFINE_UNQUOTED([MOERT_SANITIZER_ID], [$moert_san], [Sanitizer of this build: 0 none, 1 address, 2 thread.])])
