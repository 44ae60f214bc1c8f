"""The other side of bench/delta: delta_oracle.py HIDDEN f32|bf16

The layer of Qwen3.5 as transformers computes it with torch alone, under PEFT, forward and backward on 2
threads.  Prints a number when it is warm, and the seconds of a turn for each line it reads.
"""
import os
import sys
import time
import warnings

THREADS, RANK = 2, 32
LINEARS = ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"]


def main():
    warnings.filterwarnings("ignore")
    import torch
    from peft import LoraConfig, inject_adapter_in_model
    from transformers import Qwen3_5TextConfig
    from transformers.models.qwen3_5 import modeling_qwen3_5 as reference

    torch.set_num_threads(THREADS)
    tokens = int(os.environ.get("TINKER_BENCH_TOKENS", 1024))
    hidden, dtype = int(sys.argv[1]), torch.float32 if sys.argv[2] == "f32" else torch.bfloat16
    config = Qwen3_5TextConfig(hidden_size=hidden, num_hidden_layers=2, linear_num_key_heads=16,
                               linear_num_value_heads=16, linear_key_head_dim=128, linear_value_head_dim=128,
                               layer_types=["linear_attention", "full_attention"])
    layer = torch.nn.ModuleDict({"mixer": reference.Qwen3_5GatedDeltaNet(config, 0)})
    for p in layer.parameters():
        p.requires_grad_(False)
    layer = inject_adapter_in_model(LoraConfig(r=RANK, lora_alpha=32, target_modules=LINEARS), layer).to(dtype)
    x = torch.rand(1, tokens, hidden).sub(0.5).to(dtype).requires_grad_(True)
    dy = torch.rand(1, tokens, hidden).sub(0.5).to(dtype)

    def turn():
        start = time.monotonic()
        layer["mixer"](x).backward(dy)
        return time.monotonic() - start

    turn()
    print(1.0, flush=True)
    for _ in sys.stdin:
        print(turn(), flush=True)


main()
