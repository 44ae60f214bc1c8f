"""A Tinker service that is a script: mock_service.py LOG [UPSTREAM]; prints its port.

Every request is a line of LOG: method, path with query, Accept, body.  Runs, checkpoints, archives and
errors are chosen by the names that are asked for, so that a test needs no other setup.  With UPSTREAM
it passes everything on, and one sample of twenty is refused with 429 or 500."""
import base64
import http.client
import io
import json
import sys
import tarfile
import threading
import time
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

log = open(sys.argv[1], "a", buffering=1)  # tests empty it
upstream = urlsplit(sys.argv[2]).netloc if len(sys.argv) > 2 else None
counts = {}
lock = threading.Lock()
local = threading.local()


def count(what):
    """How often this was asked for, this time included."""
    with lock:
        counts[what] = counts.get(what, 0) + 1
        return counts[what]


def archive(kind):
    """A tar file with one adapter, or with one member that must not be unpacked."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz" if kind == "gz" else "w") as tar:
        def add(name, data=b"x", **more):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for key, value in more.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(data) if not more else None)
        add("adapter_config.json", b'{"peft_type": "LORA", "r": 4, "lora_alpha": 32, "bias": "none", "target_modules": ["up_proj"]}')
        name = "base_model.model.model.layers.0.mlp.up_proj.lora_"
        header = json.dumps({name + "A.weight": {"dtype": "F32", "shape": [4, 9375], "data_offsets": [0, 150000]},
                             name + "B.weight": {"dtype": "F32", "shape": [9375, 4], "data_offsets": [150000, 300000]}}).encode()
        add("adapter_model.safetensors", len(header).to_bytes(8, "little") + header + b"\0" * 300000)
        add("checkpoint_complete", b"")
        if kind == "symlink":
            add("link", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd")
        if kind == "hardlink":
            add("link", b"", type=tarfile.LNKTYPE, linkname="adapter_config.json")
        if kind == "parent":
            add("../x")
        if kind == "absolute":
            add("/tmp/tinker-acceptance-x")
        if kind == "prefix":  # begins with the name of the target folder, and is not in it
            add("../run_weights_prefixx/../y")
    return out.getvalue()


def checkpoint(name, time_text, size=1024, run="run", kind="weights", expires=None):
    return {"checkpoint_id": f"{kind}/{name}", "checkpoint_type": "training" if kind == "weights" else "sampler",
            "time": time_text, "tinker_path": f"tinker://{run}/{kind}/{name}", "size_bytes": size, "public": False,
            "expires_at": expires, "unknown": 1}


def run_object(i):
    return {"training_run_id": f"r{i}:train:0", "base_model": "Qwen/Qwen3-8B", "model_owner": "owner", "is_lora": True,
            "corrupted": False, "lora_rank": 32, "last_request_time": "2025-11-05T12:34:56.789012Z",
            "last_checkpoint": None, "last_sampler_checkpoint": None, "user_metadata": None}


def ago(**past):
    return (datetime.now(timezone.utc) - timedelta(**past)).isoformat()


GOLDEN = dict(run_object(0), user_metadata={"note": "t\u00e4st \U0001F600 \"q\" \\", "empty": ""}, lora_rank=None,
              last_request_time="2025-11-05T12:34:56Z", unknown=[1],
              last_checkpoint=checkpoint("1", "2025-11-05T12:00:00.000001Z", size=None),
              last_sampler_checkpoint=checkpoint("2", "2025-11-05T12:00:00Z", kind="sampler_weights",
                                                 expires="2030-01-01T00:00:00Z"))
SIZES = [0, 500, 1536, 1572864, 1610612736, 1649267441664, 1048575, None]
TIMES = [dict(seconds=1), dict(seconds=90), dict(minutes=59), dict(hours=5, minutes=1), dict(days=7, minutes=1),
         dict(days=13), dict(days=30, minutes=1), dict(seconds=-30), dict(days=-3, minutes=-1)]
BOUNDARY = [checkpoint("before", "2024-01-01T00:00:00Z"), checkpoint("at", "2024-02-01T00:00:00Z"),
            checkpoint("after", "2024-03-01T00:00:00Z")]
EVENT = {"bucket_start": "2026-07-13T05:00:00Z", "bucket_end": "2026-07-13T06:00:00Z", "base_model": "m, 1",
         "user_id": None, "user_name": "A \"B\"", "session_id": "s1", "project_id": None}
BILLING = {"data": [dict(EVENT, event_info={"type": "training", "token_count": 12}),
                    dict(EVENT, event_info={"type": "sampling_prefill", "cached": True, "token_count": 3}),
                    dict(EVENT, event_info={"type": "sampling_prefill", "cached": False, "token_count": 4}),
                    dict(EVENT, event_info={"type": "storage", "gigabyte_hours": 0.1})],
           "sessions": {"s1": {"user_metadata": {"k": "v"}}, "s2": {"user_metadata": None}}}


def jwt(claims):
    def part(value):
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()
    return ".".join([part({"alg": "none"}), part(dict(claims, exp=int(time.time()) + 3600)), "c2ln"])


class Mock(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def reply(self, status, body=b"", headers=()):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def pass_on(self, body):
        if self.path.endswith("/asample") and count("samples") % 20 == 0:
            return self.reply(429 if count("refused") % 2 else 500, {"detail": "injected"})
        if not hasattr(local, "server"):
            local.server = http.client.HTTPConnection(upstream, timeout=60)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection", "accept-encoding")}
        local.server.request(self.command, self.path, body, headers)
        got = local.server.getresponse()
        data = got.read()
        keep = [(k, v) for k, v in got.getheaders() if k.lower() not in ("content-length", "connection", "transfer-encoding")]
        return self.reply(got.status, data, keep)

    def send_archive(self, kind):
        data = archive(kind)
        start = 0
        if self.headers.get("Range"):
            start = int(self.headers["Range"].split("=")[1].split("-")[0])
        if kind == "cut" and count("cut") == 1:  # half of it, then the connection ends
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Accept-Ranges", "bytes")
            self.end_headers()
            self.wfile.write(data[:len(data) // 2])
            self.wfile.flush()
            self.close_connection = True
            return None
        if start:
            return self.reply(206, data[start:], [("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")])
        return self.reply(200, data, [("Accept-Ranges", "bytes")])

    def archive_address(self, name):
        here = f"http://127.0.0.1:{self.server.server_port}/files/{name}"
        if name == "slow" and count("slow") <= 2:
            return self.reply(503, {"detail": "still being made"})
        if name == "json":
            return self.reply(200, {"url": here, "expires": "2030-01-01T00:00:00Z"})
        if name == "expires":
            return self.reply(302, b"", [("Location", here), ("Expires", "Tue, 01 Jan 2030 00:00:00 GMT")])
        return self.reply(302, b"", [("Location", here)])

    def list_page(self, key, total, make, query):
        limit, offset = int(query["limit"][0]), int(query["offset"][0])
        items = [make(i) for i in range(offset, min(offset + limit, total))]
        return self.reply(200, {key: items, "cursor": {"offset": offset, "limit": limit, "total_count": total}})

    def answer_run(self, parts, query, body):
        """parts: what follows /api/v1/training_runs."""
        run = parts[0].replace("%3A", ":")
        if run.startswith("status-"):
            status = int(run[7:])
            return self.reply(status, {"detail": f"mock {status}"}, [("Retry-After", "0")] if status == 429 else ())
        if run == "hang":
            time.sleep(600)
        if len(parts) == 1:
            return self.reply(200, dict(GOLDEN, training_run_id=run) if run == "golden" else dict(run_object(0), training_run_id=run))
        if len(parts) == 2:
            if run == "sizes":
                found = [checkpoint(str(i), "2025-11-05T12:34:56Z", size, run) for i, size in enumerate(SIZES)]
            elif run == "times":
                found = [checkpoint(str(i), ago(**past), 1, run) for i, past in enumerate(TIMES)]
            else:
                found = [dict(c, tinker_path=c["tinker_path"].replace("//run/", f"//{run}/")) for c in BOUNDARY]
            return self.reply(200, {"checkpoints": found})
        name = parts[3]
        if parts[-1] == "archive":
            return self.archive_address(name)
        if parts[-1] == "publish" and name == "public":
            return self.reply(409, {"detail": "already public"})
        if self.command == "DELETE" and name == "none":
            return self.reply(404, {"detail": "no such checkpoint"})
        return self.reply(200, {})

    def handle_any(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if upstream:
            return self.pass_on(body)
        print(self.command, self.path, self.headers.get("Accept"), body.decode(errors="replace"), file=log)
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        parts = url.path.split("/")[3:]
        key = self.headers.get("X-API-Key") or self.headers.get("Authorization") or ""
        if url.path.startswith("/files/"):
            return self.send_archive(parts[0] if parts else url.path.rsplit("/", 1)[1])
        if parts[0] == "client":
            return self.reply(200, {"pjwt_auth_enabled": "-jwt-" in key})
        if parts[0] in ("create_session", "session_heartbeat", "telemetry"):  # the official client asks for them
            return self.reply(200, {"type": parts[0], "session_id": "mock", "status": "accepted"})
        if parts[0] == "auth":
            email = {"with": {"email": "a@b.c"}, "empty": {"email": ""}}.get(key.rsplit("-", 1)[1], {})
            return self.reply(200, {"jwt": jwt(dict({"sub": "urn:user:1", "org_id": "urn:org:1"}, **email))})
        if parts[0] == "training_runs" and len(parts) == 1:
            if key.endswith("-golden"):
                return self.reply(200, {"training_runs": [GOLDEN], "cursor": {"offset": 0, "limit": 20, "total_count": 1}})
            return self.list_page("training_runs", 250, run_object, query)
        if parts[0] == "training_runs":
            return self.answer_run(parts[1:], query, body)
        if parts[0] == "checkpoints":
            return self.list_page("checkpoints", 2300, lambda i: checkpoint(str(i), "2025-11-05T12:34:56Z"), query)
        if parts[0] == "weights_info":
            return self.reply(200, {"base_model": "Qwen/Qwen3-8B", "is_lora": True, "lora_rank": 4})
        if parts[-1] == "trace_export":
            if parts[1] == "failed":
                return self.reply(200, {"status": "failed", "error": "the disk is full"})
            if parts[1] == "ready" or count("trace") > 2:
                return self.reply(200, {"status": "ready", "url": f"http://127.0.0.1:{self.server.server_port}/files/trace"})
            return self.reply(200, {"status": "pending"})
        if parts[0] == "billing":
            empty = "2020" in query["starting_on"][0]
            return self.reply(200, {"data": [], "sessions": {}} if empty else BILLING)
        return self.reply(404, {"detail": "the mock does not know " + self.path})

    do_GET = do_POST = do_PUT = do_DELETE = handle_any


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


server = Server(("127.0.0.1", 0), Mock)
print(server.server_port, flush=True)
server.serve_forever()
