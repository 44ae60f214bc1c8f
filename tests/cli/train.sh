#!/bin/sh
# train.sh - `tinker train` and `tinker eval` as a newcomer uses them: with the engine of the command
# itself, files that are right and wrong, interrupts, going on.
. "$(dirname "$0")/../support/serve.sh"
tinker="$BUILD_DIR/tinker"
unset TINKER_BASE_URL TINKER_API_KEY
cd "$work" || exit 1
i=0
while [ $i -lt 20 ]; do
    echo "{\"messages\":[{\"role\":\"user\",\"content\":\"House $i?\"},{\"role\":\"assistant\",\"content\":\"cat $((i % 4))\"}]}"
    i=$((i + 1))
done >mine.jsonl
sft="train sft --data mine.jsonl --batch-size 4 --seed 1 --rank 4"

# ---- before anything is sent ----
printf '{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}\n\n{"messages":[{"role":"robot","content":"a"}]}\n{"instruction":"a","output":"b"}\n{"messages":[{"role":"user"\n' >bad.jsonl
expect 8 $tinker train sft --data bad.jsonl &&
    grep -q '^bad.jsonl:3:22: role "robot" is not one of system, user, assistant, tool, developer$' err &&
    grep -q '^bad.jsonl:4:1: this row is "alpaca", the file began as "messages"$' err &&
    grep -q '^bad.jsonl:5:[0-9]*: not JSON: ' err && grep -q '3 rows cannot be used' err
tap "every wrong row is named by line and column" $? err
echo '{"color":"red"}' >none.jsonl
expect 8 $tinker train sft --data none.jsonl && grep -q 'accepted: messages, conversations, prompt/completion' err
tap "what is accepted is listed" $? err
expect 8 $tinker train sft --data nowhere.jsonl; tap "a file that is not there is wrong data" $? err
expect 2 $tinker train sft --data mine.jsonl --test-size 20; tap "a test set of everything is wrong usage" $? err
echo '{"prompt":"a","chosen":"b","rejected":"c"}' >pair.jsonl
expect 8 $tinker train sft --data pair.jsonl && grep -q 'tinker train dpo' err; tap "preferences are sent to train dpo" $? err
expect 0 $tinker $sft --dry-run && grep -q '‹cat' err && grep -q '5 steps of 4 rows' err && [ ! -e tinker-runs ]
tap "a dry run shows data, a row and the plan, and leaves nothing" $? err

# ---- a run ----
expect 0 $tinker $sft --test-size 4 --epochs 2 --save-every 3 --out run &&
    [ "$(wc -l <out)" -eq 2 ] && grep -q '^tinker://.*/weights/final$' out && grep -q '^next   tinker chat -p last$' err
tap "a run ends with its paths and the next commands" $? err
grep -q '^eval   step 8  nll' err && [ "$(grep -c '^eval ' err)" -eq 2 ] &&
    [ "$(sed -n 's/^eval   step 8  nll \([0-9.]*\).*/\1/p' err)" = "$(sed -n 's/^done .* test \([0-9.]*\)$/\1/p' err)" ]
tap "the last evaluation is of the weights that it ends with" $? err
[ "$(wc -l <run/metrics.jsonl)" -eq 8 ] && grep -q '"name": "final", "batch": 0, "epoch": 2' run/checkpoints.jsonl &&
    grep -q '"name": "000003", "batch": 3, "epoch": 0' run/checkpoints.jsonl && grep -q '^<svg ' run/metrics.svg
tap "its folder has a line per step, checkpoints and a picture" $? run/checkpoints.jsonl
expect 2 $tinker $sft --out run && grep -q -- '--resume or --overwrite' err; tap "a used folder is not written over" $? err
expect 2 $tinker $sft --test-size 4 --epochs 3 --save-every 3 --out run --resume && grep -q 'begun with epochs 2, not 3' err
tap "a run is not continued as another" $? err
expect 0 $tinker $sft --test-size 4 --epochs 2 --save-every 3 --out run --resume && grep -q 'was finished' err
tap "a finished run says so" $? err
path=$(tail -n 1 run/checkpoints.jsonl | sed 's/.*"sampler_path": "\([^"]*\)".*/\1/')

