#!/usr/bin/env python3
# requirements: torch
"""Compare the engine with PyTorch, transformers and PEFT on generated tiny models.

Logits of every architecture, gradients of every trainable tensor under every loss,
the losses of 20 AdamW steps, and adapter files in both directions.  TAP on stdout.
Names of tests as arguments run those alone.
"""
import json
import math
import os
import subprocess
import sys
import tempfile
import warnings

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch.func import functional_call
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

transformers_logging.disable_progress_bar()
warnings.filterwarnings("ignore", message="Model has `tie_word_embeddings=True`")  # meant so
torch.manual_seed(0)
torch.set_num_threads(1)  # the models are tiny

BUILD = os.environ.get("BUILD_DIR", "build/release")
MAKE = os.path.join(BUILD, "tools", "make-tiny-model")
DUMP = os.path.join(BUILD, "tools", "engine-dump")
VOCAB = 97
count = failed = 0


def check(name, ok, detail=""):
    global count, failed
    count += 1
    failed += not ok
    print(f"{'ok' if ok else 'not ok'} {count} - {name}" + (f" # {detail}" if detail else ""), flush=True)


COMMON = ["--vocab", VOCAB, "--noise", 0.2, "--embed-std", 0.6, "--seed", 11]
MODELS = {
    "qwen3-tied": ["--arch", "qwen3"],
    "qwen3-untied": ["--arch", "qwen3", "--tie", 0, "--heads", 6, "--kv-heads", 3, "--head-dim", 8],
    "qwen2-tied": ["--arch", "qwen2"],
    "qwen2-untied": ["--arch", "qwen2", "--tie", 0],
    "llama-tied": ["--arch", "llama", "--kv-heads", 4],
    "llama3-rope": ["--arch", "llama", "--tie", 0, "--rope", "llama3", "--rope-theta", 500000],
    "llama-linear-rope": ["--arch", "llama", "--rope", "linear"],
    "qwen3-yarn": ["--arch", "qwen3", "--rope", "yarn", "--context", 256],
    "llama-biases": ["--arch", "llama", "--bias", 1],
    "qwen3-bf16-file": ["--arch", "qwen3", "--dtype", "bf16", "--shards", 3],
    "qwen3-moe": ["--arch", "qwen3_moe", "--tie", 0, "--experts", 6, "--experts-used", 2],
    "qwen3-moe-dense-layer": ["--arch", "qwen3_moe", "--experts-used", 3, "--renormalize", 0, "--layers", 3,
                              "--dense-layer", 1, "--intermediate", 40],
    "llama-f16-file": ["--arch", "llama", "--dtype", "f16", "--shards", 2],
}


def make(tmp, name):
    path = os.path.join(tmp, name)
    if not os.path.exists(path):
        subprocess.run([MAKE] + [str(x) for x in MODELS[name] + COMMON] + [path], check=True)
    return path


def load(path):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager",
                                                 experts_implementation="eager")
    return model.eval()


def engine(tmp, model, request, save=None, export=None):
    rq, out = os.path.join(tmp, "request.json"), os.path.join(tmp, "out.safetensors")
    with open(rq, "w") as f:
        json.dump(request, f)
    command = [DUMP, model, rq, out]
    if save:
        os.makedirs(save, exist_ok=True)
        command += [save] + ([export] if export else [])
    subprocess.run(command, check=True)
    return load_file(out)


def sequences(lengths=(70, 5, 33), seed=5):
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(0, VOCAB, (n + 1,), generator=g).tolist() for n in lengths]


def relative(a, b):
    """Largest difference over the largest value of the reference."""
    scale = b.abs().max().item()
    error = (a - b).abs().max().item() / scale if scale else a.abs().max().item()
    return math.inf if math.isnan(error) else error


