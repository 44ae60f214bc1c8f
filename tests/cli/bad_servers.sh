#!/bin/sh
# bad_servers.sh - every command that talks to a service, against one that is dead, slow, lying or full: it ends
# within its --timeout with one "Error: ..." and an exit status of the list.
. "$(dirname "$0")/../support/serve.sh"
tinker="$VALGRIND $BUILD_DIR/tinker"
cd "$work" || exit 1
TINKER_TELEMETRY=0
TINKER_API_KEY=tml-test
export TINKER_TELEMETRY TINKER_API_KEY
command -v python3 >/dev/null || { tap "bad servers # SKIP there is no python3 for them" 0; tap_plan; }
echo '{"prompt":"hi"}' >in.jsonl
p=tinker://run:train:0/weights/1
s=tinker://run:train:0/sampler_weights/1
cat >commands <<END
api GET /api/v1/healthz
audit
auth status
auth whoami
bench -y -m tinker/tiny --requests 1 --warmup 0
billing checkpoint-storage
billing usage 2026-01-01 2026-01-02
chat -m tinker/tiny
checkpoint copy $p --to-project x
checkpoint delete -y $p
checkpoint download $s
checkpoint info $p
checkpoint list
checkpoint publish $p
checkpoint prune --run-id run
checkpoint save -m tinker/tiny
checkpoint set-ttl $p --ttl 5
checkpoint unpublish $p
checkpoint verify $s
cost usage 2026-01-01 2026-01-02
doctor -m tinker/tiny
logprobs -m tinker/tiny hello
model list
models
run info run
run list
sample -m tinker/tiny hello
sample -m tinker/tiny --in in.jsonl
sample -p $s hello
session export-trace session
session info session
session list
session move -y session --project x
session sampler x
weights export $s -o there
whoami
END

# All at once: each waits for its own time-out, nobody for the others.
try_all() { # try_all KIND: what ends without an error, or too late, is in `wrong`
    n=0
    : >wrong
    while read -r line; do
        n=$((n + 1))
        (
            # shellcheck disable=SC2086
            echo hello | timeout 30 $tinker --timeout 2 $line >out.$n 2>err.$n
            code=$?
            # An answer of 200 is all that these want, whatever is in it.
            case "$1 $line" in lying\ api* | lying\ checkpoint\ [dpsu]*ublish* | lying\ checkpoint\ set-ttl* | lying\ checkpoint\ delete* | lying\ session\ move*)
                [ $code -eq 0 ] && exit ;;
            esac
            case $code in
            0 | 2 | 9 | 124 | 13[0-9]) echo "$1: $line: exit status $code" >>wrong ;;
            *) [ "$(grep -c '^Error: ' err.$n)" -ge 1 ] || grep -q '^FAIL' out.$n || grep -qE '"error"|^Failed to delete' out.$n ||
                echo "$1: $line: no error, exit status $code" >>wrong ;;
            esac
        ) &
        [ $((n % 6)) -ne 0 ] || wait
    done <commands
    wait
}
TINKER_BASE_URL=http://127.0.0.1:9
export TINKER_BASE_URL
try_all dead
! grep -q . wrong; tap "a dead server" $? wrong
for kind in slow lying full; do
    python3 "$root/tests/support/bad_server.py" $kind >port.$kind &
    bad=$!
    tries=0
    while [ ! -s port.$kind ] && [ $tries -lt 100 ]; do tries=$((tries + 1)); sleep 0.1; done
    TINKER_BASE_URL=http://127.0.0.1:$(cat port.$kind)
    # wait in try_all must not wait for the server
    (try_all $kind)
    ! grep -q . wrong; tap "a $kind server" $? wrong
    kill $bad 2>/dev/null
    wait $bad 2>/dev/null
done
tap_plan
