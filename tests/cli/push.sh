#!/bin/sh
# push.sh - `tinker checkpoint push-hf` against a Hub of our own: regular and large files, parts, refusals.
. "$(dirname "$0")/../support/serve.sh"
tinker="$VALGRIND $BUILD_DIR/tinker"
cd "$work" || exit 1
HOME=$work/home
unset TINKER_BASE_URL TINKER_API_KEY HF_TOKEN HUGGING_FACE_HUB_TOKEN HF_TOKEN_PATH HF_HOME
TINKER_TELEMETRY=0 TMPDIR=$work/tmp
export HOME TINKER_TELEMETRY TMPDIR
mkdir home tmp
command -v python3 >/dev/null || { tap "push-hf # SKIP there is no python3 for the mock" 0; tap_plan; }
python3 "$root/tests/support/hub.py" log >port &
hub=$!
trap 'kill $hub 2>/dev/null; serve_cleanup' EXIT
tries=0
while [ ! -s port ] && [ $tries -lt 100 ]; do tries=$((tries + 1)); sleep 0.1; done
HF_ENDPOINT=http://127.0.0.1:$(cat port)
export HF_ENDPOINT
path=$($tinker -q checkpoint save --rank 2 --name v1 2>err)
tap "a checkpoint to push" $? err
run=$(echo "$path" | sed 's|tinker://||; s|/.*||')

expect 3 $tinker checkpoint push-hf "$path" && grep -q '^Error: Not logged in$' err; tap "no token" $? err
mkdir -p home/.cache/huggingface
echo hf_secret >home/.cache/huggingface/token
expect 0 $tinker checkpoint push-hf "$path" -r me/plain --json && grep -q '"repo_id": "me/plain"' out; tap "the token of the file is used" $? err
grep -q '^commit lfsFile adapter_model.safetensors$' log && grep -q '^commit file adapter_config.json$' log && grep -q '^commit file README.md$' log
tap "large files by their hash, small ones in the commit" $? log
! grep -q 'commit .*checkpoint_complete' log; tap "the marker stays here" $? log
grep -q '^card base_model: tinker/tiny$' log; tap "a model card" $? log
grep -q '^PUT /whole/1 [1-9][0-9]* -$' log; tap "storage does not see the token" $? log
! grep -q hf_secret out err; tap "nobody is told the token" $? err
expect 0 $tinker checkpoint push-hf "$path" -r me/parts --no-model-card --create-pr && grep -q "^parts \['\"e1\"', '\"e2\"'\]$" log && grep -q 'commit/main?create_pr=1' log
tap "in parts, as a pull request" $? log
expect 1 $tinker checkpoint push-hf "$path" -r me/other && grep -q 'appears to contain a different Tinker checkpoint' err
tap "the repository of another checkpoint is refused" $? err
expect 0 $tinker checkpoint push-hf "$path" --json && grep -q "\"repo_id\": \"me/tinker-tiny-$(echo "$run" | tr : -)\"" out && grep -q '"revision": "sampler_weights-v1"' out
tap "a name from model and run" $? out
grep -q "/branch/sampler_weights-v1" log; tap "and a branch that is made" $? log
HF_ENDPOINT=http://127.0.0.1:9 expect 7 $tinker checkpoint push-hf "$path" -r me/plain; tap "a Hub that is away" $? err
[ -z "$(ls -d "$TMPDIR"/tinker-weights.* 2>/dev/null)" ]; tap "nothing is left behind" $?
tap_plan
