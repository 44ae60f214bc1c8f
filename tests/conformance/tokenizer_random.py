# requirements: tokenizer
"""Tokenizer files put together at random, against Hugging Face's Rust engine: ids, spans and text.

Every kind of normalizer, pre-tokenizer, decoder and flag of an added token meets every other.
Three things are left out where the engine has no rule to follow, or one of its version only: two
added tokens that normalize to the same text, the text of an added token that its normalizer
changes, and characters without any token, whose length its spans forget.
"""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata

import tokenizers

TOOL = os.path.join(os.environ.get("BUILD_DIR", "build/release"), "tools", "tok-conform")
FILES = 600
CHARS = list("[]XnwABabcdeABxyzIS01 2.,-'_éß<>|漢字가クか") + [
    "ｶﾞ", "ﾊﾟ", "ㄱㅏ", "ﾡￂ", "ﬁ", "①", "Å", "İ", "Σ", "😀", "▁", "ａ", "ガ", "½", "క", "ﷺ",
    "ＡＢ", "  ", "\n", "\t", "\0", "\x1c", "\u0301", "\u0316", "\u0903", "e\u0301", "\u200b", "\u00a0",
    "\u0f73", "\u0344", "か\u3099", "\u1e9b\u0323", "\ufeff"]
ADDED = ["<a>", "<ab>", " x", "ab", "\n", "é", "e\u0301", "[X]", "▁", "  ", "<|end|>", "b", "ＡＢ", "A",
         "x ", "ﬁ", "a b", "  <a>", "12", "-"]
REGEX = ["a+", " {2,}", "x*", "(?=a)", "[ab]", "\\s+", "\\d", "é", "^a", "b$", "(?<=a)", "\\p{L}+", "[^a]",
         "a|b", " *"]
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]


def byte_map():
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(others)}}


