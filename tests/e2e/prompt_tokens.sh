#!/bin/sh
# prompt_tokens.sh - target_prompt_logprobs and prompt_alt_tokens_k of our client, answered by our
# server: the numbers are those that the prompt itself and its likeliest tokens have.
here=$(dirname "$0")
. "$here/../support/serve.sh"
tiny_model
serve_start --model "tinker/tiny=$model"
tap "the server accepts requests" $?
compile "$root/tests/e2e/prompt_tokens.c" "$work/prompt_tokens"
tap "the program compiles" $? "$work/cc.log"
$VALGRIND "$work/prompt_tokens" tinker/tiny >"$work/out" 2>&1
tap "chosen and drawn tokens are scored as the prompt is" $? "$work/out"
[ "$(grep -c ': yes$' "$work/out")" -eq 7 ]
tap "all of it was looked at" $? "$work/out"
serve_stop
tap "the server stops cleanly" $? "$work/serve.log"
tap_plan
