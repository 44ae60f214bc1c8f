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
serve_stop
tap "the server stops cleanly" $? "$work/serve.log"
tap_plan
