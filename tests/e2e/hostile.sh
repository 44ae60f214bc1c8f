#!/bin/sh
# hostile.sh - requests of nobody who means well: each gets one clear answer, and the server goes on.
here=$(dirname "$0")
. "$here/../support/serve.sh"
serve_start --model "tinker/tiny=$root/models/tiny"
tap "the server accepts requests" $?

ask() { # ask PATH [BODY]: the answer in $work/out, the status in $status
    status=$(curl -s --path-as-is -o "$work/out" -w '%{http_code}' -H 'Content-Type: application/json' ${2:+-d "$2"} "$url$1")
}
has() { grep -qF -- "$1" "$work/out"; }
text() { sed -nE "s/.*\"$1\":\"([^\"]*)\".*/\1/p" "$work/out"; }
future() { # future PATH BODY: its result
    ask "$1" "$2"
    [ "$status" = 200 ] || return
    ask /api/v1/retrieve_future "{\"request_id\":\"$(text request_id)\"}"
}

ask /api/v1/create_session '{"tags":[],"sdk_version":"0.25.0"}'
session=$(text session_id)
future /api/v1/create_model "{\"session_id\":\"$session\",\"model_seq_id\":0,\"base_model\":\"tinker/tiny\",\"lora_config\":{\"rank\":4}}"
model=$(text model_id)
[ -n "$model" ]
tap "a model to train" $? "$work/out"
seq=0
train() { # train PATH REST: the next request of the model
    seq=$((seq + 1))
    future "/api/v1/$1" "{\"model_id\":\"$model\",\"seq_id\":$seq,$2}"
}
datum='{"model_input":{"chunks":[{"tokens":[1,2,3]}]},"loss_fn_inputs":{"target_tokens":{"data":[2,3,4],"dtype":"int64"}'
pass() { # pass MORE-INPUTS
    train forward_backward "\"forward_backward_input\":{\"data\":[$datum$1}}],\"loss_fn\":\"cross_entropy\"}"
}
step() { train optim_step "\"adam_params\":{$1}"; }

pass ',"weights":{"data":[3e38,3e38,3e38],"dtype":"float32"}'
[ "$status" = 200 ] && has '"error":' && has 'not finite' && has '"category":"user"'
tap "a loss that JSON cannot tell is a failure, no reason to ask again" $? "$work/out"
step '"learning_rate":1e-4'
[ "$status" = 200 ] && has 'non-finite gradient norm'
tap "its gradient is not applied" $? "$work/out"
kill -9 "$server"
wait "$server" 2>/dev/null
serve_start --model "tinker/tiny=$root/models/tiny"
tap "the server is killed and comes back" $?
pass ''
has '"logprobs":' && cp "$work/out" "$work/before"
tap "a pass" $? "$work/out"
step '"learning_rate":3e38,"weight_decay":3e38'
[ "$status" = 200 ] && has '"error":"the optimizer step was not taken: it would make weights that are not finite' && has '"category":"user"'
tap "a step to infinity is not taken" $? "$work/out"
pass ''
[ "$(grep -o '"logprobs":{[^}]*}' "$work/out")" = "$(grep -o '"logprobs":{[^}]*}' "$work/before")" ]
tap "the weights are as before" $? "$work/out"
step '"learning_rate":1e-4'
has '"step:max":1.0'
tap "the next step is the first, and the gradient that was dropped did not come back" $? "$work/out"

ask "/api/v1/training_runs/$model%00x"
[ "$status" = 404 ]
tap "a name does not end at a NUL" $? "$work/out"
ask "/api/v1/training_runs/$model"
[ "$status" = 200 ]
tap "the name without it is known" $? "$work/out"

erase() { # erase PATH: DELETE
    status=$(curl -s --path-as-is -o "$work/out" -w '%{http_code}' -X DELETE "$url$1")
}
kept=/api/v1/training_runs/$model/checkpoints
train save_weights '"path":"keep"'
has "weights/keep" && curl -sf -o "$work/out" -X POST "$url$kept/weights/keep/publish"
tap "a checkpoint that everybody may see" $? "$work/out"
for name in keep%2Fpublish keep%2fpublish keep%23other 'keep%3Fx' keep%253F %256beep keep%zz keep% keep%00 keep%0A \
    .. %2e%2e ../weights/keep %2E%2E/weights/keep; do
    erase "$kept/weights/$name"
    [ "$status" = 404 ]
    tap "DELETE $name: no such name" $? "$work/out"
done
erase "$kept/weights%2Fkeep"
[ "$status" != 200 ] && [ "$status" != 204 ]
tap "a slash that is escaped divides nothing" $? "$work/out"
ask "$kept"
[ "$status" = 200 ] && has '"checkpoint_id":"weights/keep"' && has '"public":true'
tap "the checkpoint is there, and for everybody" $? "$work/out"
erase "$kept/%77eights/k%65ep"
[ "$status" = 204 ] || [ "$status" = 200 ]
tap "letters may be escaped" $? "$work/out"
ask "/api/v1/billing/usage/checkpoints/current?project_id=a%26b%2"
[ "$status" = 200 ]
tap "an escape in a query" $? "$work/out"

for option in '"presence_penalty":"1"' '"frequency_penalty":[]' '"presence_penalty":1e400' '"best_of":{}' '"logit_bias":1' \
    '"response_format":1' '"min_p":true' '"logit_bias":{"x":1}'; do
    ask /v1/completions "{\"model\":\"tinker/tiny\",\"prompt\":\"a\",\"max_tokens\":1,$option}"
    [ "$status" = 400 ] && has 'line 1, column '
    tap "$option is refused where it stands" $? "$work/out"
done
for option in '"suffix":false' '"best_of":2'; do
    ask /v1/completions "{\"model\":\"tinker/tiny\",\"prompt\":\"a\",\"max_tokens\":1,$option}"
    [ "$status" = 400 ] && has 'is not supported'
    tap "$option is refused by name" $? "$work/out"
done
for option in '"presence_penalty":0' '"best_of":1' '"logit_bias":{}' '"suffix":""' '"response_format":{"type":"text"}'; do
    ask /v1/completions "{\"model\":\"tinker/tiny\",\"prompt\":\"a\",\"max_tokens\":1,$option}"
    [ "$status" = 200 ]
    tap "$option changes nothing and is accepted" $? "$work/out"
done
ask /v1/chat/completions '{"model":"tinker/tiny","messages":[],"max_tokens":1}'
[ "$status" = 400 ] && has 'messages is empty'
tap "a chat without messages is refused" $? "$work/out"
ask /api/v1/healthz
[ "$status" = 200 ]
tap "the server is alive" $? "$work/out"
serve_stop
tap "and ends as it should" $?
tap_plan
