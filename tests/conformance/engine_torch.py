#!/usr/bin/env python3
# requirements: torch
"""Compare the engine with PyTorch, transformers and PEFT on generated tiny models.

Logits of every architecture, gradients of every trainable tensor under every loss,
the losses of 20 AdamW steps, and adapter files in both directions.  TAP on stdout.
"""
import json
import math
import os
import subprocess
import sys
import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

torch.manual_seed(0)
torch.set_num_threads(2)

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
    "llama-f16-file": ["--arch", "llama", "--dtype", "f16", "--shards", 2],
}


def make(tmp, name):
    path = os.path.join(tmp, name)
    subprocess.run([MAKE] + [str(x) for x in MODELS[name] + COMMON] + [path], check=True)
    return path


def load(path):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
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
    return (a - b).abs().max().item() / scale if scale else a.abs().max().item()


def datum(sequence, loss, seed):
    g = torch.Generator().manual_seed(seed)
    n = len(sequence) - 1
    d = {"tokens": sequence[:-1], "target_tokens": sequence[1:]}
    d["weights"] = (torch.rand(n, generator=g) * 2 - 0.3).tolist()
    d["weights"][0] = 0.0
    if loss != "cross_entropy":
        d["logprobs"] = (-math.log(VOCAB) + torch.randn(n, generator=g)).tolist()
        d["advantages"] = torch.randn(n, generator=g).tolist()
        d["advantages"][1] = 0.0
    return d


def torch_loss(name, config, logprobs, d):
    """Sum over positions, written from the published formulas."""
    w = torch.tensor(d["weights"])
    if name == "cross_entropy":
        return -(w * logprobs).sum()
    q, adv = torch.tensor(d["logprobs"]), torch.tensor(d["advantages"])
    ratio = torch.exp(logprobs - q)
    if name == "importance_sampling":
        return -(w * ratio * adv).sum()
    low, high = config.get("clip_low_threshold"), config.get("clip_high_threshold")
    if name == "ppo":
        low, high = 0.8 if low is None else low, 1.2 if high is None else high
        return -(w * torch.minimum(ratio * adv, torch.clamp(ratio, low, high) * adv)).sum()
    if name == "cispo":
        low, high = 0.0 if low is None else low, 4.0 if high is None else high
        return -(w * torch.clamp(ratio, low, high).detach() * adv * logprobs).sum()
    beta = config.get("beta", 0.05)
    return -(w * (logprobs * adv - 0.5 * beta * (logprobs - q) ** 2)).sum()


def torch_logprobs(model, d):
    logits = model(torch.tensor([d["tokens"]])).logits[0]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(d["target_tokens"])[:, None])[:, 0]


def total_loss(model, data, loss, config):
    return sum(torch_loss(loss, config, torch_logprobs(model, d), d) for d in data)


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


def our_name(name):
    return name.replace(".default.", ".").replace("base_model.model.lm_head", "base_model.model.model.unembed_tokens")


def compare_gradients(out, model, what, bar=1e-4):
    worst, where, seen = 0.0, "", 0
    for name, p in model.named_parameters():
        if p.grad is None or "lora_" not in name:
            continue
        seen += 1
        r = relative(out["grad." + our_name(name)], p.grad)
        if r > worst:
            worst, where = r, name
    check(what, worst < bar and seen > 0, f"{seen} tensors, worst {worst:.1e} {where}")


def test_logits(tmp):
    for name in MODELS:
        path = make(tmp, name)
        reference = load(path)
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
        check(f"logits of {name} equal transformers", worst < 2e-4, f"max abs diff {worst:.1e}")


LOSSES = [("cross_entropy", {}), ("importance_sampling", {}), ("ppo", {}),
          ("ppo", {"clip_low_threshold": 0.5, "clip_high_threshold": 1.7}), ("cispo", {}),
          ("cispo", {"clip_low_threshold": 0.6, "clip_high_threshold": 1.5}), ("dro", {}),
          ("dro", {"beta": 0.7})]


