#!/bin/sh
# files.sh - `tinker checkpoint download` of external weights, and from a service without archives: the
# files arrive, complete and with their sums, and nothing else stays behind.
. "$(dirname "$0")/../support/serve.sh"
tinker="$VALGRIND $BUILD_DIR/tinker"
cd "$work" || exit 1
serve_start --model tinker/tiny="$root/models/tiny" || exit 1
real=$TINKER_BASE_URL

expect 0 $tinker checkpoint save -m tinker/tiny --rank 4 --name a --kind both && grep '/weights/a$' out >state && grep '/sampler_weights/a$' out >sampler
tap "there is something to download" $? err
state=$(cat state)
sampler=$(cat sampler)

python3 "$root/tests/support/breaking_proxy.py" "$real" no_archives >port 2>proxy.log &
proxy=$!
for _ in $(seq 200); do
    [ -s port ] && break
    sleep 0.05
done
TINKER_BASE_URL=http://127.0.0.1:$(cat port)
name=$(printf '%s' "${state#tinker://}" | tr / _)
expect 0 $tinker checkpoint download "$state" -o got --json && grep -q "\"destination\": \"got/$name\"" out &&
    [ "$(ls -A got | wc -l)" -eq 1 ] && grep -q '^Exporting tinker://' err
tap "training state is exported where there are no archives" $? err
[ -s "got/$name/adapter_config.json" ] && (cd "got/$name" && sha256sum -c SHA256SUMS) >sums 2>&1 && [ "$(grep -c ': OK$' sums)" -ge 2 ]
tap "the files are whole" $? sums
expect 0 $tinker checkpoint list --type external --ids && ! grep -q . out
tap "the export is deleted" $? out
expect 9 $tinker checkpoint download "$state" -o got && grep -q 'already exists' err
tap "what is there stays" $? err
expect 0 $tinker checkpoint download "$state" -o got --force && [ "$(ls -A got | wc -l)" -eq 1 ]
tap "unless --force says so" $? err
expect 1 $tinker checkpoint download "$sampler" -o none && grep -q 'save_weights_external' err && [ ! -e none ]
tap "sampler weights cannot be exported, which is said" $? err
expect 5 $tinker checkpoint download "${state%a}none" -o none && [ ! -e none ]
tap "a checkpoint that is not there is not exported" $? err
expect 2 $tinker checkpoint download "$state" -o none --no-extract && [ ! -e none ]
tap "files are no archive" $? err
kill $proxy
TINKER_BASE_URL=$real

# External weights of one's own, by the API.
send() { curl -s -X POST -H 'X-API-Key: tml-local' -H 'Content-Type: application/json' -d "$2" "$real/api/v1/$1"; }
text() { sed -nE "s/.*\"$1\":\"([^\"]*)\".*/\1/p"; }
session=$(send create_session '{"tags":[],"sdk_version":"0.36.0"}' | text session_id)
future=$(send create_model "{\"session_id\":\"$session\",\"model_seq_id\":0,\"base_model\":\"tinker/tiny\",\"lora_config\":{\"rank\":4}}" | text request_id)
model=$(send retrieve_future "{\"request_id\":\"$future\"}" | text model_id)
future=$(send save_weights_external "{\"model_id\":\"$model\",\"path\":\"hf\",\"seq_id\":1}" | text request_id)
send retrieve_future "{\"request_id\":\"$future\"}" >out
path=$(text path <out)
name=$(printf '%s' "${path#tinker://}" | tr / _)
expect 0 $tinker checkpoint download "$path" -o ext && [ -s "ext/$name/adapter_model.safetensors" ] && (cd "ext/$name" && sha256sum -c SHA256SUMS) >sums 2>&1 &&
    [ "$(ls -A ext | wc -l)" -eq 1 ]
tap "external weights are fetched as files" $? err

# The server resumes: the second half of a file by its range.
url=$(curl -s -H 'X-API-Key: tml-local' "$real/api/v1/training_runs/$model/checkpoints/external_weights/hf/external_weights_urls" |
    sed -nE 's/.*"adapter_model.safetensors":"([^"]*)".*/\1/p')
curl -s -D head -r 1000- "$url" >part && grep -q '^HTTP/1.1 206' head && grep -qi '^Content-Range: bytes 1000-' head &&
    tail -c +1001 "ext/$name/adapter_model.safetensors" | cmp - part
tap "a range of a file is its end" $? head
tag=$(sed -nE 's/^ETag: (.*)\r$/\1/p' head)
[ "$(curl -s -o /dev/null -w '%{http_code}' -H "If-Range: $tag" -r 1000- "$url")" = 206 ] &&
    [ "$(curl -s -o /dev/null -w '%{http_code}' -H 'If-Range: "other"' -r 1000- "$url")" = 200 ] &&
    [ "$(curl -s -o /dev/null -w '%{http_code}' -r 99999999- "$url")" = 416 ]
tap "of the same file only, and not beyond its end" $?
tap_plan