def datum(sequence, loss, seed, k=1, per_token=False, around=None):
    """Inputs of one loss: weights of both signs and zero; old logprobs around those given."""
    g = torch.Generator().manual_seed(seed)
    n = len(sequence) - 1
    d = {"tokens": sequence[:-1], "target_tokens": sequence[1:]}
    d["weights"] = (torch.rand(n * k, generator=g) * 2 - 0.3).tolist()
    d["weights"][0] = 0.0
    if k > 1:
        d["k"] = k
        d["target_tokens"] = torch.randint(0, VOCAB, (n * k,), generator=g).tolist()
    if loss != "cross_entropy":
        old = torch.full((n,), -math.log(VOCAB)) if around is None else around
        d["logprobs"] = (old + 0.7 * torch.randn(n, generator=g)).tolist()
        d["advantages"] = torch.randn(n, generator=g).tolist()
        d["advantages"][1] = 0.0
    if loss == "gspo":  # with gaps
        d["sequence_ratio_mask"] = [float(i % 3 > 0) for i in range(n)]
    if per_token:
        low = torch.rand(n, generator=g)
        d["clip_low_threshold"] = low.tolist()
        d["clip_high_threshold"] = (low + 2 * torch.rand(n, generator=g)).tolist()
    return d


def torch_losses(name, config, logprobs, d):
    """Of every position, written from the published formulas."""
    w = torch.tensor(d["weights"]).view(logprobs.shape)
    if name == "cross_entropy":
        return -w * logprobs
    q, adv = torch.tensor(d["logprobs"]), torch.tensor(d["advantages"])
    ratio = torch.exp(logprobs - q)
    if name == "importance_sampling":
        return -w * ratio * adv
    if name in ("ppo", "cispo"):
        low, high = {"ppo": (0.8, 1.2), "cispo": (0.0, 4.0)}[name]
        low, high = config.get("clip_low_threshold", low), config.get("clip_high_threshold", high)
        low = torch.tensor(d.get("clip_low_threshold", low))
        high = torch.tensor(d.get("clip_high_threshold", high))
        clipped = torch.maximum(torch.minimum(ratio, high), low)
    if name == "ppo":
        return -w * torch.minimum(ratio * adv, clipped * adv)
    if name == "cispo":
        return -w * clipped.detach() * adv * logprobs
    if name == "stable_reinforce":
        kl = config.get("kl_coeff", 0.0)
        return -w * (ratio.clamp(max=1).detach() * adv * logprobs - kl * (ratio - 1 - (logprobs - q)))
    if name == "gspo":
        low, high = config.get("clip_low_threshold", 0.9997), config.get("clip_high_threshold", 1.0004)
        marked = torch.tensor(d["sequence_ratio_mask"]) != 0
        s = torch.exp((logprobs - q)[marked].mean()).detach()
        s = s * torch.exp(logprobs - logprobs.detach())
        return -w * torch.minimum(s * adv, s.clamp(low, high) * adv)
    beta = config.get("beta", 0.05)
    return -w * (logprobs * adv - 0.5 * beta * (logprobs - q) ** 2)


def torch_logprobs(model, d):
    logits = model(torch.tensor([d["tokens"]])).logits[0]
    targets = torch.tensor(d["target_tokens"]).view(len(d["tokens"]), -1)
    lp = torch.log_softmax(logits, -1).gather(1, targets)
    return lp if "k" in d else lp[:, 0]


def total_loss(model, data, loss, config):
    """The sum, and the sum of absolute values: what an error of the sum is measured by."""
    parts = [torch_losses(loss, config, torch_logprobs(model, d), d) for d in data]
    return sum(p.sum() for p in parts), sum(p.detach().abs().sum().item() for p in parts)


def with_lora(path, unembed):
    """A PEFT model whose B factors are not zero, so that every gradient is alive."""
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    config = LoraConfig(r=4, lora_alpha=32, target_modules=targets + (["lm_head"] if unembed else []),
                        lora_dropout=0.0, bias="none", task_type="CAUSAL_LM")
    model = get_peft_model(load(path), config)
    g = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.copy_(torch.randn(p.shape, generator=g) * 0.02)
    return model


def peft_model(path, adapter):
    """In double: the oracle's own rounding would be the larger error.  The adapter is made once."""
    if not os.path.exists(adapter):
        with_lora(path, unembed=True).save_pretrained(adapter, save_embedding_layers=False)
    return PeftModel.from_pretrained(load(path), adapter, is_trainable=True).double()


