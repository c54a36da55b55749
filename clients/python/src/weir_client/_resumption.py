"""What a broken stream has sent, and the request for its rest."""

from __future__ import annotations

import secrets
from typing import List

import grpc

from ._errors import WeirError
from ._proto import generation_pb2 as pb

# A message has at most 65,536 fields, and each id counts as one.
_MAX_IDS = 65_000


class Resumption:
    """Collects the pieces of a stream."""

    def __init__(self, request: pb.GenerateRequest) -> None:
        if request.details.echo:
            raise ValueError("resume: expected no echo, because a resumed stream does not send the prompt again")
        #: True if the caller wants the ids, which this class needs in any case.
        self.lists_ids = request.details.ids
        request.details.ids = True
        if not request.sampling.HasField("seed"):
            request.sampling.seed = secrets.randbits(63)
        self._request = request
        self._ids: List[int] = list(request.resume_ids)
        self._text: List[str] = [request.resume_text]
        self._received = False
        # A text that the caller resumes has no ids here.
        self._by_text = bool(request.resume_text)

    def begin(self, started: pb.Started) -> None:
        """Checks the first message of an attempt.

        Raises `WeirError` if the server generates the text from its beginning.
        """
        if self._received and started.resumed_chars == 0:
            raise WeirError(grpc.StatusCode.UNIMPLEMENTED, "resume: the server cannot continue a text")

    def take(self, piece: pb.Piece) -> None:
        """Records a piece."""
        self._received = True
        # A server without `details.ids` may know `resume_text`.
        self._by_text = self._by_text or (bool(piece.text) and not piece.ids)
        self._ids.extend(piece.ids)
        self._text.append(piece.text)

    def rest(self) -> pb.GenerateRequest:
        """Returns the request for what is still to come."""
        if not self._received:
            return self._request
        request = pb.GenerateRequest()
        request.CopyFrom(self._request)
        del request.resume_ids[:]
        if self._by_text or len(self._ids) > _MAX_IDS:
            request.resume_text = "".join(self._text)
        else:
            request.resume_ids.extend(self._ids)
        return request
