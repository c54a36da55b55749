"""Tests a weir server with OpenAI's client from PyPI.

Covers unary and streamed completions, the asynchronous client, usage and rejected requests.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List

import local
import pytest

from weir_client import Client

openai = pytest.importorskip("openai", reason="openai is not installed: it needs Python 3.10")
MODEL = local.MODEL.name
PROMPT = "the history of "
COUNTED = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


class Server(local.Server):
    """A server that also listens for HTTP."""

    def __init__(self, *flags: str, model: Path = local.MODEL) -> None:
        super().__init__("--threads", "1", "--http-listen", "127.0.0.1:0", *flags, model=model)
        self.url = "http://{}/v1".format(self.listener("playground"))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server with the model that most tests use."""
    if local.weir_program() is None:
        pytest.skip("no weir program found: set WEIR_BIN or run `cargo build`")
    with Server() as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    """OpenAI's client without retries, so that each rejection reaches the test."""
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=local.TIMEOUT) as client:
        yield client


def ask(client: Any, prompt: Any = PROMPT, **more: Any) -> Any:
    """Requests a completion from the model that most tests use."""
    return client.completions.create(**{"model": MODEL, "prompt": prompt, "max_tokens": 40, "seed": 3, **more})


def run(example: str, server: Server) -> str:
    """Runs a program with only the address and a key in its environment; returns its output."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("WEIR_", "PYTHON"))}
    environment.update(OPENAI_BASE_URL=server.url, OPENAI_API_KEY="none")
    done = subprocess.run(
        [sys.executable, "-c", example], env=environment, capture_output=True, text=True, timeout=local.TIMEOUT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_program_with_another_address(tmp_path: Path) -> None:
    """Runs OpenAI's completion example with only the address changed.

    A checkpoint is named after its folder, so the folder takes the name of OpenAI's model.
    """
    if local.weir_program() is None:
        pytest.skip("no weir program found: set WEIR_BIN or run `cargo build`")
    model = tmp_path / "gpt-3.5-turbo-instruct"
    model.symlink_to(local.MODEL)
    program = f"""
import asyncio, openai
arguments = dict(model="{model.name}", prompt="1,2,3,", max_tokens=5, temperature=0)
complete = openai.OpenAI().completions.create(**arguments).choices[0].text
pieces = openai.OpenAI().completions.create(stream=True, **arguments)
first = next(pieces).choices[0].text
assert first + "".join(piece.choices[0].text for piece in pieces) == complete
async def stream():
    pieces = await openai.AsyncOpenAI().completions.create(stream=True, **arguments)
    return "".join([piece.choices[0].text async for piece in pieces])
