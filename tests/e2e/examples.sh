#!/bin/sh
# examples.sh - every program in examples/ does what its comment says, against one fresh server.
# Most of them check their own claims and fail when one is wrong; here are the figures.
. "$(dirname "$0")/../support/serve.sh"
out=$work/out
"$root/tools/run-examples" -o "$out" >"$work/run.log" 2>&1
tap "all of them run" $? "$work/run.log"

: >"$work/asked"
says() { # says NAME PATTERN...: each is a line of its output
    name=$1
    shift
    echo "$name" >>"$work/asked"
    for pattern; do
        grep -qE "$pattern" "$out/$name.out"
        tap "$name says '$pattern'" $? "$out/$name.out"
    done
}
falls() { # falls NAME WORD [FACTOR]: the number after WORD ends below FACTOR times where it began
    echo "$1" >>"$work/asked"
    awk -v word="$2" -v factor="${3:-1}" '{ for (i = 1; i < NF; i++) if ($i == word) { v = $(i + 1) + 0; if (!n++) first = v; last = v } }
        END { exit !(n > 1 && last < factor * first) }' "$out/$1.out"
    tap "$1: '$2' falls" $? "$out/$1.out"
}
rises() { # rises NAME WORD: the number after WORD ends above where it began
    echo "$1" >>"$work/asked"
    awk -v word="$2" '{ for (i = 1; i < NF; i++) if ($i == word) { v = $(i + 1) + 0; if (!n++) first = v; last = v } }
        END { exit !(n > 1 && last > first) }' "$out/$1.out"
    tap "$1: '$2' rises" $? "$out/$1.out"
}

says adam_and_chunking '^1100 outputs of 1100 datums' '^sent as 2 requests$' '^weight decay 0.01, clip 1: .*clip_coef:mean 0\.0' '^weight decay 0, clip 0: .*clip_coef:mean 1( |$)'
says async_client_creation '^4 training clients, 4 samplers, 1 failed$' '^ranks add up to 60$'
says capabilities_and_logprobs '^healthy$' '^model tinker/tiny, context 512' '^prompt logprobs: nan( -[0-9.]+){7}$'
says checkpoint_multi_delete '^3 deleted, 1 failed, 0 left$'
says checkpoints_management '^weights/demo .* private, expires never$' '^weights/demo .* expires in (59|60) minutes$' '^sampler_weights/demo .* public, expires never$' '^both deleted$'
says checkpoints_resume '^saved +tinker://.*/weights/step-1$'
[ "$(awk '/loss/ { l[++n] = $3 } END { print (n == 3 && l[2] == l[3] && l[2] < l[1]) }' "$out/checkpoints_resume.out")" = 1 ]
tap "checkpoints_resume: the continued run takes the same step" $? "$out/checkpoints_resume.out"
says cli_run_prompt_file '^text and token ids: the same answer$' '^conversation: Tom\.$' '^sequences in the JSON: 2$'
says cli_run_text '^answer: .*people was happy' '^said twice: .' '^unknown model: exit status 5$'
says concurrent_400 '^400 samples, [0-9]+ tokens, 0 failed, 0 missing$'
says custom_loss '^step 8 '
falls custom_loss loss
says custom_loss_training '^gradient and differences agree to [0-9.]+e-(0[7-9]|1)'
falls custom_loss_training = 0.5
says distill '^step 20 '
falls distill teacher 0.1
says dpo '^step 12  .* accuracy 1\.00 '
falls dpo loss 0.1
says download '/checkpoint.tar$' '^unpacked into'
[ -f "$out/checkpoint/adapter_model.safetensors" ]
tap "the adapter is unpacked" $? "$work/run.log"
tar -tf "$out/checkpoint.tar" >"$work/members" 2>&1 && grep -q '^adapter_model.safetensors$' "$work/members" &&
    grep -q '^checkpoint_complete$' "$work/members"