expect 0 $tinker run metrics "$(echo "$path" | sed "s|tinker://||; s|/.*||")" --format json && grep -q '"num_sequences"' out && grep -q '"train_mean_nll"' out
tap "the service keeps the metrics of the command" $? out

expect 0 $tinker $sft --out named --name "horse facts" -q && expect 0 $tinker api GET /api/v1/training_run_summaries && grep -q '"name": *"horse facts"' out
tap "--name is the name of the run, without date and kind" $? out

expect 0 $tinker $sft --epochs 2 --sample-every 4 --save-every 0 --save-every-tokens 100 --out shown && [ "$(grep -c '^sample ' err)" -eq 4 ] &&
    [ "$(wc -l <shown/samples.jsonl)" -eq 12 ] && grep -q '^{"step":8,"prompt":"House 0?","response":"' shown/samples.jsonl
tap "answers are shown while it learns" $? err
run=$($tinker run list -f json | sed -nE 's/.*"(training_run_id|id)": *"([^"]*)".*/\2/p' | head -n 1)
expect 0 $tinker api GET "/api/v1/training_runs/$run/texts" && grep -q '"prompt": *"House 0?"' out && grep -q '"step": *8' out
tap "and kept with the run" $? out
[ "$(wc -l <shown/checkpoints.jsonl)" -gt 2 ] && grep -q '"save_every_tokens": 100,$' shown/config.json; tap "and saved every so many tokens" $? shown/checkpoints.jsonl
echo '{"text":"Once upon a time"}' >texts.jsonl
expect 8 $tinker train sft --data texts.jsonl --sample-every 1 --out x && grep -q 'Give questions with --sample-prompts' err
tap "texts are no questions" $? err

