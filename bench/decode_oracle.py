"""The other side of bench/decode: the same work in llama.cpp, ik_llama.cpp and PyTorch, on 2 threads.

    decode_oracle.py ik|llama|torch DIR bf16|q8|q4

Prints a number when the model is loaded and warm, and the seconds of one turn for each line it
reads: a step of N sequences for N, a prompt of N tokens for -N.  The packages are ik-llama-cpp-python
and llama-cpp-python, built for this CPU (GGML_NATIVE); matrices are Q8_0, or Q4_0 with the head in
Q8_0, as bench/decode holds them.  Only the forward is timed, with logits for the last token of each
sequence; no token is drawn.  PyTorch is transformers' model in bf16, whatever the format, with scaled dot
product attention (TINKER_BENCH_TORCH=f32: in float32).  TINKER_BENCH_IK=repack,thp,noflash turns settings of ik_llama.cpp.
"""
import contextlib
import ctypes
import os
import sys
import tempfile
import time

THREADS, LONGEST, SEQUENCES, STEPS = 2, 2048 + 64, 64, 8


def write_gguf(directory, path, dtype):
    """The model as GGUF, with a vocabulary of numbers: prompts are given as tokens."""
    import json

    import gguf
    import numpy as np

    config = json.load(open(os.path.join(directory, "config.json")))
    with open(os.path.join(directory, "model.safetensors"), "rb") as f:
        size = int.from_bytes(f.read(8), "little")
        header = json.loads(f.read(size))
    data = np.memmap(os.path.join(directory, "model.safetensors"), np.uint8, "r", 8 + size)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    kinds = gguf.GGMLQuantizationType
    w = gguf.GGUFWriter(path, "qwen3")
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
    n = config["vocab_size"]
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    w.add_tokenizer_model("llama")
    w.add_token_list(special + [f"t{i}" for i in range(n - len(special))])
    w.add_token_scores([0.0] * n)
    w.add_token_types([2, 3, 3] + [6] * 256 + [1] * (n - 259))
    for name, t in header.items():
        if name == "__metadata__":
            continue
        begin, end = t["data_offsets"]
        target = names.get_name(name, (".weight", ".bias"))
        if len(t["shape"]) == 2 and dtype == "bf16":
            w.add_tensor(target, data[begin:end].reshape(t["shape"][0], -1), raw_dtype=kinds.BF16)
            continue
        words = (data[begin:end].view(np.uint16).astype(np.uint32) << 16).view(np.float32)  # bfloat16
        if len(t["shape"]) == 2:
            kind = kinds.Q8_0 if dtype == "q8" or "embed" in name or "lm_head" in name else kinds.Q4_0
            w.add_tensor(target, gguf.quants.quantize(words.reshape(t["shape"]), kind), raw_dtype=kind)
        else:
            w.add_tensor(target, words.reshape(t["shape"]))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


