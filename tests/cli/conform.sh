#!/bin/sh
# conform.sh - `tinker conform`: our server has every point; one that breaks a rule loses the points of
# that rule and no others; every check is explained; nothing stays behind.
. "$(dirname "$0")/../support/serve.sh"
tinker="$VALGRIND $BUILD_DIR/tinker"
cd "$work" || exit 1

failed() { # failed FILE: the checks that failed, on one line
    python3 -c 'import json, sys; print(*[c["check"] for c in json.load(open(sys.argv[1]))["checks"] if c["result"] != "ok"])' "$1"
}

$tinker conform --list --format tsv >checks 2>err </dev/null
tap "the checks are listed without a server" $? err
cut -f 1 checks | grep '\.' | while read -r check; do
    grep -q "^| \`$check\` " "$root/docs/conform.md" || echo "$check"
done >missing
[ "$(grep -c '\.' checks)" -ge 60 ] && ! grep -q . missing
tap "docs/conform.md explains every check" $? missing
grep -oE '^\| `[a-z_.]+` ' "$root/docs/conform.md" | tr -d '|` ' | grep '\.' | while read -r check; do
    cut -f 1 checks | grep -qx "$check" || echo "$check"
done >unknown
! grep -q . unknown
tap "and none that does not exist" $? unknown

serve_start --model tinker/tiny="$root/models/tiny" || exit 1
expect 0 $tinker conform --json && [ "$(failed out)" = '' ] &&
    python3 -c 'import json; d = json.load(open("out")); assert d["score"] == 100 and d["passed"] == d["total"] >= 60 and d["model"] == "tinker/tiny"'
tap "our server has every point" $? out
grep -q 'training runs of rank 4' err
tap "the cost is said before" $? err
expect 0 $tinker checkpoint list --json && [ "$(python3 -c 'import json; print(len(json.load(open("out"))["checkpoints"]))')" = 0 ]
tap "no checkpoint is left" $? out
expect 0 $tinker conform "$TINKER_BASE_URL" && grep -q 'Score: 100.0 %' out
tap "the table says so, too" $? out

break_rule() { # break_rule RULE: a proxy that does, in $proxy and $port
    rm -f port
    python3 "$root/tests/support/breaking_proxy.py" "$TINKER_BASE_URL" "$1" >port 2>proxy.log &
    proxy=$!
    for _ in $(seq 200); do
        [ -s port ] && break
        sleep 0.05
    done
    port=$(cat port)
}
while read -r rule lost; do
    break_rule "$rule"
    expect 1 $tinker conform "http://127.0.0.1:$port" --json && [ "$(failed out)" = "$lost" ]
    good=$?
    kill $proxy
    { failed out; cat proxy.log; } >what 2>&1
    tap "$rule loses $lost" $good what
done <<RULES
not_ok service.health
no_dynamic_config service.dynamic_config
no_reason errors.detail
no_length errors.length
server_fault errors.unknown_future
bare_metric training.metrics
step_of_0 training.step training.pipeline training.gap
swap training.gap
broken_protobuf training.protobuf
no_seed sampling.seed
no_stop sampling.stop
one_sample sampling.count
new_sample sampling.sample_again
no_sequence_ids sampling.sequence_ids
first_prompt_logprob sampling.prompt_logprobs
no_done chat.stream
no_limit rest.runs
no_ttl rest.ttl
RULES
break_rule not_ok
expect 0 $tinker conform "http://127.0.0.1:$port" --min-score 95
tap "--min-score 95 is content with one point less" $? err
kill $proxy
expect 2 $tinker conform --min-score 101
tap "--min-score 101 makes no sense" $? err
expect 7 $tinker conform http://127.0.0.1:1 --retries 0
tap "a server that is not there is no score" $? err
expect 2 $tinker conform http://203.0.113.1:1 && grep -q 'Pass --yes' err
tap "a server elsewhere is asked about first" $? err
tap_plan
