"""When a call that failed is tried again. Knows neither clock-watching loops nor channels: the callers wait."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Optional

import grpc

from ._errors import WeirError


@dataclass(frozen=True)
class Retry:
    """How often, and how soon, a call is tried again that failed before its first character.

    UNAVAILABLE is tried again, and so is RESOURCE_EXHAUSTED if the server says after which time that makes sense: without
    that, as with an answer that nobody read, it would fail again. Nothing is tried again once characters have come, nor
    beyond the call's deadline.
    """

    #: Tries in all; 1 for never again.
    attempts: int = 4
    #: Seconds before the second try, doubled for each further one, where the server names no time.
    first_delay: float = 0.1
    #: The most seconds to wait for a try. If the server asks for more, the call fails.
    longest_delay: float = 10.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts: {self.attempts}, it is at least 1")
        if not 0 <= self.first_delay <= self.longest_delay:
            raise ValueError(f"first_delay: {self.first_delay}, it is 0 to longest_delay, {self.longest_delay}")


class Attempts:
    """The tries of one call."""

    def __init__(self, retry: Retry, timeout: Optional[float]) -> None:
        self._retry = retry
        self._made = 0
        self._deadline = None if timeout is None else time.monotonic() + timeout

    def remaining(self) -> Optional[float]:
        """Seconds until the call's deadline."""
        return None if self._deadline is None else max(self._deadline - time.monotonic(), 0.0)

    def pause_after(self, error: WeirError, begun: bool) -> float:
        """Seconds to wait before the next try.

        Raises the error if there is to be none.
        """
        self._made += 1
        delay = None if begun or self._made >= self._retry.attempts else self._delay(error)
        remaining = self.remaining()
        if delay is None or (remaining is not None and delay >= remaining):
            raise error
        return delay

    def _delay(self, error: WeirError) -> Optional[float]:
        """None where another try makes no sense. Drawn, so that those who failed together do not come again together."""
        if error.code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED):
            return None
        if error.retry_after is not None:
            # never before the server's time
            longest, drawn = self._retry.longest_delay, error.retry_after * random.uniform(1.0, 1.2)
            return min(drawn, longest) if error.retry_after <= longest else None
        if error.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return None
        # an exponent that stays small: attempts may be many
        delay = self._retry.first_delay * 2.0 ** min(self._made - 1, 32)
        return min(delay, self._retry.longest_delay) * random.uniform(0.5, 1.0)
