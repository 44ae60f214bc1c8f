"""Drive a headless Chromium over the pipe of its DevTools protocol: nothing to install but it.

A Browser is one page.  It keeps every request the page makes and every error it reports.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time


def find_chromium():
    for name in ("chromium", "google-chrome", "chromium-browser"):
        path = shutil.which(name)
        if path:
            return path
    raise RuntimeError("no chromium here; tools/deps conformance installs it")


class Browser:
    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="tinker-browser.")
        read, self.out = os.pipe()
        self.inp, write = os.pipe()
        self.process = subprocess.Popen(
            ["sh", "-c", f'exec "$@" 3<&{read} 4>&{write}', "sh", find_chromium(), "--headless=new",
             "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--no-first-run", "--disable-background-networking", "--disable-component-update",
             "--disable-sync", f"--user-data-dir={self.dir}", "about:blank"],
            pass_fds=(read, write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(read)
        os.close(write)
        self.data, self.count, self.session = b"", 0, None
        self.requests, self.errors = [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Network", "Runtime", "Log", "Page"):
            self.call(domain + ".enable")

    def read(self, timeout):
        """The next message, or None."""
        end = time.time() + timeout
        while b"\0" not in self.data:
            if not select.select([self.inp], [], [], max(0, end - time.time()))[0]:
                return None
            more = os.read(self.inp, 1 << 16)
            if not more:
                raise RuntimeError("the browser has gone")
            self.data += more
        message, self.data = self.data.split(b"\0", 1)
        return json.loads(message)

    def note(self, event):
        name, p = event.get("method"), event.get("params", {})
        if name == "Network.requestWillBeSent":
            self.requests.append(p["request"]["url"])
        elif name == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(p["exceptionDetails"])[:500])
        elif name == "Log.entryAdded" and p["entry"]["level"] == "error":
            self.errors.append(p["entry"]["text"] + " " + p["entry"].get("url", ""))
        elif name == "Runtime.consoleAPICalled" and p["type"] in ("error", "assert"):
            self.errors.append(json.dumps(p["args"])[:500])
        elif name == "Page.javascriptDialogOpening":
            self.errors.append("a dialog: " + p["message"])

    def call(self, method, **params):
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        end = time.time() + 60
        while time.time() < end:
            answer = self.read(end - time.time())
            if answer and answer.get("id") == self.count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            if answer:
                self.note(answer)
        raise RuntimeError(f"{method}: no answer")

    def open(self, url):
        self.requests, self.errors = [], []
        self.call("Page.navigate", url=url)

    def js(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True,
                           returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"])[:500])
        return result["result"].get("value")

    def until(self, expression, seconds=30):
        """Wait until the expression is true in the page; its last value."""
        end = time.time() + seconds
        while True:
            value = self.js(expression)
            if value or time.time() > end:
                return value
            time.sleep(0.1)

    def size(self, width, height=900, theme="light"):
        """The window, and what the system says about light and dark."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 500)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": theme},
                            {"name": "prefers-reduced-motion", "value": "reduce"}])

    def screenshot(self, path, height=None, scale=1):
        """The whole page, or its upper part."""
        box = self.js(f"({{ x: 0, y: 0, width: innerWidth, scale: {scale},"
                      " height: document.documentElement.scrollHeight })")
        box["height"] = min(box["height"], height or box["height"])
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True,
                         clip=box)["data"]
        with open(path, "wb") as f:
            f.write(base64.b64decode(data))

    def press(self, key, code=None, text=None, modifiers=0):
        """A key, down and up, as from a keyboard."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "ArrowLeft": 37, "ArrowUp": 38,
                 "ArrowRight": 39, "ArrowDown": 40}
        p = {"key": key, "code": code or key, "modifiers": modifiers,
             "windowsVirtualKeyCode": codes.get(key, ord(key[0]))}
        text = text or {"Enter": "\r", " ": " "}.get(key) or (key if len(key) == 1 else None)
        self.call("Input.dispatchKeyEvent", type="keyDown", **p, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **p)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def mouse(self, kind, x, y, buttons=0, clicks=0):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, buttons=buttons,
                  button="left" if buttons or clicks else "none", clickCount=clicks)

    def close(self):
        try:
            os.close(self.out)
            self.process.wait(timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.inp)
        shutil.rmtree(self.dir, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
