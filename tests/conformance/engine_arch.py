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
import shutil
import sys
import tempfile

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

import engine_torch as base
from engine_torch import check, datum, engine, positive, relative, sequences, torch_logprobs, total_loss

LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
SIZES = dict(vocab_size=base.VOCAB, hidden_size=48, intermediate_size=72, num_hidden_layers=4,
             num_attention_heads=4, num_key_value_heads=2, head_dim=20, max_position_embeddings=128,
             pad_token_id=0, bos_token_id=1, eos_token_id=2)
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 30}
DELTA = dict(linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=12,
             linear_value_head_dim=10, linear_conv_kernel_dim=4, head_dim=24, rms_norm_eps=1e-3)
MOE = dict(num_experts_per_tok=2, num_local_experts=4)


def longrope(pairs):
    return dict(LONG, short_factor=[1 + 0.1 * i for i in range(pairs)],
                long_factor=[2 + 0.3 * i for i in range(pairs)])


# name: config class, settings; what is not named has the class's default
MODELS = {
    "mistral": ("MistralConfig", dict(sliding_window=5)),
    "mistral-full-tied": ("MistralConfig", dict(sliding_window=None, tie_word_embeddings=True)),
    "ministral": ("MinistralConfig", dict(sliding_window=7, layer_types=["full_attention", "sliding_attention"] * 2)),
    "ministral-tied": ("MinistralConfig", dict(sliding_window=33, tie_word_embeddings=True)),
    "ministral3": ("Ministral3Config", dict(
        rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.3))),
    "ministral3-tied": ("Ministral3Config", dict(
        tie_word_embeddings=True, rope_parameters=dict(YARN, llama_4_scaling_beta=0.1))),
    "phi3": ("Phi3Config", dict(head_dim=None, hidden_size=64, sliding_window=9)),
    "phi3-longrope": ("Phi3Config", dict(
        head_dim=None, hidden_size=96, tie_word_embeddings=True, original_max_position_embeddings=30,
        rope_parameters=dict(longrope(9), partial_rotary_factor=0.75))),
    "smollm3": ("SmolLM3Config", dict(no_rope_layers=[1, 0, 1, 0])),
    "smollm3-yarn-bias": ("SmolLM3Config", dict(
        attention_bias=True, mlp_bias=True, tie_word_embeddings=False, no_rope_layers=[1, 1, 1, 0],
        rope_parameters=dict(YARN, rope_theta=2e6))),
    "olmo2": ("Olmo2Config", dict(head_dim=None, hidden_size=64)),
    "olmo2-tied": ("Olmo2Config", dict(
        head_dim=None, hidden_size=64, num_key_value_heads=4, tie_word_embeddings=True, attention_bias=True)),
    "olmo3": ("Olmo3Config", dict(
        head_dim=None, hidden_size=64, sliding_window=6,
        layer_types=["sliding_attention", "full_attention"] * 2)),
    "olmo3-yarn-tied": ("Olmo3Config", dict(
        head_dim=None, hidden_size=64, sliding_window=33, tie_word_embeddings=True,
        rope_parameters={"full_attention": dict(YARN), "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}})),
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
    "granite4-nope-tied": ("GraniteMoeHybridConfig", dict(
        head_dim=None, tie_word_embeddings=True, hidden_size=64, num_local_experts=0, shared_intermediate_size=88,
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
    "llama3-bias": ("LlamaConfig", dict(rope_parameters=LLAMA3, attention_bias=True, mlp_bias=True)),
    "llama-linear-tied": ("LlamaConfig", dict(
        num_key_value_heads=1, tie_word_embeddings=True,
        rope_parameters={"rope_type": "linear", "factor": 3.0, "rope_theta": 10000.0})),
    "llama-dynamic": ("LlamaConfig", dict(
        rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0})),
    "llama-yarn-fraction": ("LlamaConfig", dict(rope_parameters=dict(YARN, truncate=False))),
    "llama-yarn-mscale": ("LlamaConfig", dict(rope_parameters=dict(YARN, mscale=0.7, mscale_all_dim=1.3))),
    "qwen2-window": ("Qwen2Config", dict(
        head_dim=None, hidden_size=64, use_sliding_window=True, sliding_window=6, max_window_layers=2)),
    "qwen2-tied": ("Qwen2Config", dict(head_dim=None, hidden_size=64, tie_word_embeddings=True)),
    "qwen3": ("Qwen3Config", dict(rope_parameters=dict(YARN, rope_theta=1e6))),
    "qwen3-tied": ("Qwen3Config", dict(tie_word_embeddings=True)),
    "qwen3-5": ("Qwen3_5TextConfig", dict(
        DELTA, layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"])),
    "qwen3-5-tied": ("Qwen3_5TextConfig", dict(
        DELTA, linear_num_value_heads=2, tie_word_embeddings=True, num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"])),
}
# with experts; PEFT has no adapters like ours for them, so that the oracle is autograd
EXPERTS = {
    "qwen3-moe": ("Qwen3MoeConfig", dict(
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=40, norm_topk_prob=True, mlp_only_layers=[1])),
    "qwen3-moe-tied": ("Qwen3MoeConfig", dict(
        num_experts=5, num_experts_per_tok=3, moe_intermediate_size=24, norm_topk_prob=False, tie_word_embeddings=True)),
    "mixtral": ("MixtralConfig", dict(MOE)),
    "mixtral-window": ("MixtralConfig", dict(MOE, sliding_window=6, tie_word_embeddings=True)),
    "gpt-oss": ("GptOssConfig", dict(
        MOE, sliding_window=5, num_hidden_layers=2, rope_parameters=dict(YARN, truncate=False))),
    "gpt-oss-mxfp4": ("GptOssConfig", dict(
        MOE, tie_word_embeddings=True, hidden_size=64, intermediate_size=96, sliding_window=5, num_hidden_layers=2)),
    "qwen3-5-moe": ("Qwen3_5MoeTextConfig", dict(
        DELTA, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=40, num_hidden_layers=2,
        shared_expert_intermediate_size=36, layer_types=["linear_attention", "full_attention"])),
    "qwen3-5-moe-tied": ("Qwen3_5MoeTextConfig", dict(
        DELTA, linear_num_value_heads=2, num_experts=3, num_experts_per_tok=2, moe_intermediate_size=24, num_hidden_layers=2,
        shared_expert_intermediate_size=20, tie_word_embeddings=True, layer_types=["linear_attention", "full_attention"])),
}
# text parts of multimodal models: class of the whole, class and settings of its configuration
TEXT = dict(SIZES, num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"], sliding_window=5,
            query_pre_attn_scalar=20)
VISION = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, image_size=28,
              patch_size=14)
WRAPPERS = {
    "gemma3-vision": ("Gemma3ForConditionalGeneration", "Gemma3Config", dict(
        text_config=TEXT, vision_config=VISION, mm_tokens_per_image=4)),
    "mistral3-vision": ("Mistral3ForConditionalGeneration", "Mistral3Config", dict(
        text_config=dict(SIZES, model_type="mistral", num_hidden_layers=2, sliding_window=None),
        vision_config=dict(VISION, model_type="pixtral"), tie_word_embeddings=False)),
    "qwen3-5-vision": ("Qwen3_5ForConditionalGeneration", "Qwen3_5Config", dict(
        text_config=dict(SIZES, **{**DELTA, "num_hidden_layers": 2,
                                   "layer_types": ["linear_attention", "full_attention"]}),
        vision_config=dict(depth=1, hidden_size=16, intermediate_size=24, num_heads=2, out_hidden_size=48,
                           patch_size=4, num_position_embeddings=16))),
    "qwen3-5-moe-vision": ("Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeConfig", dict(
        text_config=dict(SIZES, **{**DELTA, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"],
                                   "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
                                   "shared_expert_intermediate_size": 20}),
        vision_config=dict(depth=1, hidden_size=16, intermediate_size=24, num_heads=2, out_hidden_size=48,
                           patch_size=4, num_position_embeddings=16))),
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


def randomize(model):
    """Every parameter away from its default: a forgotten "plus one" hides at 0."""
    g = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for n, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=g)
            if p.dim() > 1 and "embed" not in n and "lm_head" not in n and "conv" not in n:
                p.copy_(noise / p.shape[-1] ** 0.5)
            elif p.dim() > 1:
                p.copy_(noise * 0.5)
            else:  # norms, biases, sinks, gates
                p.add_(0.2 * noise)


def build(tmp, name):
    """A random model of this configuration, saved by transformers."""
    path = os.path.join(tmp, name)
    if os.path.exists(path):
        return path
    torch.manual_seed(len(name))
    if name in WRAPPERS:
        cls, config, settings = WRAPPERS[name]
        model = getattr(transformers, cls)(getattr(transformers, config)(**settings))
    else:
        cls, settings = {**MODELS, **EXPERTS}[name]
        values = {k: v for k, v in {**SIZES, **settings}.items() if v is not None or k not in SIZES}
        model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, cls)(**values),
                                                              attn_implementation="eager")
    randomize(model)
    if name.endswith("mxfp4"):
        round_to_mxfp4(model)
    model.save_pretrained(path)
    if name.endswith("mxfp4"):
        store_as_mxfp4(path)
    return path


def load(path, name):
    if name not in WRAPPERS:
        return base.load(path)
    return getattr(transformers, WRAPPERS[name][0]).from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager").eval()


E2M1 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0.0, -.5, -1, -1.5, -2, -3, -4, -6])


def mxfp4(rows):
    """Nearest blocks of rows (..., in): numbers of elements, scales, values."""
    blocks = rows.reshape(*rows.shape[:-1], -1, 32)
    scale = torch.floor(torch.log2(blocks.abs().amax(-1, keepdim=True))) - 2
    codes = (blocks[..., None] / 2 ** scale[..., None] - E2M1).abs().argmin(-1)
    return codes, (scale[..., 0] + 127).to(torch.uint8), (E2M1[codes] * 2 ** scale).reshape(rows.shape)


def round_to_mxfp4(model):
    """Experts that MXFP4 can say exactly; they are stored (experts, in, out)."""
    with torch.no_grad():
        for n, p in model.named_parameters():
            if n.endswith(("gate_up_proj", "down_proj")):
                p.copy_(mxfp4(p.transpose(1, 2))[2].transpose(1, 2))


def store_as_mxfp4(path):
    """The experts as GPT-OSS was released: blocks of 16 bytes and scales."""
    file = os.path.join(path, "model.safetensors")
    tensors = {}
    for n, t in load_file(file).items():
        if not n.endswith(("gate_up_proj", "down_proj")):
            tensors[n] = t
            continue
        codes, scales, _ = mxfp4(t.transpose(1, 2).contiguous())
        tensors[n + "_blocks"] = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
        tensors[n + "_scales"] = scales
    save_file(tensors, os.path.join(path, "mxfp4.safetensors"), metadata={"format": "pt"})


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


def test_logits(tmp, name):
    path = build(tmp, name)
    reference, worst = load(path, name).double(), 0.0
    data = [{"tokens": s[:-1], "target_tokens": s[1:]} for s in sequences((110, 29, 1))]
    out = engine(tmp, served(tmp, name, path), {"loss": "cross_entropy", "data": data})
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


def expert_gradient(out, name, shape, model):
    """Of a stack of transformers, from the gradients of the engine's single experts."""
    before, stack = name.rsplit(".", 1)
    turned = model.config.model_type == "gpt_oss"
    known = [before] + [before.replace(".mlp.", ".block_sparse_moe.")]
    parts = {"gate_up_proj": [("gate_proj", "w1"), ("up_proj", "w3")], "down_proj": [("down_proj", "w2")]}
    kind = "bias" if stack.endswith("_bias") else "weight"

    def one(e, names):
        return next(out[k] for b in known for n in names if (k := f"grad.{b}.{e}.{n}.{kind}") in out)

    experts = []
    for e in range(shape[0]):
        found = [one(e, names) for names in parts[stack.removesuffix("_bias")]]
        both = torch.stack(found, 1).flatten(0, 1) if turned and len(found) == 2 else torch.cat(found)
        experts.append(both.T if turned and kind == "weight" else both)
    return torch.stack(experts)


def test_full(tmp, name):
    """Gradients of every weight: embedding, norms, biases, sinks, routers and all that LoRA leaves alone."""
    path = build(tmp, name)
    model = base.load(path).double()
    data = positive([datum(s, "cross_entropy", i) for i, s in enumerate(sequences((70, 13)))])
    with all_double(name):
        total_loss(model, data, "cross_entropy", {})[0].backward()
    out = engine(tmp, path, {"lora": {"rank": 0}, "loss": "cross_entropy", "data": data})
    worst, where, seen = 0.0, "", 0
    largest = max(p.grad.abs().max().item() for p in model.parameters())
    for n, p in model.named_parameters():
        seen += 1
        got = out.get("grad." + n)
        if got is None and ".block_sparse_moe." not in n:
            got = out.get("grad." + n.replace(".mlp.gate.", ".block_sparse_moe.gate."))
        if got is None:
            got = expert_gradient(out, n, p.shape, model)
        r = relative(got.view(p.shape), p.grad)
        if p.grad.abs().max().item() < 1e-7 * largest:
            # Zero but for rounding, which the softmax of transformers has in float32: a bias of keys
            # without rope adds the same to all scores of a query.
            r = 1e3 * got.abs().max().item() / largest
        if not r <= worst:
            worst, where = r, n
    check(f"{name}: gradients of every weight", worst < 1e-4, f"{seen} tensors, worst {worst:.1e} {where}")


def test_training(tmp, name):
    path, adapter, model = with_adapter(tmp, name)
    data = positive([datum(s, "cross_entropy", i) for i, s in enumerate(sequences((29,)))])
    with all_double(name):
        reference = base.train(model, data, "cross_entropy", 1e-3)
    out = engine(tmp, path, {"adapter": adapter, "loss": "cross_entropy", "data": data, "steps": 20,
                             "adam": {"lr": 1e-3}})
    base.compare_training(f"{name}: losses of 20 AdamW steps", out, reference)


def served(tmp, name, path):
    """The directory for the engine: of MXFP4 one with the blocks alone."""
    if not name.endswith("mxfp4"):
        return path
    other = path + "-blocks"
    if not os.path.exists(other):
        os.makedirs(other)
        shutil.copy(os.path.join(path, "config.json"), other)
        shutil.move(os.path.join(path, "mxfp4.safetensors"), os.path.join(other, "model.safetensors"))
    return other


def test_generation(tmp, name):
    """Greedy tokens, and that the sampler says what the trainer says, to the bit."""
    path = build(tmp, name)
    s = sequences((21,))[0][:-1]
    count = 8 if "longrope" in name else 44  # transformers changes the frequencies within a text, we do not
    reference, tokens = load(path, name).double(), list(s)
    with torch.no_grad(), all_double(name):
        for _ in range(count):
            tokens.append(reference(torch.tensor([tokens])).logits[0, -1].argmax().item())
    where = served(tmp, name, path)
    out = engine(tmp, where, {"loss": "cross_entropy", "generate": count,
                              "data": [{"tokens": s, "target_tokens": s}]})
    out = {k: v.clone() for k, v in out.items()}  # the next run writes the same file
    generated = [int(t) for t in out["generated.0"]]
    again = engine(tmp, where, {"loss": "cross_entropy", "threads": 3, "data": [
        {"tokens": tokens[:-1], "target_tokens": tokens[1:]}]})
    lp = again["logprobs.0"]
    same = torch.equal(out["sampled.0"], lp[len(s) - 1:]) and torch.equal(out["prompt.0"], lp[:len(s) - 1])
    check(f"{name}: greedy tokens, sampler = trainer", generated == tokens[len(s):] and same,
          f"tokens {generated == tokens[len(s):]}, bits {same}")


class Experts(base.Experts):
    """As in engine_torch, with the names and layouts of each family."""

    def merged(self):
        out = {}
        for name, w in self.base.items():
            module = name.removeprefix("model.").removesuffix(".weight")
            if ".mlp.experts." in module and module.endswith("_proj"):
                experts = module.rsplit(".", 1)[0]
                if "block_sparse_moe" in "".join(self.lora):
                    experts = experts.replace("mlp", "block_sparse_moe")
                w = w + self.stack(experts, module.endswith("down_proj"))
            elif module != "embed_tokens":
                w = w + self.product("unembed_tokens" if module == "lm_head" else module)
            out[name] = w
        if "lm_head.weight" not in out:
            out["lm_head.weight"] = out["model.embed_tokens.weight"] + self.product("unembed_tokens")
        return out

    def stack(self, experts, down):
        turned = self.model.config.model_type == "gpt_oss"
        if down:
            delta = self.product(experts + ".w2")
        else:
            parts = [self.product(experts + ".w1"), self.product(experts + ".w3")]
            delta = torch.stack(parts, 2).flatten(1, 2) if turned else torch.cat(parts, 1)
        return delta.transpose(1, 2) if turned else delta


def test_experts(tmp, name):
    """Logits, gradients of every factor, and 20 AdamW steps."""
    path, save = build(tmp, name), os.path.join(tmp, name + "-adapter")
    where = served(tmp, name, path)
    data = positive([datum(s, "cross_entropy", i) for i, s in enumerate(sequences((70, 13, 29)))])
    request = {"loss": "cross_entropy", "data": data}
    engine(tmp, where, dict(request, lora={"rank": 3, "seed": 2}, steps=3, adam={"lr": 0.01}), save)
    model = Experts(path, save)
    with all_double(name):
        value, size = total_loss(model, data, "cross_entropy", {})
        value.backward()
    out = engine(tmp, where, dict(request, adapter=save))
    worst, at = max((relative(out["grad." + n].view(p.shape), p.grad), n) for n, p in model.lora.items())
    off = abs(out["loss"][0].item() - value.item()) / size
    check(f"{name}: loss and LoRA gradients", off < 1e-5 and worst < 1e-4,
          f"loss {off:.1e}; {len(model.lora)} tensors, worst {worst:.1e} {at}")
    with all_double(name):
        reference = base.train(model, data[2:], "cross_entropy", 1e-3)
    out = engine(tmp, where, {"adapter": save, "loss": "cross_entropy", "data": data[2:], "steps": 20,
                              "adam": {"lr": 1e-3}})
    base.compare_training(f"{name}: losses of 20 AdamW steps", out, reference)


def test_wrapper(tmp, name):
    """The text part of a multimodal checkpoint: logits, and gradients of an adapter with PEFT's names."""
    path = build(tmp, name)
    data = [datum(s, "cross_entropy", i) for i, s in enumerate(sequences((40, 13)))]
    adapter = os.path.join(tmp, name + "-peft")
    linears = sorted({n.rsplit(".", 1)[1] for n, m in load(path, name).named_modules()
                      if isinstance(m, torch.nn.Linear) and ".language_model." in n})
    config = LoraConfig(r=3, lora_alpha=32, target_modules=rf".*language_model.*\.({'|'.join(linears)})",
                        lora_dropout=0.0, bias="none")
    model = get_peft_model(load(path, name), config)
    g = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for n, p in model.named_parameters():
            if "lora_B" in n:
                p.copy_(torch.randn(p.shape, generator=g) * 0.02)
    model.save_pretrained(adapter, save_embedding_layers=False)
    model = model.double()
    with all_double(name):
        value, size = total_loss(model, data, "cross_entropy", {})
        value.backward()
    saved = os.path.join(tmp, name + "-saved")
    out = engine(tmp, path, {"adapter": adapter, "loss": "cross_entropy", "peft": 1, "data": data}, saved)
    worst = max(relative(out["grad." + base.our_name(n).replace(".language_model.", ".")], p.grad)
                for n, p in model.named_parameters() if p.grad is not None)
    off = abs(out["loss"][0].item() - value.item()) / size
    # with a shared expert's pairs the engine trains those of the experts, too
    names = [{n for n in load_file(os.path.join(d, "adapter_model.safetensors")) if ".experts." not in n}
             for d in (adapter, saved)]
    check(f"{name}: loss, LoRA gradients, names of PEFT", off < 1e-5 and worst < 1e-4 and names[0] == names[1],
          f"loss {off:.1e}; worst {worst:.1e}; {len(names[0])} names")


def main():
    names = sys.argv[1:] or [*MODELS, *EXPERTS, *WRAPPERS]
    with tempfile.TemporaryDirectory() as tmp:
        for name in names:
            if name in WRAPPERS:
                tests = [test_logits, test_generation, test_wrapper]
            elif name in EXPERTS:
                tests = [test_logits, test_generation, test_experts]
            else:
                tests = [test_logits, test_generation, test_gradients, test_training]
            if name not in WRAPPERS and not name.endswith("mxfp4"):
                tests.append(test_full)
            for test in tests:
                try:
                    test(tmp, name)
                except Exception as e:  # a crash is a failed test, the others still run
                    check(f"{name}: {test.__name__} ran", False, f"{type(e).__name__}: {e}")
    print(f"1..{base.count}")
    return 1 if base.failed else 0


if __name__ == "__main__":
    sys.exit(main())