assert asyncio.run(stream()) == complete
print(complete)
"""
    with Server(model=model) as server:
        assert re.fullmatch(r"[a-z ]{5}\n", run(program, server))


def test_answer_matches_weir_client(server: Server, client: Any) -> None:
    with Client(server.address, timeout=local.TIMEOUT) as weir:
        expected = weir.generate(PROMPT, max_chars=40, seed=3, logprobs=True)
    answer = ask(client, logprobs=0)
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason, answer.model) == (expected.text, "length", MODEL)
    assert "".join(choice.logprobs.tokens) == expected.text
    # The same seed gives the same text; another seed gives another text.
    assert choice.text == ask(client).choices[0].text != ask(client, seed=4).choices[0].text
    assert ask(client, temperature=0, seed=1).choices[0].text == ask(client, temperature=0, seed=2).choices[0].text
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (len(PROMPT), 40, len(PROMPT) + 40)


def test_stream_matches_unary_text(client: Any) -> None:
    unary = ask(client)
    pieces = list(ask(client, stream=True))
    assert "".join(piece.choices[0].text for piece in pieces) == unary.choices[0].text
    assert [piece.choices[0].finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]
    assert len({piece.id for piece in pieces}) == 1 and all(piece.usage is None for piece in pieces)


def test_usage_of_streams(client: Any) -> None:
    *pieces, last = ask(client, stream=True, stream_options={"include_usage": True})
    assert all(piece.usage is None for piece in pieces)
    assert last.choices == [] and last.usage == ask(client).usage.model_copy(
        update={"prompt_tokens_details": last.usage.prompt_tokens_details}
    )
    # Each message counts its own characters and all earlier ones.
    length = 0
    *pieces, last = ask(client, stream=True, extra_body=COUNTED)
    for piece in pieces:
        length += len(piece.choices[0].text)
        assert (piece.usage.prompt_tokens, piece.usage.completion_tokens) == (len(PROMPT), length)
    assert last.choices == [] and last.usage.completion_tokens == length == 40


def test_logprobs(client: Any) -> None:
    (choice,) = ask(client, echo=True, logprobs=2, max_tokens=20).choices
    logprobs = choice.logprobs
    assert choice.text == PROMPT + ask(client, max_tokens=20).choices[0].text
    assert "".join(logprobs.tokens) == choice.text and logprobs.text_offset == list(range(len(PROMPT) + 20))
    # The first character has no context, so it has no log-probability.
    assert logprobs.token_logprobs[0] is None and all(logprob < 0 for logprob in logprobs.token_logprobs[1:])
    for token, logprob, top in list(zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs))[1:]:
        assert len(top) >= 2
        assert top.get(token, logprob) == logprob <= max(top.values())
    (echoed,) = ask(client, echo=True, max_tokens=1, logprobs=0).choices
    assert echoed.text.startswith(PROMPT)
    # max_tokens=0 scores only the prompt.
    alone = ask(client, echo=True, max_tokens=0, logprobs=0)
    assert alone.choices[0].text == PROMPT and alone.usage.completion_tokens == 0
    assert alone.choices[0].logprobs.token_logprobs == echoed.logprobs.token_logprobs[: len(PROMPT)]


def test_stops(client: Any) -> None:
    unstopped = ask(client).choices[0].text
    for stop in (" ", [unstopped[10:13], "qqq"]):
        first = stop if isinstance(stop, str) else stop[0]
        (choice,) = ask(client, stop=stop).choices
        assert (choice.text, choice.finish_reason) == (unstopped[: unstopped.index(first)], "stop")
    assert ask(client, extra_body={"ignore_eos": True}).choices[0].finish_reason == "length"


def test_several_prompts_and_n(client: Any) -> None:
    prompts = [PROMPT, "a river "]
    choices = ask(client, prompts, n=2, best_of=2, user="me").choices
    alone = [ask(client, prompt, seed=seed).choices[0].text for prompt in prompts for seed in (3, 4)]
    assert [choice.text for choice in choices] == alone
    streamed: Dict[int, str] = dict.fromkeys(range(4), "")
    for piece in ask(client, prompts, n=2, stream=True):
        streamed[piece.choices[0].index] += piece.choices[0].text
    assert list(streamed.values()) == alone


def test_concurrent_streams(server: Server, client: Any) -> None:
    """Asynchronous streams interleave, while one stream closes early and one request is invalid."""
    alone = [ask(client, seed=seed, max_tokens=200).choices[0].text for seed in range(4)]

    async def run_all() -> List[str]:
        texts = [""] * 4
        order = []
        async with openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as others:

            async def read(seed: int) -> None:
                async for piece in await ask(others, seed=seed, max_tokens=200, stream=True):
                    texts[seed] += piece.choices[0].text
                    order.append(seed)

            async def disconnect() -> None:
                stream = await ask(others, max_tokens=5000, stream=True)
                await stream.__anext__()
                await stream.close()

            async def reject() -> None:
                with pytest.raises(openai.BadRequestError):
                    await ask(others, temperature=-1, stream=True)

            await asyncio.gather(*map(read, range(4)), disconnect(), reject())
        # No stream finished before another began.
        assert all(
            order.index(seed) < len(order) - 1 - order[::-1].index(other) for seed in range(4) for other in range(4)
        )
        return texts

    assert asyncio.run(run_all()) == alone


def test_models(client: Any) -> None:
    (listed,) = client.models.list().data
    assert (listed.id, listed.object, listed.token) == (MODEL, "model", "character")
    assert client.models.retrieve(MODEL) == listed
    with pytest.raises(openai.NotFoundError, match='found "nobody"'):
        client.models.retrieve("nobody")


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"max_tokens": 10**9}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 7}, "top_p"),
        ({"stop": ["x"] * 100}, "stop"),
        ({"logprobs": 1000}, "logprobs"),
        ({"logit_bias": {"none": 1}}, "logit_bias"),
        ({"n": 1000}, "n"),
        ({"suffix": "and so on"}, "suffix"),
        ({"prompt": [1, 2, -3]}, "prompt[2]"),
        ({"prompt": [1, 2, 27]}, "prompt"),
        ({"logit_bias": {"-27": 1}}, "logit_bias"),
        ({"prompt": "a" * 9000}, "prompt"),
        ({"extra_body": {"ignore_eos": "perhaps"}}, "ignore_eos"),
        ({"extra_body": {"stream_options": {"include_usage": 3}}}, "stream_options.include_usage"),
    ],
)
def test_rejected_requests(client: Any, wrong: Dict[str, Any], field: str) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            ask(client, **{"stream": stream, **wrong})
        assert (refused.value.status_code, refused.value.param) == (400, field)
        assert refused.value.type == "invalid_request_error" and refused.value.code


def test_biases_of_other_models_have_no_effect(client: Any) -> None:
    biased = ask(client, logit_bias={"27": 100, "50256": -100})
    assert biased.choices[0].text == ask(client).choices[0].text


def test_unknown_model(client: Any) -> None:
    with pytest.raises(openai.NotFoundError, match=f'model: expected one of {MODEL}, found "nobody"') as refused:
        ask(client, model="nobody")
    assert refused.value.code == "unknown_model"


def test_body_too_long(client: Any) -> None:
    with pytest.raises(openai.APIStatusError, match="the body: expected at most 4194304 bytes, found more") as refused:
        ask(client, "a" * (5 << 20))
    assert refused.value.status_code == 413
    assert len(ask(client).choices[0].text) == 40


def test_unsupported_path(client: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="this path does not exist"):
        client.embeddings.create(model=MODEL, input=PROMPT)


def test_chat_names_the_call_to_make(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="completes text .* POST /v1/completions") as refused:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": PROMPT}])
    assert (refused.value.code, refused.value.param) == ("no_chat_template", "messages")


def test_stop_strings_of_other_models_never_match(client: Any) -> None:
    unstopped = ask(client).choices[0]
    stopped = ask(client, stop=["\n\n", "</s>", "Question:"]).choices[0]
    assert (stopped.text, stopped.finish_reason) == (unstopped.text, "length")


def test_full_queue_sends_retry_after() -> None:
    """The server rejects a third request while one runs and one waits.

    The client's retries wait for `retry-after` and succeed once the queue has room.
    """
    if local.weir_program() is None:
        pytest.skip("no weir program found: set WEIR_BIN or run `cargo build`")
    statuses: List[int] = []
    with Server("--rows", "1", "--queue", "1") as server:
        with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=local.TIMEOUT) as client:
            running = ask(client, max_tokens=8000, stream=True)
            next(running)
            waiting = threading.Thread(target=lambda: ask(client, max_tokens=1))
            waiting.start()
            deadline = time.monotonic() + local.TIMEOUT
            while not server.metric("num_requests_waiting"):
                assert time.monotonic() < deadline
            with pytest.raises(openai.RateLimitError) as refused:
                ask(client, max_tokens=1)
            assert 1 <= int(refused.value.response.headers["retry-after"]) <= 3600
            assert (refused.value.status_code, refused.value.code) == (429, "queue_full")

            def on_response(response: Any) -> None:
                statuses.append(response.status_code)
                running.close()

            patient = client.with_options(
                max_retries=5, http_client=openai.DefaultHttpxClient(event_hooks={"response": [on_response]})
            )
            assert ask(patient, max_tokens=1).choices[0].finish_reason == "length"
            waiting.join(local.TIMEOUT)
            assert not waiting.is_alive()
    assert statuses[0] == 429 and statuses[-1] == 200


def test_api_keys(tmp_path: Path) -> None:
    if local.weir_program() is None:
        pytest.skip("no weir program found: set WEIR_BIN or run `cargo build`")
    keys = tmp_path / "keys"
    keys.write_text("alice:a-key-of-sixteen-or-more\n")
    keys.chmod(0o600)
    with Server("--api-keys", str(keys)) as server:
        with openai.OpenAI(base_url=server.url, api_key="a-key-of-sixteen-or-more", max_retries=0) as client:
            assert len(ask(client).choices[0].text) == 40
            stranger = client.with_options(api_key="another-key-of-that-length")
            for call in (lambda: ask(stranger), lambda: stranger.models.list()):
                with pytest.raises(openai.AuthenticationError):
                    call()