def test_gradients(tmp):
    for name in ("qwen3-untied", "qwen2-untied", "llama3-rope", "llama-biases"):
        path = os.path.join(tmp, name)
        model = with_lora(path, unembed=name != "llama-biases")
        adapter = os.path.join(tmp, name + "-peft")
        model.save_pretrained(adapter)
        model.double()  # the oracle's own rounding would be the larger error
        for loss, config in LOSSES if name == "qwen3-untied" else LOSSES[:2]:
            data = [datum(s, loss, i) for i, s in enumerate(sequences())]
            model.zero_grad()
            value = total_loss(model, data, loss, config)
            value.backward()
            out = engine(tmp, path, {"adapter": adapter, "loss": loss, "config": config, "data": data})
            label = f"{loss} {config or ''} on {name}"
            r = abs(out["loss"][0].item() - value.item()) / max(1, abs(value.item()))
            check(f"loss of {label}", r < 1e-5, f"{value.item():.6f}, relative {r:.1e}")
            compare_gradients(out, model, f"gradients of {label} equal PyTorch + PEFT")


def test_many_targets(tmp):
    name, k = "qwen3-untied", 5
    path, adapter = os.path.join(tmp, name), os.path.join(tmp, name + "-peft")
    model = PeftModel.from_pretrained(load(path), adapter, is_trainable=True).double()
    g = torch.Generator().manual_seed(3)
    s = sequences((40,))[0]
    targets = torch.randint(0, VOCAB, (40, k), generator=g)
    weights = torch.randn(40, k, generator=g)
    lp = torch.log_softmax(model(torch.tensor([s[:-1]])).logits[0], -1).gather(1, targets)
    (-(weights * lp).sum()).backward()
    d = {"tokens": s[:-1], "k": k, "target_tokens": targets.flatten().tolist(), "weights": weights.flatten().tolist()}
    out = engine(tmp, path, {"adapter": adapter, "loss": "cross_entropy", "data": [d]})
    diff = (out["logprobs.0"] - lp.detach().flatten()).abs().max().item()
    check("logprobs of (N, K) targets", diff < 1e-4, f"{diff:.1e}")
    compare_gradients(out, model, "gradients of (N, K) targets equal PyTorch + PEFT")


def test_tied_unembedding(tmp):
    """The pair on a tied head changes the output side only; PEFT cannot say that, so by hand."""
    path = os.path.join(tmp, "qwen3-tied")
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
        total = total + torch_loss("cross_entropy", {}, lp, d)
    total.backward()
    worst = max(relative(out[f"grad.{prefix}{x}.weight"], p.grad) for x, p in (("A", a), ("B", b)))
    check("gradients of a tied unembedding", worst < 1e-4, f"worst {worst:.1e}")


def test_full(tmp):
    for name in ("qwen3-tied", "qwen2-untied", "llama-biases"):
        path = os.path.join(tmp, name)
        model = load(path).double()
        data = [datum(s, "cross_entropy", i) for i, s in enumerate(sequences())]
        total_loss(model, data, "cross_entropy", {}).backward()
        out = engine(tmp, path, {"lora": {"rank": 0}, "loss": "cross_entropy", "data": data})
        worst, where, seen = 0.0, "", 0
        for n, p in model.named_parameters():
            seen += 1
            r = relative(out["grad." + n], p.grad)
            if r > worst:
                worst, where = r, n
        check(f"gradients of every weight of {name}", worst < 1e-4, f"{seen} tensors, worst {worst:.1e} {where}")


def train(model, params, data, steps, lr, wd, clip):
    optimizer = torch.optim.AdamW(params, lr=lr, betas=(0.9, 0.95), eps=1e-12, weight_decay=wd)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = total_loss(model, data, "cross_entropy", {})
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(params, clip)
        optimizer.step()
        losses.append(loss.item())
    return losses


def compare_training(name, out, losses):
    worst = max(abs(a - b) / abs(b) for a, b in zip(out["loss"].tolist(), losses))
    fell = losses[-1] < losses[0]
    check(name, worst < 1e-5 and fell and len(out["loss"]) == 20,
          f"{losses[0]:.3f} -> {losses[-1]:.3f}, worst relative {worst:.1e}")