# ---- --lr auto reads the files of a model directory, whatever it is called ----
mkdir other
cp "$root"/models/tiny/*.json "$root"/models/tiny/*.safetensors other/
rm other/generation_config.json
expect 0 $tinker train sft -m ./other --data mine.jsonl --dry-run && grep -q 'lr 5.6e-04 linear (auto: by family and width)$' err
tap "a directory of the family Qwen has its rate" $? err

for s in 0 1 2 3 4 5 6 7 8 9; do
    taken=tinker-runs/$(date -d "+$s sec" +%Y-%m-%d-%H%M%S)-sft-mine
    mkdir -p "$taken" && echo '{}' >"$taken/config.json"
done
expect 0 $tinker $sft --max-steps 1 && [ -e tinker-runs/*-sft-mine-2/metrics.jsonl ]
tap "a run that begins in the same second as another has a folder of its own" $? err

# ---- interrupted: the steps that follow are the same ----
strip() { sed 's/"time[^,}]*[,}]//g' "$1"; }
$tinker $sft --test-size 4 --epochs 10 --out whole -q >/dev/null 2>&1
$tinker $sft --test-size 4 --epochs 10 --out part >part.out 2>part.err &
pid=$!
while [ "$(cat part/metrics.jsonl 2>/dev/null | wc -l)" -lt 5 ] && kill -0 $pid 2>/dev/null; do sleep 0.05; done
kill -TERM $pid # a shell starts background jobs deaf to SIGINT
wait $pid
[ $? -eq 143 ]; tap "a signal ends it after the step, with 143" $? part.err
command=$(sed -n 's/^       tinker/tinker/p' part.err | tail -n 1)
case $command in *"--out part --resume") true ;; *) false ;; esac; tap "and with the command to go on" $? part.err
(PATH=$BUILD_DIR:$PATH; eval "$command -q") >out 2>err
strip whole/metrics.jsonl >a; strip part/metrics.jsonl >b
cmp -s a b; tap "which ends with the same numbers" $? err

# ---- the other kinds ----
i=0
while [ $i -lt 8 ]; do
    echo "{\"prompt\":\"Is $i small?\",\"chosen\":\"yes\",\"rejected\":\"no, not at all\"}"
    i=$((i + 1))
done >pairs.jsonl
expect 0 $tinker train dpo --data pairs.jsonl --batch-size 4 --lr 1e-3 --seed 1 --rank 4 --epochs 2 --test-size 2 --out dpo &&
    grep -q '"dpo_loss": 0.69314718' dpo/metrics.jsonl && tail -n 1 dpo/metrics.jsonl | grep -q '"accuracy": 1,'
tap "preferences begin at ln 2 and are learned" $? err
i=0
while [ $i -lt 6 ]; do
    echo "{\"question\":\"Say $i\",\"answer\":\"e\"}"
    i=$((i + 1))
done >ask.jsonl
rl="train rl --data ask.jsonl --max-tokens 6 --group-size 4 --seed 1 --rank 4 --max-steps 2 --epochs 2"
expect 0 $tinker $rl --grader contains --kl 0.1 --out rl && [ "$(wc -l <rl/metrics.jsonl)" -eq 2 ] &&
    grep -q '"env/all/reward/total"' rl/metrics.jsonl && grep -q '"kl_policy_base"' rl/metrics.jsonl &&
    [ "$(wc -l <rl/iteration_000000/train_rollout_summaries.jsonl)" -eq 24 ]
tap "rewards by a built-in grader, with a penalty" $? err
cat >grade.sh <<'EOF'
echo hello from the grader
while read -r line; do
    case $line in *'"response":"'*e*'","expected"'*) echo 1 ;; *) echo 0 ;; esac
done
EOF
expect 0 $tinker $rl --reward-cmd 'sh grade.sh' --out rlcmd && grep -q '"grader/cmd"' rlcmd/metrics.jsonl
tap "rewards by a command that is kept running" $? err
expect 0 $tinker $rl --reward-cmd 'sh grade.sh' --grader-workers 3 --out rlmany && strip rlcmd/metrics.jsonl >a && strip rlmany/metrics.jsonl >b && cmp -s a b
tap "or by three of them, with the same numbers" $? err
cat >world.sh <<'EOF'
while read -r line; do
    id=${line#*:}
    id=${id%%,*}
    case $line in
    *'"turn":3'*) echo "{\"id\":$id,\"done\":true,\"score\":1}" ;;
    *'"response":"'*e*'","message"'*) echo "{\"id\":$id,\"observation\":[{\"role\":\"user\",\"content\":\"And then?\"}],\"score\":0.5}" ;;
    *) echo "{\"id\":$id,\"score\":0}" ;;
    esac
done
EOF
talk="train rl --data ask.jsonl --max-tokens 12 --group-size 4 --seed 1 --rank 4 --epochs 3 --env-cmd"
expect 0 $tinker $talk 'sh world.sh' --post-kl --save-every 1 --out talk && grep -q '"kl_pre_post_v1"' talk/metrics.jsonl &&
    grep -q '"optim/kl_sample_train_v1": 0,' talk/metrics.jsonl && grep -q '"content":"And then?"' talk/iteration_000000/*.jsonl &&
    awk -F'"env/all/turns_per_episode": ' '{ split($2, v, ","); if (v[1] <= 1 || v[1] > 3) exit 1 }' talk/metrics.jsonl
tap "conversations with a program, whose turns have the same probabilities in training" $? err
sed 1q talk/checkpoints.jsonl >first && mkdir part2 && cp talk/config.json part2 && mv first part2/checkpoints.jsonl && sed 1q talk/metrics.jsonl >part2/metrics.jsonl
expect 0 $tinker $talk 'sh world.sh' --post-kl --save-every 1 --out part2 --resume && strip talk/metrics.jsonl >a && strip part2/metrics.jsonl >b && cmp -s a b
tap "which go on after an interrupt with the same numbers" $? err
expect 0 $tinker $talk 'sh world.sh' --turns 1 --grader contains --out talk1 && grep -q '"env/all/turns_per_episode": 1,' talk1/metrics.jsonl &&
    grep -q '"grader/contains"' talk1/metrics.jsonl
tap "as long as one wants, with graders of the last answer" $? err
expect 0 $tinker $talk 'while read -r x; do echo "{\"observation\":[1]}"; done' --out talkbad; [ $? -ne 0 ] && grep -q 'could not be judged' err
tap "a reply that is no message is an error" $? err
expect 0 $tinker $rl --epochs 4 --max-steps 4 --grader contains --async 2 --out ahead &&
    [ "$(sed 's/.*"sampling_client\/step_mean": \([0-9]*\).*/\1/' ahead/metrics.jsonl | tr '\n' ' ')" = '0 0 0 1 ' ] &&
    head -n 1 ahead/metrics.jsonl | grep -q '"optim/kl_sample_train_v1": 0,' && ! tail -n 1 ahead/metrics.jsonl | grep -q '"optim/kl_sample_train_v1": 0,'
