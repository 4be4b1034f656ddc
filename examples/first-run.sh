#!/bin/sh
# examples/first-run.sh BUILD_DIR: the main job on the shipped model: quantise the expert layers, let the oracle choose a
# backend, run one layer on the model's real hidden states, compare with the reference, and say what it means.
# ./quickstart calls this; it runs the command out of the build directory, nothing is installed.
set -eu
build=$(cd "$1" && pwd)
model=$(cd "$(dirname "$0")/model" && pwd)
layer=2
work=$build/first-run
rm -rf "$work"
mkdir -p "$work"
MOERT_DRIVER_PATH=$build/.libs
MOERT_SELF_TEST_HELPER=$build/moert-selftest
MOERT_STATE_DIR=$work/state
export MOERT_DRIVER_PATH MOERT_SELF_TEST_HELPER MOERT_STATE_DIR
moert() { "$build/moert" "$@"; }
say() { printf '\n== %s\n' "$*"; }

say "1. Drivers and devices of this machine"
moert info --drivers --devices

say "2. Quantise the model's expert layers: bf16 -> MXFP8 (8.25 bits) and LUT-B (3.125 bits)"
for format in mxfp8 lut-b; do
  moert quantize "$model" "$work/$format" --format $format --quiet
done
du -k "$model/model.safetensors" "$work"/*/*.safetensors | while read -r k f; do
  printf '  %7s KiB  %s\n' "$k" "${f#"$work/"}"
done

say "3. Which backend runs layer $layer, and why"
moert select --model "$work/lut-b" --layer-index $layer

say "4. Run layer $layer on 256 real hidden states and compare with the reference of the plain model"
for format in bf16 mxfp8 lut-b; do
  dir=$work/$format
  [ $format != bf16 ] || dir=$model
  moert run --model "$dir" --layer-index $layer --input "$model/reference.safetensors" \
    --input-tensor layers.$layer.moe_input --ids-tensor layers.$layer.topk_ids \
    --weights-tensor layers.$layer.topk_weights --output "$work/$format.out.safetensors" \
    --compare "$model/reference.safetensors" --tensor layers.$layer.moe_output
done

cat <<EOF

What you saw: the same layer in three forms. The bf16 line is the arithmetic alone: it agrees with an independent
implementation (Hugging Face transformers) to rounding error. The other two lines add what the format costs: MXFP8 a few
per cent of the output at half the bytes, LUT-B more at a fifth of them. Outputs are in $work.
Next: README.md, or: $build/moert --help
EOF
