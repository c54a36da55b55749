from . import generation_pb2 as _generation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Until(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNTIL_UNSPECIFIED: _ClassVar[Until]
    UNTIL_WORD: _ClassVar[Until]
    UNTIL_LINE: _ClassVar[Until]
    UNTIL_SEGMENT: _ClassVar[Until]
    UNTIL_MAX_CHARS: _ClassVar[Until]
UNTIL_UNSPECIFIED: Until
UNTIL_WORD: Until
UNTIL_LINE: Until
UNTIL_SEGMENT: Until
UNTIL_MAX_CHARS: Until

class EditRequest(_message.Message):
    __slots__ = ("open", "splice", "complete", "score", "close")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    SPLICE_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    open: OpenDocument
    splice: SpliceDocument
    complete: CompleteDocument
    score: ScoreDocument
    close: CloseDocument
    def __init__(self, open: _Optional[_Union[OpenDocument, _Mapping]] = ..., splice: _Optional[_Union[SpliceDocument, _Mapping]] = ..., complete: _Optional[_Union[CompleteDocument, _Mapping]] = ..., score: _Optional[_Union[ScoreDocument, _Mapping]] = ..., close: _Optional[_Union[CloseDocument, _Mapping]] = ...) -> None: ...

class OpenDocument(_message.Message):
    __slots__ = ("model", "text", "revision", "priority")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    revision: int
    priority: int
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., revision: _Optional[int] = ..., priority: _Optional[int] = ...) -> None: ...

class SpliceDocument(_message.Message):
    __slots__ = ("revision", "splices")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    SPLICES_FIELD_NUMBER: _ClassVar[int]
    revision: int
    splices: _containers.RepeatedCompositeFieldContainer[TextSplice]
    def __init__(self, revision: _Optional[int] = ..., splices: _Optional[_Iterable[_Union[TextSplice, _Mapping]]] = ...) -> None: ...

