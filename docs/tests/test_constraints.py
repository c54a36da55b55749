"""Texts of random JSON schemas through the server, each checked by another project's validator."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any, Dict

import grpc
import local
import pytest
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

from weir_client import Client, FinishReason, WeirError

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
# keywords with which a schema can be refused although it is valid
REFUSED = ("oneOf", "allOf", "patternProperties", "$ref", "multipleOf")
MAX_CHARS = 1500
# limit of a case's text: each digit of a multiple adds ten states to the lexer, which has at most 10,000
CASE_CHARS = 500


def schema(dice: random.Random, depth: int) -> Dict[str, Any]:
    """Returns a random schema."""
    scalars = ["integer", "number", "multiple", "string", "bounded", "pattern", "boolean", "enum", "const", "null", "date"]
    nested = ["array", "tuple", "object", "open", "patterns", "any", "one", "all", "ref", "types"]
    kind = dice.choice(scalars + nested * (2 if depth else 0))
    inner = depth - 1
    if kind in ("string", "boolean", "null"):
        return {"type": kind, **({"maxLength": dice.randrange(9)} if kind == "string" else {})}
    if kind in ("integer", "number"):
        return {"type": kind, "minimum": dice.randrange(-9, 9), "exclusiveMaximum": dice.randrange(10, 200)}
    if kind == "multiple":
        return {"type": "integer", "multipleOf": dice.choice([2, 7, 12]), "exclusiveMinimum": dice.randrange(-90, 9)}
    if kind == "bounded":
        return {"type": "string", "minLength": 2, "maxLength": 4}
    if kind == "pattern":
        return {"type": "string", "pattern": dice.choice(["^[a-c]{2,3}$", "^(x|yz)*$", "^[^a]{3}$", "^a|b$"]), "maxLength": 9}
    if kind == "date":
        return {"type": "string", "format": "date"}
    if kind == "enum":
        return {"enum": ["red", "a\n\"b\"", 3, None, {"k": []}]}
    if kind == "const":
        return {"const": {"k": [1, 2.5, "é"]}}
    if kind == "array":
        return {"type": "array", "items": schema(dice, inner), "minItems": dice.randrange(3), "maxItems": 3}
    if kind == "tuple":
        rest: Any = dice.choice([False, {"type": "null"}])
        return {"type": "array", "prefixItems": [schema(dice, inner), schema(dice, inner)], "items": rest, "maxItems": 3}
    if kind == "any":
        return {"anyOf": [schema(dice, inner), schema(dice, inner)]}
    if kind == "one":
        return {"oneOf": [schema(dice, inner), schema(dice, inner)]}
    if kind == "all":
        return {"allOf": [schema(dice, inner), schema(dice, inner)]}
    if kind == "ref":
        return {"$ref": "#/$defs/" + dice.choice("ab")}
    if kind == "types":
        bounds = {"maxItems": 2, "maxProperties": 2, "maxLength": 5, "minimum": 3}
        return {"type": dice.sample(["array", "object", "string", "number", "null"], 2), **bounds}
    names = ["name", "a b", "c\\d"]
    properties = {name: schema(dice, inner) for name in names}
    required = [name for name in names if dice.random() < 0.5]
    # an open object's other members are numbers, but not the named ones, however they are spelled
    rest = {"type": "integer", "minimum": 0, "maximum": 9} if kind == "open" else False
    patterns = {"patternProperties": {"^n": schema(dice, inner), "^x.$": schema(dice, inner)}} if kind == "patterns" else {}
    whole = {"type": "object", "properties": properties, "required": required, **patterns}
    return {**whole, "additionalProperties": rest}


def schema_with_definitions(dice: random.Random) -> Dict[str, Any]:
    """Returns a random schema whose references resolve."""
    return {"$defs": {name: schema(dice, 1) for name in "ab"}, **schema(dice, 2)}


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


def check(form: Any, text: str) -> None:
    """Fails unless the text is valid JSON of this form."""
    validator = validator_for(form, default=Draft202012Validator)
    validator(form, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(json.loads(text))


def test_texts_are_valid_for_another_validator(model: Path) -> None:
    accepted = finished = seed = 0
    with local.Server(model=model) as server, Client(server.address, timeout=local.TIMEOUT) as client:
        while accepted < SCHEMAS:
            seed += 1
            assert seed < 2 * SCHEMAS, f"only {accepted} schemas are accepted"
            form = schema_with_definitions(random.Random(seed))
            try:
                result = client.generate("a", json_schema=json.dumps(form), max_chars=MAX_CHARS, temperature=0.8, seed=seed)
            except WeirError as error:
                assert error.code == grpc.StatusCode.INVALID_ARGUMENT, error
                assert any(f'"{keyword}"' in json.dumps(form) for keyword in REFUSED), (form, error)
                continue
            accepted += 1
            if result.reason == FinishReason.CONSTRAINT:
                check(form, result.text)
                finished += 1
            else:
                assert result.reason == FinishReason.MAX_CHARS and len(result.text.encode()) <= MAX_CHARS
    assert finished > SCHEMAS // 2, finished


def test_cases_are_right_and_their_texts_valid(model: Path) -> None:
    """`cargo test` checks the server against these cases; this checks the cases, and generated texts, against jsonschema."""
    finished = 0
    with local.Server(model=model) as server, Client(server.address, timeout=local.TIMEOUT) as client:
        for file in sorted((local.ROOT / "tests/golden/json-schema").glob("*.json")):
            for group in json.loads(file.read_text()):
                if "refused" in group:
                    continue
                form = group["schema"]
                validator = validator_for(form, default=Draft202012Validator)(form)
                # the validator knows fewer formats, and other regular expressions
                for case in group["tests"] if file.stem not in ("format", "pattern") else []:
                    assert validator.is_valid(case["data"]) == case["valid"], (file.stem, group["description"], case)
                result = client.generate("a", json_schema=json.dumps(form), max_chars=CASE_CHARS, seed=7)
                if result.reason == FinishReason.CONSTRAINT and file.stem != "pattern":
                    check(form, result.text)
                    finished += 1
    assert finished > 100, finished
