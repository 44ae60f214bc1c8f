# requirements: torch
"""Our client over TLS: HTTP/2 by ALPN and multiplexed, trust, HTTP/1.1, and through proxies.

The server is made of Python's ssl and the h2 package, the proxy of asyncio; certificates
are made on the spot.  The client is tools/seq-conform.
"""

import asyncio
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading

import h2.config
import h2.connection
import h2.events

from _recorder import Recorder, Request

BUILD = os.environ.get("BUILD_DIR", "build/release")
TOOL = os.path.join(BUILD, "tools", "seq-conform")
STEPS = ["create_lora", "forward_backward", "optim_step", "create_sampler", "sample_many", "runs"]
count = failed = 0


def check(ok, name, note=""):
    global count, failed
    count += 1
    failed += not ok
    print(f"{'ok' if ok else 'not ok'} {count} - {name}", flush=True)
    if not ok:
        print(f"# {note}", flush=True)


def answer_of(recorder, method, path, headers, body):
    status, what, more = (*recorder.answer(Request(method, path, headers, body)), {})[:3]
    if not isinstance(what, bytes):
        import json
        what, more = json.dumps(what).encode(), {"content-type": "application/json", **more}
    return status, what, more


class Connection(asyncio.Protocol):
    """One TLS connection, of whichever version was agreed upon."""

    def __init__(self, server):
        self.server, self.h2, self.buffer, self.streams = server, None, b"", {}

    def connection_made(self, transport):
        self.transport = transport
        self.version = transport.get_extra_info("ssl_object").selected_alpn_protocol()
        self.server.connections.append(self.version)
        if self.version == "h2":
            self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
            self.h2.initiate_connection()
            transport.write(self.h2.data_to_send())

    def data_received(self, data):
        self.receive2(data) if self.h2 else self.receive1(data)

    def receive2(self, data):
        for e in self.h2.receive_data(data):
            if isinstance(e, h2.events.RequestReceived):
                self.streams[e.stream_id] = [dict((k.decode(), v.decode()) for k, v in e.headers), b""]
                self.server.most = max(self.server.most, len(self.streams))
            elif isinstance(e, h2.events.DataReceived):
                self.streams[e.stream_id][1] += e.data
                self.h2.acknowledge_received_data(e.flow_controlled_length, e.stream_id)
            elif isinstance(e, h2.events.StreamEnded):
                # late, so that what is sent at once is open at once
                asyncio.get_running_loop().call_later(0.05, self.answer2, e.stream_id)
        self.transport.write(self.h2.data_to_send())

    def answer2(self, stream):
        head, body = self.streams.pop(stream)
        headers = {k: v for k, v in head.items() if not k.startswith(":")}
        status, what, more = answer_of(self.server.recorder, head[":method"], head[":path"], headers, body)
        self.h2.send_headers(stream, [(":status", str(status)), ("content-length", str(len(what))),
                                      *((k.lower(), v) for k, v in more.items())])
        self.h2.send_data(stream, what, end_stream=True)
        self.transport.write(self.h2.data_to_send())

    def receive1(self, data):
        self.buffer += data
        head, mark, rest = self.buffer.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = dict((k.lower(), v) for k, v in (x.split(": ", 1) for x in lines[1:] if mark))
        need = int(headers.get("content-length", 0))
        if not mark or len(rest) < need:
            return
        self.buffer = b""
        method, path, _ = lines[0].split(" ")
        status, what, more = answer_of(self.server.recorder, method, path, headers, rest)
        head = "".join(f"{k}: {v}\r\n" for k, v in {**more, "content-length": len(what)}.items())
        self.transport.write(f"HTTP/1.1 {status} X\r\n{head}\r\n".encode() + what)


class Server:
    """A TLS server with this certificate, in a thread."""

    def __init__(self, folder, name, protocols):
        self.recorder, self.connections, self.most = Recorder(), [], 0
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(f"{folder}/{name}.pem", f"{folder}/{name}.key")
        context.set_alpn_protocols(protocols)
        self.port = start(lambda: asyncio.get_running_loop().create_server(
            lambda: Connection(self), "127.0.0.1", 0, ssl=context))


