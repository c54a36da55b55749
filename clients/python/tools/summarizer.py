"""A small summarization model with random weights and a letter tokenizer, to test calls; its text has no meaning."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import local

_MARKS = ["<s>", "<pad>", "</s>", "<unk>"]
_PIECES = ["▁", "▁the", "ing", ".", ",", *"abcdefghijklmnopqrstuvwxyz"]
_SPACES = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}


def _tokenizer() -> object:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    vocabulary = [[mark, 0.0] for mark in _MARKS] + [[piece, -3.0] for piece in _PIECES]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": mark, **flags} for number, mark in enumerate(_MARKS)],
        "normalizer": {"type": "NFKC"},
        "pre_tokenizer": _SPACES,
        "post_processor": None,
        "decoder": _SPACES,
        "model": {"type": "Unigram", "unk_id": 3, "vocab": vocabulary, "byte_fallback": False},
    }


def _config() -> object:
    return {
        "format": "weir/1",
        "family": "pyramidion",
        "vocabulary": {"tokenizer": "tokenizer.json", "size": len(_MARKS) + len(_PIECES)},
        "normaliser": "none",
        "training_length": 256,
        "architecture": {
            "encoder_layers": 3,
            "decoder_layers": 1,
            "dim": 32,
            "heads": 4,
            "feed_forward": 64,
            "activation": "relu",
            "layer_norm_eps": 1e-05,
            "pre_norm": False,
            "source_length": 256,
            "target_length": 64,
            "block": 32,
            "pooling": {
                "kind": "successive-halving",
                "lengths": {"0": 128, "1": 32},
                "flip_right": True,
                "sort_back": True,
            },
            "decoder_positions": False,
        },
        "generation": {"beam": 2, "length_penalty": 1.0, "min_tokens": 8, "max_tokens": 32},
    }


def make(folder: Path) -> Path:
    """Writes the checkpoint to a folder; returns its path."""
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer()))
    (folder / "shape.json").write_text(json.dumps(_config()))
    program = local.weir_program()
    if program is None:
        raise RuntimeError("no weir program found: set WEIR_BIN or run `cargo build`")
    model = folder / "summarizer"
    command = [str(program), "init", "--config", str(folder / "shape.json"), str(model)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return model
