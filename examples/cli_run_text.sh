#!/bin/sh
# cli_run_text.sh - sample from a shell: a prompt on the command line, the text on standard output.
#
#     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local examples/cli_run_text.sh [PROMPT]
#
# Standard output is data and standard error is talk, so a program can take the first as it is; the
# exit status says what failed (tinker help exit-codes).  TINKER names the program, TOKENIZER the
# directory with the model's tokenizer.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
tinker=${TINKER:-${BUILD_DIR:-$root/build/release}/tinker}
tokenizer=${TOKENIZER:-$root/models/tiny}
prompt=${1:-Once there was a}

text=$("$tinker" sample -m tinker/tiny --tokenizer "$tokenizer" --raw --max-tokens 12 --temperature 0 "$prompt")
printf 'prompt: %s\nanswer: %s\n' "$prompt" "$text"

# A conversation instead, with a system message, in the model's own chat format; a seed repeats it.
for run in 1 2; do
    "$tinker" sample -m tinker/tiny --tokenizer "$tokenizer" --system 'Be brief.' --max-tokens 8 --seed 3 'Hello!'
done | sort | uniq -c | sed -E 's/^ *2 /said twice: /'

# What cannot work says so: on standard error, with a status of its own.
status=0
"$tinker" sample -m nobody/no-such-model --tokenizer "$tokenizer" 'Hello' 2>/dev/null || status=$?
echo "unknown model: exit status $status"
