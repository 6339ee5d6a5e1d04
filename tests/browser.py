"""Headless Chromium for the tests of pages, driven through its debugging pipe: no port, no library."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]


def chromium():
    """Its path, or None."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next(filter(None, map(shutil.which, names)), None)


_PIPED = """import fcntl, os, sys
far = [fcntl.fcntl(int(given), fcntl.F_DUPFD, 100) for given in sys.argv[1:3]]
for place, given in zip((3, 4), far):
    os.dup2(given, place)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One page of a browser. Its console's errors and the addresses it asked for are kept."""

    def __init__(self, width=1100, height=1400, *flags):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        read, self._to = os.pipe()
        self._from, write = os.pipe()
        size = f"--window-size={width},{height}"
        command = [chromium(), *FLAGS, *flags, size, f"--user-data-dir={self.folder.name}", "about:blank"]
        piped = [sys.executable, "-c", _PIPED, str(read), str(write), *command]  # the browser reads 3 and writes 4
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(piped, pass_fds=(read, write), **quiet)
        os.close(read)
        os.close(write)
        self._rest, self._number, self._session = b"", 0, None
        self.errors, self.asked = [], []
        pages = self.call("Target.getTargets")["targetInfos"]
        page = next(each["targetId"] for each in pages if each["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self.folder.cleanup()

    def call(self, method, **parameters):
        """The result of a command of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _next(self):
        while b"\0" not in self._rest:
            part = os.read(self._from, 1 << 16)
            assert part, "the browser has ended"
            self._rest += part
        one, self._rest = self._rest.split(b"\0", 1)
        return json.loads(one)

    def _note(self, event):
        method, told = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.asked.append(told["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(told["exceptionDetails"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.errors.append(told["entry"]["text"])

    def open(self, url):
        """Go to an address."""
        self.call("Page.navigate", url=url)

    def evaluate(self, expression):
        """The value of an expression of JavaScript; a promise is waited for."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, expression, seconds=30):
        """Until an expression holds; while it raises, it does not."""
        end = time.monotonic() + seconds
        while not self.evaluate(f"(() => {{ try {{ return !!({expression}); }} catch {{ return false; }} }})()"):
            assert time.monotonic() < end, f"{expression} did not come to hold: {self.errors}"
            time.sleep(0.02)

    def picture(self):
        """A PNG of the whole page."""
        import base64

        found = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(found["data"])
