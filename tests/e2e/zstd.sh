#!/bin/sh
# zstd.sh - compressed bodies over HTTP: every kind of request, and frames that are hostile.
here=$(dirname "$0")
. "$here/../support/serve.sh"
tiny_model
serve_start --model "tinker/tiny=$model"
tap "the server accepts requests" $?
compile "$here/zstd.c" "$work/zstd" -D_POSIX_C_SOURCE=200809L
tap "the program compiles" $? "$work/cc.log"
"$work/zstd" "$url" >"$work/zstd.out" 2>&1
tap "every kind of request, and nothing that is broken" $? "$work/zstd.out"
kill -0 "$server" && hwm=$(awk '/VmHWM/ { print int($2 / 1024) }' "/proc/$server/status") && { [ -n "$sanitize" ] || [ "$hwm" -lt 400 ]; }
tap "a bomb costs no memory" $? "$work/serve.log"
serve_stop
tap "the server stops cleanly on SIGTERM" $? "$work/serve.log"
tap_plan
