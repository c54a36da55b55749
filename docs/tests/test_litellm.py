"""Tests a weir server with LiteLLM, in which only the address and the model's name are changed."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from pathlib import Path
from typing import Any, Dict, Iterator

import local
import pages
import pytest

# One process installs the packages.
pytestmark = pytest.mark.xdist_group("clients")
PROMPT = "the history of "
# Runs after the page's example, which imports text_completion and prints its text.
PROGRAM = """
import asyncio, json, litellm, sys
asked = dict(model=sys.argv[1], api_base=sys.argv[2], api_key="none", max_tokens=40, seed=3, temperature=0.7, max_retries=0)
prompt = "the history of "
whole = litellm.text_completion(prompt=prompt, **asked)
pieces = [piece.choices[0].text or "" for piece in litellm.text_completion(prompt=prompt, stream=True, **asked)]
dialogue = litellm.completion(messages=[{"role": "user", "content": prompt}], **asked)
refusals = {}
def refused(name, call):
    try:
        call()
    except Exception as error:
        refusals[name] = [type(error).__name__, str(error)]
refused("model", lambda: litellm.text_completion(prompt=prompt, **{**asked, "model": "text-completion-openai/nobody"}))
chat = asked["model"].replace("text-completion-openai/", "openai/")
refused("chat", lambda: litellm.completion(messages=[{"role": "user", "content": prompt}], **{**asked, "model": chat}))
print(json.dumps({
    "text": whole.choices[0].text,
    "finish_reason": whole.choices[0].finish_reason,
    "usage": [whole.usage.prompt_tokens, whole.usage.completion_tokens],
    "pieces": pieces,
    "dialogue": dialogue.choices[0].message.content,
    "refusals": refusals,
}))
"""


def run(programs: Path, program: str, *arguments: str) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("WEIR_", "PYTHON", "OPENAI_"))}
    # The list of prices comes with the package; LiteLLM would otherwise download a newer one.
    environment["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    command = [str(programs / "python"), "-c", program, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=4 * local.TIMEOUT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def answer(http_server: Any, client_programs: Path) -> Iterator[Dict[str, Any]]:
    """Runs the page's example and the program, and returns what they printed."""
    example = pages.example("docs/clients.md", "python", "litellm", http_server.url)
    model = f"text-completion-openai/{local.MODEL.name}"
    printed = run(client_programs, example + PROGRAM, model, f"{http_server.url}/v1").splitlines()
    yield {"example": printed[0], **json.loads(printed[-1])}


def test_example_of_the_page(answer: Dict[str, Any]) -> None:
    assert len(answer["example"]) == 40


def test_answer_equals_a_plain_request(http_server: Any, answer: Dict[str, Any]) -> None:
    body = json.dumps({"prompt": PROMPT, "max_tokens": 40, "seed": 3, "temperature": 0.7}).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{http_server.url}/v1/completions", body, headers)
    with urllib.request.urlopen(request, timeout=local.TIMEOUT) as response:
        (choice,) = json.load(response)["choices"]
    assert (answer["text"], answer["finish_reason"]) == (choice["text"], "length")
    assert answer["usage"] == [len(PROMPT), 40]
    assert len(answer["pieces"]) > 1 and "".join(answer["pieces"]) == choice["text"]


def test_dialogue_of_one_message_is_completed(answer: Dict[str, Any]) -> None:
    assert answer["dialogue"] == answer["text"]


def test_refusals_have_the_servers_message(answer: Dict[str, Any]) -> None:
    (model, unknown), (chat, no_template) = answer["refusals"]["model"], answer["refusals"]["chat"]
    assert model == "NotFoundError" and f'model: expected one of {local.MODEL.name}, found "nobody"' in unknown
    assert chat == "BadRequestError" and "POST /v1/completions" in no_template
