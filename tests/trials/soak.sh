#!/bin/sh
# soak.sh - many users for SOAK_SECONDS (default 20): nothing fails, and in long runs (10 minutes or more) the
# memory of the server and of the client is level in the second half.  SOAK_RATE: samples a second (default: as many
# as the machine can do); SOAK_MEMORY: the server's limit.
here=$(dirname "$0")
. "$here/../support/serve.sh"
seconds=${SOAK_SECONDS:-20}
tiny_model
compile "$here/soak.c" "$work/soak" -D_GNU_SOURCE
tap "the program compiles" $? "$work/cc.log"
# a limit, so that the level does not depend on how many prompts a minute this machine computes
serve_start --model "tinker/tiny=$model" --session-timeout 30 --memory "${SOAK_MEMORY:-512M}"
"$work/soak" "$seconds" "${SOAK_RATE:-0}" >"$work/out" 2>"$work/err" &
client=$!
resident() { sed -nE 's/^VmRSS:[[:space:]]*([0-9]+) kB/\1/p' "/proc/$1/status" 2>/dev/null; }
: >"$work/memory"
every=$((seconds / 20 > 0 ? seconds / 20 : 1))
while sleep "$every" && kill -0 $client 2>/dev/null; do
    echo "$(resident "$server") $(resident $client)" >>"$work/memory"
done
wait $client
tap "nothing fails in $seconds s" $? "$work/err"
sed 's/^/# /' "$work/out"
echo "# resident memory in MB, server and client, every $every s:"
awk 'NF == 2 {printf "# %7.1f %7.1f\n", $1 / 1024, $2 / 1024}' "$work/memory"
# the highest of the second and of the last quarter, in kB
quarter() { awk -v k="$1" -v from="$2" -v to="$3" 'NF == 2 {v[++n] = $k} END {for (i = int(n * from) + 1; i <= int(n * to); i++) if (v[i] > m) m = v[i]; print m + 0}' "$work/memory"; }
if [ "$seconds" -ge 600 ]; then
    for who in 1 2; do
        early=$(quarter $who 0.25 0.5)
        late=$(quarter $who 0.75 1)
        [ "$late" -le $((early + early / 20 + 4096)) ]
        tap "the memory of the $([ $who = 1 ] && echo server || echo client) is level: $((early / 1024)) MB, then $((late / 1024)) MB" $? "$work/memory"
    done
fi
serve_stop
tap "the server stops cleanly" $? "$work/serve.log"
echo "# trial: load=\"$(cat "$work/out")\" faults=- bad=- lost=0"
tap_plan
