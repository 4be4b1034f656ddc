#!/bin/sh
# Malformed input, one line each: exit status, what the message must say, and no output left behind.
. "$(dirname "$0")/lib.sh"

: >messages
# bad CODE TEXT COMMAND...: the command ends with CODE, says TEXT on one of its lines, and writes no out.st.
bad() {
  wanted=$1 text=$2
  shift 2
  rm -f out.st
  "$moert" "$@" >stdout 2>stderr </dev/null
  status=$?
  result=0
  [ $status -eq "$wanted" ] || { result=1 && echo "# exit status $status, expected $wanted"; }
  grep -qF -- "$text" stderr || { result=1 && echo "# the message does not say: $text"; }
  grep -q '^moert: ' stderr || result=1
  [ ! -e out.st ] || { result=1 && echo "# out.st was written"; }
  head -1 stderr >>messages
  ok $result "$wanted: $text"
}
# st FILE: description on standard input.
st() { "$mkst" "$1"; }

"$mkst" good.ids <<END
tensor topk_ids I32 2x2 list:0,1,1,0
END
A="--block-size 4 --num-experts 2"

# ---- safetensors ----
# file DESCRIPTION TEXT: `align` of a damaged file.
file() {
  printf '%s\n' "$1" | "$mkst" damaged.st
  # shellcheck disable=SC2086
  bad 3 "$2" align damaged.st out.st $A
}
T='"topk_ids":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]}'
# shellcheck disable=SC2086
bad 3 "nowhere.st" align nowhere.st out.st $A
: >empty.st
# shellcheck disable=SC2086
bad 3 "empty.st" align empty.st out.st $A
# shellcheck disable=SC2086
bad 3 "$scratch" align "$scratch" out.st $A
file "header {$T}
data 16
cut 5" "damaged.st"
file "header {$T}
length 4294967296
data 16" "header length 4294967296 exceeds"
file "header {$T}
length 18446744073709551615
data 16" "header length 18446744073709551615"
file "length 0
header {$T}" "header length is 0"
file "header {$T
data 16" "header is not JSON"
file "header [1,2]
data 16" "not a JSON object"
file "header {$T,$T}
data 16" "a name may occur once"
file 'header {"topk_ids":7}' "entry is not an object"
file 'header {"topk_ids":{"shape":[2,2],"data_offsets":[0,16]}}
data 16' '"dtype" is missing'
file 'header {"topk_ids":{"dtype":3,"shape":[2,2],"data_offsets":[0,16]}}
data 16' '"dtype" is not a string'
file 'header {"topk_ids":{"dtype":"I33","shape":[2,2],"data_offsets":[0,16]}}
data 16' "I33"
file 'header {"topk_ids":{"dtype":"I32","data_offsets":[0,16]}}
data 16' '"shape" is missing'
file 'header {"topk_ids":{"dtype":"I32","shape":4,"data_offsets":[0,16]}}
data 16' '"shape" is not an array'
file 'header {"topk_ids":{"dtype":"I32","shape":[-2,2],"data_offsets":[0,16]}}
data 16' "topk_ids"
file 'header {"topk_ids":{"dtype":"I32","shape":[2,2.5],"data_offsets":[0,16]}}
data 16' "shape"
file 'header {"topk_ids":{"dtype":"I32","shape":[1,1,1,1,1,1,1,2,2],"data_offsets":[0,16]}}
data 16' "9 dimensions"
file 'header {"topk_ids":{"dtype":"I32","shape":[2,2]}}
data 16' '"data_offsets" is missing'
file 'header {"topk_ids":{"dtype":"I32","shape":[2,2],"data_offsets":[0]}}
data 16' '"data_offsets" is not two whole numbers'
file 'header {"topk_ids":{"dtype":"I32","shape":[2,2],"data_offsets":[16,0]}}
data 16' "run backwards"
file 'header {"topk_ids":{"dtype":"I32","shape":[2,2],"data_offsets":[0,17]}}
data 17' "data_offsets"
file 'header {"topk_ids":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]}}
data 8' "damaged.st"
file 'header {"topk_ids":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]}}
data 24' "damaged.st"
file 'header {"topk_ids":{"dtype":"I32","shape":[2,2],"data_offsets":[4,20]}}
data 20' "damaged.st"
file 'header {"a":{"dtype":"I32","shape":[2],"data_offsets":[0,8]},"topk_ids":{"dtype":"I32","shape":[2,2],"data_offsets":[4,20]}}
data 20' "damaged.st"
file 'header {"topk_ids":{"dtype":"I32","shape":[4294967296,4294967296],"data_offsets":[0,16]}}
data 16' "exceeds 64 bits"
file "header {\"__metadata__\":5,$T}
data 16" "__metadata__ is not an object"
file "header {\"__metadata__\":{\"k\":5},$T}
data 16" '__metadata__ "k" is not a string'

