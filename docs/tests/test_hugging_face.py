"""Serves a folder that transformers wrote next to a model that pools, with programs from outside this repository's Rust code.

OpenAI's client streams it, and weir-loadtest compares both.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Iterator

import local
import pytest

openai = pytest.importorskip("openai", reason="openai is not installed: it needs Python 3.10")
LLAMA = local.ROOT / "tests/golden/hugging-face/llama"
PROMPT = "Zürich's café was founded in 1888."


class Server(local.Server):
    """A server of both models that also listens for HTTP."""

    def __init__(self) -> None:
        super().__init__("--model", str(LLAMA), "--threads", "1", "--http-listen", "127.0.0.1:0")
        self.url = "http://{}/v1".format(self.listener("playground"))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server with a Hugging Face model and the model that most tests use."""
    if local.weir_program() is None:
        pytest.skip("no weir program found: set WEIR_BIN or run `cargo build`")
    with Server() as server:
        yield server


def test_openai_streams_tokens(server: Server) -> None:
    asked = dict(model="llama", prompt=PROMPT, max_tokens=40, temperature=0, extra_body={"ignore_eos": True})
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=local.TIMEOUT) as client:
        assert {"llama", local.MODEL.name} <= {model.id for model in client.models.list()}
        whole: Any = client.completions.create(**asked)
        *pieces, last = client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    text = "".join(piece.choices[0].text for piece in pieces)
    assert len(pieces) > 1 and text == whole.choices[0].text
    assert last.usage == whole.usage and last.usage.completion_tokens == 40
    assert last.usage.prompt_tokens != len(PROMPT) == last.usage.prompt_text_chars
    assert last.usage.completion_text_chars == len(text)


def test_loadtest_compares_per_character(server: Server) -> None:
    program = local.weir_program()
    loadtest = Path(program or "").with_name("weir-loadtest")
    if not loadtest.is_file():
        pytest.skip("no weir-loadtest found next to weir: run `cargo build --workspace`")
    models = f"llama,{local.MODEL.name}"
    short = ["--rounds", "4", "--warm-up-rounds", "1", "--prompt-chars", "40", "--output-chars", "16", "--score-chars", "64"]
    command = [str(loadtest), "compare", server.address, "--models", models, *short, "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=local.TIMEOUT)
    assert done.returncode == 0, done.stderr
    (part,) = json.loads(done.stdout)[0]["parts"]
    tokens, characters = part["comparison"]["models"]
    assert (tokens["unit"], characters["unit"]) == ("tokens", "characters")
    # Texts of N tokens and of N characters have other lengths: only times per character are compared.
    assert characters["gains"]["total"] is None and characters["gains"]["char"]["ratio"] > 0
    for model in (tokens, characters):
        assert model["bits_per_char"] > 0 and model["medians"]["char_ns"] > 0