class TextSplice(_message.Message):
    __slots__ = ("start_byte", "end_byte", "text")
    START_BYTE_FIELD_NUMBER: _ClassVar[int]
    END_BYTE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    start_byte: int
    end_byte: int
    text: str
    def __init__(self, start_byte: _Optional[int] = ..., end_byte: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class CompleteDocument(_message.Message):
    __slots__ = ("id", "cursor_byte", "count", "until", "max_chars", "constraint")
    ID_FIELD_NUMBER: _ClassVar[int]
    CURSOR_BYTE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    MAX_CHARS_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    id: int
    cursor_byte: int
    count: int
    until: Until
    max_chars: int
    constraint: _generation_pb2.Constraint
    def __init__(self, id: _Optional[int] = ..., cursor_byte: _Optional[int] = ..., count: _Optional[int] = ..., until: _Optional[_Union[Until, str]] = ..., max_chars: _Optional[int] = ..., constraint: _Optional[_Union[_generation_pb2.Constraint, _Mapping]] = ...) -> None: ...

class ScoreDocument(_message.Message):
    __slots__ = ("id", "start_byte", "end_byte")
    ID_FIELD_NUMBER: _ClassVar[int]
    START_BYTE_FIELD_NUMBER: _ClassVar[int]
    END_BYTE_FIELD_NUMBER: _ClassVar[int]
    id: int
    start_byte: int
    end_byte: int
    def __init__(self, id: _Optional[int] = ..., start_byte: _Optional[int] = ..., end_byte: _Optional[int] = ...) -> None: ...

class CloseDocument(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EditResponse(_message.Message):
    __slots__ = ("applied", "completions", "scores", "stale", "failed", "closed")
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    COMPLETIONS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    applied: DocumentApplied
    completions: DocumentCompletions
    scores: DocumentScores
    stale: StaleRequest
    failed: EditFailure
    closed: DocumentClosed
    def __init__(self, applied: _Optional[_Union[DocumentApplied, _Mapping]] = ..., completions: _Optional[_Union[DocumentCompletions, _Mapping]] = ..., scores: _Optional[_Union[DocumentScores, _Mapping]] = ..., stale: _Optional[_Union[StaleRequest, _Mapping]] = ..., failed: _Optional[_Union[EditFailure, _Mapping]] = ..., closed: _Optional[_Union[DocumentClosed, _Mapping]] = ...) -> None: ...

class DocumentApplied(_message.Message):
    __slots__ = ("revision", "text_bytes", "normalized_chars")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    TEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    NORMALIZED_CHARS_FIELD_NUMBER: _ClassVar[int]
    revision: int
    text_bytes: int
    normalized_chars: int
    def __init__(self, revision: _Optional[int] = ..., text_bytes: _Optional[int] = ..., normalized_chars: _Optional[int] = ...) -> None: ...

class DocumentCompletions(_message.Message):
    __slots__ = ("id", "revision", "items", "cut", "reused_chars", "recomputed_chars", "distributions", "duration_ns", "reused_distributions")
    ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    REUSED_CHARS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_CHARS_FIELD_NUMBER: _ClassVar[int]
    DISTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    REUSED_DISTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    id: int
    revision: int
    items: _containers.RepeatedCompositeFieldContainer[CompletionItem]
    cut: bool
    reused_chars: int
    recomputed_chars: int
    distributions: int
    duration_ns: int
    reused_distributions: int
    def __init__(self, id: _Optional[int] = ..., revision: _Optional[int] = ..., items: _Optional[_Iterable[_Union[CompletionItem, _Mapping]]] = ..., cut: bool = ..., reused_chars: _Optional[int] = ..., recomputed_chars: _Optional[int] = ..., distributions: _Optional[int] = ..., duration_ns: _Optional[int] = ..., reused_distributions: _Optional[int] = ...) -> None: ...

class CompletionItem(_message.Message):
    __slots__ = ("text", "logprob", "chars", "boundaries")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    CHARS_FIELD_NUMBER: _ClassVar[int]
    BOUNDARIES_FIELD_NUMBER: _ClassVar[int]
    text: str
    logprob: float
    chars: int
    boundaries: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, text: _Optional[str] = ..., logprob: _Optional[float] = ..., chars: _Optional[int] = ..., boundaries: _Optional[_Iterable[int]] = ...) -> None: ...

class DocumentScores(_message.Message):
    __slots__ = ("id", "revision", "characters", "recomputed_chars", "duration_ns", "start_bytes")
    ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_CHARS_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    START_BYTES_FIELD_NUMBER: _ClassVar[int]
    id: int
    revision: int
    characters: _containers.RepeatedCompositeFieldContainer[_generation_pb2.Character]
    recomputed_chars: int
    duration_ns: int
    start_bytes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id: _Optional[int] = ..., revision: _Optional[int] = ..., characters: _Optional[_Iterable[_Union[_generation_pb2.Character, _Mapping]]] = ..., recomputed_chars: _Optional[int] = ..., duration_ns: _Optional[int] = ..., start_bytes: _Optional[_Iterable[int]] = ...) -> None: ...

class StaleRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class EditFailure(_message.Message):
    __slots__ = ("id", "code", "reason", "message", "field")
    ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    id: int
    code: str
    reason: str
    message: str
    field: str
    def __init__(self, id: _Optional[int] = ..., code: _Optional[str] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., field: _Optional[str] = ...) -> None: ...

class DocumentClosed(_message.Message):
    __slots__ = ("reason",)
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[DocumentClosed.Reason]
        REASON_CLIENT: _ClassVar[DocumentClosed.Reason]
        REASON_IDLE: _ClassVar[DocumentClosed.Reason]
        REASON_DRAINING: _ClassVar[DocumentClosed.Reason]
        REASON_MODEL_CHANGED: _ClassVar[DocumentClosed.Reason]
    REASON_UNSPECIFIED: DocumentClosed.Reason
    REASON_CLIENT: DocumentClosed.Reason
    REASON_IDLE: DocumentClosed.Reason
    REASON_DRAINING: DocumentClosed.Reason
    REASON_MODEL_CHANGED: DocumentClosed.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: DocumentClosed.Reason
    def __init__(self, reason: _Optional[_Union[DocumentClosed.Reason, str]] = ...) -> None: ...
