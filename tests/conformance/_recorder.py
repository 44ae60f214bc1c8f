"""A service that writes down every request and answers all of them plausibly.

Ids depend only on what was asked, never on when, so two clients that make the same calls
get the same answers.  A test may plan other answers for the next requests on a path.
"""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import zstandard
from tinker.proto import tinker_public_pb2 as pb

SESSION = "11111111-2222-4333-8444-555555555555"
RUN = SESSION + ":train:0"
STATE = f"tinker://{RUN}/weights/one"
PASSES = ("Forward", "ForwardBackward")
CHECKPOINT = {"checkpoint_id": "weights/one", "checkpoint_type": "training",
              "time": "2026-08-01T10:00:00Z", "tinker_path": STATE, "size_bytes": 5, "public": False}
RUN_DATA = {"training_run_id": RUN, "base_model": "base/model", "model_owner": "me",
            "is_lora": True, "lora_rank": 8, "corrupted": False,
            "last_request_time": "2026-08-01T10:00:00Z", "last_checkpoint": CHECKPOINT}
CURSOR = {"offset": 0, "limit": 20, "total_count": 1}


class Request:
    """One request as it arrived; body is decoded to something comparable."""

    def __init__(self, method, target, headers, body):
        parts = urlsplit(target)
        self.at = time.monotonic()
        self.method, self.path = method, parts.path.replace("/api/v1/", "", 1)
        self.query = sorted(parse_qsl(parts.query, keep_blank_values=True))
        self.headers = headers
        self.size = len(body)
        if headers.get("content-encoding") == "zstd":
            body = zstandard.ZstdDecompressor().decompress(body)
        kind = headers.get("content-type", "")
        self.proto = pb.ForwardBackwardRequest.FromString(body) if "protobuf" in kind else None
        self.body = json.loads(body) if body and self.proto is None else None

    def get(self, name, default=None):
        if self.proto is not None:
            return getattr(self.proto, name)
        return (self.body or {}).get(name, default)


def sample_result(request):
    """A reply that depends on the prompt, with what was asked for."""
    prompt = [t for c in request.body["prompt"]["chunks"] for t in c.get("tokens", [0])]
    out = pb.SampleResponse()
    for i in range(request.body["num_samples"]):
        s = out.sequences.add()
        s.stop_reason = pb.STOP_REASON_LENGTH
        s.tokens = np.array([prompt[0] + i, 7], dtype=np.int32).tobytes()
        s.logprobs = np.array([-0.5, -1.5], dtype=np.float32).tobytes()
    if request.body.get("prompt_logprobs"):
        lp = np.array([np.nan] + [-0.25] * (len(prompt) - 1), dtype=np.float32)
        out.prompt_logprobs = lp.tobytes()
    k = request.body.get("topk_prompt_logprobs", 0)
    if k:
        out.topk_prompt_logprobs.k, out.topk_prompt_logprobs.prompt_length = k, len(prompt)
        out.topk_prompt_logprobs.token_ids = np.zeros(k * len(prompt), dtype=np.int32).tobytes()
        out.topk_prompt_logprobs.logprobs = np.full(k * len(prompt), -1, np.float32).tobytes()
    return out.SerializeToString()


def pass_result(request):
    """Logprobs of the shape of the targets, and a metric to add up."""
    out = pb.ForwardBackwardOutput(loss_fn_output_type="TorchLossReturn")
    record = out.loss_fn_outputs.add()
    record.num_datums = len(request.proto.data)
    data, offsets = b"", [0]
    for i, d in enumerate(request.proto.data):
        n = int(np.prod(d.loss_fn_inputs["target_tokens"].shape))
        data += (np.arange(n, dtype=np.float32) * -0.125 - i - 0.5).astype(np.float32).tobytes()
        offsets.append(len(data))
    field = record.fields["logprobs"]
    field.data, field.offsets = data, np.array(offsets, dtype=np.int64).tobytes()
    field.dtype = pb.DTYPE_FLOAT32
    out.metrics["loss:sum"] = float(len(request.proto.data))
    return out.SerializeToString()


