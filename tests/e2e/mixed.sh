#!/bin/sh
# mixed.sh - training, sampling, listings, large bodies and clients that leave, all at once.
# Under the thread sanitizer a race ends the server, and so the test.  MIXED_ROUNDS (default 2, or 1
# under the slow one).
here=$(dirname "$0")
. "$here/../support/serve.sh"
tiny_model
compile "$here/mixed.c" "$work/mixed" -D_POSIX_C_SOURCE=200809L
tap "the program compiles" $? "$work/cc.log"
case $BUILD_DIR in *tsan) rounds=${MIXED_ROUNDS:-1} ;; *) rounds=${MIXED_ROUNDS:-2} ;; esac
serve_start --model "tinker/tiny=$model" --threads 2
tap "the server starts" $?
"$work/mixed" $rounds "${TINKER_BASE_URL##*:}" >"$work/out" 2>"$work/err"
tap "every request of the mixed load succeeds" $? "$work/err"
curl -s "$TINKER_BASE_URL/metrics" >"$work/metrics"
steps=$(sed -n 's/^tinker_optim_steps_total //p' "$work/metrics")
[ "$steps" = $((3 * rounds)) ]
tap "every step was counted once" $? "$work/metrics"
serve_stop
tap "the server stops cleanly" $? "$work/serve.log"
! grep -qE 'ThreadSanitizer|AddressSanitizer|runtime error' "$work/serve.log" "$work/err"
tap "no sanitizer complained" $? "$work/serve.log"
tap_plan
