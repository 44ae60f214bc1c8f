#!/usr/bin/env python3
# requirements: llama
"""Write GGUF: pip's gguf reads what we wrote, llama.cpp loads it and gives our logits and tokens.

Merged models in every type, of directories and of GGUF files, and adapters beside their base.
"""
import json
import os
import subprocess
import tempfile
import urllib.request

import gguf
import numpy as np

from _gguf import (DUMP, F32, KINDS, MAKE, STORED, TINKER, Llama, check, engine, finish, log_softmax, logits, write_gguf)

TINY = "models/tiny"
PROMPT = [5, 6, 7, 8, 9, 300, 301, 17, 900, 44]
LORA = {"rank": 4, "seed": 3, "attn": 1, "mlp": 1, "unembed": 0}


def train(tmp, model, folder, vocab, rate=0.01, **lora):
    """An adapter that moves the logits: a few steps at a high rate.  Not so high that samples are no text: the
    server of llama.cpp does not list tokens that are parts of a character."""
    rng = np.random.default_rng(1)
    tokens = [int(t) for t in rng.integers(0, vocab, 48)]
    d = {"tokens": tokens[:-1], "target_tokens": tokens[1:], "weights": [1.0] * 47}
    out = os.path.join(tmp, folder)
    os.makedirs(out)
    engine(tmp, model, {"loss": "cross_entropy", "lora": {**LORA, **lora}, "data": [d], "steps": 6,
                        "adam": {"lr": rate}, "dtype": STORED, "peft": 1}, out)
    return out


TYPES = ["f16", "q8_0", "q4_0", "q4_k", "f32", "bf16"]  # tinker_gguf_type


def export(model, path, kind=None, adapter=None):
    """The merged model in a type, or without one the adapter alone.  Exit code and what was said."""
    request = {"dtype": STORED, "gguf" if kind else "gguf_lora": path, "gguf_type": TYPES.index(kind or "f16")}
    if adapter:
        request["adapter"] = adapter
    with open(path + ".json", "w") as f:
        json.dump(request, f)
    r = subprocess.run([DUMP, model, path + ".json", path + ".out"], capture_output=True, text=True)
    return r.returncode, r.stdout + r.stderr


def compare(name, ours, theirs, most):
    """ours: the logits function; theirs: llama.cpp."""
    steps = theirs.greedy(PROMPT, 48)["choices"][0]["logprobs"]["content"]
    tokens = [s["id"] for s in steps]
    if len(tokens) != 48:
        check(f"{name}: 48 tokens", False, str(len(tokens)))
    z = log_softmax(ours(PROMPT + tokens)[len(PROMPT) - 1:-1])
    worst, where = max((abs(z[i, t["id"]] - t["logprob"]), (i, t["id"], t["logprob"], z[i, t["id"]]))
                       for i, s in enumerate(steps) for t in s["top_logprobs"])
    check(f"{name}: log-probabilities of llama.cpp within {most}", worst < most, f"{worst:.2g} {where if worst >= most else ''}")


def merged(tmp, adapter):
    """Logits of base + adapter in f32, and of the files that hold both."""
    exact = os.path.join(tmp, "exact.gguf")
    code, said = export(TINY, exact, "f32", adapter)
    check("merged f32 is written", code == 0, said.strip())
    def with_adapter(tokens):
        return logits(tmp, TINY, tokens, F32, adapter=adapter)
    compare("merged f32", with_adapter, Llama(exact), 1e-3)
    check("the adapter moves the logits", np.abs(with_adapter(PROMPT) - logits(tmp, TINY, PROMPT, F32)).max() > 0.5)
    numbers = engine(tmp, exact, {"base": 1})
    # llama.cpp rounds activations to the type beside the weights, ours stay exact
    for kind, most in (("f16", 1e-2), ("bf16", 0.1), ("q8_0", 0.3), ("q4_0", 1.5), ("q4_k", 1.0)):
        path = os.path.join(tmp, f"merged-{kind}.gguf")
        code, said = export(TINY, path, kind, adapter)
        check(f"merged {kind} is written", code == 0, said.strip())
        got = engine(tmp, path, {"base": 1})
        error = {n: np.linalg.norm(got[n] - v) / np.linalg.norm(v) for n, v in numbers.items() if v.ndim == 2}
        check(f"merged {kind}: numbers near the exact ones", max(error.values()) < {
            "f16": 4e-4, "bf16": 3e-3, "q8_0": 0.01, "q4_0": 0.12, "q4_k": 0.06}[kind], f"{max(error.values()):.2g}")
        compare(f"merged {kind}", lambda t: logits(tmp, path, t), Llama(path), most)
    return exact


