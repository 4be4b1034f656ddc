#!/bin/sh
# tests/cli/quantize.sh: `moert quantize` and `moert dequantize` end to end (cli.md): round trip of the shipped model, bytes
# against the library's rules, memory on a large sparse checkpoint, interruption and resumption, refusals. Prints TAP.
set -u
moert=$MOERT_TEST_BUILDDIR/moert
check=$MOERT_TEST_BUILDDIR/tests/cli/quantize_check
mkst=$MOERT_TEST_BUILDDIR/tests/cli/mkst
model=$MOERT_TEST_SRCDIR/examples/model
dir=$(mktemp -d "${TMPDIR:-/tmp}/moert-q.XXXXXX") || exit 99
trap 'rm -rf "$dir"' EXIT
n=0

# ok NAME COMMAND...: passes when the command does.
ok() {
  name=$1
  shift
  n=$((n + 1))
  if "$@" >"$dir/log" 2>&1; then echo "ok $n - $name"; else echo "not ok $n - $name"; sed 's/^/# /' "$dir/log"; fi
  grep '^#' "$dir/log"
  return 0
}

# fails NAME CODE TEXT COMMAND...: passes when the command ends with CODE and says TEXT on stderr.
fails() {
  name=$1 code=$2 text=$3
  shift 3
  n=$((n + 1))
  "$@" >/dev/null 2>"$dir/log"
  got=$?
  if [ $got -eq "$code" ] && { [ -z "$text" ] || grep -qF -e "$text" "$dir/log"; }; then echo "ok $n - $name"; else
    echo "not ok $n - $name"
    echo "# exit $got, expected $code and \"$text\""
    sed 's/^/# /' "$dir/log"
  fi
}

no_temporaries() { ! find "$1" -name '*.tmp.*' | grep .; }
# is_json_true FILE PYTHON-EXPRESSION over j
json_is() { "$MOERT_TEST_PYTHON" -c "import json,sys; j=json.load(open(sys.argv[1])); sys.exit(not ($2))" "$1"; }

for format in mxfp8 lut-b; do
  ok "$format: the model is quantised" "$moert" quantize "$model" "$dir/$format" --format $format --report "$dir/$format.json"
  ok "$format: bytes are the library's, other tensors are unchanged" \
    "$check" bytes "$model/model.safetensors" "$dir/$format/model.safetensors" $format
  ok "$format: other files are copied" cmp "$model/sample.txt" "$dir/$format/sample.txt"
  ok "$format: and back" "$moert" dequantize "$dir/$format" "$dir/$format.back"
  ok "$format: weights are the decoded codes, other tensors are unchanged" \
    "$check" decoded "$dir/$format/model.safetensors" "$dir/$format.back/model.safetensors"
  ok "$format: one thread gives the same bytes" sh -c \
    "'$moert' quantize '$model' '$dir/$format.1' --format $format --jobs 1 && diff -r '$dir/$format' '$dir/$format.1'"
  ok "$format: a second quantisation of the decoded weights" "$moert" quantize "$dir/$format.back" "$dir/$format.2" --format $format
  ok "$format: decodes to the same weights" sh -c "'$moert' dequantize '$dir/$format.2' '$dir/$format.3' &&
    cmp '$dir/$format.3/model.safetensors' '$dir/$format.back/model.safetensors'"
done

if [ -n "$MOERT_TEST_PYTHON" ]; then
  ok "lut-b: config.json has the format" json_is "$dir/lut-b/config.json" \
    "j['quantization_config']['format']=='lut-b' and j['quantization_config']['quant_method']=='compressed-tensors' and
     j['quantization_config']['config_groups']['group_0']['weights']=={'num_bits':3,'type':'codebook','strategy':'block',
     'block_structure':[8,64],'symmetric':True,'dynamic':False} and j['hidden_size']==256"
  ok "mxfp8: config.json has the format" json_is "$dir/mxfp8/config.json" \
    "{k:j['quantization_config']['config_groups']['group_0']['weights'][k] for k in ('num_bits','type','strategy','group_size',
     'symmetric','scale_dtype')}=={'num_bits':8,'type':'float','strategy':'group','group_size':32,'symmetric':True,
     'scale_dtype':'uint8'}"
  ok "dequantised config.json has none" json_is "$dir/lut-b.back/config.json" "'quantization_config' not in j"
  ok "report: 192 tensors with SNR, error, bits, time" json_is "$dir/lut-b.json" \
    "j['schema']==1 and len(j['tensors'])==192 and all(t['bits_per_weight']==3.125 and 13<t['snr_db']<17 and t['max_error']>0
     and t['time_ns']>0 for t in j['tensors'])"
  ok "report: mxfp8" json_is "$dir/mxfp8.json" \
    "all(t['bits_per_weight']==8.25 and 30<t['snr_db']<33 for t in j['tensors']) and len(j['tensors'])==192"
