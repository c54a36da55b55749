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
        # The server rejects a text that the caller resumes without the seed of its first part.
        resumes = bool(request.resume_text or request.resume_ids)
        if not resumes and not request.sampling.HasField("seed"):
            request.sampling.seed = secrets.randbits(63)
        self._request = request
        self._ids: List[int] = list(request.resume_ids)
        self._text: List[str] = [request.resume_text]
        self._received = False
        # A text that the caller resumes has no ids here.
        self._by_text = bool(request.resume_text)
        # True once a piece with an incomplete character at the end of the text has arrived.
        self._ended = False
        # True if the current attempt sends that piece again.
        self._repeats_end = False

    def begin(self, started: pb.Started) -> None:
        """Checks the first message of an attempt.

        Raises `WeirError` if the server generates the text from its beginning.
        """
        # A single id without text may be that of the end, which is no character.
        has_characters = len(self._ids) > 1 or any(self._text)
        if self._received and started.resumed_chars == 0 and has_characters:
            raise WeirError(grpc.StatusCode.UNIMPLEMENTED, "resume: the server cannot continue a text")
        self._repeats_end = self._ended

    def take(self, piece: pb.Piece) -> bool:
        """Records a piece. Returns False if an earlier attempt has sent it."""
        self._received = True
        if piece.text and not piece.ids:
            if self._ids:
                # An incomplete character at the end of the text. Its ids came before, so that `resume_ids` has them.
                if self._repeats_end:
                    return False
                self._ended = True
            else:
                # A server without `details.ids` may know `resume_text`.
                self._by_text = True
        self._ids.extend(piece.ids)
        self._text.append(piece.text)
        return True

    def rest(self) -> pb.GenerateRequest:
        """Returns the request for what is still to come."""
        if not self._received:
            return self._request
        request = pb.GenerateRequest()
        request.CopyFrom(self._request)
        del request.resume_ids[:]
        # The text of the ids that the caller resumes is not here.
        too_many_ids = len(self._ids) > _MAX_IDS and not self._request.resume_ids
        if self._by_text or too_many_ids:
            request.resume_text = "".join(self._text)
        else:
            request.resume_ids.extend(self._ids)
        return request
