#!/bin/sh
# serve_control.sh - the server as a program: background, status, stop, logs, prefix, TLS, keys,
# read-only, one per directory, a signal while it works, adapters of this machine.
here=$(dirname "$0")
. "$here/../support/serve.sh"
tinker=$BUILD_DIR/tinker
tiny_model
curl_api() { # curl_api METHOD PATH [BODY]: body on stdout, status in $work/code
    curl -s -k -X "$1" -H 'X-API-Key: tml-local' -H 'Content-Type: application/json' -o "$work/body" \
        -w '%{http_code}' ${3:+-d "$3"} "$TINKER_BASE_URL$2" >"$work/code"
    cat "$work/body"
}
is() { [ "$(cat "$work/code")" = "$1" ]; }
field() { sed -nE "s/.*\"$1\":\"([^\"]*)\".*/\1/p"; }

# ---- in the background
d=$work/bg
"$tinker" serve --daemon --listen 127.0.0.1:0 --data-dir "$d" --model "tinker/tiny=$model" \
    --path-prefix /base/tinker >"$work/out" 2>"$work/err"
tap "it goes to the background" $? "$work/err"
url=$(sed -n 's/^export TINKER_BASE_URL=//p' "$work/out")
case $url in http://127.0.0.1:*/base/tinker) true ;; *) false ;; esac
tap "the announced address has the prefix" $? "$work/out"
curl -sf "$url/api/v1/healthz" >/dev/null
tap "it answers below the prefix" $?
[ "$(curl -s -o /dev/null -w '%{http_code}' "${url%/base/tinker}/api/v1/healthz")" = 404 ]
tap "and nowhere else" $?
"$tinker" serve status --data-dir "$d" >"$work/out" 2>&1
tap "status finds it" $? "$work/out"
grep -q "^URL  *$url" "$work/out" && grep -q '^Models  *0' "$work/out"
tap "status says where and what" $? "$work/out"
"$tinker" --json serve status --data-dir "$d" | grep -q "\"status\":{.*\"uptime_s\":[0-9]"
tap "status as JSON" $?
"$tinker" serve --listen 127.0.0.1:0 --data-dir "$d" --model "tinker/tiny=$model" >"$work/out" 2>&1
[ $? -eq 9 ] && grep -q 'another server is using' "$work/out"
tap "a second one on the same directory is refused" $? "$work/out"
"$tinker" serve stop --data-dir "$d" >"$work/out" 2>&1
tap "stop ends it" $? "$work/out"
"$tinker" serve status --data-dir "$d" >"$work/out" 2>&1
[ $? -eq 5 ]
tap "then there is none" $? "$work/out"
"$tinker" serve logs --data-dir "$d" | grep -q 'method=GET path=/base/tinker/api/v1/healthz status=200'
tap "logs has a line per request" $?
"$tinker" serve --daemon --listen 127.0.0.1:0 --data-dir "$d" --model "$work/nowhere" >"$work/out" 2>&1
[ $? -eq 9 ]
tap "a missing model is exit 9" $? "$work/out"

# ---- TLS and keys
openssl req -x509 -newkey rsa:2048 -nodes -keyout "$work/key.pem" -out "$work/cert.pem" -days 2 \
    -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 >"$work/openssl.log" 2>&1
tap "a certificate is made" $? "$work/openssl.log"
key=tml-secret-0123456789
"$tinker" serve --daemon --listen 127.0.0.1:0 --data-dir "$work/tls" --model "tinker/tiny=$model" \
    --tls-cert "$work/cert.pem" --tls-key "$work/key.pem" --api-key $key --log-level debug >"$work/out" 2>"$work/err"
tap "it serves HTTPS" $? "$work/err"
url=$(sed -n 's/^export TINKER_BASE_URL=//p' "$work/out")
curl -sf --cacert "$work/cert.pem" "$url/api/v1/healthz" | grep -q '"ok"'
tap "the certificate is the one given" $?
! curl -sf "$url/api/v1/healthz" >/dev/null 2>&1
tap "and not trusted without it" $?
! curl -sf "http${url#https}/api/v1/healthz" >/dev/null 2>&1
tap "clear text is not served there" $?
code=$(curl -s -o /dev/null -w '%{http_code}' --cacert "$work/cert.pem" "$url/api/v1/sessions")
ok=$(curl -s -o /dev/null -w '%{http_code}' --cacert "$work/cert.pem" -H "X-API-Key: $key" "$url/api/v1/sessions")
[ "$code $ok" = "401 200" ]
tap "a key is needed, and enough" $?
"$tinker" serve stop --data-dir "$work/tls" >/dev/null 2>&1
tap "it stops" $?
! "$tinker" serve logs --data-dir "$work/tls" | grep -q "$key"
tap "the key is not in the log" $?