def our_name(name):
    return name.replace(".default.", ".").replace("base_model.model.lm_head", "base_model.model.model.unembed_tokens")


def worst_gradient(out, model):
    """The largest relative error of a trained tensor, its name and how many were compared."""
    worst, where, seen = 0.0, "", 0
    for name, p in model.named_parameters():
        if p.grad is None or "lora_" not in name:
            continue
        seen += 1
        r = relative(out["grad." + our_name(name)], p.grad)
        if not r <= worst:
            worst, where = r, name
    return worst, where, seen


def test_logits(tmp):
    for name in MODELS:
        path = make(tmp, name)
        reference = load(path).double()
        seqs = sequences((130, 40, 1))
        data = [{"tokens": s[:-1], "target_tokens": s[1:]} for s in seqs]
        out = engine(tmp, path, {"loss": "cross_entropy", "data": data})
        worst = 0.0
        with torch.no_grad():
            for i, d in enumerate(data):
                logits = reference(torch.tensor([d["tokens"]])).logits[0]
                worst = max(worst, (out[f"logits.{i}"] - logits).abs().max().item())
                lp = torch_logprobs(reference, d)
                worst = max(worst, (out[f"logprobs.{i}"] - lp).abs().max().item())
        check(f"logits of {name} equal transformers", worst < 1e-4, f"max abs diff {worst:.1e}")


# label, loss, config, targets per position, thresholds per token
LOSSES = [("ce", "cross_entropy", {}, 1, False),
          ("ce NxK", "cross_entropy", {}, 5, False),
          ("is", "importance_sampling", {}, 1, False),
          ("ppo", "ppo", {}, 1, False),
          ("ppo set", "ppo", {"clip_low_threshold": 0.5, "clip_high_threshold": 1.7}, 1, False),
          ("ppo free", "ppo", {"clip_low_threshold": 0.0, "clip_high_threshold": 1e6}, 1, False),
          ("ppo tokens", "ppo", {}, 1, True),
          ("cispo", "cispo", {}, 1, False),
          ("cispo set", "cispo", {"clip_low_threshold": 0.6, "clip_high_threshold": 1.5}, 1, False),
          ("cispo tokens", "cispo", {}, 1, True),
          ("dro", "dro", {}, 1, False),
          ("dro set", "dro", {"beta": 0.7}, 1, False),
          ("gspo", "gspo", {}, 1, False),
          ("gspo free", "gspo", {"clip_low_threshold": 0.0, "clip_high_threshold": 1e6}, 1, False),
          ("stable", "stable_reinforce", {}, 1, False),
          ("stable kl", "stable_reinforce", {"kl_coeff": 0.3}, 1, False)]
GRID = ["llama3-rope", "llama-tied", "llama-biases", "qwen2-tied", "qwen2-untied", "qwen3-tied", "qwen3-untied"]


def grid_data(model, loss, k=1, per_token=False):
    """Ratios of new to old lie around 1, on both sides of the thresholds."""
    data = []
    for i, s in enumerate(sequences((45, 5))):
        with torch.no_grad():
            now = torch_logprobs(model, {"tokens": s[:-1], "target_tokens": s[1:]}).float()
        data.append(datum(s, loss, i, k, per_token, now))
    return data


def table(title, columns, rows):
    print(f"# table {title:<22}" + "".join(f"{c:>13}" for c in columns))
    for name, values in rows:
        print(f"# table {name:<22}" + "".join(f"{v:>13.1e}" for v in values))


def test_gradients(tmp):
    """Every loss on every architecture, every LoRA factor, the unembedding's on tied heads too."""
    rows = []
    for name in GRID:
        path, adapter = make(tmp, name), os.path.join(tmp, name + "-peft")
        model = peft_model(path, adapter)
        values, expected = [], 2 * (7 * model.config.num_hidden_layers + 1)
        for label, loss, config, k, per_token in LOSSES:
            data = grid_data(model, loss, k, per_token)
            model.zero_grad()
            value, size = total_loss(model, data, loss, config)
            value.backward()
            out = engine(tmp, path, {"adapter": adapter, "loss": loss, "config": config, "data": data})
            off = abs(out["loss"][0].item() - value.item()) / size
            worst, where, seen = worst_gradient(out, model)
            check(f"{label} on {name}: loss and gradients equal PyTorch + PEFT",
                  off < 1e-5 and worst < 1e-4 and seen == expected,
                  f"loss {off:.1e}; {seen} tensors, worst {worst:.1e} {where}")
            values.append(worst)
        rows.append((name, values))
    table("gradients", [x[0] for x in LOSSES], rows)


