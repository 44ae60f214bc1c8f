"""The Hub of Hugging Face as far as `tinker models pull` asks it: model_hub.py DIR; prints its port.

Whatever model is asked for, its files are those of DIR.
"""
import hashlib
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

folder = sys.argv[1]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        name = self.path.rsplit("/", 1)[-1]
        if self.path.startswith("/api/models/"):
            names = [{"rfilename": n} for n in sorted(os.listdir(folder)) if os.path.isfile(os.path.join(folder, n))]
            body = json.dumps({"sha": name if len(name) == 40 else COMMIT, "siblings": names}).encode()
        else:
            with open(os.path.join(folder, name), "rb") as f:
                body = f.read()
        self.send_response(200)
        large = name.endswith(".safetensors")  # kept by its SHA-256, other files by their name in git
        git = hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
        self.send_header("ETag", '"%s"' % (hashlib.sha256(body).hexdigest() if large else git))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


server = HTTPServer(("127.0.0.1", 0), Hub)
print(server.server_address[1], flush=True)
server.serve_forever()
