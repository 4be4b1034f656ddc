#!/bin/sh
# tests/loader/needed.sh: the library and every module are linked against no vendor's library, a module not against
# libmoert, and a module exports one symbol (architecture.md 2). Speaks TAP.
build=${MOERT_TEST_BUILDDIR:-.}/.libs
readelf=${MOERT_TEST_READELF:-}
n=0

result() { # STATUS NAME
  n=$((n + 1))
  if [ "$1" -eq 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; fi
}

if [ -z "$readelf" ]; then
  echo "1..0 # SKIP readelf is missing"
  exit 0
fi

needed() {
  "$readelf" -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\].*/\1/p'
}

vendor='cuda|cublas|cudnn|nvidia|nvrtc|hip|hsa|amd|roc|OpenCL|level_zero|ze_loader|sycl|intel'

libraries="$build/libmoert.so"
[ -e "$libraries" ] || libraries=$(ls "$build"/libmoert.so* 2>/dev/null | head -n 1)
modules=$(ls "$build"/moert_*.so 2>/dev/null)

[ -n "$libraries" ] && [ -n "$(needed "$libraries")" ]
result $? "libmoert is there and lists what it needs"
[ -n "$modules" ]
result $? "modules are there"
for file in $libraries $modules; do
  name=${file##*/}
  list=$(needed "$file")
  ! printf '%s\n' "$list" | grep -Eiq "$vendor"
  result $? "$name is linked against no vendor's library"
  case $name in moert_*)
    ! printf '%s\n' "$list" | grep -q '^libmoert'
    result $? "$name is not linked against libmoert"
    exports=$("$readelf" --dyn-syms -W "$file" | awk '$7 != "UND" && $4 != "NOTYPE" && ($5 == "GLOBAL" || $5 == "WEAK") { print $8 }' | sed 's/@.*//')
    [ "$exports" = moert_driver_v1 ]
    result $? "$name exports moert_driver_v1 and nothing else"
    ;;
  esac
done
echo "1..$n"