class Proxy:
    """CONNECT, and requests with an absolute address; counts both."""

    def __init__(self):
        self.tunnels = self.requests = 0
        self.credentials = set()
        self.port = start(lambda: asyncio.start_server(self.serve, "127.0.0.1", 0))

    async def serve(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
        self.credentials |= {x for x in head.decode().split("\r\n") if x.lower().startswith("proxy-auth")}
        if method == "CONNECT":
            self.tunnels += 1
            host, port = target.rsplit(":", 1)
            other, out = await asyncio.open_connection("127.0.0.1", int(port))
            writer.write(b"HTTP/1.1 200 connected\r\n\r\n")
        else:
            self.requests += 1
            host, _, path = target.removeprefix("http://").partition("/")
            other, out = await asyncio.open_connection("127.0.0.1", int(host.rsplit(":", 1)[1]))
            out.write(head.replace(target.encode(), b"/" + path.encode(), 1)
                      .replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
        await asyncio.gather(self.copy(reader, out), self.answer(other, writer, method), return_exceptions=True)

    async def answer(self, other, writer, method):
        if method != "CONNECT":  # one request a connection: say so, or the next one meets the end of this
            head = await other.readuntil(b"\r\n\r\n")
            writer.write(head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
        await self.copy(other, writer)

    @staticmethod
    async def copy(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()


def start(make):
    """Run a server on an event loop of its own; its port."""
    ready, port = threading.Event(), []

    async def run():
        server = await make()
        port.append(server.sockets[0].getsockname()[1])
        ready.set()
        await server.serve_forever()
    threading.Thread(target=lambda: asyncio.run(run()), daemon=True).start()
    ready.wait(10)
    return port[0]


def certificate(folder, name, host, signer=None):
    def run(*args):
        subprocess.run(["openssl", *args], check=True, capture_output=True)
    key, pem = f"{folder}/{name}.key", f"{folder}/{name}.pem"
    if signer is None:
        run("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={host}",
            "-keyout", key, "-out", pem)
        return
    run("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={host}", "-keyout", key,
        "-out", f"{folder}/{name}.csr")
    with open(f"{folder}/{name}.ext", "w") as f:
        f.write(f"subjectAltName=DNS:{host}\n")
    run("x509", "-req", "-in", f"{folder}/{name}.csr", "-CA", f"{folder}/{signer}.pem",
        "-CAkey", f"{folder}/{signer}.key", "-CAcreateserial", "-days", "2",
        "-extfile", f"{folder}/{name}.ext", "-out", pem)


def client(url, steps, **more):
    """Outcomes of the steps."""
    keep = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    env = {**keep, "TINKER_BASE_URL": url, "TINKER_API_KEY": "tml-key", "TINKER_TELEMETRY": "0",
           "TINKEX_MAX_RETRIES": "0", **more}
    p = subprocess.run([TOOL], input="".join(s + "\n" for s in steps), capture_output=True, text=True,
                       env=env, timeout=400)
    return [line.split("\t", 1) for line in p.stdout.splitlines()]


def works(name, url, **more):
    got = client(url, STEPS, **more)
    check(len(got) == len(STEPS) and all(g[0] == "ok" for g in got), name, str(got))


def main():
    folder = tempfile.mkdtemp(prefix="tinker-http2.")
    certificate(folder, "ca", "Test Authority")
    certificate(folder, "good", "localhost", "ca")
    certificate(folder, "other", "elsewhere.example", "ca")
    trusted = {"SSL_CERT_FILE": f"{folder}/ca.pem"}

    two = Server(folder, "good", ["h2", "http/1.1"])
    works("every step over TLS", f"https://localhost:{two.port}", **trusted)
    h2_count = two.connections.count("h2")
    # the very first request of a session, and of REST calls, has the most conservative transport
    check(h2_count > 0 and len(two.connections) - h2_count <= 2, "HTTP/2 was agreed upon",
          str(two.connections))
    check(two.most >= 4, "several requests at once on one connection", f"{two.most} streams at most")
    check(len(two.connections) <= 8, "few connections", str(two.connections))

    old = Server(folder, "good", ["http/1.1"])
    works("a server without HTTP/2", f"https://localhost:{old.port}", **trusted)
    check(set(old.connections) == {"http/1.1"}, "spoke HTTP/1.1", str(old.connections))

    proxy = Proxy()
    works("HTTP/2 through a tunnel", f"https://localhost:{two.port}", **trusted,
          TINKEX_PROXY=f"http://me:secret@127.0.0.1:{proxy.port}")
    check(proxy.tunnels > 0 and proxy.requests == 0, "the tunnel was asked for", str(vars(proxy)))
    check(proxy.credentials == {"Proxy-Authorization: Basic bWU6c2VjcmV0"}, "with its credentials",
          str(proxy.credentials))
    works("plain HTTP through a proxy", Recorder().url,
          TINKEX_PROXY=f"http://127.0.0.1:{proxy.port}")
    check(proxy.requests >= len(STEPS), "the proxy carried the requests", str(vars(proxy)))
    works("the proxy of the environment", Recorder().url,
          http_proxy=f"http://127.0.0.1:{proxy.port}")

    # Trust is retried like any connection error, for five minutes: ask for less.
    for name, server, env in (("an unknown authority", two, {}),
                              ("a certificate of another name", Server(folder, "other", ["h2"]), trusted)):
        p = subprocess.Popen([TOOL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True, env={**os.environ, **env, "TINKER_LOG": "debug",
                                             "TINKER_BASE_URL": f"https://localhost:{server.port}",
                                             "TINKER_API_KEY": "tml-key", "TINKEX_MAX_RETRIES": "0"})
        before = len(server.recorder.requests)
        p.stdin.write("create_lora\n")
        p.stdin.flush()
        threading.Timer(3, p.kill).start()
        log = p.communicate()[1]
        check("certificate" in log.lower() and "tml-key" not in log, f"{name} is refused, and said so",
              log[-600:])
        check(len(server.recorder.requests) == before, f"{name}: nothing was sent")
    shutil.rmtree(folder, ignore_errors=True)
    print(f"1..{count}\n# score: {count - failed} of {count}")
    sys.exit(1 if failed else 0)


main()
