"""A TCP proxy that breaks each connection after some bytes from the server."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Callable, List, Optional, Type


class CuttingProxy:
    """Forwards connections to `address`. `limits` returns the bytes after which the next connection breaks."""

    def __init__(self, address: str, limits: Callable[[], int]) -> None:
        host, _, port = address.rpartition(":")
        self._server = (host, int(port))
        self._limits = limits
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: List[socket.socket] = [self._listener]
        self.address = "127.0.0.1:{}".format(self._listener.getsockname()[1])
        #: Connections that were broken.
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
            except OSError:
                return
            self._sockets += [client, server]
            limit = self._limits()
            threading.Thread(target=self._forward, args=[client, server, None], daemon=True).start()
            threading.Thread(target=self._forward, args=[server, client, limit], daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, limit: Optional[int]) -> None:
        sent = 0
        try:
            while data := source.recv(512):
                target.sendall(data)
                sent += len(data)
                if limit is not None and sent >= limit:
                    self.cuts += 1
                    break
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def __enter__(self) -> CuttingProxy:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        for end in self._sockets:
            end.close()