# ---- ids, maps, sizes of align ----
file 'tensor ids I32 2x2 zero' 'topk_ids'
file 'tensor topk_ids F32 2x2 zero' 'tensor "topk_ids" is F32, expected I32 or I64'
file 'tensor topk_ids I32 4 zero' 'tensor "topk_ids" has 1 dimensions, expected 2'
file 'tensor topk_ids I32 2x2 zero
tensor expert_map F32 2 zero' 'tensor "expert_map" is F32'
file 'tensor topk_ids I32 2x2 zero
tensor expert_map I32 2x1 zero' 'tensor "expert_map" has 2 dimensions'
file 'tensor topk_ids I32 2x2 zero
tensor expert_map I32 5 list:-1,-1,0,1,2' "map"
file 'tensor topk_ids I32 2x2 zero
tensor expert_map I32 2 list:0,0' "local id 0 appears twice"
file 'tensor topk_ids I32 2x2 zero
tensor expert_map I32 2 list:0,7' "expert_map[1] is 7"
file 'tensor topk_ids I32 2x2 zero
tensor expert_map I32 3 list:0,1,0' "mask"
bad 3 "block size is 0" align good.ids out.st --block-size 0 --num-experts 2
bad 3 "num_experts is 0" align good.ids out.st --block-size 4 --num-experts 0
bad 3 "2147483647" align good.ids out.st --block-size 2147483647 --num-experts 2147483647

# ---- options ----
bad 2 "missing argument" align good.ids
bad 2 "extra argument \"third\"" align good.ids out.st third
bad 2 "--block-size B is needed" align good.ids out.st
bad 2 "--num-experts E is needed" align good.ids out.st --block-size 4
bad 2 '--block-size takes a number, got "four"' align good.ids out.st --block-size four
bad 2 '--block-size takes a number, got "-4"' align good.ids out.st --block-size -4
bad 2 '--num-experts takes a number, got "2x"' align good.ids out.st --num-experts 2x
bad 2 "allowed" align good.ids out.st --num-experts 99999999999
bad 2 'did you mean "--block-size"?' align good.ids out.st --blok-size 4
bad 2 "--router KIND is needed" route good.ids out.st --top-k 1
bad 2 "--top-k K is needed" route good.ids out.st --router softmax
bad 2 'did you mean "softmax"?' route good.ids out.st --router sofmax
bad 2 'did you mean "sigmoid"?' route good.ids out.st --router grouped --scoring sigmod
bad 2 "go with --router grouped" route good.ids out.st --router softmax --top-k 1 --num-groups 2
bad 2 '--scaling-factor takes a finite number, got "nan"' route good.ids out.st --router softmax --scaling-factor nan
bad 2 "--output html is not available" bench align --output html
bad 2 "--shape takes a name or H,I,E,K" bench layer --shape 1,2,3
bad 2 'did you mean "mixtral-8x7b"?' bench layer --shape mixtral-8x7
bad 2 "--tokens takes a list" bench align --tokens 1,,2
bad 2 "hot needs a fraction" bench layer --routing hot:7
bad 2 "zipf: S must not be negative" bench layer --routing zipf:-1
bad 2 "go with bench layer" bench align --shape tiny
bad 2 'did you mean "lut-b"?' bench layer --format lutb
bad 2 'did you mean "codec"?' verify --op codek

# ---- logits ----
logits() { # DESCRIPTION TEXT OPTIONS...
  printf '%s\n' "$1" | "$mkst" logits.st
  text=$2
  shift 2
  bad 3 "$text" route logits.st out.st "$@"
}
logits 'tensor router_logits I32 2x4 zero' 'tensor "router_logits" is I32' --router softmax --top-k 2
logits 'tensor router_logits F32 8 zero' 'tensor "router_logits" has 1 dimensions' --router softmax --top-k 2
logits 'tensor logits F32 2x4 zero' 'router_logits' --router softmax --top-k 1
G='tensor router_logits F32 2x8 seq'
logits "$G" "top_k 9" --router softmax --top-k 9
logits "$G" "top_k is 0" --router sigmoid --top-k 0
logits "$G" "8 experts do not divide into 3 groups" --router grouped --top-k 1 --num-groups 3
logits "$G" "topk_groups 5 of 4" --router grouped --top-k 1 --num-groups 4 --topk-groups 5
logits "$G" "top_k 5" --router grouped --top-k 5 --num-groups 2 --topk-groups 1
logits "$G
tensor correction_bias F32 7 zero" "correction_bias is [7]" --router sigmoid --top-k 2
logits "$G
tensor correction_bias BF16 8 zero" 'tensor "correction_bias" is BF16' --router sigmoid --top-k 2
logits "$G
tensor correction_bias F32 8 const:nan" "correction_bias[0] is NaN" --router sigmoid --top-k 2
logits "$G
tensor correction_bias F32 8 zero" "groups of at least 2" --router grouped --top-k 2 --num-groups 8

