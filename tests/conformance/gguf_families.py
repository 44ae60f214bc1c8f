#!/usr/bin/env python3
# requirements: llama
"""Every family as GGUF, beside llama.cpp.

Small random models, as a directory: written with pip's gguf as the converter writes them, read by us and by
llama.cpp; written by us, merged and as an adapter, read by both.  Tensors, logits, greedy tokens.
"""
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

from _gguf import (DUMP, F32, MAKE, Llama, check, engine, finish, log_softmax, logits, plain, write_gguf)

VOCAB = 300
COMMON = ["--vocab", VOCAB, "--hidden", 128, "--heads", 4, "--kv-heads", 2, "--head-dim", 32, "--layers", 4, "--intermediate", 192,
          "--noise", 0.2, "--embed-std", 0.6, "--seed", 11]
DELTA = ["--delta-key-heads", 2, "--delta-value-heads", 4, "--delta-key-dim", 32, "--delta-value-dim", 32]
EXPERTS = ["--experts", 4, "--experts-used", 2, "--expert-size", 96]
SCALE = ["--attention-scale", 32 ** -0.5]
FAMILIES = {
    "mistral": ["--window", 400],  # llama.cpp computes no window of this family
    "ministral3": ["--window", 400],
    "mixtral": [*EXPERTS, "--window", 400, "--tie", 0],
    "gemma2": [*SCALE, "--window", 9],
    "gemma3_text": [*SCALE, "--window", 9],
    "phi3": ["--tie", 0, "--window", 400],
    "smollm3": ["--layer-step", 4],
    "olmo2": ["--tie", 0],
    "olmo3": ["--tie", 0, "--window", 9, "--layer-step", 4, "--rope-theta", 500000],
    "granite": [],
    "granitemoehybrid": [],
    "gpt_oss": [*EXPERTS, "--tie", 0],
    "qwen3_5_text": [*DELTA, "--tie", 0, "--head-dim", 64, "--rotary", 16],
    "qwen3_5_moe_text": [*DELTA, *EXPERTS, "--shared-size", 64, "--tie", 0, "--head-dim", 64, "--rotary", 16],
}
PROMPT = [5, 6, 7, 8, 9, 100, 101, 17, 290, 44, 3, 77, 250, 12, 13, 14]


def make(tmp, name, folder=None, *more):
    path = os.path.join(tmp, folder or name)
    subprocess.run([MAKE, "--arch", name] + [str(x) for x in (*COMMON, *FAMILIES[name], *more)] + [path], check=True)
    with open(os.path.join(path, "tokenizer.json"), "w") as f:  # see texts()
        json.dump({"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "ByteLevel", "use_regex": True},
                   "model": {"type": "BPE", "vocab": {f"t{i}": i for i in range(VOCAB)}, "merges": ["t 1"]}}, f)
    return path


def texts(w, config):
    """A vocabulary of whole texts: the server of llama.cpp does not list tokens that are parts of a character."""
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list([f"t{i}" for i in range(VOCAB)])
    w.add_token_types([1] * VOCAB)
    w.add_token_merges(["t 1"])


def train(tmp, model, folder):
    """An adapter that moves the logits."""
    tokens = [int(t) for t in np.random.default_rng(1).integers(0, 300, 48)]
    d = {"tokens": tokens[:-1], "target_tokens": tokens[1:], "weights": [1.0] * 47}
    out = os.path.join(tmp, folder)
    os.makedirs(out)
    engine(tmp, model, {"loss": "cross_entropy", "lora": {"rank": 4, "seed": 3, "attn": 1, "mlp": 1, "unembed": 0},
                        "data": [d], "steps": 4, "adam": {"lr": 0.01}, "peft": 1}, out)
    return out


def export(model, path, adapter=None, alone=False, kind=4):  # 4: f32 of tinker_gguf_type
    request = {"dtype": F32, "gguf_lora" if alone else "gguf": path, "gguf_type": kind}
    if adapter:
        request["adapter"] = adapter
    with open(path + ".json", "w") as f:
        json.dump(request, f)
    r = subprocess.run([DUMP, model, path + ".json", path + ".out"], capture_output=True, text=True)
    return r.returncode == 0, r.stderr.strip()


