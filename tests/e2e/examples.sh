#!/bin/sh
# examples.sh - every program in examples/ does what its comment says, against a fresh server.
. "$(dirname "$0")/../support/serve.sh"
model=$work/tiny
"$BUILD_DIR/tools/make-tiny-model" "$model" >"$work/make.log" 2>&1
tap "a tiny model is made" $?
serve_start --model "tinker/tiny=$model"
tap "the server accepts requests" $?

example() { # example PATTERN PROGRAM ARGS...: runs, and its output has the pattern
    pattern=$1
    name=$2
    shift 2
    timeout 300 "$BUILD_DIR/examples/$name" "$@" >"$work/$name.out" 2>"$work/$name.err"
    tap "$name runs" $? "$work/$name.err"
    grep -qE "$pattern" "$work/$name.out"
    tap "$name prints what it should" $? "$work/$name.out"
}
example '^sample 0 \((stop|length)\):( [0-9]+)+' hello_sampling
example '.' supervised_loop
example '.' rl_loop
example '.' checkpoints_resume
example '400' concurrent_400
example '.' event_loop
example 'tinker/tiny' rest_listing
[ -x "$BUILD_DIR/examples/custom_loss" ] && example '.' custom_loss

# download what thin_path.c saves
first=$(sed -nE 's/.*(tinker:\/\/[^ ]+).*/\1/p' "$work/checkpoints_resume.out" "$work/rest_listing.out" | head -n 1)
[ -n "$first" ]
tap "there is a checkpoint to download" $? "$work/rest_listing.out"
timeout 60 "$BUILD_DIR/examples/download" "$first" "$work/checkpoint.tar" >"$work/download.out" 2>"$work/download.err"
tap "download runs" $? "$work/download.err"
tar -tf "$work/checkpoint.tar" >"$work/members" 2>&1 && grep -q '^adapter_model.safetensors$' "$work/members" &&
    grep -q '^checkpoint_complete$' "$work/members"
tap "the archive has the adapter and the completion marker" $? "$work/members"

serve_stop
tap "the server stops cleanly" $? "$work/serve.log"
tap_plan
