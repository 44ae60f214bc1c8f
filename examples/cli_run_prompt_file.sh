#!/bin/sh
# cli_run_prompt_file.sh - sample from files: text, token ids, a conversation; JSON out.
#
#     TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-local examples/cli_run_prompt_file.sh
#
# --json gives tokens and log-probabilities beside the text.  TINKER names the program, TOKENIZER
# the directory with the model's tokenizer.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
tinker=${TINKER:-${BUILD_DIR:-$root/build/release}/tinker}
tokenizer=${TOKENIZER:-$root/models/tiny}
dir=$(mktemp -d "${TMPDIR:-/tmp}/tinker-prompt.XXXXXX")
trap 'rm -rf "$dir"' EXIT

ask() { "$tinker" sample -m tinker/tiny --tokenizer "$tokenizer" --max-tokens 12 --temperature 0 "$@"; }

# The same prompt as text and as token ids: the same answer, end tokens included (--raw).
printf 'Once there was a' >"$dir/prompt.txt"
"$tinker" tokenize -m "$tokenizer" --file "$dir/prompt.txt" >"$dir/prompt.ids"
ask --raw --prompt-file "$dir/prompt.txt" >"$dir/from-text"
ask --raw --tokens "$dir/prompt.ids" >"$dir/from-ids"
cmp -s "$dir/from-text" "$dir/from-ids" && echo "text and token ids: the same answer"

# A conversation.
printf '[{"role": "user", "content": "Tom has 4 red hats at the mill. Who has the hats?"}]' >"$dir/messages.json"
printf 'conversation: %s\n' "$(ask --messages "$dir/messages.json")"

# Several answers as JSON, with what the prompt itself was worth.
ask --raw --prompt-file "$dir/prompt.txt" --json -n 2 --prompt-logprobs >"$dir/answer.json"
echo "sequences in the JSON: $(grep -c '"stop_reason"' "$dir/answer.json")"
