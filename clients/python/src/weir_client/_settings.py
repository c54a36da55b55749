"""Connection settings of both clients: address, TLS, key, channel options."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from typing import Any, List, Optional, Sequence, Tuple, Union

import grpc
from typing_extensions import Literal, TypedDict

from ._retry import Retry

#: The header from which a proxy may choose a replica.
AFFINITY = "weir-affinity"

#: PEM as bytes, or the path of a PEM file.
Pem = Union[bytes, str, "os.PathLike[str]"]
Metadata = Tuple[Tuple[str, str], ...]


@dataclass(frozen=True)
class Tls:
    """TLS settings. Each certificate or key is PEM, as bytes or as a file's path."""

    #: Certificates that may sign the server's certificate; None uses gRPC's default authorities.
    ca: Optional[Pem] = None
    #: The client's certificate and its key, for servers that require a client certificate.
    cert: Optional[Pem] = None
    #: Left out of `repr`, as the API key is.
    key: Optional[Pem] = field(default=None, repr=False)
    #: The name in the server's certificate, if it differs from the address.
    server_name: Optional[str] = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Reads the files and returns the credentials."""
        if (self.cert is None) != (self.key is None):
            raise ValueError("Tls: cert and key must be set together")
        return grpc.ssl_channel_credentials(_read(self.ca), _read(self.key), _read(self.cert))


def _read(pem: Optional[Pem]) -> Optional[bytes]:
    if pem is None or isinstance(pem, bytes):
        return pem
    with open(pem, "rb") as file:
        return file.read()


class CallOptions(TypedDict, total=False):
    """Options of every call."""

    #: Seconds for the whole call, retries included. The client's timeout is the default.
    timeout: Optional[float]
    #: A proxy that reads the header `weir-affinity` sends calls with the same text here to the same replica. The client sends
    #: only a digest of the text.
    affinity: Optional[str]
    #: Further headers.
    metadata: Sequence[Tuple[str, str]]


@dataclass(frozen=True)
class Settings:
    """The settings of a client."""

    address: str
    #: Left out of `repr`, so that logs and tracebacks do not show it.
    api_key: Optional[str] = field(repr=False)
    tls: Optional[Tls]
    timeout: Optional[float]
    retry: Retry
    affinity_chars: Optional[int]
    balance: Literal["pick_first", "round_robin"]
    channel_options: Sequence[Tuple[str, Any]]

    def __post_init__(self) -> None:
        if self.affinity_chars is not None and self.affinity_chars < 1:
            raise ValueError(f"affinity_chars: expected at least 1, found {self.affinity_chars}")
        if self.address.startswith("http://") and self.tls is not None:
            raise ValueError(f"address: {self.address} is not encrypted, but tls is set")

    def target(self) -> str:
        """Returns the address in gRPC's form, without a scheme."""
        for scheme in ("http://", "https://"):
            if self.address.startswith(scheme):
                return self.address[len(scheme) :].rstrip("/")
        return self.address

    def is_encrypted(self) -> bool:
        """Returns True if connections use TLS."""
        return self.tls is not None or self.address.startswith("https://")

    def credentials(self) -> Optional[grpc.ChannelCredentials]:
        """Returns the TLS credentials, or None for an unencrypted connection."""
        return (self.tls or Tls()).credentials() if self.is_encrypted() else None

    def options(self) -> List[Tuple[str, Any]]:
        """Returns the channel's options. The caller's own options come last and override the others."""
        options: List[Tuple[str, Any]] = [
            # The server already limits the length of a text, so the client needs no limit.
            ("grpc.max_receive_message_length", -1),
            # The client's retries wait for seconds, but gRPC's reconnect backoff grows to minutes.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2000),
            # Keepalive pings detect a server that disappears without closing the connection.
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.keepalive_timeout_ms", 20_000),
            ("grpc.primary_user_agent", "weir-client"),
        ]
        if self.balance != "pick_first":
            options.append(("grpc.service_config", json.dumps({"loadBalancingConfig": [{self.balance: {}}]})))
        if self.tls is not None and self.tls.server_name is not None:
            options.append(("grpc.ssl_target_name_override", self.tls.server_name))
        return [*options, *self.channel_options]

    def metadata(self, text: Optional[str], call: CallOptions) -> Metadata:
        """Returns a call's headers. The affinity digest covers the beginning of `text`, the prompt."""
        headers: List[Tuple[str, str]] = []
        if self.api_key is not None:
            headers.append(("authorization", f"Bearer {self.api_key}"))
        affinity = call.get("affinity")
        if affinity is None and text is not None and self.affinity_chars is not None:
            affinity = text[: self.affinity_chars]
        if affinity is not None:
            headers.append((AFFINITY, hashlib.sha256(affinity.encode()).hexdigest()[:16]))
        return (*headers, *call.get("metadata", ()))

    def call_timeout(self, call: CallOptions) -> Optional[float]:
        """Returns the timeout of a call in seconds."""
        timeout = call.get("timeout")
        return self.timeout if timeout is None else timeout
