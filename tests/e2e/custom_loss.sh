#!/bin/sh
# custom_loss.sh - custom losses against a real engine: see custom_loss.c; and the example.
here=$(dirname "$0")
. "$here/../support/serve.sh"
tiny_model
serve_start --model "tinker/tiny=$model"
tap "the server accepts requests" $?

compile "$root/tests/e2e/custom_loss.c" "$work/custom"
tap "the program compiles" $? "$work/cc.log"
$VALGRIND "$work/custom" >"$work/custom.out" 2>&1
tap "cross entropy written by hand trains like the built-in one; regularizers work" $? "$work/custom.out"
! grep -q 'did not arrive' "$work/serve.log"
tap "the server missed no number: the client filled those of a pass that was not sent" $? "$work/serve.log"
$VALGRIND "$BUILD_DIR/examples/custom_loss" >"$work/example.out" 2>&1
tap "the example runs" $? "$work/example.out"
awk '{ sub("margin ", "", $0) } /^step/ { m = $5 + 0; if (NR > 1 && m <= last) exit 1; last = m } END { exit NR != 8 }' "$work/example.out"
tap "its margin grows with every step" $? "$work/example.out"

serve_stop
tap "the server stops cleanly on SIGTERM" $? "$work/serve.log"
tap_plan
