#!/bin/sh
# tutorial.sh [--update] - the commands of docs/tutorial.md, in its order; what they print is what the page shows, and
# each kind of training does what the page says it does.  --update writes the outputs into the page.
. "$(dirname "$0")/../support/serve.sh"
command -v python3 >/dev/null || { tap "tutorial # SKIP there is no python3 to read the page" 0; tap_plan; }
[ -z "$sanitize$VALGRIND" ] || { tap "tutorial # SKIP it trains for minutes under a sanitizer or valgrind" 0; tap_plan; }
export root work BUILD_DIR
HOME=$work/home
TINKER_TELEMETRY=0
PATH=$work/bin:$PATH
export HOME TINKER_TELEMETRY PATH
unset TINKER_BASE_URL TINKER_API_KEY XDG_DATA_HOME XDG_CONFIG_HOME
mkdir -p home "$work/bin" "$work/home" "$work/here"
ln -s "$BUILD_DIR/tinker" "$work/bin/tinker"
cat >"$work/service.sh" <<'END'
start_service() { # start_service MODEL: a service that has it, at another address than this machine's own
    tinker serve --listen 127.0.0.1:0 --data-dir "$work/service" --model "$1=$root/models/tiny" >"$work/serve.log" 2>&1 &
    echo $! >"$work/service.pid"
    . "$root/tools/serve-url.sh"
    serve_url "$work/serve.log" $!
    export TINKER_BASE_URL=$url
}
start_hub() { # start_hub: a Hub that has every model; all are the bundled one
    python3 "$root/tests/support/model_hub.py" "$root/models/tiny" >"$work/hub.port" 2>"$work/hub.log" &
    echo $! >>"$work/service.pid"
    while [ ! -s "$work/hub.port" ]; do sleep 0.1; done
    export HF_ENDPOINT=http://127.0.0.1:$(cat "$work/hub.port")
}
END
cd "$work/here" || exit 1
"$root/tools/run-page" $1 --before ". $work/service.sh" "$root/docs/tutorial.md" >"$work/page.log"
status=$?
[ ! -s "$work/service.pid" ] || kill $(cat "$work/service.pid")
cat "$work/page.log"
tap_n=$(grep -cE '^(not )?ok ' "$work/page.log")
tap_bad=$((status != 0))

value() { # value RUN KEY LINE: a number of the metrics of the run; LINE: first or last
    { [ "$3" = first ] && head -n 1 tinker-runs/*-"$1"/metrics.jsonl || tail -n 1 tinker-runs/*-"$1"/metrics.jsonl; } |
        sed "s|.*\"$2\": \([-0-9.e]*\).*|\1|"
}
less() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a < b) }'; } # less A B: is A below B?
less "$(value sft-waiter train_mean_nll last)" 0.5
tap "the waiter learns his lines: $(value sft-waiter train_mean_nll first) to $(value sft-waiter train_mean_nll last)" $?
less "$(value rl-prompt-waiter env/all/reward/total first)" 0.8 && less 0.8 "$(value rl-prompt-waiter env/all/reward/total last)"
tap "a reward makes him prompt: $(value rl-prompt-waiter env/all/reward/total first) to $(value rl-prompt-waiter env/all/reward/total last)" $?
less "$(value dpo-pairs dpo_loss last)" 0.5
tap "pairs do, too: loss $(value dpo-pairs dpo_loss first) to $(value dpo-pairs dpo_loss last)" $?
[ "$(wc -l <before.txt)" -eq 10 ] && [ "$(wc -l <after.txt)" -eq 10 ] && ! cmp -s before.txt after.txt
tap "ten turns are others after the quickstart" $?
tap_plan
