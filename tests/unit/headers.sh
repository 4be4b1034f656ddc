#!/bin/sh
# Every public header compiles alone as C11 and as C++17 without a warning; driver.h needs no other header of moert.
inc=$MOERT_TEST_SRCDIR/include
n=0
echo "1..$((2 * $(ls "$inc"/moert/*.h | wc -l) + 1))"
result() {
  n=$((n + 1))
  if [ "$1" = 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; fi
}
for h in "$inc"/moert/*.h; do
  name=moert/$(basename "$h")
  echo "#include <$name>" | ${CC-cc} -std=c11 -pedantic -Wall -Wextra -Werror -I"$inc" -fsyntax-only -x c -
  result $? "$name as C11"
  echo "#include <$name>" | ${CXX-c++} -std=c++17 -pedantic -Wall -Wextra -Werror -I"$inc" -fsyntax-only -x c++ -
  result $? "$name as C++17"
done
! grep -E '^#include' "$inc/moert/driver.h" | grep -vE '<(stddef|stdint)\.h>' | sed 's/^/# /' | grep .
result $? "driver.h includes only stddef.h and stdint.h"