class Recorder:
    """The server and its notes; serve it once, reset() between clients."""

    def __init__(self):
        self.lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"at": self}))
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.reset({})

    def reset(self, config):
        with self.lock:
            self.config, self.requests, self.planned, self.jobs = config, [], {}, {}

    def plan(self, path, *answers):
        """The next answers on this path: (status, JSON or bytes[, headers])."""
        with self.lock:
            self.planned.setdefault(path, []).extend(answers)

    def take(self):
        """What arrived since the last call."""
        with self.lock:
            taken, self.requests = self.requests, []
            return taken

    def answer(self, r):
        with self.lock:
            self.requests.append(r)
            plan = self.planned.get(r.path)
            if plan:
                r.planned = True
                return plan.pop(0)
            if r.path == "retrieve_future":
                return self.result(r)
            name = getattr(self, "on_" + r.path.split("/")[0], None)
            return (200, name(r)) if name else (200, self.submit(r))

    def submit(self, r):
        """A promise, named after the request that it belongs to."""
        owner = r.get("model_id") or r.get("sampling_session_id") or r.get("session_id")
        number = r.get("seq_id") if r.get("seq_id") is not None else r.get("model_seq_id")
        name = f"{r.path}/{owner}/{number}"
        self.jobs[name] = r
        if r.path == "asample":  # newer SDKs refuse an answer without
            return {"request_id": name, "sample_sequence_ids": [f"{name}:{i}" for i in range(r.get("num_samples"))]}
        return {"request_id": name}

    def result(self, r):
        job = self.jobs[r.body["request_id"]]
        if job.path == "asample":
            return 200, sample_result(job), {"Content-Type": "application/x-protobuf"}
        if job.path == "forward_backward":
            return 200, pass_result(job), {"Content-Type": "application/x-protobuf"}
        model = job.get("model_id") or f"{SESSION}:train:{job.get('model_seq_id')}"
        path = job.get("path") or ""
        if job.path == "create_model":
            return 200, {"model_id": model}
        if job.path == "optim_step":
            return 200, {"metrics": {"step:max": 1.0}}
        if job.path == "load_weights":
            return 200, {"path": path}
        if job.path == "save_weights_external":
            return 200, {"path": f"tinker://{model}/external_weights/{path}", "size_bytes": 3}
        if job.path == "save_weights":
            return 200, {"path": f"tinker://{model}/weights/{path}"}
        if not path:
            n = job.get("sampling_session_seq_id")
            return 200, {"sampling_session_id": f"{SESSION}:sample:{n}"}
        return 200, {"path": f"tinker://{model}/sampler_weights/{path}"}

    # ---- answers without a promise, by the first part of the path ----------------------------

    def on_client(self, r):
        return self.config if r.path == "client/config" else {"refresh_interval_sec": 300}

    def on_auth(self, r):
        return {"jwt": self.config["jwt"]}

    def on_create_session(self, r):
        return {"session_id": SESSION}

    def on_session_heartbeat(self, r):
        return {}

    def on_telemetry(self, r):
        return {"status": "accepted"}

    def on_create_sampling_session(self, r):
        return {"sampling_session_id": f"{SESSION}:sample:{r.get('sampling_session_seq_id')}"}

    def on_get_info(self, r):
        return {"model_id": r.get("model_id"), "is_lora": True, "lora_rank": 8,
                "model_data": {"arch": "a", "model_name": "base/model", "tokenizer_id": "t"}}

    def on_weights_info(self, r):
        return {"base_model": "base/model", "is_lora": True, "lora_rank": 8, "train_mlp": False}

    def on_get_server_capabilities(self, r):
        return {"supported_models": [{"model_name": "base/model", "max_context_length": 100}]}

    def on_training_runs(self, r):
        parts = r.path.split("/")
        if len(parts) == 1:
            return {"training_runs": [RUN_DATA], "cursor": CURSOR}
        if len(parts) == 2:
            return RUN_DATA
        if parts[-1] == "external_weights_urls":
            return {"urls": {"a.json": "https://example.org/a"}, "expires": "2026-08-02T10:00:00Z"}
        if parts[-1] == "archive":
            return {"url": "https://example.org/a.tar", "expires": "2026-08-02T10:00:00Z"}
        return {"checkpoints": [CHECKPOINT]} if len(parts) == 3 else {}

    def on_checkpoints(self, r):
        return {"checkpoints": [CHECKPOINT], "cursor": CURSOR}

    def on_copy_weights(self, r):
        return {"tinker_path": f"tinker://{RUN}/weights/copied"}

    def on_sessions(self, r):
        if r.path == "sessions/search":
            return {"sessions": [], "next_cursor": None}
        if r.path == "sessions":
            return {"sessions": [SESSION]}
        if r.path.endswith("/trace_export"):
            return {"status": "ready", "url": "https://example.org/trace"}
        return {"training_run_ids": [RUN], "sampler_ids": []} if r.method == "GET" else {}

    def on_samplers(self, r):
        return {"sampler_id": r.path.split("/")[1], "base_model": "base/model"}

    def on_billing(self, r):
        if r.path.endswith("checkpoints/current"):
            return {"data": []}
        return {"data": [], "sessions": {}}

    def on_audit(self, r):
        return {"entries": []}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    at = None
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def exchange(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {k.lower(): v for k, v in self.headers.items()}
        try:
            answer = self.at.answer(Request(self.command, self.path, headers, body))
        except Exception as e:  # noqa: BLE001 - shows up in the comparison
            answer = (422, {"detail": f"recorder: {e!r}"})
        status, what, more = (*answer, {})[:3]
        if not isinstance(what, bytes):
            what, more = json.dumps(what).encode(), {"Content-Type": "application/json", **more}
        self.send_response(status)
        for k, v in more.items():
            self.send_header(k, v)
        self.send_header("Content-Length", str(len(what)))
        self.end_headers()
        self.wfile.write(what)

    do_GET = do_POST = do_PUT = do_DELETE = exchange
