# requirements: torch
"""The same calls, made by the official SDK and by libtinker, as one server sees them.

Each step is a method call (or a few) of the SDK and the step of the same name of
tools/seq-conform.  Compared are methods, paths, queries, headers, bodies (JSON and
decompressed protobuf by value), sequence ids, the order of submissions, the polls of
every promise, how attempts repeat, and what the caller gets.

What may differ, and why:
  User-Agent, X-Stainless-Runtime, -Runtime-Version, -Async   say who asks
  Host, Connection, Accept-Encoding                           belong to the HTTP library
  values of X-Idempotency-Key and of the roundtrip time       random and measured
  order among parallel chunks 2..n, and among samples         no order is promised
  times of heartbeats and telemetry                           background timers
  a forward pass over one token after a refused request       ours fills the number; the SDK
                                                              leaves a gap behind it
"""

import base64
import json
import os
import subprocess
import sys
import time
import traceback
from datetime import date, datetime, timezone

import tinker
import torch
from google.protobuf.json_format import MessageToDict
from tinker import types

from _recorder import RUN, SESSION, STATE, Recorder

BUILD = os.environ.get("BUILD_DIR", "build/release")
BACKGROUND = ("session_heartbeat", "telemetry")
COMPARED = ("accept", "content-type", "content-encoding", "x-api-key", "expect",
            "transfer-encoding", "x-stainless-package-version", "x-stainless-os",
            "x-stainless-arch", "x-stainless-retry-count", "x-stainless-read-timeout",
            "x-stainless-raw-response", "x-tinker-request-iteration", "x-tinker-request-type",
            "x-tinker-sampling-backpressure", "cf-access-client-id")
JWT = "eyJhbGciOiJub25lIn0." + base64.urlsafe_b64encode(json.dumps(
    {"exp": 4102444800, "sub": "urn:user:1", "email": "a@example.org", "iss": "passport-x"}
).encode()).decode().rstrip("=") + ".sig"
failed = count = 0


def report(ok, name, problems=()):
    global failed, count
    count += 1
    failed += not ok
    print(f"{'ok' if ok else 'not ok'} {count} - {name}", flush=True)
    for text in problems:
        print("# " + text[:1500], flush=True)


# ---- the SDK's side --------------------------------------------------------------------------


def datum(i, n, weights=True):
    inputs = {"target_tokens": [100 * i + k + 1 for k in range(n)]}
    if weights:
        inputs["weights"] = [0.5 * k for k in range(n)]
    return types.Datum(model_input=types.ModelInput.from_ints([100 * i + k for k in range(n)]),
                       loss_fn_inputs=inputs)


def batch(n, tokens):
    return [datum(i, tokens) for i in range(n)]


def prompt(first, n):
    return types.ModelInput.from_ints(list(range(first, first + n)))


def number(v):
    return "%.9g " % v


def told_pass(r):
    return number(r.metrics["loss:sum"]) + "".join(
        number(v) for o in r.loss_fn_outputs for v in o["logprobs"].tolist())


def told_sample(r):
    return "".join(number(t) + number(p) for s in r.sequences for t, p in zip(s.tokens, s.logprobs)) \
        + "".join(number(p or 0) for p in r.prompt_logprobs or [])


