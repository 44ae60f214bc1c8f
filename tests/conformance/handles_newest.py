# requirements: sdk-newest
"""Handles of samplers, written by the official SDK and read by libtinker, and the other way around."""

import os
import subprocess

import tinker
from tinker import types

from _server import BUILD, MODEL, Server, attempt, check, done

TOOL = os.path.join(BUILD, "tools/handle-conform")
PARAMS = types.SamplingParams(max_tokens=8, seed=4)


def python_sample(sampler):
    s = sampler.sample(types.ModelInput.from_ints([5, 6, 7]), 1, PARAMS).result().sequences[0]
    return list(s.tokens), s.sequence_id


def read_sample(line):
    *tokens, name = line.split()
    return [int(t) for t in tokens], name


with Server() as server:
    service = tinker.ServiceClient()
    training = service.create_lora_training_client(base_model=MODEL, rank=4, seed=1)
    path = training.save_weights_for_sampler("handle").result().path

    def theirs_in_ours():
        sampler = service.create_sampling_client(model_path=path)
        want, _ = python_sample(sampler)
        out = subprocess.run([TOOL, "read", sampler.get_sampler_handle()], capture_output=True, text=True, timeout=60)
        got, name = read_sample(out.stdout) if out.returncode == 0 else (out.stderr, "-")
        check(got == want, "a handle of the SDK is read by libtinker", f"{got} and {want}")
        check(name != "-", "the sequence has a name there", name)

    def ours_in_theirs():
        tool = subprocess.Popen([TOOL, "write", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        handle = tool.stdout.readline().strip()
        want, _ = read_sample(tool.stdout.readline())
        check("tml-" not in handle, "it holds no key")
        sampler = tinker.SamplingClient.from_sampler_handle(handle)
        got, name = python_sample(sampler)
        check(got == want, "a handle of libtinker is read by the SDK", f"{got} and {want}")
        check(bool(name), "the sequence has a name here", f"{name}")
        again, _ = python_sample(tinker.SamplingClient.from_sampler_handle(sampler.get_sampler_handle()))
        check(again == want, "and on to a third process")
        tool.stdin.close()
        check(tool.wait(timeout=30) == 0, "libtinker ends well")

    attempt("the SDK's handle", theirs_in_ours)
    attempt("our handle", ours_in_theirs)
done()
