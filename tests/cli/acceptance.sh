#!/bin/sh
# acceptance.sh - what the program promises, seen from outside: checks D1 to D18, against a scripted
# service (tests/support/mock_service.py), a Hub and the local engine.  D2 with a fixed clock is in fmt.c.
. "$(dirname "$0")/../support/serve.sh"
tinker="$VALGRIND $BUILD_DIR/tinker"
cd "$work" || exit 1
HOME=$work/home
LC_ALL=C.UTF-8
TINKER_TELEMETRY=0
TINKER_API_KEY=tml-test
export HOME LC_ALL TINKER_TELEMETRY TINKER_API_KEY
unset HF_TOKEN HUGGING_FACE_HUB_TOKEN HF_TOKEN_PATH HF_HOME
mkdir home
command -v python3 >/dev/null || { tap "D1 to D18 # SKIP there is no python3 for the services" 0; tap_plan; }

mocks=
trap 'kill $mocks 2>/dev/null; serve_cleanup' EXIT
start_mock() { # start_mock NAME SCRIPT ARGUMENT...: its address in $address
    name=$1
    shift
    python3 "$@" >"$name.port" 2>"$name.err" &
    mocks="$mocks $!"
    tries=0
    while [ ! -s "$name.port" ] && [ $tries -lt 100 ]; do tries=$((tries + 1)); sleep 0.1; done
    address=http://127.0.0.1:$(cat "$name.port")
}
start_mock service "$root/tests/support/mock_service.py" log
TINKER_BASE_URL=$address
export TINKER_BASE_URL
asked() { grep -o "$1" log; } # asked PATTERN: the matches in what was requested, in order
forget() { : >log; }

# An archive that takes its time is asked for again after 30 s: begun here, looked at at the end.
$tinker checkpoint download tinker://run/weights/slow -o slow >slow.out 2>slow.err &
slow=$!

# ---- D1 ----
cat >sockets.c <<'END'
#include <unistd.h>
int socket(int domain, int type, int protocol) /* nobody may ask for one */
{
    (void)domain;
    (void)type;
    (void)protocol;
    _exit(99);
}
END
version=$(sed -n 's/^#define TINKER_VERSION *"\(.*\)"/\1/p' "$root/include/tinker/version.h")
expect 0 $tinker version && [ "$(cat out)" = "tinker $version" ]; tap "D1 version prints the version" $? out
if [ -z "$sanitize$VALGRIND" ] && gcc -shared -fPIC -o sockets.so sockets.c; then
    LD_PRELOAD=./sockets.so $tinker version >out 2>err && ! LD_PRELOAD=./sockets.so $tinker run list >out 2>err
    tap "D1 version opens no socket" $? err
else
    tap "D1 version opens no socket # SKIP under a sanitizer or valgrind" 0
fi

# ---- D2 ----
column() { # column NAME: one column of the listing in `out`, joined by |
    awk -F '\t' -v name="$1" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) c = i; next } { printf "%s|", $c }' out
}
expect 0 $tinker checkpoint list --run-id sizes -f tsv &&
    [ "$(column Size)" = '0 B|500 B|1.5 KB|1.5 MB|1.5 GB|1.5 TB|1024.0 KB|N/A|' ]
tap "D2 sizes" $? out
expect 0 $tinker checkpoint list --run-id times &&
    [ "$(grep -oE 'just now|[0-9]+ [a-z]+ ago|in [0-9]+ days|in less than a minute' out | tr '\n' '|')" = \
        'just now|1 minute ago|59 minutes ago|5 hours ago|7 days ago|1 week ago|4 weeks ago|in less than a minute|in 3 days|' ]
tap "D2 relative times" $? out

# ---- D3, D4, D5 ----
forget
expect 0 $tinker run list --limit 0 --ids && [ "$(wc -l <out)" -eq 250 ] &&
    [ "$(asked 'training_runs?limit=[0-9]*&offset=[0-9]*' | tr '\n' ' ')" = \
        'training_runs?limit=100&offset=0 training_runs?limit=100&offset=100 training_runs?limit=50&offset=200 ' ]
tap "D3 run list --limit 0 asks for pages of 100" $? log
forget
expect 0 $tinker run list --limit 20 && [ "$(asked 'training_runs?limit=[0-9]*&offset=[0-9]*')" = 'training_runs?limit=20&offset=0' ] &&
    grep -q '^ *20 training runs (230 more not shown, use --limit to see more)$' out
tap "D3 run list --limit 20 asks once and counts the rest" $? out
forget
expect 0 $tinker checkpoint list --limit 0 --ids && [ "$(wc -l <out)" -eq 2300 ] &&
    [ "$(asked 'checkpoints?limit=[0-9]*&offset=[0-9]*' | tr '\n' ' ')" = \
        'checkpoints?limit=1000&offset=0 checkpoints?limit=1000&offset=1000 checkpoints?limit=300&offset=2000 ' ]
