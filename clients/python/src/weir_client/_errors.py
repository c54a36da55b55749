"""The only error type of this package, with all details that the server sends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Tuple, cast

import grpc
from google.rpc import error_details_pb2, status_pb2

# The trailing header that holds the details of a status.
_DETAILS = "grpc-status-details-bin"


@dataclass(frozen=True)
class FieldViolation:
    """An invalid field of the request."""

    #: The field's path in the request, such as `sampling.top_p`.
    field: str
    #: The value found and its bound.
    description: str


class WeirError(Exception):
    """The error of a failed call."""

    #: The gRPC status code.
    code: grpc.StatusCode
    #: The human-readable message.
    message: str
    #: The kind of failure, such as `QUEUE_FULL`; None if the server did not send the error.
    reason: Optional[str]
    #: Metadata of the reason, by key.
    details: Mapping[str, str]
    #: The request's invalid fields.
    field_violations: Tuple[FieldViolation, ...]
    #: Seconds to wait before a retry, as sent by the server.
    retry_after: Optional[float]
    #: Identifies the call in the server's log.
    request_id: Optional[str]
    #: True if the response had metadata: the client had reached a server or a proxy.
    has_metadata: bool
    #: True if the message begins with a likely cause that the client has found.
    is_explained: bool

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.reason = None
        self.details = {}
        self.field_violations = ()
        self.retry_after = None
        self.request_id = None
        self.has_metadata = False
        self.is_explained = False

    @classmethod
    def of(cls, error: grpc.RpcError) -> WeirError:
        """Converts an error raised by gRPC."""
        call = cast(Any, error)
        converted = cls(call.code(), call.details() or "")
        trailing = call.trailing_metadata() or ()
        converted.has_metadata = bool(trailing or call.initial_metadata())
        for key, value in trailing:
            if key == _DETAILS and isinstance(value, bytes):
                converted._read(value)
        return converted

    def explain(self, cause: str) -> None:
        """Puts the likely cause in front of the message."""
        self.message = f"{cause} ({self.message})"
        self.args = (self.code, self.message)
        self.is_explained = True

    def _read(self, encoded: bytes) -> None:
        """Copies the details of an encoded `google.rpc.Status` into this error."""
        try:
            status = status_pb2.Status.FromString(encoded)
        except Exception:  # details that a proxy has broken must not hide the error itself
            return
        info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        retry, request = error_details_pb2.RetryInfo(), error_details_pb2.RequestInfo()
        for detail in status.details:
            if detail.Unpack(info):
                self.reason = info.reason
                self.details = cast(Dict[str, str], dict(info.metadata))
            elif detail.Unpack(bad):
                violations = (FieldViolation(found.field, found.description) for found in bad.field_violations)
                self.field_violations = tuple(violations)
            elif detail.Unpack(retry):
                self.retry_after = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
            elif detail.Unpack(request):
                self.request_id = request.request_id

    def __str__(self) -> str:
        request = f" (request {self.request_id})" if self.request_id else ""
        return f"{self.code.name}: {self.message}{request}"