BYTES = byte_map()


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def maybe(self, share=0.5):
        return self.r.random() < share

    def text(self):
        return "".join(self.r.choice(CHARS if self.maybe(0.8) else ADDED)
                       for _ in range(self.r.randint(0, 14)))

    def replace(self, content):
        pattern = {"Regex": self.r.choice(REGEX)} if self.maybe() else {
            "String": self.r.choice([" ", "a", "ab", "  ", "é", "▁"])}
        return {"type": "Replace", "pattern": pattern, "content": self.r.choice(content)}

    def sequence(self, key, make, depth):
        return {"type": "Sequence", key: [make(depth + 1) for _ in range(self.r.randint(1, 3))]}

    def normalizer(self, depth=0):
        kind = self.r.choice(["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents", "Replace",
                              "Prepend", "Nmt", "Sequence", "BertNormalizer"])
        if kind == "Strip":
            return {"type": kind, "strip_left": self.maybe(), "strip_right": self.maybe()}
        if kind == "Replace":
            return self.replace(["▁", "", "_x", "é", " "])
        if kind == "Prepend":
            return {"type": kind, "prepend": self.r.choice(["▁", "ab"])}
        if kind == "BertNormalizer":
            return {"type": kind, "clean_text": self.maybe(), "handle_chinese_chars": self.maybe(),
                    "strip_accents": self.r.choice([None, True, False]), "lowercase": self.maybe()}
        if kind == "Sequence":
            return self.sequence("normalizers", self.normalizer, depth) if depth < 2 else {"type": "NFC"}
        return {"type": kind}

    def pre_tokenizer(self, first, depth=0):
        kind = self.r.choice(["Split", "Digits", "Whitespace", "WhitespaceSplit", "Punctuation", "Metaspace",
                              "CharDelimiterSplit", "BertPreTokenizer", "FixedLength", "Sequence"])
        if kind == "Split":
            return {**self.replace([""]), "type": kind, "behavior": self.r.choice(BEHAVIORS),
                    "invert": self.maybe(0.3)}
        if kind == "Digits":
            return {"type": kind, "individual_digits": self.maybe()}
        if kind == "Punctuation":
            return {"type": kind, "behavior": self.r.choice(BEHAVIORS)}
        if kind == "Metaspace":
            schemes = ["always", "never"] + ["first"] * first
            return {"type": kind, "replacement": "▁", "prepend_scheme": self.r.choice(schemes),
                    "split": self.maybe()}
        if kind == "CharDelimiterSplit":
            return {"type": kind, "delimiter": self.r.choice(" -a")}
        if kind == "FixedLength":
            return {"type": kind, "length": self.r.randint(1, 4)}
        if kind == "Sequence" and depth < 2:
            return self.sequence("pretokenizers", lambda d: self.pre_tokenizer(first, d), depth)
        return {"type": "WhitespaceSplit" if kind == "Sequence" else kind}

    def decoder(self, depth=0):
        kind = self.r.choice(["ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace", "WordPiece",
                              "BPEDecoder", "Sequence", "Llama"])
        if kind == "Replace":
            return self.replace([" ", "", "_"])
        if kind == "Strip":
            return {"type": kind, "content": self.r.choice(" a"), "start": self.r.randint(0, 2), "stop": 0}
        if kind == "Metaspace":
            return {"type": kind, "replacement": "▁", "split": True,
                    "prepend_scheme": self.r.choice(["always", "never", "first"])}
        if kind == "WordPiece":
            return {"type": kind, "prefix": self.r.choice(["##", "a"]), "cleanup": self.maybe()}
        if kind == "BPEDecoder":
            return {"type": kind, "suffix": self.r.choice(["</w>", "b"])}
        if kind == "Llama":
            strip = {"type": "Strip", "content": " ", "start": self.r.randint(0, 2), "stop": 0}
            return {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                {"type": "Fuse"}] + [strip] * self.maybe()}
        if kind == "Sequence":
            return self.sequence("decoders", self.decoder, depth) if depth < 2 else {"type": "Fuse"}
        return {"type": kind}

    def model(self, byte_level):
        tokens, merges = dict.fromkeys(BYTES.values()) if byte_level else {}, []
        if not byte_level:
            forms = [f(n, c) for c in "".join(CHARS + ADDED) for n in ("NFC", "NFKD")
                     for f in (unicodedata.normalize, lambda n, c: unicodedata.normalize(n, c.lower()))]
            tokens = dict.fromkeys("".join(CHARS + forms))
            tokens.update(dict.fromkeys([f"<0x{b:02X}>" for b in range(256)] + ["<unk>", "##"]))
        parts = [BYTES[b] for c in CHARS for b in c.encode()] if byte_level else list("".join(CHARS))
        for _ in range(self.r.randint(0, 60)):
            pair = [self.r.choice(parts), self.r.choice(parts)]
            if pair not in merges:
                merges.append(pair)
                parts.append("".join(pair))
                tokens.setdefault("".join(pair))
        return {"type": "BPE", "dropout": None, "unk_token": None if byte_level else "<unk>",
                "continuing_subword_prefix": None, "end_of_word_suffix": None,
                "fuse_unk": self.maybe(), "byte_fallback": not byte_level and self.maybe(),
                "ignore_merges": self.maybe(0.3), "vocab": {t: i for i, t in enumerate(tokens)},
                "merges": merges}

    def added(self, vocab):
        out, top = [], len(vocab)
        for content in self.r.sample(ADDED, self.r.randint(0, 7)):
            top += content not in vocab
            out.append({"id": vocab.get(content, top - 1), "content": content, "single_word": self.maybe(0.25),
                        "lstrip": self.maybe(0.3), "rstrip": self.maybe(0.3), "normalized": self.maybe(),
                        "special": self.maybe(0.4)})
        return sorted(out, key=lambda a: a["id"])

    def file(self):
        byte_level = self.maybe()
        model = self.model(byte_level)
        norm = self.normalizer() if self.maybe(0.6) else None
        pre = self.pre_tokenizer(norm is None) if self.maybe(0.8) else None
        if byte_level:
            last = {"type": "ByteLevel", "add_prefix_space": self.maybe(0.3), "trim_offsets": True,
                    "use_regex": self.maybe()}
            pre = {"type": "Sequence", "pretokenizers": [pre, last]} if pre else last
        post = self.r.choice([None, {"type": "ByteLevel", "add_prefix_space": self.maybe(),
                                     "trim_offsets": self.maybe(0.7), "use_regex": True}])
        return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": self.added(model["vocab"]),
                "normalizer": norm, "pre_tokenizer": pre, "post_processor": post,
                "decoder": {"type": "ByteLevel"} if byte_level and self.maybe(0.7) else self.decoder(),
                "model": model}


