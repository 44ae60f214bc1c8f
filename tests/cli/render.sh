#!/bin/sh
# render.sh - `tinker render` with the bundled model's tokenizer: data on stdout, talk on stderr,
# documented exit codes.
. "$(dirname "$0")/../support/serve.sh"
tinker="$VALGRIND $BUILD_DIR/tinker"
model=$root/models/tiny
cd "$work" || exit 1

cat > chat.json <<'EOF'
[{"role":"user","content":"2+2?"},{"role":"assistant","content":"4"}]
EOF
cat > lines.jsonl <<'EOF'
{"messages":[{"role":"user","content":"a"}]}

{"messages":[{"role":"user","content":"b"},{"role":"assistant","content":"c"}]}
EOF

$tinker render -m "$model" --messages chat.json >out 2>err
printf '<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n<|im_start|>assistant\n\n' >want
cmp -s out want; tap "the prompt is what the model sees" $? out
grep -q '^[0-9]* tokens, 0 trained, 0 truncated$' err; tap "totals are talk" $? err

$tinker render -m "$model" --mode train --json <chat.json >out 2>err
tr -d '\n ' <out | grep -q '"weights":\[0.0,.*1.0,1.0\].*"stop":\[[0-9]*\],"renderer":"qwen3_instruct","truncated":0}$'
tap "train gives weights, stop tokens and the renderer" $? out

$tinker render -m "$model" --mode train --max-length 5 --json <chat.json >out 2>err
grep -q '"truncated": [1-9]' out; tap "what was cut is counted" $? out
$tinker render -m "$model" --max-length 1 <chat.json >out 2>err
grep -qE '^1 token, 0 trained, [0-9]+ truncated$' err; tap "one token is no tokens" $? err
$tinker render -m "$model" --max-length 1 --diff-template <chat.json >out 2>err
[ $? -eq 2 ] && grep -q 'no --max-length' err; tap "a part is not compared with the whole" $? err

$tinker render -m "$model" --messages lines.jsonl --json >out 2>err
[ "$(wc -l <out)" -eq 2 ]; tap "JSON Lines in, JSON lines out" $? out

$tinker render -m "$model" --messages chat.json --diff-template >out 2>err
tap "the renderer agrees with the bundled model's template" $? out
$tinker render -m "$model" --messages chat.json --diff-template --json >out 2>err
grep -qE '^\{"equal": true, "tokens": [0-9]+\}$' out; tap "which is JSON when asked for" $? out
$tinker render -m "$model" --messages chat.json --renderer role_colon --diff-template --json >out 2>err
[ $? -eq 1 ] && grep -qE '^\{"equal": false, "token": 0, "renderer": ".*", "template": ".*"\}$' out; tap "and so is a difference" $? out

printf '[{"role":"user","content":"na\303\257ve \360\237\231\202 \346\227\245\346\234\254"}]' >world.json
$tinker render -m "$model" --messages world.json >out 2>err
grep -q "$(printf 'na\303\257ve \360\237\231\202 \346\227\245\346\234\254')" out; tap "characters of several tokens stay whole" $? out

$tinker render -m "$model" --messages chat.json --renderer role_colon --diff-template >out 2>err
[ $? -eq 1 ] && grep -q '^token 0 differs$' out; tap "a difference is named and exits with 1" $? out

echo '{"messages":[{"role":"user","content":"x"}]}
{"messages":[{"role":"user"' >bad.jsonl
$tinker render -m "$model" --messages bad.jsonl >out 2>err
[ $? -eq 8 ] && grep -q 'bad.jsonl:2: ' err; tap "a bad line is named and exits with 8" $? err

$tinker render -m "$model" --renderer nope <chat.json >out 2>err
[ $? -eq 2 ] && grep -q 'unknown renderer' err; tap "an unknown renderer is wrong usage" $? err
$tinker render <chat.json >out 2>err
[ $? -eq 2 ]; tap "a missing model is wrong usage" $? err
$tinker render -m "$model" --messages nowhere.json >out 2>err
[ $? -eq 9 ]; tap "a missing file exits with 9" $? err
tap_plan