tap "D4 checkpoint list --limit 0 asks for pages of 1000" $? log
cat >golden <<'END'
{
  "runs": [
    {
      "training_run_id": "r0:train:0",
      "base_model": "Qwen/Qwen3-8B",
      "model_owner": "owner",
      "is_lora": true,
      "corrupted": false,
      "lora_rank": null,
      "last_request_time": "2025-11-05 12:34:56+00:00",
      "last_checkpoint": {
        "checkpoint_id": "weights/1",
        "checkpoint_type": "training",
        "time": "2025-11-05 12:00:00.000001+00:00",
        "tinker_path": "tinker://run/weights/1",
        "size_bytes": null,
        "public": false,
        "expires_at": null
      },
      "last_sampler_checkpoint": {
        "checkpoint_id": "sampler_weights/2",
        "checkpoint_type": "sampler",
        "time": "2025-11-05 12:00:00+00:00",
        "tinker_path": "tinker://run/sampler_weights/2",
        "size_bytes": 1024,
        "public": false,
        "expires_at": "2030-01-01 00:00:00+00:00"
      },
      "user_metadata": {
        "note": "t\u00e4st \ud83d\ude00 \"q\" \\",
        "empty": ""
      }
    }
  ]
}
END
TINKER_API_KEY=tml-golden expect 0 $tinker --format json run list; diff golden out >differences
tap "D5 run list as JSON, byte for byte" $? differences

# ---- D6 ----
forget
for name in expires plain json; do
    expect 0 $tinker checkpoint download "tinker://run/weights/$name" -o "d6-$name" &&
        [ -f "d6-$name/run_weights_$name/checkpoint_complete" ]
    tap "D6 the address of an archive: $name" $? err
done
# (the service may still be noting an earlier request that nobody waited for)
[ "$(grep -cE '/(expires|plain|json)/archive application/json ' log)" -eq 3 ]
tap "D6 it is asked for without a query, Accept is application/json" $? log

# ---- D7 ----
expect 0 $tinker checkpoint download tinker://run/weights/gz -o d7 && [ -f d7/run_weights_gz/adapter_config.json ]
tap "D7 a compressed archive" $? err
for kind in symlink hardlink parent absolute prefix; do
    expect 1 $tinker checkpoint download "tinker://run/weights/$kind" -o "d7-$kind" && grep -q '^Error: Failed to extract archive: ' err &&
        [ ! -e "d7-$kind" ] && [ ! -e /tmp/tinker-acceptance-x ] && [ ! -e x ] && [ ! -e y ]
    tap "D7 an archive that leaves its folder is refused whole: $kind" $? err
done
mkdir -p d7-old/run_weights_plain && echo mine >d7-old/run_weights_plain/file
expect 9 $tinker checkpoint download tinker://run/weights/plain -o d7-old && [ "$(cat d7-old/run_weights_plain/file)" = mine ] &&
    [ "$(ls -A d7-old/run_weights_plain)" = file ]
tap "D7 a folder that is there stays as it is" $? err
forget
expect 0 $tinker checkpoint download tinker://run/weights/cut -o d7 && cmp -s d7/run_weights_cut/adapter_model.safetensors \
    d7/run_weights_gz/adapter_model.safetensors && [ "$(grep -c 'GET /files/cut' log)" -eq 2 ]
tap "D7 a body that is cut is resumed" $? log

# ---- D8 ----
expect 2 $tinker checkpoint set-ttl tinker://run/weights/1 && grep -q '^Error: Must specify either --ttl <seconds> or --remove$' err
tap "D8 set-ttl with neither option" $? err
expect 2 $tinker checkpoint set-ttl tinker://run/weights/1 --ttl 5 --remove && grep -q '^Error: Cannot specify both --ttl and --remove$' err
tap "D8 set-ttl with both" $? err
forget
expect 0 $tinker checkpoint set-ttl tinker://run/weights/1 --remove && grep -qE 'PUT .*/weights/1/ttl .*\{"ttl_seconds": ?null\}$' log
tap "D8 set-ttl --remove sends null" $? log

# ---- D9 ----
forget
for wrong in '' 'tinker://run/weights/1 --run-id run' 'tinker://run/weights/1 --type weights' '--before 2024-01-01' \
    '--run-id run --type nonsense' '--run-id run --before yesterday' 'run/weights/1' 'tinker://run/weights/1'; do
    expect 2 $tinker checkpoint delete $wrong && grep -q '^Error: ' err
    tap "D9 delete refuses: $wrong" $? err