fi

ok "multistart fit" "$moert" quantize "$model/model.safetensors" "$dir/ms.safetensors" --format lut-b --fit multistart \
  --include '*.layers.0.mlp.experts.*'
ok "optimal is never worse than multistart on any tile" \
  "$check" better "$model/model.safetensors" "$dir/lut-b/model.safetensors" "$dir/ms.safetensors"
ok "a file: every floating matrix" "$moert" quantize "$model/model.safetensors" "$dir/all.safetensors" --format mxfp8 \
  --exclude '*.embed_tokens.*'
ok "a file: bytes" "$check" bytes "$model/model.safetensors" "$dir/all.safetensors" mxfp8

mkdir "$dir/large" "$dir/sharded" "$dir/unquantisable"
ok "sharded source" "$check" split "$model/model.safetensors" "$dir/sharded" 6
cp "$model/config.json" "$dir/sharded"
fails "SIGINT ends with 130" 130 "" "$check" interrupt "$dir/part/model-00002-of-00006.safetensors" \
  "$moert" quantize "$dir/sharded" "$dir/part" --format lut-b --fit multistart --jobs 1
ok "SIGINT leaves no partial file" no_temporaries "$dir/part"
ok "SIGINT: complete shards stay, config.json is not there yet" \
  sh -c "test -f '$dir/part/model-00001-of-00006.safetensors' && ! test -e '$dir/part/config.json'"
touch -r "$dir/part/model-00001-of-00006.safetensors" "$dir/stamp"
fails "--resume with other options is refused" 3 "had other options" \
  "$moert" quantize "$dir/sharded" "$dir/part" --format lut-b --fit optimal --resume
cp -rp "$dir/part" "$dir/part2"
echo half >"$dir/part/model-00003-of-00006.safetensors.tmp.0123" # as after SIGKILL; compared with a whole run below
fails "--resume keeps complete shards" 0 "model-00001-of-00006.safetensors is complete" \
  "$moert" quantize "$dir/sharded" "$dir/part" --format lut-b --fit multistart --jobs 2 --resume \
  --report "$dir/part.json"
ok "the kept shard was not written again" sh -c \
  "! test '$dir/part/model-00001-of-00006.safetensors' -nt '$dir/stamp'"
ok "uninterrupted run" "$moert" quantize "$dir/sharded" "$dir/whole" --format lut-b --fit multistart \
  --report "$dir/whole.json"
