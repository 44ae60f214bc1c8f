#!/usr/bin/env python3
# requirements: torch
"""What the program writes for PEFT, PEFT applies as a whole.

Adapters of every architecture and every choice of what is trained (attention, MLP, unembedding)
are trained a few steps, written in the service's form, converted, and loaded by PEFT onto the model
of transformers: the logits are those of the engine to 1e-4, and away from those of the base.  PEFT
drops tensors that it does not know without a word, so that no logit would tell of a missing pair
that hardly matters: all tensors of the file must be found in PEFT's model, too.  Then the commands
themselves, against a server.  TAP on stdout; names of models as arguments run those alone.
"""
import re
import os
import shutil
import subprocess
import sys
import tempfile
import warnings

import torch
import transformers
from peft import PeftModel
from safetensors.torch import load_file

import engine_arch as arch
import engine_torch as base
from engine_torch import check, engine, positive, datum, sequences

TINKER = os.path.abspath(os.path.join(base.BUILD, "tinker"))
BAR = 1e-4
# of engine_torch: what engine_arch has not
FEW = ["qwen3-tied", "qwen3-untied", "llama-biases", "qwen3-bf16-file", "qwen3-moe", "qwen3-moe-dense-layer"]
SWITCHES = [(1, 1, 1), (1, 1, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1), (0, 1, 1)]


def model_of(tmp, name):
    return base.make(tmp, name) if name in base.MODELS else arch.build(tmp, name)


def transformers_model(path, name):
    if name in arch.WRAPPERS:
        cls = getattr(transformers, arch.WRAPPERS[name][0])
        return cls.from_pretrained(path, dtype=torch.float32, attn_implementation="eager",
                                   experts_implementation="eager").eval()
    return base.load(path)


def logits_of(model, data, name):
    """In double: the oracle's rounding would be the larger error."""
    with torch.no_grad(), arch.all_double(name):
        return [model(torch.tensor([d["tokens"]])).logits[0] for d in data]


def load_peft(path, name, adapter):
    """The model, and which of the file's tensors PEFT did not take, value by value."""
    model = PeftModel.from_pretrained(transformers_model(path, name), adapter)
    inside = {n.replace(".default.", "."): p for n, p in model.named_parameters() if "lora_" in n}
    lost = [n for n, t in load_file(os.path.join(adapter, "adapter_model.safetensors")).items()
            if n not in inside or not torch.equal(inside[n].float(), t.float())]
    return model.double(), lost


def compare(tmp, name, switches, adapter, saved, label):
    path = model_of(tmp, name)
    where = path if name in base.MODELS else arch.served(tmp, name, path)
    data = [{"tokens": s[:-1], "target_tokens": s[1:]} for s in sequences((29, 12))]
    out = engine(tmp, where, {"adapter": saved, "loss": "cross_entropy", "data": data})
    model, lost = load_peft(path, name, adapter)
    got = logits_of(model, data, name)
    with model.disable_adapter():
        plain = logits_of(model, data, name)
    worst = max((out[f"logits.{i}"] - x).abs().max().item() for i, x in enumerate(got))
    apart = min((x - y).abs().max().item() for x, y in zip(got, plain))
    check(f"{name} {label}", worst < BAR and apart > 100 * BAR and not lost,
          f"max abs diff {worst:.1e}, adapter moves {apart:.1e}, lost {lost[:2]}")


def trained(tmp, name, switches):
    """An adapter with all pairs alive, in the service's form."""
    path = model_of(tmp, name)
    where = path if name in base.MODELS else arch.served(tmp, name, path)
    saved = os.path.join(tmp, f"{name}-{''.join(map(str, switches))}")
    data = positive([datum(s, "cross_entropy", i) for i, s in enumerate(sequences((29, 12)))])
    lora = dict(zip(("attn", "mlp", "unembed"), switches), rank=3, seed=2)
    engine(tmp, where, {"lora": lora, "loss": "cross_entropy", "data": data, "steps": 3, "adam": {"lr": 0.01}}, saved)
    return saved


def export(tmp, name, saved):
    out = saved + "-out"
    where = model_of(tmp, name)
    where = where if name in base.MODELS else arch.served(tmp, name, where)
    subprocess.run([TINKER, "weights", "export", saved, "--to", "peft", "--base", where, "-o", out], check=True,
                   stdout=subprocess.DEVNULL)
    return out


