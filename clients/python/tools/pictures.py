"""Takes the picture of the playground in the documentation: `python clients/python/tools/playground.py docs/playground.png`.

Starts a server with the default model and generates a text in headless Chromium, which chromedriver controls (WebDriver, W3C). The
picture has 1280 × 800 pixels.
"""

from __future__ import annotations

import base64
import json
import shutil
import socket
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Dict

import local

PROMPT = "The President of the United States "
# Fills in the form and generates 300 bytes.
FORM = f"""
    at("prompt").value = {json.dumps(PROMPT)};
    at("temperature").value = "0.7";
    at("form").requestSubmit();
"""
SIZE = (1280, 800)


class Browser:
    """A page in headless Chromium."""

    def __init__(self) -> None:
        program = shutil.which("chromedriver")
        if program is None:
            raise SystemExit("chromedriver is not installed")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        self._driver = local.Program([program, f"--port={self._address.rpartition(':')[2]}"])
        flags = ["--headless=new", "--no-sandbox", "--hide-scrollbars", "--force-device-scale-factor=1"]
        wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": {"args": flags}}}}
        self._session = ""
        self._session = f"/session/{self._ask('POST', '/session', wanted)['sessionId']}"
        # The headless window has no frame, except in some versions: measure and correct.
        inner = "return [window.innerWidth, window.innerHeight]"
        self._ask("POST", "/window/rect", {"width": SIZE[0], "height": SIZE[1]})
        width, height = self.run(inner)
        self._ask("POST", "/window/rect", {"width": 2 * SIZE[0] - width, "height": 2 * SIZE[1] - height})

    def _ask(self, method: str, path: str, body: Dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"http://{self._address}{self._session}{path}",
            data=None if method == "GET" else json.dumps(body).encode(),
            method=method,
            headers={"content-type": "application/json"},
        )
        deadline = time.monotonic() + local.TIMEOUT
        while True:
            try:
                with urllib.request.urlopen(request, timeout=local.TIMEOUT) as answer:
                    return json.load(answer)["value"]
            except urllib.error.HTTPError as error:
                raise RuntimeError(f"{path}: {error.read().decode()}") from error
            except urllib.error.URLError:  # the driver does not listen yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def open(self, url: str) -> None:
        self._ask("POST", "/url", {"url": url})

    def run(self, script: str) -> Any:
        return self._ask("POST", "/execute/sync", {"script": script, "args": []})

    def wait_for(self, condition: str) -> None:
        deadline = time.monotonic() + local.TIMEOUT
        while not self.run(f"return {condition}"):
            if time.monotonic() > deadline:
                raise RuntimeError(f"never true: {condition}")
            time.sleep(0.05)

    def picture(self) -> bytes:
        return base64.b64decode(self._ask("GET", "/screenshot", {}))

    def close(self) -> None:
        self._ask("DELETE", "", {})
        self._driver.stop()


def main() -> None:
    (target,) = sys.argv[1:]
    with local.Server("--http-listen", "127.0.0.1:0", model=local.DEFAULT) as server:
        browser = Browser()
        try:
            browser.open(f"http://{server.listener('playground')}/")
            browser.wait_for("at('model-a').options.length == 1")
            browser.run(FORM)
            browser.wait_for("at('status').textContent == 'Done.'")
            Path(target).write_bytes(browser.picture())
        finally:
            browser.close()


if __name__ == "__main__":
    main()
