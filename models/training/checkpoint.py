"""Writes and reads weir checkpoints: a folder with `config.json` and `model.safetensors` (docs/checkpoints.md)."""

import hashlib
import json
from pathlib import Path

from . import files, safetensors_file
from .families import build


def save(folder, config, tensors, matrices="f32"):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(config, indent=2, ensure_ascii=False)
    files.replace(folder / "config.json", text + "\n")
    safetensors_file.write(folder / "model.safetensors", tensors, matrices)


def load(folder):
    """Returns the model in evaluation mode and its configuration."""
    folder = Path(folder)
    if not (folder / "config.json").exists():
        raise FileNotFoundError(f"{folder}: not a checkpoint, config.json is missing")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    model = build(config)
    model.load_state_dict(safetensors_file.read(folder / "model.safetensors"))
    return model.eval(), config


def sha256(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
