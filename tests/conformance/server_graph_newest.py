# requirements: sdk-newest
"""Custom losses of the official SDK, computed by the server in one pass.

DPO and a loss with a regularizer, each trained twice with the same seed: by the id that
create_custom_loss returned, and by the same handle in the SDK's own two passes.
"""

import dataclasses
import os
import re
import statistics
import time
import urllib.request

import tinker
import torch
import torch.nn.functional as F
from tinker import types

from _server import MODEL, Server, attempt, check, done

os.environ["TINKER_TELEMETRY"] = "0"
TOKENS = 24


def dpo(logprobs, ref, weights, beta):
    margin = ((logprobs - ref) * weights).sum() * beta
    return -F.logsigmoid(margin), {"custom/margin:mean": margin.detach(),
                                   "custom/won:sum": (margin > 0).float()}


def regularized(logprobs, ref, weights):
    ratio = torch.exp(logprobs - ref)
    policy = -torch.minimum(ratio * weights, torch.clamp(ratio, 0.8, 1.2) * weights).sum()
    penalty = 0.1 * ((logprobs - ref) ** 2).mean() + 0.01 * logprobs.exp().mean()
    return policy + penalty, {"custom/penalty:mean": penalty}


RANKS = {dpo: {"logprobs": 1, "ref": 1, "weights": 1, "beta": 0},
         regularized: {"logprobs": 1, "ref": 1, "weights": 1}}


def batch(n, tokens=TOKENS):
    data = []
    for i in range(n):
        row = [(7 * i + 3 * k + k * k) % 50 + 1 for k in range(tokens + 1)]
        values = {"target_tokens": types.TensorData(data=row[1:], dtype="int64", shape=[tokens])}
        for name, data_of in (("ref", [-3.9 - 0.01 * ((i + k) % 5) for k in range(tokens)]),
                              ("weights", [1.0 if (i + k) % 3 else -1.0 for k in range(tokens)])):
            values[name] = types.TensorData(data=data_of, dtype="float32", shape=[tokens])
        values["beta"] = types.TensorData(data=[0.1], dtype="float32", shape=[])
        data.append(types.Datum(model_input=types.ModelInput.from_ints(row[:-1]),
                                loss_fn_inputs=values))
    return data


def train(service, handle, base, data, steps=3):
    """The metrics of each pass and step, and the logprobs after the last."""
    training = service.create_lora_training_client(base_model=base, rank=4, seed=11)
    told = []
    for _ in range(steps):
        result = training.forward_backward_custom(data, handle).result(timeout=60)
        step = training.optim_step(types.AdamParams(learning_rate=1e-3)).result(timeout=60)
        told.append({k: v for k, v in result.metrics.items() if k.startswith(("loss", "custom"))}
                    | {"grad_norm": step.metrics["grad_norm:mean"]})
    plain = [types.Datum(model_input=d.model_input,
                         loss_fn_inputs={"target_tokens": d.loss_fn_inputs["target_tokens"]})
             for d in data]
    after = training.forward(plain, "cross_entropy").result(timeout=60)
    return told, [v for o in after.loss_fn_outputs for v in o["logprobs"].data]


def near(a, b, what):
    if not abs(a - b) <= 1e-5 * max(1.0, abs(a), abs(b)):
        raise AssertionError(f"{what}: {a} and {b}")


def compare(service, fn, base):
    handle = service.create_custom_loss(fn, RANKS[fn]).result(timeout=60)
    check(handle.loss_id is not None, f"{fn.__name__} is uploaded", str(handle))
    data = batch(6)
    one, after_one = train(service, handle, base, data)
    two, after_two = train(service, dataclasses.replace(handle, loss_id=None), base, data)
    for i, (a, b) in enumerate(zip(one, two)):
        if set(a) != set(b):
            raise AssertionError(f"{sorted(a)} and {sorted(b)}")
        for key in a:
            near(a[key], b[key], f"step {i} {key}")
    for a, b in zip(after_one, after_two, strict=True):
        near(a, b, "logprobs after training")


