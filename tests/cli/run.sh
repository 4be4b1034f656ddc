#!/bin/sh
# run on layer files: golden output, routing given in each form, outputs that appear whole or not at all.
. "$(dirname "$0")/lib.sh"

layer='{"hidden_size":32,"intermediate_size":32,"num_experts":1,"top_k":1,"weight_scheme":"mxfp8","activation":"silu"}'
# Hand example T1 of layer.md 3: byte 119 code 78, gate 2^-5, up 2^-4, w2 2^-5; router weight 0.5; output 0.75.
"$mkst" t1.st <<END
meta moert.layer $layer
tensor w13_weight F8_E4M3 1x64x32 const:120
tensor w13_weight_scale U8 1x64x1 list:114,114,114,114,114,114,114,114,114,114,114,114,114,114,114,114,114,114,114,114,114,114,114,114,114,114,114,114,114,114,114,114,115,115,115,115,115,115,115,115,115,115,115,115,115,115,115,115,115,115,115,115,115,115,115,115,115,115,115,115,115,115,115,115
tensor w2_weight F8_E4M3 1x32x32 const:120
tensor w2_weight_scale U8 1x32x1 const:114
END
"$mkst" t1.in <<END
tensor hidden_states BF16 3x32 const:1
tensor topk_ids I32 3x1 list:0,-1,0
tensor topk_weights F32 3x1 list:0.5,0.5,0.5
END
"$mkst" t1.want <<END
tensor output BF16 3x32 list:$(awk 'BEGIN { for (i = 0; i < 96; i++) printf "%s%s", (i ? "," : ""), ((int(i / 32) == 1) ? 0 : 0.75) }')
END
try 0 "hand example T1" "$moert" run --layer t1.st --input t1.in --output t1.out --compare t1.want --max-error 0
sed 's/^time .*/time       TIME/; s/^backend .*(exact).*/backend    B/' stdout >text
golden run-t1.txt text
for d in F32 F16; do
  dtype=$(echo $d | tr F f)
  echo "$layer" | sed "s/}/,\"dtype\":\"$dtype\"}/" >t1.json
  sed "s/BF16/$d/" <<END | "$mkst" t1.$d
tensor hidden_states BF16 1x32 const:1
tensor topk_ids I64 1x1 list:0
tensor topk_weights F32 1x1 list:0.5
END
  try 0 "T1 with $d hidden states and a --config" "$moert" run --layer t1.st --config t1.json --input t1.$d --output o.st --repeat 3 --json
  json "run: repeats are all kept" '.time_ns.samples | length == 3'
done

"$mkst" logits.in <<END
tensor hidden_states BF16 2x32 const:1
tensor router_logits F32 2x1 list:3,4
END
echo "$layer" | sed 's/}$/,"router":{"kind":"softmax"}}/' >routed.json
try 0 "routing from logits" "$moert" run --layer t1.st --config routed.json --input logits.in --output o.st
try 0 "an expert map in the input" "$moert" run --layer t1.st --input t1.in --output o.st --quiet
[ ! -s stdout ]
ok $? "--quiet prints nothing"

# the vectors' layer, by the names the file has
try 0 "checkpoint's own router" "$moert" run --model "$model" --layer-index 3 --input "$model/reference.safetensors" \
  --input-tensor layers.3.moe_input_bf16 --output routed.st --device cpu --backend reference
cmp -s routed.st /dev/null
[ -s routed.st ]
ok $? "the output exists"
try 0 "the same twice" "$moert" run --model "$model" --layer-index 3 --input "$model/reference.safetensors" \
  --input-tensor layers.3.moe_input_bf16 --output again.st
cmp -s routed.st again.st
ok $? "same input, same bytes"

# outputs
echo precious >kept.st
try 3 "a failed run" "$moert" run --layer t1.st --input t1.st --output kept.st
[ "$(cat kept.st)" = precious ]
ok $? "a failed run leaves an existing output alone"
try 6 "output in a folder that does not exist" "$moert" run --layer t1.st --input t1.in --output no/such/o.st
has stderr "no/such/o.st" "the output is named"
try 6 "output that is a folder" "$moert" run --layer t1.st --input t1.in --output "$scratch"
try 4 "a backend that does not exist" "$moert" run --layer t1.st --input t1.in --output new.st --backend cuda.lutb_sm90 --json
json "run: error document" '.error.exit == 4 and (.error.code | length > 0)'
[ ! -e new.st ]
ok $? "no output after a failure"
try 3 "a device that does not exist" "$moert" run --layer t1.st --input t1.in --output new.st --device cuda:9

# interrupt: no partial file stays
mkdir sig
# shellcheck disable=SC3045
"$moert" run --model "$model" --layer-index 0 --input "$model/reference.safetensors" --input-tensor layers.0.moe_input_bf16 \
  --output sig/o.st --repeat 100000 >/dev/null 2>&1 &
pid=$!
sleep 1
kill -TERM $pid
wait $pid
[ $? -eq 143 ]
ok $? "a terminated run ends with 128 + signal"
[ -z "$(ls -A sig)" ]
ok $? "and leaves nothing behind"
# what an output may replace: a regular file, also through a link; never a device, a directory or a pipe
try 6 "a device is no output" "$moert" run --layer t1.st --input t1.in --output /dev/null
has stderr "not a regular file" "it is named as such"
[ -c /dev/null ]
ok $? "the device is still there"
mkfifo pipe
try 6 "a pipe is no output" "$moert" run --layer t1.st --input t1.in --output pipe
mkdir aside && echo old >aside/other && ln -s ../aside/other aside/link.st && ln -s /dev/null null.st
try 0 "an output in the place of a link" "$moert" run --layer t1.st --input t1.in --output aside/link.st
[ ! -L aside/link.st ] && [ "$(cat aside/other)" = old ]
ok $? "the link is replaced, what it named is untouched"
try 6 "a link to a device is no output" "$moert" run --layer t1.st --input t1.in --output null.st
[ -z "$(find . -name '*.tmp.*')" ]
ok $? "no temporary file is left"

# a file that may not grow: a message and no rest, not a signal
{ printf 'tensor hidden_states BF16 40000x32 const:1\ntensor topk_ids I32 40000x1 const:0\n'
  printf 'tensor topk_weights F32 40000x1 const:1\n'; } | "$mkst" large.in
(ulimit -f 100; exec "$moert" run --layer t1.st --input large.in --output grown.st >stdout 2>stderr)
[ $? -eq 6 ]
ok $? "a file size limit: 6"
[ -z "$(find . -name 'grown.st*')" ]
ok $? "and nothing is left"

# an output that is an input would destroy it
cp t1.in same.st && ln -s same.st alias.st
for out in same.st alias.st; do
  try 2 "run: $out is the input" "$moert" run --layer t1.st --input same.st --output $out
done
try 2 "run: the layer file" "$moert" run --layer t1.st --input same.st --output t1.st
try 2 "run: the file to compare with" "$moert" run --layer t1.st --input t1.in --output same.st --compare same.st
try 2 "align in place" "$moert" align same.st same.st --block-size 4 --num-experts 1
try 2 "route in place" "$moert" route same.st ./same.st --router softmax --top-k 1
cmp -s t1.in same.st
ok $? "the input is untouched"

plan
