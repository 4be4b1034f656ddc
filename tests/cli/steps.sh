#!/bin/sh
# route and align: the vectors of routing.md through files.
. "$(dirname "$0")/lib.sh"

show() { # NAME DTYPE: values of a tensor of out.safetensors, by od
  offset=$(head -c 8 out.safetensors | od -An -tu8 | tr -d ' ')
  range=$(head -c $((offset + 8)) out.safetensors | tail -c "$offset" | grep -o "\"$1\":{[^}]*}" |
    sed 's/.*"data_offsets":\[\([0-9]*\),\([0-9]*\)\].*/\1 \2/')
  # shellcheck disable=SC2086
  set -- "$2" $range
  tail -c +$((offset + 9 + $2)) out.safetensors | head -c $(($3 - $2)) | od -An -v -t"$1" | tr -s ' \n' '  ' | sed 's/^ //; s/ $//'
}
equal() { # NAME HAVE WANT
  [ "$2" = "$3" ] || echo "# have: $2"
  [ "$2" = "$3" ]
  ok $? "$1"
}

# G02, G03, G04, G05 of routing.md 3.4
"$mkst" ids.st <<END
tensor topk_ids I32 4x3 list:2,3,4,1,2,4,1,3,4,1,2,3
END
try 0 "align G02" "$moert" align ids.st out.safetensors --block-size 4 --num-experts 5
equal "G02 sorted" "$(show sorted_token_ids d4)" "3 6 9 12 0 4 10 12 1 7 11 12 2 5 8 12 12 12 12 12 12 12 12 12 12 12 12"
equal "G02 experts" "$(show expert_ids d4)" "1 2 3 4 -1 -1 -1"
equal "G02 total" "$(show num_tokens_post_padded d4)" "16"
try 0 "align --json" "$moert" align ids.st out.safetensors --block-size 4 --num-experts 5 --json
json "align: document" '.schema == 1 and .num_tokens_post_padded == 16 and .slots == 12'
try 0 "align padded" "$moert" align ids.st out.safetensors --block-size 4 --num-experts 5 --pad-sorted-ids
equal "padded length" "$(show sorted_token_ids d4 | wc -w | tr -d ' ')" "28"
"$mkst" ids.st <<END
tensor topk_ids I64 3x2 list:0,2,3,1,2,0
tensor expert_map I32 4 list:-1,0,-1,1
END
try 0 "align G03, 64-bit ids" "$moert" align ids.st out.safetensors --block-size 2 --num-experts 4
equal "G03 experts" "$(show expert_ids d4)" "-1 0 -1 1 -1"
try 0 "align G04" "$moert" align ids.st out.safetensors --block-size 2 --num-experts 4 --ignore-invalid
equal "G04 experts" "$(show expert_ids d4)" "0 1 -1 -1 -1"
equal "G04 sorted" "$(show sorted_token_ids d4)" "3 6 2 6 6 6 6 6 6 6"
"$mkst" ids.st <<END
tensor topk_ids I64 2x2 list:0,-1,1,4294967296
END
try 0 "align G05, id beyond 32 bits" "$moert" align ids.st out.safetensors --block-size 2 --num-experts 2
equal "G05 sorted" "$(show sorted_token_ids d4)" "0 4 2 4 4 4"
"$mkst" ids.st <<END
tensor topk_ids I32 0x2 zero
END
try 0 "align of no token" "$moert" align ids.st out.safetensors --block-size 2 --num-experts 2
equal "no token: total" "$(show num_tokens_post_padded d4)" "0"

# route
"$mkst" logits.st <<END
tensor router_logits F32 2x4 list:1,3,2,0,0,0,5,5
END
for kind in softmax softmax-renorm topk-softmax sigmoid topk-sigmoid sqrt-softplus grouped; do
  try 0 "route $kind" "$moert" route logits.st out.safetensors --router $kind --top-k 2
  equal "$kind: ids, ties to the lower id" "$(show topk_ids d4)" "1 2 2 3"
done
try 0 "route softmax-renorm" "$moert" route logits.st out.safetensors --router softmax-renorm --top-k 2
equal "weights of a tie" "$(show topk_weights fF | cut -d' ' -f3,4)" "0.5 0.5"
try 0 "softmax with --renormalize is softmax-renorm" "$moert" route logits.st again.safetensors --router softmax --renormalize --top-k 2
cmp -s out.safetensors again.safetensors
ok $? "byte-equal files"
try 0 "grouped" "$moert" route logits.st out.safetensors --router grouped --top-k 1 --num-groups 2 --topk-groups 1 --scoring sigmoid \
  --scaling-factor 2.5 --renormalize --json
json "route: document" '.schema == 1 and .tokens == 2 and .num_experts == 4 and .top_k == 1 and .rows_nonfinite == 0'
equal "scaling factor" "$(show topk_weights fF)" "2.5 2.5"
"$mkst" logits.st <<END
tensor router_logits BF16 1x4 list:1,3,2,0
tensor correction_bias F32 4 list:9,0,0,8
END
try 0 "route with a correction bias" "$moert" route logits.st out.safetensors --router sigmoid --top-k 2
equal "bias decides the ids" "$(show topk_ids d4)" "0 3"

# the model's own logits give the reference's ids
"$moert" run --model "$model" --layer-index 0 --input "$model/reference.safetensors" --input-tensor layers.0.moe_input_bf16 \
  --output out.safetensors >stdout 2>stderr
ok $? "run with the checkpoint's router"
equal "checkpoint's router: ids in range" "$(show topk_ids d4 | tr ' ' '\n' | awk '$1 < 0 || $1 > 15' | wc -l | tr -d ' ')" "0"
plan
