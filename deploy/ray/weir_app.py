"""Runs `weir serve` under Ray Serve: each replica is one process, and requests are forwarded to its HTTP port as they are.

    pip install "ray[serve]"
    serve run --app-dir deploy/ray weir_app:app

Ray restarts a replica whose process has ended, and adds replicas when their requests wait. WEIR_PROGRAM is the program, and WEIR_*
variables are its settings.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from typing import AsyncIterator, Optional

import aiohttp
from ray import serve
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

# Cores of a replica.
CORES = int(os.environ.get("WEIR_CORES", "4"))
# weir queues by itself; beyond these requests of a replica, Ray chooses another one.
RUNNING = int(os.environ.get("WEIR_ROWS", "32"))


@serve.deployment(
    ray_actor_options={"num_cpus": CORES},
    max_ongoing_requests=2 * RUNNING,
    autoscaling_config={"min_replicas": 1, "max_replicas": 8, "target_ongoing_requests": 3 * RUNNING // 4},
    # Running requests may finish before a replica ends.
    graceful_shutdown_timeout_s=150,
)
class Weir:
    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            address = "127.0.0.1:{}".format(probe.getsockname()[1])
        self._url = f"http://{address}"
        program = os.environ.get("WEIR_PROGRAM", "weir")
        flags = ["--listen", "127.0.0.1:0", "--http-listen", address, "--threads", str(CORES)]
        self._process = subprocess.Popen([program, "serve", *flags])
        self._session: Optional[aiohttp.ClientSession] = None

    async def check_health(self) -> None:
        if self._process.poll() is not None:
            raise RuntimeError(f"weir ended with exit code {self._process.returncode}")

    async def __call__(self, request: Request) -> Response:
        if self._session is None:
            # A long text is a long stream.
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
        url = f"{self._url}{request.url.path}?{request.url.query}"
        headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
        body = await request.body()
        for wait in range(300):
            try:
                answer = await self._session.request(request.method, url, headers=headers, data=body)
                break
            except aiohttp.ClientConnectorError:
                # The port opens once the model is loaded.
                await self.check_health()
                await asyncio.sleep(0.1)
        else:
            raise RuntimeError("weir did not open its port within 30 seconds")

        async def parts() -> AsyncIterator[bytes]:
            # Closes the connection if the client leaves, which cancels the request.
            async with answer:
                async for part in answer.content.iter_any():
                    yield part

        return StreamingResponse(parts(), answer.status, media_type=answer.headers.get("content-type"))

    def __del__(self) -> None:
        # Lets running requests finish.
        self._process.terminate()
        self._process.wait()


app = Weir.bind()
