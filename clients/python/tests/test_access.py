"""Tests TLS, certificates of both sides, and API keys."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Iterator

import grpc
import local
import pytest

from weir_client import AsyncClient, Client, Retry, Tls, WeirError
from weir_client._settings import Settings

trustme = pytest.importorskip("trustme", reason="trustme is not installed")
KEY = "0123456789abcdef"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Creates a folder of certificates: ca.pem signed the server's, and clients.pem signed the client's."""
    folder = tmp_path_factory.mktemp("certificates")
    server_ca = trustme.CA()
    client_ca = trustme.CA()
    server_ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    client_ca.cert_pem.write_to_path(str(folder / "clients.pem"))
    for name, issued in [("server", server_ca.issue_cert("localhost")), ("client", client_ca.issue_cert("someone"))]:
        issued.private_key_pem.write_to_path(str(folder / f"{name}.key"))
        for number, part in enumerate(issued.cert_chain_pems):
            part.write_to_path(str(folder / f"{name}.pem"), append=number > 0)
    (folder / "keys").write_text(f"alice:{KEY}\n")
    return folder


@pytest.fixture(scope="module")
def guarded(weir_installed: None, folder: Path) -> Iterator[local.Server]:
    """A server that requires TLS, a client certificate and a key."""
    flags = ["--tls-cert", f"{folder}/server.pem", "--tls-key", f"{folder}/server.key"]
    flags += ["--tls-client-ca", f"{folder}/clients.pem", "--api-keys", f"{folder}/keys"]
    with local.Server(*flags) as server:
        yield server


def test_tls_client_certificate_and_key(guarded: local.Server, folder: Path) -> None:
    port = guarded.address.rsplit(":", 1)[1]
    as_files = Tls(ca=folder / "ca.pem", cert=folder / "client.pem", key=folder / "client.key")
    ca, cert, key = ((folder / name).read_bytes() for name in ("ca.pem", "client.pem", "client.key"))
    as_bytes = Tls(ca=ca, cert=cert, key=key)
    for tls in (as_files, as_bytes):
        with Client(f"https://localhost:{port}", tls=tls, api_key=KEY, timeout=local.TIMEOUT) as client:
            assert len(client.generate("a", max_chars=3).text) == 3
    named = Tls(ca=ca, cert=cert, key=key, server_name="localhost")
    with Client(guarded.address, tls=named, api_key=KEY, timeout=local.TIMEOUT) as client:
        assert client.serving()

    async def ask() -> int:
        async with AsyncClient(f"https://localhost:{port}", tls=as_files, api_key=KEY, timeout=local.TIMEOUT) as client:
            return len((await client.generate("a", max_chars=3)).text)

    assert asyncio.run(ask()) == 3


@pytest.mark.parametrize(
    ("leave_out", "code"),
    [
        ("key", grpc.StatusCode.UNAUTHENTICATED),
        ("certificate", grpc.StatusCode.UNAVAILABLE),
        ("ca", grpc.StatusCode.UNAVAILABLE),
        ("tls", grpc.StatusCode.UNAVAILABLE),
    ],
)
def test_missing_certificate_or_key(guarded: local.Server, folder: Path, leave_out: str, code: grpc.StatusCode) -> None:
    port = guarded.address.rsplit(":", 1)[1]
    files: Any = {"cert": folder / "client.pem", "key": folder / "client.key", "ca": folder / "ca.pem"}
    if leave_out == "certificate":
        del files["cert"], files["key"]
    if leave_out == "ca":
        del files["ca"]
    tls = None if leave_out == "tls" else Tls(**files)
    key = None if leave_out == "key" else KEY
    with Client(f"localhost:{port}", tls=tls, api_key=key, timeout=local.TIMEOUT, retry=Retry(attempts=1)) as client:
        with pytest.raises(WeirError) as refused:
            client.generate("a", max_chars=3)
    assert refused.value.code is code


def test_settings_that_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="http://localhost:1 is not encrypted, but tls is set"):
        Client("http://localhost:1", tls=Tls())
    with pytest.raises(ValueError, match="cert and key must be set together"):
        Client("localhost:1", tls=Tls(cert=b""))


def test_keys_are_left_out_of_repr() -> None:
    tls = Tls(cert=b"certificate", key=b"private")
    shown = repr(Settings("localhost:1", KEY, tls, None, Retry(), None, "pick_first", ()))
    assert "localhost:1" in shown and "certificate" in shown
    assert KEY not in shown and "private" not in shown
