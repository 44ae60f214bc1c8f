#!/bin/sh
# openai.sh - the OpenAI endpoints with curl: what comes back, whole and streamed, and errors.
here=$(dirname "$0")
. "$here/../support/serve.sh"
serve_start --model "tinker/tiny=$root/models/tiny" --api-key tml-local
tap "the server accepts requests" $?

ask() { # ask PATH [BODY]: the answer in $work/out, the status in $status
    status=$(curl -s -o "$work/out" -w '%{http_code}' -H 'Authorization: Bearer tml-local' \
        -H 'Content-Type: application/json' ${2:+-d "$2"} "$url/v1/$1")
}
has() { grep -qF -- "$1" "$work/out"; }

ask models
[ "$status" = 200 ] && has '"id":"tinker/tiny"'
tap "models" $? "$work/out"
body='{"model":"tinker/tiny","prompt":"Once upon a time","max_tokens":8,"seed":3,"n":2,"logprobs":0'
ask completions "$body}"
[ "$status" = 200 ] && has '"object":"text_completion"' && has '"index":1' && has '"token_logprobs":[' &&
    has '"completion_tokens":16'
tap "completions" $? "$work/out"
cp "$work/out" "$work/first"
ask completions "$body}"
[ "$(grep -o '"text":"[^"]*"' "$work/out")" = "$(grep -o '"text":"[^"]*"' "$work/first")" ]
tap "the same seed gives the same texts" $? "$work/out"
ask completions "$body,\"stream\":true,\"stream_options\":{\"include_usage\":true}}"
[ "$status" = 200 ] && has 'data: [DONE]' && has '"finish_reason":"length"' && has '"completion_tokens":16' &&
    has '"token_logprobs":[' && has ',"choices":[],"usage":{"prompt_tokens":'
tap "a stream ends with its usage and [DONE]" $? "$work/out"
for i in 0 1; do
    streamed=$(grep -o "\"index\":$i,\"text\":\"[^\"]*\"" "$work/out" | sed 's/.*"text":"//; s/"$//' | tr -d '\n')
    grep -qF "\"index\":$i,\"text\":\"$streamed\"" "$work/first"
    tap "stream $i brings the same text" $? "$work/out"
