#!/usr/bin/env python3
# requirements: llama
"""Read GGUF: tensors against pip's gguf to the bit, logits and greedy tokens against llama.cpp.

Tokenizer and chat template of the metadata against the tokenizer.json that they came from.
"""
import json
import os
import subprocess
import tempfile

import gguf
import numpy as np

from _gguf import (BUILD, F32, KINDS, MAKE, STORED, TINKER, Llama, byte_level, check, engine, finish,
                   log_softmax, logits, plain, write_gguf)

TINY = "models/tiny"
SHAPES = {
    "llama": ["--arch", "llama", "--tie", 0],
    "llama-biases": ["--arch", "llama", "--bias", 1],
    "qwen2": ["--arch", "qwen2"],
    "qwen3": ["--arch", "qwen3", "--tie", 0],
    "qwen3_moe": ["--arch", "qwen3_moe", "--experts", 5, "--experts-used", 2, "--expert-size", 256],
}
COMMON = ["--vocab", 300, "--hidden", 256, "--heads", 4, "--kv-heads", 2, "--head-dim", 64, "--layers", 2, "--intermediate", 512,
          "--noise", 0.2, "--embed-std", 0.6, "--seed", 11]


def make(tmp, name):
    path = os.path.join(tmp, name)
    if not os.path.exists(path):
        subprocess.run([MAKE] + [str(x) for x in SHAPES[name] + COMMON] + [path], check=True)
    return path


