# requirements: sdk-newest
"""Graphs that a C program's tape is written as: torch runs them, with the loss and gradient that the
server computes from the same graph."""

import json
import math
import operator
import os
import subprocess
import tempfile

import torch

from _server import BUILD, attempt, check, done

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
INPUTS = [("logprobs", 1), ("weights", 1), ("ref", 1), ("scale", 0)]


def resolve(target):
    if target.startswith("operator."):
        return getattr(operator, target[9:])
    value = torch
    for part in target.split(".")[1:]:
        value = getattr(value, part)
    return value


def argument(values, a):
    if isinstance(a, list):
        return [argument(values, x) for x in a]
    if not isinstance(a, dict):
        return a
    kind, value = next(iter(a.items()))
    return {"ref": lambda: values[value], "float": lambda: float(value),
            "slice": lambda: slice(*value), "tuple": lambda: tuple(argument(values, x) for x in value),
            "dict": lambda: {k: argument(values, x) for k, x in value.items()}}[kind]()


def run(graph, inputs):
    values = {}
    for node in graph["nodes"]:
        args = argument(values, node["args"])
        kwargs = {k: argument(values, v) for k, v in node["kwargs"].items()}
        if node["op"] == "placeholder":
            values[node["name"]] = inputs[node["target"]]
        elif node["op"] == "call_function":
            values[node["name"]] = resolve(node["target"])(*args, **kwargs)
        elif node["op"] == "call_method":
            values[node["name"]] = getattr(args[0], node["target"])(*args[1:], **kwargs)
        else:
            return args[0]


def numbers(length, start, step):
    return [round(start + step * ((i * 7) % 11), 3) for i in range(length)]


def server(name, graph, inputs):
    request = {"session_id": "s", "custom_loss_seq_id": 0, "name": name,
               "inputs": [{"name": n, "rank": r} for n, r in INPUTS], "graph": graph,
               "type": "create_custom_loss"}
    length = len(inputs["logprobs"])
    data = {n: {"data": v if isinstance(v, list) else [v], "dtype": "float32",
                "shape": [len(v)] if isinstance(v, list) else []}
            for n, v in inputs.items() if n != "logprobs"}
    data["target_tokens"] = {"data": [1] * length, "dtype": "int64", "shape": [length]}
    datum = {"model_input": {"chunks": [{"tokens": [1] * length, "type": "encoded_text"}]},
             "loss_fn_inputs": data}
    line = "\t".join(json.dumps(x) for x in (request, datum, inputs["logprobs"])) + "\n"
    out = subprocess.run([os.path.join(BUILD, "tools/graph-conform")], input=line, text=True,
                         capture_output=True, check=True).stdout
    kind, answer = out.split("\t", 1)
    assert kind == "ok", out
    return json.loads(answer)


with tempfile.TemporaryDirectory() as work:
    program = os.path.join(work, "graphs")
    libs = subprocess.run(["pkg-config", "--libs", "libcurl", "libzstd", "zlib", "libpcre2-8", "libutf8proc"],
                          capture_output=True, text=True, check=True).stdout.split()
    subprocess.run(["gcc", "-std=c11", "-I", os.path.join(ROOT, "include"), "-o", program,
                    os.path.join(ROOT, "tests/e2e/graph_loss.c"), os.path.join(BUILD, "libtinker.a"),
                    *libs, "-lm", "-pthread"], check=True)
    lines = subprocess.run([program, "print"], capture_output=True, text=True, check=True).stdout.splitlines()
check(len(lines) == 3, "three graphs are written")
for name, line in zip(["dpo", "clipped", "many"], lines):
    graph = json.loads(line)

    def equal(length):
        inputs = {"logprobs": numbers(length, -3.05, 0.2), "weights": numbers(length, -0.51, 0.1),
                  "ref": numbers(length, -2.83, 0.17), "scale": 1.25}
        leaf = {k: torch.tensor(v, dtype=torch.float64) for k, v in inputs.items()}
        leaf["logprobs"].requires_grad_()
        loss, metrics = run(graph, leaf)
        loss.backward()
        ours = server(name, graph, inputs)
        assert math.isclose(ours["loss"], loss.item(), rel_tol=1e-5), (ours["loss"], loss.item())
        for a, b in zip(ours["grads"], leaf["logprobs"].grad.tolist()):
            assert math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-5), (ours["grads"], leaf["logprobs"].grad)
        for key, value in metrics.items():
            assert math.isclose(ours["metrics"][key], float(value), rel_tol=1e-5, abs_tol=1e-6), key

    for length in (6, 11):
        attempt(f"{name} of {length}: torch and the server agree", lambda: equal(length))
done()
