"""Starts servers and proxies on this machine for tests and measurements.

Each listens on a free port and stops at the end of its `with`.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import List, Optional, Sequence, Type

ROOT = Path(__file__).resolve().parents[3]
# The model that most tests use: its normaliser changes text, its characters are single symbols, and its sequences have a limit.
MODEL = ROOT / "models/compared/hourglass-whitespace-english"
DEFAULT = ROOT / "models/hourglass-english"  # the embedded model
T5 = ROOT / "tests/cases/t5-stop-refused/model"  # a tiny T5 with random weights
# Seconds before a test or tool gives up waiting. A busy machine has needed more than 60.
TIMEOUT = 240.0


def weir_program() -> Optional[Path]:
    """Returns `WEIR_BIN` or the program that cargo built last; None if neither exists."""
    named = os.environ.get("WEIR_BIN")
    if named:
        return Path(named)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    built = [path for kind in ("release", "debug") if (path := target / kind / "weir").is_file()]
    return max(built, key=lambda path: path.stat().st_mtime, default=None)


def haproxy_program() -> Optional[str]:
    """Returns the path of HAProxy, or None if it is not installed. Also searches folders of Debian that a user's PATH may lack."""
    return shutil.which("haproxy", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


class Program:
    """A process whose stderr is recorded."""

    def __init__(self, command: Sequence[str], folder: Optional[Path] = None) -> None:
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={key: value for key, value in os.environ.items() if not key.startswith("WEIR_")},
        )
        self._lines: List[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        if self._process.stderr is not None:
            for line in self._process.stderr:
                self._lines.append(line)

    def wait_for_line(self, pattern: str) -> str:
        """Waits for a line that matches `pattern`; returns its first group."""
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            for line in list(self._lines):
                if match := re.search(pattern, line):
                    return match.group(1)
            if self._process.poll() is not None:
                break
            time.sleep(0.01)
        self.stop()
        raise RuntimeError(f"no line of stderr matches {pattern!r}: {''.join(self._lines)}")

    def listener(self, name: str) -> str:
        """Waits for the line with the URL of a server's `gRPC`, `playground` or `metrics`; returns the URL's address."""
        return self.wait_for_line(rf"^{name} +https?://([^/\s]+)")

    def end(self, killed: bool) -> None:
        """Sends SIGKILL if `killed`, otherwise SIGTERM, and does not wait."""
        (self._process.kill if killed else self._process.terminate)()

    def stop(self) -> None:
        """Stops the process and waits for its end."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(10)
        if self._process.stderr is not None:
            self._process.stderr.close()

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.stop()


class Server(Program):
    """Runs `weir serve` with the checkpoint `model`, by default `MODEL`.

    The server times the model's steps for `calibration` milliseconds after its start. Most tests need none.
    """

    def __init__(
        self,
        *flags: str,
        listen: str = "127.0.0.1:0",
        admin: str = "127.0.0.1:0",
        drain: int = 2,
        model: Path = MODEL,
        calibration: int = 0,
    ) -> None:
        program = weir_program()
        if program is None:
            raise RuntimeError("no weir program found: set WEIR_BIN or run `cargo build`")
        fixed = ["--model", str(model), "--listen", listen, "--admin-listen", admin]
        fixed += ["--drain-seconds", str(drain), "--calibration-milliseconds", str(calibration)]
        super().__init__([str(program), "serve", *fixed, *flags])
        self.admin = self.listener("metrics")
        self.address = self.listener("gRPC")

    def __enter__(self) -> Server:
        return self

    def metric(self, name: str) -> float:
        """Returns the sum of a metric's series."""
        with urllib.request.urlopen(f"http://{self.admin}/metrics", timeout=TIMEOUT) as answer:
            text = answer.read().decode()
        values = re.findall(rf"^weir_{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        if not values:
            raise RuntimeError(f"no metric weir_{name}")
        return sum(float(value) for value in values)


class Haproxy(Program):
    """Runs HAProxy with `deploy/haproxy.cfg`, but with `servers` in place of the two servers that the file names."""

    def __init__(self, servers: Sequence[Server], changes: Sequence[Sequence[str]] = ()) -> None:
        program = haproxy_program()
        if program is None:
            raise RuntimeError("HAProxy is not installed")
        # The kernel picks the port: HAProxy does not report its own. HAProxy exits if another process takes it first.
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.address = "127.0.0.1:{}".format(probe.getsockname()[1])
        text = (ROOT / "deploy/haproxy.cfg").read_text()
        addresses = [("127.0.0.1:8080", self.address)]
        for server, address, port in zip(servers, ("127.0.0.1:50051", "127.0.0.1:50052"), ("9091", "9092")):
            addresses += [(address, server.address), (f"port {port}", "port " + server.admin.rsplit(":", 1)[1])]
        for old, new in [*addresses, *changes]:
            if old not in text:
                raise RuntimeError(f"{old!r} is not in haproxy.cfg")
            text = text.replace(old, new)
        self._folder = tempfile.TemporaryDirectory()
        file = Path(self._folder.name) / "haproxy.cfg"
        file.write_text(text)
        super().__init__([program, "-db", "-f", str(file)])

    def __enter__(self) -> Haproxy:
        return self

    def stop(self) -> None:
        """Stops HAProxy and deletes its file."""
        super().stop()
        self._folder.cleanup()