def test_long_datum(tmp):
    """A datum of more rows than the engine takes at once: it has a micro-batch of its own."""
    for name in ("qwen3-tied", "llama3-rope"):
        path, adapter = make(tmp, name), os.path.join(tmp, name + "-long-peft")
        model = peft_model(path, adapter)
        data = [datum(s, "cross_entropy", i) for i, s in enumerate(sequences((700, 30, 513)))]
        value, size = total_loss(model, data, "cross_entropy", {})
        value.backward()
        out = engine(tmp, path, {"adapter": adapter, "loss": "cross_entropy", "data": data})
        off = abs(out["loss"][0].item() - value.item()) / size
        worst, where, seen = worst_gradient(out, model)
        check(f"data of 700 and 513 tokens on {name}: loss and gradients equal PyTorch + PEFT",
              off < 1e-5 and worst < 1e-4 and seen > 0, f"loss {off:.1e}; worst {worst:.1e} {where}")


EXPERTS = {"w1": "gate", "w3": "up", "w2": "down"}


class Experts:
    """LoRA on a mixture of experts as this engine has it: gate and up share A over all experts, down
    shares B.  PEFT has no such scheme, so the merged weights are computed here and autograd goes
    through them; the fused experts of transformers are gate_up_proj (E, 2I, H) and down_proj."""

    def __init__(self, path, save):
        self.model = load(path).double()
        self.base = {n: p.detach() for n, p in self.model.named_parameters()}
        weights = load_file(os.path.join(save, "adapter_model.safetensors"))
        self.lora = {n: w.double().requires_grad_() for n, w in weights.items()}

    def product(self, module):
        prefix = "base_model.model.model." + module + ".lora_"
        a, b = self.lora.get(prefix + "A.weight"), self.lora.get(prefix + "B.weight")
        return 0 if a is None else 32 / a.shape[-2] * b @ a

    def merged(self):
        out = {}
        for name, w in self.base.items():
            module = name.removeprefix("model.").removesuffix(".weight")
            if module.endswith(".experts.gate_up_proj"):
                experts = module.removesuffix("gate_up_proj")
                w = w + torch.cat([self.product(experts + "w1"), self.product(experts + "w3")], 1)
            elif module.endswith(".experts.down_proj"):
                w = w + self.product(module.removesuffix("down_proj") + "w2")
            elif module != "embed_tokens":
                w = w + self.product("unembed_tokens" if module == "lm_head" else module)
            out[name] = w
        if "lm_head.weight" not in out:
            out["lm_head.weight"] = out["model.embed_tokens.weight"] + self.product("unembed_tokens")
        return out

    def __call__(self, tokens):
        return functional_call(self.model, self.merged(), (tokens,), tie_weights=False)

    def parameters(self):
        return self.lora.values()


