#!/bin/sh
# history.sh - the metrics of a run: what the program printed is what the server keeps, what
# `tinker run` shows and draws, and what is there after a restart.
here=$(dirname "$0")
. "$here/../support/serve.sh"
tinker="$VALGRIND $BUILD_DIR/tinker"
LC_ALL=C.UTF-8
export LC_ALL
tiny_model
serve_start --model "tinker/tiny=$model"
tap "the server accepts requests" $?
cd "$work" || exit 1
compile "$root/tests/e2e/history.c" "$work/history"
tap "the program compiles" $? "$work/cc.log"
$VALGRIND ./history tinker/tiny 40 >printed 2>err
tap "a run trains and logs" $? err
run=$(head -n 1 printed)

# The losses of the server's CSV beside those of the program.
compare_losses() {
    expect 0 $tinker run metrics "$1" -n loss --format csv || return 1
    tr -d '\r' <out | sed 1d | tr , ' ' >kept
    sed 1d printed | paste -d ' ' - kept | awk '
        { d = $2 - $4; if ($1 != $3 || d > 1e-9 || d < -1e-9) { print; bad = 1 } } END { exit bad || NR != 40 }'
}
compare_losses "$run"; tap "every loss is the program's" $? kept
compare_losses last; tap "the newest run is \"last\"" $? kept
compare_losses "a named run"; tap "a run is found by its name" $? err

expect 0 $tinker run metrics last && grep -q 'a named run: .*, step 40' out && grep -q 'learning_rate:mean.*0.0003' out &&
    grep -q 'reward.*0.75' out && ! grep -q broken out
tap "the summary has all metrics, the logged ones too" $? out
expect 0 $tinker run metrics last --json -n reward && [ "$(tr -d ' \n' <out | sed 's/.*"metrics"/"metrics"/')" = '"metrics":{"reward":{"steps":[40],"values":[0.75]}}}' ]
tap "JSON" $? out
expect 0 $tinker run metrics last -n loss --from 11 --to 20 --format csv && [ "$(wc -l <out)" -eq 11 ]
tap "a part of the steps" $? out
expect 0 $tinker run metrics last -n loss --max-points 10 --json && grep -q '"counts"' out; tap "fewer points" $? out
expect 0 $tinker run plot last && grep -q '^ *loss' out && [ "$(wc -l <out)" -gt 10 ]; tap "a plot in the terminal" $? out
expect 0 $tinker run plot last -n loss,reward -o run.svg && grep -q '<svg' run.svg && grep -q reward run.svg
tap "a plot as a picture" $? err
expect 5 $tinker run plot last -n nothing && grep -q 'has no metric nothing' err; tap "a metric that is not there" $? err
expect 5 $tinker run metrics nobody && grep -q 'No run nobody' err; tap "a run that is not there" $? err
expect 2 $tinker run watch last --every 0; tap "looks that never end are refused" $? err
expect 9 $tinker run plot last -o /nowhere/x.svg; tap "a file that cannot be written" $? err
# The program has gone; once its session ends, a watcher does, too.
curl -sf -X POST "$TINKER_BASE_URL/api/v1/sessions/${run%%:*}/finish" -o out
timeout 60 $tinker run watch last >out 2>err
tap "watching ends with the run" $? err
grep -q '^a named run: .*step 40/40, loss' out; tap "and has told where it was" $? out
curl -s "$TINKER_BASE_URL/api/v1/training_runs/$run/texts" | grep -q '"step":40,.*"label":"greedy","prompt":"Once","text":" upon a time"'
tap "the text is at the last step" $? out

# After a restart; plain HTTP is enough to add to it.
serve_stop; tap "the server stops cleanly" $? serve.log
serve_start --model "tinker/tiny=$model"; tap "and starts again" $? serve.log
compare_losses "$run"; tap "every loss is still there" $? kept
curl -sf -X POST "$TINKER_BASE_URL/api/v1/training_runs/$run/metrics" -H 'Content-Type: application/json' \
    -d '{"step": 41, "metrics": {"reward": 1}}' -o out
tap "plain HTTP adds a metric" $? out
expect 0 $tinker run metrics last -n reward --format csv && [ "$(tr -d '\r' <out | tail -n 1)" = "41,1" ]
tap "and it is there" $? out

# --open: a browser that says what it was given.
serve_stop
printf '#!/bin/sh\necho "$1" >%s/opened\n' "$work" >browser && chmod +x browser
BROWSER=$work/browser serve_start --model "tinker/tiny=$model" --path-prefix /lab --open
for _ in 1 2 3 4 5 6 7 8 9 10; do [ -s opened ] && break; sleep 0.2; done
[ "$(cat opened)" = "${TINKER_BASE_URL%/lab}/lab/" ]; tap "--open shows the page" $? opened
curl -sf -H 'Accept: text/html' "$(cat opened)" | grep -q 'page/app.js'; tap "which is there" $? opened
serve_stop
tap_plan
