"""Tests TLS, certificates of both sides, and API keys."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Iterator

import grpc
import local
import pytest

from weir_client import AsyncClient, Client, Retry, Tls, WeirError, _mixups
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
    flags += ["--http-listen", "127.0.0.1:0"]
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


@pytest.fixture(scope="module")
def plain(weir_installed: None) -> Iterator[local.Server]:
    """A server without TLS that also has an HTTP port."""
    with local.Server("--http-listen", "127.0.0.1:0") as server:
        yield server


@pytest.mark.parametrize(
    ("server", "port", "scheme", "remedy"),
    [
        ("guarded", "gRPC", "http", "the port expects TLS: use https:// in the address"),
        ("guarded", "HTTP", "http", "the port expects TLS: use https:// in the address"),
        ("guarded", "HTTP", "https", "the port serves HTTP/1, like that of --http-listen: give the gRPC address"),
        ("plain", "gRPC", "https", "the port does not use TLS: use http:// in the address"),
        ("plain", "HTTP", "http", "this port speaks HTTP/1.1; only the gRPC port (--listen) speaks HTTP/2"),
        ("plain", "HTTP", "https", "the port serves HTTP/1, like that of --http-listen: give the gRPC address"),
    ],
)
def test_mixups_are_named(
    request: pytest.FixtureRequest, folder: Path, server: str, port: str, scheme: str, remedy: str
) -> None:
    running: local.Server = request.getfixturevalue(server)
    address = running.address if port == "gRPC" else running.listener("playground")
    url = f"{scheme}://localhost:{address.rsplit(':', 1)[1]}"
    files = Tls(ca=folder / "ca.pem", cert=folder / "client.pem", key=folder / "client.key")
    tls = files if scheme == "https" else None
    retry = Retry(attempts=1)

    def check(error: WeirError) -> None:
        # without TLS, the HTTP port itself answers gRPC
        answered = (server, port, scheme) == ("plain", "HTTP", "http")
        assert error.code is (grpc.StatusCode.FAILED_PRECONDITION if answered else grpc.StatusCode.UNAVAILABLE)
        assert error.message.startswith(f"{remedy}") and remedy in str(error)

    with Client(url, tls=tls, timeout=local.TIMEOUT, retry=retry) as client:
        with pytest.raises(WeirError) as refused:
            client.models()
        check(refused.value)
        with pytest.raises(WeirError) as refused:
            client.generate("a", max_chars=3)
        check(refused.value)
        with pytest.raises(WeirError) as refused, client.edit("a") as session:
            session.complete()
        check(refused.value)
        with pytest.raises(WeirError) as refused:
            client.wait_until_serving()
        check(refused.value)

    async def ask() -> None:
        async with AsyncClient(url, tls=tls, timeout=local.TIMEOUT, retry=retry) as client:
            with pytest.raises(WeirError) as refused:
                await client.models()
            check(refused.value)
            with pytest.raises(WeirError) as refused:
                await client.wait_until_serving()
            check(refused.value)
            with pytest.raises(WeirError) as refused:
                async with client.edit("a") as session:
                    await session.complete()
            check(refused.value)

    asyncio.run(ask())


def test_other_errors_have_no_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    with Client("127.0.0.1:1", timeout=local.TIMEOUT, retry=Retry(attempts=1)) as client:
        with pytest.raises(WeirError) as refused:
            client.models()
    assert "the port" not in refused.value.message
    # A proxy that has answered over HTTP/2 has the right port, even if it serves HTTP/1 there as well.
    answered = WeirError(grpc.StatusCode.UNAVAILABLE, "no replica is available")
    answered.has_metadata = True
    monkeypatch.setattr(_mixups, "_remedy", lambda *_: "the port serves HTTP/1")
    _mixups.add_remedy(answered, Client("127.0.0.1:1")._settings)
    assert answered.message == "no replica is available"
    for target, address in [
        ("dns:///localhost:1", ("localhost", 1)),
        ("[::1]:50051", ("::1", 50051)),
        ("unix:/run/weir", None),
        ("localhost", None),
        ("ipv4:10.0.0.1:1,10.0.0.2:1", None),
    ]:
        assert _mixups._address(target) == address


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
