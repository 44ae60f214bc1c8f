#!/usr/bin/env python3
"""Make the training text, the tokenizer and the held-out questions of the bundled model.

    apt-get install bible-kjv bible-kjv-text dict-devil        # public-domain English
    pip install tokenizers==0.21.0
    python3 prepare.py OUT_DIR [--conversations 180000] [--vocab 2048]

Writes OUT_DIR/tokenizer.json, OUT_DIR/train.bin and OUT_DIR/valid.bin (uint16 token ids, documents
separated by <|endoftext|>), OUT_DIR/train.weights (a byte a token: 10 in answers, else 1) and
OUT_DIR/heldout.jsonl.  Most of the text is conversations about the
small world of world.py in the model's own chat form; the rest is stories, the King James Bible and
The Devil's Dictionary (both public domain).  Same arguments, same bytes.
"""
import argparse
import array
import gzip
import json
import os
import re
import subprocess
import sys

import world

IM_START, IM_END, END = "<|im_start|>", "<|im_end|>", "<|endoftext|>"


def read_bible():
    try:
        text = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, text=True, check=True,
                              stdin=subprocess.DEVNULL).stdout
    except (OSError, subprocess.CalledProcessError):
        sys.exit("prepare: the command `bible` is missing: apt-get install bible-kjv bible-kjv-text")
    verses = [line.split(" ", 1)[1] for line in text.splitlines() if " " in line]
    return ["\n".join(verses[i:i + 8]) for i in range(0, len(verses), 8)]


def read_devil():
    for path in ("/usr/share/dictd/devil.dict.dz", "/usr/share/dictd/devils.dict.dz"):
        if os.path.exists(path):
            with gzip.open(path, "rt", encoding="utf-8", errors="replace") as f:
                return [p.strip() for p in f.read().split("\n\n") if len(p.strip()) > 40]
    sys.exit("prepare: no Devil's Dictionary: apt-get install dict-devil")


def chat(messages):
    return "".join(f"{IM_START}{role}\n{text}{IM_END}\n" for role, text in messages)


def build_tokenizer(docs, vocab, path):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    pattern = ("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
               "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    specials = [END, IM_START, IM_END]
    trainer = trainers.BpeTrainer(vocab_size=vocab - len(specials), show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    t.train_from_iterator((d.replace(IM_START, "").replace(IM_END, "") for d in docs), trainer)
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in specials])
    t.save(path)
    return t


def weigh(ids, start, assistant, stop):
    """What the assistant says, with the token that ends it, counts ten times as much."""
    weights, inside = bytearray(len(ids)), False
    for i, token in enumerate(ids):
        inside = inside or i > 2 and ids[i - 3] == start and ids[i - 2] == assistant
        weights[i] = 10 if inside else 1
        inside = inside and token != stop
    return weights


def write_heldout(maker, count, path):
    """Questions of each kind, none twice and no kind more than an eighth."""
    rows, seen, left = [], set(), {}
    for _ in range(100 * count):
        key, question, answer = maker.question(True)
        kind = key[0]
        if question in seen or left.setdefault(kind, count // 8) == 0:
            continue
        seen.add(question)
        left[kind] -= 1
        rows.append({"question": question, "answer": answer, "kind": kind})
    with open(path, "w", encoding="utf-8") as f:
        for row in sorted(rows, key=lambda r: r["kind"]):
            f.write(json.dumps(row, ensure_ascii=False) + "\n")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out")
    p.add_argument("--conversations", type=int, default=180000)
    p.add_argument("--vocab", type=int, default=2048)
    p.add_argument("--seed", type=int, default=20261)
    a = p.parse_args()
    os.makedirs(a.out, exist_ok=True)
    devil = read_devil()
    real = read_bible()[::3] + devil
    words = sorted({w for d in devil for w in re.findall(r"\b[a-z]{4,12}\b", d)})
    m = world.Maker(a.seed, words)
    made = [chat(m.conversation()) for _ in range(a.conversations)] + [m.story() for _ in range(a.conversations // 40)]
    docs = made + real
    m.r.shuffle(docs)
    t = build_tokenizer(docs[::4] + real, a.vocab, os.path.join(a.out, "tokenizer.json"))
    end = t.token_to_id(END)
    ids, valid = array.array("H", [end]), array.array("H", [end])
    for i, e in enumerate(t.encode_batch(docs)):
        part = valid if i % 100 == 0 else ids
        part.extend(e.ids)
        part.append(end)
    for name, data in (("train.bin", ids), ("valid.bin", valid)):
        with open(os.path.join(a.out, name), "wb") as f:
            data.tofile(f)
    with open(os.path.join(a.out, "train.weights"), "wb") as f:
        f.write(weigh(ids, t.token_to_id(IM_START), t.token_to_id("assistant"), t.token_to_id(IM_END)))
    write_heldout(world.Maker(a.seed + 1, words), 480, os.path.join(a.out, "heldout.jsonl"))
    print(json.dumps({"documents": len(docs), "train_tokens": len(ids), "valid_tokens": len(valid), "vocab": t.get_vocab_size(),
                      "bytes_per_token": round(sum(map(len, docs)) / (len(ids) + len(valid)), 2)}))


if __name__ == "__main__":
    main()
