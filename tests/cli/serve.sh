#!/bin/sh
# serve.sh - `tinker serve` as its user meets it: numbers that make no sense, keys that no client sends,
# other addresses than the usual one, a start that fails in the background.
. "$(dirname "$0")/../support/serve.sh"
tinker="$VALGRIND $BUILD_DIR/tinker"
tiny_model
cd "$work" || exit 1
serve="$tinker serve --model tinker/tiny=$model"

for option in '--max-batch 0' '--max-batch -3' '--max-queued-samples 0' '--max-rank 0' '--threads 5000000000' '--context -1' '--max-body 0' \
    '--session-timeout 0' '--session-timeout 100000w' '--result-ttl 9e17' '--seq-gap-timeout 9e17' '--default-lora-seed -5'; do
    $serve --data-dir none $option >out 2>&1
    [ $? -eq 2 ] && grep -q -e "${option% *} takes a number from" out && [ ! -d none ]
    tap "$option is refused" $? out
done
$serve --data-dir none --memory 0 >out 2>&1
[ $? -eq 2 ]
tap "so is --memory 0" $? out
$serve --data-dir none --model nowhere --max-rank 0 >out 2>&1
[ $? -eq 2 ]
tap "and before any model is looked for" $? out

$serve --daemon --data-dir d --listen 127.0.0.1:0 --api-key secret-1 --api-key tml-secret-2 >out 2>err
tap "a key that no client sends is a warning" $? err
grep -q '^warning: key 1 does not start with tml-' err && ! grep -q 'key 2\|secret' err
tap "which does not show it" $? err
pid=$(sed -n 's/.*"pid":\([0-9]*\).*/\1/p' d/server.json)
if [ -z "$VALGRIND" ] && [ -r "/proc/$pid/cmdline" ]; then
    ! tr '\0' ' ' <"/proc/$pid/cmdline" | grep -q secret
    tap "nor does the process list" $?
fi
TINKER_API_KEY=tml-secret-2 $tinker serve status --data-dir d >out 2>err && grep -q '^Uptime' out
tap "status with the other one" $? err
$serve --daemon --data-dir e --listen "127.0.0.1:$(sed -n 's/.*"port":\([0-9]*\).*/\1/p' d/server.json)" >out 2>err
[ $? -eq 9 ] && grep -q '^Error: .*127.0.0.1' err
tap "what fails in the background is told in the foreground" $? err
$tinker serve stop --data-dir d >out 2>err
tap "stop" $? err

mkdir slow
mkfifo slow/config.json # weights that take for ever to read
for how in '' --daemon; do
    timeout --preserve-status -k 20 -s TERM 1 $tinker serve --model slow --data-dir "$work/slow-data" $how >out 2>err
    [ $? -eq 143 ] # 137: it had to be killed
    tap "a signal while it starts ends it${how:+ ($how)}" $? err
done
still_there() { ps -ef 2>/dev/null | grep -q "$work/[s]low-data"; }
for _ in $(seq 100); do
    still_there || break
    sleep 0.1
done
$tinker serve status --data-dir "$work/slow-data" >out 2>err
[ $? -eq 5 ] && ! still_there
tap "and nothing goes on in the background" $? err

if $serve --daemon --data-dir six --listen '[::1]:0' >out 2>err; then
    $tinker serve status --data-dir six >out 2>err && grep -q '^URL  *http://\[::1\]:' out && grep -q '^Uptime (s)  *[0-9]' out
    tap "status of a server on ::1" $? err
    $tinker serve stop --data-dir six >out 2>&1
else
    tap "status of a server on ::1 # SKIP there is no IPv6" 0
fi
$serve --daemon --insecure --data-dir any --listen 0.0.0.0:0 >out 2>err
$tinker serve status --data-dir any >out 2>err && grep -q '^Uptime (s)  *[0-9]' out
tap "status of a server on every address" $? err
$tinker serve stop --data-dir any >out 2>&1
$serve --daemon --data-dir sock --unix "$work/s" >out 2>err
[ "$(cat out)" = "# unix:$work/s" ]
tap "the name of a socket is no address for clients" $? out
$tinker serve status --data-dir sock >out 2>err && grep -q '^Uptime (s)  *[0-9]' out
tap "status of a server on a socket" $? err
$tinker serve stop --data-dir sock >out 2>&1
tap "and stop" $? out
tap_plan