# ---- descriptions ----
config() { # JSON TEXT
  printf '%s\n' "$1" >config.json
  bad 3 "$2" select --config config.json
}
S='"hidden_size":256,"intermediate_size":128'
E='"num_experts":8,"top_k":2'
config '{"hiden_size":256}' 'did you mean "hidden_size"?'
config "{$S,\"num_experts\":8,\"weight_scheme\":\"bf16\"}" '"top_k" is required'
config "{$S,$E}" '"weight_scheme" is required'
config "{$S,$E,\"weight_scheme\":\"fp8-block\"}" 'fp8-block'
config "{\"hidden_size\":0,\"intermediate_size\":128,$E,\"weight_scheme\":\"bf16\"}" "hidden_size is 0"
config "{\"hidden_size\":\"big\",\"intermediate_size\":128,$E,\"weight_scheme\":\"bf16\"}" "hidden_size"
config "{\"hidden_size\":-5,\"intermediate_size\":128,$E,\"weight_scheme\":\"bf16\"}" "-5"
config "{$S,\"num_experts\":8,\"top_k\":9,\"weight_scheme\":\"bf16\"}" "top_k 9"
config "{\"hidden_size\":200,\"intermediate_size\":128,$E,\"weight_scheme\":\"lut-b\"}" "hidden_size 200 is not a multiple of 64"
config "{\"hidden_size\":256,\"intermediate_size\":40,$E,\"weight_scheme\":\"mxfp8\"}" "intermediate_size 40 is not a multiple of 32"
config "{$S,$E,\"weight_scheme\":\"bf16\",\"activation\":\"silu2\"}" "silu2"
config "{$S,$E,\"weight_scheme\":\"bf16\",\"activation\":\"gelu\",\"swiglu_limit\":7}" "gelu takes no swiglu_limit"
config "{$S,$E,\"weight_scheme\":\"bf16\",\"activation\":\"swigluoai_uninterleave\"}" "needs swiglu_limit"
config "{$S,$E,\"weight_scheme\":\"bf16\",\"activation\":\"relu2_no_mul\",\"w13_order\":\"interleaved\"}" "relu2_no_mul"
config "{$S,$E,\"weight_scheme\":\"bf16\",\"apply_router_weight_on_input\":true}" "needs top_k 1"
config "{$S,$E,\"weight_scheme\":\"bf16\",\"dtype\":\"f64\"}" "f64"
config "{$S,$E,\"weight_scheme\":\"bf16\",\"router\":{\"kind\":\"grouped\",\"num_groups\":3}}" "into 3 groups"
config "{$S,$E,\"weight_scheme\":\"bf16\",\"expert_map\":[0,1]}" "the expert map has length 2, 8 is needed"
config "{$S,$E" "config.json"
config "[]" "not an object"
bad 3 "nofile.json" select --config nofile.json
echo '{"schema":1,"id":"x"' >device.json
echo "{$S,$E,\"weight_scheme\":\"bf16\"}" >fine.json
bad 3 "device.json" select --config fine.json --device device.json

