# requirements: sdk-newest
"""Losses as graphs: value and gradient of every operation against torch, hostile graphs refused.

The official SDK traces each function and writes its graph, torch computes it, and
tools/graph-conform computes the graph.
"""

import inspect
import json
import math
import os
import random
import subprocess

import tinker.lib.public_interfaces.custom_loss as custom_loss
import torch
import torch.nn.functional as F

from _server import BUILD, attempt, check, done

T, K = 7, 3
random.seed(5)
torch.manual_seed(5)


class Tool:
    def __init__(self):
        self.process = subprocess.Popen([os.path.join(BUILD, "tools/graph-conform")],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, request, datum, logprobs):
        self.process.stdin.write("\t".join(json.dumps(x) for x in (request, datum, logprobs)) + "\n")
        self.process.stdin.flush()
        kind, _, text = self.process.stdout.readline().rstrip("\n").partition("\t")
        return kind, json.loads(text) if kind == "ok" else text


def request_of(fn, ranks):
    handle = custom_loss.trace_loss(fn, ranks, "s")
    graph = custom_loss.encode_graph(handle)
    return handle, {"session_id": "s", "custom_loss_seq_id": 0, "name": handle.name,
                    "inputs": [i.model_dump() for i in handle.inputs],
                    "graph": graph.model_dump(), "type": "create_custom_loss"}


def tensor(t):
    kind = "float32" if t.dtype.is_floating_point else "int64"
    return {"data": t.flatten().tolist(), "dtype": kind, "shape": list(t.shape)}


def sample(rank):
    shape = {1: (T,), 2: (T, K)}[rank]
    return {
        "logprobs": -torch.rand(shape) * 2 - 0.01,
        "q": -torch.rand(shape) * 2 - 0.01,
        "w": torch.randint(0, 2, shape).float(),
        "s": torch.tensor(0.7),
        "target_tokens": torch.randint(1, 50, shape),
    }


def compare(tool, name, fn, rank=1, inputs=None):
    """fn of tensors; its result is summed, so that any shape may come out."""
    values = inputs or sample(rank)
    names = list(inspect.signature(fn).parameters)
    ranks = {n: values[n].ndim for n in names}
    handle, request = request_of(fn, ranks)
    logprobs = values["logprobs"].clone().requires_grad_(True)
    args = [logprobs if n == "logprobs" else values[n] for n in names]
    loss, metrics = handle.graph(*args)
    loss.backward()
    datum = {"model_input": {"chunks": [{"tokens": list(range(T)), "type": "encoded_text"}]},
             "loss_fn_inputs": {n: tensor(v) for n, v in values.items() if n != "logprobs"}}
    kind, got = tool.ask(request, datum, values["logprobs"].flatten().tolist())
    if kind != "ok":
        return check(False, name, got)
    wanted = logprobs.grad.flatten().tolist()
    near = lambda a, b: math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-6)  # noqa: E731
    same = near(got["loss"], loss.item()) and all(map(near, got["grads"], wanted)) and all(
        near(got["metrics"][k], v.item()) for k, v in metrics.items())
    return check(same, name, f"{loss.item()} {wanted} {metrics}, got {got}")


def one(f, rank=1):
    """A loss of one expression of logprobs and q; squared, so that constants have weight."""
    if rank == 1:
        def loss(logprobs, q):
            return (f(logprobs, q) * 1.0).sum() + (logprobs * logprobs).sum(), {}
    else:
        def loss(logprobs, q):
            return (f(logprobs, q) * 1.0).sum() + (logprobs * 0.5).sum(), {}
    return loss


