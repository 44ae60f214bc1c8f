"""custom_loss_dpo.py - what custom_loss_dpo.c measures, in PyTorch: DPO of 128 x 4,096 tokens.

As a custom loss has it in the official SDK: one leaf per sequence, its gradient read afterwards.
The best of one thread and of all of them counts.
"""
import resource
import time

import torch

SEQUENCES, TOKENS, ROUNDS, BETA = 128, 4096, 5, 0.1
torch.manual_seed(1)
logprobs = [-3 * torch.rand(TOKENS) for _ in range(SEQUENCES)]
reference = [x + 0.02 * (torch.rand(TOKENS) - 0.5) for x in logprobs]
weights = (torch.arange(TOKENS) >= TOKENS // 4).float()


def once():
    leaves = [x.clone().requires_grad_() for x in logprobs]
    sums = [torch.dot(x, weights) for x in leaves]
    bases = [torch.dot(x, weights) for x in reference]
    chosen = torch.stack(sums[0::2]) - torch.stack(bases[0::2])
    rejected = torch.stack(sums[1::2]) - torch.stack(bases[1::2])
    loss = -torch.nn.functional.logsigmoid(BETA * (chosen - rejected)).mean()
    loss.backward()
    return loss.item(), [x.grad for x in leaves]


before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
best = 1e9
for threads in (torch.get_num_threads(), 1):
    torch.set_num_threads(threads)
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        once()
        best = min(best, time.perf_counter() - begin)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(f"dpo {SEQUENCES} x {TOKENS} in PyTorch: {best * 1e3:.1f} ms, {(peak - before) / 1024:.1f} MiB above the data")