# ---- layer files and runs ----
L='{"hidden_size":32,"intermediate_size":32,"num_experts":2,"top_k":1,"weight_scheme":"bf16","router":{"kind":"softmax"}}'
W='tensor w13_weight BF16 2x64x32 rand
tensor w2_weight BF16 2x32x32 rand'
X='tensor hidden_states BF16 2x32 rand'
printf '%s\n' "meta moert.layer $L" "$W" | "$mkst" layer.st
input() { # DESCRIPTION TEXT
  printf '%s\n' "$1" | "$mkst" input.st
  bad 3 "$2" run --layer layer.st --input input.st --output out.st
}
weights() { # DESCRIPTION TEXT
  printf '%s\n' "$1" | "$mkst" damaged.st
  bad 3 "$2" run --layer damaged.st --input good.in --output out.st
}
R='tensor topk_ids I32 2x1 list:0,1
tensor topk_weights F32 2x1 const:1'
printf '%s\n' "$X" "$R" | "$mkst" good.in
input "$R" 'hidden_states'
input "tensor hidden_states I32 2x32 zero
$R" 'tensor "hidden_states" is I32'
input "tensor hidden_states F32 2x32 zero
$R" "hidden_states is F32"
input "tensor hidden_states BF16 2x33 zero
$R" "33"
input "tensor hidden_states BF16 64 zero
$R" 'tensor "hidden_states" has 1 dimensions'
input "$X
tensor topk_ids I32 3x1 zero
tensor topk_weights F32 3x1 zero" "topk_ids is [3,1]"
input "$X
tensor topk_ids I32 2x2 zero
tensor topk_weights F32 2x2 zero" "topk_ids is [2,2]"
input "$X
tensor topk_ids I32 2x1 zero
tensor topk_weights BF16 2x1 zero" 'tensor "topk_weights" is BF16, expected F32'
input "$X
tensor topk_ids I32 2x1 zero" 'topk_weights'
input "$X
tensor router_logits F32 2x3 zero" "[2,3]"
bad 3 "nothere" run --layer layer.st --input good.in --output out.st --ids-tensor nothere
bad 3 "reference.st" run --layer layer.st --input good.in --output out.st --compare reference.st
bad 3 '"topk_weights" is [2,1], the output [2,32]' run --layer layer.st --input good.in --output out.st --compare good.in --tensor topk_weights
weights "$W" "description"
weights "meta moert.layer {
$W" "expected a JSON object"
weights "meta moert.layer $L
tensor w13_weight BF16 2x64x32 rand" "w2_weight"
weights "meta moert.layer $L
tensor w13_weight BF16 2x60x32 rand
tensor w2_weight BF16 2x32x32 rand" "[2,60,32]"
weights "meta moert.layer $L
tensor w13_weight U8 2x64x32 rand
tensor w2_weight BF16 2x32x32 rand" "w13_weight"
weights "meta moert.layer $L
tensor w13_weight BF16 3x64x32 rand
tensor w2_weight BF16 3x32x32 rand" "w13_weight is [3,64,32], expected [2,64,32]"
bad 3 "no layer 9 with routed experts" run --model "$model" --layer-index 9 --input good.in --output out.st
bad 3 "nodir" run --model nodir --layer-index 0 --input good.in --output out.st
mkdir bare && echo '{"model_type":"qwen3_moe"}' >bare/config.json
bad 3 "model.safetensors" run --model bare --layer-index 0 --input good.in --output out.st
mkdir odd && echo '{"model_type":"bert"}' >odd/config.json && cp layer.st odd/model.safetensors
bad 3 "no layer 0 with routed experts" run --model odd --layer-index 0 --input good.in --output out.st
bad 2 "--model needs --layer-index" run --model "$model" --input good.in --output out.st
bad 2 "--input FILE is needed" run --layer layer.st --output out.st
bad 2 "--output FILE is needed" run --layer layer.st --input good.in
bad 2 "go with --compare" run --layer layer.st --input good.in --output out.st --max-error 1
bad 2 "--max-error is -1" run --layer layer.st --input good.in --output out.st --compare good.in --max-error -1
bad 4 "did you mean" run --layer layer.st --input good.in --output out.st --backend cpu.referenze

# fused experts: blocks run along K, so the order of the axes must be known and K last
fused() { # DIR CONFIG
  mkdir "$1" && echo "$2" >"$1/config.json"
  "$mkst" "$1/model.safetensors" <<END
tensor model.layers.0.mlp.experts.gate_up_proj BF16 2x64x64 zero
tensor model.layers.0.mlp.experts.down_proj BF16 2x64x64 zero
END
}
fused turned '{"model_type":"gpt_oss"}'
bad 3 "are stored [E,K,N]" quantize turned out.st --format mxfp8
fused unsaid '{"model_type":"some_moe"}'
bad 3 'give "fused_transposed"' quantize unsaid out.st --format mxfp8
fused said '{"model_type":"some_moe","fused_transposed":true}'
bad 3 "fused experts of some_moe are stored [E,K,N]" quantize said out.st --format mxfp8

cases=$count
[ "$cases" -ge 60 ]
ok $? "$cases malformed inputs, at least 60 are expected"
[ "$(sort messages | uniq -d | wc -l)" -eq 0 ] || sort messages | uniq -d | sed 's/^/# twice: /'
[ "$(sort messages | uniq -d | wc -l)" -eq 0 ]
ok $? "each has its own message"
plan
