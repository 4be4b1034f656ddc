# tests/cli/lib.sh: what the command's tests share: the uninstalled program with the built modules, a scratch folder, TAP.
# shellcheck shell=sh
set -u
LC_ALL=C
export LC_ALL

here=$(cd "$(dirname "$0")" && pwd)
top=${MOERT_TEST_SRCDIR:-$(cd "$here/../.." && pwd)}
build=${MOERT_TEST_BUILDDIR:-$top/build}
moert=$build/moert
mkst=$build/tests/cli/mkst
model=$top/examples/model

MOERT_DRIVER_PATH=$build/.libs
MOERT_SELF_TEST_HELPER=$build/moert-selftest
scratch=$(mktemp -d "${TMPDIR:-/tmp}/moert-cli.XXXXXX") || exit 99
MOERT_STATE_DIR=$scratch/state
export MOERT_DRIVER_PATH MOERT_SELF_TEST_HELPER MOERT_STATE_DIR
unset MOERT_DRIVERS MOERT_LOG MOERT_LOG_FILE MOERT_WORKSPACE_MAX MOERT_THREADS MOERT_SELF_TEST NO_COLOR
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
cd "$scratch" || exit 99

count=0
# ok RESULT NAME: one TAP line; RESULT 0 is success.
ok() {
  count=$((count + 1))
  if [ "$1" -eq 0 ]; then
    echo "ok $count - $2"
  else
    echo "not ok $count - $2"
    for f in stdout stderr; do [ ! -s "$f" ] || sed "s/^/# $f: /" "$f" | head -20; done
  fi
}
skip() {
  count=$((count + 1))
  echo "ok $count - $1 # SKIP $2"
}
plan() {
  echo "1..$count"
}

# try CODE NAME COMMAND...: runs with stdout and stderr in files of these names; checks the exit status.
try() {
  wanted=$1 name=$2
  shift 2
  "$@" >stdout 2>stderr </dev/null
  status=$?
  if [ "$status" -ne "$wanted" ]; then
    echo "# exit status $status, expected $wanted: $*"
    ok 1 "$name"
  else
    ok 0 "$name"
  fi
}

# has FILE TEXT NAME: the text occurs.
has() {
  grep -qF -- "$2" "$1"
  ok $? "$3"
}

# json NAME FILTER: the last stdout is one JSON document for which the jq filter holds; without jq only its ends are looked at.
json() {
  if command -v jq >/dev/null 2>&1; then
    [ "$(jq -s length stdout 2>/dev/null)" = 1 ] && jq -e "$2" stdout >/dev/null 2>&1
    ok $? "$1"
  else
    [ "$(head -c1 stdout)" = "{" ] && [ "$(tail -n1 stdout)" = "}" ] && grep -q '"schema": 1' stdout
    ok $? "$1 (form only: jq is missing)"
  fi
}

# golden NAME FILE: compares a file, volatile parts replaced, with tests/cli/golden/NAME; MOERT_TEST_REGEN=1 rewrites it.
normalise() {
  sed -e "s|$scratch|SCRATCH|g" -e "s|$build|BUILD|g" -e "s|$top|TOP|g" -e 's/^moert [0-9][0-9.]*/moert VERSION/' \
    -e 's/, compiler [^,]*/, compiler C/' -e 's/  *$//'
}
golden() {
  normalise <"$2" >normalised
  if [ "${MOERT_TEST_REGEN:-}" = 1 ]; then
    cp normalised "$top/tests/cli/golden/$1"
  fi
  diff -u "$top/tests/cli/golden/$1" normalised >difference
  result=$?
  [ $result -eq 0 ] || sed 's/^/# /' difference
  ok $result "golden $1"
}
