"""The two clients. Each call is a file of its own, whose classes are put together here."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple

from typing_extensions import Literal

from ._retry import Retry
from ._settings import Settings, Tls
from .generate import AsyncGenerateCalls, GenerateCalls
from .health import AsyncHealthCalls, HealthCalls
from .models import AsyncModelCalls, ModelCalls
from .report import AsyncReportCalls, ReportCalls
from .score import AsyncScoreCalls, ScoreCalls
from .segment import AsyncSegmentCalls, SegmentCalls
from .summarize import AsyncSummarizeCalls, SummarizeCalls


class Client(GenerateCalls, ScoreCalls, SegmentCalls, SummarizeCalls, ModelCalls, ReportCalls, HealthCalls):
    """A weir server, or several behind one address. May be used by many threads at once. Connects with the first call.

    `address`: "host:port", "http://host:port", "https://host:port" (encrypted), or any other target of gRPC's, such as
    "dns:///host:port". `timeout`: seconds for each call that does not say otherwise, None for as long as it takes.
    `affinity_chars`: send a digest of so many first characters of each prompt in the header `weir-affinity`, by which a proxy
    may send prompts that begin alike to one replica. `balance`: how calls are spread over several addresses that a name
    stands for. `channel_options`: gRPC's own.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:50051",
        *,
        api_key: Optional[str] = None,
        tls: Optional[Tls] = None,
        timeout: Optional[float] = None,
        retry: Retry = Retry(),
        affinity_chars: Optional[int] = None,
        balance: Literal["pick_first", "round_robin"] = "pick_first",
        channel_options: Sequence[Tuple[str, Any]] = (),
    ) -> None:
        super().__init__(
            Settings(address, api_key, tls, timeout, retry, affinity_chars, balance, tuple(channel_options))
        )


class AsyncClient(
    AsyncGenerateCalls,
    AsyncScoreCalls,
    AsyncSegmentCalls,
    AsyncSummarizeCalls,
    AsyncModelCalls,
    AsyncReportCalls,
    AsyncHealthCalls,
):
    """The same for asyncio: the same calls, to be awaited, and streams for `async for`.

    Everything that `Client` takes. Belongs to the event loop of its first call.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:50051",
        *,
        api_key: Optional[str] = None,
        tls: Optional[Tls] = None,
        timeout: Optional[float] = None,
        retry: Retry = Retry(),
        affinity_chars: Optional[int] = None,
        balance: Literal["pick_first", "round_robin"] = "pick_first",
        channel_options: Sequence[Tuple[str, Any]] = (),
    ) -> None:
        super().__init__(
            Settings(address, api_key, tls, timeout, retry, affinity_chars, balance, tuple(channel_options))
        )
