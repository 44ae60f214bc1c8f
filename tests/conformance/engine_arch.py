#!/usr/bin/env python3
# requirements: torch
"""Compare every family of architectures with transformers, PEFT and PyTorch.

The models are made, and saved, by transformers itself: small, of odd sizes, with norms, sinks and
gates away from their defaults, windows shorter than the texts, tied and untied heads, every kind of
rope.  Of each: logits, all LoRA gradients, 20 AdamW steps, greedy tokens, the sampler's
log-probabilities to the bit.  TAP on stdout; names of models as arguments run those alone.
"""
import contextlib
import os
import sys
import tempfile

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file

import engine_torch as base
from engine_torch import check, datum, engine, positive, relative, sequences, torch_logprobs, total_loss

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
SIZES = dict(vocab_size=base.VOCAB, hidden_size=48, intermediate_size=72, num_hidden_layers=4,
             num_attention_heads=4, num_key_value_heads=2, head_dim=20, max_position_embeddings=128,
             pad_token_id=0, bos_token_id=1, eos_token_id=2)
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 30}
DELTA = dict(linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=12,
             linear_value_head_dim=10, linear_conv_kernel_dim=4, head_dim=24)


def longrope(pairs):
    return dict(LONG, short_factor=[1 + 0.1 * i for i in range(pairs)],
                long_factor=[2 + 0.3 * i for i in range(pairs)])


