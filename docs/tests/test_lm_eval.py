"""Tests a weir server with lm-eval's `local-completions`: the commands of the page, on tasks with small local data."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import urllib.request
from pathlib import Path
from typing import Any, Dict, Iterator, List

import local
import pages
import pytest

from weir_client import Client

# One process installs the packages.
pytestmark = pytest.mark.xdist_group("clients")
PAGE = "docs/clients.md"
TEXTS = ["the history of the", "a river "]
CHOICES = [
    {"text": "The history of the", "choices": ["city", "xqzk"], "answer": 0},
    {"text": "A river runs past the", "choices": ["qqqq", "mill"], "answer": 1},
]
# The keys that each task adds to those of every task.
TASKS: Dict[str, Dict[str, Any]] = {
    "choose": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{text}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": "acc"}],
    },
    "write": {
        "output_type": "generate_until",
        "doc_to_text": "{{text}}",
        "doc_to_target": "{{written}}",
        "generation_kwargs": {"until": ["\n\n", "Question:"], "max_gen_toks": 20, "temperature": 0},
        "metric_list": [{"metric": "exact_match"}],
    },
    "score": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "bits_per_byte"}],
    },
}


def run(folder: Path, command: List[str]) -> None:
    """Runs a command in the folder without network access."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("WEIR_", "PYTHON", "OPENAI_"))}
    environment.update(HF_HUB_OFFLINE="1", HF_HOME=str(folder / "home"))
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=4 * local.TIMEOUT)
    assert done.returncode == 0, done.stderr


def write_tasks(folder: Path, written: List[str]) -> None:
    """Writes a YAML file and its data for each task. JSON is also YAML."""
    folder.mkdir()
    rows = {
        "choose": CHOICES,
        "write": [{"text": text, "written": answer} for text, answer in zip(TEXTS, written)],
        "score": [{"text": text} for text in TEXTS],
    }
    for name, keys in TASKS.items():
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows[name]))
        source = {"dataset_path": "json", "dataset_kwargs": {"data_files": str(data)}, "test_split": "train"}
        (folder / f"{name}.yaml").write_text(json.dumps({"task": name, **source, **keys}))


@pytest.fixture(scope="module")
def client(http_server: Any) -> Iterator[Client]:
    with Client(http_server.address) as client:
        yield client


@pytest.fixture(scope="module")
def greedy(client: Client) -> List[str]:
    """Weir's own continuations of the texts."""
    return [client.generate(text, max_chars=20, temperature=0).text for text in TEXTS]


@pytest.fixture(scope="module")
def folder(http_server: Any, client_programs: Path, greedy: List[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs the page's commands and returns the folder with lm-eval's results."""
    folder = tmp_path_factory.mktemp("lm-eval")
    (folder / "models").symlink_to(local.ROOT / "models")
    write_tasks(folder / "tasks", greedy)
    run(folder, [str(client_programs / "python"), "-c", pages.code(PAGE, "python", 'save_pretrained("symbols")')])
    command = pages.example(PAGE, "sh", "lm_eval run", http_server.url).replace("\\\n", "")
    assert "TASKS" in command
    program, *arguments = shlex.split(command.replace("TASKS", ",".join(TASKS)))
    more = ["--include_path", "tasks", "--output_path", "results", "--log_samples"]
    run(folder, [str(client_programs / program), *arguments, *more])
    return folder / "results" / local.MODEL.name


@pytest.fixture(scope="module")
def t5_folder(t5_server: Any, client_programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs the page's command with a T5, on the task that generates text."""
    here = tmp_path_factory.mktemp("lm-eval-t5")
    written = [completed(t5_server, text) for text in TEXTS]
    write_tasks(here / "tasks", written)
    # Without the tokenizer of the model, the harness sends texts.
    command = pages.example(PAGE, "sh", "lm_eval run", t5_server.url).replace("\\\n", "")
    command = command.replace("tokenizer=symbols", "tokenizer_backend=None,tokenized_requests=False")
    program, *arguments = shlex.split(command.replace("TASKS", "write").replace(local.MODEL.name, local.T5.name))
    more = ["--include_path", "tasks", "--output_path", "results", "--log_samples"]
    run(here, [str(client_programs / program), *arguments, *more])
    return here / "results" / local.T5.name


def completed(server: Any, prompt: str) -> str:
    """Returns weir's own answer to a prompt, without stop strings."""
    body = json.dumps({"model": local.T5.name, "prompt": prompt, "max_tokens": 20, "temperature": 0}).encode()
    request = urllib.request.Request(f"{server.url}/v1/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=local.TIMEOUT) as answer:
        return str(json.load(answer)["choices"][0]["text"])


def results(folder: Path) -> Any:
    (file,) = folder.glob("results_*.json")
    return json.loads(file.read_text())["results"]


def samples(folder: Path, task: str) -> List[Dict[str, Any]]:
    """Returns a task's requests and responses."""
    (file,) = folder.glob(f"samples_{task}_*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def score(client: Client, context: str, continuation: str) -> float:
    """Returns the log-probability of the continuation, as weir's own call reports it."""
    characters = client.score(context + continuation).characters
    assert len(characters) == len(context + continuation)
    return sum(character.logprob or 0.0 for character in characters[len(context) :])


def test_loglikelihoods_equal_weirs_scores(folder: Path, client: Client) -> None:
    for sample in samples(folder, "choose"):
        for number, ((logprob, _),) in enumerate(sample["resps"]):
            asked = sample["arguments"][f"gen_args_{number}"]
            assert float(logprob) == pytest.approx(score(client, asked["arg_0"], asked["arg_1"]), abs=1e-4)
    assert results(folder)["choose"]["acc,none"] == 1.0


def test_rolling_loglikelihoods_equal_weirs_scores(folder: Path, client: Client) -> None:
    # lm-eval puts the tokenizer's mark before the text: a space.
    expected = [score(client, " ", text) for text in TEXTS]
    for sample, logprob in zip(samples(folder, "score"), expected):
        assert float(sample["resps"][0][0]) == pytest.approx(logprob, abs=1e-4)
    bits = -sum(expected) / len("".join(TEXTS)) / math.log(2)
    assert results(folder)["score"]["bits_per_byte,none"] == pytest.approx(bits, abs=1e-4)


def test_generations_equal_weirs_own(folder: Path, greedy: List[str]) -> None:
    assert [sample["resps"] for sample in samples(folder, "write")] == [[[text]] for text in greedy]
    assert all(re.fullmatch("[a-z ]{20}", text) for text in greedy)
    assert results(folder)["write"]["exact_match,none"] == 1.0


def test_a_t5_generates_until_a_stop_string(t5_folder: Path, t5_server: Any) -> None:
    assert [sample["resps"] for sample in samples(t5_folder, "write")] == [[[completed(t5_server, text)]] for text in TEXTS]
    assert results(t5_folder)["write"]["exact_match,none"] == 1.0
