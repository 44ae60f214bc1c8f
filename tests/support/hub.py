"""A mock of the Hugging Face Hub's upload API: hub.py LOG; prints its port, logs every request as a line."""
import base64
import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

log = open(sys.argv[1], "w", buffering=1)
readme = {}


class Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def reply(self, status, body=b"{}", headers=()):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle_any(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        token = (self.headers.get("Authorization") or "").startswith("Bearer hf_")
        print(self.command, self.path, len(body), "token" if token else "-", file=log)
        here = "http://127.0.0.1:%d" % self.server.server_port
        path = self.path
        if path.startswith("/part/") or path.startswith("/whole/"):
            return self.reply(200, b"", [("ETag", '"e%s"' % path.rsplit("/", 1)[1])])
        if not token:
            return self.reply(401, {"error": "no token"})
        if path == "/api/whoami-v2":
            return self.reply(200, {"name": "me"})
        if path == "/api/repos/create":
            return self.reply(409 if b"exists" in body else 200, {"url": here})
        if "/branch/" in path:
            return self.reply(200)
        if path.endswith("README.md"):
            other = "other" in path
            return self.reply(200, b"made from `tinker://else/weights/1`") if other else self.reply(404)
        if "/preupload/" in path:
            files = [{"path": f["path"], "uploadMode": "lfs" if f["path"].endswith("safetensors") else "regular",
                      "shouldIgnore": False} for f in json.loads(body)["files"]]
            return self.reply(200, {"files": files})
        if path.endswith("/info/lfs/objects/batch"):
            item = json.loads(body)["objects"][0]
            upload = {"href": here + "/whole/1", "header": {}}
            if "parts" in path:
                n, size = item["size"], item["size"] // 2 + 1
                upload = {"href": here + "/complete", "header": {"chunk_size": str(size)}}
                for i in range((n + size - 1) // size):
                    upload["header"]["%05d" % (i + 1)] = "%s/part/%d" % (here, i + 1)
            verify = {"href": here + "/verify"}
            return self.reply(200, {"objects": [{"oid": item["oid"], "actions": {"upload": upload, "verify": verify}}]})
        if path == "/complete":
            print("parts", [p["etag"] for p in json.loads(body)["parts"]], file=log)
        if "/commit/" in path:
            for line in body.decode().splitlines():
                line = json.loads(line)
                value = line["value"]
                print("commit", line["key"], value.get("path", value.get("summary")), file=log)
                if value.get("path") == "README.md":
                    print("card", base64.b64decode(value["content"]).decode().split("\n")[1], file=log)
        return self.reply(200)

    do_GET = do_POST = do_PUT = handle_any


server = HTTPServer(("127.0.0.1", 0), Hub)
print(server.server_port, flush=True)
server.serve_forever()
