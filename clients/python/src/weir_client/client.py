"""The blocking and the asyncio client, composed of one class per kind of call. Each kind has its own file."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Tuple

from typing_extensions import Literal

from ._retry import Retry
from ._settings import Settings, Tls
from .check import AsyncCheckCalls, CheckCalls
from .codec import AsyncCodecCalls, CodecCalls
from .edit import AsyncEditCalls, EditCalls
from .generate import AsyncGenerateCalls, GenerateCalls
from .health import AsyncHealthCalls, HealthCalls
from .models import AsyncModelCalls, ModelCalls
from .report import AsyncReportCalls, ReportCalls
from .score import AsyncScoreCalls, ScoreCalls
from .segment import AsyncSegmentCalls, SegmentCalls
from .summarize import AsyncSummarizeCalls, SummarizeCalls


class Client(
    GenerateCalls,
    ScoreCalls,
    SegmentCalls,
    CheckCalls,
    SummarizeCalls,
    CodecCalls,
    EditCalls,
    ModelCalls,
    ReportCalls,
    HealthCalls,
):
    """A blocking client of a weir server, or of several servers behind one address.

    Threads may share a client. It connects with its first call.

    `address`: "host:port", "http://host:port", "https://host:port" (encrypted), or any other gRPC target, such as
    "dns:///host:port". `timeout`: default timeout of each call in seconds; None sets no timeout. `affinity_chars`: the client
    sends a digest of the first `affinity_chars` characters of each prompt in the header `weir-affinity`. With this header, a
    proxy can send prompts with the same beginning to one replica. `balance`: how the client spreads calls over the addresses
    that a name resolves to. `channel_options`: additional gRPC channel options.
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
    AsyncCheckCalls,
    AsyncSummarizeCalls,
    AsyncCodecCalls,
    AsyncEditCalls,
    AsyncModelCalls,
    AsyncReportCalls,
    AsyncHealthCalls,
):
    """An asyncio client with the calls and arguments of `Client`. Callers await its calls and read streams with `async for`.

    A client belongs to the event loop of its first call.
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
