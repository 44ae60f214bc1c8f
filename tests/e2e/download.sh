#!/bin/sh
# download.sh - models by id: the cache, --download from a hub, resume, two at once, hashes, --offline.
here=$(dirname "$0")
. "$here/../support/serve.sh"
tinker=$BUILD_DIR/tinker
hub=$work/hub
"$BUILD_DIR/tools/make-tiny-model" "$hub" >"$work/make.log" 2>&1
tap "a tiny model is made" $?
gcc -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -o "$work/hubd" "$root/tests/e2e/download.c" >"$work/cc.log" 2>&1
tap "the hub compiles" $? "$work/cc.log"
sum() { sha256sum <"$hub/$1" | cut -d' ' -f1; }
echo "model.safetensors $(sum model.safetensors)" >"$hub/.large"
name_in_git() { { printf 'blob %d\0' "$(wc -c <"$hub/$1")"; cat "$hub/$1"; } | sha1sum | cut -d' ' -f1; }
for f in "$hub"/*.json; do f=${f##*/}; echo "$f $(name_in_git "$f")"; done >"$hub/.small"
"$work/hubd" "$hub" >"$work/hub.port" 2>"$work/hub.log" &
hubd=$!
trap 'kill $hubd 2>/dev/null; serve_cleanup' EXIT
for _ in 1 2 3 4 5 6 7 8 9 10; do [ -s "$work/hub.port" ] || sleep 0.1; done
export HF_HOME="$work/hf" HF_ENDPOINT="http://127.0.0.1:$(cat "$work/hub.port")" HF_TOKEN=hf_secret0123456789
folder=$HF_HOME/hub/models--test--tiny
run() { # run NAME OPTION...: start, wait for the announcement, stop; status in $code
    name=$1; shift
    "$tinker" serve --daemon --listen 127.0.0.1:0 --data-dir "$work/data-$name" --model test/tiny "$@" >"$work/out" 2>"$work/err"
    code=$?
    cat "$work/data-$name/serve.log" >>"$work/err" 2>/dev/null
    [ $code -ne 0 ] || "$tinker" serve stop --data-dir "$work/data-$name" >"$work/stop" 2>&1
    return $code
}

run plain
[ $code -eq 9 ] && grep -q -- '--download' "$work/err" && [ ! -e "$hub/.log" ]
tap "without --download nothing is asked for, and the message names it" $? "$work/err"
run both --download --offline
[ $code -eq 2 ]
tap "--offline and --download exclude each other" $? "$work/err"
touch "$hub/.cut"
run cut --download
[ $code -eq 7 ] && [ ! -e "$folder/refs/main" ] && ls "$folder"/blobs/*.incomplete >/dev/null
tap "a connection that breaks off leaves the beginning, and no model" $? "$work/err"
rm "$hub/.cut" "$hub/.log"
run resume --download
tap "the next attempt succeeds" $? "$work/err"
grep -qE '^/.* [1-9][0-9]*000' "$hub/.log"
tap "it goes on where the first one stopped" $? "$hub/.log"
s=$folder/snapshots/$(cat "$folder/refs/main")
same=0
for f in "$hub"/*; do cmp -s "$f" "$s/${f##*/}" || same=1; done
[ $same -eq 0 ] && [ -f "$s/tokenizer.json" ] && [ -L "$s/config.json" ] && [ -f "$folder/blobs/$(sum model.safetensors)" ] &&
    [ -f "$folder/blobs/$(name_in_git config.json)" ]
tap "the cache holds the files as the hub's own tools lay them out" $? "$hub/.log"
! grep -E 'evil|README' "$hub/.log" && [ ! -e "$folder/snapshots/evil.json" ]
tap "no other file is fetched, and none out of its place" $? "$hub/.log"
grep -q '^/api/.* token$' "$hub/.log" && ! grep '^/cdn/.* token$' "$hub/.log" && ! grep -q "$HF_TOKEN" "$work/err"
tap "the token goes to the hub and nowhere else" $? "$hub/.log"
rm "$hub/.log"
run again --offline
[ $code -eq 0 ] && [ ! -e "$hub/.log" ]
tap "then it is served from the cache without the network" $? "$work/err"
mkdir -p "$work/xdg/huggingface" && cp -r "$HF_HOME/hub" "$work/xdg/huggingface/hub"
(unset HF_HOME; XDG_CACHE_HOME=$work/xdg; export XDG_CACHE_HOME; run elsewhere --offline)
tap "the cache is where XDG_CACHE_HOME says, without HF_HOME" $? "$work/err"

