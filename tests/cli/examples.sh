#!/bin/sh
# examples/*.json and doc/formats.md: what they show is accepted, written or known by the command.
. "$(dirname "$0")/lib.sh"

page=$top/doc/formats.md
layer=$top/examples/layer.json

# The example files. A described device whose driver's module is absent is shown as such.
for device in h200 sm107; do
  try 0 "select on the described device $device" "$moert" select --config "$layer" --device "$top/examples/device-$device.json"
  has stdout "@cuda:$device" "$device: the device is a candidate"
  if [ -e "$build/.libs/moert_cuda.so" ]; then
    skip "$device: not installed" "the cuda module is here"
  else
    has stdout "not installed" "$device: not installed"
  fi
done
try 0 "select --json" "$moert" select --config "$layer" --device "$top/examples/device-h200.json" --json
json "a described device is not present" '[.candidates[] | select(.device.id == "cuda:h200") | .device.present] | length > 0 and all(. == false)'

# The blocks of the page: ```json KIND into KIND.N.json, ```sh into sh.N.
awk '
  /^```json [a-z0-9-]*$/ { kind = $2; file = kind "." ++n[kind] ".json"; next }
  /^```sh$/ { file = "sh." ++n["sh"]; next }
  /^```/ { file = ""; next }
  file { print > file }' "$page"
for f in layer.1.json layer.2.json layer.3.json device.1.json lut-b.1.json mxfp8.1.json quarantine.1.json sh.1 sh.2; do
  [ -s "$f" ]
  ok $? "formats.md has the example $f"
done
for f in layer.*.json; do
  try 0 "formats.md: $f is a layer" "$moert" select --config "$f"
done
for f in device.*.json; do
  try 0 "formats.md: $f is a device" "$moert" select --config "$layer" --device "$f"
done
sed 's/"hidden_size"/"hiden_size"/' layer.1.json >damaged.json
try 3 "a damaged example is refused" "$moert" select --config damaged.json
has stderr 'did you mean "hidden_size"' "its key is named"
sed 's/"arch"/"arc"/' device.1.json >damaged.json
try 3 "a damaged device is refused" "$moert" select --config "$layer" --device damaged.json
has stderr 'did you mean "arch"' "the device's key is named"

# Every key of the readers is in the page.
for key in $(sed -nE 's/^ *(STRING|NAME|BOOL|I32|U32|U64|POSITIVE|PARAM|OBJECT)\("([a-z0-9_]+)".*/\2/p
  s/^ *\{\.key = "([a-z0-9_]+)".*/\1/p' "$top/core/io/layer_json.c") \
  $(sed -nE 's/^ *(TEXT|BYTES)\(([a-z_]+)[,)].*/\2/p
  s/^ *\{\.key = "([a-z_]+)".*/\1/p' "$top/core/oracle/describe.c"); do
  has "$page" "\`$key\`" "formats.md: $key"
done

# What is written, against the page.
if command -v jq >/dev/null 2>&1; then
  for format in lut-b mxfp8; do
    fit=
    [ $format = mxfp8 ] || fit=--fit=farthest
    # shellcheck disable=SC2086
    try 0 "quantize to $format" "$moert" quantize "$model" "$format" --format $format $fit --report report.json
    jq -S '.quantization_config | del(.ignore)' "$format/config.json" >have
    jq -S 'del(.ignore)' $format.1.json >want
    cmp -s have want
    ok $? "formats.md: quantization_config of $format"
    for key in $(jq -r '.tensors[0] | keys[]' report.json); do
      grep -q "\`\.$key\`" "$page"
      ok $? "formats.md: $key of the $format report"
    done
  done
  keys='[keys, (.entries[0] | keys)]'
  jq -c "$keys" "$MOERT_STATE_DIR/quarantine.json" >have
  jq -c "$keys" quarantine.1.json >want
  [ -s have ] && cmp -s have want
  ok $? "formats.md: keys of quarantine.json"
  for f in sh.*; do
    try 0 "formats.md: commands of $f" env PATH="$build:$PATH" sh -e -c "cd '$top' && . '$scratch/$f'"
    [ -s stdout ]
    ok $? "$f prints something"
  done
else
  skip "what is written" "jq is missing"
fi
plan
