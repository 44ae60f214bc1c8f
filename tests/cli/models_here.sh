#!/bin/sh
# models_here.sh - `tinker models` and `doctor` before anything is loaded: what loads, what fits, what else is there.
. "$(dirname "$0")/../support/serve.sh"
tinker="$VALGRIND $BUILD_DIR/tinker"
cd "$work" || exit 1
HOME=$work/home
XDG_CACHE_HOME=$work/cache
unset TINKER_BASE_URL TINKER_API_KEY TINKER_CREDENTIAL_CMD TINKER_MODEL TINKER_PROFILE HF_HUB_CACHE HUGGINGFACE_HUB_CACHE HF_HOME
TINKER_TELEMETRY=0
export HOME XDG_CACHE_HOME TINKER_TELEMETRY
mkdir home
model=$root/models/tiny
hub=$work/cache/huggingface/hub

# cached NAME: a finished download, empty so far; its folder is $dir
cached() {
    dir=$hub/models--org--$1/snapshots/1
    mkdir -p "$dir" "$hub/models--org--$1/refs" && echo 1 >"$hub/models--org--$1/refs/main"
}
cached good && cp "$model"/*.json "$model"/*.safetensors "$dir"
cached mamba && sed 's/Qwen3ForCausalLM/MambaForCausalLM/; s/"qwen3"/"mamba"/' "$model/config.json" >"$dir/config.json" && cp "$model"/*.safetensors "$dir"
cached packed && sed 's/{/{"quantization_config": {"quant_method": "awq"},/' "$model/config.json" >"$dir/config.json" && cp "$model"/*.safetensors "$dir"
# shapes alone say what a model takes: this one would need some terabytes
cached huge && sed 's/"hidden_size": [0-9]*/"hidden_size": 65536/; s/"num_hidden_layers": [0-9]*/"num_hidden_layers": 200/; s/"intermediate_size": [0-9]*/"intermediate_size": 65536/' "$model/config.json" >"$dir/config.json" && cp "$model"/*.safetensors "$dir"

expect 0 $tinker models --local-only --json && python3 - out <<'P'
import json, sys
m = {x["model"]: x for x in json.load(open(sys.argv[1]))["models"]}
good, huge = m["org/good"], m["org/huge"]
assert good["loads"] and good["problem"] is None and good["trains_tokens"] == good["context"] == 512, good
assert 0 < good["memory_bytes"] < good["needs_bytes"] < 1 << 30 and good["context_bytes"] > 0, good
assert m["org/mamba"]["loads"] is False and "MambaForCausalLM" in m["org/mamba"]["problem"]
assert "awq" in m["org/packed"]["problem"] and m["org/packed"]["needs_bytes"] is None
assert huge["loads"] and huge["memory_bytes"] > 1 << 40 and huge["trains_tokens"] == 0, huge
P
tap "models says what loads and what it takes" $? out
expect 0 $tinker models --local-only && grep 'org/good' out | grep -q ' yes ' && grep 'org/mamba' out | grep -q 'does not load' &&
    grep 'org/huge' out | grep -q 'no, needs'
tap "and in a word for each" $? out
expect 0 $tinker models --local-only org/mamba && tr -d '\n│' <out | grep -q 'MambaForCausalLM'; tap "and why one does not load" $? out
expect 0 $tinker models --local-only org/good && grep -q 'Longest text to train' out && grep -q 'Memory of a full context' out
tap "and all about one that does" $? out
$tinker doctor >out 2>err
grep -q '^ok .*models here .*5, 3 load, 2 can' out && grep -q '^warn .*MambaForCausalLM' out && grep -q '^warn .*awq' out && grep -q '^warn .*org/huge: no, needs' out
tap "doctor names those that do not load or fit" $? out

# What is there instead of a model.
mkdir files bin && : >files/some-Q4_K_M.gguf && cp "$model/config.json" bin && : >bin/pytorch_model.bin
for command in "sample hello" "serve --listen 127.0.0.1:0 --data-dir service"; do
    $tinker $command -m ./files >out 2>err; [ $? -ne 0 ] && grep -q 'name that itself, ./files/some-Q4_K_M.gguf' err
    tap "${command%% *}: a directory of GGUF files names one" $? err
    $tinker $command -m ./bin >out 2>err; [ $? -ne 0 ] && grep -q 'only pytorch_model.bin.*save_pretrained' err
    tap "${command%% *}: pickled weights are no model" $? err
    $tinker $command -m Good >out 2>err; [ $? -ne 0 ] && grep -q 'did you mean org/good' err
    tap "${command%% *}: an id without its owner, which is in the cache" $? err
    $tinker $command -m Qwen9-9B >out 2>err; [ $? -ne 0 ] && grep -q 'tinker models pull OWNER/Qwen9-9B' err
    tap "${command%% *}: an id without its owner, which is not" $? err
    $tinker $command -m org/mamba >out 2>err; [ $? -ne 0 ] && grep -q 'MambaForCausalLM is not supported' err
    tap "${command%% *}: another architecture" $? err
done
tap_plan
