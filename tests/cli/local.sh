#!/bin/sh
# local.sh - commands without address and key: the running server of this user, else an engine of their own.
. "$(dirname "$0")/../support/serve.sh"
tinker="$VALGRIND $BUILD_DIR/tinker"
cd "$work" || exit 1
HOME=$work/home
unset TINKER_BASE_URL TINKER_API_KEY TINKER_CREDENTIAL_CMD TINKER_MODEL TINKER_PROFILE
TINKER_TELEMETRY=0
export HOME TINKER_TELEMETRY
mkdir home

expect 0 $tinker sample hello --max-tokens 4 --temperature 0 && [ -s out ] && grep -q '^local engine: tinker/tiny$' err
tap "without a server the command has its engine" $? err
cp out first
expect 0 $tinker run list && grep -q 'No training runs' out && [ ! -s err ]
tap "lists need no model and say nothing" $? err
expect 0 $tinker -q sample -m tinker/tiny hello --max-tokens 4 --temperature 0 && cmp -s out first && [ ! -s err ]
tap "-m names the same model, -q says less" $? err
cp -r "$root/models/tiny" mine
expect 0 $tinker sample -m ./mine hello --max-tokens 4 --temperature 0 && cmp -s out first && grep -q '^local engine: mine$' err
tap "a directory is a model" $? err
expect 0 $tinker sample -m mine hello --max-tokens 4 --temperature 0 && cmp -s out first
tap "and is known by its name from then on" $? err

# A path is that path and a recorded name what it stood for, beside a directory of the same name, too.
mkdir elsewhere
"$BUILD_DIR/tools/make-tiny-model" elsewhere/mine >make.log 2>&1
tap "there is another model of that name" $? make.log
echo '{"question": "Hello!", "answer": "Hello! What would you like to know?"}' >elsewhere/question.jsonl
echo '{"prompt": "Hello!", "completion": "Hello!"}' >elsewhere/row.jsonl
echo 'Hello!' >hello
cd elsewhere || exit 1
$tinker -q chat -m "$work/mine" --temperature 0 --max-tokens 40 <../hello >out 2>err && grep -qx 'Hello! What would you like to know?' out
tap "chat takes the one that is named" $? err
expect 0 $tinker sample -m "$work/mine" hello --max-tokens 4 --temperature 0 && cmp -s out ../first; tap "sample, too" $? err
expect 0 $tinker -q logprobs -m "$work/mine" hello && cp out far && (cd .. && $tinker -q logprobs -m ./mine hello) >near && cmp -s near far
tap "logprobs, too" $? err
expect 0 $tinker eval -m "$work/mine" --data question.jsonl --grader exact --max-tokens 40 --fail-under 1; tap "eval, too" $? err
expect 0 $tinker train sft -m "$work/mine" --data row.jsonl --max-steps 1 --lr 1e-9 && grep -q '^ *13 tokens' err; tap "train, too" $? err
$tinker -q chat -p last --temperature 0 --max-tokens 40 <../hello >out 2>err && grep -qx 'Hello! What would you like to know?' out
tap "the weights find their base" $? err
expect 0 $tinker tokenize -m "$work/mine" Hello && cp out far && (cd .. && $tinker tokenize -m ./mine Hello) >near && cmp -s near far
tap "tokenize, too" $? err
cd .. || exit 1

rm -r mine
expect 5 $tinker sample -m mine hello && grep -q "no model 'mine' on this machine" err
tap "until it is gone" $? err
expect 0 $tinker models && grep -q 'qwen3_instruct' out; tap "models names the renderer that chat and train use" $? out
expect 5 $tinker sample -m Qwen/Qwen9-9B hello && grep -q 'tinker models pull Qwen/Qwen9-9B' err
tap "a model that is not here says how to get it" $? err

# Two at once take turns.
$tinker sample hello --max-tokens 400 --temperature 0 --no-default-stop >one 2>err1 &
pid=$!
$tinker sample hello --max-tokens 4 --temperature 0 >two 2>err2
two=$?
wait $pid
[ $? -eq 0 ] && [ $two -eq 0 ] && cmp -s two first
tap "two commands at once both succeed" $? err2

# A server that runs is used.
$tinker serve --daemon --listen 127.0.0.1:0 >serve.out 2>serve.err
tap "a server starts on the same data" $? serve.err
expect 0 $tinker sample hello --max-tokens 4 --temperature 0 && cmp -s out first && grep -q '^local server: http://127.0.0.1:[0-9]*$' err
tap "and commands find it" $? err
url=$(sed -n 's/^local server: //p' err)
expect 0 $tinker --base-url "$url" --api-key whatever run list; tap "any key is taken on loopback" $? err
expect 0 $tinker --base-url "$url" run list; tap "or none" $? err
TINKER_BASE_URL=local expect 0 $tinker -v run list && grep -q '^local server: ' err; tap "the address local" $? err
$tinker serve stop >out 2>err
tap "it stops" $? err
expect 7 $tinker --base-url "$url" run list && grep -q 'is the server running? tinker serve' err
tap "nobody there is an error at once" $? err
expect 3 $tinker --api-key sk-1 run list && grep -q 'does not start with tml-' err
tap "with a key alone it is the hosted service" $? err

# Two models: which one must be said.
expect 2 sh -c "$tinker serve --daemon --listen 127.0.0.1:0 -m a=$root/models/tiny -m b=$root/models/tiny >/dev/null 2>&1; $tinker sample hello"
grep -q '^It has: a, b$' err; tap "several models are listed" $? err
TINKER_MODEL=b expect 0 $tinker sample hello --max-tokens 2; tap "unless one is configured" $? err
$tinker serve stop >/dev/null 2>&1

# Settings in a file.
expect 0 $tinker config set base_url http://127.0.0.1:9 && expect 7 $tinker run list; tap "the configuration file names a server" $? err
expect 0 $tinker --profile here config set base_url local && expect 0 $tinker --profile here run list
tap "a profile names another" $? err
expect 0 $tinker config set api_key tml-0123456789abcdef && expect 0 $tinker config list && grep -q 'tml-...ef' out && ! grep -q 0123456789 out
tap "keys are not shown" $? out
chmod 644 xdg-config/tinker/config.toml
expect 3 $tinker run list && grep -q 'can be read by others' err; tap "a key that others can read is refused" $? err
chmod 600 xdg-config/tinker/config.toml
printf 'base_url = [1]\n' >xdg-config/tinker/config.toml
expect 3 $tinker run list && grep -q 'config.toml:1: expected a text' err; tap "a broken file is named with its line" $? err
expect 3 $tinker --profile nope run list; tap "an unknown profile is an error" $? err
tap_plan
