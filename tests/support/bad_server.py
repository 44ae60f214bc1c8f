"""A server that behaves badly: bad_server.py slow|lying|full; prints its port."""
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

how = sys.argv[1]


class Bad(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def handle_any(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if how == "slow":
            time.sleep(60)
            return
        status, body = (429, b'{"detail":"no capacity"}') if how == "full" else (200, b'{"surprise": [1, 2, {"x": null}]}')
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = handle_any


server = ThreadingHTTPServer(("127.0.0.1", 0), Bad)
server.daemon_threads = True
print(server.server_port, flush=True)
server.serve_forever()
