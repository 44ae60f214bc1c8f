# requirements: sdk-newest
"""Dimuon as the official SDK asks for it: steps equal to the formula of docs/serve.md in numpy."""

import glob
import json
import os

import numpy as np
import tinker
from safetensors.numpy import load_file
from tinker import types

from _server import MODEL, Server, attempt, check, done

os.environ["TINKER_TELEMETRY"] = "0"


def direction(moment, rank, damping=1e-4):
    """All in float64; the server computes in float32."""
    a = (moment**2).mean(1, keepdims=True)
    c = (moment**2).mean(0, keepdims=True)
    x = moment / ((a + damping * a.mean()) * (c + damping * c.mean())) ** 0.25
    x /= np.linalg.norm(x) + 1e-7
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x * np.sqrt(rank) / np.linalg.norm(x)


def datum(tokens):
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
    )


def refusal(fn):
    try:
        fn()
    except Exception as e:  # noqa: BLE001 - its text is looked at
        return str(e)
    return "it was accepted"


def state(server, want_step):
    """The training state with so many steps that the server keeps on disk: weights, momentum."""
    for path in glob.glob(os.path.join(server.dir, "data", "**", "trainer_state.json"), recursive=True):
        with open(path) as f:
            head = json.load(f)
        if head["step"] == want_step and head.get("optimizer") == "dimuon":
            folder = os.path.dirname(path)
            moments = load_file(os.path.join(folder, "optimizer.safetensors"))
            return (load_file(os.path.join(folder, "adapter_model.safetensors")),
                    {k[: -len(".exp_avg")]: v for k, v in moments.items() if k.endswith(".exp_avg")})
    raise AssertionError(f"no state of step {want_step}")


with Server() as server:
    service = tinker.ServiceClient(base_url=server.url, api_key="tml-test")
    dimuon = types.DimuonOptimizerConfig()
    rank, rate = 4, 0.05
    client = service.create_lora_training_client(base_model=MODEL, rank=rank, seed=3, optimizer=dimuon)
    data = [datum([3, 5, 7, 9, 11, 13]), datum([4, 6, 8, 10])]
    losses, states = [], []
    for step in range(1, 5):
        losses.append(client.forward_backward(data, "cross_entropy").result().metrics["loss:sum"])
        out = client.optim_step(types.DimuonParams(learning_rate=rate)).result()
        check(out.metrics["step:max"] == step, f"step {step}", str(out.metrics))
        path = client.save_state(f"s{step}").result().path
        states.append(state(server, step))
    check(losses[-1] < losses[0], "the loss falls", str(losses))
    worst, compared = 0.0, 0
    for (before, _), (after, moment) in zip(states, states[1:]):
        for name, m in moment.items():
            want = rate * (32 / rank) ** 0.175 * direction(m.astype(np.float64), rank)
            got = before[name].astype(np.float64) - after[name]
            worst = max(worst, float(np.abs(got - want).max()) / rate)
            compared += 1
    check(compared > 20 and worst < 2e-4, "steps equal those of numpy", f"{compared}: {worst:.2e}")
    print(f"# figure: {compared} matrices, largest difference {worst:.1e} of a direction")

    check("dimuon" in refusal(lambda: client.optim_step(types.AdamParams()).result()), "Adam's step is refused by name")
    adam = service.create_lora_training_client(base_model=MODEL, rank=rank)
    check("adamw" in refusal(lambda: adam.optim_step(types.DimuonParams(learning_rate=1)).result()),
          "and dimuon's on a model of Adam")

    class Lion(types.OptimizerConfigBase if hasattr(types, "OptimizerConfigBase") else type(dimuon).__mro__[1], frozen=True):
        type: str = "lion"

    why = refusal(lambda: service.create_lora_training_client(base_model=MODEL, rank=4, optimizer=Lion()))
    check("(adamw, dimuon)" in why, "another optimizer is refused with what there is", why)
    info = client.get_info()
    got = getattr(info, "optimizer_config", None)
    check(got is not None and got.type == "dimuon", "get_info names it", str(info))

    def goes_on():
        again = service.create_training_client_from_state_with_optimizer(path)
        a = client.forward_backward(data, "cross_entropy").result()
        b = again.forward_backward(data, "cross_entropy").result()
        assert a.metrics["loss:sum"] == b.metrics["loss:sum"]
        client.optim_step(types.DimuonParams(learning_rate=rate)).result()
        again.optim_step(types.DimuonParams(learning_rate=rate)).result()
        a = client.forward(data, "cross_entropy").result()
        b = again.forward(data, "cross_entropy").result()
        assert a.metrics["loss:sum"] == b.metrics["loss:sum"], (a.metrics, b.metrics)

    attempt("a restored run goes on with the same bits", goes_on)
    attempt("weights alone go on with Adam",
            lambda: service.create_training_client_from_state(path).optim_step(types.AdamParams()).result() and None)
    before = client.forward(data, "cross_entropy").result().metrics["loss:sum"]
    server.kill()
    server.start()
    attempt("after kill -9 it is the same model",
            lambda: client.forward(data, "cross_entropy").result().metrics["loss:sum"] == before)
    attempt("and still takes dimuon's steps",
            lambda: client.forward_backward(data, "cross_entropy").result()
            and client.optim_step(types.DimuonParams(learning_rate=rate)).result() and None)
done()
