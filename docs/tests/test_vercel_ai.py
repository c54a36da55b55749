"""Tests a weir server with Vercel's AI SDK from npm, in which only the address and the model's name are changed.

Skipped if Node.js is missing or npm cannot install the packages.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Dict

import local
import pytest

# One process installs the packages.
pytestmark = pytest.mark.xdist_group("npm")
# The SDK writes a dialogue and asks to stop before the next line of the user.
PROGRAM = """
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";
const provider = createOpenAICompatible({ name: "weir", baseURL: process.argv[2], includeUsage: true });
const model = provider.completionModel(process.argv[3]);
const options = { model, prompt: "the history of the city", maxOutputTokens: 40, seed: 3, temperature: 0.7 };
const { text, usage, finishReason } = await generateText(options);
const streaming = streamText(options);
let streamed = "";
for await (const part of streaming.textStream) streamed += part;
let refusal = "";
await generateText({ ...options, model: provider.completionModel("nobody"), maxRetries: 0 }).catch((error) => (refusal = error.message));
const counted = await streaming.usage;
console.log(JSON.stringify({ text, usage, finishReason, streamed, counted, refusal }));
"""


def run(folder: Path, server: Any, model: Path) -> Any:
    """Runs the program and returns what it printed."""
    (folder / "program.mjs").write_text(PROGRAM)
    command = ["node", "program.mjs", f"{server.url}/v1", model.name]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=local.TIMEOUT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def answer(npm_packages: Path, http_server: Any) -> Dict[str, Any]:
    return run(npm_packages, http_server, local.MODEL)


def test_text_is_generated_and_streamed(answer: Dict[str, Any]) -> None:
    # "\nuser:" is a stop string that the model cannot write: it never matches.
    assert len(answer["text"]) == 40 and answer["finishReason"] == "length"
    assert answer["streamed"] == answer["text"]


def test_usage_is_counted(answer: Dict[str, Any]) -> None:
    for usage in (answer["usage"], answer["counted"]):
        assert usage["outputTokens"] == 40 and usage["inputTokens"] > 20


def test_a_t5_answers_in_spite_of_the_stop_string(npm_packages: Path, t5_server: Any) -> None:
    answer = run(npm_packages, t5_server, local.T5)
    assert answer["text"] and answer["streamed"] == answer["text"] and answer["finishReason"] in ("length", "stop")
    assert answer["counted"] == answer["usage"] and 0 < answer["usage"]["outputTokens"] <= 40


def test_refusals_have_the_servers_message(answer: Dict[str, Any]) -> None:
    assert answer["refusal"] == f'model: expected one of {local.MODEL.name}, found "nobody"'