tap "answers sampled ahead are at most so old" $? ahead/metrics.jsonl
expect 0 $tinker $rl --epochs 4 --max-steps 4 --grader contains --async 2 --out ahead2 && strip ahead/metrics.jsonl >a && strip ahead2/metrics.jsonl >b && cmp -s a b
tap "and the same each time" $? err
echo '[{"role":"user","content":"Say 9"},{"role":"assistant","content":"nine"}]' >shots.json
expect 0 $tinker $rl --grader contains --fewshot shots.json --length-reward clamp --advantage-norm token --sample-seed 3 --out shots &&
    [ "$(sed 's/.*"ob_len":\([0-9]*\).*/\1/;q' shots/iteration_000000/*.jsonl)" -gt "$(sed 's/.*"ob_len":\([0-9]*\).*/\1/;q' rl/iteration_000000/*.jsonl)" ]
tap "examples stand before every prompt" $? err
expect 2 $tinker $rl --grader contains --length-reward much --out x; tap "a reward that is no number is wrong usage" $? err
expect 8 $tinker $rl --grader contains --fewshot grade.sh --out x; tap "and examples that are no messages wrong data" $? err
expect 8 $tinker $rl --reward-cmd 'exit 3' --out rldead && grep -q 'ends without an answer' err
tap "a grader that dies is found before anything is sampled" $? err
expect 0 $tinker train distill --teacher "$path" --data mine.jsonl --batch-size 10 --seed 1 --rank 4 --lr 1e-3 --epochs 3 --out off &&
    awk -F'"teacher_kl": ' '{split($2, v, ","); k[NR] = v[1]} END {exit !(k[NR] < k[1])}' off/metrics.jsonl
tap "a student comes nearer to its teacher" $? err
expect 0 $tinker train distill --teacher "$path" --data ask.jsonl --mode on-policy --max-tokens 6 --seed 1 --rank 4 --out on &&
    grep -q '"teacher_kl"' on/metrics.jsonl
tap "on its own answers, too" $? err

# ---- evaluation ----
expect 0 $tinker eval -p "$path" --data mine.jsonl --grader contains --max-tokens 8 --json --out items.jsonl &&
    grep -q '"items": 20' out && [ "$(wc -l <items.jsonl)" -eq 20 ]
tap "an evaluation has a line per item" $? err
head -n 7 items.jsonl >some && mv some items.jsonl
expect 0 $tinker eval -p "$path" --data mine.jsonl --grader contains --max-tokens 8 --out items.jsonl &&
    grep -q '7 items are in items.jsonl already' err && [ "$(wc -l <items.jsonl)" -eq 20 ]
tap "and goes on where it ended" $? err
expect 0 $tinker eval -p last --data mine.jsonl --grader contains --max-tokens 2 --limit 2; tap "the newest weights can be called last" $? err
expect 4 $tinker eval --data mine.jsonl --grader exact --max-tokens 2 --fail-under 1.1; tap "--fail-under fails" $? err
expect 0 $tinker eval -p "$path" --data mine.jsonl --nll --json && grep -q '"nll": [0-9]' out; tap "rows are scored without sampling" $? err
expect 2 $tinker eval --data mine.jsonl; tap "an evaluation needs a grader" $? err
expect 2 $tinker eval --data mine.jsonl --grader nope && grep -q 'is no grader' err; tap "an unknown grader is wrong usage" $? err
tap_plan
