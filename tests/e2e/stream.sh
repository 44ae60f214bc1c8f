#!/bin/sh
# stream.sh - R-217 on a real server: a streamed sample has the tokens, logprobs and ends of the
# sample without a stream; plain HTTP sees the events; the capability is advertised.
here=$(dirname "$0")
. "$here/../support/serve.sh"
tiny_model
serve_start --model "tinker/tiny=$model"
tap "the server accepts requests" $?
compile "$root/tests/e2e/stream.c" "$work/stream"
tap "the program compiles" $? "$work/cc.log"
$VALGRIND "$work/stream" tinker/tiny >"$work/out" 2>"$work/err"
tap "the stream's tokens, logprobs, likeliest tokens and ends are the sample's" $? "$work/err"
[ "$(grep -c equal "$work/out")" -eq 3 ]
tap "three sequences were compared" $? "$work/out"

curl -sS "$TINKER_BASE_URL/api/v1/get_server_capabilities" | grep -q '"stream_sample":true'
tap "the capability is advertised" $?
body='{"base_model":"tinker/tiny","prompt":{"chunks":[{"type":"encoded_text","tokens":[1,2,3]}]},"num_samples":1,"sampling_params":{"max_tokens":4,"seed":1,"stop":[]}}'
curl -sSN -H 'Content-Type: application/json' -d "$body" "$TINKER_BASE_URL/api/v1/stream_sample" >"$work/events"
[ "$(grep -c '^data: {.*"token_id":' "$work/events")" -eq 4 ] && grep -q '"finish_reason":"length","total_tokens":4' "$work/events"
tap "four tokens and the end, as events" $? "$work/events"
tail -n 2 "$work/events" | head -n 1 | grep -qx 'data: \[DONE\]'
tap "the last event says so" $? "$work/events"
curl -sSN -H 'Content-Type: application/json' -d "${body%?},\"topk_sample_logprobs\":2}" \
    "$TINKER_BASE_URL/api/v1/stream_sample" >"$work/rivals"
[ "$(grep -cE '^data: \{.*"logprob":[-0-9.e]+,"topk_logprobs":\[\[[0-9]+,[-0-9.e]+\],\[[0-9]+,[-0-9.e]+\]\]\}$' "$work/rivals")" -eq 4 ] &&
    [ "$(sed 's/,"topk_logprobs":.*/}/' "$work/rivals")" = "$(cat "$work/events")" ]
tap "with the two likeliest tokens each where they were asked for, and else the same" $? "$work/rivals"
curl -sS -o /dev/null -w '%{http_code}' -d '{"num_samples":0}' -H 'Content-Type: application/json' \
    "$TINKER_BASE_URL/api/v1/stream_sample" | grep -qE '^4'
tap "a malformed request is refused with a status" $?
serve_stop
tap "the server stops cleanly" $? "$work/serve.log"
tap_plan
