# requirements: sdk-newest
"""The newest SDK known when this was written waits for all samples of a sampler with one poll."""

import os
import time

import httpx
import tinker
from tinker import types

from _server import MODEL, Server, attempt, check, done

SAMPLES = 200


def many(sampler, n):
    prompt = types.ModelInput.from_ints([3, 5, 7])
    params = types.SamplingParams(max_tokens=4, temperature=1.0, seed=1)
    futures = [sampler.sample(prompt=prompt, num_samples=1, sampling_params=params) for _ in range(n)]
    results = [f.result(timeout=60) for f in futures]
    return [r.sequences[0].tokens for r in results]


os.environ["TINKER_TELEMETRY"] = "0"
seen = []  # the paths that the SDK asks for
send = httpx.AsyncClient.send


async def note_path(self, request, **kwargs):
    seen.append(request.url.path)
    return await send(self, request, **kwargs)


httpx.AsyncClient.send = note_path
with Server() as server:
    service = tinker.ServiceClient(base_url=server.url, api_key="tml-test")
    sampler = service.create_sampling_client(base_model=MODEL)
    started = time.monotonic()
    attempt(f"{SAMPLES} samples at once", lambda: len(many(sampler, SAMPLES)) == SAMPLES)
    check(time.monotonic() - started < 25, "none waits for the end of a held poll",
          f"{time.monotonic() - started:.1f} s")
    check(any("retrieve_futures" in p for p in seen), "by retrieve_futures", str(sorted(set(seen))))
    started = time.monotonic()
    attempt("samples one after the other", lambda: [many(sampler, 1) for _ in range(5)] and None)
    check(time.monotonic() - started < 20, "a sample that comes while a poll is held ends it",
          f"{time.monotonic() - started:.1f} s")
    second = service.create_sampling_client(base_model=MODEL)
    attempt("another sampler beside it", lambda: len(many(second, 5)) == 5)
    bad = sampler.sample(prompt=types.ModelInput.from_ints([3] * 5000), num_samples=1,
                         sampling_params=types.SamplingParams(max_tokens=1))
    try:
        bad.result(timeout=60)
        check(False, "a sample that fails says why")
    except tinker.RequestFailedError as e:
        check("exceeds the context" in str(e), "a sample that fails says why", str(e))
done()
