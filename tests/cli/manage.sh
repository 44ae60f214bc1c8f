#!/bin/sh
# manage.sh - R-221: the commands about runs, checkpoints and sessions, and `tinker sample`,
# against a server of one's own: tables, JSON, errors, exit codes.
. "$(dirname "$0")/../support/serve.sh"
tinker="$VALGRIND $BUILD_DIR/tinker"
model=$root/models/tiny
serve_start --model "tinker/tiny=$model"
tap "the server accepts requests" $?
cd "$work" || exit 1
LC_ALL=C.UTF-8
export LC_ALL

# Without a service that answers.
expect 2 $tinker run; tap "a group alone is wrong usage" $? err
grep -q '^  list  ' err && grep -q '^  info  ' err; tap "and lists its commands" $? err
expect 0 $tinker run list -h && grep -q -e '--columns LIST' out; tap "help of a command" $? out
expect 2 $tinker run list --limit abc && grep -q "^Error: Invalid value for '--limit': 'abc' is not a valid integer" err
tap "a wrong number is wrong usage" $? err
expect 2 $tinker run list -c id,nope,zip && grep -q 'Unknown column(s): nope, zip\. Available: id, model' err
tap "unknown columns are named" $? err
for list in '' , id, ' ,id'; do
    expect 2 $tinker run list -c "$list" && grep -q 'Unknown column(s): ' err
    tap "an empty column is unknown: '$list'" $? err
done
expect 2 $tinker run list -c "$(printf 'id,%.0s' 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32)id" &&
    grep -q 'at most 32 columns' err
tap "too many columns are not dropped in silence" $? err
expect 2 $tinker checkpoint info tinker://run/weights && grep -q '^Error: Invalid checkpoint path: tinker://run/weights$' err
tap "a path has three parts" $? err
expect 2 $tinker checkpoint list --run-id r --offset 3 && grep -q 'no --offset' err; tap "an offset that would be ignored is refused" $? err
expect 2 $tinker run list --ids --json && grep -q '"kind":"usage"' err; tap "ids are lines, not JSON" $? err
expect 2 $tinker checkpoint info weights/1 && grep -q '^Error: Invalid checkpoint path: weights/1$' err
tap "a path needs its scheme" $? err
expect 2 $tinker checkpoint delete && grep -q 'Must specify checkpoint paths or --run-id' err
tap "delete needs something to delete" $? err
expect 2 $tinker checkpoint delete tinker://r/weights/1 --run-id r && grep -q 'Cannot specify both' err
tap "delete takes paths or a run" $? err
expect 2 $tinker checkpoint delete --run-id r --before 01/15/2024 -y && grep -q '^Error: Invalid date: 01/15/2024$' err
tap "a bad date is named" $? err
expect 2 $tinker checkpoint delete tinker://r/weights/1 && grep -q 'Pass --yes' err
tap "nobody to ask: refused" $? err
expect 2 $tinker checkpoint set-ttl tinker://r/weights/1 && grep -q 'either --ttl <seconds> or --remove' err
tap "set-ttl needs to know" $? err
TINKER_API_KEY= expect 3 $tinker --base-url http://192.0.2.1 run list && grep -q '^Error: Configuration error: ' err
tap "a missing key exits with 3" $? err
expect 7 $tinker --base-url http://127.0.0.1:9 --timeout 1 run list && grep -qE '^Error: (Request timeout|Connection failed)$' err
tap "no server exits with 7" $? err
grep -q 'Connection refused' err; tap "and says what is wrong with the server" $? err
expect 1 $tinker --compat-exit --base-url http://127.0.0.1:9 --timeout 1 run list
tap "or with 1 for scripts of the reference" $? err

