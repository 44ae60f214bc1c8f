#!/bin/sh
# train_kill.sh - `tinker train sft` is killed at random steps and resumed: the weights at the end
# are the same, bit for bit.  KILLS says how often (default 3; `make train-kill` ten times).
. "$(dirname "$0")/../support/serve.sh"
tinker="$BUILD_DIR/tinker"
unset TINKER_BASE_URL TINKER_API_KEY
cd "$work" || exit 1
KILLS=${KILLS:-3}
i=0
while [ $i -lt 24 ]; do
    echo "{\"messages\":[{\"role\":\"user\",\"content\":\"House $i?\"},{\"role\":\"assistant\",\"content\":\"cat $((i * 7 % 10))\"}]}"
    i=$((i + 1))
done >mine.jsonl
train() { # train FOLDER [OPTION...]
    folder=$1
    shift
    "$tinker" train sft --data mine.jsonl --test-size 4 --batch-size 4 --epochs 8 --seed 1 --rank 8 --save-every 3 --lr 2e-3 -q --out "$folder" "$@"
}
lines() { cat "$1/metrics.jsonl" 2>/dev/null | wc -l; }
weights() { # weights FOLDER: digests of what was saved last
    path=$(tail -n 1 "$1/checkpoints.jsonl" | sed 's/.*"state_path": "\([^"]*\)".*/\1/')
    rm -rf fetched
    "$tinker" checkpoint download "$path" -o fetched >/dev/null 2>&1 ||
        "$tinker" checkpoint download "$(echo "$path" | sed 's|/weights/|/sampler_weights/|')" -o fetched >download.err 2>&1
    find fetched -name '*.safetensors' -exec sha256sum {} + | cut -d ' ' -f 1 | sort
}
train whole >/dev/null 2>err; tap "a run without a break" $? err
total=$(lines whole)
# Steps to be killed at: a fixed sequence that looks random, so that a failure can be repeated.
random=20261118
k=0
status=1
while [ $k -lt "$KILLS" ]; do
    random=$(((random * 1103515245 + 12345) % 2147483648))
    have=$(lines parts)
    at=$((have + 1 + random / 65536 % ((total - have) / (KILLS - k) + 1)))
    [ $at -lt "$total" ] || at=$((total - 1))
    train parts --resume >out 2>err &
    pid=$!
    while kill -0 $pid 2>/dev/null && [ "$(lines parts)" -lt $at ]; do :; done
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null
    echo "# killed with $(lines parts) of $total steps logged"
    k=$((k + 1))
done
train parts --resume >out 2>err; tap "a run with $KILLS breaks ends" $? err
weights whole >a; weights parts >b
[ -s a ] && cmp -s a b; tap "the weights are the same, bit for bit" $? download.err
strip() { sed 's/"time[^,}]*[,}]//g' "$1/metrics.jsonl"; }
strip whole >a; strip parts >b
cmp -s a b; tap "and so are the metrics of all $total steps" $? b
tap_plan
