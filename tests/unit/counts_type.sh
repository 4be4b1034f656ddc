#!/bin/sh
# C23 of routing.md 6: a count vector is a type of its own and cannot be passed where a total is wanted, nor the reverse.
inc=$MOERT_TEST_SRCDIR/include
compiles() {
  printf '#include <moert/routing.h>\nmoert_status_t f(struct moert_expert_counts c, int32_t *p) { return %s; }\n' "$1" |
    ${CC-cc} -std=c11 -Werror -I"$inc" -fsyntax-only -x c - 2>/dev/null
}
echo 1..3
compiles 'moert_align_batched(c, 8, 4, p, p, p, 0)' && echo "ok 1 - counts as counts" || echo "not ok 1 - counts as counts"
compiles 'moert_align_batched(c, 8, 4, p, p, c, 0)' && echo "not ok 2 - counts as total" || echo "ok 2 - counts as total is refused"
compiles 'moert_align_batched(p, 8, 4, p, p, p, 0)' && echo "not ok 3 - array as counts" || echo "ok 3 - array as counts is refused"