class Model:
    def __init__(self, api, path, is_ik):
        self.api, self.is_ik = api, is_ik
        turned = os.environ.get("TINKER_BENCH_IK", "").split(",")
        api.llama_backend_init()
        p = api.llama_model_default_params()
        p.use_mmap = True
        if is_ik:
            p.repack_tensors = "repack" in turned
            p.use_thp = "thp" in turned
            if p.repack_tensors or p.use_thp:
                p.use_mmap = p.use_thp and not p.repack_tensors
        self.model = api.llama_model_load_from_file(path.encode(), p)
        assert self.model, "the model does not load"
        # ik_llama.cpp's flash attention fails an assertion with several sequences
        self.one = self.open_context(LONGEST, 1, is_ik and "noflash" not in turned)
        self.many = self.open_context(SEQUENCES * 16, SEQUENCES, False)
        self.context = self.one

    def open_context(self, length, sequences, flash):
        c = self.api.llama_context_default_params()
        c.n_ctx, c.n_batch, c.n_seq_max = length, 2048, sequences
        c.n_ubatch = 512
        c.n_threads = c.n_threads_batch = THREADS
        if self.is_ik:
            c.flash_attn = flash
        else:
            c.kv_unified = True
        context = self.api.llama_init_from_model(self.model, c)
        assert context, "no context"
        return context

    def clear(self):
        if self.is_ik:
            self.api.llama_kv_cache_clear(self.context)
        else:
            self.api.llama_memory_clear(self.api.llama_get_memory(self.context), False)

    def run(self, tokens):
        """tokens: (token, position, sequence, wanted)"""
        batch = self.api.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, (token, position, sequence, wanted) in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = wanted
        start = time.monotonic()
        assert self.api.llama_decode(self.context, batch) == 0, "llama_decode"
        last = self.api.llama_get_logits_ith(self.context, len(tokens) - 1)  # waits for the result
        seconds = time.monotonic() - start
        assert last[0] == last[0]
        self.api.llama_batch_free(batch)
        return seconds

    def turn(self, amount):
        self.context = self.many if amount > 1 else self.one
        self.clear()
        if amount < 0:
            n, seconds = -amount, 0
            for first in range(0, n, 2048):
                end = min(first + 2048, n)
                seconds += self.run([((i * 31) % 150000, i, 0, i + 1 == n) for i in range(first, end)])
            return seconds
        self.run([(300 + s * 5 + i, i, s, i == 3) for s in range(amount) for i in range(4)])
        times = [self.run([(300 + s + k, 4 + k, s, True) for s in range(amount)]) for k in range(STEPS)]
        return sorted(times)[len(times) // 2]


class TorchModel:
    def __init__(self, directory):
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(THREADS)
        torch.set_grad_enabled(False)
        self.torch = torch
        dtype = torch.float32 if os.environ.get("TINKER_BENCH_TORCH") == "f32" else torch.bfloat16
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation="sdpa").eval()

    def run(self, tokens, cache):
        start = time.monotonic()
        out = self.model(self.torch.tensor(tokens), past_key_values=cache, use_cache=True, logits_to_keep=1)
        seconds = time.monotonic() - start
        assert out.logits.shape[1] == 1 and bool(out.logits[0, 0, 0] == out.logits[0, 0, 0])
        return seconds, out.past_key_values

    def turn(self, amount):
        if amount < 0:
            return self.run([[(i * 31) % 150000 for i in range(-amount)]], None)[0]
        _, cache = self.run([[300 + s * 5 + i for i in range(4)] for s in range(amount)], None)
        times = []
        for k in range(STEPS):
            seconds, cache = self.run([[300 + s + k] for s in range(amount)], cache)
            times.append(seconds)
        return sorted(times)[len(times) // 2]


def open_model(which, directory, dtype):
    if which == "torch":
        return TorchModel(directory)
    path = os.path.join(directory, f"decode-{dtype}.gguf")
    if not os.path.exists(path):
        with contextlib.redirect_stdout(sys.stderr):
            write_gguf(directory, path + ".part", dtype)
        os.rename(path + ".part", path)
    if which == "ik":
        from ik_llama_cpp import _ctypes_api as api
    else:
        import llama_cpp as api
    return Model(api, path, which == "ik")


def main():
    # figures alone go to stdout, whatever the libraries print
    out = os.fdopen(os.dup(1), "w")
    with tempfile.TemporaryFile() as talk:
        os.dup2(talk.fileno(), 1)
        if "TINKER_BENCH_TALK" not in os.environ:
            os.dup2(talk.fileno(), 2)
        try:
            model = open_model(*sys.argv[1:4])
            model.turn(1)
            print(1.0, file=out, flush=True)
            for line in sys.stdin:
                print(model.turn(int(line)), file=out, flush=True)
        except Exception as problem:
            out.write(f"{type(problem).__name__}: {problem}\n")
            out.flush()
            os._exit(1)
    os._exit(0)  # no waiting for threads


main()