tap "the archive has the adapter and the completion marker" $? "$work/members"
says event_loop '^answer of [1-8] tokens$'
[ "$(wc -l <"$out/event_loop.out")" -eq 5 ]
tap "event_loop: five rounds" $? "$out/event_loop.out"
says file_upload_multipart '^3 parts$' '^POST /api/v1/files: 404$'
says forward_inference '^row 2  16 tokens'
awk '/^minus the sum/ { exit !($4 + 0 == $NF + 0 && $NF > 100) }' "$out/forward_inference.out"
tap "forward_inference: local arithmetic gives the service's loss" $? "$out/forward_inference.out"
rises grpo reward
says heartbeat_probe '^/api/v1/session_heartbeat +200 ' '^/api/v1/heartbeat +404 '
says hello_sampling '^sample 0 \((stop|length)\):( [0-9]+)+' '^sample 1 '
says kimi_k2_sampling '^Kimi K2 is tokenized by moonshotai/Kimi-K2-Thinking at [0-9a-f]{8}$' ' renders [1-9][0-9]* tokens$' '^[1-9][0-9]* tokens: '
says local_engine '^before: Once there was a ' '^after: Once there was a small engine that needed no server\.$' '^saved and loaded: the next step is the same$'
falls local_engine loss 0.01
rises math_rl right
says metrics '^counter +tinker_requests_total +[1-9]' '^histogram +demo_length +5 values' '^gauge +demo_last_seed +5$'
says model_info_and_unload '^lora +yes, rank 4$' '^vocabulary 2048 tokens$' '^unloaded; a step now: TINKER_ESTATE'
says multimodal '^with an image of 69 bytes: .*only encoded_text' '^with the text alone: [1-8] tokens$'
says queue_state_observer '^paused: capacity, all machines are busy' '^paused: rate limit, ' '^log: Sampling is paused' ' after 4 polls$'
says receive_events '^6: "text":"' '^[6-9] events, then the end$' '^ended after 2 events$'
says recovery_live '^step [4-7] failed: .* was lost' '^recovered from step [246]$' '^saved step-8$'
[ "$(awk '/^step .* loss/ { if (l[$2] && l[$2] != $4) bad = 1; again += !!l[$2]; l[$2] = $4 } END { print (!bad && again > 0) }' "$out/recovery_live.out")" = 1 ]
tap "recovery_live: the steps taken again are the same" $? "$out/recovery_live.out"
says recovery_simulated '^recovered from weights/one$' '^not recovered: .*missing checkpoint' '^event recovery.exhausted$'
says reference_engine '^step 15 loss 0\.0' '^after: Once there was a small engine that needed no server\.$'
falls reference_engine loss 0.01
${CC:-cc} -std=c11 -O2 -o "$work/alone" "$root/examples/reference_engine.c" -lm >"$work/alone.log" 2>&1 &&
    (cd "$root" && "$work/alone") >>"$work/alone.log" 2>&1 && grep -q '^after: .* no server\.$' "$work/alone.log"
tap "reference_engine needs nothing but the C library" $? "$work/alone.log"
says rest_listing '^model tinker/tiny, context 512$' '^run .* on tinker/tiny, rank 16$' '^checkpoint tinker://'
says retry_and_capture '^asample: again in 1000 ms$' ' after 2 submissions$' '^flaky: worked at call 3$' '^captured: delivered$'
says rl_loop '^round 6 '
[ "$(awk '/^round/ { r[++n] = $5 } END { print (n == 6 && r[6] > 1.5 * r[1]) }' "$out/rl_loop.out")" = 1 ]
tap "rl_loop: the reward rises" $? "$out/rl_loop.out"
says sample_1000 '^What comes after 999\?'
[ "$(grep -c '^What comes after [0-9]*?' "$out/sample_1000.out")" -eq 1000 ]
tap "sample_1000: a thousand answers" $? "$out/sample_1000.out"
says sampling_basic '^12 tokens, logprob -[0-9.]+: Once there was a people was happy'
says sample_many '^prompt 41: .*-1' '^99 answers, [0-9]+ tokens, 1 failed$' 'the rest is canceled: yes$'
says sampling_stream '^Once there was a people was happy, and went home' '^9 tokens were told, 9 are in the result$' '^ended after 3 tokens$'
says save_weights_and_sample '^after: The password is tangerine seventeen\.$'
says sessions_management ' 1 training runs, 1 samplers  \(this program\)$' '^no-such-session  status 404$'
says sft_file '^tinker://.*/sampler_weights/final$'
falls sft_file loss 0.8
says structured_regularizers '^parallel and sequential agree$' '^kl +value +0\.3714' '^gradient +value +25\.8141' '^error: regularizer "broken": no embedding' '^error: .*reference_logprobs'
says structured_regularizers_live '^loss fell by [1-9]'
says supervised_loop '^step 10 '
falls supervised_loop token 0.6
says telemetry_demo '^checkpoint_reached +3$' '^UNHANDLED_EXCEPTION +1$' '^tml-local +0$' '^drained: yes$'
says tokenizer_override 'Llama-3.1-8B -> thinkingmachineslabinc/' '^8 tokens: 305 1130 2022' '^loader asked for tinker/tiny$'
says training_persistence '^both states repeat the run exactly$' 'used client: status 400$'
says weights_inspection 'rank 16, trained: attention yes, mlp yes, unembedding no$' 'rank 32: refused$' '^run +rank 16, last sampler checkpoint sampler_weights/inspect$'

# Samples by a helper process are the same.
TINKER_SUBPROCESS_SAMPLING=1 TINKER_SAMPLING_HELPER=$BUILD_DIR/tinker "$root/tools/run-examples" -o "$work/far" \
    concurrent_400 save_weights_and_sample >"$work/far.log" 2>&1
tap "examples run with a sampling helper" $? "$work/far.log"
for name in concurrent_400 save_weights_and_sample; do
    cmp "$out/$name.out" "$work/far/$name.out" >"$work/far.log" 2>&1
    tap "$name says the same with a sampling helper" $? "$work/far.log"
done

# Nothing is left out: not by the script, not by the table.
for f in "$root"/examples/*.c "$root"/examples/*.sh; do
    name=$(basename "$f")
    case $name in quickstart.c) ;; *) grep -qx "${name%.*}" "$work/asked" || echo "$name is not tested" ;; esac
    grep -q "\[$name\]($name)" "$root/examples/README.md" || echo "$name is not in examples/README.md"
done >"$work/missing"
[ ! -s "$work/missing" ]
tap "every example is tested and described" $? "$work/missing"
tap_plan
