#!/bin/sh
# failures.sh - what a tired user does: wrong files, full disks, servers that are not there.  Each
# gives one clear line that names the place, and the exit status of `tinker help exit-codes`.
. "$(dirname "$0")/../support/serve.sh"
tinker="$VALGRIND $BUILD_DIR/tinker"
model=$root/models/tiny
serve_start --model "tinker/tiny=$model"
tap "the server accepts requests" $?
cd "$work" || exit 1
ask="sample -m tinker/tiny --tokenizer $model --max-tokens 4"

expect() { # expect STATUS COMMAND...: runs into out and err; true when the exit status is that
    want=$1
    shift
    "$@" >out 2>err </dev/null
    got=$?
    [ $got -eq "$want" ] || { echo "exit status $got" >>err; return 1; }
}
says() { grep -qF -- "$1" err; } # says TEXT: the last command, on stderr

# ---- words ----------------------------------------------------------------------------------------
expect 2 $tinker checkpoint --nope && says 'Error: No such option: --nope' && says 'Usage: tinker checkpoint [OPTIONS] COMMAND [ARGS]...'
tap "a wrong option of a group" $? err
expect 2 $tinker --format yaml run list && says 'Usage: tinker [OPTIONS] COMMAND [ARGS]...'; tap "or of the program" $? err
expect 0 $tinker run --json list && [ "$(tr -d ' \n' <out)" = '{"runs":[]}' ]; tap "global options between the words of a command" $? out
expect 2 $tinker run --json nope && says "Error: No such command 'nope'."; tap "and what follows them is looked at" $? err
expect 0 $tinker --timeout 9e15 run list; tap "a very long time" $? err

# ---- files ----------------------------------------------------------------------------------------
: >empty
mkdir dir
printf '1 2 x 3' >words
printf '1 2\n00000000000000000000012, [3]' >ids
printf '1 99999999999' >huge
printf '[1,\n 2,]' >broken
printf '[{"role":"user","content":"hi"}]' >chat
for file in missing dir; do
    for option in --prompt-file --tokens --messages; do
        expect 9 $tinker $ask $option $file && says "Error: open $file: "
        tap "sample $option: $file" $? err
    done
done
expect 8 $tinker $ask --tokens words && says "Error: words: 'x' at byte 4 is not a token id"; tap "a file of ids with a word in it" $? err
expect 8 $tinker $ask --tokens huge && says "Error: huge: '99999999999' at byte 2 is not a token id"; tap "or with a huge number" $? err
expect 8 $tinker $ask --tokens empty && says 'Error: the prompt is empty'; tap "or with nothing" $? err
expect 0 $tinker --json $ask --tokens ids && sed -n '/prompt_tokens/,/]/p' out | tr -d ' \n' | grep -q '\[1,2,12,3\]'
tap "ids on several lines" $? out
expect 8 $tinker $ask --messages empty && says 'Error: empty: not JSON: line 1, column 1: '; tap "a conversation that is not there" $? err
expect 8 $tinker detokenize -m "$model" 1e3 && says "'1e3' at byte 0 is not a token id"; tap "an argument that is no id" $? err
expect 8 $tinker render -m "$model" --messages chat --tools broken && says 'Error: broken: not JSON: line 2, column 4: '
tap "tools that are not JSON: the place in their file" $? err

# ---- output ---------------------------------------------------------------------------------------
if [ -c /dev/full ]; then
    for command in "version" "run list" "$ask hi" "$ask --json hi"; do
        $tinker $command >/dev/full 2>err </dev/null
        [ $? -eq 9 ] && grep -q 'cannot write the result' err
        tap "a full disk: $command" $? err
    done
else
    tap "a full disk # SKIP there is no /dev/full" 0
fi
mkfifo pipe
for command in "$ask -n 3 hi" "run list"; do
    { $tinker $command 2>err; echo $? >status; } >pipe &
    : <pipe # a reader that leaves at once
    wait $!
    [ "$(cat status)" -eq 0 ] && [ ! -s err ] || { [ "$(cat status)" -eq 0 ] && ! grep -q Error err; }
    tap "a reader that leaves is no failure: $command" $? err
done
expect 0 $tinker run list -f csv && [ "$(tr -d '\r' <out)" = 'Run ID,Base Model,LoRA,Last Update,Status' ]; tap "an empty list as CSV" $? out

# ---- servers --------------------------------------------------------------------------------------
expect 5 $tinker $ask -m nobody/nothing hi && says 'nobody/nothing'; tap "an unknown model is named" $? err
expect 5 $tinker --json run info nope && says '"kind":"not_found","status":404,'; tap "JSON has the status" $? err
expect 7 $tinker --base-url http://127.0.0.1:9 --timeout 7 run list && grep -q '^Still waiting for the server .*: Connection refused$' err &&
    grep -q '^Details: .* deadline of 7 s; .*: Connection refused$' err
tap "no server: the reason is told while it waits, and at the end" $? err
serve_stop
tap_plan
