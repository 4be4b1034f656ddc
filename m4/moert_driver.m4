# MOERT_DRIVER(NAME, DESCRIPTION, DEFAULT, [CHECK])
# --enable-NAME=yes|no|auto. CHECK sets moert_driver_reason to a sentence when the driver cannot be built here;
# then `yes` is an error and `auto` a notice. Defines the conditional DRIVER_<NAME> and a line of the summary.
AC_DEFUN([MOERT_DRIVER], [
  AC_ARG_ENABLE([$1], [AS_HELP_STRING([--enable-$1=yes|no|auto], [$2 (default: $3)])], [], [enable_$1=$3])
  moert_driver_reason=
  AS_CASE([$enable_$1],
    [yes|auto], [$4
      AS_IF([test -n "$moert_driver_reason" && test "x$enable_$1" = xyes],
        [AC_MSG_ERROR([driver $1 was asked for and cannot be built: $moert_driver_reason])])
      AS_IF([test -n "$moert_driver_reason"],
        [AC_MSG_NOTICE([driver $1 is left out: $moert_driver_reason]); moert_driver_$1=no],
        [moert_driver_$1=yes])],
    [no], [moert_driver_$1=no; moert_driver_reason="disabled by --disable-$1"],
    [AC_MSG_ERROR([--enable-$1 takes yes, no or auto, not "$enable_$1"])])
  AM_CONDITIONAL([DRIVER_]m4_toupper([$1]), [test "x$moert_driver_$1" = xyes])
  AS_VAR_APPEND([moert_summary_drivers], ["
    $1: $moert_driver_$1${moert_driver_reason:+ ($moert_driver_reason)}"])])

AC_DEFUN([MOERT_SUMMARY], [
  AC_MSG_NOTICE([moert $PACKAGE_VERSION
  prefix:      $prefix
  compiler:    $CC $CFLAGS
  sanitizers:  ${enable_sanitizers:-no}
  tests:       $moert_tests
  drivers:$moert_summary_drivers])])
