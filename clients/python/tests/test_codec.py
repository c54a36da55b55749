"""Tests blocking and asyncio compression with a real server."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any, Iterator, List, Union

import grpc
import local
import pytest

from weir_client import AsyncClient, Client, WeirError
from weir_client.codec import _joined

TEXT = b"a weir pools a stream and lets it flow on " * 5


def parts() -> Iterator[bytes]:
    """Yields the text in parts."""
    yield TEXT[:7]
    yield TEXT[7:]


def test_every_kind_of_source_gives_the_same_data(weir: Client, tmp_path: Path) -> None:
    data = weir.compress(TEXT, block_chars=50)
    path = tmp_path / "text"
    path.write_bytes(TEXT)
    sources: List[Any] = [TEXT.decode(), parts(), path, io.BytesIO(TEXT), path.open("rb")]
    for source in sources:
        assert weir.compress(source, block_chars=50) == data
    buffers: List[Union[bytearray, memoryview]] = [bytearray(TEXT), memoryview(TEXT)]
    for part in buffers:
        assert weir.compress(part, block_chars=50) == data
        assert weir.compress([part], block_chars=50) == data
    assert weir.decompress(data) == TEXT
    assert weir.decompress(iter([data[:100], data[100:]])) == TEXT


def test_many_small_parts_are_joined(weir: Client) -> None:
    text = TEXT * 10
    # A message has at least 1 KiB, unless the parts arrive slowly.
    assert len(list(_joined(text[index : index + 1] for index in range(len(text))))) <= 5
    data = weir.compress((text[index : index + 1] for index in range(len(text))), block_chars=500)
    assert weir.decompress(data[index : index + 1] for index in range(len(data))) == text


def test_streams_end_with_the_totals(weir: Client) -> None:
    with weir.compress_stream(TEXT, block_chars=100, windows=(64, 32), text_bytes=len(TEXT)) as stream:
        data = b"".join(stream)
    summary = stream.summary
    assert summary is not None and summary.bits_per_char is not None
    assert (summary.text_bytes, summary.chars, summary.blocks) == (len(TEXT), len(TEXT), 3)
    assert summary.compressed_bytes == len(data)


def test_damaged_data_and_foreign_characters_are_refused(weir: Client) -> None:
    data = weir.compress(TEXT)
    for damaged in [data[:-1], data[:90] + b"?" + data[91:], b"text"]:
        with pytest.raises(WeirError) as refused:
            weir.decompress(damaged)
        assert refused.value.code == grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(WeirError, match="with normalise, the text is rewritten by text8"):
        weir.compress("The end")
    assert weir.decompress(weir.compress("The end", normalise=True)) == b"the end"


def test_an_error_of_the_source_is_raised(weir: Client, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        weir.compress(tmp_path / "missing")
    wrong: Any = iter([1])
    with pytest.raises(TypeError):
        weir.compress(wrong)


def test_asyncio_gives_the_same_data(server: local.Server, weir: Client) -> None:
    async def both() -> None:
        async with AsyncClient(server.address, timeout=local.TIMEOUT) as client:
            data = await client.compress(TEXT)
            assert data == weir.compress(TEXT)
            assert await client.decompress(data) == TEXT

    asyncio.run(both())
