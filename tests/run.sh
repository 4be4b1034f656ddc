#!/bin/sh
# tests/run.sh BUILD_DIR: every test of a configured and built tree, then all but the command's scripts under ASan and UBSan.
# Between them the
# commands of README.md. The last line is "N passed, N failed, N skipped". Exit 0 only when nothing failed, at least one test passed, no program
# fell silent (tests/minimum lists how many results each must give) and no sanitizer wrote a report.
# MOERT_TEST_SANITIZERS=no leaves the second pass out.
set -u
build=$1
top=$(cd "$(dirname "$0")/.." && pwd)
jobs=$(nproc 2>/dev/null || echo 2)
passed=0 failed=0 skipped=0

# Adds the TAP results of one build directory and prints what failed.
collect() {
  dir=$1
  : >"$dir/results"
  find "$dir/tests" -name '*.trs' | while IFS= read -r trs; do
    name=${trs#"$dir/"}
    sed -n "s|^:test-result: \([A-Z]*\).*|\1 ${name%.trs}|p" "$trs"
  done >"$dir/results"
  passed=$((passed + $(grep -cE '^(PASS|XFAIL) ' "$dir/results")))
  failed=$((failed + $(grep -cE '^(FAIL|XPASS|ERROR) ' "$dir/results")))
  skipped=$((skipped + $(grep -c '^SKIP ' "$dir/results")))
  grep -E '^(FAIL|XPASS|ERROR) ' "$dir/results" | sort | uniq -c | while read -r n kind name; do
    echo "$kind x $n: $name"
    grep -E '^(not ok|Bail out)|: Assertion|ERROR:|runtime error' "$dir/$name.log" | head -n 20
  done
}

# A program that gives fewer results than expected has lost tests without a failure.
check_minimum() {
  dir=$1
  while read -r name least; do
    case $2:$name in *: | *:'#'* | check-sanitizers:tests/cli/* | check-sanitizers:tests/sim/ranking) continue ;; esac
    have=$(grep -cE " $name\$" "$dir/results")
    if [ "$have" -lt "$least" ]; then
      echo "FAIL: $name gave $have results in $dir, at least $least are expected (tests/minimum)"
      failed=$((failed + 1))
    fi
  done <"$top/tests/minimum"
}

# Reports that a test framework would swallow.
check_sanitizer_logs() {
  dir=$1
  hits=$(grep -rlE 'ERROR: (Address|Leak|Undefined)|runtime error:|SUMMARY: .*Sanitizer' --include='*.log' "$dir/tests" "$dir/sanitizer" 2>/dev/null)
  for log in $hits; do
    echo "FAIL: a sanitizer report in $log"
    grep -E -A6 'ERROR: |runtime error:' "$log" | head -n 20
    failed=$((failed + 1))
  done
}

run_pass() {
  dir=$1
  echo "tests: $2"
  make -C "$dir" -j"$jobs" -k "$3" >"$dir/check.log" 2>&1
  status=$?
  collect "$dir"
  check_minimum "$dir" "$3"
  # make fails for each failed test, which is counted already; anything else is an error of its own
  if [ "$status" != 0 ] && ! grep -qE '^(FAIL|XPASS|ERROR) ' "$dir/results"; then
    echo "FAIL: make check in $dir exited with $status:"
    tail -n 30 "$dir/check.log"
    failed=$((failed + 1))
  fi
}

run_pass "$build" "plain build" check

# Every command of the README.
echo "tests: the commands of README.md"
sh "$top/tests/readme.sh" >"$build/readme.log" 2>&1
passed=$((passed + $(grep -c '^ok ' "$build/readme.log")))
failed=$((failed + $(grep -cE '^not ok |^Bail out' "$build/readme.log")))
grep -E -A16 '^not ok|^Bail out' "$build/readme.log"

if [ "${MOERT_TEST_SANITIZERS-yes}" != no ]; then
  san=$build-asan
  mkdir -p "$san"
  echo "tests: building with address and undefined sanitizers"
  # shellcheck disable=SC2086
  if { { [ -e "$san/Makefile" ] && [ "$san/Makefile" -nt "$build/Makefile" ]; } ||
       (cd "$san" && "$top/configure" ${CONFIGURE_FLAGS-} --enable-sanitizers=address,undefined CFLAGS='-g -O1'); } >"$san/build.log" 2>&1 &&
     make -C "$san" -j"$jobs" all >>"$san/build.log" 2>&1; then
    UBSAN_OPTIONS=print_stacktrace=1 run_pass "$san" "under ASan and UBSan" check-sanitizers
    check_sanitizer_logs "$san"
  else
    echo "FAIL: the sanitizer build"
    tail -n 30 "$san/build.log"
    failed=$((failed + 1))
  fi
fi

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