done
[ ! -s log ]; tap "D9 before anything is sent" $? log
expect 0 $tinker checkpoint delete --run-id run --before 2024-02-01 -y --json && [ "$(cat out)" = '{"deleted_count": 1, "failed": []}' ] &&
    [ "$(asked 'DELETE [^ ]*')" = 'DELETE /api/v1/training_runs/run/checkpoints/weights/before' ]
tap "D9 --before is strict, -y prints one line of JSON" $? log
forget
expect 0 $tinker checkpoint delete --run-id run --after 2024-02-01 -y &&
    [ "$(asked 'DELETE [^ ]*')" = 'DELETE /api/v1/training_runs/run/checkpoints/weights/after' ]
tap "D9 --after is strict" $? log
expect 4 $tinker checkpoint delete tinker://run/weights/1 tinker://run/weights/none -y --json &&
    grep -q '^{"deleted_count": 1, "failed": \[{"tinker_path": "tinker://run/weights/none", "error": "Error code: 404 - .*"}\]}$' out
tap "D9 a partial failure exits with 4" $? out
expect 0 $tinker --compat-exit checkpoint delete tinker://run/weights/1 tinker://run/weights/none -y
tap "D9 or with 0, as the reference does" $? err

# ---- D10 ----
expect 0 $tinker billing usage 2026-07-13T05:00:00Z 2026-07-14T00:00:00Z --csv - && od -c out >bytes &&
    printf '%s\r\n' 'bucket_start,bucket_end,base_model,user_id,user_name,session_id,project_id,estimated_cost_usd,effective_rate_usd_per_million_tokens,effective_rate_usd_per_gigabyte_month,type,token_count,cached,gigabyte_hours' \
        '2026-07-13T05:00:00Z,2026-07-13T06:00:00Z,"m, 1",,"A ""B""",s1,,,,,training,12,,' \
        '2026-07-13T05:00:00Z,2026-07-13T06:00:00Z,"m, 1",,"A ""B""",s1,,,,,sampling_prefill,3,True,' \
        '2026-07-13T05:00:00Z,2026-07-13T06:00:00Z,"m, 1",,"A ""B""",s1,,,,,sampling_prefill,4,False,' \
        '2026-07-13T05:00:00Z,2026-07-13T06:00:00Z,"m, 1",,"A ""B""",s1,,,,,storage,,,0.1' >usage.csv && cmp -s out usage.csv
tap "D10 billing usage as CSV" $? out
expect 0 $tinker billing usage 2026-07-13T05:00:00Z 2026-07-14T00:00:00Z --sessions-csv sessions.csv && grep -q 'Wrote 2 row(s) to sessions.csv' err &&
    printf '%s\r\n' session_id,user_metadata 's1,"{""k"": ""v""}"' 's2,' | cmp -s - sessions.csv
tap "D10 sessions as CSV" $? sessions.csv

# ---- D11 ----
forget
expect 0 $tinker session export-trace pending -o trace.pftrace && [ -s trace.pftrace ] && [ "$(grep -c 'GET .*/trace_export' log)" -eq 3 ]
tap "D11 export-trace: pending, pending, ready" $? err
expect 1 $tinker session export-trace failed && grep -q 'the disk is full' err; tap "D11 failed: the server's reason" $? err
expect 0 $tinker session export-trace ready --url-only && [ "$(cat out)" = "$TINKER_BASE_URL/files/trace" ]
tap "D11 --url-only prints one line" $? out

# ---- D12 ----
while read -r status code headline; do
    expect "$code" $tinker --timeout 20 --retries 0 run info "status-$status" && [ "$(head -n 1 err)" = "Error: $headline" ] &&
        grep -q "Details: Error code: $status - {\"detail\"" err && [ ! -s out ]
    tap "D12 $status: $headline" $? err
done <<'END'
400 1 Invalid request
401 3 Authentication failed
403 3 Permission denied
404 5 Resource not found
409 1 API error (status 409)
422 1 Invalid data provided
429 6 Rate limit exceeded
500 1 Internal server error
END
expect 7 $tinker --timeout 1 run info hang && [ "$(head -n 1 err)" = 'Error: Request timeout' ]; tap "D12 no response: a timeout" $? err
expect 7 $tinker --base-url http://127.0.0.1:9 run info x && [ "$(head -n 1 err)" = 'Error: Connection failed' ]; tap "D12 a refused connection" $? err

# ---- D13 ----
python3 - $tinker >took 2>err <<'END'
import os, signal, subprocess, sys, time
p = subprocess.Popen(sys.argv[1:] + ["checkpoint", "download", "tinker://hang/weights/1", "-o", "d13"])
time.sleep(1)
start = time.monotonic()
p.send_signal(signal.SIGINT)
code = p.wait(timeout=60)  # by itself it would wait for minutes
print("%.2f" % (time.monotonic() - start))
sys.exit(code != 130 or os.path.exists("d13"))
END
tap "D13 Ctrl-C while it waits: exit 130, nothing left behind ($(cat took) s)" $? err

