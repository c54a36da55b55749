"""`check`: finds words of a text that are probably misspelt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

from typing_extensions import Unpack

from ._call import Caller, Method
from ._call_aio import AsyncCaller
from ._convert import convert
from ._proto import generation_pb2 as pb
from ._request import fill, text_of
from ._settings import CallOptions
from ._types import Timing, Usage

METHOD = Method("/weir.v1.Generation/Check", pb.CheckRequest, pb.CheckResponse)

_SUBMESSAGES = dict.fromkeys(["model", "threshold", "alternatives", "max_words", "priority"], "")


class CheckOptions(CallOptions, total=False):
    """Options in addition to the text. An option that is absent or None takes the server's default."""

    #: Optional if exactly one model of the server can answer the call.
    model: Optional[str]
    #: Nats by which another spelling must be more probable than the word.
    threshold: Optional[float]
    #: Maximum alternatives of a word: 1 to 16.
    alternatives: Optional[int]
    #: Maximum words to return: 1 to 1024.
    max_words: Optional[int]
    #: -8 to 7; 0 by default.
    priority: Optional[int]


@dataclass(frozen=True)
class WordAlternative:
    """A spelling that is more probable in the place of a word."""

    text: str
    #: Natural log-probability of the spelling and of the symbol after the word.
    logprob: float


@dataclass(frozen=True)
class CheckedWord:
    """A word that is probably misspelt. Offsets count from 0; ends are exclusive."""

    text: str
    #: Byte offsets in the text's UTF-8.
    start_byte: int
    end_byte: int
    #: Offsets in the text's UTF-16.
    start_utf16: int
    end_utf16: int
    #: Natural log-probability of the word and of the symbol after it.
    logprob: float
    #: Best first; at least one.
    alternatives: Tuple[WordAlternative, ...]


@dataclass(frozen=True)
class Check:
    """The words of a text that are probably misspelt."""

    #: The words in the order of the text.
    words: Tuple[CheckedWord, ...]
    #: True if the check ended at a limit before the end of the text.
    cut: bool
    #: Words that were compared with other spellings.
    compared_words: int
    usage: Usage
    timing: Timing
    #: Time from the request to the response.
    duration_ns: int


class CheckCalls(Caller):
    """The call of this module."""

    def check(self, text: str, **options: Unpack[CheckOptions]) -> Check:
        """Returns the words of a text of at most 32,768 bytes that are probably misspelt. Raises `WeirError`."""
        return convert(Check, self._unary(METHOD, _request(text, options), text, options))


class AsyncCheckCalls(AsyncCaller):
    """The call of this module, for asyncio."""

    async def check(self, text: str, **options: Unpack[CheckOptions]) -> Check:
        """Returns the words of a text of at most 32,768 bytes that are probably misspelt. Raises `WeirError`."""
        answer = await self._unary(METHOD, _request(text, options), text, options)
        return convert(Check, answer)


def _request(text: str, options: CheckOptions) -> pb.CheckRequest:
    request = pb.CheckRequest(text=text_of("text", text))
    fields: Dict[str, Any] = {name: value for name, value in options.items() if name not in CallOptions.__annotations__}
    fill(request, fields, _SUBMESSAGES)
    return request
