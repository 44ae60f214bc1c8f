#!/bin/sh
# serve_options.sh - options of the server as a user gives them, on the real engine.
here=$(dirname "$0")
. "$here/../support/serve.sh"
tinker=$BUILD_DIR/tinker
tiny_model
api() { # api METHOD PATH [BODY]: the body of the answer
    curl -s -X "$1" -H 'X-API-Key: tml-local' -H 'Content-Type: application/json' ${3:+-d "$3"} "$TINKER_BASE_URL/api/v1/$2"
}
field() { sed -nE "s/.*\"$1\":\"([^\"]*)\".*/\1/p"; }
outcome() { # outcome PATH BODY: submit and wait
    id=$(api POST "$1" "$2" | field request_id)
    api POST retrieve_future "{\"request_id\":\"$id\"}"
}
datum='{"model_input":{"chunks":[{"type":"encoded_text","tokens":[5,6,7]}]},"loss_fn_inputs":{"target_tokens":{"data":[6,7,8],"dtype":"int64"}}}'
new_model() { # the id of a new model with one step behind it
    session=$(api POST create_session '{"tags":[],"user_metadata":{},"sdk_version":"0.25.0"}' | field session_id)
    run=$session:train:0
    outcome create_model "{\"session_id\":\"$session\",\"model_seq_id\":0,\"base_model\":\"tinker/tiny\",\"lora_config\":{\"rank\":4}}" >"$work/create"
    outcome forward_backward "{\"model_id\":\"$run\",\"seq_id\":1,\"forward_backward_input\":{\"data\":[$datum],\"loss_fn\":\"cross_entropy\"}}" >"$work/pass"
    outcome optim_step "{\"model_id\":\"$run\",\"seq_id\":2,\"adam_params\":{\"learning_rate\":0.01}}" >"$work/step"
}
save() { # save NUMBER NAME: named sampler weights; their size
    outcome save_weights_for_sampler "{\"model_id\":\"$run\",\"seq_id\":$1,\"path\":\"$2\"}" >"$work/saved"
    api GET "training_runs/$run/checkpoints" >"$work/list"
    sed -nE 's/.*"size_bytes":([0-9]*).*/\1/p' "$work/list"
}
sample() { # sample NAME: tokens at temperature 0
    outcome asample "{\"model_path\":\"tinker://$run/sampler_weights/$1\",\"prompt\":{\"chunks\":[{\"tokens\":[5,6]}]},\"sampling_params\":{\"max_tokens\":4,\"temperature\":0,\"stop\":[]}}" |
        sed -nE 's/.*"tokens":(\[[0-9,]*\]).*/\1/p'
}

# ---- as it is by default
serve_start --model "tinker/tiny=$model"
tap "the server starts" $?
new_model
grep -q '"step:max":1' "$work/step" && grep -q '"elementwise_loss":{' "$work/pass"
tap "elementwise_loss is there by default" $? "$work/pass"
full=$(save 3 a)
full_tokens=$(sample a)
[ -n "$full_tokens" ] && grep -q '"checkpoint_id":"sampler_weights/a"' "$work/list"
tap "sampler weights in f32 by default, ids with their kind" $? "$work/list"
serve_stop

# ---- and otherwise
rm -rf "$work/data"
serve_start --model "tinker/tiny=$model" --no-elementwise-loss --sampler-dtype bf16 --bare-checkpoint-ids \
    --max-adapters 1 --max-batch-tokens 64 --ephemeral-keep 1 --autosave off --default-lora-seed 7
tap "the server starts with all of them" $?
new_model
grep -q '"logprobs":{' "$work/pass" && ! grep -q 'elementwise_loss' "$work/pass"
tap "--no-elementwise-loss" $? "$work/pass"
half=$(save 3 a)
grep -qa '"BF16"' "$work"/data/checkpoints/*/adapter_model.safetensors && [ "$half" -lt $((full * 3 / 4)) ]
tap "--sampler-dtype bf16 stores half ($half of $full bytes)" $? "$work/list"
grep -q '"checkpoint_id":"a"' "$work/list"
tap "--bare-checkpoint-ids" $? "$work/list"
[ -n "$(sample a)" ]
tap "weights in bf16 can be sampled from" $?
first=$run
new_model
second=$run
outcome optim_step "{\"model_id\":\"$first\",\"seq_id\":4,\"adam_params\":{}}" | grep -q '"step:max":2' &&
    outcome optim_step "{\"model_id\":\"$second\",\"seq_id\":3,\"adam_params\":{}}" | grep -q '"step:max":2'
tap "--max-adapters 1: two models take turns" $? "$work/step"
run=$second
outcome forward_backward "{\"model_id\":\"$run\",\"seq_id\":4,\"forward_backward_input\":{\"data\":[$datum],\"loss_fn\":\"cross_entropy\"}}" >"$work/pass"
kill -9 "$server"
wait "$server" 2>/dev/null
serve_start --model "tinker/tiny=$model" --autosave off
tap "it starts again after kill -9" $?
api GET "training_runs/$run" | grep -q '"corrupted":true'
tap "--autosave off: the run says that its state is lost" $?
outcome optim_step "{\"model_id\":\"$run\",\"seq_id\":5,\"adam_params\":{}}" >"$work/step"
grep -q 'lost in a restart' "$work/step"
tap "and so do its requests" $? "$work/step"
[ -n "$(run=$first; sample a)" ]
tap "its checkpoints are there" $?
serve_stop

# ---- where /proc is not mounted, as in a chroot
cat >"$work/no-proc" <<'EOF'
mount -t tmpfs none /proc && exec "$@"
EOF
chmod +x "$work/no-proc"
hidden="unshare -rm sh $work/no-proc"
if $hidden "$tinker" version >"$work/out" 2>&1; then
    rm -rf "$work/data"
    VALGRIND=$hidden serve_start --model "tinker/tiny=$model"
    tap "it starts without /proc" $?
    new_model
    save 3 a >"$work/out"
    grep -q '"step:max":1' "$work/step" && [ -n "$(sample a)" ]
    tap "and has memory to train and to sample" $? "$work/pass"
    serve_stop
else
    tap "it starts without /proc # SKIP the system lets nobody hide it" 0
fi

# ---- [NAME=]DIR where both may have a "=" of their own
mkdir "$work/a=b"
cp -r "$model" "$work/a=b/mine"
for named in '' x= y=z=; do
    name=${named%=}
    serve_start --model "$named$work/a=b/mine" && curl -s "$TINKER_BASE_URL/v1/models" | grep -q "\"id\": *\"${name:-mine}\""
    tap "--model ${named}WORK/a=b/mine is called ${name:-mine}" $? "$work/serve.log"
    serve_stop
done
"$tinker" serve --model "$work/a=b/none" --data-dir "$work/none" >"$work/out" 2>&1
[ $? -eq 9 ] && grep -q "^Error: no model '$work/a=b/none'\$" "$work/out"
tap "a path that is not there is named whole" $? "$work/out"

# ---- what is refused
refused() { # refused WORDS OPTION...: exit 2 with the words
    words=$1; shift
    "$tinker" serve --model "tinker/tiny=$model" --data-dir "$work/none" "$@" >"$work/out" 2>&1
    [ $? -eq 2 ] && grep -q -- "$words" "$work/out"
    tap "$* is refused" $? "$work/out"
}
refused "'f32', 'bf16', 'stored', 'q8', 'q4'" --dtype q5
refused 'every-step' --autosave never
refused 'every-step' --autosave 0
refused 'from 1' --ephemeral-keep 0
refused "'f32', 'bf16'" --sampler-dtype f16
tap_plan