def compare(name, ours, theirs, most, count=24):
    """Tokens that llama.cpp draws, and the likeliest beside each, against our logits at those places."""
    steps = theirs.greedy(PROMPT, count)["choices"][0]["logprobs"]["content"]
    tokens = [s["id"] for s in steps]
    z = log_softmax(ours(PROMPT + tokens)[len(PROMPT) - 1:-1])
    worst = max(abs(z[i, t["id"]] - t["logprob"]) for i, s in enumerate(steps) for t in s["top_logprobs"])
    check(f"{name}: log-probabilities of llama.cpp within {most}", len(tokens) == count and worst < most, f"{worst:.2g}")


def family(tmp, name):
    model, path = make(tmp, name), os.path.join(tmp, name + ".gguf")
    if name == "granitemoehybrid":  # as the converter would cut its modules: we do
        ok, said = export(model, path)
        check(f"{name}: base is written", ok, said)
    else:
        meaning = write_gguf(model, path, plain, texts)
        got = engine(tmp, path, {"base": 1})
        worst = max(np.abs(got["base." + n].ravel() - v.ravel()).max() for n, v in meaning.items())
        check(f"{name}: {len(meaning)} tensors in their places", worst < 1e-6, f"{worst:.2g}")
    gap = np.abs(logits(tmp, path, PROMPT, F32) - logits(tmp, model, PROMPT, F32)).max()
    check(f"{name}: the logits of the directory", gap < 1e-4, f"{gap:.2g}")
    compare(f"{name}, its file", lambda t: logits(tmp, path, t, F32), Llama(path), 1e-3)
    adapter, own, lora = train(tmp, model, name + "-adapter"), os.path.join(tmp, name + "-own.gguf"), os.path.join(tmp, name + "-lora.gguf")
    ok, said = export(model, own, adapter)
    check(f"{name}: merged model is written", ok, said)
    def tuned(tokens):
        return logits(tmp, model, tokens, F32, adapter=adapter)
    if ok:
        compare(f"{name}, merged by us", tuned, Llama(own), 1e-3)
    ok, said = export(model, lora, adapter, alone=True)
    check(f"{name}: adapter is written", ok, said)
    if ok:
        compare(f"{name}, base and adapter", tuned, Llama(path, lora), 1e-3)


def heads_in_blocks(tmp):
    """Value heads of the delta rule in the columns of quantized rows: they move as blocks of 32, and those of 256,
    which hold several, as numbers."""
    model = os.path.join(tmp, "blocks")
    make(tmp, "qwen3_5_text", "blocks", "--hidden", 256, "--delta-value-heads", 8)
    want = engine(tmp, model, {"base": 1})
    for kind, most in ((1, 0.02), (3, 0.1)):  # q8_0, q4_k
        path = os.path.join(tmp, f"blocks-{kind}.gguf")
        ok, said = export(model, path, kind=kind)
        got = engine(tmp, path, {"base": 1}) if ok else {}
        worst = max((np.linalg.norm(got[n] - v) / np.linalg.norm(v), n) for n, v in want.items() if "proj" in n and n in got)
        check(f"qwen3_5_text in type {kind}: rows and columns of heads", ok and worst[0] < most, f"{worst[0]:.2g} {worst[1]}")
        # the same numbers on both sides: llama.cpp rounds activations beside quantized weights
        gap = np.abs(logits(tmp, path, PROMPT) - logits(tmp, path, PROMPT, F32)).max()
        check(f"qwen3_5_text in type {kind}: as numbers in f32", gap < 1e-3, f"{gap:.2g}")


with tempfile.TemporaryDirectory() as tmp:
    for name in sys.argv[1:] or FAMILIES:
        family(tmp, name)
    if len(sys.argv) == 1:
        heads_in_blocks(tmp)
    finish()
