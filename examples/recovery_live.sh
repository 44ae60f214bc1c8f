#!/bin/sh
# recovery_live.sh - kill a server in the middle of training, start it again, see the run go on.
#
#     examples/recovery_live.sh
#
# A server of its own, told not to save what it was not asked to save: after `kill -9` the model
# is lost and the service says that the run is corrupted.  recovery_live.c goes on from its last
# checkpoint.  (By default `tinker serve` saves every step and nothing is lost.)
# BUILD_DIR names the build, MODEL_DIR the model.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
bin=${BUILD_DIR:-$root/build/release}
model=${MODEL_DIR:-$root/models/tiny}
dir=$(mktemp -d "${TMPDIR:-/tmp}/tinker-recovery.XXXXXX") || exit 1
server=
trap '[ -z "$server" ] || kill -9 "$server" 2>/dev/null; rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM

start() { # start PORT: sets server and url
    : >"$dir/serve.log"
    "$bin/tinker" serve --model "tinker/tiny=$model" --listen "127.0.0.1:$1" --data-dir "$dir/data" --no-autosave --default-lora-seed 1 \
        >"$dir/serve.log" 2>&1 &
    server=$!
    tries=0
    until url=$(sed -nE 's|.*(http://127\.0\.0\.1:[0-9]+).*|\1|p' "$dir/serve.log" | head -n 1) && [ -n "$url" ]; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] && kill -0 "$server" || { cat "$dir/serve.log" >&2; exit 1; }
        sleep 0.05
    done
}

start 0
: >"$dir/out"
TINKER_BASE_URL=$url TINKER_API_KEY=tml-local "$bin/examples/recovery_live" >>"$dir/out" 2>"$dir/err" &
program=$!
tries=0
until grep -q '^step 3 ' "$dir/out"; do # after the save of step 2
    tries=$((tries + 1))
    [ $tries -lt 600 ] && kill -0 $program || { cat "$dir/err" >&2; exit 1; }
    sleep 0.05
done
kill -9 "$server"
wait "$server" 2>/dev/null
echo "(the server is gone)" >>"$dir/out"
start "${url##*:}"
wait $program
status=$?
cat "$dir/out"
[ $status -eq 0 ] || cat "$dir/err" >&2
exit $status