# name: config class, settings; what is not named has the class's default
MODELS = {
    "mistral": ("MistralConfig", dict(sliding_window=5)),
    "mistral-full-tied": ("MistralConfig", dict(sliding_window=None, tie_word_embeddings=True)),
    "ministral": ("MinistralConfig", dict(sliding_window=7, layer_types=["full_attention", "sliding_attention"] * 2)),
    "ministral3": ("Ministral3Config", dict(
        rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.3))),
    "phi3": ("Phi3Config", dict(head_dim=None, hidden_size=64, sliding_window=9)),
    "phi3-longrope": ("Phi3Config", dict(
        head_dim=None, hidden_size=96, tie_word_embeddings=True, original_max_position_embeddings=30,
        rope_parameters=dict(longrope(9), partial_rotary_factor=0.75))),
    "smollm3": ("SmolLM3Config", dict(no_rope_layers=[1, 0, 1, 0])),
    "smollm3-yarn-bias": ("SmolLM3Config", dict(
        attention_bias=True, mlp_bias=True, tie_word_embeddings=False, no_rope_layers=[1, 1, 1, 0],
        rope_parameters=dict(YARN, rope_theta=2e6))),
    "olmo2": ("Olmo2Config", dict(head_dim=None, hidden_size=64)),
    "olmo3": ("Olmo3Config", dict(
        head_dim=None, hidden_size=64, sliding_window=6,
        layer_types=["sliding_attention", "full_attention"] * 2)),
    "granite": ("GraniteConfig", dict(
        head_dim=None, hidden_size=64, embedding_multiplier=3.0, residual_multiplier=0.4,
        attention_multiplier=0.11, logits_scaling=1.7)),
    "granite-tied-bias": ("GraniteConfig", dict(
        head_dim=None, hidden_size=64, embedding_multiplier=2.0, residual_multiplier=0.7,
        attention_multiplier=0.2, logits_scaling=2.5, attention_bias=True, tie_word_embeddings=True)),
    "granite4": ("GraniteMoeHybridConfig", dict(
        head_dim=None, hidden_size=64, num_local_experts=0, shared_intermediate_size=88,
        layer_types=["attention"] * 4, position_embedding_type="rope", embedding_multiplier=3.0,
        residual_multiplier=0.4, attention_multiplier=0.11, logits_scaling=1.7)),
    "granite4-nope": ("GraniteMoeHybridConfig", dict(
        head_dim=None, hidden_size=64, num_local_experts=0, shared_intermediate_size=88,
        layer_types=["attention"] * 4, position_embedding_type=None, embedding_multiplier=3.0,
        residual_multiplier=0.4, attention_multiplier=0.11, logits_scaling=1.7)),
    "gemma2": ("Gemma2Config", dict(
        sliding_window=5, query_pre_attn_scalar=30, attn_logit_softcapping=2.0, final_logit_softcapping=4.0)),
    "gemma2-untied": ("Gemma2Config", dict(
        sliding_window=40, query_pre_attn_scalar=20, attn_logit_softcapping=None, final_logit_softcapping=None,
        tie_word_embeddings=False)),
    "gemma3": ("Gemma3TextConfig", dict(
        sliding_window=5, query_pre_attn_scalar=30, layer_types=["sliding_attention", "full_attention"] * 2,
        rope_parameters={"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}})),
    "gemma3-capped": ("Gemma3TextConfig", dict(
        sliding_window=33, query_pre_attn_scalar=20, final_logit_softcapping=3.0, tie_word_embeddings=False)),
    "llama-dynamic": ("LlamaConfig", dict(
        rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0})),
    "llama-yarn-fraction": ("LlamaConfig", dict(rope_parameters=dict(YARN, truncate=False))),
    "llama-yarn-mscale": ("LlamaConfig", dict(rope_parameters=dict(YARN, mscale=0.7, mscale_all_dim=1.3))),
    "qwen2-window": ("Qwen2Config", dict(
        head_dim=None, hidden_size=64, use_sliding_window=True, sliding_window=6, max_window_layers=2)),
    "qwen3-5": ("Qwen3_5TextConfig", dict(
        DELTA, layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"])),
    "qwen3-5-tied": ("Qwen3_5TextConfig", dict(
        DELTA, linear_num_value_heads=2, tie_word_embeddings=True, num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"])),
}


@contextlib.contextmanager
def all_double(name):
    """transformers computes the delta rule and the norms around it in float32 whatever the model's
    type, and the rule magnifies that: as an oracle every cast to float32 gives double instead."""
    if "qwen3-5" not in name:
        yield
        return
    cast, dtype = torch.Tensor.float, torch.float32
    torch.Tensor.float, torch.float32 = torch.Tensor.double, torch.float64
    try:
        yield
    finally:
        torch.Tensor.float, torch.float32 = cast, dtype


def build(tmp, name):
    """A random model of this configuration, saved by transformers."""
    path = os.path.join(tmp, name)
    if os.path.exists(path):
        return path
    cls, settings = MODELS[name]
    values = {k: v for k, v in {**SIZES, **settings}.items() if v is not None or k not in SIZES}
    config = getattr(transformers, cls)(**values)
    torch.manual_seed(len(name))
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    g = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for n, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=g)
            if p.dim() > 1 and "embed" not in n and "lm_head" not in n and "conv" not in n:
                p.copy_(noise / p.shape[-1] ** 0.5)
            elif p.dim() > 1:
                p.copy_(noise * 0.5)
            else:  # norms, biases, sinks, gates: away from 0 and 1
                p.add_(0.2 * noise)
    model.save_pretrained(path)
    return path


def modules(path):
    """The last parts of the names of all linears but the head."""
    names = set()
    for n, m in base.load(path).named_modules():
        if isinstance(m, torch.nn.Linear) and not n.endswith("lm_head"):
            names.add(n.split(".")[-1])
    return sorted(names)


def with_adapter(tmp, name):
    """A PEFT model in double, whose B factors are not zero, and its files."""
    path, adapter = build(tmp, name), os.path.join(tmp, name + "-peft")
    if not os.path.exists(adapter):
        config = LoraConfig(r=3, lora_alpha=32, target_modules=modules(path), lora_dropout=0.0, bias="none",
                            task_type="CAUSAL_LM")
        model = get_peft_model(base.load(path), config)
        g = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for n, p in model.named_parameters():
                if "lora_B" in n:
                    p.copy_(torch.randn(p.shape, generator=g) * 0.02)
        model.save_pretrained(adapter, save_embedding_layers=False)
    return path, adapter, PeftModel.from_pretrained(base.load(path), adapter, is_trainable=True).double()


def lengths(name):
    return (29, 13, 1) if "longrope" not in name else (29, 13, 45)


def test_logits(tmp, name):
    path = build(tmp, name)
    reference, worst = base.load(path).double(), 0.0
    data = [{"tokens": s[:-1], "target_tokens": s[1:]} for s in sequences((110, 29, 1))]
    out = engine(tmp, path, {"loss": "cross_entropy", "data": data})
    with torch.no_grad(), all_double(name):
        for i, d in enumerate(data):
            logits = reference(torch.tensor([d["tokens"]])).logits[0]
            worst = max(worst, (out[f"logits.{i}"] - logits).abs().max().item())
            lp = torch_logprobs(reference, d)
            worst = max(worst, (out[f"logprobs.{i}"] - lp).abs().max().item())
    check(f"{name}: logits", worst < 1e-4, f"max abs diff {worst:.1e}, |z| up to {logits.abs().max():.1f}")


def test_gradients(tmp, name):
    path, adapter, model = with_adapter(tmp, name)
    data = [datum(s, "cross_entropy", i) for i, s in enumerate(sequences((70, 13, 29)))]
    with all_double(name):
        value, size = total_loss(model, data, "cross_entropy", {})
        value.backward()
    out = engine(tmp, path, {"adapter": adapter, "loss": "cross_entropy", "data": data})
    worst, where, seen = base.worst_gradient(out, model)
    off = abs(out["loss"][0].item() - value.item()) / size
    expected = sum("lora_" in n for n, _ in model.named_parameters())
    check(f"{name}: loss and LoRA gradients", off < 1e-5 and worst < 1e-4 and seen == expected,
          f"loss {off:.1e}; {seen} tensors, worst {worst:.1e} {where}")


def test_training(tmp, name):
    path, adapter, model = with_adapter(tmp, name)
    data = positive([datum(s, "cross_entropy", i) for i, s in enumerate(sequences((29,)))])
    with all_double(name):
        reference = base.train(model, data, "cross_entropy", 1e-3)
    out = engine(tmp, path, {"adapter": adapter, "loss": "cross_entropy", "data": data, "steps": 20,
                             "adam": {"lr": 1e-3}})
    base.compare_training(f"{name}: losses of 20 AdamW steps", out, reference)


def main():
    names = [n for n in sys.argv[1:]] or list(MODELS)
    with tempfile.TemporaryDirectory() as tmp:
        for name in names:
            for test in (test_logits, test_gradients, test_training):
                test(tmp, name)
    print(f"1..{base.count}")
    return 1 if base.failed else 0


if __name__ == "__main__":
    sys.exit(main())
