#!/bin/sh
# crash.sh - kill -9 the server at random instants during a training run: the run must not
# notice anything but the delay.  CRASH_KILLS (default 10), CRASH_STEPS (default 60).
here=$(dirname "$0")
. "$here/../support/serve.sh"
kills=${CRASH_KILLS:-10}
steps=${CRASH_STEPS:-60}
tiny_model
compile "$here/crash.c" "$work/crash"
tap "the training program compiles" $? "$work/cc.log"

serve_start --model "tinker/tiny=$model"
"$work/crash" "$steps" >"$work/calm.out" 2>"$work/calm.err"
tap "an undisturbed run" $? "$work/calm.err"
serve_stop
tap "the server stops cleanly" $?

rm -rf "$work/data"
serve_start --model "tinker/tiny=$model"
serve_port=${TINKER_BASE_URL##*:}
: >"$work/storm.out" # there before it is looked at
"$work/crash" "$steps" >"$work/storm.out" 2>"$work/storm.err" &
run=$!
killed=0
# The kills are spread over the steps, so a fast machine sees as many as a slow one; the instant
# within a step is random.
while [ $killed -lt "$kills" ] && kill -0 $run 2>/dev/null; do
    # A server that was never reached is not waited for, so the first kill comes after the first answer.
    while { [ "$(grep -c '^step ' "$work/storm.out")" -lt $((killed * steps / (kills + 1))) ] ||
        { [ $killed -eq 0 ] && ! grep -q create_session "$work/serve.log"; }; } && kill -0 $run 2>/dev/null; do
        sleep 0.005
    done
    sleep "0.$(awk -v seed="$$$killed" 'BEGIN {srand(seed); printf "%03d", rand() * 40}')"
    kill -0 $run 2>/dev/null || break
    kill -9 "$server"
    wait "$server" 2>/dev/null
    killed=$((killed + 1))
    serve_start --model "tinker/tiny=$model" || break
done
wait $run
tap "a run with $killed kills ends" $? "$work/storm.err"
[ $killed -ge 3 ]
tap "the server was killed meanwhile" $?
cmp "$work/calm.out" "$work/storm.out" >"$work/cmp.log" 2>&1
tap "every loss, step and sample is the same bit for bit" $? "$work/cmp.log"

want=$((steps / 5 * 2))
have=$(curl -s -H 'X-API-Key: tml-local' "$TINKER_BASE_URL/api/v1/checkpoints?limit=1" |
    sed -nE 's/.*"total_count":([0-9]+).*/\1/p')
[ "$have" = "$want" ]
tap "all $want acknowledged checkpoints are listed" $?
serve_stop
tap "the server stops cleanly after the storm" $?
dirs=$(ls "$work/data/checkpoints" | wc -l)
[ "$dirs" -le $((want + 1)) ]
tap "no half-written weights are left" $?
tap_plan
