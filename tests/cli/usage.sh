#!/bin/sh
# The command line itself (cli.md): help, version, unknown options and commands, info, select.
. "$(dirname "$0")/lib.sh"

try 0 "--help" "$moert" --help
has stdout "Usage: moert COMMAND" "help says how to call it"
try 0 "--version" "$moert" --version
has stdout "moert $(cat "$top/VERSION")" "version is that of the package"
try 2 "no command" "$moert"
has stderr "moert: a command is expected" "no command: says so"
try 2 "unknown command" "$moert" inof
has stderr 'did you mean "info"?' "unknown command: nearest"
try 2 "unknown option before the command" "$moert" --jsno info
commands=$("$moert" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p')
for c in $commands; do
  try 0 "$c --help" "$moert" "$c" --help
  has stdout "Usage: moert $c" "$c --help: usage"
  awk 'length > 100 { bad = 1 } END { exit bad }' stdout
  ok $? "$c --help fits 100 columns"
  try 2 "$c with an unknown option" "$moert" "$c" --qiuet
  has stderr 'did you mean "--quiet"?' "$c: nearest option"
  try 0 "$c --version" "$moert" "$c" --version
done
try 2 "extra operand" "$moert" info more
has stderr 'extra argument "more"' "extra operand is named"
try 2 "flag with an argument" "$moert" info --drivers=yes
has stderr 'option "--drivers" takes no argument' "flag with an argument is named"
try 2 "missing argument of an option" "$moert" info --require
has stderr 'option "--require" needs an argument' "missing argument is named"
try 2 "ends of options" "$moert" info -- --json
ok "$(grep -c schema stdout)" "after -- nothing is an option"

# info
try 0 "info" "$moert" info
has stdout "cpu.reference" "info lists the reference"
awk 'length > 100 { bad = 1 } END { exit bad }' stdout
ok $? "info fits 100 columns"
grep -q "$(printf '\033')" stdout
ok $((1 - $?)) "no colour outside a terminal"
try 0 "info --json" "$moert" info --json
json "info: keys of the contract" '.schema == 1 and (.drivers | length > 0) and (.drivers[0] | has("path") and has("name")
  and has("version") and has("state") and has("reason")) and (.devices[0] | has("id") and has("driver") and has("arch")) and
  (.backends[0] | has("name") and has("aliases") and has("schemes") and has("class") and has("driver")) and
  (.config[0] | has("name") and has("value") and has("source"))'
json "info: source of an option" '.config[] | select(.name == "MOERT_DRIVER_PATH") | .source == "environment"'
try 0 "info --require cpu" "$moert" info --require cpu
try 1 "info --require of a missing driver" "$moert" info --require cpu --require nosuch --json
has stderr 'driver "nosuch" is required and not ready' "required driver is named"
json "info: missing drivers are listed" '.missing == ["nosuch"]'
try 0 "info --config" "$moert" info --config
ok "$(grep -c '^Drivers' stdout)" "info --config prints no drivers"
MOERT_DRIVERS=^cpu "$moert" info --drivers >stdout 2>stderr
has stdout "disabled" "a filtered module is disabled"
MOERT_DRIVER_PATH=$scratch "$moert" info >stdout 2>stderr
ok $? "info without any module ends with 0"
"$moert" info --json >/dev/full 2>stderr
[ $? -eq 6 ]
ok $? "standard output that cannot be written: 6"

# select
cat >config.json <<END
{"hidden_size":256,"intermediate_size":128,"num_experts":8,"top_k":2,"weight_scheme":"lut-b"}
END
try 0 "select --config" "$moert" select --config config.json --backend cpu.reference
grep -v '^memory' stdout | sed 's/^device .*/device D/' >select.txt
has select.txt "backend    cpu.reference" "select names the backend"
try 0 "select --model" "$moert" select --model "$model" --layer-index 2 --json
json "select: explain record" '.schema == 1 and .kind == "moert.explain" and .status == "ok" and
  .decision.buckets[0].candidate == "cpu.reference@cpu" and .question.layer.index == 2'
try 0 "select by alias" "$moert" select --config config.json --backend emulation --explain
has stdout "scheme" "--explain lists checks"
awk 'length > 100 { bad = 1 } END { exit bad }' stdout
ok $? "select fits 100 columns"
try 4 "select of an unknown backend" "$moert" select --config config.json --backend cpu.referense
has stderr "did you mean" "unknown backend: nearest"
MOERT_DRIVERS=^cpu try 4 "select without a driver that fits" "$moert" select --config config.json --json
json "select: failed record" '.status == "failed" and .decision == null and (.error | has("code") and has("text"))'
cat >device.json <<END
{"schema":1,"id":"cpu:x","driver":"cpu","arch":"x86_64","name":"other","memory_total":1000000000000,"memory_free":900000000000,
 "runtime":"","features":[],"count":1}
END
try 0 "select --device" "$moert" select --config config.json --device device.json --json
json "select: described device is a candidate" '[.candidates[].device | select(. != null) | .present] | index(false) != null'
try 2 "select --policy" "$moert" select --config config.json --policy x.rules
has stderr "not available" "--policy says that it is not there yet"
for word in "" "--layer a --model b" "--config a --model b" "--layer-index 1 --config a"; do
  # shellcheck disable=SC2086
  try 2 "select $word" "$moert" select $word
done

# verify
try 0 "verify --op codec" "$moert" verify --backend cpu.reference --op codec,align --json
json "verify: results" '.failed == 0 and .passed > 0 and (.results[0] | has("backend") and has("step") and has("bound") and has("seed"))'
try 77 "verify of a glob that matches nothing" "$moert" verify --backend "opencl.*"
try 4 "verify of an unknown backend" "$moert" verify --backend cpu.refrence
try 1 "verify finds wrong results" "$moert" verify --backend null.zero --op layer
has stderr "FAILED" "verify names the failing case"
try 0 "verify --model" "$moert" verify --backend cpu.reference --model "$model" --layer-index 1 --tokens 8
# found by a first user
"$moert" verify --op codec >stdout 2>stderr
ok $? "verify without a name leaves opt-in backends out"
[ "$(grep -c null.zero stdout)" -eq 0 ]
ok $? "null.zero is not among them"
echo '{"hidden_size":64,"intermediate_size":64,"num_experts":4,"top_k":2,"weight_scheme":"mxfp8"}' >small.json
MOERT_DRIVER_PATH=$scratch "$moert" select --config small.json >stdout 2>stderr
[ $? -eq 4 ]
ok $? "no module: 4"
has stderr "no driver module is ready" "the cause comes first"
MOERT_LOG=bogus MOERT_SELF_TEST=maybe "$moert" info --config >stdout 2>stderr
has stderr "MOERT_LOG=bogus is none of error|warn|info|debug|trace" "an unknown word of an option is named"
has stderr "MOERT_SELF_TEST=maybe is none of on|off" "and so is the next"
printf 'tensor \033[2Jbad F32 2x2 zero\n' | "$mkst" escape.st
"$moert" align escape.st out.st --block-size 4 --num-experts 2 >stdout 2>stderr
! grep -q "$(printf '\033')" stderr
ok $? "control characters in names do not reach the terminal"
try 2 "a policy that is not there yet" "$moert" select --config small.json --policy-name vllm-compat

plan