ok "--resume gives what an uninterrupted run gives" diff -r "$dir/part" "$dir/whole"
if [ -n "$MOERT_TEST_PYTHON" ]; then
  # totals FILE: of a report, with the number of rows
  totals() { "$MOERT_TEST_PYTHON" -c "import json,sys; j=json.load(open(sys.argv[1])); t=j['total']
print(t['tensors'], t['bytes_in'], t['bytes_out'], round(t['snr_db'], 9), len(j['tensors']))" "$1"; }
  ok "the report of a resumed run covers the whole" test "$(totals "$dir/part.json")" = "$(totals "$dir/whole.json")"
  ok "and tells how much of it is from before" json_is "$dir/part.json" \
    "0<j['total']['resumed_tensors']<192 and j['total']['tensors']==192"
  ok "a run of its own does not" json_is "$dir/whole.json" "'resumed_tensors' not in j['total']"
  "$MOERT_TEST_PYTHON" - "$dir/part2/.moert-quantize.json" <<END
import json, sys
j = json.load(open(sys.argv[1]))
for shard in j["done"].values():
    for row in shard["rows"]:
        row.pop("squared_error")
json.dump(j, open(sys.argv[1], "w"))
END
  fails "a resumed run says what was not measured" 0 "were not measured by the earlier run" "$moert" quantize \
    "$dir/sharded" "$dir/part2" --format lut-b --fit multistart --resume --report "$dir/part2.json"
  ok "and gives no ratio of a part as that of the whole" json_is "$dir/part2.json" "'snr_db' not in j['total']"
fi
ok "shards come back" "$moert" dequantize "$dir/whole" "$dir/whole.back"

# one_wins A B: exit statuses of two runs into one directory.
one_wins() { [ "$1 $2" = "0 6" ] || [ "$1 $2" = "6 0" ]; }
"$moert" quantize "$dir/sharded" "$dir/race" --format lut-b --fit multistart --jobs 1 >/dev/null 2>"$dir/race.1" &
first=$!
"$moert" quantize "$dir/sharded" "$dir/race" --format lut-b --fit multistart --jobs 1 >/dev/null 2>"$dir/race.2"
second=$?
wait $first
ok "two runs into one directory: one is refused" one_wins $? $second
ok "the other one's result is whole" diff -r "$dir/race" "$dir/whole"
ok "the refusal says why" grep -qE "another run is writing to|is not empty" "$dir/race.1" "$dir/race.2"
if command -v flock >/dev/null; then
  mkdir "$dir/held"
  fails "a directory in use" 6 "another run is writing to" flock "$dir/held" "$moert" quantize "$model" "$dir/held" --format mxfp8
  ok "nothing was written there" rmdir "$dir/held"
fi

cp -r "$dir/whole" "$dir/old"
fails "a finished checkpoint is not overwritten" 6 "is not empty; give a new directory, or --resume" \
  "$moert" quantize "$model" "$dir/old" --format mxfp8
fails "nor resumed" 6 "holds no unfinished run" "$moert" quantize "$model" "$dir/old" --format mxfp8 --resume
fails "nor by dequantize" 6 "is not empty" "$moert" dequantize "$dir/mxfp8" "$dir/old"
ok "it is as it was" diff -r "$dir/old" "$dir/whole"
fails "--force with --resume" 2 "give one of them" "$moert" quantize "$model" "$dir/old" --format mxfp8 --force --resume
ok "--force replaces it" "$moert" quantize "$model" "$dir/old" --format mxfp8 --force
ok "no part of the old checkpoint stays" diff -r "$dir/old" "$dir/mxfp8"
ok "dequantize --force replaces it too" "$moert" dequantize "$dir/mxfp8" "$dir/old" --force
ok "with the same result" diff -r "$dir/old" "$dir/mxfp8.back"
mkdir "$dir/foreign" "$dir/empty" "$dir/links"
echo mine >"$dir/foreign/notes"
fails "foreign files" 6 "is not empty" "$moert" quantize "$model" "$dir/foreign" --format mxfp8
ok "nothing was added" test "$(ls -A "$dir/foreign")" = notes
ok "an empty directory is taken" "$moert" quantize "$model" "$dir/empty" --format mxfp8
echo '[]' >"$dir/foreign/.moert-quantize.json"
fails "a broken journal" 6 "is not a journal" "$moert" quantize "$model" "$dir/foreign" --format mxfp8 --resume
cp "$model/config.json" "$dir/links"
ln -s "$dir/own.safetensors" "$dir/links/model.safetensors"
mkdir "$dir/kept"
cp "$model/model.safetensors" "$dir/own.safetensors"
ln "$dir/own.safetensors" "$dir/kept/model.safetensors"
fails "--force removes no file of the source" 2 "are the same file" \
  "$moert" quantize "$dir/links" "$dir/kept" --format mxfp8 --force
ok "the source's file is there" cmp "$model/model.safetensors" "$dir/kept/model.safetensors"

ok "large sparse checkpoint" "$check" large "$dir/large"
ok "8 GiB: peak memory below 1 GiB + the largest tensor (64 MiB)" \
  "$check" peak 1088 "$moert" quantize "$dir/large" "$dir/large.q" --format mxfp8 --quiet

fails "no format" 2 "--format mxfp8 or --format lut-b is required" "$moert" quantize "$model" "$dir/x"
fails "unknown format" 2 "mxfp8" "$moert" quantize "$model" "$dir/x" --format mxfp9
fails "one operand" 2 "SRC DST" "$moert" quantize "$model" --format mxfp8
fails "--calibrate" 2 "--calibrate is not available" "$moert" quantize "$model" "$dir/x" --format lut-b --calibrate t
fails "html report" 2 "only FILE.json" "$moert" quantize "$model" "$dir/x" --format lut-b --report r.html
fails "--fit with mxfp8" 2 "--fit belongs to --format lut-b" "$moert" quantize "$model" "$dir/x" --format mxfp8 --fit optimal
fails "--scale-rule with lut-b" 2 "lut-b has no scale" "$moert" quantize "$model" "$dir/x" --format lut-b --scale-rule floor
fails "--nan with lut-b" 2 "only --nan error" "$moert" quantize "$model" "$dir/x" --format lut-b --nan poison
fails "--keep-zero with farthest" 2 "needs --fit optimal" "$moert" quantize "$model" "$dir/x" --format lut-b --keep-zero --fit farthest
fails "--jobs 0" 2 "--jobs" "$moert" quantize "$model" "$dir/x" --format lut-b --jobs 0
fails "pattern without a match" 3 "matches no tensor" "$moert" quantize "$model" "$dir/x" --format lut-b --include 'nothing*'
fails "missing source" 3 "No such file" "$moert" quantize "$dir/none" "$dir/x" --format lut-b
fails "shape that does not fit" 3 "LUT-B needs N % 8 = 0 and K % 64 = 0" "$moert" quantize \
  "$MOERT_TEST_DATA/vectors/routing.safetensors" "$dir/x" --format lut-b
fails "already quantised" 3 "already has a quantization_config" "$moert" quantize "$dir/lut-b" "$dir/x" --format mxfp8
fails "nothing to dequantise" 3 "no tensor to convert" "$moert" dequantize "$model" "$dir/x"
fails "output inside the source" 2 "lies in" "$moert" quantize "$dir/sharded" "$dir/sharded/out" --format mxfp8
ok "and leaves nothing there" sh -c "! test -e '$dir/sharded/out'"
ln -s own.safetensors "$dir/link.safetensors"
ln "$dir/own.safetensors" "$dir/hard.safetensors"
for to in own link hard; do
  fails "output is the input ($to)" 2 "are the same file" \
    "$moert" quantize "$dir/own.safetensors" "$dir/$to.safetensors" --format mxfp8
done
ok "the input is as it was" cmp "$model/model.safetensors" "$dir/own.safetensors"
fails "the source inside the output" 2 "lies in" "$moert" quantize "$dir/sharded" "$dir" --format mxfp8 --force
fails "output cannot be written" 6 "No such file" "$moert" quantize "$model/model.safetensors" "$dir/no/x" --format mxfp8
fails "report where no directory is" 6 "--report $dir/no/r.json: No such file" \
  "$moert" quantize "$model" "$dir/x" --format mxfp8 --report "$dir/no/r.json"
ok "report into the new directory" "$moert" quantize "$model" "$dir/with" --format mxfp8 --report "$dir/with/r.json"
ok "it is there" test -s "$dir/with/r.json"
fails "report over the input" 2 "is SRC or DST" \
  "$moert" quantize "$model/model.safetensors" "$dir/x.json" --format mxfp8 --report "$dir/x.json"

echo "tensor a I32 4x64 zero" | "$mkst" "$dir/int.st"
echo "meta a b" | "$mkst" "$dir/no-tensors.st"
echo "tensor n F32 2x2x32 list:$(printf '0,%.0s' $(seq 70))nan" | "$mkst" "$dir/nan.st"
echo "tensor inf F32 600x512 zero" | "$mkst" "$dir/inf.st"
# element [599,500] of the F32 tensor, the file's last: -Inf
printf '\000\000\200\377' | dd of="$dir/inf.st" bs=1 seek=$(($(wc -c <"$dir/inf.st") - 4 * 12)) conv=notrunc 2>/dev/null
for file in int.st no-tensors.st; do
  fails "nothing to quantise in $file" 3 "no tensor to convert; F32, BF16 and F16 tensors with two or more" \
    "$moert" quantize "$dir/$file" "$dir/x" --format mxfp8
done
printf '%s\n' "tensor w F8_E4M3 4x64 zero" "tensor w_scale U8 4x2 zero" | "$mkst" "$dir/done.st"
fails "already quantised file" 3 "dequantize first if" "$moert" quantize "$dir/done.st" "$dir/x" --format mxfp8
fails "nothing to dequantise in a file" 3 "none is MXFP8 or LUT-B" "$moert" dequantize "$dir/int.st" "$dir/x"
fails "NaN: file, tensor, element, remedy" 3 \
  "$dir/nan.st: tensor \"n\", element [1,0,6] is NaN; --nan contain or --nan poison" \
  "$moert" quantize "$dir/nan.st" "$dir/x" --format mxfp8
fails "-Inf far into a tensor" 3 "tensor \"inf\", element [599,500] is -Inf" \
  "$moert" quantize "$dir/inf.st" "$dir/x" --format mxfp8
fails "-Inf: lut-b" 3 "element [599,500] is -Inf; LUT-B cannot hold it (--format mxfp8 can); --exclude" \
  "$moert" quantize "$dir/inf.st" "$dir/x" --format lut-b
ok "the remedy works" "$moert" quantize "$dir/inf.st" "$dir/contained.st" --format mxfp8 --nan contain

fails "half of an expert" 2 "differ in form cannot be opened" \
  "$moert" quantize "$model" "$dir/x" --format mxfp8 --exclude '*.up_proj.*'
fails "one expert of a layer, over shards" 2 "differ in form cannot be opened" \
  "$moert" quantize "$dir/sharded" "$dir/x" --format mxfp8 --include '*.experts.3.*'
printf '%s\n' "tensor w13_weight F32 2x64x64 zero" "tensor w2_weight F32 2x64x32 zero" | "$mkst" "$dir/layer.st"
fails "half of a layer file" 2 "differ in form cannot be opened" \
  "$moert" quantize "$dir/layer.st" "$dir/x" --format mxfp8 --exclude w2_weight
ok "whole layers may be chosen" "$moert" quantize "$model" "$dir/some" --format mxfp8 --include '*.layers.0.mlp.experts.*'
ok "nothing was left by refused runs" sh -c "! test -e '$dir/x'"
echo "1..$n"