def blocks_of_256(tmp):
    """Rows that K formats divide: the types that llama.cpp's own quantizer would choose."""
    model = os.path.join(tmp, "wide")
    subprocess.run([MAKE, "--arch", "llama", "--tie", "0", "--vocab", "300", "--hidden", "256", "--heads", "4",
                    "--kv-heads", "2", "--head-dim", "64", "--layers", "8", "--intermediate", "512", "--noise", "0.2",
                    "--embed-std", "0.6", "--seed", "11", model], check=True)
    source = os.path.join(tmp, "wide.gguf")
    write_gguf(model, source, KINDS.F32)  # a tokenizer of numbers, which the export keeps
    path = os.path.join(tmp, "wide-q4_k.gguf")
    code, said = export(source, path, "q4_k")
    check("a GGUF base is written as q4_k", code == 0, said.strip())
    reader = gguf.GGUFReader(path)
    types = {t.name: t.tensor_type.name for t in reader.tensors}
    check("types of q4_k", types["output.weight"] == "Q6_K" and types["blk.0.attn_q.weight"] == "Q4_K" and
          types["blk.0.ffn_down.weight"] == "Q6_K" and types["blk.1.ffn_down.weight"] == "Q4_K" and
          types["blk.7.ffn_down.weight"] == "Q6_K" and
          types["blk.3.attn_v.weight"] == "Q6_K" and types["blk.0.attn_norm.weight"] == "F32", str(sorted(set(types.values()))))
    got = engine(tmp, path, {"base": 1})
    # 6.5: q and k back in the order of Hugging Face
    want = engine(tmp, model, {"base": 1})
    q = max(np.linalg.norm(got[n] - want[n]) / np.linalg.norm(want[n]) for n in want if "q_proj" in n or "k_proj" in n)
    check("rows of q and k are in their places", q < 0.1, f"{q:.2g}")
    a = {k: [x for x in reader.get_field(k).parts[-1]] for k in ("llama.block_count",)}
    check("metadata is read by pip's gguf", int(a["llama.block_count"][0]) == 8)
    for t in reader.tensors:
        if t.tensor_type.name in ("Q4_K", "Q6_K") and "ffn_up" in t.name:
            ref = gguf.quants.dequantize(t.data, t.tensor_type)
            hf = "base.model.layers." + t.name.split(".")[1] + ".mlp.up_proj.weight"
            check(f"{t.name} means the same to pip's gguf", np.array_equal(ref.reshape(got[hf].shape), got[hf]))
            break


def adapters(tmp, adapter, exact):
    base = os.path.join(tmp, "base-f32.gguf")
    code, said = export(TINY, base, "f32")
    check("the base alone is written", code == 0, said.strip())
    lora = os.path.join(tmp, "adapter.gguf")
    code, said = export(TINY, lora, adapter=adapter)
    check("the adapter alone is written", code == 0, said.strip())
    compare("base and adapter", lambda t: logits(tmp, TINY, t, F32, adapter=adapter), Llama(base, lora), 1e-3)
    # interleaved rows: Llama's B of q and k move with the weights
    model = os.path.join(tmp, "wide")
    other = train(tmp, model, "wide-adapter", 300, unembed=1)
    source, lora2 = os.path.join(tmp, "wide.gguf"), os.path.join(tmp, "wide-adapter.gguf")
    code, said = export(model, lora2, adapter=other)
    check("a Llama adapter with a head is written", code == 0, said.strip())
    global PROMPT
    PROMPT = [5, 6, 7, 8, 9, 100, 101, 17, 290, 44]
    compare("Llama base and adapter", lambda t: logits(tmp, model, t, F32, adapter=other), Llama(source, lora2), 1e-3)


def refusals(tmp):
    head = train(tmp, TINY, "with-head", 2000, rate=0.002, unembed=1)
    code, said = export(TINY, os.path.join(tmp, "x.gguf"), adapter=head)
    check("a pair on a tied head is refused with the way out", code != 0 and "merged" in said, said.strip())
    path = os.path.join(tmp, "untied.gguf")
    code, said = export(TINY, path, "f32", head)
    check("merged it becomes a head of its own", code == 0 and any(
        t.name == "output.weight" for t in gguf.GGUFReader(path).tensors), said.strip())
    global PROMPT
    PROMPT = [5, 6, 7, 8, 9, 300, 301, 17, 900, 44]
    gap = np.abs(logits(tmp, path, PROMPT, F32) - logits(tmp, TINY, PROMPT, F32, adapter=head)).max()
    check("which our engine reads back", gap < 1e-3, f"{gap:.2g}")
    compare("merged with a head of its own", lambda t: logits(tmp, TINY, t, F32, adapter=head), Llama(path), 1e-3)


MARK = "\u2581"
TEXTS = ["Hello, world!", "  two  spaces\n\n\nand lines \r\n", "weights of the model; weights.", "na\u00efve caf\u00e9 \U0001f600",
         "\tdef f(x):\n\t\treturn x**2", "a", " ", ""]


