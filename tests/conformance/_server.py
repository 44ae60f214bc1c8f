"""Start `tinker serve` on a tiny random model, and say ok or not ok.

BUILD_DIR names the build that holds `tinker` and `tools/make-tiny-model`.  A test
script makes one Server, calls check() per fact, and ends with done().
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.parse
import urllib.request

BUILD = os.environ.get("BUILD_DIR", "build/release")
MODEL = "test/tiny"
_count = 0
_failed = 0


def check(ok, name, note=""):
    global _count, _failed
    _count += 1
    _failed += not ok
    print(f"{'ok' if ok else 'not ok'} {_count} - {name}", flush=True)
    if not ok and note:
        print(f"# {note}", flush=True)
    return ok


def attempt(name, fn):
    """Run fn; it passes when it returns without raising (and not False)."""
    try:
        result = fn()
        check(result is not False, name)
        return result
    except Exception:  # noqa: BLE001 - the report is the point
        check(False, name, traceback.format_exc().replace("\n", "\n# "))
        return None


def done():
    print(f"1..{_count}")
    print(f"# score: {_count - _failed} of {_count}")
    sys.exit(1 if _failed else 0)


class Server:
    """A server process in a temporary folder; use it as a context manager."""

    def __init__(self, *options, keep=None, own_models=True):
        self.options = list(options)
        self.own_models = own_models
        self.dir = keep or tempfile.mkdtemp(prefix="tinker-conformance.")
        self.owned = keep is None
        self.model = os.path.join(self.dir, "model")
        if not os.path.isdir(self.model):
            subprocess.run([os.path.join(BUILD, "tools/make-tiny-model"), self.model], check=True)
        # The same model once more under its path, which Python can load a tokenizer from.
        self.dir_model = self.model
        self.process = None
        self.port = 0
        self.start()

    def start(self):
        log = open(os.path.join(self.dir, "log"), "ab")
        self.process = subprocess.Popen(
            [os.path.join(BUILD, "tinker"), "serve",
             *(["--model", f"{MODEL}={self.model}", "--model", f"{self.dir_model}={self.model}"]
               if self.own_models else []),
             "--listen", f"127.0.0.1:{self.port}", "--data-dir", os.path.join(self.dir, "data"),
             *self.options],
            stdout=subprocess.PIPE, stderr=log)
        line = self.process.stdout.readline().decode()
        self.url = line.strip().split("=", 1)[-1]
        if not self.url.startswith("http"):
            raise RuntimeError("tinker serve did not start: " + self.log())
        self.port = urllib.parse.urlsplit(self.url).port
        os.environ["TINKER_BASE_URL"] = self.url
        os.environ.setdefault("TINKER_API_KEY", "tml-dummy")
        os.environ["TINKER_TELEMETRY"] = os.environ.get("TINKER_TELEMETRY", "1")

    def log(self):
        with open(os.path.join(self.dir, "log"), errors="replace") as f:
            return f.read()[-4000:]

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        """SIGTERM; returns the exit status and how long it took."""
        start = time.time()
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=30)
        return status, time.time() - start

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=30) as r:
            return r.status, r.read()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self.process.poll() is None:
            self.stop()
        if self.owned:
            shutil.rmtree(self.dir, ignore_errors=True)
