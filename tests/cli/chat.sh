#!/bin/sh
# chat.sh - `tinker chat` as a filter, and in a terminal of its own where `script` gives one.
. "$(dirname "$0")/../support/serve.sh"
tinker="$VALGRIND $BUILD_DIR/tinker"
cd "$work" || exit 1
HOME=$work/home
unset TINKER_BASE_URL TINKER_API_KEY
TINKER_TELEMETRY=0
export HOME TINKER_TELEMETRY
mkdir home
chat="$tinker -q chat --temperature 0 --max-tokens 12"

printf 'Hello\nand again\n' | $chat >two 2>err
[ $? -eq 0 ] && [ "$(wc -l <two)" -eq 2 ]
tap "a filter: one reply per line" $? err
printf 'Hello\n' | $chat >one 2>err
head -n 1 two | cmp -s - one
tap "the first reply does not depend on what follows" $? two
printf 'Hello\n\nand again\n' | $chat --no-stream >whole 2>err && cmp -s two whole
tap "without a stream the replies are the same, and empty lines are nothing" $? whole
printf 'and again\n' | $chat >fresh 2>err
printf 'Hello\nand again\n' | $chat --json >json 2>err
[ "$(wc -l <json)" -eq 2 ] && grep -q '^{"message":"Hello","reply":".*","stop_reason":"[a-z]*","tokens":[0-9]*}$' json
tap "as JSON lines" $? json
expect 2 $tinker chat --top-p 2; tap "numbers that make no sense are refused" $? err
expect 5 $tinker chat -p last && grep -q 'there are no sampler weights yet' err; tap "last, when there is nothing yet" $? err
expect 5 $tinker chat -m nowhere; tap "a model that is not there" $? err
expect 2 $tinker chat -p tinker://run/weights/1 && grep -q 'cannot be sampled' err; tap "training state cannot be talked to" $? err

# A conversation that outgrows the context of 512 tokens: old turns go, the newest question stays.
awk 'BEGIN { for (i = 0; i < 12; i++) { printf "Question %d:", i; for (k = 0; k < 40; k++) printf " word%d", k; print "" } }' >long
$tinker chat --temperature 0 --max-tokens 8 <long >out 2>err
[ $? -eq 0 ] && [ "$(wc -l <out)" -eq 12 ] && [ "$(grep -c 'no longer sees its oldest turns' err)" -eq 1 ]
tap "a conversation longer than the context goes on, and says so once" $? err

# In a terminal: what is typed comes from a pipe into a pseudo terminal.
if [ -z "$VALGRIND" ] && command -v script >/dev/null && script -qec true /dev/null </dev/null >/dev/null 2>&1; then
    in_terminal() { # the lines of standard input, typed one by one
        while read -r line; do sleep 0.4; printf '%s\r' "$line"; done |
            TERM=xterm timeout 60 script -qec "$tinker chat --temperature 0 --max-tokens 12 --seed 1" /dev/null >screen 2>&1
    }
    in_terminal <<'END'
Hello
/params temperature=0.5
/nonsense
/save talk.jsonl
/retry
/system Be brief.
/tokens
/undo
/quit
END
    grep -q 'Ctrl-D ends' screen; tap "a terminal is greeted" $? screen
    reply=$(head -n 1 one)
    grep -qF "$reply" screen; tap "the reply is there" $? screen
    grep -q 'temperature=0.5' screen; tap "/params" $? screen
    grep -q 'no command /nonsense' screen; tap "an unknown command is named" $? screen
    grep -q '"role": *"user"' talk.jsonl && grep -q '"role": *"assistant"' talk.jsonl; tap "/save writes messages" $? talk.jsonl
    grep -q 'tokens, renderer ' screen; tap "/tokens" $? screen
    [ "$(stat -c %a xdg-data/tinker/chat_history)" = 600 ] && grep -q 'Hello' xdg-data/tinker/chat_history
    tap "lines are remembered, for their owner alone" $?
    in_terminal <<'END'
/load talk.jsonl
/model nope
/model tinker/tiny
/undo
/quit
END
    tap "/quit ends it without a fault" $?
    grep -q '(2 messages)' screen; tap "/load reads them again" $? screen
    grep -q "no model 'nope'" screen && grep -q '(still ' screen && grep -q 'the last question is forgotten' screen
    tap "/model with a wrong name keeps the model and the conversation" $? screen
    expect 0 $tinker render -m tinker/tiny --messages talk.jsonl; tap "and so does render" $? err
fi
tap_plan
