#!/bin/sh
# bench in each form, small.
. "$(dirname "$0")/lib.sh"

try 0 "bench align" "$moert" bench align --reps 3 --warmup 1
grep -q '65536| *8| *256| *128|' stdout
ok $? "bench align prints 65,536 x 8, 256 experts, block 128"
try 0 "bench align --output json" "$moert" bench align --reps 3 --tokens 64 --output json
json "bench: document" '.schema == 1 and .bench == "align" and (.results | length == 4) and
  (.results[0] | .median_ns > 0 and .p95_ns >= .median_ns and .min_ns <= .median_ns and (.samples_ns | length == 3))'
try 0 "bench topk --output csv" "$moert" bench topk --reps 3 --tokens 8 --output csv
[ "$(awk -F, '{ print NF }' stdout | sort -u | wc -l)" -eq 1 ]
ok $? "every line of the CSV has as many fields"
try 0 "bench quantize --output jsonl" "$moert" bench quantize --reps 3 --tokens 8 --output jsonl
[ "$(grep -c '^{"schema":1,' stdout)" -eq 2 ]
ok $? "one document per line"
for routing in uniform zipf:1.1 hot:1; do
  try 0 "bench layer $routing" "$moert" bench layer --shape 64,64,8,2 --tokens 1,16 --format lut-b,mxfp8,bf16 --routing $routing \
    --reps 3 --warmup 0 --instances 1 --json
  json "bench layer $routing: rows" '(.results | length == 6) and ([.results[] | select(.bytes_per_s > 0 and .weight_bytes > 0
    and .checked == "definition" and .copy_share > 0 and .floor_ns > 0)] | length == 6) and .machine.before.copy_bytes_per_s > 0'
done
json "hot:1 touches K experts" '[.results[].touched_experts] | unique == [2]'
"$mkst" trace.st <<END
tensor topk_ids I32 2x2 list:0,1,0,2
END
try 0 "bench layer trace" "$moert" bench --shape 64,64,8,2 --tokens 4 --format bf16 --routing trace:trace.st --reps 3 --warmup 0 --instances 1 --json
json "a trace touches its experts" '.results[0].touched_experts == 3 and .results[0].rows_per_expert_max == 4'
try 0 "bench layer as text" "$moert" bench layer --shape tiny --tokens 1 --format lut-b --reps 3 --warmup 0 --instances 2
awk 'length > 100 { bad = 1 } END { exit bad }' stdout
ok $? "bench layer fits 100 columns"
try 0 "bench copy" "$moert" bench copy --json
json "bench copy: three limits" '[.results[].what] == ["copy", "read", "multiply-add"]'
plan