def test_model(tmp, name):
    for switches in SWITCHES:
        label = "attn %d mlp %d unembed %d" % switches
        saved = trained(tmp, name, switches)
        out = export(tmp, name, saved)
        compare(tmp, name, switches, out, saved, label)
        again = export(tmp, name, out)  # what was written for PEFT is read again
        first, second = (load_file(os.path.join(d, "adapter_model.safetensors")) for d in (out, again))
        same = first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)
        if switches == SWITCHES[0]:
            check(f"{name}: the engine reads its own PEFT files", same)
        elif not same:
            check(f"{name} {label}: the engine reads its own PEFT files", False)


class Server:
    """`tinker serve` of one model."""

    def __init__(self, tmp, model):
        self.dir = tempfile.mkdtemp(dir=tmp)
        self.env = dict(os.environ, HOME=self.dir, XDG_RUNTIME_DIR=self.dir, TINKER_API_KEY="tml-x", NO_COLOR="1")
        for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "TINKER_BASE_URL"):
            self.env.pop(name, None)
        self.process = subprocess.Popen([TINKER, "serve", "--model", f"test/model={model}", "--listen", "127.0.0.1:0",
                                         "--data-dir", os.path.join(self.dir, "data"), "--allow-local-paths"], env=self.env,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in self.process.stdout:
            if "http://" in line:
                self.env["TINKER_BASE_URL"] = "http://" + line.split("http://")[1].split()[0].rstrip("/")
                return
        raise RuntimeError("the server did not start")

    def run(self, *arguments):
        return subprocess.run([TINKER, *arguments], env=self.env, cwd=self.dir, text=True, capture_output=True)

    def stop(self):
        self.process.terminate()
        self.process.wait(30)


def test_download(tmp, name):
    """The command itself: an adapter brought to the server, fetched in both forms."""
    path = model_of(tmp, name)
    saved = trained(tmp, name, (1, 1, 1))
    server = Server(tmp, path)
    try:
        made = server.run("checkpoint", "import", saved, "-m", "test/model", "--kind", "sampler")
        check(f"{name}: import", made.returncode == 0, made.stderr)
        where = re.search(r"tinker://\S+", made.stdout)[0]
        got = server.run("checkpoint", "download", where, "-o", "peft", "--base", path)
        (adapter,) = os.listdir(os.path.join(server.dir, "peft"))
        check(f"{name}: download", got.returncode == 0, got.stderr)
        compare(tmp, name, (1, 1, 1), os.path.join(server.dir, "peft", adapter), saved, "downloaded")
        server.run("checkpoint", "download", where, "-o", "raw", "--format", "tinker")
        files = [load_file(os.path.join(server.dir, d, adapter, "adapter_model.safetensors")) for d in ("raw",)]
        ours = load_file(os.path.join(saved, "adapter_model.safetensors"))
        check(f"{name}: --format tinker is what the service has",
              files[0].keys() == ours.keys() and all(torch.equal(files[0][n], ours[n]) for n in ours))
    finally:
        server.stop()


def main():
    warnings.filterwarnings("ignore", message="The following (rank|alpha)_pattern")  # they are applied, see PEFT
    names = sys.argv[1:] or [*arch.MODELS, *arch.EXPERTS, *arch.WRAPPERS, *FEW]
    with tempfile.TemporaryDirectory() as tmp:
        tests = [(test_model, n) for n in names]
        if not sys.argv[1:]:
            tests += [(test_download, n) for n in ("qwen3-tied", "qwen3-moe", "gpt-oss")]
        for test, name in tests:
            try:
                test(tmp, name)
            except Exception as e:  # a crash is a failed test, the others still run
                check(f"{name}: {test.__name__} ran", False, f"{type(e).__name__}: {e}")
            for left in os.listdir(tmp):  # models of megabytes each
                if left.startswith(name + "-") and (left.endswith("-out") or left.endswith("-out-out")):
                    shutil.rmtree(os.path.join(tmp, left))
    print(f"1..{base.count}")
    return 1 if base.failed else 0


if __name__ == "__main__":
    sys.exit(main())