class Sdk:
    """The steps, as methods; each returns what the caller gets, as text."""

    def __init__(self, url):
        os.environ["TINKER_BASE_URL"] = url
        self.service = tinker.ServiceClient(user_metadata={"who": "me"}, project_id="prj-0")
        self.rest = None

    def __getattribute__(self, name):  # the REST client of the SDK asks the server; be as late
        if name == "rest" and object.__getattribute__(self, "rest") is None:
            self.rest = self.service.create_rest_client()
        return object.__getattribute__(self, name)

    def nothing(self):
        return ""

    def create_lora(self):
        self.training = self.service.create_lora_training_client(
            base_model="base/model", rank=8, seed=3, train_mlp=False)
        return self.training.model_id

    def create_lora_metadata(self):
        self.training = self.service.create_lora_training_client(
            base_model="base/model", user_metadata={"who": "me", "what": 'ä "q"'})
        return ""

    def info(self):
        return self.training.get_info().model_data.model_name

    def forward_backward(self, n=3, tokens=4):
        return told_pass(self.training.forward_backward(batch(n, tokens), "cross_entropy").result())

    def forward_backward_7(self):
        return self.forward_backward(7)

    def forward_backward_bytes(self):
        return self.forward_backward(6, 10)

    def forward(self, n=2, tokens=3):
        return told_pass(self.training.forward(batch(n, tokens), "cross_entropy").result())

    def forward_7(self):
        return self.forward(7, 4)

    def ppo(self):
        d = datum(1, 3, False)
        d.loss_fn_inputs["logprobs"] = types.TensorData(data=[-1, -0.5, -0.25], dtype="float32",
                                                        shape=[3])
        d.loss_fn_inputs["advantages"] = types.TensorData(data=[1, -1, 0.1], dtype="float32",
                                                          shape=[3])
        return told_pass(self.training.forward_backward(
            [d], "ppo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}).result())

    def chunks_of_all_kinds(self):
        d = types.Datum(loss_fn_inputs=datum(1, 3).loss_fn_inputs, model_input=types.ModelInput(chunks=[
            types.EncodedTextChunk(tokens=[5, 6]),
            types.ImageChunk(data=b"\x89PNG\x00\xff", format="png"),
            types.ImageChunk(data=b"jj", format="jpeg", expected_tokens=12),
            types.EncodedTextChunk(tokens=[9])]))
        return told_pass(self.training.forward_backward([d], "cross_entropy").result())

    def shapes(self):
        d = datum(1, 2, False)
        d.loss_fn_inputs["target_tokens"] = types.TensorData(
            data=[1, 2, 3, 4], dtype="int64", shape=[2, 2])
        d.loss_fn_inputs["weights"] = types.TensorData(
            data=[0.5, 2.0], dtype="float32", shape=[2, 2], sparse_crow_indices=[0, 1, 2],
            sparse_col_indices=[1, 0])
        return told_pass(self.training.forward_backward([d], "cross_entropy").result())

    def custom(self):
        def squares(data, logprobs):
            return sum((x * x).sum() for x in logprobs), {}
        return told_pass(self.training.forward_backward_custom(
            [datum(0, 3, False), datum(1, 2)], squares).result())

    def optim_step(self, **params):
        self.training.optim_step(types.AdamParams(**params)).result()
        return ""

    def optim_step_own(self):
        return self.optim_step(learning_rate=4e-5, beta2=0.999, eps=1e-8, weight_decay=0.01,
                               grad_clip_norm=1.0)

    def pipeline(self):
        futures = []
        for _ in range(3):
            futures.append(self.training.forward_backward(batch(2, 3), "cross_entropy"))
            futures.append(self.training.optim_step(types.AdamParams()))
        results = [f.result() for f in futures]
        return "".join(told_pass(r) for r in results[::2])

    def pipeline_7(self):
        a = self.training.forward_backward(batch(7, 4), "cross_entropy")
        b = self.training.optim_step(types.AdamParams())
        a = a.result()
        b.result()
        return told_pass(a)

    def save_state(self):
        return self.training.save_state("one").result().path

    def save_state_options(self):
        return self.training.save_state("two", ttl_seconds=3600, overwrite=True).result().path

    def save_for_sampler(self):
        return self.training.save_weights_for_sampler("one").result().path

    def save_for_sampler_ttl(self):
        return self.training.save_weights_for_sampler("two", ttl_seconds=60).result().path

    def save_and_sample(self):
        self.sampler = self.training.save_weights_and_get_sampling_client()
        return self.sampler._sampling_session_id

    def load_state(self, **more):
        return self.training.load_state(STATE, **more).result().path

    def load_state_optimizer(self):
        return self.training.load_state_with_optimizer(STATE).result().path

    def load_state_token(self):
        return self.load_state(weights_access_token="tml-other")

    def from_state(self, **more):
        self.training = self.service.create_training_client_from_state(STATE, **more)
        return self.training.model_id

    def from_state_optimizer(self):
        self.training = self.service.create_training_client_from_state_with_optimizer(STATE)
        return self.training.model_id

    def from_state_options(self):
        return self.from_state(base_model="other/model", user_metadata={"who": "me"})

    def from_state_token(self):
        return self.from_state(weights_access_token="tml-other")

    def create_sampler(self, **how):
        self.sampler = self.service.create_sampling_client(**(how or {"base_model": "base/model"}))
        return self.sampler._sampling_session_id

    def create_sampler_path(self):
        return self.create_sampler(model_path=f"tinker://{RUN}/sampler_weights/one")

    def take(self, params=None, n=1, **more):
        return told_sample(self.sampler.sample(
            prompt(7, 3), n, params or types.SamplingParams(), **more).result())

    def sample(self):
        return self.take()

    def sample_params(self):
        return self.take(types.SamplingParams(max_tokens=20, seed=9, temperature=0.7, top_k=40,
                                              top_p=0.9),
                         3, include_prompt_logprobs=True, topk_prompt_logprobs=2)

    def sample_stop(self):
        return "".join(self.take(types.SamplingParams(stop=s))
                       for s in (["\n", "stop ü"], [1, 2], []))

    def sample_chunks(self):
        p = types.ModelInput(chunks=[
            types.EncodedTextChunk(tokens=[5, 6]),
            types.ImageChunk(data=b"\x89PNG\x00\xff", format="png"),
            types.ImageAssetPointerChunk(location="s3://bucket/a.jpg", format="jpeg",
                                         expected_tokens=5),
            types.EncodedTextChunk(tokens=[9])])
        return told_sample(self.sampler.sample(p, 1, types.SamplingParams()).result())

    def sample_many(self):
        futures = [self.sampler.sample(prompt(10 * i, 3), 1, types.SamplingParams())
                   for i in range(8)]
        return "".join(told_sample(f.result()) for f in futures)

    def logprobs(self):
        return "".join(number(p or 0) for p in
                       self.sampler.compute_logprobs(prompt(7, 4)).result())

    def base_model(self):
        return self.sampler.get_base_model()

    def capabilities(self):
        self.service.get_server_capabilities()
        return ""

    def runs(self):
        self.rest.list_training_runs().result()
        self.rest.list_training_runs(limit=5, offset=10, access_scope="accessible",
                                     project_id="p 1&x").result()
        return ""

    def run(self):
        self.rest.get_training_run(RUN).result()
        self.rest.get_training_run(RUN, access_scope="accessible").result()
        self.rest.get_training_run_by_tinker_path(STATE).result()
        return ""

    def checkpoints(self):
        self.rest.list_checkpoints(RUN).result()
        self.rest.list_user_checkpoints().result()
        self.rest.list_user_checkpoints(limit=7, offset=3).result()
        return ""

    def weights_info(self):
        self.rest.get_weights_info_by_tinker_path(STATE).result()
        return ""

    def publish(self):
        self.rest.publish_checkpoint_from_tinker_path(STATE).result()
        self.rest.unpublish_checkpoint_from_tinker_path(STATE).result()
        return ""

    def ttl(self):
        self.rest.set_checkpoint_ttl_from_tinker_path(STATE, 60).result()
        self.rest.set_checkpoint_ttl_from_tinker_path(STATE, None).result()
        return ""

    def archive(self):
        self.rest.get_checkpoint_archive_url_from_tinker_path(STATE).result()
        return ""

    def delete_checkpoint(self):
        self.rest.delete_checkpoint_from_tinker_path(STATE).result()
        return ""

    def sessions(self):
        self.rest.list_sessions().result()
        self.rest.list_sessions(limit=3, offset=1, access_scope="accessible").result()
        self.rest.get_session(SESSION).result()
        return ""

    def project(self):
        self.rest.assign_session_project(SESSION, "prj-1").result()
        return ""

    def trace(self):
        return self.rest.export_session_trace(SESSION).result()

    def sampler_info(self):
        self.rest.get_sampler(SESSION + ":sample:0").result()
        return ""

    def billing(self):
        self.rest.get_billing_usage(datetime(2026, 8, 1, tzinfo=timezone.utc),
                                    datetime(2026, 8, 2, 5, tzinfo=timezone.utc)).result()
        return ""

    def audit(self):
        self.rest.get_audit_log().result()
        self.rest.get_audit_log(event_type="checkpoints", day=date(2026, 8, 1)).result()
        return ""

    def whoami(self):
        me = self.rest.whoami().result()
        return me.user_urn + me.email

    def step(self, name):
        try:
            return "ok", getattr(self, name)()
        except (tinker.TinkerError, ValueError) as e:  # a failed poll gives the latter
            return "error", str(e)
        except Exception:  # noqa: BLE001 - shows up in the comparison
            return "crash", traceback.format_exc().replace("\n", " | ")

    def close(self):
        for holder in (self.service._session_holder, self.service._rest_holder):
            if holder:
                holder.close()


class Ours:
    """The same steps in another process."""

    def __init__(self, url):
        self.process = subprocess.Popen(
            [os.path.join(BUILD, "tools", "seq-conform")], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, env={**os.environ, "TINKER_BASE_URL": url}, text=True)

    def step(self, name):
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        return tuple(line.rstrip("\n").split("\t", 1)) if line else ("crash", "")

    def close(self):
        self.process.stdin.close()
        self.process.wait(30)


# ---- comparing ------------------------------------------------------------------------------


def comparable(r, keys):
    """What must be equal, as plain data; keys numbers idempotency keys as they appear."""
    h = {k: r.headers[k] for k in COMPARED if k in r.headers}
    if "x-stainless-read-timeout" in h:  # the SDK writes 5.0 where it was given a float
        h["x-stainless-read-timeout"] = float(h["x-stainless-read-timeout"])
    h["x-idempotency-key"] = keys.setdefault(r.headers.get("x-idempotency-key"), len(keys))
    key = r.headers.get("x-idempotency-key", "")  # random but for its beginning, if it has one
    h["form of the key"] = key[:22] if key.startswith("stainless") else len(key)
    h["roundtrip time given"] = "x-tinker-create-promise-roundtrip-time" in r.headers
    h["content-length given"] = "content-length" in r.headers
    body = r.body if r.proto is None else MessageToDict(r.proto, preserving_proto_field_name=True)
    body = plain(body)
    return {"method": r.method, "path": r.path, "query": r.query, "headers": h, "body": body}


def in_order(requests):
    """Submissions in order of arrival, where parallel ones have none among themselves."""
    out, i = [], 0
    while i < len(requests):
        j = i
        while j < len(requests) and requests[j].path == requests[i].path:
            j += 1
        part = requests[i:j]
        seq = [r.get("seq_id") for r in part]
        if part[0].path == "forward_backward" and len(part) > 1 and seq[-1] == min(seq):
            part = sorted(part[:-1], key=lambda r: r.get("seq_id")) + part[-1:]
        elif part[0].path == "asample":
            part.sort(key=lambda r: r.get("seq_id"))
        out += part
        i = j
    return out


def is_filler(r):
    """Does it only take the place of a number whose request was not accepted?"""
    data = r.proto.data if r.proto is not None and r.proto.forward_only else []
    return len(data) == 1 and len(data[0].model_input) == 1 and \
        data[0].model_input[0].encoded_text.tokens == bytes(4)


def normalized(requests):
    """Submissions in order, and the polls of each promise."""
    front = [r for r in requests if r.path not in BACKGROUND and not is_filler(r)]
    keys = {None: 0}
    submissions = [comparable(r, keys)
                   for r in in_order([r for r in front if r.path != "retrieve_future"])]
    polls = {}
    for r in front:
        if r.path == "retrieve_future":
            polls.setdefault(r.body["request_id"], []).append(comparable(r, {None: 0}))
    return submissions, dict(sorted(polls.items()))


def difference(a, b, where=""):
    """The first few places where two plain values differ."""
    if type(a) is not type(b):
        return [f"{where}: {a!r} and {b!r}"]
    if isinstance(a, dict):
        return [d for k in sorted(set(a) | set(b), key=str)
                for d in difference(a.get(k, "(absent)"), b.get(k, "(absent)"), f"{where}.{k}")]
    if isinstance(a, (list, tuple)):
        found = [d for i, (x, y) in enumerate(zip(a, b)) for d in difference(x, y, f"{where}[{i}]")]
        if len(a) != len(b):
            found.append(f"{where}: {len(a)} and {len(b)}: "
                         + str([x.get("path") if isinstance(x, dict) else x for x in a][:20]) + " and "
                         + str([x.get("path") if isinstance(x, dict) else x for x in b][:20]))
        return found
    return [] if a == b else [f"{where}: {a!r} and {b!r}"]


SIDES = (Sdk, Ours)


def plain(body):
    """A place for another version to say what is only said in other words."""
    return body


# ---- scenarios -------------------------------------------------------------------------------

TRAINING = ["create_lora", "info", "forward_backward", "ppo", "chunks_of_all_kinds", "shapes",
            "optim_step", "optim_step_own", "pipeline", "forward", "custom", "save_state",
            "save_state_options", "save_for_sampler", "save_for_sampler_ttl", "load_state",
            "load_state_optimizer", "load_state_token", "optim_step"]
SAMPLING = ["create_sampler", "sample", "sample_params", "sample_stop", "sample_chunks",
            "sample_many", "logprobs", "base_model", "create_sampler_path", "sample"]
REST = ["capabilities", "runs", "run", "checkpoints", "weights_info", "publish", "ttl", "archive",
        "sessions", "project", "trace", "sampler_info", "billing", "audit", "delete_checkpoint"]
CHUNKED = ["create_lora", "forward_backward_7", "forward_backward_bytes", "forward_7", "pipeline_7",
           "optim_step"]
SMALL = {"fwdbwd_max_chunk_len": 3, "fwdbwd_max_chunk_bytes_count": 400}
AGAIN = (503, {"detail": "busy"})
WAIT = (200, {"type": "try_again", "request_id": "x", "queue_state": "active"})
PEEK = (200, {"status": "complete_metadata", "response_payload_size": 1000})

# name, client config, steps; a step may be (name, plan): answers for the next requests on paths
SCENARIOS = [
    ("no call, no request", {}, ["nothing"]),
    ("training", {}, TRAINING),
    ("sampling", {}, SAMPLING + ["create_lora_metadata", "save_and_sample", "sample",
                                 "create_sampler", "sample"]),
    ("rest", {}, REST),
    ("continuing", {}, ["from_state", "optim_step", "from_state_optimizer", "forward_backward",
                        "from_state_options", "from_state_token", "optim_step"]),
    ("continuing, created by loading", {"create_model_via_load_weights": True},
     ["from_state", "optim_step", "from_state_optimizer", "from_state_options", "optim_step"]),
    ("parallel chunks", SMALL, CHUNKED),
    ("chunks one by one", {**SMALL, "parallel_fwdbwd_chunks": False}, CHUNKED),
    ("compressed", {"proto_compress_fwdbwd": True}, ["create_lora", "forward_backward", "forward"]),
    ("token exchange", {"pjwt_auth_enabled": True, "jwt": JWT},
     ["whoami", "create_lora", "optim_step", "create_sampler", "sample", "runs"]),
    ("trouble", {}, [
        ("create_sampler", {"client/dynamic_config": [(404, {"detail": "no"})]}),
        ("sample", {"asample": [(429, {"detail": "slow"})]}),
        ("sample", {"asample": [AGAIN]}),
        ("sample", {"retrieve_future": [(410, {"detail": "gone"})]}),
        ("sample", {"retrieve_future": [WAIT, (408, {"queue_state": "active"}), AGAIN, PEEK]}),
        ("sample", {"retrieve_future": [(400, {"detail": "odd"})] * 2}),
        ("create_lora", {"create_model": [AGAIN]}),
        ("optim_step", {"optim_step": [AGAIN, (409, {"detail": "conflict"})]}),
        ("optim_step", {"optim_step": [(503, {}, {"Retry-After": "0.1"})]}),
        ("optim_step", {"optim_step": [(422, {"detail": "bad"})]}),
        ("optim_step", {"optim_step": [(500, {}, {"x-should-retry": "false"})]}),
        ("save_state", {"save_weights": [AGAIN]}),
        ("save_and_sample", {"save_weights_for_sampler": [AGAIN]}),
        ("forward_backward", {"forward_backward": [(408, {"detail": "late"})]}),
        ("forward_backward", {"retrieve_future": [WAIT, (429, {"detail": "slow"}), PEEK]}),
        ("optim_step", {"retrieve_future": [(200, {"error": "no", "category": "user"})]}),
        ("optim_step", {"retrieve_future": [(404, {"detail": "who?"})]}),
        "optim_step",
        ("runs", {"training_runs": [AGAIN]}),
        ("runs", {"training_runs": [(403, {"detail": "no"})]}),
        ("ttl", {f"training_runs/{RUN}/checkpoints/weights/one/ttl": [AGAIN]}),
        ("trace", {f"sessions/{SESSION}/trace_export": [AGAIN]}),
    ]),
]


def play(client, recorder, steps, prepare):
    """All steps by one client: [(name, outcome, requests)]."""
    out = []
    for step in steps:
        name, plan = step if isinstance(step, tuple) else (step, {})
        for path, answers in plan.items():
            recorder.plan(path, *answers)
        outcome = client.step(name)
        prepare()
        out.append((name + (" after " + ", ".join(plan) if plan else ""), outcome, recorder.take()))
    return out


def compare(scenario, config, steps, recorder):
    runs = []
    for kind in SIDES:
        recorder.reset(config)
        client = kind(recorder.url)
        runs.append(play(client, recorder, steps, lambda: time.sleep(0.02)))
        client.close()
    totals = [0, 0]
    for (name, theirs, a), (_, ours, b) in zip(*runs):
        problems = []
        if theirs[0] != ours[0] or (theirs[0] == "ok" and theirs[1].strip() != ours[1].strip()):
            problems.append(f"outcome: {theirs} and {ours}")
        (sa, pa), (sb, pb_) = normalized(a), normalized(b)
        problems += difference(sa, sb, "submission") + difference(pa, pb_, "poll")
        report(not problems, f"{scenario}: {name}", problems[:8])
        totals = [totals[0] + len(sa), totals[1] + sum(map(len, pa.values()))]
    good = sum(1 for _ in runs[0])
    print(f"# table {scenario:<32} {good:>3} steps {totals[0]:>4} requests {totals[1]:>4} polls")
    return good


def background(recorder):
    """One heartbeat and the first telemetry of each, by content."""
    seen = []
    for kind in (Sdk, Ours):
        recorder.reset({})
        client = kind(recorder.url)
        client.step("create_sampler")
        until, got = time.monotonic() + 25, {}
        while time.monotonic() < until and len(got) < 2:
            time.sleep(0.1)
            got.update((r.path, r) for r in recorder.take() if r.path in BACKGROUND)
        client.close()
        seen.append(got)
    for path in BACKGROUND:
        a, b = (s.get(path) for s in seen)
        problems = ["did not come"] if not a or not b else []
        if not problems:
            x, y = comparable(a, {None: 0}), comparable(b, {None: 0})
            if path == "telemetry":  # the same members; events tell of their own program
                for v in (x, y):
                    v["body"] = {"members": sorted(v["body"]), "sdk_version": v["body"]["sdk_version"],
                                 "session": v["body"]["session_id"], "events": sorted(
                                     {(e["event"], *sorted(e)) for e in v["body"]["events"]
                                      if e["event"] == "SESSION_START"})}
            problems = difference(x, y, path)
        report(not problems, f"background: {path}", problems[:8])


def main():
    os.environ.update({"TINKER_API_KEY": "tml-key", "TINKER_TELEMETRY": "1",
                       "TINKER_TAGS": "", "CLOUDFLARE_ACCESS_CLIENT_ID": "cf"})
    for name in ("TINKER_TAGS", "TINKER_PROJECT_ID", "TINKER_LOG"):
        os.environ.pop(name, None)
    wanted = sys.argv[1:]
    recorder = Recorder()
    steps = sum(compare(*s, recorder) for s in SCENARIOS if not wanted or s[0] in wanted)
    if not wanted or "background" in wanted:
        background(recorder)
    print(f"1..{count}")
    print(f"# score of the same calls: {count - failed} of {count} alike, {steps} steps")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
