#!/bin/sh
# A module file alone changes the ranking: the simulated accelerator is added to and taken from a driver directory. Then it
# crashes in its self-test: the CPU serves, and the failure is remembered for that very file.
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
build=$MOERT_TEST_BUILDDIR
mkdir "$work/drivers"
cp "$build/.libs/moert_cpu.so" "$work/drivers/"
export MOERT_DRIVER_PATH="$work/drivers" MOERT_STATE_DIR="$work/state" MOERT_SELF_TEST_HELPER="$build/moert-selftest"
n=0
result() { # STATUS WHAT
  n=$((n + 1))
  if [ "$1" = 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; fi
}
layer='{"hidden_size":64,"intermediate_size":64,"num_experts":4,"top_k":2,"weight_scheme":"mxfp8"}'
echo "$layer" >"$work/layer.json"
select_to() { "$build/moert" select --config "$work/layer.json" --json >"$work/$1.json" 2>"$work/$1.err"; }
winner() { sed -n 's/.*"candidate": *"\([^"]*\)".*/\1/p' "$work/$1.json" | head -1; }

echo "1..11"
select_to alone
result $? "select with the CPU module alone"
[ "$(winner alone)" = cpu.reference@cpu ]
result $? "the CPU serves"
cp "$build/tests/sim/.libs/moert_sim.so" "$work/drivers/"
select_to both
[ "$(winner both)" = sim.reference@sim:0 ]
result $? "a module added to the directory is preferred: $(winner both)"
grep -q '"outcome": *"pass"' "$work/state/quarantine.json"
result $? "its self-test passed and is remembered"
rm "$work/drivers/moert_sim.so"
select_to removed
[ "$(winner removed)" = cpu.reference@cpu ]
result $? "without the file the CPU serves again"

cp "$build/tests/sim/.libs/moert_sim.so" "$work/drivers/"
rm -r "$work/state"
SIM_FAULT=crash select_to crashed
[ "$(winner crashed)" = cpu.reference@cpu ]
result $? "a backend that crashes in its self-test is passed over"
grep -q 'crashed' "$work/crashed.json"
result $? "the record says that it crashed"
select_to remembered
grep -q '"quarantine"' "$work/remembered.json" && [ "$(winner remembered)" = cpu.reference@cpu ]
result $? "the second start does not test again: quarantine"
"$build/moert" verify --backend sim.reference >"$work/verify.txt" 2>&1
result $? "the whole verification passes"
select_to verified
[ "$(winner verified)" = sim.reference@sim:0 ]
result $? "which ends the quarantine"
printf '\0' >>"$work/drivers/moert_sim.so"
select_to rebuilt
[ "$(winner rebuilt)" = sim.reference@sim:0 ]
result $? "a changed file is tested again"
