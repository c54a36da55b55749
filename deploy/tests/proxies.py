"""Runs the installed proxies with the files of `deploy/`, in front of weir replicas, for gRPC and for HTTP."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

import local

FOLDER = local.ROOT / "deploy"
#: Replacements in the files: old text, new text.
Changes = Sequence[Tuple[str, str]]


def program(name: str) -> Optional[str]:
    """Returns the path of a proxy, or None. Also searches folders of Debian that a user's PATH may lack."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


class Replica(local.Server):
    """A server with the flags that the files of `deploy/` need. `http` is its address for OpenAI's clients."""

    def __init__(self, *flags: str, drain: int = 60, listen: str = "127.0.0.1:0", admin: str = "127.0.0.1:0") -> None:
        fixed = ["--late-headers", "--threads", "1", "--kv-memory", "64MiB", "--http-listen", "127.0.0.1:0"]
        super().__init__(*fixed, *flags, drain=drain, listen=listen, admin=admin)
        self.http = self.listener("playground")

    def __enter__(self) -> Replica:
        return self


class Proxy(local.Program):
    """HAProxy or nginx with its files after `changes`. It listens at `address` for gRPC and at `http` for HTTP."""

    def __init__(self, name: str, replicas: Sequence[Replica], changes: Changes = ()) -> None:
        self.address, self.http = _free(2)
        addresses = [("127.0.0.1:8080", self.address), ("127.0.0.1:8000", self.http)]
        for number, replica in enumerate(replicas, 1):
            addresses += [(f"127.0.0.1:5005{number}", replica.address), (f"127.0.0.1:800{number}", replica.http)]
            addresses += [(f"port 909{number}", "port " + replica.admin.rsplit(":", 1)[1])]
        files = {"haproxy": ["haproxy.cfg", "haproxy-http.cfg"], "nginx": ["nginx.conf", "nginx-http.conf"]}[name]
        texts = [(FOLDER / file).read_text() for file in files]
        if name == "nginx":
            changes = [("# include nginx-http.conf;", "include nginx-http.conf;"), *changes]
        for old, new in changes:
            if not any(old in text for text in texts):
                raise RuntimeError(f"{old!r} is not in {files}")
        self._folder = tempfile.TemporaryDirectory()
        for file, text in zip(files, texts):
            # Changes come first, so that they do not match the inserted addresses.
            for old, new in [*changes, *addresses]:
                text = text.replace(old, new)
            (Path(self._folder.name) / file).write_text(text)
        super().__init__(self._command(name, files), folder=Path(self._folder.name))

    def _command(self, name: str, files: List[str]) -> List[str]:
        installed = program(name)
        if installed is None:
            raise RuntimeError(f"{name} is not installed")
        if name == "nginx":
            return [installed, "-p", self._folder.name, "-c", f"{self._folder.name}/{files[0]}", "-g", "daemon off;"]
        return [installed, "-db", *(part for file in files for part in ("-f", file))]

    def __enter__(self) -> Proxy:
        return self

    def stop(self) -> None:
        """Stops the proxy and deletes its files."""
        super().stop()
        self._folder.cleanup()


def _free(count: int) -> List[str]:
    """Returns `count` free addresses. If another process takes an address before the proxy does, the proxy exits at once."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = ["127.0.0.1:{}".format(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return addresses
