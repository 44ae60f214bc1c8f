#!/usr/bin/env python3
# requirements: llama
"""What quantizing the base costs: perplexity of q8 and q4, and with activations of 8 bits, beside f32 on text the
bundled model was not trained on.

And LoRA on a q4 base, and on q4-int8, learns what it learns on f32, to the second digit of the loss.
"""
import json
import math
import os
import subprocess
import tempfile

import numpy as np

from _gguf import F32, Q4, Q4_INT8, Q8, Q8_INT8, TINKER, check, engine, finish, log_softmax

TINY = "models/tiny"


def held_out(n):
    """Questions and answers that the recipe kept from training, in the model's chat form."""
    with open(os.path.join(TINY, "recipe", "heldout.jsonl"), encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    return [f"<|im_start|>user\n{r['question']}<|im_end|>\n<|im_start|>assistant\n{r['answer']}<|im_end|>\n"
            for r in rows[::len(rows) // n]]


def tokens_of(text):
    r = subprocess.run([TINKER, "tokenize", "-m", TINY, "--special", "--json"], input=text.encode(), capture_output=True,
                       check=True)
    ids = json.loads(r.stdout)
    return (ids if isinstance(ids, list) else next(v for v in ids.values() if isinstance(v, list)))[:400]


def data_of(sequences):
    return [{"tokens": s[:-1], "target_tokens": s[1:], "weights": [1.0] * (len(s) - 1)} for s in sequences]


with tempfile.TemporaryDirectory() as tmp:
    sequences = [s for s in map(tokens_of, held_out(200)) if len(s) > 8]
    count = sum(len(s) - 1 for s in sequences)
    mean = {}
    for name, dtype in (("f32", F32), ("q8", Q8), ("q4", Q4), ("q8-int8", Q8_INT8), ("q4-int8", Q4_INT8)):
        out = engine(tmp, TINY, {"loss": "cross_entropy", "dtype": dtype, "data": data_of(sequences)})
        z = [log_softmax(out[f"logits.{i}"]) for i in range(len(sequences))]
        mean[name] = -sum(z[i][np.arange(len(s) - 1), s[1:]].sum() for i, s in enumerate(sequences)) / count
    text = ", ".join(f"{n} {math.exp(v):.3f}" for n, v in mean.items())
    print(f"# figure perplexity of {count} held-out tokens: {text}")
    for name, most in (("q8", 1.01), ("q8-int8", 1.01), ("q4", 1.05), ("q4-int8", 1.05)):
        off = mean[name] - mean["f32"]
        check(f"{name} costs less than {most - 1:.0%} of perplexity", math.exp(off) < most, f"{off:.4f} nats")

    losses = {}
    lora = {"rank": 8, "seed": 1, "attn": 1, "mlp": 1, "unembed": 1}
    rows = data_of(sequences[:16])
    tokens = sum(len(d["tokens"]) for d in rows)
    for name, dtype in (("f32", F32), ("q4", Q4), ("q4-int8", Q4_INT8)):
        out = engine(tmp, TINY, {"loss": "cross_entropy", "dtype": dtype, "lora": lora, "data": rows, "steps": 25,
                                 "adam": {"lr": 0.003}})
        losses[name] = [float(x) / tokens for x in out["loss"]]
    print("# figure 25 steps of LoRA: " + ", ".join(f"{n} {v[0]:.3f} to {v[-1]:.3f}" for n, v in losses.items()))
    for name in ("q4", "q4-int8"):
        check(f"LoRA on {name} learns what it learns on f32", losses[name][-1] < losses["f32"][-1] + 0.05 * losses["f32"][0])
    finish()
