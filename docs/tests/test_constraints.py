"""Texts of random JSON schemas through the server, each checked by another project's validator."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any, Dict

import local
import pytest
from jsonschema import Draft202012Validator

from weir_client import Client, FinishReason

CONFIG = {
    "format": "weir/1",
    "family": "hourglass",
    "vocabulary": {"bytes": True},
    "normaliser": "none",
    "training_length": 512,
    "architecture": {
        "layers": {"pre": 1, "middle": 1, "post": 1},
        "dim": 32,
        "heads": 2,
        "head_dim": 16,
        "feed_forward": 64,
        "activation": "gelu",
        "layer_norm_eps": 1e-05,
        "position": "transformer-xl",
        "pooling": "mean",
        "boundaries": {"kind": "whitespace", "symbol": " "},
    },
}
SCHEMAS = 300
MAX_CHARS = 1500


def schema(dice: random.Random, depth: int) -> Dict[str, Any]:
    """Returns a random schema."""
    kinds = ["integer", "number", "string", "bounded", "pattern", "boolean", "enum", "const", "null", "date"]
    kind = dice.choice(kinds + ["array", "object", "open", "any"] * (3 if depth else 0))
    inner = depth - 1
    if kind in ("string", "boolean", "null"):
        return {"type": kind, **({"maxLength": dice.randrange(9)} if kind == "string" else {})}
    if kind in ("integer", "number"):
        return {"type": kind, "minimum": dice.randrange(-9, 9), "exclusiveMaximum": dice.randrange(10, 200)}
    if kind == "bounded":
        return {"type": "string", "minLength": 2, "maxLength": 4}
    if kind == "pattern":
        return {"type": "string", "pattern": dice.choice(["^[a-c]{2,3}$", "^(x|yz)*$", "^[^a]{3}$"])}
    if kind == "date":
        return {"type": "string", "format": "date"}
    if kind == "enum":
        return {"enum": ["red", "a\n\"b\"", 3, None, {"k": []}]}
    if kind == "const":
        return {"const": {"k": [1, 2.5, "é"]}}
    if kind == "array":
        return {"type": "array", "items": schema(dice, inner), "minItems": dice.randrange(3), "maxItems": 3}
    if kind == "any":
        return {"anyOf": [schema(dice, inner), schema(dice, inner)]}
    names = ["name", "a b", "c\\d"]
    properties = {name: schema(dice, inner) for name in names}
    required = [name for name in names if dice.random() < 0.5]
    # an open object's other members are numbers, but not the named ones, however they are spelled
    rest: Any = {"type": "integer", "minimum": 0, "maximum": 9} if kind == "open" else False
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": rest}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of bytes with random weights, which spells everything that a form allows."""
    program = local.weir_program()
    if program is None:
        pytest.skip("no weir program found: set WEIR_BIN or run `cargo build`")
    folder = tmp_path_factory.mktemp("bytes")
    config = folder / "config.json"
    config.write_text(json.dumps(CONFIG))
    subprocess.run([program, "init", "--config", config, folder / "model"], check=True, capture_output=True)
    return folder / "model"


def test_texts_are_valid_for_another_validator(model: Path) -> None:
    finished = 0
    formats = Draft202012Validator.FORMAT_CHECKER
    with local.Server(model=model) as server, Client(server.address, timeout=local.TIMEOUT) as client:
        for seed in range(SCHEMAS):
            form = schema(random.Random(seed), 2)
            result = client.generate("a", json_schema=json.dumps(form), max_chars=MAX_CHARS, temperature=0.8, seed=seed)
            if result.reason == FinishReason.CONSTRAINT:
                Draft202012Validator(form, format_checker=formats).validate(json.loads(result.text))
                finished += 1
            else:
                assert result.reason == FinishReason.MAX_CHARS and len(result.text.encode()) <= MAX_CHARS
    assert finished > SCHEMAS // 2, finished