class Refused(Exception):
    pass


def ours(mode, path, data, *flags):
    run = subprocess.run([TOOL, mode, path, *flags], input=data, capture_output=True)
    if run.returncode:
        raise Refused(run.stderr.decode())
    answer, out, at = run.stdout, [], 0
    while at < len(answer):
        n, = struct.unpack_from("<I", answer, at)
        size = {"decode": n, "encode": 4 * n, "spans": 12 * n}[mode]
        body = answer[at + 4:at + 4 + size]
        at += 4 + size
        words = struct.unpack(f"<{size // 4}I", body) if mode != "decode" else ()
        spans = list(zip(words[n::2], words[n + 1::2]))
        out.append(body if mode == "decode" else (list(words[:n]), spans))
    return out


def ask(engine, text):
    """The engine panics on a few texts."""
    try:
        return engine.encode(text, add_special_tokens=False)
    except BaseException:
        return None


def read(engine, ids, skip):
    try:
        return engine.decode(ids, skip_special_tokens=skip).encode()
    except BaseException:
        return None


def compare(seed, path):
    """None when the file does not count, else the differences."""
    maker = Maker(seed)
    spec = maker.file()
    try:
        engine = tokenizers.Tokenizer.from_str(json.dumps(spec))
    except Exception:
        return None
    normal = [engine.normalizer.normalize_str(a["content"]) if engine.normalizer and a["normalized"] else
              a["content"] for a in spec["added_tokens"]]
    if len(set(normal)) < len(normal):
        return None
    with open(path, "w", encoding="utf-8") as f:
        json.dump(spec, f)
    texts = [maker.text() for _ in range(25)]
    want = [ask(engine, t) for t in texts]
    data = b"".join(struct.pack("<I", len(t)) + t for t in (t.encode() for t in texts))
    bad = []
    for text, w, plain, spans in zip(texts, want, ours("encode", path, data), ours("spans", path, data)):
        if w and (plain[0] != w.ids or spans != (w.ids, [tuple(o) for o in w.offsets])):
            bad.append(f"{text!r}: ours {plain[0]} {spans}, want {w.ids} {w.offsets}")
    changed = {a["id"] for a, n in zip(spec["added_tokens"], normal) if n != a["content"]}
    size = len(spec["model"]["vocab"]) + 10
    lists = [w.ids for w in want if w] + [[maker.r.randrange(size) for _ in range(maker.r.randint(0, 9))]
                                          for _ in range(15)]
    lists = [ids for ids in lists if not changed & set(ids)]
    data = b"".join(struct.pack(f"<{len(i) + 1}I", len(i), *i) for i in lists)
    for skip in (False, True):
        for ids, got in zip(lists, ours("decode", path, data, *["skip_special"] * skip)):
            text = read(engine, ids, skip)
            if text is not None and got != text:
                bad.append(f"ids {ids}: ours {got}, want {text}")
    if bad:
        rest = {k: v for k, v in spec.items() if k != "model"}
        bad.append(json.dumps({**rest, **{k: v for k, v in spec["model"].items() if k not in ("vocab", "merges")}},
                              ensure_ascii=False))
    return bad


def main():
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    sys.stderr = open(os.devnull, "w")  # where panics are told
    os.dup2(sys.stderr.fileno(), 2)
    count, failed, differ = 0, 0, []
    with tempfile.TemporaryDirectory() as place:
        for seed in range(FILES):
            try:
                bad = compare(seed, os.path.join(place, "tokenizer.json"))
            except Refused as e:
                bad = [f"refused by us: {e}"]
            count += bad is not None
            if bad:
                failed += 1
                differ = differ or [f"file {seed}", *bad[:2], bad[-1]]
    print(f"{'not ok' if failed else 'ok'} 1 - ids, spans and text of {count} random files, {failed} differ")
    for line in differ:
        print("# " + line.replace("\n", "\\n"))
    enough = count > FILES // 3
    print(f"{'ok' if enough else 'not ok'} 2 - enough of {FILES} files count")
    print("1..2")
    sys.exit(failed > 0 or not enough)


main()
