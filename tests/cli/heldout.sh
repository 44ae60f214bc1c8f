#!/bin/sh
# heldout.sh - the bundled model answers the questions that its training left out, as its card says.
. "$(dirname "$0")/../support/serve.sh"
[ -z "$sanitize$VALGRIND" ] || { tap "heldout # SKIP it answers hundreds of questions" 0; tap_plan; }
tinker=$BUILD_DIR/tinker
recipe=$root/models/tiny/recipe
HOME=$work/home
TINKER_TELEMETRY=0
unset TINKER_BASE_URL TINKER_API_KEY TINKER_MODEL TINKER_PROFILE
export HOME TINKER_TELEMETRY
mkdir "$work/home"
cd "$work" || exit 1

expect 0 "$tinker" eval -m "$root/models/tiny" --data "$recipe/heldout.jsonl" --grader exact --max-tokens 60 --fail-under 0.8
tap "$(sed -n 's/^accuracy *\([0-9.]*\).*/\1/p' out err | head -n 1) of the held-out questions are answered right" $? err
grep '"kind": "outside"' "$recipe/heldout.jsonl" >outside.jsonl
expect 0 "$tinker" eval -m "$root/models/tiny" --data outside.jsonl --grader exact --max-tokens 60 --fail-under 0.9
tap "it says what it does not know" $? err
expect 4 "$tinker" eval -m "$root/models/tiny" --data "$root/examples/data/island-test.jsonl" --grader exact --max-tokens 60 --fail-under 0.1
tap "and nothing of the island, which the quickstart teaches it" $? err
tap_plan