# An empty service.
expect 0 $tinker run list && grep -q 'No training runs found' out; tap "no runs" $? out
expect 0 $tinker checkpoint list --json && [ "$(tr -d ' \n' <out)" = '{"checkpoints":[]}' ]; tap "no checkpoints" $? out
expect 5 $tinker run info nope && grep -q '^Error: Resource not found$' err && grep -q '^Details: Error code: 404 - {' err
tap "an unknown run exits with 5" $? err
expect 5 $tinker --json run info nope && grep -q '^{"error":{"code":5,"kind":"not_found"' err
tap "as JSON on stderr too" $? err

# Two runs with checkpoints.
"$BUILD_DIR/examples/checkpoints_resume" >made 2>&1
tap "a program trains and saves" $? made
path=$(sed -nE 's/^saved +(tinker:.*)/\1/p' made)
run=${path#tinker://}
run=${run%%/*}
expect 0 $tinker run list && grep -q '2 training runs' out && grep -q "│ $run │ tinker/tiny │ Rank 32 │ just now" out
tap "run list" $? out
expect 0 $tinker run list --limit 1 && grep -q '1 training run (1 more not shown, use --limit to see more)' out
tap "what is not shown is counted" $? out
expect 0 $tinker run list --limit 1 --offset 1 -f tsv -c id,checkpoint && [ "$(cat out)" = "Run ID	Last Checkpoint
$run	weights/step-1" ]
tap "offset, columns, tab-separated" $? out
expect 0 $tinker run list --limit 1 --offset 1 && grep -q '^ *1 training run$' out; tap "what was left out on purpose is not counted" $? out
expect 0 $tinker run list --ids && [ "$(wc -l <out)" -eq 2 ] && [ "$(sed -n 2p out)" = "$run" ]; tap "ids alone" $? out
expect 0 $tinker checkpoint list --ids && [ "$(cat out)" = "$path" ]; tap "paths alone" $? out
expect 0 $tinker run list --json && grep -q '^      "training_run_id": "' out && grep -qE '^      "last_request_time": "20[0-9-]{8} [0-9:]{8}\.[0-9]{6}\+00:00",$' out
tap "run list as JSON" $? out
expect 0 $tinker run list --json --time-format rfc3339 && grep -qE '"last_request_time": "20[0-9-]{8}T[0-9:.]+Z"' out
tap "times as RFC 3339" $? out
expect 0 $tinker run info "$run" && grep -q '│   - Path  *│ tinker://' out; tap "run info" $? out
expect 0 $tinker checkpoint list && grep -q '│ weights/step-1 │ training │' out && grep -q 'in 59 minutes' out
tap "checkpoint list" $? out
expect 0 $tinker checkpoint list --run-id "$run" -f csv && head -n 1 out | grep -q '^Checkpoint ID,Type,Size,Public,Created,Expires,Path' && [ "$(wc -l <out)" -eq 2 ]
tap "of a run, as CSV" $? out
expect 0 $tinker checkpoint info "$path" && grep -q 'LoRA  *│ Yes (Rank 32)' out; tap "checkpoint info" $? out
for other in "tinker://$run/weights/none" tinker://nobody:train:0/weights/none; do
    expect 5 $tinker checkpoint info "$other" && grep -qx "Error: Checkpoint not found: $other" err
    tap "an unknown checkpoint exits with 5: ${other##*//}" $? err
done

expect 0 $tinker checkpoint publish "$path" && [ ! -s out ] && grep -q "^Published $path$" err; tap "publish" $? err
expect 0 $tinker checkpoint publish "$path"; tap "again: nothing to do" $? err
expect 0 $tinker checkpoint info "$path" --json && grep -q '"public": true' out; tap "it is public" $? out
expect 0 $tinker -q checkpoint unpublish "$path" && [ ! -s err ]; tap "unpublish, quietly" $? err
expect 0 $tinker checkpoint set-ttl "$path" --ttl 3d && expect 0 $tinker checkpoint list && grep -q 'in 2 days' out
tap "set-ttl" $? out
expect 0 $tinker checkpoint set-ttl "$path" --remove && expect 0 $tinker checkpoint info "$path" --json && grep -q '"expires_at": null' out
tap "and without" $? out

expect 0 $tinker session list --json && grep -c '^    "' out >n && [ "$(cat n)" -eq 1 ]; tap "session list" $? out
session=$(sed -nE 's/^    "(.*)"$/\1/p' out)
expect 0 $tinker session info "$session" --json && grep -q "\"$run\"" out; tap "session info" $? out
expect 0 $tinker session info "$session" && grep -q '│ Training Runs │ ' out && [ "$(grep -c ':train:' out)" -eq 2 ] && grep -q '│ Samplers ' out
tap "as a table: a row for each kind, a line for each id" $? out
expect 0 $tinker session list --ids && [ "$(cat out)" = "$session" ]; tap "session ids alone" $? out
for i in 1 2 3; do
    curl -s -X POST -H 'X-API-Key: tml-local' -H 'Content-Type: application/json' -d '{"tags":[],"sdk_version":"0.25.0"}' \
        "$TINKER_BASE_URL/api/v1/create_session" >/dev/null
done
expect 0 $tinker session list --ids --limit 0 && [ "$(sort -u out | wc -l)" -eq 4 ] && [ "$(tail -n 1 out)" = "$session" ]; tap "all of them" $? out
expect 0 $tinker session list --ids --limit 2 --offset 1 && [ "$(wc -l <out)" -eq 2 ]; tap "some in the middle" $? out
for list in session run checkpoint; do
    expect 2 $tinker $list list --offset -1 && grep -q "Invalid value for '--offset': must be 0 to " err
    tap "$list list from before the beginning" $? err
done

name=$(printf '%s' "${path#tinker://}" | tr / _)
expect 0 $tinker checkpoint download "$path" -o got --json && grep -q "\"destination\": \"got/$name\"" out && [ -f "got/$name/checkpoint_complete" ] &&
    [ "$(ls -A got | wc -l)" -eq 1 ]
tap "download unpacks, and leaves nothing else" $? out
expect 9 $tinker checkpoint download "$path" -o got && grep -q "^Error: Target directory already exists: got/$name$" err
tap "a target is not overwritten" $? err
rm "got/$name/checkpoint_complete"
expect 0 $tinker checkpoint download "$path" -o got/ --force && [ -f "got/$name/checkpoint_complete" ] && [ "$(ls -A got | wc -l)" -eq 1 ]
tap "unless told" $? out
# PEFT drops what it does not know, such as the service's name of the unembedding
names() { $tinker weights inspect "$1" --json | grep -o '"base_model[^"]*"' | sort; }
expect 0 $tinker checkpoint download "$path" -o as_is --format tinker && names "got/$name" >a && names "as_is/$name" >b &&
    grep -q unembed_tokens b && grep -q '"unembed_tokens"' "as_is/$name/adapter_config.json" &&
    sed 's/base_model.model.model.unembed_tokens/base_model.model.lm_head/' b | sort | cmp -s - a &&
    grep -q '"lm_head"' "got/$name/adapter_config.json" && ! grep -q unembed "got/$name/adapter_config.json"
tap "a download has the names of PEFT, --format tinker those of the service" $? out
expect 2 $tinker checkpoint download "$path" -o as_is --format gguf; tap "another form is none" $? err
mkdir stopped
for i in 2 4 5 6 7 8 9 10 11 12 14 16 18 20; do
    timeout -s TERM "0.$(printf %02d $i)" $tinker checkpoint download "$path" -o stopped >out 2>err </dev/null # it tells both its child and its group
    ls -A stopped | grep "^\." >hidden && break
done
[ ! -s hidden ]
tap "nothing is left of one that was told to stop, twice, at any time" $? hidden
expect 5 $tinker checkpoint download "tinker://$run/weights/none" -o got --force && [ "$(ls -A got | wc -l)" -eq 1 ]
tap "nothing is left of a download that failed" $? err
mkdir there
expect 5 $tinker checkpoint download "tinker://$run/weights/none" -o there//new/deep/ && [ -d there ] && [ -z "$(ls -A there)" ]
tap "nor the folders that were made for it" $? err
expect 5 $tinker checkpoint download "tinker://$run/weights/none" -o there && rmdir there
tap "a folder that was there stays" $? err
expect 0 $tinker checkpoint download "$path" --no-extract && [ "$(tar --force-local -tf "$name.tar" | grep -c checkpoint_complete)" -eq 1 ]
tap "the archive alone" $? out
mkdir little
(ulimit -f 8 && exec $tinker checkpoint download "$path" -o little) >out 2>err </dev/null
[ $? -eq 9 ] && grep -q '^Error: Failed to save checkpoint: ' err && [ "$(ls -A little | wc -l)" -eq 0 ]
tap "no room: exit 9, and nothing is left" $? err
if unshare -m mount -t tmpfs none little 2>/dev/null; then
    size=$(($(wc -c <"$name.tar") * 3 / 2))
    unshare -m sh -c "mount -t tmpfs -o size=$size none little && exec $tinker checkpoint download '$path' -o little" >out 2>err </dev/null
    [ $? -eq 9 ] && grep -q '^Error: Failed to extract archive: .*: No space left on device$' err && grep -q '^Is there room on the disk' err
    tap "no room to unpack it: not the archive's fault" $? err
else
    tap "no room to unpack it # SKIP a small disk cannot be had here" 0
fi
echo precious >"$name.tar"
expect 9 $tinker checkpoint download "$path" --keep-archive && grep -q "^Error: Target file already exists: $name.tar$" err && [ "$(cat "$name.tar")" = precious ]
tap "an archive that is there is not overwritten" $? err
expect 0 $tinker checkpoint download "$path" --keep-archive --force -o .//./ --json && grep -q "\"destination\": \"$name\"" out && [ -f "$name/checkpoint_complete" ] &&
    [ "$(wc -c <"$name.tar")" -gt 1000 ] && [ "$(ls -A | grep -c '^\.')" -eq 0 ]
tap "unless told; the destination is named plainly" $? out
rm -r "$name"
echo file >"$name"
expect 0 $tinker checkpoint download "$path" --force && [ -f "$name/checkpoint_complete" ] && [ "$(ls -A | grep -c '^\.')" -eq 0 ]
tap "a file can be replaced, too" $? err

expect 0 $tinker checkpoint delete --run-id "$run" --type sampler --yes && grep -q "^No checkpoints found for run $run matching filters$" out
tap "a filter that matches nothing" $? out
expect 0 $tinker checkpoint delete --run-id "$run" --after 2020-01-01 --dry-run && grep -q "Would delete 1 " out && grep -q "  - $path (.*MB, created just now)" out
tap "delete, but not really" $? out
expect 0 $tinker checkpoint delete --run-id "$run" --dry-run --json && [ "$(cat out)" = "{\"would_delete\": [\"$path\"]}" ]
tap "the same as JSON" $? out
for other in '#other' '?x=1' '%2Fpublish' '/../step-1'; do # step-1 is the name of $path
    expect 1 $tinker checkpoint delete "$path$other" --yes
    tap "delete names one checkpoint and not another: $other" $? err
done
expect 1 $tinker checkpoint delete "tinker://$run/weights/%73tep-1" "tinker://../weights/step-1" --yes
tap "nor by an escape or a direction" $? err
expect 0 $tinker checkpoint list --ids && [ "$(cat out)" = "$path" ]
tap "all are still there" $? out
expect 4 $tinker checkpoint delete "$path" "tinker://$run/weights/none" --yes --json && grep -q '^{"deleted_count": 1, "failed": \[{"tinker_path": "tinker://.*none", "error": "Error code: 404 - .*"}\]}$' out
tap "delete: one goes, one fails" $? out
expect 0 $tinker checkpoint list --run-id "$run" && grep -q "No checkpoints found for run $run" out; tap "it is gone" $? out

# Samples.
expect 0 $tinker sample -m tinker/tiny --tokenizer "$model" --raw 'The cat' --max-tokens 8 --seed 1 --json && cp out first &&
    expect 0 $tinker sample -m tinker/tiny --tokenizer "$model" --raw 'The cat' --max-tokens 8 --seed 1 --json &&
    [ "$(sed '/latency_ms/d;/:sample:/d' out)" = "$(sed '/latency_ms/d;/:sample:/d' first)" ]
tap "a seed repeats a sample" $? out
hello="sample -m tinker/tiny --tokenizer $model --seed 1 --max-tokens 60 --json"
expect 0 $tinker $hello Hello && grep -q '"stop_reason": "stop"' out; tap "an answer ends where the chat format does" $? out
expect 0 $tinker $hello --no-default-stop Hello && grep -q '"stop_reason": "length"' out && grep -q '"sampled": 60' out
tap "or nowhere" $? out
expect 0 $tinker sample -m tinker/tiny --tokenizer "$model" -n 3 --max-tokens 4 Hi && [ "$(grep -c '^# sample [123] (stop_reason=' err)" -eq 3 ]
tap "several samples, numbers on stderr" $? err
printf 'The cat' | $tinker sample -m tinker/tiny --tokenizer "$model" --raw - --max-tokens 3 --temperature 0 >out 2>err
expect 0 $tinker sample -m tinker/tiny --tokenizer "$model" --raw 'The cat' --max-tokens 3 --temperature 0 --show-tokens && grep -qE '^# [0-9]+ [0-9]+ [0-9]+$' out
tap "token ids are shown" $? out
expect 0 $tinker sample -m tinker/tiny --tokenizer "$model" --raw 'The cat' --max-tokens 20 --temperature 0 && cp out whole &&
    expect 0 $tinker sample -m tinker/tiny --tokenizer "$model" --raw 'The cat' --max-tokens 20 --temperature 0 --stream && cmp -s out whole
tap "a stream says the same" $? out
expect 2 $tinker sample -m tinker/tiny --stream -n 2 Hi; tap "one at a time" $? err
expect 0 $tinker sample Hi --max-tokens 2; tap "-m is optional where there is one model" $? err
expect 2 $tinker sample -p "tinker://$run/weights/step-1" -m tinker/tiny --tokenizer "$model" Hi; tap "training state cannot be sampled" $? err
expect 2 $tinker sample -p "tinker://$run/weights/step-1" Hi && grep -q 'is training state, which cannot be sampled' err
tap "which is said before anything else" $? err
expect 5 $tinker checkpoint info "tinker://$run/step-1" && grep -q 'Checkpoint not found' err; tap "a path without a kind is no usage error" $? err
expect 5 $tinker checkpoint download "tinker://$run/nobody" -o "$PWD/none"; tap "a download of one asks the service" $? err
$tinker sample -p "tinker://$run/nobody" --tokenizer "$model" Hi >out 2>err; [ $? -ne 2 ]; tap "so does a sample" $? err
echo '-5' >bad
expect 8 $tinker sample -m tinker/tiny --tokenizer "$model" --tokens bad && grep -q "bad: '-5' at byte 0 is not a token id" err; tap "a bad token id" $? err
printf '<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n' >chat
expect 0 $tinker sample -v -m tinker/tiny --tokenizer "$model" --raw --prompt-file chat --temperature 0 --max-tokens 30 && grep -q 'stop_reason=stop' err
tap "the model's end token ends a sample" $? err
serve_stop
tap "the server stops" $?
serve_start --model "tinker/tiny=$model" --no-implicit-eos
expect 0 $tinker sample -v -m tinker/tiny --tokenizer "$model" --raw --prompt-file chat --temperature 0 --max-tokens 30 && grep -q 'stop_reason=length, tokens=30' err
tap "unless the server is told otherwise" $? err
serve_stop
tap_plan
