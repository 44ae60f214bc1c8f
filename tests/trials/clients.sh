#!/bin/sh
# clients.sh - programs that fork, exit without freeing, free with requests in flight, use 32 threads, or get a signal
# every 2 ms: all end as they should, and the server serves the next one.  TRIAL_ROUNDS (default 1).
here=$(dirname "$0")
. "$here/../support/serve.sh"
tiny_model
compile "$here/clients.c" "$work/clients" -D_GNU_SOURCE
tap "the program compiles" $? "$work/cc.log"
serve_start --model "tinker/tiny=$model"
round=0
while [ $round -lt "${TRIAL_ROUNDS:-1}" ]; do
    round=$((round + 1))
    for how in fork exit free threads signals; do
        # leaving without freeing is what "exit" is about
        ASAN_OPTIONS=$([ $how = exit ] || [ $how = fork ] && echo detect_leaks=0) timeout -k 5 240 "$work/clients" $how >"$work/out" 2>&1
        tap "round $round: $how" $? "$work/out"
    done
done
serve_stop
tap "the server stops cleanly" $? "$work/serve.log"
echo "# trial: load=\"$((round * 5)) ill-behaved programs\" faults=\"fork, exit, free, 32 threads, signals\" bad=- lost=0"
tap_plan
