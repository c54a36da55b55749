"""`serving` and `wait_until_serving`: checks whether the server accepts requests."""

from __future__ import annotations

import asyncio
import time
from typing import Optional

import grpc
from grpc_health.v1 import health_pb2

from ._call import Caller, Method
from ._call_aio import AsyncCaller
from ._errors import WeirError

METHOD = Method("/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse)

#: This service is ready from the end of every model's warm-up until the server shuts down.
READY = "weir.v1.Generation"
# Seconds between two health checks, and the timeout of one.
_PAUSE = 0.1
_CHECK_TIMEOUT = 5.0


class HealthCalls(Caller):
    """The calls of this module."""

    def serving(self, service: str = READY, timeout: float = _CHECK_TIMEOUT) -> bool:
        """Returns True if a service accepts requests; "" checks that the process is alive. Raises `WeirError`."""
        request = health_pb2.HealthCheckRequest(service=service)
        return _serves(self._unary(METHOD, request, None, {"timeout": timeout}))

    def wait_until_serving(self, timeout: float = 60.0, service: str = READY) -> None:
        """Returns once the service accepts requests. Raises `WeirError` with DEADLINE_EXCEEDED after `timeout` seconds."""
        waiting = _Waiting(service, timeout)
        while True:
            try:
                if self.serving(service, waiting.check_timeout()):
                    return
                waiting.answered()
            except WeirError as error:
                waiting.failed(error)
            waiting.check()
            time.sleep(_PAUSE)


class AsyncHealthCalls(AsyncCaller):
    """The calls of this module, for asyncio."""

    async def serving(self, service: str = READY, timeout: float = _CHECK_TIMEOUT) -> bool:
        """Returns True if a service accepts requests; "" checks that the process is alive. Raises `WeirError`."""
        request = health_pb2.HealthCheckRequest(service=service)
        return _serves(await self._unary(METHOD, request, None, {"timeout": timeout}))

    async def wait_until_serving(self, timeout: float = 60.0, service: str = READY) -> None:
        """Returns once the service accepts requests. Raises `WeirError` with DEADLINE_EXCEEDED after `timeout` seconds."""
        waiting = _Waiting(service, timeout)
        while True:
            try:
                if await self.serving(service, waiting.check_timeout()):
                    return
                waiting.answered()
            except WeirError as error:
                waiting.failed(error)
            waiting.check()
            await asyncio.sleep(_PAUSE)


def _serves(answer: health_pb2.HealthCheckResponse) -> bool:
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


class _Waiting:
    """The deadline of `wait_until_serving`, and the error of its last check."""

    def __init__(self, service: str, timeout: float) -> None:
        self._service, self._timeout = service, timeout
        self._deadline = time.monotonic() + timeout
        self._error: Optional[WeirError] = None

    def check_timeout(self) -> float:
        """Returns the timeout of the next check."""
        return max(min(_CHECK_TIMEOUT, self._deadline - time.monotonic()), 0.0)

    def answered(self) -> None:
        """Records that a check got an answer."""
        self._error = None

    def failed(self, error: WeirError) -> None:
        """Records a temporary error. Raises an error that waiting cannot fix."""
        temporary = error.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        if not temporary or error.is_explained:
            raise error
        self._error = error

    def check(self) -> None:
        """Raises `WeirError` after the deadline."""
        if time.monotonic() >= self._deadline:
            message = f"{self._service or 'the server'} was not ready within {self._timeout} s"
            cause = f"; the last check failed with {self._error}" if self._error else ""
            raise WeirError(grpc.StatusCode.DEADLINE_EXCEEDED, message + cause)
