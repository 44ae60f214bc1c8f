"""The other side of bench/engine: the same step and the same token elsewhere, on 2 threads.

    engine_oracle.py torch DIR SETTING     seconds of one training step: PyTorch, transformers and PEFT;
                                           SETTING: f32 or bf16, with -compile through torch.compile
    engine_oracle.py llama DIR f32|bf16    seconds per token at batch 1: llama.cpp, matrices held so

Prints a number when the model is loaded and warm, and a figure for each line it reads, so
that both sides can take turns.

The step is that of bench/engine: 4 sequences of TINKER_BENCH_LENGTH (256) tokens, LoRA of rank 32 on
every linear layer and the head, forward, backward and AdamW.  With bf16 weights, adapters and activations
are bfloat16, the fastest that it has: adapters in float32 beside them cost it more.  llama.cpp comes in
the package xllamacpp.
"""
import contextlib
import json
import os
import sys
import tempfile
import time

THREADS, RANK, SEQUENCES = 2, 32, 4
LENGTH = int(os.environ.get("TINKER_BENCH_LENGTH", 256))
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def torch_step(directory, setting):
    import warnings

    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    warnings.filterwarnings("ignore")
    torch.set_num_threads(THREADS)
    dtype = torch.bfloat16 if setting.startswith("bf16") else torch.float32
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)
    vocab = model.config.vocab_size
    model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=32, target_modules=LINEARS + ["lm_head"]),
                           autocast_adapter_dtype=False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    if setting.endswith("-compile"):
        model = torch.compile(model)
    i = torch.arange(LENGTH)
    tokens = torch.stack([(i * 31 + s * 977) % vocab for s in range(SEQUENCES)])
    targets = (i * 7919 % vocab).repeat(SEQUENCES)

    def step(n):
        start = time.monotonic()
        logits = model(input_ids=tokens[:n]).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, vocab), targets[:n * LENGTH], reduction="sum")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.monotonic() - start

    step(SEQUENCES if setting.endswith("-compile") else 1)  # compiled for this shape alone
    return lambda: step(SEQUENCES)


def write_gguf(directory, path, dtype):
    """The model as GGUF, with a vocabulary of numbers: prompts are given as tokens."""
    import gguf
    import numpy as np

    config = json.load(open(os.path.join(directory, "config.json")))
    with open(os.path.join(directory, "model.safetensors"), "rb") as f:
        size = int.from_bytes(f.read(8), "little")
        header = json.loads(f.read(size))
    data = np.memmap(os.path.join(directory, "model.safetensors"), np.uint8, "r", 8 + size)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
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
    kinds = [2, 3, 3] + [6] * 256
    w.add_tokenizer_model("llama")
    w.add_token_list(special + [f"t{i}" for i in range(n - len(special))])
    w.add_token_scores([0.0] * n)
    w.add_token_types(kinds + [1] * (n - len(kinds)))
    for name, t in header.items():
        if name == "__metadata__":
            continue
        begin, end = t["data_offsets"]
        target = names.get_name(name, (".weight", ".bias"))
        if dtype == "bf16" and len(t["shape"]) == 2:
            rows = data[begin:end].reshape(t["shape"][0], -1)
            w.add_tensor(target, rows, raw_dtype=gguf.GGMLQuantizationType.BF16)
            continue
        words = data[begin:end].view(np.uint16).astype(np.uint32) << 16  # bfloat16
        w.add_tensor(target, words.view(np.float32).reshape(t["shape"]))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def llama_token(directory, dtype):
    import xllamacpp

    path = os.path.join(directory, dtype + ".gguf")
    if not os.path.exists(path):
        with contextlib.redirect_stdout(sys.stderr):
            write_gguf(directory, path + ".part", dtype)
        os.rename(path + ".part", path)
    p = xllamacpp.CommonParams()
    p.model.path = path
    p.n_ctx = 512
    p.n_parallel = 1
    p.warmup = True
    p.cpuparams.n_threads = THREADS
    p.cpuparams_batch.n_threads = THREADS
    server = xllamacpp.Server(p)

    def tokens(i=[0]):
        i[0] += 1
        answer = server.handle_completions({
            "prompt": [300 + i[0], 301, 302, 303], "max_tokens": 24, "n_predict": 24,
            "ignore_eos": True, "temperature": 1.0, "top_k": 1, "cache_prompt": False})
        answer = json.loads(answer) if isinstance(answer, (str, bytes)) else answer
        return answer["timings"]["predicted_per_token_ms"] / 1e3

    tokens()
    return tokens


def main():
    work = {"torch": torch_step, "llama": llama_token}[sys.argv[1]]
    # figures alone go to stdout, whatever the libraries print
    out = os.fdopen(os.dup(1), "w")
    with tempfile.TemporaryFile() as talk:
        os.dup2(talk.fileno(), 1)
        os.dup2(talk.fileno(), 2)
        try:
            turn = work(sys.argv[2], sys.argv[3])
            print(1.0, file=out, flush=True)
            for _ in sys.stdin:
                print(turn(), file=out, flush=True)
        except Exception as problem:
            out.write(f"{type(problem).__name__}: {problem}\n")
            out.flush()
            os._exit(1)
    os._exit(0)  # no waiting for a server's threads


main()
