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

says() { grep -qF -- "$1" err; } # says TEXT: the last command, on stderr

# ---- words ----------------------------------------------------------------------------------------
expect 2 $tinker checkpoint --nope && says 'Error: No such option: --nope' && says 'Usage: tinker checkpoint [OPTIONS] COMMAND [ARGS]...'
tap "a wrong option of a group" $? err
expect 2 $tinker --format yaml run list && says 'Usage: tinker [OPTIONS] COMMAND [ARGS]...'; tap "or of the program" $? err
expect 0 $tinker run --json list && [ "$(tr -d ' \n' <out)" = '{"runs":[]}' ]; tap "global options between the words of a command" $? out
expect 2 $tinker run --json nope && says "No such command 'nope'."; tap "and what follows them is looked at" $? err
expect 0 $tinker --timeout 9e15 run list; tap "a very long time" $? err
expect 2 $tinker --timeout 0 run list && says 'must be more than 0'; tap "no time at all" $? err
expect 2 $tinker version -f csv && says "'csv' is not one of 'table', 'json'."; tap "a format that the command does not have" $? err
expect 2 $tinker run list --apikey=tml-secret-1234 && ! grep -q secret err; tap "a slip of the finger does not show the key" $? err
expect 2 $tinker --json run list --limit x && says '{"error":{"code":2,"kind":"usage",'; tap "wrong usage as JSON" $? err
expect 2 $tinker help run nope && says "No such command 'nope'."; tap "help on what does not exist" $? err
expect 0 $tinker --version --json && grep -q '"commit": ' out; tap "the version has options, too" $? out
expect 2 $tinker --version nope; tap "and no arguments" $? err

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
for with in '--tokens ids --system x' '--tokens ids --renderer qwen3' '--messages chat --system x' '--raw --system x hi'; do
    expect 2 $tinker $ask $with
    tap "a prompt that leaves no room for the option: $with" $? err
done
expect 8 $tinker $ask --tokens empty && says 'Error: empty is empty'; tap "or with nothing" $? err
expect 8 $tinker $ask --prompt-file empty && says 'Error: empty is empty'; tap "an empty prompt is no question, in a chat format either" $? err
expect 8 sh -c "$tinker $ask </dev/null" && says 'Error: standard input is empty'; tap "nor on standard input" $? err
expect 8 $tinker $ask '' && says 'Error: the prompt is empty'; tap "nor as an argument" $? err
printf '[]' >none
expect 8 $tinker $ask --messages none && says 'Error: none: there are no messages'; tap "nor a conversation of no messages" $? err
printf '[{"role":"user","contents":"hi"}]' >slip
expect 8 $tinker render -m "$model" --messages slip && says 'Error: slip: messages[0]: message has no content'; tap "a key that is misspelt" $? err
expect 2 $tinker $ask --stop '' hi && says "Error: Invalid value for '--stop'"; tap "a stop that is everywhere" $? err
expect 0 $tinker --json $ask --tokens ids && sed -n '/prompt_tokens/,/]/p' out | tr -d ' \n' | grep -q '\[1,2,12,3\]'
tap "ids on several lines" $? out
expect 8 $tinker $ask --messages empty && says 'Error: empty is empty'; tap "a conversation that is not there" $? err
printf '{"tokens": [1, 2, 31' >short
expect 8 $tinker $ask --tokens short && says 'Error: short: ends before all brackets are closed'; tap "a list of ids that was cut off" $? err
expect 8 sh -c "$tinker detokenize -m $model <short" && says 'Error: standard input: ends before all brackets are closed'
tap "also on standard input" $? err
expect 8 $tinker detokenize -m "$model" 1e3 && says "'1e3' at byte 0 is not a token id"; tap "an argument that is no id" $? err
expect 0 $tinker detokenize -m "$model" $(awk 'BEGIN { for (i = 0; i < 999; i++) print 65 + i % 20 }') && [ "$(wc -c <out)" -ge 1000 ]
tap "as many ids as the shell passes on" $? err
expect 8 $tinker render -m "$model" --messages chat --tools broken && says 'Error: broken: not JSON: line 2, column 4: '
tap "tools that are not JSON: the place in their file" $? err

