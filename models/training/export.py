"""Exports a run as a weir checkpoint: `python -m training.export --run RUN --out FOLDER`.

Writes `config.json`, `model.safetensors`, `learning-curve.svg` and, for subwords, `tokenizer.json`. The weights are the last ones, their
average if the recipe has `average`, or the weights with the lowest validation loss if it has `keep_best`. Prints the facts that a model card needs: size,
parameters, sha256, progress. The card itself needs a hand-written purpose and limits. `--replace` removes the card, the README and
`ngrams.bin` of the old checkpoint.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch

from . import checkpoint
from .command_line import one_line_errors

# Files of a replaced checkpoint that would contradict the new weights.
STALE_FILES = ("card.json", "README.md", "ngrams.bin", "tokenizer.json", "learning-curve.svg")

# Sampling defaults of checkpoints that continue texts: at temperature 1, small models write many words that do not exist.
SAMPLING = {"temperature": 0.7, "top_p": 0.95}


def export(run, out, matrices="f32"):
    """Writes the checkpoint, in place of an older one, and returns the facts."""
    run, out = Path(run), Path(out)
    if not (run / "state.pt").exists():
        raise FileNotFoundError(f"{run}: not a run folder, state.pt is missing")
    if out.resolve() == run.resolve():
        raise ValueError(f"{out}: a run cannot be exported to its own folder")
    state = torch.load(run / "state.pt", map_location="cpu")
    if state["config"]["training"].get("keep_best"):
        best = torch.load(run / "best.pt", map_location="cpu")
        state = {**state, "model": best["model"], "progress": {**state["progress"], "best_step": best["progress"]["step"]}}
    if "average" in state:
        state["model"].update(state["average"]["weights"])
    stale = STALE_FILES if (out / "model.safetensors").exists() else ()
    if stale:
        (out / "card.json").unlink(missing_ok=True)  # states the digest of the old weights
    config = state["config"]["model"]
    if "generation" not in config:
        config = {**config, "sampling": SAMPLING}
    checkpoint.save(out, config, state["model"], matrices)
    for name in stale:
        (out / name).unlink(missing_ok=True)
    for name in ("learning-curve.svg", "tokenizer.json"):
        if (run / name).exists():
            shutil.copyfile(run / name, out / name)
    weights = out / "model.safetensors"
    return {
        "parameters": sum(tensor.numel() for tensor in state["model"].values()),
        "bytes": weights.stat().st_size,
        "sha256": checkpoint.sha256(weights),
        **state["progress"],
    }


@one_line_errors
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", required=True, help="run folder of training.train")
    parser.add_argument("--out", required=True, help="folder of the checkpoint")
    parser.add_argument("--replace", action="store_true", help="replace an existing checkpoint")
    parser.add_argument("--matrices", choices=("f32", "bf16", "int8"), default="f32", help="number format; vectors stay f32")
    arguments = parser.parse_args()
    if (Path(arguments.out) / "model.safetensors").exists() and not arguments.replace:
        parser.error(f"{arguments.out} already holds a checkpoint; --replace overwrites it")
    print(json.dumps(export(arguments.run, arguments.out, arguments.matrices), indent=2))


if __name__ == "__main__":
    main()