until_true() { # until_true COMMAND...: for at most 30 s
    tries=0
    until "$@"; do tries=$((tries + 1)); [ $tries -lt 300 ] || return 1; sleep 0.1; done
}
fetch() { # fetch NAME: a server in the background; $! is its process
    "$tinker" serve --listen 127.0.0.1:0 --data-dir "$work/data-$1" --model test/tiny --download >"$work/$1.log" 2>&1 &
}
end() { for p; do kill -9 "$p" && wait "$p"; done 2>/dev/null; }
listens() { grep -q 'http://127' "$work/$1.log"; }
waits() { grep -q 'waiting for another process' "$work/$1.log"; }
begun() { [ -s "$(echo "$folder"/blobs/*.incomplete)" ]; }
whole() { for f in "$hub"/*; do cmp -s "$f" "$folder/snapshots/$(cat "$folder/refs/main")/${f##*/}" || return 1; done; }
two() { # two NAME-A NAME-B: A is in the middle of a file, B waits for it; processes in $a and $b
    rm -rf "$folder" "$hub/.log"
    a= b=
    touch "$hub/.hold"
    fetch "$1"; a=$!
    until_true begun || return 1
    fetch "$2"; b=$!
    until_true waits "$2"
}
two first second
tap "of two that fetch a model at once the second says that it waits" $? "$work/second.log"
rm "$hub/.hold"
until_true listens first && until_true listens second
tap "then both serve it" $? "$work/second.log"
end $a $b
[ -z "$(grep resolve "$hub/.log" | sort | uniq -d)" ] && whole
tap "each file was fetched once, and is what the hub has" $? "$hub/.log"
two dies heir
end $a
rm "$hub/.hold"
until_true listens heir
tap "when the first is killed the second takes over" $? "$work/heir.log"
end $b
grep -qE '^/.* 1000' "$hub/.log" && whole
tap "where the first one stopped, and the files are what the hub has" $? "$hub/.log"

# A repository of GGUF files: one model is fetched, with its parts; its files are told apart by their names.
printf '{"gguf": "%s/tiny-Q8_0.gguf", "gguf_type": 1}' "$hub" >"$work/gguf.json"
mkdir "$work/kept" && rm -rf "$folder" "$hub/.log"
"$BUILD_DIR/tools/engine-dump" "$hub" "$work/gguf.json" "$work/gguf.out" >"$work/gguf.log" 2>&1 &&
    mv "$hub"/*.* "$work/kept" && mv "$work/kept/tiny-Q8_0.gguf" "$hub"
tap "a GGUF file is made" $? "$work/gguf.log"
for f in tiny-Q4_K_S tiny-q6_k-00001-of-00002 tiny-q6_k-00002-of-00002 mmproj-tiny-Q8_0; do echo "$f" >"$hub/$f.gguf"; done
for f in "$hub"/*.gguf; do echo "${f##*/} $(sum "${f##*/}")" >>"$hub/.large"; done
"$tinker" models pull test/tiny --quant Q6_K >"$work/out" 2>"$work/err"
[ "$(grep -c 'resolve.*gguf' "$hub/.log")" -eq 2 ] && grep -q 'q6_k-00002' "$hub/.log"
tap "models pull --quant fetches the parts of one model" $? "$hub/.log"
"$tinker" models pull test/tiny --quant Q4_K >"$work/out" 2>"$work/err"
[ $? -ne 0 ] && grep -q 'no GGUF file of Q4_K; choose with --quant one of: .*tiny-Q4_K_S.gguf' "$work/err" && ! grep -q mmproj "$work/err"
tap "a quantization that is not there is refused with those that are" $? "$work/err"
rm -rf "$folder" "$hub/.log" "$hub"/*q6_k* "$hub/tiny-Q4_K_S.gguf"
run gguf --download
tap "--download fetches the one of a usual quantization and serves it" $? "$work/err"
"$tinker" models --local-only --json >"$work/out" 2>"$work/err"
tr -d ' \n' <"$work/out" | grep -q '"model":"test/tiny"[^}]*tiny-Q8_0.gguf","type":"qwen3","size_bytes":[1-9]'
tap "models lists it with its architecture and size" $? "$work/out"
rm -f "$hub"/*.gguf && mv "$work/kept"/*.* "$hub"
run both-again --download && rm -rf "$folder"

rm -rf "$folder"
echo "model.safetensors $(echo | sha256sum | cut -d' ' -f1)" >"$hub/.large"
run damaged --download
[ $code -eq 9 ] && grep -q 'SHA-256 is wrong' "$work/err" && [ ! -e "$folder/refs/main" ]
tap "a large file with another hash is refused" $? "$work/err"
echo "model.safetensors $(sum model.safetensors)" >"$hub/.large"
small() { # small HASH: what the hub says of config.json
    rm -rf "$folder"
    sed "s/^config.json .*/config.json $1/" "$hub/.small" >"$work/small" && cp "$work/small" "$hub/.small"
}
small "$(echo | sha1sum | cut -d' ' -f1)"
run small --download
[ $code -eq 9 ] && grep -q 'config.json of test/tiny arrived damaged: its SHA-1 is wrong' "$work/err" && [ ! -e "$folder/refs/main" ]
tap "a small one too" $? "$work/err"
small "$(sha1sum <"$hub/config.json" | cut -d' ' -f1)"
run plain-sha1 --download
tap "a mirror may tell the SHA-1 of the file itself" $? "$work/err"
small not-a-hash
run other --download
tap "an ETag that is no hash is no reason to refuse" $? "$work/err"
tap_plan
