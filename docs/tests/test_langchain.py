"""Tests a weir server with LangChain's class for OpenAI's completions. Only the address and the model's name are changed."""

from __future__ import annotations

from typing import Any, Dict

import local
import pytest

langchain = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed: it needs Python 3.10")
openai = pytest.importorskip("openai")
PROMPT = "the history of "
SETTINGS: Dict[str, Any] = {"api_key": "none", "max_tokens": 40, "seed": 1, "max_retries": 0}


@pytest.fixture(scope="module")
def model(http_server: Any) -> Any:
    return langchain.OpenAI(base_url=f"{http_server.url}/v1", model=local.MODEL.name, **SETTINGS)


def test_answer_equals_openais_client(http_server: Any, model: Any) -> None:
    with openai.OpenAI(base_url=f"{http_server.url}/v1", api_key="none", max_retries=0) as client:
        asked = {"max_tokens": 40, "seed": 1, "temperature": model.temperature, "top_p": model.top_p}
        (choice,) = client.completions.create(model=local.MODEL.name, prompt=PROMPT, **asked).choices
    assert len(choice.text) == 40 and model.invoke(PROMPT) == choice.text


def test_stream_and_batch(model: Any) -> None:
    pieces = list(model.stream(PROMPT))
    assert len(pieces) > 1 and "".join(pieces) == model.invoke(PROMPT)
    # One request with two prompts.
    prompts = [PROMPT, "a river "]
    assert model.batch(prompts) == [model.invoke(prompt) for prompt in prompts]


def test_chain_of_a_template_and_a_model(model: Any) -> None:
    from langchain_core.prompts import PromptTemplate

    chain = PromptTemplate.from_template("the history of {place}") | model.bind(stop=[" "])
    expected = model.invoke("the history of the").split(" ")[0]
    assert chain.invoke({"place": "the"}) == expected


def test_usage_is_counted(model: Any) -> None:
    usage = model.generate([PROMPT]).llm_output["token_usage"]
    assert usage == {"prompt_tokens": 15, "completion_tokens": 40, "total_tokens": 55}


def test_an_agents_stop_strings_reach_a_t5(t5_server: Any) -> None:
    # An agent that writes its steps as text stops before what its tool observed.
    t5 = langchain.OpenAI(base_url=f"{t5_server.url}/v1", model=local.T5.name, temperature=0, **SETTINGS)
    with openai.OpenAI(base_url=f"{t5_server.url}/v1", api_key="none", max_retries=0) as client:
        (choice,) = client.completions.create(model=local.T5.name, prompt=PROMPT, max_tokens=40, temperature=0).choices
    assert choice.text and t5.bind(stop=["\nObservation:", "\n\tObservation:"]).invoke(PROMPT) == choice.text
    assert "".join(t5.stream(PROMPT, stop=["Observation:"])) == choice.text


def test_refusals_have_the_servers_message(http_server: Any) -> None:
    stranger = langchain.OpenAI(base_url=f"{http_server.url}/v1", model="nobody", **SETTINGS)
    with pytest.raises(openai.NotFoundError, match=f'model: expected one of {local.MODEL.name}, found "nobody"'):
        stranger.invoke(PROMPT)