def test_experts(tmp):
    """Gradients of every factor under every loss, and 20 AdamW steps."""
    rows = []
    for name in ("qwen3-moe", "qwen3-moe-dense-layer"):
        path, save = make(tmp, name), os.path.join(tmp, name + "-adapter")
        data = positive([datum(s, "cross_entropy", i) for i, s in enumerate(sequences())])
        engine(tmp, path, {"lora": {"rank": 4, "seed": 2}, "loss": "cross_entropy", "data": data, "steps": 3,
                           "adam": {"lr": 0.01}}, save)  # B is not zero any more
        model, values = Experts(path, save), []
        for label, loss, config, k, per_token in LOSSES:
            data = grid_data(model, loss, k, per_token)
            for p in model.parameters():
                p.grad = None
            value, size = total_loss(model, data, loss, config)
            value.backward()
            out = engine(tmp, path, {"adapter": save, "loss": loss, "config": config, "data": data})
            off = abs(out["loss"][0].item() - value.item()) / size
            worst, where = max((relative(out["grad." + n].view(p.shape), p.grad), n)
                               for n, p in model.lora.items())
            check(f"{label} on {name}: loss and gradients equal autograd", off < 1e-5 and worst < 1e-4,
                  f"loss {off:.1e}; {len(model.lora)} tensors, worst {worst:.1e} {where}")
            values.append(worst)
        rows.append((name, values))
        data = positive(grid_data(model, "cross_entropy"))[:1]
        reference = train(model, data, "cross_entropy", 1e-3)
        out = engine(tmp, path, {"adapter": save, "loss": "cross_entropy", "data": data, "steps": 20,
                                 "adam": {"lr": 1e-3}})
        compare_training(f"losses of 20 AdamW steps on {name}", out, reference)
    table("experts", [x[0] for x in LOSSES], rows)


def test_tied_unembedding(tmp):
    """The pair on a tied head changes the output side only; PEFT cannot say that, so by hand."""
    path = make(tmp, "qwen3-tied")
    save = os.path.join(tmp, "tied-adapter")
    data = [datum(s, "cross_entropy", i) for i, s in enumerate(sequences())]
    request = {"lora": {"rank": 4, "seed": 9, "attn": 0, "mlp": 0}, "loss": "cross_entropy",
               "data": data, "steps": 2, "adam": {"lr": 0.02}}
    engine(tmp, path, request, save)  # two steps make B non-zero
    out = engine(tmp, path, {"adapter": save, "loss": "cross_entropy", "data": data})
    base = load(path)
    weights = load_file(os.path.join(save, "adapter_model.safetensors"))
    prefix = "base_model.model.model.unembed_tokens.lora_"
    a = weights[prefix + "A.weight"].requires_grad_()
    b = weights[prefix + "B.weight"].requires_grad_()
    total = 0
    for d in data:
        h = base.model(torch.tensor([d["tokens"]])).last_hidden_state[0].detach()
        logits = base.lm_head(h) + 32 / 4 * (h @ a.T) @ b.T
        lp = torch.log_softmax(logits, -1).gather(1, torch.tensor(d["target_tokens"])[:, None])[:, 0]
        total = total + torch_losses("cross_entropy", {}, lp, d).sum()
    total.backward()
    worst = max(relative(out[f"grad.{prefix}{x}.weight"], p.grad) for x, p in (("A", a), ("B", b)))
    check("gradients of a tied unembedding", worst < 1e-4, f"worst {worst:.1e}")


def test_full(tmp):
    for name in ("qwen3-tied", "qwen2-untied", "llama-biases"):
        path = make(tmp, name)
        model = load(path).double()
        data = [datum(s, "cross_entropy", i) for i, s in enumerate(sequences())]
        total_loss(model, data, "cross_entropy", {})[0].backward()
        out = engine(tmp, path, {"lora": {"rank": 0}, "loss": "cross_entropy", "data": data})
        worst, where, seen = 0.0, "", 0
        for n, p in model.named_parameters():
            seen += 1
            r = relative(out["grad." + n], p.grad)
            if r > worst:
                worst, where = r, n
        check(f"gradients of every weight of {name}", worst < 1e-4, f"{seen} tensors, worst {worst:.1e} {where}")


def train(model, data, loss, lr, wd=0.0, clip=0.0):
    """The losses of 20 steps and the size of each."""
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=lr, betas=(0.9, 0.95), eps=1e-12, weight_decay=wd)
    losses, sizes = [], []
    for _ in range(20):
        optimizer.zero_grad()
        value, size = total_loss(model, data, loss, {})
        value.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(params, clip)
        optimizer.step()
        losses.append(value.item())
        sizes.append(size)
    return losses, sizes


def compare_training(name, out, reference):
    losses, sizes = reference
    worst = max(abs(a - b) / s for a, b, s in zip(out["loss"].tolist(), losses, sizes))
    moved = abs(losses[-1] - losses[0]) / sizes[0]
    check(name, worst < 1e-5 and moved > 0.01 and len(out["loss"]) == 20,
          f"{losses[0]:.3f} -> {losses[-1]:.3f}, worst relative {worst:.1e}")
    return worst


