"""`serving` and `wait_until_serving`: checks whether the server accepts requests."""

from __future__ import annotations

import asyncio
import time

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
        deadline = time.monotonic() + timeout
        while not self._serves_now(service, deadline):
            _check(deadline, service, timeout)
            time.sleep(_PAUSE)

    def _serves_now(self, service: str, deadline: float) -> bool:
        try:
            return self.serving(service, _check_timeout(deadline))
        except WeirError as error:
            return _not_yet(error)


class AsyncHealthCalls(AsyncCaller):
    """The calls of this module, for asyncio."""

    async def serving(self, service: str = READY, timeout: float = _CHECK_TIMEOUT) -> bool:
        """Returns True if a service accepts requests; "" checks that the process is alive. Raises `WeirError`."""
        request = health_pb2.HealthCheckRequest(service=service)
        return _serves(await self._unary(METHOD, request, None, {"timeout": timeout}))

    async def wait_until_serving(self, timeout: float = 60.0, service: str = READY) -> None:
        """Returns once the service accepts requests. Raises `WeirError` with DEADLINE_EXCEEDED after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not await self._serves_now(service, deadline):
            _check(deadline, service, timeout)
            await asyncio.sleep(_PAUSE)

    async def _serves_now(self, service: str, deadline: float) -> bool:
        try:
            return await self.serving(service, _check_timeout(deadline))
        except WeirError as error:
            return _not_yet(error)


def _serves(answer: health_pb2.HealthCheckResponse) -> bool:
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _check_timeout(deadline: float) -> float:
    return max(min(_CHECK_TIMEOUT, deadline - time.monotonic()), 0.0)


def _not_yet(error: WeirError) -> bool:
    """Returns False for a temporary error; raises any other error."""
    if error.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return False
    raise error


def _check(deadline: float, service: str, timeout: float) -> None:
    if time.monotonic() >= deadline:
        message = f"{service or 'the server'} was not ready within {timeout} s"
        raise WeirError(grpc.StatusCode.DEADLINE_EXCEEDED, message)
