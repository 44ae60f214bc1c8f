# requirements: metrics
"""What monitors read: /metrics by Prometheus' own parser, healthz, one log line per request."""

import json
import re
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from _server import MODEL, Server, attempt, check, done

# name=value, plain or in quotes with \\xNN escapes; nothing else on the line
WORD = re.compile(r'([a-z_]+)=(?:"((?:[^"\\]|\\x[0-9a-f]{2})*)"|([^\s"=\\]+))(?: |$)')


def post(server, path, body):
    r = urllib.request.Request(server.url + path, json.dumps(body).encode(),
                               {"Content-Type": "application/json", "X-API-Key": "tml-x"})
    with urllib.request.urlopen(r, timeout=60) as f:
        return json.load(f)


def scrape(server):
    with urllib.request.urlopen(server.url + "/metrics", timeout=10) as f:
        kind, text = f.headers["Content-Type"], f.read().decode()
    return kind, {m.name: m for m in text_string_to_metric_families(text)}


def value(families, name):
    return families[name].samples[0].value


def words(line):
    """The words of an access line; None when it is none or not in form."""
    text = line.split(" ", 2)[2].rstrip("\n")
    at, out = 0, {}
    while at < len(text):
        m = WORD.match(text, at)
        if not m:
            return None
        out[m[1]] = m[2] if m[2] is not None else m[3]
        at = m.end()
    return out


def use(server):
    session = post(server, "/api/v1/create_session",
                   {"tags": [], "user_metadata": {}, "sdk_version": "0.25.0"})["session_id"]
    model = f"{session}:train:0"
    post(server, "/api/v1/create_model", {"session_id": session, "model_seq_id": 0,
                                          "base_model": MODEL, "lora_config": {"rank": 2}})
    datum = {"model_input": {"chunks": [{"tokens": [1, 2, 3]}]},
             "loss_fn_inputs": {"target_tokens": {"data": [2, 3, 4], "dtype": "int64"}}}
    post(server, "/api/v1/forward_backward", {"model_id": model, "seq_id": 1, "forward_backward_input": {
        "data": [datum], "loss_fn": "cross_entropy"}})
    post(server, "/api/v1/optim_step", {"model_id": model, "seq_id": 2, "adam_params": {}})
    for n in (1, 2):
        post(server, "/api/v1/retrieve_future", {"request_id": f"{model}:{n}"})
    sample = post(server, "/api/v1/asample", {
        "base_model": MODEL, "prompt": {"chunks": [{"tokens": [1, 2]}]},
        "sampling_params": {"max_tokens": 4, "stop": []}})
    post(server, "/api/v1/retrieve_future", {"request_id": sample["request_id"]})
    return model


def main(server):
    with urllib.request.urlopen(server.url + "/api/v1/healthz", timeout=10) as f:
        check(f.status == 200 and json.load(f) == {"status": "ok"}, "healthz says ok")
    kind, before = scrape(server)
    check(kind.startswith("text/plain; version=0.0.4"), "the content type names the format", kind)
    model = use(server)
    _, after = scrape(server)
    check(set(before) == set(after) and len(after) >= 15, "the same families each time")
    check(all(n.startswith("tinker_") for n in after), "every name begins with the program's")
    check(all(m.type in ("counter", "gauge") and m.documentation for m in after.values()),
          "every family has a type and a help text")
    check(all(len(m.samples) == 1 and m.samples[0].name == n + ("_total" if m.type == "counter" else "")
              for n, m in after.items()), "counters end in _total")
    check(all(value(after, n) >= value(before, n) for n, m in after.items() if m.type == "counter"),
          "counters never go down")
    grown = {n: value(after, "tinker_" + n) - value(before, "tinker_" + n)
             for n in ("train_tokens", "sample_tokens", "prompt_tokens", "optim_steps", "passes", "samples")}
    check(grown == {"train_tokens": 3, "sample_tokens": 4, "prompt_tokens": 2, "optim_steps": 1,
                    "passes": 1, "samples": 1}, "tokens, steps and samples are counted", str(grown))
    try:
        urllib.request.urlopen(server.url + "/a%20b%22c%0Ainfo%20method=GET", timeout=10)
    except urllib.error.HTTPError as e:
        check(e.code == 404, "a strange path is not found")
    return model


with Server() as server:
    model = attempt("the server is used", lambda: main(server))
    server.stop()
    lines = [line for line in server.log().splitlines() if "method=" in line]
    parsed = [words(line) for line in lines]
    check(lines and all(parsed), "every line of a request is in form",
          str([line for line, p in zip(lines, parsed) if not p][:3]))
    parsed = [p for p in parsed if p]
    check(all({"method", "path", "status", "ms", "in", "out"} <= set(p) for p in parsed),
          "method, path, status, time and sizes in each")
    check(all(float(p["ms"]) >= 0 and int(p["status"]) >= 200 and int(p["in"]) >= 0 and int(p["out"]) >= 0
              for p in parsed), "numbers are numbers")
    check(len([p for p in parsed if p["path"] == "/api/v1/asample"]) == 1, "one line per request")
    check(any(p["path"] == "/api/v1/forward_backward" and p.get("model") == model and p.get("tokens") == "3"
              for p in parsed), "a pass names its model and tokens")
    check(any(p["path"] == "/api/v1/retrieve_future" and "compute_ms" in p and "queue_ms" in p
              for p in parsed), "a poll tells queue and compute time")
    # logged as it was sent: escapes are only undone part by part, where a route reads them
    check(any(p["path"] == "/a%20b%22c%0Ainfo%20method=GET" for p in parsed), "a path cannot forge a line",
          str([p["path"] for p in parsed][-3:]))
done()
