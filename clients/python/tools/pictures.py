"""Takes the pictures of the documentation from the real program: `python clients/python/tools/pictures.py docs`.

Writes `playground-light.png`, `playground-dark.png` (the editor, 1280 × 800 pixels, in headless Chromium, which chromedriver controls
by WebDriver), likewise `playground-compress-…`, and `terminal.svg`: a session of commands, with the times at which their output came.
"""

from __future__ import annotations

import base64
import html
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Dict, List, Tuple

import local

SIZE = (1280, 800)
# What the editor shows in the picture: its first text, read and checked, and the ghost text of two to three words.
READY = "editor.pieces.length && editor.pieces.every((piece) => piece.isDone) && editor.surprises.words.every((word) => word.alternatives.length) && editor.tail"


class Browser:
    """A page in headless Chromium."""

    def __init__(self, theme: str) -> None:
        program = shutil.which("chromedriver")
        if program is None:
            raise SystemExit("chromedriver is not installed")
        # It prints the port that it was given to stdout.
        self._driver = local.Program(["sh", "-c", f"exec {shlex.quote(program)} --port=0 >&2"])
        self._address = "127.0.0.1:" + self._driver.wait_for_line(r"successfully on port (\d+)")
        flags = ["--headless=new", "--no-sandbox", "--hide-scrollbars"]
        wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": {"args": flags}}}}
        self._session = ""
        self._session = f"/session/{self._ask('POST', '/session', wanted)['sessionId']}"
        self.resize(*SIZE)
        self._command("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]})

    def _ask(self, method: str, path: str, body: Dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"http://{self._address}{self._session}{path}",
            data=None if method == "GET" else json.dumps(body).encode(),
            method=method,
            headers={"content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=local.TIMEOUT) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path}: {error.read().decode()}") from error

    def _command(self, name: str, parameters: Dict[str, Any]) -> None:
        self._ask("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._command("Emulation.setDeviceMetricsOverride", size)

    def open(self, url: str) -> None:
        self._ask("POST", "/url", {"url": url})

    def run(self, script: str) -> Any:
        return self._ask("POST", "/execute/sync", {"script": script, "args": []})

    def keys(self, selector: str, text: str) -> None:
        element = self._ask("POST", "/element", {"using": "css selector", "value": selector})
        self._ask("POST", f"/element/{next(iter(element.values()))}/value", {"text": text})

    def wait_for(self, condition: str) -> None:
        deadline = time.monotonic() + local.TIMEOUT
        while not self.run(f"return {condition}"):
            if time.monotonic() > deadline:
                raise RuntimeError(f"never true: {condition}")
            time.sleep(0.05)

    def save(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self._ask("GET", "/screenshot", {})))

    def close(self) -> None:
        self._ask("DELETE", "", {})
        self._driver.stop()


def playground(target: Path, theme: str, address: str) -> None:
    """Takes the pictures of the playground in a theme."""
    browser = Browser(theme)
    try:
        browser.open(f"http://{address}/")
        browser.wait_for(READY)
        # Some keystrokes for the times, then the same text again.
        for key in "United ":
            browser.keys("#editor", key)
            time.sleep(0.2)
        browser.keys("#editor", "\ue003" * len("United "))
        browser.wait_for(READY)
        time.sleep(1)
        browser.save(target / f"playground-{theme}.png")
        browser.run("at('tab-compress').click(); at('compress-go').click()")
        browser.wait_for("at('compress-status').textContent == 'Done.'")
        time.sleep(0.5)
        browser.save(target / f"playground-compress-{theme}.png")
    finally:
        browser.close()


# The recorded session. `alice.txt` is the text that the playground compresses first, which the model has never read.
COMMANDS = (
    "cat letter.txt",
    "weir check letter.txt",
    "weir compress alice.txt alice.weir",
    "xz -9ek alice.txt && ls -l alice.txt alice.txt.xz alice.weir | awk '{print $5, $9}'",
    "weir decompress alice.weir again.txt && cmp alice.txt again.txt && echo the same bytes",
)
LETTER = """The goverment did not recieve the news until the end of the month.
A letter was sent to the Presidnet of the United States.
"""
# Seconds between typed characters, after a command, and at the end; and the longest wait for output that is shown.
TYPED, PAUSE, LAST, LONGEST = 0.03, 0.6, 5.0, 1.2
COLUMNS, LINE, CHARACTER = 100, 20, 8.4


class Session:
    """A session of commands: pieces of text with their times and places."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._now = 0.4
        self._line = 0
        self._column = 0
        # Time, line, column, class and text of each piece.
        self.pieces: List[Tuple[float, int, int, str, str]] = []

    def run(self, command: str) -> None:
        """Types a command, runs it, and records its output as it comes."""
        self._write("p", "$ ")
        for character in command:
            self._write("c", character)
            self._now += TYPED
        self._write("o", "\n")
        program = local.weir_program()
        if program is None:
            raise SystemExit("no weir program found: set WEIR_BIN or run `cargo build`")
        with tempfile.TemporaryDirectory() as folder:
            # The program's name, wherever it was built.
            (Path(folder) / "weir").symlink_to(program.resolve())
            path = f"{folder}:{os.environ['PATH']}"
            process = subprocess.Popen(
                ["sh", "-c", command],
                cwd=self._folder,
                env={"PATH": path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            if process.stdout is None:
                raise RuntimeError("the command has no output")
            before = time.monotonic()
            while part := os.read(process.stdout.fileno(), 4096):
                now = time.monotonic()
                self._now += min(now - before, LONGEST)
                before = now
                self._write("o", part.decode())
            if process.wait() != 0:
                raise SystemExit(f"{command}: status {process.returncode}")
        if self._column:
            self._write("o", "\n")
        self._now += PAUSE

    def _write(self, kind: str, text: str) -> None:
        for number, line in enumerate(text.split("\n")):
            if number:
                self._line += 1
                self._column = 0
            while line:
                room = COLUMNS - self._column
                self.pieces.append((self._now, self._line, self._column, kind, line[:room]))
                self._column += len(line[:room])
                line = line[room:]
                if line:
                    self._line += 1
                    self._column = 0

    def svg(self) -> str:
        """Returns the session as a picture that repeats. Without animation, it shows the end."""
        length = self._now + LAST
        lines = self._line + 1
        width, height = int(COLUMNS * CHARACTER) + 40, lines * LINE + 60
        times = sorted({piece[0] for piece in self.pieces})
        frames, texts = [], []
        for number, moment in enumerate(times):
            share = 100 * moment / length
            frames.append(f"@keyframes k{number}{{0%,{share:.3f}%{{opacity:0}}{share + 0.001:.3f}%,100%{{opacity:1}}}}")
            frames.append(f".k{number}{{animation:k{number} {length:.2f}s infinite}}")
        for moment, line, column, kind, text in self.pieces:
            x, y = 20 + column * CHARACTER, 54 + line * LINE
            shown = html.escape(text, quote=False)
            texts.append(f'<text class="{kind} k{times.index(moment)}" x="{x:.1f}" y="{y}">{shown}</text>')
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">\n'
            "<title>A session: weir finds misspelt words, compresses the beginning of a novel, and decompresses it</title>\n"
            "<style>text{font:14px ui-monospace,Menlo,Consolas,monospace;white-space:pre}"
            ".p{fill:#63cd93}.c{fill:#fff}.o{fill:#b9c2cc}\n"
            f"@media (prefers-reduced-motion:no-preference){{{''.join(frames)}}}</style>\n"
            f'<rect width="{width}" height="{height}" rx="10" fill="#15191e"/>\n'
            + "".join(f'<circle cx="{x}" cy="20" r="6" fill="#{c}"/>' for x, c in ((24, "f2605b"), (44, "f5bd2e"), (64, "34c748")))
            + "\n"
            + "\n".join(texts)
            + "\n</svg>\n"
        )


def novel() -> str:
    """Returns the text that the playground compresses first."""
    source = (local.ROOT / "crates/server/src/http/playground/examples.js").read_text(encoding="utf-8")
    text = source.partition("const ALICE = `")[2].partition("`;")[0]
    return text.replace("\\\n", "") + "\n"


def main() -> None:
    (folder,) = sys.argv[1:]
    target = Path(folder)
    with tempfile.TemporaryDirectory() as work:
        (Path(work) / "alice.txt").write_text(novel(), encoding="utf-8")
        (Path(work) / "letter.txt").write_text(LETTER, encoding="utf-8")
        session = Session(Path(work))
        for command in COMMANDS:
            session.run(command)
        (target / "terminal.svg").write_text(session.svg(), encoding="utf-8")
    with local.Server("--http-listen", "127.0.0.1:0", model=local.DEFAULT) as server:
        for theme in ("light", "dark"):
            playground(target, theme, server.listener("playground"))


if __name__ == "__main__":
    main()
