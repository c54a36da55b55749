"""A gRPC server with scripted responses, for failures that a real server does not produce on demand."""

from __future__ import annotations

import concurrent.futures
import threading
from types import TracebackType
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple, Type, Union

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from weir_client._proto import generation_pb2 as pb


class Fail:
    """An error status with the details that a server sends."""

    def __init__(
        self,
        code: grpc.StatusCode,
        retry_after: Optional[float] = None,
        message: str = "scripted",
        by_server: bool = True,
    ) -> None:
        self.code = code
        #: False for an error of the connection or a proxy, which has no details.
        self.by_server = by_server
        self.message = message
        self.retry_after = retry_after

    def details(self) -> bytes:
        number: int = self.code.value[0]
        status = status_pb2.Status(code=number, message=self.message)
        details: List[Any] = [error_details_pb2.RequestInfo(request_id="scripted-1")]
        if self.retry_after is not None:
            delay = duration_pb2.Duration()
            delay.FromNanoseconds(int(self.retry_after * 1e9))
            details.append(error_details_pb2.RetryInfo(retry_delay=delay))
        for detail in details:
            packed = any_pb2.Any()
            packed.Pack(detail)
            status.details.append(packed)
        encoded: bytes = status.SerializeToString()
        return encoded


Step = Union[Fail, Any]


def started(resumed: int = 0) -> pb.GenerateResponse:
    return pb.GenerateResponse(started=pb.Started(request_id="r", model="m", resumed_chars=resumed))


def piece(text: str, ids: bool = False) -> pb.GenerateResponse:
    return pb.GenerateResponse(piece=pb.Piece(text=text, ids=text.encode() if ids else ()))


def finished() -> pb.GenerateResponse:
    return pb.GenerateResponse(finished=pb.Finished(reason=pb.FINISH_REASON_MAX_CHARS))


class Scripted:
    """Responds to each attempt with the next list of messages. Records the headers and the deadline of each attempt.

    A `threading.Event` in a list pauses the response until the event is set.
    """

    def __init__(self, *attempts: Sequence[Step]) -> None:
        self._attempts = list(attempts)
        #: The headers and the remaining seconds of each attempt.
        self.received: List[Tuple[List[Tuple[str, Any]], Optional[float]]] = []
        #: The request of each attempt.
        self.requests: List[Any] = []
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
        requests: List[Tuple[str, Any]] = [("Generate", pb.GenerateRequest), ("Score", pb.ScoreRequest)]
        handlers: dict[str, Any] = {
            name: grpc.unary_stream_rpc_method_handler(
                self._answer, request_deserializer=request.FromString, response_serializer=_serialize
            )
            for name, request in requests
        }
        handlers["Segment"] = grpc.unary_unary_rpc_method_handler(
            lambda request, context: next(iter(self._answer(request, context))),
            request_deserializer=pb.SegmentRequest.FromString,
            response_serializer=_serialize,
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("weir.v1.Generation", handlers),)
        )
        self.address = "127.0.0.1:{}".format(self._server.add_insecure_port("127.0.0.1:0"))
        self._server.start()

    def _answer(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        self.requests.append(request)
        self.received.append(([(key, value) for key, value in context.invocation_metadata()], context.time_remaining()))
        for step in self._attempts.pop(0):
            if isinstance(step, Fail):
                if step.by_server:
                    context.set_trailing_metadata((("grpc-status-details-bin", step.details()),))
                context.abort(step.code, step.message)
            if isinstance(step, threading.Event):
                step.wait(60.0)
                continue
            yield step

    def __enter__(self) -> Scripted:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._server.stop(None).wait()


_serialize: Callable[[Any], bytes] = lambda message: message.SerializeToString()  # noqa: E731