VECTOR = {
    "+ - * /": lambda x, q: x + q - x * q / (q - 3.0),
    "number first": lambda x, q: 2.0 - 3 / x + 1.5 * q,
    "//": lambda x, q: (q // 0.3) * x,
    "%": lambda x, q: x % 0.7,
    "** number": lambda x, q: x ** 2 + (-x) ** 0.5 + x ** 3,
    "** tensor": lambda x, q: (-x) ** q + 2.0 ** x,
    "@": lambda x, q: x @ q,
    "unary": lambda x, q: -x + abs(x) + abs(q),
    "comparisons": lambda x, q: x * (x < q).float() + x * (x <= -1) + q * (x > q) + x * (x >= q),
    "== !=": lambda x, q: x * (x == q) + x * (x != q),
    "& | ~": lambda x, q: x * ((x < -0.5) & (q < -0.5)) + x * ((x < -1) | ~(q < -1)),
    "x[int]": lambda x, q: x[0] * 3 + x[-1],
    "x[slice]": lambda x, q: x[1:] * q[:-1] + x[2:].sum() + x[::2].sum(),
    "x[None]": lambda x, q: x[None, :] * q[:, None],
    "x[...]": lambda x, q: x[..., 1:3],
    "x[mask]": lambda x, q: x[q < -0.5] * 2,
    "shape": lambda x, q: x / x.shape[0] + x.sum() / (x.shape[0] * 2 - 1),
    "size numel": lambda x, q: x * x.size(0) + x / x.numel(),
    "T": lambda x, q: x[None, :].T,
    "abs": lambda x, q: torch.abs(x + 0.5),
    "clamp": lambda x, q: torch.clamp(x, -1.0, -0.3) + torch.clamp(x, min=-0.7) + x.clamp(max=-0.5),
    "clamp tensor": lambda x, q: torch.clamp(x, min=q),
    "clip": lambda x, q: torch.clip(x, -1, 0),
    "cumsum": lambda x, q: torch.cumsum(x, 0) * q + x.cumsum(dim=-1),
    "diff": lambda x, q: torch.diff(x) ** 2,
    "dot": lambda x, q: torch.dot(x, q),
    "erf": lambda x, q: torch.erf(x),
    "exp log": lambda x, q: torch.exp(x) + torch.log(-x) + torch.log1p(-x) + torch.expm1(x),
    "exp of a difference": lambda x, q: (x - q).exp() * q,
    "isfinite": lambda x, q: x * torch.isfinite(x),
    "logsumexp": lambda x, q: torch.logsumexp(x, 0) + x.logsumexp(dim=0),
    "max min": lambda x, q: torch.max(x) + torch.min(x) + x.max() * x.min(),
    "max of equal": lambda x, q: torch.max(x * 0 + 1.0) * x.sum() + (x * 0).max(),
    "max dim": lambda x, q: x.max(dim=0)[0] + torch.min(x, dim=0).values,
    "maximum minimum": lambda x, q: torch.maximum(x, q) + torch.minimum(x, q) + torch.max(x, q),
    "mean": lambda x, q: x.mean() + torch.mean(x * q),
    "nan_to_num": lambda x, q: torch.nan_to_num(x),
    "prod": lambda x, q: torch.prod(x),
    "relu sign": lambda x, q: torch.relu(x + 1) + torch.sign(x + 1) * x,
    "sigmoid tanh": lambda x, q: torch.sigmoid(x) + x.sigmoid() + torch.tanh(x),
    "softmax": lambda x, q: torch.softmax(x, 0) * q + F.softmax(x, dim=-1) * q,
    "log_softmax": lambda x, q: F.log_softmax(x, dim=0) * q + x.log_softmax(-1) * q,
    "sqrt square rsqrt": lambda x, q: torch.sqrt(-x) + torch.square(x) + (-x).rsqrt(),
    "stack": lambda x, q: torch.stack([x, q, x]) * 2,
    "cat": lambda x, q: torch.cat([x, q], dim=0),
    "where": lambda x, q: torch.where(q < -0.5, x, 0.0) + torch.where(q < -1, x * 2, q),
    "ones_like zeros_like": lambda x, q: x * torch.ones_like(x) + torch.zeros_like(q),
    "any": lambda x, q: x * (q < -1).any(),
    "bool long": lambda x, q: x * (q < -1).bool().long() + x * q.long(),
    "detach": lambda x, q: x.detach() * x,
    "flip roll": lambda x, q: x.flip(0) * q + x.roll(2, 0) * q + x.roll(-1) * q,
    "masked_fill": lambda x, q: x.masked_fill(q < -1, 0.25),
    "norm": lambda x, q: x.norm() + torch.norm(x) + x.norm(1),
    "reshape view": lambda x, q: x.reshape(-1, 1) * q.view(1, -1),
    "std var": lambda x, q: x.std() + x.var() + x.var(unbiased=False) + torch.std(x, correction=0),
    "to type_as": lambda x, q: (x < -1).to(torch.float32) * x + (q < -1).type_as(x) * x,
    "float64": lambda x, q: (x.to(torch.float64) ** 2).to(torch.float32),
    "unsqueeze squeeze": lambda x, q: x.unsqueeze(0).squeeze(0) * q + x.unsqueeze(-1).squeeze(),
    "logsigmoid softplus": lambda x, q: F.logsigmoid(x) + F.softplus(x) + F.softplus(x, beta=2),
    "gelu silu": lambda x, q: F.gelu(x) + F.gelu(x, approximate="tanh") + F.silu(x) + F.relu(x + 1),
    "mse l1": lambda x, q: F.mse_loss(x, q) + F.l1_loss(x, q) + F.mse_loss(x, q, reduction="sum"),
    "smooth_l1 huber": lambda x, q: F.smooth_l1_loss(x, q) + F.huber_loss(x, q, delta=0.3),
    "kl_div": lambda x, q: F.kl_div(x, q.exp(), reduction="sum") + F.kl_div(x, q, log_target=True),
    "bce": lambda x, q: F.binary_cross_entropy_with_logits(x, q.exp()),
    "math of a number": lambda x, q: x * math.exp(-1.0) + x / math.sqrt(3),
    "reward gap": lambda x, q: -F.logsigmoid(0.1 * ((x - q)[:3].sum() - (x - q)[3:].sum())),
}
MATRIX = {
    "sum over axes": lambda x, q: x.sum(0) * q.sum(0) + x.sum((0, 1)) + x.sum(dim=-1, keepdim=True),
    "mean over an axis": lambda x, q: x.mean(-1) * q[:, 0],
    "row softmax": lambda x, q: F.softmax(x, dim=-1) * q,
    "row logsumexp": lambda x, q: torch.logsumexp(x, dim=-1),
    "matmul": lambda x, q: x @ q.T,
    "matrix times vector": lambda x, q: x @ q[0],
    "elements": lambda x, q: x[:, 0] * q[:, 1] + x[1, 2] + x[-1, :2].sum(),
    "masked elements": lambda x, q: x[q < -0.7],
    "masked rows": lambda x, q: x[q[:, 0] < -0.7] * 2,
    "kl of rows": lambda x, q: (q.exp() * (q - x)).sum(-1),
    "permute": lambda x, q: x.permute(1, 0) * q.T + x.transpose(0, 1),
    "max of rows": lambda x, q: x.max(dim=1)[0] + x.max(dim=-1, keepdim=True).values.squeeze(-1),
    "std of rows": lambda x, q: x.std(dim=1) + x.var(1),
    "norm of rows": lambda x, q: x.norm(dim=1),
    "prod of rows": lambda x, q: x.prod(dim=1),
    "cumsum of columns": lambda x, q: x.cumsum(0) * q,
    "expand": lambda x, q: x[:, :1].expand(-1, 3) * q,
}


def dpo(logprobs, q, w, s):
    margin = ((logprobs - q) * w).sum() * s
    return -F.logsigmoid(margin), {"custom/margin:mean": margin.detach(),
                                   "custom/won:sum": (margin > 0).float()}


def regularized(logprobs, q, w):
    ratio = torch.exp(logprobs - q)
    kept = torch.clamp(ratio, 0.8, 1.2)
    policy = -(torch.minimum(ratio * w, kept * w)).sum()
    penalty = 0.1 * ((logprobs - q) ** 2).mean() + 0.01 * logprobs.exp().mean()
    return policy + penalty, {"custom/penalty:mean": penalty, "custom/ratio:mean": ratio.mean()}


def integers(logprobs, target_tokens):
    return (logprobs * (target_tokens % 2 == 0)).sum() / (target_tokens.max() + 1), {}


REFUSED = {
    "einsum": lambda x, q: torch.einsum("i,i->", x, q),
    "sort": lambda x, q: x.sort()[0],
    "topk": lambda x, q: x.topk(2)[0],
    "quantile": lambda x, q: torch.quantile(x, 0.5),
    "rand_like": lambda x, q: torch.rand_like(x),
    "dropout": lambda x, q: F.dropout(x),
    "gather": lambda x, q: x.gather(0, q.long()),
    "shapes that do not fit": lambda x, q: x[1:] + q,
    "an index outside": lambda x, q: x[99],
    "half": lambda x, q: x.to(torch.float16),
    "an option": lambda x, q: torch.std(x, correction=3) + x.argsort(),
}


def mutate(value, depth=0):
    """The same JSON with something else somewhere."""
    junk = [None, True, -1, 1e308, "x", [], {}, {"ref": "sub"}, {"ref": "nobody"}, [[[[[[[[[[1]]]]]]]]]],
            {"tuple": []}, {"slice": [1]}, {"float": "inf"}, {"dtype": "bfloat16"}, "operator.matmul",
            "torch.cat", "output", 2 ** 60, {"slice": [None, None, 0]}, {"ref": "logprobs"}]
    if depth > 12 or random.random() < 0.08:
        return random.choice(junk)
    if isinstance(value, dict) and value:
        key = random.choice(list(value))
        return {**value, key: mutate(value[key], depth + 1)}
    if isinstance(value, list) and value:
        i = random.randrange(len(value))
        if random.random() < 0.1:
            return value[:i] + value[i + 1:]
        if random.random() < 0.1:
            return value + [random.choice(value)]
        return value[:i] + [mutate(value[i], depth + 1)] + value[i + 1:]
    return random.choice(junk)


tool = Tool()
for name, f in VECTOR.items():
    attempt(f"{name} runs", lambda: compare(tool, f"{name} is torch's", one(f)) or True)
for name, f in MATRIX.items():
    attempt(f"{name} runs", lambda: compare(tool, f"{name} is torch's", one(f, 2), 2) or True)
for fn in (dpo, regularized, integers):
    attempt(f"{fn.__name__} runs", lambda: compare(tool, f"{fn.__name__} is torch's", fn) or True)

values = sample(1)
datum = {"model_input": {"chunks": []},
         "loss_fn_inputs": {n: tensor(v) for n, v in values.items() if n != "logprobs"}}
logprobs = values["logprobs"].tolist()
for name, f in REFUSED.items():
    _, request = request_of(one(f), {"logprobs": 1, "q": 1})
    kind, text = tool.ask(request, datum, logprobs)
    check(kind == "error" and "node" in text, f"{name} is refused by name", str(text))
refused = alive = 0
for i in range(3000):
    _, request = request_of(*[(dpo, {"logprobs": 1, "q": 1, "w": 1, "s": 0}),
                              (one(VECTOR["x[slice]"]), {"logprobs": 1, "q": 1}),
                              (one(VECTOR["kl_div"]), {"logprobs": 1, "q": 1})][i % 3])
    for _ in range(random.randrange(1, 4)):
        request["graph"] = mutate(request["graph"])
        if not isinstance(request["graph"], dict):
            request["graph"] = {}
    kind, text = tool.ask(request, datum, logprobs)
    if not kind:
        check(False, "a changed graph", json.dumps(request))
        tool = Tool()
    refused += kind == "error"
    alive += kind in ("ok", "error")
check(alive == 3000 and refused > 2000, f"3000 changed graphs: {refused} refused, none a crash")
handle, request = request_of(one(lambda x, q: x), {"logprobs": 1, "q": 1})
place = request["graph"]["nodes"][:2]
big = [{"op": "call_function", "name": f"n{i}", "target": "operator.matmul" if i % 2 else "torch.stack",
        "args": [{"ref": f"n{i - 1}"}, {"ref": f"n{i - 1}"}] if i % 2 else
        [[{"ref": "logprobs" if not i else f"n{i - 1}"}] * 900], "kwargs": {}} for i in range(40)]
request["graph"] = {"format": 1, "nodes": place + big + [
    {"op": "output", "name": "output", "target": "output",
     "args": [{"tuple": [{"ref": "n39"}, {"dict": {}}]}], "kwargs": {}}]}
kind, text = tool.ask(request, datum, logprobs)
check(kind == "error", "a graph that grows without end is refused", str(text)[:300])
done()
