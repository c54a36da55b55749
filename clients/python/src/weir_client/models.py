"""`models` and `model`: descriptions of the models that the server serves."""

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
    """The symbols of a model."""

    size: int
    #: The symbols in the order of their ids; empty if the symbols are bytes.
    symbols: Tuple[str, ...]
    #: True if the symbols are the 256 bytes of UTF-8 text, with ids from `first_byte`.
    bytes: bool
    #: The normalisation that the server applies to text: "text8" …, or "none".
    normaliser: str
    first_byte: int
    #: True if the symbols are the pieces of a tokenizer.
    pieces: bool
    #: Ids of special symbols, by name. An end byte without a start mark is also a symbol of prompts.
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
    calls: int
    connections_per_address: int
    connection_idle_ns: int
    connection_age_ns: int
    connection_age_grace_ns: int
    request_work: int
    request_time_ns: int
    response_bytes: int
    tokenization_workers: int


@dataclass(frozen=True)
class PoolingStep:
    """A pooling step between two layers of an encoder."""

    #: The layer that precedes the pooling, counted from 0. For MrT5, the layer before which its gate deletes tokens.
    layer: int
    #: Vectors of the longest document before the pooling.
    length_before: int
    #: Vectors of the longest document after the pooling.
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
    #: The library whose search the model follows: "fairseq" or "transformers".
    search_rules: str = ""
    #: When a beam search by the rules of transformers stops: "true", "false" or "never".
    early_stopping: str = ""
    repetition_penalty: float = 1.0
    #: The text that precedes every document.
    prefix: str = ""


@dataclass(frozen=True)
class Model:
    """A model that the server serves."""

    #: The name that requests use.
    name: str
    family: str
    #: Layers, width and boundaries, in one human-readable line.
    shape: str
    #: Number of trained parameters.
    parameters: int
    vocabulary: Vocabulary
    #: Symbols in one training window.
    training_length: int
    #: True if the model cuts text into segments.
    pooled: bool
    #: The available boundary modes; the first is the default.
    boundary_modes: Tuple[str, ...]
    #: Number format of the weights.
    dtype: str
    #: SHA-256 of the weights' file, in hexadecimal.
    sha256: str
    limits: Limits
    #: Document and summary limits of a summarization model; None for a model that continues a prompt.
    documents: Optional[Documents]
    #: "bitwise" if results are the same bits in any batch, in any steps and on any threads; else "within".
    exactness: str
    #: Maximum difference between logits of a model that is not "bitwise".
    tolerance: Optional[float]
    #: The model's purpose, in a few words; empty if its card does not state one.
    scope: str
    #: Default of `boundary_threshold`, if requests may set it.
    boundary_threshold: Optional[float]


class ModelCalls(Caller):
    """The calls of this module."""

    def models(self, **options: Unpack[CallOptions]) -> Tuple[Model, ...]:
        """Returns every model, sorted by name. Raises `WeirError`."""
        answer = self._unary(LIST, pb.ListModelsRequest(), None, options)
        return tuple(convert(Model, model) for model in answer.models)

    def model(self, name: Optional[str] = None, **options: Unpack[CallOptions]) -> Model:
        """Returns one model; `name` is optional if the server has exactly one. Raises `WeirError`."""
        return convert(Model, self._unary(GET, pb.GetModelRequest(name=name), None, options))


class AsyncModelCalls(AsyncCaller):
    """The calls of this module, for asyncio."""

    async def models(self, **options: Unpack[CallOptions]) -> Tuple[Model, ...]:
        """Returns every model, sorted by name. Raises `WeirError`."""
        answer = await self._unary(LIST, pb.ListModelsRequest(), None, options)
        return tuple(convert(Model, model) for model in answer.models)

    async def model(self, name: Optional[str] = None, **options: Unpack[CallOptions]) -> Model:
        """Returns one model; `name` is optional if the server has exactly one. Raises `WeirError`."""
        answer = await self._unary(GET, pb.GetModelRequest(name=name), None, options)
        return convert(Model, answer)
