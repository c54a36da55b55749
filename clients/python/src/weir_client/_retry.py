"""Decides when a failed call is retried. This module neither sleeps nor opens channels: its callers do."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Optional

import grpc

from ._errors import WeirError


@dataclass(frozen=True)
class Retry:
    """Sets how often and how soon the client retries a call that failed before its first character.

    The client retries UNAVAILABLE. It retries RESOURCE_EXHAUSTED only if the server sends a delay: without a delay, the
    retry would fail as well. It never retries after the call's deadline, and after the first character only a text with
    the option `resume`. Its attempts then count from the last piece that arrived.
    """

    #: Maximum number of attempts; 1 disables retries.
    attempts: int = 4
    #: Seconds before the second attempt, doubled for each later attempt. Used only if the server sends no delay.
    first_delay: float = 0.1
    #: Maximum seconds to wait before an attempt. If the server asks for more, the call fails.
    longest_delay: float = 10.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts: expected at least 1, found {self.attempts}")
        if not 0 <= self.first_delay <= self.longest_delay:
            raise ValueError(f"first_delay: expected 0 to longest_delay ({self.longest_delay}), found {self.first_delay}")


# The codes that gRPC and proxies report for a connection that breaks in the middle of a response.
_BROKEN = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED)


class Attempts:
    """The attempts of one call. If `resumes`, a later attempt continues where an earlier one broke."""

    def __init__(self, retry: Retry, timeout: Optional[float], resumes: bool = False) -> None:
        self._retry = retry
        self.resumes = resumes
        self._finished = 0
        self._timeout = timeout
        # Set when the call starts: for a stream, when the caller requests the first piece.
        self._deadline: Optional[float] = None

    def remaining(self) -> Optional[float]:
        """Returns the seconds until the call's deadline; None without one. The first call of this method starts the clock."""
        if self._timeout is None:
            return None
        if self._deadline is None:
            self._deadline = time.monotonic() + self._timeout
        return max(self._deadline - time.monotonic(), 0.0)

    def received(self) -> None:
        """Records that an item arrived."""
        if self.resumes:
            self._finished = 0

    def pause_after(self, error: WeirError, begun: bool) -> float:
        """Returns the seconds to wait before the next attempt.

        Raises the error if no attempt follows.
        """
        self._finished += 1
        delay = None if (begun and not self.resumes) or self._finished >= self._retry.attempts else self._delay(error)
        remaining = self.remaining()
        if delay is None or (remaining is not None and delay >= remaining):
            raise error from None  # keeps gRPC's error, which says the same, out of the traceback
        return delay

    def _delay(self, error: WeirError) -> Optional[float]:
        """Returns None if a retry cannot succeed. Jitter keeps clients from retrying at the same time."""
        # An error with a request id comes from the server itself.
        broken = self.resumes and error.request_id is None and error.code in _BROKEN
        if not broken and error.code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED):
            return None
        if error.retry_after is not None:
            # A retry never starts before the server's delay has passed.
            longest = self._retry.longest_delay
            delay = error.retry_after * random.uniform(1.0, 1.2)
            return min(delay, longest) if error.retry_after <= longest else None
        if error.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return None
        # `attempts` has no upper limit, so the exponent needs one.
        delay = self._retry.first_delay * 2.0 ** min(self._finished - 1, 32)
        return min(delay, self._retry.longest_delay) * random.uniform(0.5, 1.0)