# ---- D14 ----
for kind in with without empty; do
    TINKER_API_KEY=tml-jwt-$kind expect 0 $tinker whoami --json && grep -q '"user_urn": "urn:user:1"' out
    tap "D14 whoami of a token $kind an email" $? err
    case $kind in with) grep -q '"email": "a@b.c"' out ;; *) grep -q '"email": null' out ;; esac
    tap "D14 and its email" $? out
done

# ---- D15: the rest is in push.sh ----
start_mock hub "$root/tests/support/hub.py" hub.log
HF_TOKEN=hf_secret HF_ENDPOINT=$address expect 0 $tinker checkpoint push-hf tinker://ab:train:0/weights/plain --json &&
    grep -q '"repo_id": "me/tinker-Qwen3-8B-ab-train-0"' out
tap "D15 the derived name of a repository" $? err
grep -q '^commit lfsFile adapter_model.safetensors$' hub.log && grep -q '^commit file adapter_config.json$' hub.log
tap "D15 regular and large files" $? hub.log
HF_TOKEN=hf_secret HF_ENDPOINT=$address expect 0 $tinker checkpoint push-hf tinker://ab:train:0/weights/plain -r me/parts && grep -q '^parts ' hub.log
tap "D15 in parts" $? hub.log
HF_TOKEN=hf_secret HF_ENDPOINT=$address expect 1 $tinker checkpoint push-hf tinker://ab:train:0/weights/plain -r me/other &&
    grep -q 'appears to contain a different Tinker checkpoint' err
tap "D15 the repository of another checkpoint is refused" $? err

# ---- D16 ----
i=0
while [ $i -lt 20 ]; do
    echo "{\"messages\":[{\"role\":\"user\",\"content\":\"House $i?\"},{\"role\":\"assistant\",\"content\":\"cat $((i % 4))\"}]}"
    i=$((i + 1))
done >mine.jsonl
sft="train sft --data mine.jsonl --batch-size 2 --epochs 8 --seed 1 --rank 4 -q"
weights() { # weights FOLDER: digests of the last checkpoint
    path=$(tail -n 1 "$1/checkpoints.jsonl" | sed 's/.*"sampler_path": "\([^"]*\)".*/\1/')
    $tinker checkpoint download "$path" -o "got-$1" >/dev/null 2>err && cat "got-$1"/*/adapter_model.safetensors | sha256sum
}
(
    unset TINKER_BASE_URL TINKER_API_KEY
    $tinker $sft --out whole >/dev/null 2>whole.err || exit 1
    $tinker $sft --out part >/dev/null 2>part.err &
    pid=$!
    while [ "$(cat part/metrics.jsonl 2>/dev/null | wc -l)" -lt 7 ] && kill -0 $pid 2>/dev/null; do sleep 0.02; done
    kill -TERM $pid
    wait $pid
    [ $? -eq 143 ] && [ "$(wc -l <part/metrics.jsonl)" -lt 80 ] && $tinker $sft --out part --resume >/dev/null 2>part.err &&
        weights whole >a && weights part >b && [ -s a ] && cmp -s a b
)
tap "D16 train sft interrupted after step 7 and resumed: the same weights" $? part.err

# ---- D17 ----
(
    serve_start --model "tinker/tiny=$root/models/tiny" || exit 1
    trap 'kill $mocks $server 2>/dev/null' EXIT
    mocks=
    start_mock proxy "$root/tests/support/mock_service.py" proxy.log "$TINKER_BASE_URL"
    TINKER_BASE_URL=$address
    awk 'BEGIN { for (i = 0; i < 1000; i++) printf "{\"id\": \"%d\", \"prompt\": \"Number %d\"}\n", i, i }' >many.jsonl
    expect 0 $tinker -q sample -m tinker/tiny --in many.jsonl --raw --max-tokens 2 --out many.out &&
        [ "$(wc -l <many.out)" -eq 1000 ] && ! grep -q '"error"' many.out &&
        sed 's/.*"id": *"\([0-9]*\)".*/\1/' many.out >ids && seq 0 999 | cmp -s - ids
)
tap "D17 1,000 prompts, one in twenty refused at first: 1,000 lines in order" $? err

# ---- D18 ----
for shell in bash zsh fish; do
    $tinker completion $shell >"$shell.script"
    if command -v $shell >/dev/null; then
        $shell "./$shell.script" >out 2>&1 && [ ! -s out ]
        tap "D18 $shell loads its completion" $? out
    else
        tap "D18 $shell loads its completion # SKIP it is not installed" 0
    fi
done

wait $slow
[ $? -eq 0 ] && [ -f slow/run_weights_slow/checkpoint_complete ]
tap "D6 an archive that is refused with 503 twice" $? slow.err
tap_plan
