#!/bin/sh
# weights.sh - sample --in, logprobs, weights and the newer commands of checkpoint, with an engine of their own.
. "$(dirname "$0")/../support/serve.sh"
tinker="$VALGRIND $BUILD_DIR/tinker"
cd "$work" || exit 1
HOME=$work/home
unset TINKER_BASE_URL TINKER_API_KEY
TINKER_TELEMETRY=0
export HOME TINKER_TELEMETRY
mkdir home

# Many prompts.
i=0
while [ $i -lt 40 ]; do
    echo "{\"id\":\"q$i\",\"prompt\":\"Hello $i\",\"max_tokens\":3,\"temperature\":0}"
    i=$((i + 1))
done >in.jsonl
expect 0 $tinker sample --in in.jsonl --out out.jsonl --concurrency 8; tap "a batch" $? err
sed 's/^{"id":"\([^"]*\)".*/\1/' out.jsonl >ids
sed 's/^{"id":"\([^"]*\)".*/\1/' in.jsonl | cmp -s - ids; tap "results come in the order of the input" $? ids
expect 9 $tinker sample --in in.jsonl --out out.jsonl && grep -q 'use --resume\|Use --resume' err; tap "what is there is not overwritten" $? err
{ head -n 20 out.jsonl; head -n 21 out.jsonl | tail -n 1 | cut -c 1-30 | tr -d '\n'; } >half.jsonl
expect 0 $tinker sample --in in.jsonl --out half.jsonl --resume && cmp -s out.jsonl half.jsonl; tap "a run that was killed is resumed behind its last whole line" $? err
expect 0 $tinker sample --in in.jsonl --unordered && sort out >sorted && sort out.jsonl | cmp -s - sorted; tap "unordered has the same results" $? err
{ cat in.jsonl; echo '{"id":1}'; echo 'no json'; echo '{"prompt":"x","n":0}'; } >bad.jsonl
expect 4 $tinker sample --in bad.jsonl && [ "$(wc -l <out)" -eq 43 ] && [ "$(grep -c '"error"' out)" -eq 3 ] && grep -q '^{"id":1,"error"' out
tap "bad lines are errors of their own" $? out
expect 2 $tinker sample --in in.jsonl --resume; tap "--resume needs a file" $? err
expect 0 $tinker sample hello --max-tokens 3 --temperature 0 --logprobs -o text && grep -qE '^# +-?[0-9.]+ +[0-9]+' text; tap "logprobs below a text, into a file" $? text
expect 0 $tinker logprobs 'Once there was' --json && grep -q '"logprob": null' out && grep -q '"logprob": -' out; tap "logprobs of a text" $? out
expect 8 $tinker logprobs ''; tap "of nothing" $? err

# Adapters.
path=$($tinker -q checkpoint save --rank 4 --name start --seed 7 2>err)
tap "checkpoint save" $? err
expect 0 $tinker checkpoint verify "$path" && grep -q '^ok: .* rank 4, base tinker/tiny' out; tap "checkpoint verify" $? err
expect 0 $tinker weights export "$path" -o adapter && [ -f adapter/adapter_config.json ]; tap "weights export" $? err
expect 9 $tinker weights export "$path" -o adapter; tap "which replaces nothing" $? err
expect 0 $tinker weights verify adapter && grep -q 'which they fit' out; tap "weights verify" $? err
expect 0 $tinker weights inspect adapter --json && grep -q '"name": ".*lora_A' out; tap "weights inspect" $? out
head -c 2000 adapter/adapter_model.safetensors >cut.safetensors
expect 8 $tinker weights inspect cut.safetensors; tap "a file that was cut off" $? err
cp -r adapter nan
size=$(wc -c <nan/adapter_model.safetensors)
printf '\377\377\377\377' | dd of=nan/adapter_model.safetensors bs=1 seek=$((size - 4)) conv=notrunc 2>/dev/null
expect 8 $tinker weights verify nan --no-base && grep -q 'not finite' err; tap "a number that is none is found" $? err
expect 0 $tinker weights merge --adapter adapter -o merged && [ -f merged/config.json ]; tap "weights merge" $? err
expect 0 $tinker sample -m ./merged hello --max-tokens 3 --temperature 0; tap "the merged model can be used" $? err
cp out merged.txt
expect 0 $tinker sample -p last hello --max-tokens 3 --temperature 0 && cmp -s out merged.txt; tap "and says the same as the adapter" $? out
expect 0 $tinker weights export adapter --to gguf --type q8_0 -o as-gguf && grep -q '^FROM ./model.gguf' as-gguf/Modelfile; tap "weights export to GGUF, with a Modelfile" $? err
$tinker tokenize -m as-gguf/model.gguf 'Once there was' >a && $tinker tokenize -m tinker/tiny 'Once there was' >b && cmp -s a b; tap "whose tokenizer is the model's" $? a
expect 9 $tinker weights export adapter --to gguf-lora -o as-lora && grep -q 'merged' err && ! [ -e as-lora ]; tap "a pair on a tied head is no GGUF adapter" $? err
expect 0 $tinker weights export adapter --to gguf --base as-gguf/model.gguf -o again-gguf && [ -f again-gguf/model.gguf ]; tap "on a base in GGUF" $? err
expect 0 $tinker checkpoint import adapter --name again && grep -q 'sampler_weights/again' out; tap "checkpoint import" $? err
run=$(echo "$path" | sed 's|tinker://||; s|/.*||')
expect 0 $tinker checkpoint prune --run-id "$run" --keep-last 0 --keep start && grep -q 'Nothing to prune' err; tap "prune keeps what is named" $? err
expect 0 $tinker -y checkpoint prune --run-id "$run" --keep-last 0 && grep -q 'Deleted 1 checkpoint' out; tap "and deletes the rest" $? out
expect 5 $tinker weights verify adapter --base Nobody/None; tap "a base that is not here" $? err
expect 0 $tinker doctor && grep -q '^ok    one token' out && ! grep -q FAIL out; tap "doctor" $? out
expect 1 $tinker --base-url http://127.0.0.1:9 doctor && grep -q '^FAIL  service' out; tap "doctor without a service" $? out
expect 0 $tinker bench --requests 2 --warmup 0 --concurrency 1 --max-tokens 2 --prompt-tokens 4 --json && grep -q '"requests_per_s"' out; tap "bench" $? err
tap_plan