def positive(data):
    for d in data:
        d["weights"] = [abs(w) for w in d["weights"]]
    return data


def test_training(tmp):
    for wd, clip, eps in ((0.0, 0.0, 1e-12), (0.1, 5.0, 1e-12)):
        for name in ("qwen3-untied", "qwen2-untied", "llama3-rope"):
            path, adapter = os.path.join(tmp, name), os.path.join(tmp, name + "-peft")
            model = PeftModel.from_pretrained(load(path), adapter, is_trainable=True)
            data = positive([datum(s, "cross_entropy", i) for i, s in enumerate(sequences())])
            params = [p for p in model.parameters() if p.requires_grad]
            losses = train(model, params, data, 20, 1e-3, wd, clip)
            out = engine(tmp, path, {"adapter": adapter, "loss": "cross_entropy", "data": data, "steps": 20,
                                     "adam": {"lr": 1e-3, "wd": wd, "clip": clip, "eps": eps}})
            compare_training(f"losses of 20 AdamW steps on {name}, decay {wd}, clip {clip}", out, losses)
    path = os.path.join(tmp, "qwen3-tied")
    model = load(path)
    data = positive([datum(s, "cross_entropy", i) for i, s in enumerate(sequences())])
    losses = train(model, list(model.parameters()), data, 20, 1e-3, 0.0, 0.0)
    out = engine(tmp, path, {"lora": {"rank": 0}, "loss": "cross_entropy", "data": data, "steps": 20,
                             "adam": {"lr": 1e-3}})
    compare_training("losses of 20 AdamW steps on every weight", out, losses)


def test_files(tmp):
    """PEFT reads what we save and computes the same, lm_head included when asked for its names."""
    for name, unembed in (("qwen3-untied", 0), ("qwen3-untied", 1), ("llama3-rope", 1)):
        path, save = os.path.join(tmp, name), os.path.join(tmp, f"ours-{name}-{unembed}")
        data = positive([datum(s, "cross_entropy", i) for i, s in enumerate(sequences())])
        engine(tmp, path, {"lora": {"rank": 8, "seed": 1, "unembed": unembed}, "loss": "cross_entropy",
                           "data": data, "steps": 3, "adam": {"lr": 0.01}, "peft": unembed}, save)
        out = engine(tmp, path, {"adapter": save, "loss": "cross_entropy", "data": data})
        model = PeftModel.from_pretrained(load(path), save)
        with torch.no_grad():
            worst = max((out[f"logits.{i}"] - model(torch.tensor([d["tokens"]])).logits[0]).abs().max().item()
                        for i, d in enumerate(data))
        check(f"PEFT reads our adapter of {name}, unembedding {unembed}", worst < 2e-4, f"max abs diff {worst:.1e}")


def test_export(tmp):
    """transformers loads the merged model and computes what base and adapter compute."""
    for name in ("qwen3-tied", "qwen2-untied", "qwen3-bf16-file"):
        path, save, merged = (os.path.join(tmp, x) for x in (name, name + "-a", name + "-merged"))
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
    path = os.path.join(tmp, "qwen3-untied")
    seqs = sequences((64,))
    data = [{"tokens": seqs[0][:-1], "target_tokens": seqs[0][1:]}]
    rounded = load(path).to(torch.bfloat16).to(torch.float32)
    out = engine(tmp, path, {"bf16": 1, "loss": "cross_entropy", "data": data})
    with torch.no_grad():
        reference = rounded(torch.tensor([data[0]["tokens"]])).logits[0]
    r = relative(out["logits.0"], reference)
    check("bf16 weights compute like rounded weights", r < 2e-2, f"relative {r:.1e}")


with tempfile.TemporaryDirectory() as directory:
    for test in (test_logits, test_gradients, test_many_targets, test_tied_unembedding, test_full,
                 test_training, test_files, test_export, test_bf16):
        try:
            test(directory)
        except Exception as e:  # a crash is a failed test, the others still run
            check(f"{test.__name__} ran", False, f"{type(e).__name__}: {e}")
print(f"1..{count}")
sys.exit(1 if failed else 0)
