#!/bin/sh
# sessions.sh - a named session with its checkpoints, copies and external weights, its end, and the
# search for it, by our client and our server.
here=$(dirname "$0")
. "$here/../support/serve.sh"
tiny_model
serve_start --model "tinker/tiny=$model"
tap "the server accepts requests" $?
compile "$root/tests/e2e/sessions.c" "$work/sessions"
tap "the program compiles" $? "$work/cc.log"
$VALGRIND "$work/sessions" tinker/tiny >"$work/out" 2>&1
tap "sessions are named, found and ended, checkpoints copied and told apart" $? "$work/out"
[ "$(grep -c ': yes$' "$work/out")" -eq 10 ]
tap "all of it was looked at" $? "$work/out"
run=$(sed -n 's/^run //p' "$work/out")
"$BUILD_DIR/tinker" checkpoint delete --run-id "$run" --type weights --dry-run --json >"$work/delete" 2>&1
[ "$(cat "$work/delete")" = "{\"would_delete\": [\"tinker://$run/weights/one\"]}" ]
tap "the program does not take external weights for training state" $? "$work/delete"
"$BUILD_DIR/tinker" checkpoint delete --run-id "$run" --type external_weights --dry-run --json >"$work/delete" 2>&1
[ "$(cat "$work/delete")" = "{\"would_delete\": [\"tinker://$run/external_weights/kept\"]}" ]
tap "it deletes them when told to" $? "$work/delete"
serve_stop
tap "the server stops cleanly" $? "$work/serve.log"
tap_plan
