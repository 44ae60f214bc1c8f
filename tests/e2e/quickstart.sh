#!/bin/sh
# quickstart.sh - what the quickstart trained is there afterwards, for `tinker chat`: in the data
# directory of the user, made by a server of its own or by the one that runs.
. "$(dirname "$0")/../support/serve.sh"
tinker="$VALGRIND $BUILD_DIR/tinker"
cd "$work" || exit 1
HOME=$work/home
QUICKSTART_STEPS=2 # too few for the skill, enough for weights: it says "failed"
TINKER_TELEMETRY=0
unset TINKER_BASE_URL TINKER_API_KEY XDG_DATA_HOME
export HOME BUILD_DIR QUICKSTART_STEPS TINKER_TELEMETRY
mkdir home

expect 1 "$root/tools/quickstart" && grep -q '^quickstart: failed accuracy_before=0.* world_after=[01].* steps=2 ' out
tap "a run that is too short fails and says so" $? err
kept=$(sed -n 's/^weights  *//p' out)
expect 0 $tinker checkpoint list && grep -qF "${kept##*/}" out
tap "its weights are kept" $? out
expect 5 $tinker serve status
tap "its server has stopped" $? err
printf 'Hello\n' | $tinker -q chat -p last --temperature 0 --max-tokens 8 >one 2>err
[ $? -eq 0 ] && [ "$(wc -l <one)" -eq 1 ]
tap "chat finds them" $? err
printf 'Hello\n' | $tinker -q chat -p "$kept" --temperature 0 --max-tokens 8 >two 2>err && cmp -s one two
tap "they are the last" $? err

expect 0 $tinker serve --daemon --listen 127.0.0.1:0
tap "a server of the user" $? err
expect 1 "$root/tools/quickstart" && grep -q '^weights  *tinker://' out && ! grep -qF "$kept" out
tap "is used when it runs" $? err
expect 0 $tinker serve stop
tap "and goes on until it is stopped" $? err
tap_plan
