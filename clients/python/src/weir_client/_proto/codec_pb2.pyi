from . import generation_pb2 as _generation_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CompressRequest(_message.Message):
    __slots__ = ("options", "text")
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    options: CompressOptions
    text: bytes
    def __init__(self, options: _Optional[_Union[CompressOptions, _Mapping]] = ..., text: _Optional[bytes] = ...) -> None: ...

class CompressOptions(_message.Message):
    __slots__ = ("model", "normalise", "block_chars", "windows", "text_bytes", "priority", "progress")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NORMALISE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_CHARS_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    TEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    model: str
    normalise: bool
    block_chars: int
    windows: _generation_pb2.Windows
    text_bytes: int
    priority: int
    progress: bool
    def __init__(self, model: _Optional[str] = ..., normalise: bool = ..., block_chars: _Optional[int] = ..., windows: _Optional[_Union[_generation_pb2.Windows, _Mapping]] = ..., text_bytes: _Optional[int] = ..., priority: _Optional[int] = ..., progress: bool = ...) -> None: ...

class CompressResponse(_message.Message):
    __slots__ = ("data", "summary", "progress")
    DATA_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    summary: CodecSummary
    progress: CodecProgress
    def __init__(self, data: _Optional[bytes] = ..., summary: _Optional[_Union[CodecSummary, _Mapping]] = ..., progress: _Optional[_Union[CodecProgress, _Mapping]] = ...) -> None: ...

class CodecProgress(_message.Message):
    __slots__ = ("block", "chars", "bits")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    CHARS_FIELD_NUMBER: _ClassVar[int]
    BITS_FIELD_NUMBER: _ClassVar[int]
    block: int
    chars: int
    bits: float
    def __init__(self, block: _Optional[int] = ..., chars: _Optional[int] = ..., bits: _Optional[float] = ...) -> None: ...

class DecompressRequest(_message.Message):
    __slots__ = ("options", "data")
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    options: DecompressOptions
    data: bytes
    def __init__(self, options: _Optional[_Union[DecompressOptions, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class DecompressOptions(_message.Message):
    __slots__ = ("model", "priority", "progress")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    model: str
    priority: int
    progress: bool
    def __init__(self, model: _Optional[str] = ..., priority: _Optional[int] = ..., progress: bool = ...) -> None: ...

class DecompressResponse(_message.Message):
    __slots__ = ("text", "summary", "progress")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    text: bytes
    summary: CodecSummary
    progress: CodecProgress
    def __init__(self, text: _Optional[bytes] = ..., summary: _Optional[_Union[CodecSummary, _Mapping]] = ..., progress: _Optional[_Union[CodecProgress, _Mapping]] = ...) -> None: ...

class CodecSummary(_message.Message):
    __slots__ = ("text_bytes", "chars", "compressed_bytes", "blocks", "bits_per_char")
    TEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHARS_FIELD_NUMBER: _ClassVar[int]
    COMPRESSED_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BITS_PER_CHAR_FIELD_NUMBER: _ClassVar[int]
    text_bytes: int
    chars: int
    compressed_bytes: int
    blocks: int
    bits_per_char: float
    def __init__(self, text_bytes: _Optional[int] = ..., chars: _Optional[int] = ..., compressed_bytes: _Optional[int] = ..., blocks: _Optional[int] = ..., bits_per_char: _Optional[float] = ...) -> None: ...