def count_passes(server):
    with urllib.request.urlopen(server.url + "/metrics") as response:
        return int(re.search(r"passes_total (\d+)", response.read().decode())[1])


def times(service, server, base, data):
    """Seconds and passes of the server of one pass and of two: medians, in turns."""
    handle = service.create_custom_loss(regularized, RANKS[regularized]).result(timeout=60)
    training = service.create_lora_training_client(base_model=base, rank=8, seed=1)
    seconds, passes = {"one": [], "two": []}, {"one": 0, "two": 0}
    for _ in range(5):
        for name, h in (("one", handle), ("two", dataclasses.replace(handle, loss_id=None))):
            before, start = count_passes(server), time.monotonic()
            training.forward_backward_custom(data, h).result(timeout=120)
            seconds[name].append(time.monotonic() - start)
            passes[name] += count_passes(server) - before
    return {name: statistics.median(all) for name, all in seconds.items()}, passes


def fails(call, words):
    try:
        call()
    except tinker.RequestFailedError as e:
        if all(w in str(e) for w in words):
            return True
        raise
    return False


def restart(server):
    """A pass that was not part of a step yet runs again from the journal, with its loss."""
    service = tinker.ServiceClient(base_url=server.url, api_key="tml-test")
    handle = service.create_custom_loss(dpo, RANKS[dpo]).result(timeout=60)
    norms = []
    for kill in (False, True):
        training = service.create_lora_training_client(base_model=MODEL, rank=4, seed=3)
        training.forward_backward_custom(batch(3), handle).result(timeout=60)
        if kill:
            server.kill()
            server.start()
        step = training.optim_step(types.AdamParams()).result(timeout=60)
        norms.append(step.metrics["grad_norm:mean"])
    return norms[0] == norms[1]


with Server() as server:
    service = tinker.ServiceClient(base_url=server.url, api_key="tml-test")
    for fn in RANKS:
        attempt(f"{fn.__name__} in one pass is {fn.__name__} in two",
                lambda: compare(service, fn, MODEL) or True)
    training = service.create_lora_training_client(base_model=MODEL, rank=4, seed=1)
    attempt("what is not supported is refused where the loss is made", lambda: fails(
        lambda: service.create_custom_loss(lambda logprobs: (logprobs.sort()[0].sum(), {}),
                                           {"logprobs": 1}).result(timeout=60),
        ["sort", "not supported", "node"]))
    attempt("an unknown loss is named", lambda: fails(
        lambda: training.forward_backward(batch(1), "custom", {"loss_id": "nobody:loss:1"}).result(
            timeout=60), ["nobody:loss:1"]))
    other = tinker.ServiceClient(base_url=server.url, api_key="tml-test")
    theirs = other.create_custom_loss(dpo, RANKS[dpo]).result(timeout=60)
    attempt("a loss of another session is refused", lambda: fails(
        lambda: training.forward_backward(batch(1), "custom", {"loss_id": theirs.loss_id}).result(
            timeout=60), ["no custom loss"]))
    handle = service.create_custom_loss(
        lambda logprobs, ref: (torch.log(logprobs * 0.0 - 1.0).sum() + ref.sum() * 0, {}),
        {"logprobs": 1, "ref": 1}).result(timeout=60)
    attempt("a loss that is not finite names the datum", lambda: fails(
        lambda: training.forward_backward_custom(batch(2), handle).result(timeout=60),
        ["data[0]", "not finite"]))
    attempt("a loss survives kill -9", lambda: restart(server))

# Time is compared on a model whose passes take longer than the way to the server.
base = os.environ.get("GRAPH_MODEL", "models/tiny")
with Server("--model", f"test/timed={base}") as server:
    service = tinker.ServiceClient(base_url=server.url, api_key="tml-test")
    seconds, passes = times(service, server, "test/timed", batch(16, 120))
    print(f"# figure: one pass {seconds['one']:.3f} s, two {seconds['two']:.3f} s, "
          f"ratio {seconds['one'] / seconds['two']:.2f}")
    check(passes == {"one": 5, "two": 10}, "one pass instead of two", f"{passes}")
done()
