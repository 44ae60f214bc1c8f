#!/bin/sh
# thin_path.sh - README's program and one more, compiled as shown, against a fresh `tinker serve`:
# create LoRA -> forward_backward -> optim_step -> save_weights_for_sampler -> sample.
# VALGRIND, when set, runs both sides under it.
here=$(dirname "$0")
. "$here/../support/serve.sh"
tiny_model
serve_start --model "tinker/tiny=$model"
tap "the server accepts requests" $?

awk '/^```c$/ {inside = 1; next} /^```$/ {inside = 0} inside' "$root/README.md" >"$work/first.c"
compile "$work/first.c" "$work/first"
tap "the program in README compiles as shown" $? "$work/cc.log"
$VALGRIND "$work/first" >"$work/first.out" 2>"$work/first.err"
tap "the program in README runs" $? "$work/first.err"
grep -qE '^loss [0-9]+\.[0-9]+$' "$work/first.out"
tap "it prints a loss" $? "$work/first.out"

compile "$root/tests/e2e/thin_path.c" "$work/thin"
tap "the thin path compiles" $? "$work/cc.log"
HF_HOME=$work/none XDG_CACHE_HOME=$work/cache $VALGRIND "$work/thin" "$model" >"$work/thin.out" 2>"$work/thin.err"
tap "the thin path runs: loss falls, samples have tokens and logprobs" $? "$work/thin.err"

serve_stop
tap "the server stops cleanly on SIGTERM" $? "$work/serve.log"
tap_plan
