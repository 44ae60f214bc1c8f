#!/bin/sh
# cut.sh - a training run through a proxy that cuts 30 % of the responses ends as one without it: the same
# numbers and weights bit for bit, and nothing is executed twice.  CUT_STEPS (default 4), CUT_SEED (default 3).
here=$(dirname "$0")
. "$here/../support/serve.sh"
steps=${CUT_STEPS:-4}
tiny_model
compile "$here/cut.c" "$work/train"
tap "the training program compiles" $? "$work/cc.log"
gcc -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -o "$work/proxy" "$here/cut_proxy.c" -pthread >"$work/cc.log" 2>&1
tap "the proxy compiles" $? "$work/cc.log"
proxy=
trap '[ -z "$proxy" ] || kill $proxy 2>/dev/null; serve_cleanup' EXIT

counts() { # what the server has executed: runs, checkpoints, and the saved weights
    for what in training_runs checkpoints; do
        printf '%s ' $what
        curl -s -H 'X-API-Key: tml-local' "$serve/api/v1/$what?limit=1" | sed -nE 's/.*"total_count":([0-9]+).*/\1/p'
    done
    ls "$work/data/checkpoints" | wc -l
}

run() { # run NAME: its output, weights and the server's counts in files of that name
    "$work/train" "$steps" "$work/$1.tar" >"$work/$1.out" 2>"$work/$1.err" &&
        mkdir "$work/$1" && tar -xf "$work/$1.tar" -C "$work/$1" && counts >"$work/$1.counts"
}

serve_start --model "tinker/tiny=$model"
serve=$TINKER_BASE_URL
run clean
tap "a run without cuts" $? "$work/clean.err"
serve_stop
tap "the server stops cleanly" $?

rm -rf "$work/data"
serve_start --model "tinker/tiny=$model"
serve=$TINKER_BASE_URL
"$work/proxy" "${serve##*:}" 30 "${CUT_SEED:-3}" >"$work/proxy.out" &
proxy=$!
while [ ! -s "$work/proxy.out" ] && kill -0 $proxy; do sleep 0.05; done
TINKER_BASE_URL=http://127.0.0.1:$(head -n 1 "$work/proxy.out")
run cut
tap "a run with cuts" $? "$work/cut.err"
kill $proxy
wait $proxy
proxy=
sed -n '2s/^/# /p' "$work/proxy.out"
[ "$(sed -nE '2s/.* ([0-9]+) cut$/\1/p' "$work/proxy.out")" -ge 5 ]
tap "responses were cut meanwhile" $? "$work/proxy.out"
cmp "$work/clean.out" "$work/cut.out" >"$work/cmp.log" 2>&1
tap "every loss, step, sample and stream is the same bit for bit" $? "$work/cmp.log"
diff -r "$work/clean" "$work/cut" >"$work/cmp.log" 2>&1 && ls "$work/cut"/*.safetensors >/dev/null
tap "the weights are the same bit for bit" $? "$work/cmp.log"
diff "$work/clean.counts" "$work/cut.counts" >"$work/cmp.log" 2>&1
tap "the server executed nothing twice" $? "$work/cmp.log"
serve_stop
tap "the server stops cleanly after the cuts" $?
tap_plan
