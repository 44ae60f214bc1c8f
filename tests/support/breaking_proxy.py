"""A proxy that breaks one rule of the server behind it: breaking_proxy.py URL RULE; prints its port."""
import json
import re
import sys
import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

upstream, rule = urlsplit(sys.argv[1]), sys.argv[2]
lock = threading.Lock()
seen = {"seq": 0, "late": None, "samples": 0}


def swap_numbers(body):
    """A request that overtakes the one before it takes effect first."""
    with lock:
        seq = body["seq_id"]
        if seq == seen["late"]:
            body["seq_id"], seen["late"] = seq + 1, None
        elif seq == seen["seq"] + 2:
            body["seq_id"], seen["late"] = seq - 1, seq - 1
        seen["seq"] = max(seen["seq"], seq)


def change_request(path, body):
    params = body.get("sampling_params", {})
    if rule == "swap" and "seq_id" in body and path in ("forward", "forward_backward", "optim_step"):
        swap_numbers(body)
    elif rule == "no_seed":
        params.pop("seed", None)
    elif rule == "no_stop" and params.get("stop"):
        params.pop("stop")
    elif rule == "one_sample":
        body["num_samples"] = 1 if body.get("num_samples") == 3 else body.get("num_samples", 1)
    elif rule == "new_sample" and path == "asample":
        with lock:
            seen["samples"] += 1
            body["seq_id"] = seen["samples"]
    elif rule == "step_of_0" and path == "optim_step":
        body["adam_params"]["learning_rate"] = 0.0


def change_response(path, status, body):
    if rule == "not_ok" and path == "healthz":
        return 200, b'{"status":"fine"}'
    if rule == "no_archives" and path.endswith("/archive"):
        return 410, b'{"detail":"archives are gone"}'
    if rule == "no_dynamic_config" and path == "client/dynamic_config":
        return 404, b'{"detail":"Not Found"}'
    if rule == "no_reason" and path == "create_sampling_session" and status >= 400:
        return status, body.replace(b'"detail"', b'"reason"')
    if rule == "server_fault" and path == "retrieve_future" and status == 404:
        return 500, body
    if rule == "bare_metric" and path == "retrieve_future":
        return status, body.replace(b'"loss:sum"', b'"loss"')
    if rule == "no_sequence_ids" and path == "asample":
        return status, re.sub(rb',"sample_sequence_ids":\[[^]]*\]', b"", body)
    if rule == "no_done":
        return status, body.replace(b"data: [DONE]", b": the end")
    if rule == "first_prompt_logprob" and path == "retrieve_future":
        return status, body.replace(b'"prompt_logprobs":[null,', b'"prompt_logprobs":[')
    return status, body


class Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def handle_any(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.split("/api/v1/")[-1].split("?")[0]
        target = self.path
        if rule == "no_limit" and path == "training_runs":
            target = target.replace("limit=1&", "")
        swallowed = rule == "no_ttl" and path.endswith("/ttl") and b"600" in body
        if body and "json" in self.headers.get("Content-Type", ""):
            try:
                parsed = json.loads(body)
                change_request(path, parsed)
                body = json.dumps(parsed).encode()
            except ValueError:
                pass
        server = HTTPConnection(upstream.hostname, upstream.port, timeout=60)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "content-length", "accept-encoding")}
        if swallowed:
            status, answer, content_type, location = 200, b"{}", "application/json", None
        else:
            server.request(self.command, target, body, headers)
            response = server.getresponse()
            status, answer = response.status, response.read()
            content_type, location = response.getheader("Content-Type") or "text/plain", response.getheader("Location")
        server.close()
        if rule == "broken_protobuf" and "protobuf" in content_type:
            answer = answer[: len(answer) // 2]
        status, answer = change_response(path, status, answer)
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        if location:
            self.send_header("Location", location)
        if rule == "no_length" and status >= 400:
            self.send_header("Transfer-Encoding", "chunked")
            answer = b"%x\r\n%s\r\n0\r\n\r\n" % (len(answer), answer)
        else:
            self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST = do_PUT = do_DELETE = handle_any


server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
server.daemon_threads = True
print(server.server_port, flush=True)
server.serve_forever()
