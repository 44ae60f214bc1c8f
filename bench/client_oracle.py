"""The other side of bench/client: the official SDK and httpx at the same work.

    client_oracle.py sdk URL      samples
    client_oracle.py httpx URL    small POSTs
    client_oracle.py encode -     one training request

For each number on standard input, the requests in flight (encode: sequences of 65,000
tokens), one line comes back: how many per second, and the CPU time of one in us.
"""

import asyncio
import os
import sys
import time

SECONDS = 0.6


async def load(n, once):
    """n workers that repeat `once` for some seconds."""
    await asyncio.gather(*[once() for _ in range(n)])  # connections are open now
    count = 0
    end = time.perf_counter() + SECONDS

    async def worker():
        nonlocal count
        while time.perf_counter() < end:
            await once()
            count += 1
    start, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*[worker() for _ in range(n)])
    print(count / (time.perf_counter() - start), (time.process_time() - cpu) / count * 1e6, flush=True)


def sdk(url):
    os.environ.update(TINKER_BASE_URL=url, TINKER_API_KEY="tml-bench", TINKER_TELEMETRY="0")
    import tinker
    from tinker import types
    sampler = tinker.ServiceClient().create_sampling_client(base_model="m")
    prompt = types.ModelInput.from_ints(list(range(64)))
    params = types.SamplingParams(max_tokens=16)

    async def run():
        for line in sys.stdin:
            await load(int(line), lambda: sampler.sample_async(prompt, 1, params))
    asyncio.run(run())


class Clients:
    """As in the SDK: at most 50 requests per httpx client, its limits, a new client when all are full.

    httpcore goes through all connections for each idle connection whenever a request begins or
    ends: one client that keeps 400 connections is 50 times slower than this.
    """

    PER_CLIENT = 50

    def __init__(self, url):
        self.url, self.clients, self.active = url + "/api/v1/echo", [], []

    def acquire(self):
        import httpx
        for i, active in enumerate(self.active):
            if active < self.PER_CLIENT:
                return i
        limits = httpx.Limits(max_connections=1000, max_keepalive_connections=20)
        self.clients.append(httpx.AsyncClient(limits=limits, http2=True, timeout=60, follow_redirects=True))
        self.active.append(0)
        return len(self.clients) - 1

    async def post(self):
        i = self.acquire()
        self.active[i] += 1
        try:
            await self.clients[i].post(self.url, content=b'{"session_id":"sess","type":"session_heartbeat"}',
                                       headers={"Content-Type": "application/json"})
        finally:
            self.active[i] -= 1

    async def close(self):
        for client in self.clients:
            await client.aclose()


def httpx_(url):
    async def run():
        for line in sys.stdin:
            clients = Clients(url)
            await load(int(line), clients.post)
            await clients.close()
    asyncio.run(run())


def encode(_):
    import tinker  # noqa: F401
    from tinker import types
    from tinker.proto.request_conv import forward_backward_request_to_proto
    tokens = list(range(65000))
    for line in sys.stdin:
        data = [types.Datum(model_input=types.ModelInput.from_ints(tokens),
                            loss_fn_inputs={"target_tokens": tokens, "weights": [1.0] * 65000})
                for _ in range(int(line))]
        request = types.ForwardBackwardRequest(
            forward_backward_input=types.ForwardBackwardInput(data=data, loss_fn="cross_entropy"),
            model_id="m", seq_id=1)
        best = 1e9
        for _ in range(5):
            start = time.process_time()
            forward_backward_request_to_proto(request).SerializeToString()
            best = min(best, time.process_time() - start)
        print(1 / best, best * 1e6, flush=True)


if __name__ == "__main__":
    {"sdk": sdk, "httpx": httpx_, "encode": encode}[sys.argv[1]](sys.argv[2])
