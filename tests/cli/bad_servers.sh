#!/bin/sh
# bad_servers.sh - every command that talks to a service or to the Hub, against one that is dead, slow, lying or full:
# it ends within its --timeout with one "Error: ..." and an exit status of the list.  A command that is in neither of
# the two lists below fails the first check.
. "$(dirname "$0")/../support/serve.sh"
tinker="$VALGRIND $BUILD_DIR/tinker"
cd "$work" || exit 1
TINKER_TELEMETRY=0
TINKER_API_KEY=tml-test
export TINKER_TELEMETRY TINKER_API_KEY
command -v python3 >/dev/null || { tap "bad servers # SKIP there is no python3 for them" 0; tap_plan; }
HF_HOME=$work/hf
HF_TOKEN=hf_test
export HF_HOME HF_TOKEN
echo '{"prompt":"hi"}' >in.jsonl
echo '{"prompt":"hi","completion":"ho"}' >rows.jsonl
echo '{"prompt":"hi","chosen":"ho","rejected":"hu"}' >pairs.jsonl
echo '{"question":"hi","answer":"ho"}' >questions.jsonl
mkdir adapter
python3 - <<'END'
import json, struct
with open("adapter/adapter_config.json", "w") as f:
    json.dump({"peft_type": "LORA", "r": 1, "base_model_name_or_path": "tinker/tiny"}, f)
name = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
head = json.dumps({name + "A.weight": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]},
                   name + "B.weight": {"dtype": "F32", "shape": [2, 1], "data_offsets": [8, 16]}}).encode()
with open("adapter/adapter_model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(head)) + head + bytes(16))
END
p=tinker://run:train:0/weights/1
s=tinker://run:train:0/sampler_weights/1
# COMMAND | its arguments.  OUT is a folder of each run's own, URL the address of the server.
cat >table <<END
api | GET /api/v1/healthz
audit |
auth status |
auth whoami |
bench | -y -m tinker/tiny --requests 1 --warmup 0
billing checkpoint-storage |
billing usage | 2026-01-01 2026-01-02
chat | -m tinker/tiny
chat |
checkpoint copy | $p --to-project x
checkpoint delete | -y $p
checkpoint download | $s
checkpoint import | adapter
checkpoint info | $p
checkpoint list |
checkpoint publish | $p
checkpoint prune | --run-id run
checkpoint push-hf | $s
checkpoint save | -m tinker/tiny
checkpoint set-ttl | $p --ttl 5
checkpoint unpublish | $p
checkpoint verify | $s
conform | URL
cost usage | 2026-01-01 2026-01-02
doctor | -m tinker/tiny
eval | -m tinker/tiny --data questions.jsonl --grader exact
eval | -m tinker/tiny --data questions.jsonl --nll
eval | -p $s --data questions.jsonl --grader exact
logprobs | -m tinker/tiny hello
model list |
models |
models pull | some/model
models pull | --tokenizer-only some/model
run info | run
run list |
run metrics | run
run plot | run
run watch | run
sample | -m tinker/tiny hello
sample | -m tinker/tiny --in in.jsonl
sample | -p $s hello
session export-trace | session
session info | session
session list |
session move | -y session --project x
session sampler | x
train distill | -m tinker/tiny --data rows.jsonl --teacher tinker/tiny --out OUT
train dpo | -m tinker/tiny --data pairs.jsonl --out OUT
train rl | -m tinker/tiny --data questions.jsonl --grader exact --out OUT
train sft | -m tinker/tiny --data rows.jsonl --out OUT
train sft | --data rows.jsonl --out OUT
train sft | --data rows.jsonl --init $p --out OUT
weights export | $s -o OUT
weights merge | --adapter $s -o OUT
whoami |
END
# These ask nobody: files of this machine, or a server found by its data directory.
cat >asking_nobody <<END
auth login
auth logout
completion
config get
config list
config path
config set
config unset
cost
detokenize
models rm
render
serve
serve logs
serve status
serve stop
tokenize
version
weights inspect
weights verify
END
$tinker help commands | sed -n 's/^  \([a-z][a-z -]*[a-z]\)   *[A-Z].*/\1/p' | sort >every
sed 's/ |.*//' table | sort -u | sort - asking_nobody >listed
diff every listed >differences && [ "$(wc -l <every)" -gt 50 ]
tap "every command is listed, once as one that asks or as one that asks nobody" $? differences
sed 's/ | */ /' table >commands

# All at once: each waits for its own time-out, nobody for the others.
try_all() { # try_all KIND: what ends without an error, or too late, is in `wrong`
    n=0
    : >wrong
    while read -r line; do
        n=$((n + 1))
        (
            # shellcheck disable=SC2086
            echo hello | timeout 30 $tinker --timeout 2 $(echo "$line" | sed "s|URL|$TINKER_BASE_URL|; s|OUT|out-$1-$n|") >out.$n 2>err.$n
            code=$?
            # An answer of 200 is all that these want, whatever is in it.
            case "$1 $line" in lying\ api* | lying\ checkpoint\ [dpsu]*ublish* | lying\ checkpoint\ set-ttl* | lying\ checkpoint\ delete* | lying\ session\ move*)
                [ $code -eq 0 ] && exit ;;
            esac
            case $code in
            0 | 2 | 9 | 124 | 13[0-9]) echo "$1: $line: exit status $code" >>wrong ;;
            *) [ "$(grep -c '^Error: ' err.$n)" -eq 1 ] || grep -qE '"error"|^Failed to delete|FAIL' out.$n ||
                echo "$1: $line: not one error, exit status $code: $(head -c 300 err.$n)" >>wrong ;;
            esac
        ) &
        [ $((n % 6)) -ne 0 ] || wait
    done <commands
    wait
}
TINKER_BASE_URL=http://127.0.0.1:9
HF_ENDPOINT=$TINKER_BASE_URL
export TINKER_BASE_URL HF_ENDPOINT
try_all dead
! grep -q . wrong; tap "a dead server" $? wrong
for kind in slow lying full; do
    python3 "$root/tests/support/bad_server.py" $kind >port.$kind &
    bad=$!
    tries=0
    while [ ! -s port.$kind ] && [ $tries -lt 100 ]; do tries=$((tries + 1)); sleep 0.1; done
    TINKER_BASE_URL=http://127.0.0.1:$(cat port.$kind)
    HF_ENDPOINT=$TINKER_BASE_URL
    # wait in try_all must not wait for the server
    (try_all $kind)
    ! grep -q . wrong; tap "a $kind server" $? wrong
    kill $bad 2>/dev/null
    wait $bad 2>/dev/null
done
tap_plan
