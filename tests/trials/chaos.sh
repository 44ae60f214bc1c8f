#!/bin/sh
# chaos.sh - a training run through a proxy that cuts 30 % of the responses, to a server that is killed
# again and again and has few descriptors, ends as an undisturbed one: the same numbers and weights bit for bit, nothing twice.
# TRIAL_ROUNDS (default 2), TRIAL_STEPS (default 8), TRIAL_SEED (default 1).
# TRIAL_SDK: a Python with the official SDK; it takes the same trial beside ours.
here=$(dirname "$0")
. "$here/../support/serve.sh"
e2e=$here/../e2e
steps=${TRIAL_STEPS:-8}
tiny_model
compile "$e2e/cut.c" "$work/train"
tap "the training program compiles" $? "$work/cc.log"
gcc -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -o "$work/proxy" "$e2e/cut_proxy.c" -pthread >"$work/cc.log" 2>&1
tap "the proxy compiles" $? "$work/cc.log"
proxy=
trap '[ -z "$proxy" ] || kill $proxy 2>/dev/null; serve_cleanup' EXIT

client() { # client KIND NAME: the run, its numbers in NAME.out
    case $1 in
    ours) "$work/train" "$steps" "$work/$2.tar" >"$work/$2.out" 2>"$work/$2.err" ;;
    sdk) "$TRIAL_SDK" "$here/chaos_sdk.py" "$steps" "$work/$2.tar" >"$work/$2.out" 2>"$work/$2.err" ;;
    esac
}

weights() { # weights NAME: what the archive holds, as a checksum
    mkdir -p "$work/$1.dir" && tar -xf "$work/$1.tar" -C "$work/$1.dir" && cksum <"$work/$1.dir/adapter_model.safetensors"
}

total_kills=0
total_cuts=0
disturbed() { # disturbed KIND NAME SEED: the same through the proxy, with kills
    rm -rf "$work/data"
    serve_port=
    serve_start --model "tinker/tiny=$model"
    serve_port=${TINKER_BASE_URL##*:}
    rm -f "$work/proxy.out"
    "$work/proxy" "$serve_port" 30 "$3" >"$work/proxy.out" &
    proxy=$!
    while [ ! -s "$work/proxy.out" ] && kill -0 $proxy; do sleep 0.05; done
    address=http://127.0.0.1:$(head -n 1 "$work/proxy.out")
    TINKER_BASE_URL=$address client "$1" "$2" &
    run=$!
    kills=0
    while kill -0 $run 2>/dev/null && [ $kills -lt 6 ]; do
        sleep "$(awk -v seed="$3$kills" 'BEGIN {srand(seed); printf "%.3f", 0.2 + rand() * 1.2}')"
        kill -0 $run 2>/dev/null || break
        kill -9 "$server"
        wait "$server" 2>/dev/null
        kills=$((kills + 1))
        VALGRIND='prlimit --nofile=128' serve_start --model "tinker/tiny=$model" || break
    done
    wait $run
    status=$?
    kill $proxy
    wait $proxy
    proxy=
    cuts=$(sed -nE '2s/.* ([0-9]+) cut$/\1/p' "$work/proxy.out")
    total_kills=$((total_kills + kills))
    total_cuts=$((total_cuts + ${cuts:-0}))
    [ $status -eq 0 ]
    tap "$1, seed $3: a run with $kills kills and ${cuts:-0} cuts ends" $? "$work/$2.err"
}

for kind in ours ${TRIAL_SDK:+sdk}; do
    rm -rf "$work/data"
    serve_port=
    serve_start --model "tinker/tiny=$model"
    client $kind "$kind-calm"
    tap "$kind: an undisturbed run" $? "$work/$kind-calm.err"
    serve_stop
    tap "the server stops cleanly" $?
    round=0
    while [ $round -lt "${TRIAL_ROUNDS:-2}" ]; do
        round=$((round + 1))
        seed=$((${TRIAL_SEED:-1} * 100 + round))
        disturbed $kind "$kind-$round" $seed
        cmp "$work/$kind-calm.out" "$work/$kind-$round.out" >"$work/cmp.log" 2>&1
        tap "$kind, seed $seed: every number is the same" $? "$work/cmp.log"
        calm=$(weights "$kind-calm")
        [ -n "$calm" ] && [ "$calm" = "$(weights "$kind-$round")" ]
        tap "$kind, seed $seed: the weights are the same bit for bit" $?
        serve_stop
        tap "the server stops cleanly afterwards" $?
    done
done
[ $total_cuts -ge 5 ] && [ $total_kills -ge 1 ]
tap "there were faults" $?
echo "# trial: load=\"$((round * steps)) steps${TRIAL_SDK:+ by each client}\" faults=\"$total_cuts cuts, $total_kills kills\" bad=- lost=0"
tap_plan