def positive(data):
    for d in data:
        d["weights"] = [abs(w) for w in d["weights"]]
    return data


def test_training(tmp):
    """20 AdamW steps under every loss on every architecture, with decay and clipping on some."""
    losses, rows = ["cross_entropy", "importance_sampling", "ppo", "cispo", "dro"], []
    for name in GRID:
        path, adapter = make(tmp, name), os.path.join(tmp, name + "-peft")
        values = []
        for loss in losses:
            wd, clip = (0.1, 5.0) if loss in ("cross_entropy", "ppo") else (0.0, 0.0)
            lr = {"cross_entropy": 1e-3, "importance_sampling": 1e-5}.get(loss, 3e-4)  # the ratio has no bound
            model = peft_model(path, adapter)
            data = positive(grid_data(model, loss))[:1]
            reference = train(model, data, loss, lr, wd, clip)
            out = engine(tmp, path, {"adapter": adapter, "loss": loss, "data": data, "steps": 20,
                                     "adam": {"lr": lr, "wd": wd, "clip": clip}})
            values.append(compare_training(f"losses of 20 AdamW steps, {loss} on {name}", out, reference))
        rows.append((name, values))
    table("20 steps", ["ce", "is", "ppo", "cispo", "dro"], rows)
    path = make(tmp, "qwen3-tied")
    data = positive([datum(s, "cross_entropy", i) for i, s in enumerate(sequences())])
    reference = train(load(path), data, "cross_entropy", 1e-3)
    out = engine(tmp, path, {"lora": {"rank": 0}, "loss": "cross_entropy", "data": data, "steps": 20,
                             "adam": {"lr": 1e-3}})
    compare_training("losses of 20 AdamW steps on every weight", out, reference)


def test_files(tmp):
    """PEFT reads what we save and computes the same, lm_head included when asked for its names."""
    for name, unembed in (("qwen3-untied", 0), ("qwen3-untied", 1), ("llama3-rope", 1)):
        path, save = make(tmp, name), os.path.join(tmp, f"ours-{name}-{unembed}")
        data = positive([datum(s, "cross_entropy", i) for i, s in enumerate(sequences())])
        engine(tmp, path, {"lora": {"rank": 8, "seed": 1, "unembed": unembed}, "loss": "cross_entropy",
                           "data": data, "steps": 3, "adam": {"lr": 0.01}, "peft": unembed}, save)
        out = engine(tmp, path, {"adapter": save, "loss": "cross_entropy", "data": data})
        model = PeftModel.from_pretrained(load(path), save).double()
        with torch.no_grad():
            worst = max((out[f"logits.{i}"] - model(torch.tensor([d["tokens"]])).logits[0]).abs().max().item()
                        for i, d in enumerate(data))
        check(f"PEFT reads our adapter of {name}, unembedding {unembed}", worst < 1e-4, f"max abs diff {worst:.1e}")


def test_saved_by_transformers(tmp):
    """What transformers writes today, with its names and nestings, is the model it came from."""
    for name in MODELS:
        path, saved = make(tmp, name), os.path.join(tmp, name + "-saved")
        model = load(path)
        model.save_pretrained(saved)
        data = [{"tokens": s[:-1], "target_tokens": s[1:]} for s in sequences()]
        out = engine(tmp, saved, {"loss": "cross_entropy", "data": data})
        with torch.no_grad():
            worst = max((out[f"logits.{i}"] - model(torch.tensor([d["tokens"]])).logits[0]).abs().max().item()
                        for i, d in enumerate(data))
        check(f"logits of {name} as transformers saves it", worst < 1e-4, f"max abs diff {worst:.1e}")