done
# other ways to stop do not take the model's own end away
body='{"model":"tinker/tiny","prompt":"<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n","max_tokens":60,"temperature":0'
ask completions "$body}"
[ "$status" = 200 ] && has '"finish_reason":"stop"'
tap "a completion that ends by itself" $? "$work/out"
grep -o '"text":"[^"]*"' "$work/out" >"$work/first"
for stop in '"stop":["never said"]' '"stop_token_ids":[1999]' \
    '"stop":["a1","a2","a3","a4","a5","a6","a7","a8","a9","b1","b2","b3","b4","b5","b6","b7"]'; do
    ask completions "$body,$stop}"
    [ "$status" = 200 ] && has '"finish_reason":"stop"' &&
        [ "$(grep -o '"text":"[^"]*"' "$work/out")" = "$(cat "$work/first")" ]
    tap "it ends there with $stop" $? "$work/out"
done
ask completions "$body,\"stop\":[\"never said\"],\"stream\":true}"
[ "$status" = 200 ] && has '"finish_reason":"stop"' &&
    [ "$(grep -o '"text":"[^"]*"' "$work/out" | sed 's/"text":"//; s/"$//' | tr -d '\n')" = \
        "$(sed 's/"text":"//; s/"$//' "$work/first")" ]
tap "a stream ends there too" $? "$work/out"
chat='{"model":"tinker/tiny","messages":[{"role":"user","content":"Hello"}],"max_tokens":5,"seed":1'
ask chat/completions "$chat}"
[ "$status" = 200 ] && has '"object":"chat.completion"' && has '"role":"assistant"'
tap "chat" $? "$work/out"
ask chat/completions "$chat,\"logprobs\":true,\"top_logprobs\":3,\"temperature\":0}"
[ "$status" = 200 ] && [ "$(grep -o '"token":' "$work/out" | wc -l)" = 20 ]
tap "five tokens with three of the likeliest each" $? "$work/out"
status=$(curl -s -o "$work/out" -w '%{http_code}' -H 'x-api-key: tml-local' -H 'Content-Type: application/json' \
    -d '{"model":"tinker/tiny","messages":[{"role":"user","content":"Hello"}],"max_tokens":5,"stream":true}' "$url/anthropic/api/v1/messages")
[ "$status" = 200 ] && has 'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}' &&
    has 'data: {"type":"content_block_stop","index":0}' && has 'event: message_stop'
tap "a message of Anthropic's form as a stream" $? "$work/out"
status=$(curl -s -o "$work/out" -w '%{http_code}' -H 'x-api-key: tml-local' -H 'Content-Type: application/json' \
    -d '{"model":"tinker/tiny","max_tokens":2,"tools":[{"name":"weather","input_schema":{"type":"object"}}],"messages":[
        {"role":"user","content":"Is it raining?"},{"role":"assistant","content":[{"type":"text","text":"Wait."},
        {"type":"tool_use","id":"a","name":"weather","input":{"city":"Rome"}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"No."}]}]}' "$url/anthropic/api/v1/messages")
[ "$status" = 200 ] && has '"type":"message"' && has '"output_tokens":2'
tap "a tool that was used, in Anthropic's form" $? "$work/out"
ask chat/completions "$chat,\"logprobs\":true,\"top_logprobs\":3,\"temperature\":0}"
# without temperature the chosen token is the first of them
first=$(sed 's/.*"content":\[//' "$work/out" | grep -o '"token":"[^"]*","logprob":[-0-9.e]*' | head -n 2 | uniq | wc -l)
[ "$first" = 1 ]
tap "the first of them is the chosen one, with its value" $? "$work/out"
ask chat/completions "$chat,\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}]}"
[ "$status" = 200 ] && has '"role":"assistant"'
tap "chat with tools" $? "$work/out"
call='{"model":"tinker/tiny","messages":[{"role":"user","content":"Hello"}],"max_tokens":80,"seed":1'
tools='"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","additionalProperties":false}}}]'
for choice in '{"type":"function","function":{"name":"f","strict":true}}' '{"type":"function","name":"f"}'; do
    ask chat/completions "$call,$tools,\"tool_choice\":$choice}"
    [ "$status" = 200 ] && has '"tool_calls":[{' && has '"name":"f"'
    tap "chat with the tool of $choice" $? "$work/out"
done
ask chat/completions "$call,\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{ }}}],\"tool_choice\":\"required\"}"
[ "$status" = 200 ] && has '\"arguments\": {'
tap "parameters that say nothing mean an object" $? "$work/out"
for choice in '{"type":"function","function":{}}' '{"type":"function","function":{"name":"g"}}' '"perhaps"'; do
    ask chat/completions "$chat,$tools,\"tool_choice\":$choice}"
    [ "$status" = 400 ] && has 'tool_choice'
    tap "refused: $choice" $? "$work/out"
done
ask chat/completions "$chat,\"tool_choice\":\"required\"}"
[ "$status" = 400 ] && has '"error":{"message":' && has 'tool_choice'
tap "what is not supported is refused" $? "$work/out"
ask completions '{"model":"nobody","prompt":"a"}'
[ "$status" = 404 ] && has '"error":{"message":' && has 'nobody'
tap "an unknown model" $? "$work/out"
ask completions '{"model":"tinker/tiny","prompt":'
[ "$status" = 400 ] && has '"error":{"message":'
tap "a broken body" $? "$work/out"
status=$(curl -s -o "$work/out" -w '%{http_code}' "$url/v1/models")
[ "$status" = 401 ] && has '"error":{"message":"Missing API key"'
tap "a missing key is an error in the same shape" $? "$work/out"

serve_stop
tap "the server stops cleanly on SIGTERM" $? "$work/serve.log"
tap_plan
