#!/bin/sh
# requests.sh - mutated training and sampling requests against a server, under whatever sanitizer it
# was built with: no crash, no leak, no server error.  TRIAL_REQUESTS (default 1500), TRIAL_SEED (default 1).
here=$(dirname "$0")
. "$here/../support/serve.sh"
model=$work/tiny
"$BUILD_DIR/tools/make-tiny-model" --vocab 300 --context 64 "$model" >"$work/make.log" 2>&1 # as requests.c assumes
tap "a tiny model is made" $? "$work/make.log"
compile "$here/requests.c" "$work/requests"
tap "the program compiles" $? "$work/cc.log"
serve_start --model "tinker/tiny=$model"
"$work/requests" "${TRIAL_REQUESTS:-1500}" "${TRIAL_SEED:-1}" >"$work/out" 2>"$work/err"
tap "every request ends with a result or a refusal" $? "$work/err"
sed 's/^/# /' "$work/out"
set -- $(sed -n 's/[^0-9 ]//g; s/^ *//p' "$work/out")
[ $# -eq 4 ] && [ $((2 * $2)) -ge "$1" ]
tap "at least half reach the engine" $? "$work/out"
[ $# -eq 4 ] && [ $(($3 + $4)) -gt 0 ]
tap "some are refused" $? "$work/out"
serve_stop
tap "the server stops cleanly, without a report of the sanitizer" $? "$work/serve.log"
[ $# -ne 4 ] || echo "# trial: load=\"$1 mutated requests\" faults=- bad=\"$(($3 + $4)) refused\" lost=0"
tap_plan