# ---- a signal while it works, and adapters of this machine
serve_start --model "tinker/tiny=$model" --allow-local-paths
session=$(curl_api POST /api/v1/create_session '{"tags":[],"user_metadata":{},"sdk_version":"0.25.0"}' | field session_id)
lora='"base_model":"tinker/tiny","lora_config":{"rank":4,"seed":1,"train_unembed":false}'
id=$(curl_api POST /api/v1/create_model "{\"session_id\":\"$session\",\"model_seq_id\":0,$lora}" | field request_id)
curl_api POST /api/v1/retrieve_future "{\"request_id\":\"$id\"}" >/dev/null
a=$session:train:0
datum='{"model_input":{"chunks":[{"tokens":[1,2,3,4]}]},"loss_fn_inputs":{"target_tokens":{"data":[2,3,4,5],"dtype":"int64"}}}'
pass="\"forward_backward_input\":{\"data\":[$datum],\"loss_fn\":\"cross_entropy\"}"
curl_api POST /api/v1/forward_backward "{\"model_id\":\"$a\",\"seq_id\":1,$pass}" >/dev/null
curl_api POST /api/v1/optim_step "{\"model_id\":\"$a\",\"seq_id\":2,\"adam_params\":{\"learning_rate\":0.05}}" >/dev/null
curl_api POST /api/v1/save_weights "{\"model_id\":\"$a\",\"seq_id\":3,\"path\":\"one\"}" >/dev/null
curl_api POST /api/v1/forward "{\"model_id\":\"$a\",\"seq_id\":4,\"forward_input\":{\"data\":[$datum],\"loss_fn\":\"cross_entropy\"}}" >/dev/null
want=$(curl_api POST /api/v1/retrieve_future "{\"request_id\":\"$a:4\"}" | sed -nE 's/.*"loss:sum":([-0-9.e]+).*/\1/p')
curl -sL -H 'X-API-Key: tml-local' -o "$work/one.tar" "$TINKER_BASE_URL/api/v1/training_runs/$a/checkpoints/weights/one/archive"
mkdir "$work/peft" && tar -xf "$work/one.tar" -C "$work/peft" && [ -f "$work/peft/checkpoint_complete" ]
tap "the archive unpacks to a PEFT adapter" $?
rm -f "$work/peft/optimizer.safetensors" "$work/peft/trainer_state.json" "$work/peft/checkpoint_complete"
id=$(curl_api POST /api/v1/create_model "{\"session_id\":\"$session\",\"model_seq_id\":1,$lora}" | field request_id)
curl_api POST /api/v1/retrieve_future "{\"request_id\":\"$id\"}" >/dev/null
b=$session:train:1
curl_api POST /api/v1/load_weights "{\"model_id\":\"$b\",\"seq_id\":1,\"path\":\"file://$work/peft\",\"optimizer\":false}" >/dev/null
curl_api POST /api/v1/retrieve_future "{\"request_id\":\"$b:1\"}" | grep -q "\"path\":\"file://$work/peft\""
tap "a PEFT adapter of this machine is loaded" $? "$work/body"
curl_api POST /api/v1/forward "{\"model_id\":\"$b\",\"seq_id\":2,\"forward_input\":{\"data\":[$datum],\"loss_fn\":\"cross_entropy\"}}" >/dev/null
have=$(curl_api POST /api/v1/retrieve_future "{\"request_id\":\"$b:2\"}" | sed -nE 's/.*"loss:sum":([-0-9.e]+).*/\1/p')
[ -n "$want" ] && [ "$want" = "$have" ]
tap "it computes the same loss" $? "$work/body"
curl_api POST /api/v1/load_weights "{\"session_id\":\"$session\",\"model_seq_id\":2,\"path\":\"file:///etc\",\"optimizer\":false}" >/dev/null
is 400
tap "a new model is not made from a directory" $?
# Enough work for minutes, and polls that wait for it.
datums=$(awk -v d="$datum" 'BEGIN { for (i = 0; i < 400; i++) printf "%s%s", i ? "," : "", d }')
for n in 5 6 7 8; do
    printf '{"model_id":"%s","seq_id":%d,"forward_backward_input":{"data":[%s],"loss_fn":"cross_entropy"}}' "$a" $n "$datums" >"$work/big.json"
    curl -s -H 'X-API-Key: tml-local' -d "@$work/big.json" "$TINKER_BASE_URL/api/v1/forward_backward" >/dev/null
done
curl -s -m 30 -o /dev/null -H 'X-API-Key: tml-local' -d "{\"request_id\":\"$a:8\"}" "$TINKER_BASE_URL/api/v1/retrieve_future" &
poll=$!
sleep 0.3
began=$(date +%s)
serve_stop
tap "SIGTERM while it works ends it with 0" $? "$work/serve.log"
[ $(($(date +%s) - began)) -le 10 ]
tap "within ten seconds" $?
wait $poll
tap "the poll that waited got an answer" $?
serve_start --model "tinker/tiny=$model" --read-only --no-advertise-tokenizer
curl_api GET "/api/v1/training_runs/$a" | grep -q "\"training_run_id\":\"$a\""
tap "a read-only server lists" $? "$work/body"
curl_api POST /api/v1/get_info "{\"model_id\":\"$a\"}" | grep -q '"tokenizer_id":null' || ! grep -q "$model" "$work/body"
tap "and keeps its directories to itself when told so" $? "$work/body"
curl_api DELETE "/api/v1/training_runs/$a/checkpoints/weights/one" >/dev/null
is 403
tap "but changes nothing" $?
serve_stop
tap "it stops" $?
# A signal at the moment at which it is ready: one thread had received it and was canceled with it.
port=${TINKER_BASE_URL##*:}
lost=0
n=0
rounds=250
[ -z "$sanitize$VALGRIND" ] || rounds=25
while [ $n -lt $rounds ] && [ $lost -eq 0 ]; do
    n=$((n + 1))
    "$tinker" serve --listen "127.0.0.1:$port" --data-dir "$work/early" --model "tinker/tiny=$model" >"$work/serve.log" 2>&1 &
    server=$!
    until curl -s -o /dev/null "http://127.0.0.1:$port/api/v1/healthz" || ! kill -0 $server 2>/dev/null; do :; done
    kill -TERM $server
    (sleep 30; kill -KILL $server) 2>/dev/null &
    watchdog=$!
    wait $server
    [ $? -ne 137 ] || lost=1
    kill $watchdog 2>/dev/null
done
server=
[ $lost -eq 0 ]
tap "a signal while it gets ready is not lost" $? "$work/serve.log"
tap_plan