def learn_pieces(count):
    """Pieces as SentencePiece learns them: the most frequent pair of neighbors becomes one, again and again."""
    with open("README.md", encoding="utf-8") as f:
        words = {}
        for word in f.read()[:20000].split():
            words[MARK + word] = words.get(MARK + word, 0) + 1
    words = {w: (list(w), n) for w, n in words.items()}
    letters, pieces = sorted({c for w, _ in words.values() for c in w}), []
    while len(pieces) < count:
        pairs = {}
        for w, n in words.values():
            for pair in zip(w, w[1:]):
                pairs[pair] = pairs.get(pair, 0) + n
        best = max(pairs, key=lambda p: (pairs[p], p))
        if "".join(best) not in pieces:
            pieces.append("".join(best))
        for w, _ in words.values():
            for i in range(len(w) - 2, -1, -1):
                if i + 1 < len(w) and (w[i], w[i + 1]) == best:
                    w[i:i + 2] = ["".join(best)]
    return pieces, letters


def piece_tokenizer(folder, form, every_cut=True):
    """tokenizer.json as transformers converts a SentencePiece model: every cut of every piece is a merge."""
    pieces, letters = learn_pieces(400)
    vocab = ["<unk>", "<s>", "</s>", "<turn>"] + [f"<0x{i:02X}>" for i in range(256)] + pieces + letters
    ids, merges = {t: i for i, t in enumerate(vocab)}, []
    for p in pieces:
        cuts = sorted((ids[p[:i]], ids[p[i:]]) for i in range(1, len(p)) if p[:i] in ids and p[i:] in ids)
        merges += [[vocab[a], vocab[b]] for a, b in (cuts if every_cut else cuts[:1])]
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
    normalizer, pre = {
        "prefix": ({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": MARK}, replace]}, None),
        "plain": (replace, {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}),
        "metaspace": (None, {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "first", "split": False}),
    }[form]
    added = [{"id": i, "content": vocab[i], "special": True, "normalized": False} for i in range(4)]
    single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    bos = {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump({"version": "1.0", "added_tokens": added, "normalizer": normalizer, "pre_tokenizer": pre,
                   "post_processor": {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": bos},
                   "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": MARK}, "content": " "},
                                                                {"type": "ByteFallback"}, {"type": "Fuse"}]},
                   "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
                             "vocab": ids, "merges": merges}}, f)
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": "{{ bos_token }}"}, f)
    return len(vocab)


def ours_of(model, text):
    r = subprocess.run([TINKER, "tokenize", "--model", model], input=text.encode(), capture_output=True, check=True)
    return [int(t) for t in r.stdout.split()]


def sentence_piece(tmp):
    """Llama's, Gemma's and the newer form of a SentencePiece tokenizer: llama.cpp makes our tokens of the written file."""
    for form in ("prefix", "plain", "metaspace"):
        model, path = os.path.join(tmp, "spm-" + form), os.path.join(tmp, f"spm-{form}.gguf")
        subprocess.run([MAKE, "--arch", "llama", "--tie", "0", "--vocab", "760", "--seed", "11", model], check=True)
        n = piece_tokenizer(model, form)
        code, said = export(model, path, "f16")
        check(f"{form}: a SentencePiece tokenizer of {n} tokens is written", code == 0, said.strip())
        server = Llama(path).server
        wrong = []
        for text in TEXTS:
            if form == "metaspace" and text.startswith(" "):
                continue  # transformers puts no second space there, SentencePiece and llama.cpp do
            a, b = ours_of(model, text), ours_of(path, text)
            body = json.dumps({"content": text, "add_special": False, "parse_special": True}).encode()
            request = urllib.request.Request(server.listening_address + "/tokenize", body, {"Content-Type": "application/json"})
            c = json.loads(urllib.request.urlopen(request).read())["tokens"]
            if not a == b == c:
                wrong.append((text, a, b, c))
        fields = gguf.GGUFReader(path).fields
        begins = bool(fields["tokenizer.ggml.add_bos_token"].parts[-1][0])
        space = bool(fields["tokenizer.ggml.add_space_prefix"].parts[-1][0])
        check(f"{form}: texts begin as the template says", begins and space == (form != "plain"), f"{begins} {space}")
        check(f"{form}: directory, file and llama.cpp make the same tokens", not wrong, str(wrong[:1]) if wrong else "")
    piece_tokenizer(model, "plain", every_cut=False)
    code, said = export(model, os.path.join(tmp, "other.gguf"), "f16")
    check("merges that scores cannot say are refused", code != 0 and "do not follow from scores" in said, said.strip()[:200])


with tempfile.TemporaryDirectory() as tmp:
    sentence_piece(tmp)
    adapter = train(tmp, TINY, "adapter", 2000)
    exact = merged(tmp, adapter)
    blocks_of_256(tmp)
    adapters(tmp, adapter, exact)
    refusals(tmp)
    finish()