def test_export(tmp):
    """transformers loads the merged model and computes what base and adapter compute."""
    for name in ("qwen3-tied", "qwen2-untied", "qwen3-bf16-file", "qwen3-moe"):
        path, save, merged = make(tmp, name), os.path.join(tmp, name + "-a"), os.path.join(tmp, name + "-merged")
        data = positive([datum(s, "cross_entropy", i) for i, s in enumerate(sequences())])
        engine(tmp, path, {"lora": {"rank": 8, "seed": 1}, "loss": "cross_entropy", "data": data,
                           "steps": 3, "adam": {"lr": 0.01}}, save, merged)
        out = engine(tmp, path, {"adapter": save, "loss": "cross_entropy", "data": data})
        model = load(merged)
        with torch.no_grad():
            worst = max(relative(out[f"logits.{i}"], model(torch.tensor([d["tokens"]])).logits[0])
                        for i, d in enumerate(data))
        bar = 2e-2 if "bf16" in name else 1e-5  # the merged weights are rounded to bf16 again
        check(f"transformers computes the merged export of {name}", worst < bar, f"relative {worst:.1e}")


def test_bf16(tmp):
    """bf16 weights are an option with a tolerance of their own: that of rounding the weights."""
    path = make(tmp, "qwen3-untied")
    seqs = sequences((64,))
    data = [{"tokens": seqs[0][:-1], "target_tokens": seqs[0][1:]}]
    rounded = load(path).to(torch.bfloat16).to(torch.float32)
    out = engine(tmp, path, {"bf16": 1, "loss": "cross_entropy", "data": data})
    with torch.no_grad():
        reference = rounded(torch.tensor([data[0]["tokens"]])).logits[0]
    r = relative(out["logits.0"], reference)
    check("bf16 weights compute like rounded weights", r < 2e-2, f"relative {r:.1e}")


def test_stored(tmp):
    """Weights held as the file has them, as `tinker serve` does: the bars of float32, not of bf16."""
    name = "qwen3-bf16-file"
    path, adapter = make(tmp, name), os.path.join(tmp, name + "-peft")
    seqs = sequences((130, 40, 1))
    data = [{"tokens": s[:-1], "target_tokens": s[1:]} for s in seqs]
    reference = load(path).double()
    out = engine(tmp, path, {"stored": 1, "loss": "cross_entropy", "data": data})
    with torch.no_grad():
        worst = max((out[f"logits.{i}"] - reference(torch.tensor([d["tokens"]])).logits[0]).abs().max().item()
                    for i, d in enumerate(data))
    check("stored weights: logits equal transformers", worst < 1e-4, f"max abs diff {worst:.1e}")
    model = peft_model(path, adapter)
    expected = 2 * (7 * model.config.num_hidden_layers + 1)
    for label, loss, config, k, per_token in LOSSES:
        data = grid_data(model, loss, k, per_token)
        model.zero_grad()
        value, size = total_loss(model, data, loss, config)
        value.backward()
        out = engine(tmp, path, {"stored": 1, "adapter": adapter, "loss": loss, "config": config, "data": data})
        off = abs(out["loss"][0].item() - value.item()) / size
        worst, where, seen = worst_gradient(out, model)
        check(f"stored weights, {label}: loss and gradients equal PyTorch + PEFT",
              off < 1e-5 and worst < 1e-4 and seen == expected,
              f"loss {off:.1e}; {seen} tensors, worst {worst:.1e} {where}")
    model = peft_model(path, adapter)
    data = positive(grid_data(model, "cross_entropy"))[:1]
    reference = train(model, data, "cross_entropy", 1e-3)
    out = engine(tmp, path, {"stored": 1, "adapter": adapter, "loss": "cross_entropy", "data": data, "steps": 20,
                             "adam": {"lr": 1e-3}})
    compare_training("stored weights: losses of 20 AdamW steps", out, reference)


def main():
    with tempfile.TemporaryDirectory() as directory:
        for test in (test_logits, test_gradients, test_long_datum, test_experts, test_tied_unembedding, test_full,
                     test_training, test_files, test_saved_by_transformers, test_export, test_bf16,
                     test_stored):
            if sys.argv[1:] and test.__name__ not in sys.argv[1:]:
                continue
            try:
                test(directory)
            except Exception as e:  # a crash is a failed test, the others still run
                check(f"{test.__name__} ran", False, f"{type(e).__name__}: {e}")
    print(f"1..{count}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