# ---- a terminal -----------------------------------------------------------------------------------
if script -qec true /dev/null </dev/null >/dev/null 2>&1; then
    { sleep 1; printf 'Hello\n\004'; sleep 4; } | script -qec "$tinker tokenize -m '$model' >out 2>err; touch ended" /dev/null >/dev/null 2>&1 &
    typing=$!
    tries=0
    until [ -e ended ] || [ $tries -gt 40 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    [ -e ended ] && says 'Reading from the terminal' && grep -q '^[1-9]' out
    tap "one Ctrl-D ends what is typed" $? err
    wait $typing
    for term in xterm dumb ''; do
        script -qec "TERM=$term $tinker run list" /dev/null </dev/null >"drawn-$term" 2>&1
    done
    escape=$(printf '\033')
    grep -q "$escape\[1mRun ID" drawn-xterm && ! grep -q 'Fetching 20' drawn-xterm
    tap "a terminal has colors, and no bar for what takes no time" $? drawn-xterm
    grep -q 'Run ID' drawn-dumb && cmp -s drawn-dumb drawn- && ! grep -qE "$escape|Fetching" drawn-dumb
    tap "a dumb one neither" $? drawn-dumb
    script -qec "COLUMNS=64 $tinker serve --help" /dev/null </dev/null | tr -d '\r' | sed -n '/^Options:/,/^Example:/p' >narrow
    grep -q '^  -m, --model ' narrow && ! grep -q '.\{65\}' narrow && $tinker serve --help | sed -n '/^Options:/,/^Example:/p' >wide &&
        [ "$(tr -s ' \n' '  ' <narrow)" = "$(tr -s ' \n' '  ' <wide)" ]
    tap "help fits the terminal, and is the same text" $? narrow
else
    tap "one Ctrl-D ends what is typed # SKIP there is no script(1), or no terminal to be had" 0
fi

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
for command in "$ask -n 3 hi" "$ask --stream hi" "run list"; do
    { $tinker $command 2>err; echo $? >status; } >pipe &
    : <pipe # a reader that leaves at once
    wait $!
    [ "$(cat status)" -eq 0 ] && [ ! -s err ] || { [ "$(cat status)" -eq 0 ] && ! grep -q Error err; }
    tap "a reader that leaves is no failure: $command" $? err
done
expect 0 $tinker run list -f csv && [ "$(tr -d '\r' <out)" = 'Run ID,Base Model,LoRA,Last Update,Status' ]; tap "an empty list as CSV" $? out

long=$(awk 'BEGIN { for (i = 0; i < 999; i++) printf "word " }')
for stream in '' --stream; do
    expect 1 $tinker $ask $stream "$long" && says 'exceeds the context of 512' && [ ! -s out ]
    tap "a prompt that is too long: nothing on stdout${stream:+, }$stream" $? err
done

# ---- secrets --------------------------------------------------------------------------------------
if [ -z "$VALGRIND" ] && [ -r /proc/self/cmdline ]; then
    for key in '--api-key tml-secret-1234' --api-key=tml-secret-1234; do
        $tinker $key --base-url http://0.0.0.0:9 --timeout 20 run list >out 2>err </dev/null &
        pid=$!
        sleep 0.5
        tr '\0' ' ' <"/proc/$pid/cmdline" >seen
        kill $pid
        wait $pid
        [ $? -eq 143 ] && grep -q 'api-key.\*\*\*' seen && ! grep -q secret seen
        tap "the process list does not show ${key%%[ =]*}" $? seen
    done
else
    tap "the process list does not show --api-key # SKIP it is valgrind's, or there is no /proc" 0
fi

# ---- interruption ---------------------------------------------------------------------------------
kill -STOP "$server"
interrupt() { # interrupt SIGNAL STATUS COMMAND...: one signal, a second after it began; by itself it would wait for minutes
    began=$(date +%s)
    signal=$1
    want=$2
    shift 2
    timeout --foreground --preserve-status -s "$signal" 1 "$@" >out 2>err </dev/null
    [ $? -eq "$want" ] && [ $(($(date +%s) - began)) -le 20 ] && grep -qx 'Interrupted\.' err && [ -z "$(ls -A here 2>/dev/null)" ]
}
for command in "run list" "$ask hi" "checkpoint download tinker://a:train:0/weights/x -o here"; do
    interrupt INT 130 $tinker $command
    tap "Ctrl-C while it waits: ${command%% -*}" $? err
    interrupt TERM 143 $tinker $command
    tap "and SIGTERM" $? err
done
expect 7 $tinker --timeout 6 run list && grep -qx 'Still waiting for the server (Ctrl-C gives up)' err
tap "nobody answers: it says that it waits" $? err
kill -CONT "$server"

# ---- servers --------------------------------------------------------------------------------------
expect 5 $tinker $ask -m nobody/nothing hi && says 'nobody/nothing'; tap "an unknown model is named" $? err
expect 5 $tinker sample -m tinker/tyni hi && says 'Error: the server has no model tinker/tyni' && says 'It has: tinker/tiny'
tap "before its tokenizer is missed" $? err
expect 5 $tinker --json run info nope && says '"kind":"not_found","status":404,'; tap "JSON has the status" $? err
expect 7 $tinker --base-url http://0.0.0.0:9 --timeout 7 run list && grep -q '^Still waiting for the server .*: Connection refused$' err &&
    grep -q '^Details: .* deadline of 7 s; .*: Connection refused$' err
tap "no server: the reason is told while it waits, and at the end" $? err
cat >page.c <<'END'
#include <arpa/inet.h>
#include <stdio.h>
#include <unistd.h>
int main(void) /* a web server that is no Tinker service: prints its port, answers everything with a page */
{
    static const char page[] = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 13\r\nConnection: close\r\n\r\n<html></html>";
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n = sizeof(a);
    char in[65536];
    int s = socket(AF_INET, SOCK_STREAM, 0), c;
    if (bind(s, (void *)&a, n) || listen(s, 8) || getsockname(s, (void *)&a, &n))
        return 1;
    printf("%d\n", ntohs(a.sin_port));
    fclose(stdout);
    while ((c = accept(s, NULL, NULL)) >= 0) {
        if (read(c, in, sizeof(in)) > 0 && write(c, page, sizeof(page) - 1) < 0)
            return 1;
        close(c);
    }
}
END
compile page.c page
tap "a web server is made" $? cc.log
timeout 60 ./page >port &
page=$!
until [ -s port ]; do sleep 0.1; done
expect 1 $tinker --base-url "http://127.0.0.1:$(cat port)" --timeout 20 run list && says 'Is TINKER_BASE_URL the address of a Tinker service?'
tap "an address where something else answers" $? err
kill $page
expect 9 $tinker serve --listen "${TINKER_BASE_URL#http://}" --data-dir other --model "tinker/tiny=$model" && says 'Address already in use; choose another address with --listen'
tap "a port that is taken" $? err
mkdir cut && cp "$model"/*.json cut && head -c 1000 "$model/model.safetensors" >cut/model.safetensors
expect 9 $tinker serve --listen "${TINKER_BASE_URL#http://}" --data-dir other --model cut=cut && says 'Address already in use; choose another address with --listen'
tap "is known before the model is loaded" $? err
mkdir -p log/serve.log
expect 9 $tinker serve --daemon --listen 127.0.0.1:0 --data-dir log && says 'Error: open log/serve.log: Is a directory'
tap "a log that cannot be written" $? err
serve_stop
# ---- slips of the fingers ----
for slip in 'tran train' 'chekpoint checkpoint' 'sft train.sft' 'run.lst list'; do
    expect 2 $tinker $(echo "${slip% *}" | tr . ' ') && grep -qF "Did you mean '$(echo "${slip#* }" | tr . ' ')'?" err
    tap "a close name is suggested for ${slip% *}" $? err
done
tap_plan
