"""What the GGUF scripts share: models as GGUF by pip's gguf, our engine, llama.cpp."""
import json
import os
import subprocess
import sys

import gguf
import numpy as np

BUILD = os.environ.get("BUILD_DIR", "build/release")
MAKE = os.path.join(BUILD, "tools", "make-tiny-model")
DUMP = os.path.join(BUILD, "tools", "engine-dump")
TINKER = os.path.join(BUILD, "tinker")
F32, BF16, STORED, Q8, Q4, Q8_INT8, Q4_INT8 = range(7)  # tinker_weights_dtype
count = failed = 0


def check(name, ok, detail=""):
    global count, failed
    count += 1
    failed += not ok
    print(f"{'ok' if ok else 'not ok'} {count} - {name}" + (f" # {detail}" if detail else ""), flush=True)


def finish():
    print(f"1..{count}")
    sys.stdout.flush()
    os._exit(1 if failed or not count else 0)  # no waiting for a server's threads


def read_safetensors(path):
    """Tensors by name as float32."""
    with open(path, "rb") as f:
        size = int.from_bytes(f.read(8), "little")
        header = json.loads(f.read(size))
        data = np.frombuffer(f.read(), np.uint8)
    out = {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        raw = data[slice(*t["data_offsets"])]
        if t["dtype"] == "BF16":
            values = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = raw.view({"F32": np.float32, "F16": np.float16}[t["dtype"]]).astype(np.float32)
        out[name] = values.reshape(t["shape"])
    return out


def engine(tmp, model, request, *more):
    rq, out = os.path.join(tmp, "request.json"), os.path.join(tmp, "out.safetensors")
    with open(rq, "w") as f:
        json.dump(request, f)
    subprocess.run([DUMP, model, rq, out, *more], check=True)
    return read_safetensors(out)


def logits(tmp, model, tokens, dtype=STORED, **more):
    d = {"tokens": tokens, "target_tokens": tokens, "weights": [1.0] * len(tokens)}
    return engine(tmp, model, {"loss": "cross_entropy", "dtype": dtype, "data": [d], **more})["logits.0"]


def log_softmax(z):
    z = z.astype(np.float64)
    z = z - z.max(1, keepdims=True)
    return z - np.log(np.exp(z).sum(1, keepdims=True))


def interleave(w, heads):
    """As converters do to q and k of Llama: the two halves of a head row by row in turn."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


A = gguf.MODEL_ARCH
ARCHES = {"llama": A.LLAMA, "mistral": A.LLAMA, "mixtral": A.LLAMA, "ministral3": A.MISTRAL3, "qwen2": A.QWEN2, "qwen3": A.QWEN3,
          "qwen3_moe": A.QWEN3MOE, "gemma2": A.GEMMA2, "gemma3_text": A.GEMMA3, "phi3": A.PHI3, "smollm3": A.SMOLLM3,
          "olmo2": A.OLMO2, "olmo3": A.OLMO2, "granite": A.GRANITE, "gpt_oss": A.GPT_OSS, "qwen3_5_text": A.QWEN35,
          "qwen3_5_moe_text": A.QWEN35MOE}
PAIRS = ("llama", "mistral", "mixtral", "ministral3", "smollm3", "granite")
PLUS_ONE = ("gemma2", "gemma3_text", "qwen3_5_text", "qwen3_5_moe_text")
KINDS = gguf.GGMLQuantizationType


def value_heads(config, hf, w):
    """Value heads that share a key head, from one behind the other to one of each key head in turn."""
    keys, values = config.get("linear_num_key_heads"), config.get("linear_num_value_heads")
    if not keys or keys == values or ".linear_attn." not in hf:
        return w
    size = config["linear_value_head_dim"]

    def turn(rows, size):
        return rows.reshape(keys, values // keys, size, *rows.shape[1:]).swapaxes(0, 1).reshape(rows.shape)

    if "in_proj_qkv" in hf or "conv1d" in hf:
        skip = 2 * keys * config["linear_key_head_dim"]
        return np.concatenate([w[:skip], turn(w[skip:], size)])
    if "out_proj" in hf:
        return turn(w.T, size).T
    if "in_proj_z" in hf:
        return turn(w, size)
    return w if "linear_attn.norm" in hf else turn(w, 1)


def metadata(w, config, name):
    """The keys that llama.cpp's converter writes for the families."""
    delta = "linear_num_key_heads" in config
    rope = config.get("rope_scaling") or {}
    kind, window = rope.get("rope_type"), config.get("sliding_window")
    types = config.get("layer_types") or []
    w.add_block_count(config["num_hidden_layers"])
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_feed_forward_length(config["intermediate_size"])
    w.add_head_count(config["num_attention_heads"])
    w.add_head_count_kv(config["num_key_value_heads"])
    w.add_key_length(config["head_dim"])
    w.add_value_length(config["head_dim"])
    w.add_layer_norm_rms_eps(config["rms_norm_eps"])
    w.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
    rotary = int(config["head_dim"] * config.get("partial_rotary_factor", 1))
    w.add_rope_dimension_count(rotary)
    if "num_experts" in config:
        size = config["moe_intermediate_size"]
        w.add_expert_count(config["num_experts"])
        w.add_expert_used_count(config["num_experts_per_tok"])
        w.add_expert_feed_forward_length(size)
    if config.get("shared_expert_intermediate_size"):
        w.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if window and name not in ("llama", "mistral3", "phi3"):
        w.add_sliding_window(window)
    if name == "gemma3":
        w.add_sliding_window_pattern(types.index("full_attention") + 1)
    if config.get("attn_logit_softcapping"):
        w.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    if config.get("final_logit_softcapping"):
        w.add_final_logit_softcapping(config["final_logit_softcapping"])
    if "embedding_multiplier" in config:
        w.add_embedding_scale(config["embedding_multiplier"])
        w.add_residual_scale(config["residual_multiplier"])
        w.add_attention_scale(config["attention_multiplier"])
        w.add_logit_scale(config["logits_scaling"])
    if kind == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(rope["factor"])
    if kind in ("yarn", "longrope"):
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if kind == "longrope":
        w.add_rope_scaling_attn_factors((1 + np.log(rope["factor"]) / np.log(rope["original_max_position_embeddings"])) ** 0.5)
        for n in ("long", "short"):
            w.add_tensor(f"rope_factors_{n}.weight", np.array(rope[n + "_factor"], np.float32))
    if "llama_4_scaling_beta" in rope:
        w.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    if delta:
        w.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        w.add_ssm_state_size(config["linear_key_head_dim"])
        w.add_ssm_group_count(config["linear_num_key_heads"])
        w.add_ssm_time_step_rank(config["linear_num_value_heads"])
        w.add_ssm_inner_size(config["linear_num_value_heads"] * config["linear_value_head_dim"])
        w.add_full_attention_interval(types.index("full_attention") + 1)
        n = rotary // 2  # pairs take the three positions of a picture in turn
        w.add_rope_dimension_sections([(n + 2) // 3, (n + 1) // 3, n // 3, 0])


def file_name(names, config, hf):
    """What the converter calls a tensor."""
    layer = hf.split(".")[2] if hf.startswith("model.layers.") else ""
    special = {"self_attn.sinks": "attn_sinks.weight", "linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"}
    for tail, target in special.items():
        if hf.endswith(tail):
            return f"blk.{layer}.{target}"
    if config["model_type"] == "phi3" and ".gate_up_proj." in hf:
        return f"blk.{layer}.ffn_up.weight"
    return names.get_name(hf, (".weight", ".bias"))


def write_gguf(directory, path, kind, tokenizer=None, shard=0, instead=None):
    """A Hugging Face directory as GGUF, as llama.cpp's converter writes it.  kind: a type for matrices, or
    a function (name, values) that gives raw blocks and their type.  Returns what each tensor means, by its
    Hugging Face name."""
    config = json.load(open(os.path.join(directory, "config.json")))
    tensors, arch = read_safetensors(os.path.join(directory, "model.safetensors")), config["model_type"]
    tensors.update(instead or {})
    name = gguf.MODEL_ARCH_NAMES[ARCHES[arch]]
    names = gguf.get_tensor_name_map(ARCHES[arch], config["num_hidden_layers"])
    w = gguf.GGUFWriter(path, name, split_max_tensors=shard)
    metadata(w, config, name)
    (tokenizer or add_numbers)(w, config)
    meaning = {}
    stacks = {}
    for hf, values in tensors.items():
        base = hf.rsplit(".", 1)[0]
        if ".experts." in hf:  # "...experts.3.up_proj.weight" -> one tensor of all
            before, after = hf.split(".experts.")
            number, part = after.split(".", 1)
            stacks.setdefault((before, part), {})[int(number)] = values
            continue
        target = file_name(names, config, hf)
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
        turn = heads.get(base.rsplit(".", 1)[-1]) if arch in PAIRS else None
        stored = interleave(values, turn) if turn else value_heads(config, hf, values)
        if arch in PLUS_ONE and hf.endswith("norm.weight") and "linear_attn" not in hf:
            stored = stored + np.float32(1)
        if hf.endswith("A_log"):
            stored = -np.exp(stored)
        if "conv1d" in hf:
            stored = stored.reshape(stored.shape[0], -1) if stored.ndim > 1 else value_heads(
                config, hf, values.reshape(-1, config["linear_conv_kernel_dim"]))
        same = stored is values or hf.endswith("norm.weight")  # files have 1 + w, and we read that
        meaning[hf] = add(w, target, stored, kind)
        if turn:
            d = config["head_dim"]
            meaning[hf] = meaning[hf].reshape(turn, d // 2, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        elif not same:
            meaning[hf] = values  # only asked for of types that keep every bit
    parts = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
    for (before, part), experts in stacks.items():
        stack = np.stack([experts[i] for i in range(len(experts))])
        module, suffix = part.split(".")
        layer = before.split(".")[2]
        target = f"blk.{layer}.ffn_{parts.get(module, module).removesuffix('_proj')}_exps.{suffix}"
        values = add(w, target, stack, kind) if suffix == "weight" else add(w, target, stack, plain)
        for i in experts:
            meaning[f"{before}.experts.{i}.{part}"] = values[i]
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return meaning


def plain(_, values):
    """As float32, whatever was asked for."""
    return np.ascontiguousarray(values, np.float32), KINDS.F32


def add(w, target, values, kind):
    """One tensor: matrices in the type that was asked for, as far as their rows allow."""
    if values.ndim == 1 or "ffn_gate_inp" in target or "ssm_conv1d" in target:
        w.add_tensor(target, np.ascontiguousarray(values))
        return values
    if callable(kind):
        raw, type_ = kind(target, values)
    else:
        type_ = kind if values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0 else KINDS.F16
        raw = gguf.quants.quantize(np.ascontiguousarray(values), type_)
    w.add_tensor(target, raw, raw_dtype=type_)
    return gguf.quants.dequantize(raw, type_).reshape(values.shape).astype(np.float32)


def add_numbers(w, config):
    """A vocabulary of numbers: prompts are given as tokens."""
    n = config["vocab_size"]
    special = (["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)])[:n]
    w.add_tokenizer_model("llama")
    w.add_token_list(special + [f"t{i}" for i in range(n - len(special))])
    w.add_token_scores([0.0] * n)
    w.add_token_types(([2, 3, 3] + [6] * 256)[:n] + [1] * (n - len(special)))


def byte_level(directory, pre):
    """Adds the tokenizer.json of the directory."""
    def put(w, config):
        t = json.load(open(os.path.join(directory, "tokenizer.json")))
        settings = json.load(open(os.path.join(directory, "tokenizer_config.json")))
        tokens = {i: (text, 1) for text, i in t["model"]["vocab"].items()}
        for a in t["added_tokens"]:
            tokens[a["id"]] = (a["content"], 3 if a["special"] else 4)
        n = config["vocab_size"]
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre(pre)
        w.add_token_list([tokens.get(i, (f"[PAD{i}]", 5))[0] for i in range(n)])
        w.add_token_types([tokens.get(i, ("", 5))[1] for i in range(n)])
        w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in t["model"]["merges"]])
        ids = {text: i for i, (text, _) in tokens.items()}
        w.add_eos_token_id(ids[settings["eos_token"]])
        w.add_pad_token_id(ids[settings["pad_token"]])
        w.add_add_bos_token(False)
        w.add_chat_template(settings["chat_template"])
    return put


class Llama:
    """llama.cpp with one model, and adapters."""

    def __init__(self, path, adapter=None):
        import xllamacpp

        p = xllamacpp.CommonParams()
        p.model.path = path
        p.n_ctx = 512
        p.n_parallel = 1
        p.warmup = False
        p.cpuparams.n_threads = 1
        p.cpuparams_batch.n_threads = 1
        p.cache_type_k = p.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32  # as ours
        p.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        if adapter:
            a = xllamacpp.CommonAdapterLoraInfo()
            a.path, a.scale = adapter, 1.0
            p.lora_adapters = [a]
        self.server = xllamacpp.Server(p)

    def greedy(self, prompt, n, k=10):
        """n tokens, and of each the k likeliest with their log-probabilities."""
        r = self.server.handle_completions({
            "prompt": prompt, "max_tokens": n, "n_predict": n, "ignore_eos": True, "temperature": 0.0, "top_k": 1,
            "cache_prompt": False, "logprobs": k, "n_probs": k, "return_tokens": True, "repeat_penalty": 1.0})
        return json.loads(r) if isinstance(r, (str, bytes)) else r