def random_blocks(kind):
    """Any codes, and scales as models have them: what gguf makes of them is the reference."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(kind.value)

    def blocks(_, values):
        n = values.size // block
        raw = rng.integers(0, 256, (n, size), np.uint8)
        half = rng.uniform(-0.002, 0.002, (n, 2)).astype(np.float16).view(np.uint8)
        if kind == KINDS.MXFP4:
            raw[:, 0] = rng.integers(112, 120, n)
        elif kind == KINDS.Q6_K:
            raw[:, 208:210] = half[:, :2]
        elif kind in (KINDS.Q4_K, KINDS.Q5_K, KINDS.Q4_1, KINDS.Q5_1):
            raw[:, :4] = half
        else:
            raw[:, :2] = half[:, :2]
        return raw.reshape(*values.shape[:-1], -1), kind

    return blocks


def same_numbers(got, meaning):
    return all(got["base." + n].tobytes() == np.ascontiguousarray(v, np.float32).tobytes()
               for n, v in meaning.items())


def tensors(tmp):
    kinds = {k.name: random_blocks(k) for k in (KINDS.Q8_0, KINDS.Q4_0, KINDS.Q4_1, KINDS.Q5_0, KINDS.Q5_1,
                                                KINDS.Q4_K, KINDS.Q5_K, KINDS.Q6_K, KINDS.MXFP4)}
    kinds.update({"F32": KINDS.F32, "F16": KINDS.F16, "BF16": KINDS.BF16})
    tokens = [int(t) for t in np.random.default_rng(3).integers(0, 300, 40)]
    for name, kind in kinds.items():
        path = os.path.join(tmp, name + ".gguf")
        model = make(tmp, "llama")
        meaning = write_gguf(model, path, kind)
        got = engine(tmp, path, {"base": 1})
        check(f"{name}: {len(meaning)} tensors to the bit", same_numbers(got, meaning))
        native, wide = logits(tmp, path, tokens, STORED), logits(tmp, path, tokens, F32)
        same, gap = native.tobytes() == wide.tobytes(), np.abs(native - wide).max()
        if name == "BF16":  # the matrix unit, where the CPU has one, sums in another order
            check("BF16: the same logits as its numbers in f32, to float32's rounding", gap < 1e-4, f"{gap:.2g}")
        else:
            check(f"{name}: the same logits as its numbers in f32, to the bit", same, f"{gap:.2g}")
    for name in SHAPES:
        path = os.path.join(tmp, name + "-mixed.gguf")
        meaning = write_gguf(make(tmp, name), path, plain)
        got = engine(tmp, path, {"base": 1})
        check(f"{name}: rows of heads, biases and experts in their places", same_numbers(got, meaning))
        wide = logits(tmp, path, tokens, F32)
        want = logits(tmp, make(tmp, name), tokens, F32)
        check(f"{name}: the logits of the directory, to the bit", wide.tobytes() == want.tobytes())


def shards(tmp):
    folder = os.path.join(tmp, "split")
    os.makedirs(folder)
    model = make(tmp, "qwen3")
    meaning = write_gguf(model, os.path.join(folder, "m.gguf"), KINDS.F16, shard=7)
    parts = sorted(os.listdir(folder))
    check(f"split into {len(parts)} files", len(parts) > 2, parts[0])
    for part in (parts[0], parts[-1]):
        got = engine(tmp, os.path.join(folder, part), {"base": 1})
        check(f"{part} names all", same_numbers(got, meaning))
    os.remove(os.path.join(folder, parts[1]))
    r = subprocess.run([os.path.join(BUILD, "tools", "engine-dump"), os.path.join(folder, parts[0]),
                        os.path.join(tmp, "request.json"), os.path.join(tmp, "x")], capture_output=True, text=True)
    check("a missing part is named", r.returncode != 0 and parts[1] in r.stderr, r.stderr.strip())


def compare(tmp, name, ours, theirs, most, exact=None):
    """64 greedy tokens of llama.cpp, and our logits at the same positions."""
    text = "Once Anna the baker went to the river."  # like what the model has learned: else rounding weighs more
    told = subprocess.run([TINKER, "tokenize", "-m", TINY, text], capture_output=True, text=True, check=True)
    prompt = [int(t) for t in told.stdout.split()]
    steps = Llama(theirs).greedy(prompt, 64)["choices"][0]["logprobs"]["content"]
    tokens = [s["id"] for s in steps]
    if exact:  # the numbers of the file in float32: what either side would give if nothing were rounded
        z = log_softmax(logits(tmp, exact, prompt + tokens, F32)[len(prompt) - 1:-1])
        off = max(abs(z[i, t["id"]] - t["logprob"]) for i, s in enumerate(steps) for t in s["top_logprobs"])
        ours_off = np.abs(z - log_softmax(logits(tmp, ours, prompt + tokens)[len(prompt) - 1:-1])).max()
        print(f"# figure {name}, from its numbers in float32: llama.cpp {off:.1e}, ours {ours_off:.1e}", flush=True)
        check(f"{name}: ours are its numbers", ours_off < 1e-3, f"{ours_off:.2g}")
    z = log_softmax(logits(tmp, ours, prompt + tokens)[len(prompt) - 1:-1])
    worst = max(abs(z[i, t["id"]] - t["logprob"]) for i, s in enumerate(steps) for t in s["top_logprobs"])
    for added in json.load(open(TINY + "/tokenizer.json"))["added_tokens"]:
        if added["content"] in ("<|im_end|>", "<|endoftext|>"):
            z[:, added["id"]] = -np.inf  # llama.cpp was told to go on, and draws no token that ends a text
    if exact:
        print(f"# figure {name}: {sum(int(a) == b for a, b in zip(z.argmax(1), tokens))} of 64 greedy tokens are llama.cpp's", flush=True)
    if most <= 1e-2:
        check(f"{name}: 64 greedy tokens of llama.cpp", [int(t) for t in z.argmax(1)] == tokens)
    check(f"{name}: log-probabilities of the 10 likeliest within {most}", worst < most, f"{worst:.2g}")


def beside_llama(tmp):
    """The bundled model.  llama.cpp rounds activations to the type beside the weights, of quantized ones to 8 bits,
    and ours are exact: so it computes with the same numbers as F32, where it does not round and 1e-3 and the same
    64 tokens are asked for, and then as they are, where the distance of either side from exact is measured."""
    for kind, most in ((KINDS.F32, 1e-2), (KINDS.F16, 1e-2), (KINDS.BF16, 0.05), (KINDS.Q8_0, 0.2), (KINDS.Q4_0, 1)):
        path, wide = (os.path.join(tmp, f"tiny-{kind.name}{x}.gguf") for x in ("", "-wide"))
        meaning = write_gguf(TINY, path, kind, byte_level(TINY, "qwen2"))
        write_gguf(TINY, wide, KINDS.F32, byte_level(TINY, "qwen2"), instead=meaning)
        compare(tmp, f"{kind.name} in F32", path, wide, 1e-3)
        compare(tmp, kind.name, path, path, most, wide)


TEXTS = ["Hello, world!", "  two  spaces\n\n\nand lines \r\n", "I'll say it's DON'T 12345 3.14", "naïve café ﬁ Å",
         "<|im_start|>user\nhi<|im_end|>", "日本語のテキスト 😀 \u200d", "\tdef f(x):\n\t\treturn x**2 # no", ""]


def tokenize(model, text):
    r = subprocess.run([TINKER, "tokenize", "--model", model, "--json"], input=text.encode(), capture_output=True)
    return r.stdout if r.returncode == 0 else r.stderr


def tokenizer(tmp):
    path = os.path.join(tmp, "tiny-F16.gguf")
    for text in TEXTS:
        a, b = tokenize(path, text), tokenize(TINY, text)
        check(f"tokens of {text[:20]!r}", a == b and len(a) > 0, "" if a == b else f"{a[:300]} {b[:300]}")


with tempfile.TemporaryDirectory() as tmp:
    tensors(tmp)
    shards(tmp)
    beside_llama(tmp)
    tokenizer(tmp)
    finish()
