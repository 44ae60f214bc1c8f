"""The other side of bench/client: the official SDK and httpx at the same work.

    client_oracle.py sdk URL SECONDS N...     "rate cpu_us" per N: samples, N in flight
    client_oracle.py httpx URL SECONDS N...   the same of small POSTs
    client_oracle.py encode                   ms to encode 10 sequences of 65,000 tokens
"""

import asyncio
import os
import sys
import time


async def load(seconds, n, once):
    """n workers that repeat `once` for some seconds: rate and CPU time of one, in us."""
    await asyncio.gather(*[once() for _ in range(n)])  # connections are open now
    count = 0
    end = time.perf_counter() + seconds

    async def worker():
        nonlocal count
        while time.perf_counter() < end:
            await once()
            count += 1
    start, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*[worker() for _ in range(n)])
    print(count / (time.perf_counter() - start), (time.process_time() - cpu) / count * 1e6, flush=True)


def sdk(url, seconds, counts):
    os.environ.update(TINKER_BASE_URL=url, TINKER_API_KEY="tml-bench", TINKER_TELEMETRY="0")
    import tinker
    from tinker import types
    sampler = tinker.ServiceClient().create_sampling_client(base_model="m")
    prompt = types.ModelInput.from_ints(list(range(64)))
    params = types.SamplingParams(max_tokens=16)

    async def run():
        for n in counts:
            await load(seconds, n, lambda: sampler.sample_async(prompt, 1, params))
    asyncio.run(run())


def httpx_(url, seconds, counts):
    import httpx
    body = b'{"session_id":"sess","type":"session_heartbeat"}'

    async def run():
        for n in counts:
            limits = httpx.Limits(max_connections=1000, max_keepalive_connections=1000)
            async with httpx.AsyncClient(limits=limits, http2=True) as client:
                await load(seconds, n, lambda: client.post(
                    url + "/api/v1/echo", content=body, headers={"Content-Type": "application/json"}))
    asyncio.run(run())


def encode():
    import tinker  # noqa: F401
    from tinker import types
    from tinker.proto.request_conv import forward_backward_request_to_proto
    tokens = list(range(65000))
    data = [types.Datum(model_input=types.ModelInput.from_ints(tokens),
                        loss_fn_inputs={"target_tokens": tokens, "weights": [1.0] * 65000})
            for _ in range(10)]
    request = types.ForwardBackwardRequest(
        forward_backward_input=types.ForwardBackwardInput(data=data, loss_fn="cross_entropy"),
        model_id="m", seq_id=1)
    best = 1e9
    for _ in range(5):
        start = time.process_time()
        forward_backward_request_to_proto(request).SerializeToString()
        best = min(best, time.process_time() - start)
    print(best * 1e3)


if __name__ == "__main__":
    if sys.argv[1] == "encode":
        encode()
    else:
        {"sdk": sdk, "httpx": httpx_}[sys.argv[1]](
            sys.argv[2], float(sys.argv[3]), [int(n) for n in sys.argv[4:]])
