"""`models` and `model`: what the server serves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Optional, Tuple

from typing_extensions import Unpack

from ._call import Caller, Method
from ._call_aio import AsyncCaller
from ._convert import convert
from ._proto import models_pb2 as pb
from ._settings import CallOptions

LIST = Method("/weir.v1.Models/ListModels", pb.ListModelsRequest, pb.ListModelsResponse)
GET = Method("/weir.v1.Models/GetModel", pb.GetModelRequest, pb.Model)


@dataclass(frozen=True)
class Vocabulary:
    """A model's symbols."""

    size: int
    #: In the order of their ids; empty if they are bytes.
    symbols: Tuple[str, ...]
    #: Whether the symbols are the 256 bytes of UTF-8 text, from id `first_byte` on.
    bytes: bool
    #: What text goes through before it is looked up: "text8" …, or "none".
    normaliser: str
    first_byte: int
    #: Whether the symbols are the pieces that a tokenizer cuts text into.
    pieces: bool
    #: Ids that are no text, by name.
    marks: Mapping[str, int]


@dataclass(frozen=True)
class Limits:
    """Limits of requests; `models.proto` describes each."""

    max_symbols: int
    rows: int
    queue: int
    chunk: int
    message_bytes: int
    concurrent_streams: int
    stop_strings: int
    stop_symbols: int
    top_logprobs: int
    logit_bias: int
    coalesce_chars: int
    boundary_wait: int
    queued_symbols: int
    stall_ns: int
    cache_bytes: int
    highest_priority: int
    lowest_priority: int
    header_bytes: int
    pending_resets: int
    error_resets: int
    connections: int
    handshake_ns: int
    request_memory_bytes: int
    upload_ns: int
    events: int
    step_ns: int
    keepalive_interval_ns: int
    keepalive_timeout_ns: int
    windowed_symbols: int
    document_bytes: int
    document_keep_ns: int


@dataclass(frozen=True)
class PoolingStep:
    """A pooling between the layers of an encoder."""

    #: The layer behind which it stands, from 0.
    layer: int
    #: Vectors of the longest document before it.
    length_before: int
    #: Vectors of the longest document after it.
    length_after: int


@dataclass(frozen=True)
class Documents:
    """Document and summary limits of a summarization model; `models.proto` describes each."""

    max_tokens: int
    max_summary_tokens: int
    padded: bool
    poolings: Tuple[PoolingStep, ...]
    beam_size: int
    length_penalty: float
    min_tokens: int
    max_summary_tokens_default: int
    no_repeat_ngram: int


@dataclass(frozen=True)
class Model:
    """A model that is served."""

    #: The name that requests give.
    name: str
    family: str
    #: Layers, width and boundaries, in one line for people.
    shape: str
    #: Number of trained parameters.
    parameters: int
    vocabulary: Vocabulary
    #: Characters in one training window.
    training_length: int
    #: Whether it cuts text into segments.
    pooled: bool
    #: The available boundary modes; the first is the default.
    boundary_modes: Tuple[str, ...]
    #: The type of the weights' numbers.
    dtype: str
    #: Of the weights' file, hexadecimal.
    sha256: str
    limits: Limits
    #: What it reads and writes, if it summarizes documents; None for a model that goes on from a prompt.
    documents: Optional[Documents]


class ModelCalls(Caller):
    """The calls of this module."""

    def models(self, **options: Unpack[CallOptions]) -> Tuple[Model, ...]:
        """Returns every model, by name. Raises `WeirError`."""
        answer = self._unary(LIST, pb.ListModelsRequest(), None, options)
        return tuple(convert(Model, one) for one in answer.models)

    def model(self, name: Optional[str] = None, **options: Unpack[CallOptions]) -> Model:
        """Returns one model; `name` is optional if the server has exactly one. Raises `WeirError`."""
        return convert(Model, self._unary(GET, pb.GetModelRequest(name=name), None, options))


class AsyncModelCalls(AsyncCaller):
    """The calls of this module, for asyncio."""

    async def models(self, **options: Unpack[CallOptions]) -> Tuple[Model, ...]:
        """Returns every model, by name. Raises `WeirError`."""
        answer = await self._unary(LIST, pb.ListModelsRequest(), None, options)
        return tuple(convert(Model, one) for one in answer.models)

    async def model(self, name: Optional[str] = None, **options: Unpack[CallOptions]) -> Model:
        """Returns one model; `name` is optional if the server has exactly one. Raises `WeirError`."""
        answer = await self._unary(GET, pb.GetModelRequest(name=name), None, options)
        return convert(Model, answer)
