# requirements: sdk
"""Many at once: 1,024 samples and 2,000 held polls; none is lost, none fails, memory stays small."""

import asyncio
import json
import os
import resource
import time
import urllib.request

from _server import MODEL, Server, check, done

SAMPLES, POLLS = 1024, 2000
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def post(server, path, body):
    r = urllib.request.Request(server.url + path, json.dumps(body).encode(),
                               {"Content-Type": "application/json", "X-API-Key": "tml-x"})
    with urllib.request.urlopen(r, timeout=60) as f:
        return json.load(f)


def memory(server):
    with open(f"/proc/{server.process.pid}/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")


async def request(server, path, body):
    """One exchange on a connection of its own: status and body."""
    text = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"POST %s HTTP/1.1\r\nHost: localhost\r\nX-API-Key: tml-x\r\nContent-Type: application/json"
                 b"\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
                 % (path.encode(), len(text), text))
    await writer.drain()
    answer = await reader.read()
    writer.close()
    head, _, rest = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), rest


async def sample(server, sampler, n, times):
    start = time.perf_counter()
    status, body = await request(server, "/api/v1/asample", {
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [n % 200, 2, 3]}]},
        "sampling_params": {"max_tokens": 8, "seed": n, "temperature": 1.0},
        "sampling_session_id": sampler, "seq_id": n})
    times.append(time.perf_counter() - start)
    assert status == 200, body
    future = json.loads(body)["request_id"]
    while True:
        status, body = await request(server, "/api/v1/retrieve_future", {"request_id": future})
        if status != 408:
            break
    result = json.loads(body)
    return status == 200 and 1 <= len(result["sequences"][0]["tokens"]) <= 8


async def hold(server, model, n):
    """Polls for a request whose turn cannot come yet."""
    return await request(server, "/api/v1/retrieve_future", {"request_id": f"{model}:{n}"})


async def main(server):
    session = post(server, "/api/v1/create_session",
                   {"tags": [], "user_metadata": {}, "sdk_version": "0.25.0"})["session_id"]
    model = f"{session}:train:0"
    made = post(server, "/api/v1/create_model", {
        "session_id": session, "model_seq_id": 0, "base_model": MODEL, "lora_config": {"rank": 2}})
    post(server, "/api/v1/retrieve_future", {"request_id": made["request_id"]})
    sampler = post(server, "/api/v1/create_sampling_session", {
        "session_id": session, "sampling_session_seq_id": 0, "base_model": MODEL})
    # Number 2 waits for number 1, and so do all who poll for it.
    post(server, "/api/v1/optim_step", {"model_id": model, "seq_id": 2, "adam_params": {}})
    before = memory(server)
    polls = [asyncio.create_task(hold(server, model, 2)) for _ in range(POLLS)]
    for _ in range(600):
        await asyncio.sleep(0.1)
        held = json.loads((await asyncio.to_thread(server.get, "/status"))[1])["held"]
        if held == POLLS:
            break
    check(held == POLLS, f"{POLLS} polls are held", f"{held}")
    each = (memory(server) - before) / POLLS
    check(each <= 16 * 1024, "a held poll costs at most 16 KB", f"{each:.0f} bytes")
    print(f"# figure: {each:.0f} bytes per held poll")

    times = []
    results = await asyncio.gather(*[sample(server, sampler["sampling_session_id"], n, times)
                                     for n in range(SAMPLES)])
    check(all(results), f"{SAMPLES} samples at once all come back")
    times.sort()
    print(f"# figure: submit latency p50 {times[len(times) // 2] * 1e3:.1f} ms, "
          f"p99 {times[len(times) * 99 // 100] * 1e3:.1f} ms beside {POLLS} held polls")

    post(server, "/api/v1/optim_step", {"model_id": model, "seq_id": 1, "adam_params": {}})
    answers = await asyncio.gather(*polls)
    ok = [s for s, b in answers if s == 200 and b"metrics" in b or s == 408]
    check(len(ok) == POLLS, "every poll is answered", f"{len(ok)}")


with Server("--log-level", "error") as server:
    asyncio.run(main(server))
    status, seconds = server.stop()
    check(status == 0 and seconds < 10, "it stops within ten seconds", f"{status} {seconds:.1f} s")
done()
