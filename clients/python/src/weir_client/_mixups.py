"""Names the mix-up behind a failed connection: TLS on one side only, or the port of another protocol."""

from __future__ import annotations

import socket
import ssl
from typing import Optional, Tuple

import grpc

from ._errors import WeirError
from ._settings import Settings

# Maximum seconds to connect, and for each part of an answer.
_TIMEOUT = 2.0
_HTTP_PROBE = b"GET / HTTP/1.1\r\nhost: weir\r\nconnection: close\r\n\r\n"
# A TLS record with a message that is too short, which a TLS server answers with an alert.
_TLS_PROBE = bytes([22, 3, 1, 0, 4, 1, 0, 0, 0])
# weir's gRPC port states with this status that it supports no HTTP/1.
_HTTP2_ONLY = b"HTTP/1.1 505"

_SERVES_HTTP = "the port serves HTTP/1, like that of --http-listen: give the gRPC address (weir serve --listen)"
_EXPECTS_TLS = 'the port expects TLS: use https:// in the address, and tls=Tls(ca="ca.pem") for a private authority'
_WITHOUT_TLS = "the port does not use TLS: use http:// in the address, without tls"


def add_remedy(error: WeirError, settings: Settings) -> None:
    """Connects to the server's address after a failed connection. If a mix-up is the cause, adds the remedy to the error."""
    address = _address(settings.target())
    if error.code is not grpc.StatusCode.UNAVAILABLE or error.has_metadata or address is None:
        return
    try:
        remedy = _remedy(address, settings.is_encrypted())
    except (OSError, ValueError):
        # An address that cannot be encoded raises ValueError.
        return
    if remedy is not None:
        error.explain(remedy)


def _remedy(address: Tuple[str, int], is_encrypted: bool) -> Optional[str]:
    """Returns the remedy, or None if there is no mix-up."""
    answer = _answer(address, _HTTP_PROBE)
    if _is_tls(answer) or (answer.startswith(b"HTTP/") and _is_tls(_answer(address, _TLS_PROBE))):
        if not is_encrypted:
            return _EXPECTS_TLS
        return _SERVES_HTTP if _selects_http1(address) else None
    if answer.startswith(b"HTTP/") and not answer.startswith(_HTTP2_ONLY):
        return _SERVES_HTTP
    return _WITHOUT_TLS if is_encrypted and answer else None


def _address(target: str) -> Optional[Tuple[str, int]]:
    """Returns host and port of a target that names one server; None for other targets of gRPC."""
    if target.startswith("dns:"):
        target = target.rsplit("/", 1)[-1]
    host, colon, port = target.rpartition(":")
    if not colon or not port.isdigit() or not host or "/" in host or "," in host or host.startswith(("unix", "ipv")):
        return None
    return host.strip("[]"), int(port)


def _answer(address: Tuple[str, int], probe: bytes) -> bytes:
    """Returns the first bytes of the server's answer to a probe; b"" if it closes the connection or sends nothing."""
    with socket.create_connection(address, _TIMEOUT) as connection:
        connection.sendall(probe)
        answer = b""
        try:
            while len(answer) < len(_HTTP2_ONLY) and (part := connection.recv(len(_HTTP2_ONLY))):
                answer += part
        except OSError:
            pass
        return answer


def _is_tls(answer: bytes) -> bool:
    """Returns True for a record of a handshake or an alert, in TLS of any version."""
    return len(answer) >= 2 and answer[0] in (21, 22) and answer[1] == 3


def _selects_http1(address: Tuple[str, int]) -> bool:
    """Returns True if a TLS server selects HTTP/1.1 although HTTP/2 is offered first. Sends no data, so it checks no certificate."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    try:
        with socket.create_connection(address, _TIMEOUT) as connection:
            with context.wrap_socket(connection, server_hostname=address[0]) as encrypted:
                return encrypted.selected_alpn_protocol() == "http/1.1"
    except OSError:
        return False
