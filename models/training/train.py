"""Trains a model: `python -m training.train --config training/configs/NAME.json --data DIR --out RUN [--resume]`.

The run folder receives `log.jsonl` (a line every few steps), `state.pt` (the state to resume from after a kill) and
`learning-curve.svg`. `--minutes`, `--characters` and `--seed` override the configuration.
"""

import argparse
import json
import shutil
import time
from pathlib import Path

import torch

from . import curve, recipes
from .progress import Progress
from .run import Run


def train(run, deadline=None):
    """Trains until the budget is spent or `deadline` (of `time.monotonic`) has passed. Returns True if the budget is spent."""
    recipe, log = run.recipe, run.out / "log.jsonl"
    progress = Progress(1000, int(1000 * run.share_spent()), "‰")
    validated = saved = time.monotonic()
    while run.share_spent() < 1 and (deadline is None or time.monotonic() < deadline):
        before = run.characters
        entry = run.train_step()
        now, done = time.monotonic(), run.share_spent() >= 1
        if done or validation_due(recipe, before, run.characters, now - validated):
            entry.update({f"valid_{name}": value for name, value in run.validate().items()})
            validated = time.monotonic()
            draw = True
        else:
            draw = False
        if draw or run.step % recipe["log_every_steps"] == 0:
            write_entry(log, run, entry)
            progress.to(1000 * run.share_spent(), note(run, entry))
        if done or now - saved >= recipe["save_every_seconds"]:
            run.save()
            saved = time.monotonic()
        if draw:
            curve.draw(log, run.out / "learning-curve.svg", run.task.unit, conditions(run))
    run.save()
    progress.close()
    return run.share_spent() >= 1


def validation_due(recipe, before, after, seconds):
    """Returns True if validation is due: after a number of symbols if the recipe sets one, otherwise after a time.

    With a number of symbols, the steps of validation do not depend on the machine.
    """
    if "valid_every_characters" in recipe:
        every = recipe["valid_every_characters"]
        return after // every > before // every
    return seconds >= recipe["valid_every_seconds"]


def conditions(run):
    parameters = sum(weights.numel() for weights in run.model.parameters())
    return f"{parameters / 1e6:.1f}M parameters, seed {run.recipe['seed']}"


def write_entry(log, run, entry):
    head = {"step": run.step, "characters": run.characters, "elapsed": round(run.elapsed, 2)}
    rounded = {name: round(value, 5) if isinstance(value, float) else value for name, value in entry.items()}
    with open(log, "a", encoding="utf-8") as file:
        file.write(json.dumps({**head, **rounded}) + "\n")


def note(run, entry):
    unit = run.task.unit
    shown = [f"{run.characters / 1e6:.2f}M symbols", f"train {entry[f'train_{unit}']:.3f} {unit}"]
    if f"valid_{unit}" in entry:
        shown.append(f"valid {entry[f'valid_{unit}']:.3f}")
    return " ".join(shown)


def take_tokenizer(source, out):
    """Copies the tokenizer of a run or checkpoint, if it has one."""
    out.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "subwords.model"):
        if (source / name).exists():
            shutil.copyfile(source / name, out / name)


def device():
    return "cuda" if torch.cuda.is_available() else "cpu"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True)
    parser.add_argument("--data", required=True, help="folder of the corpus's files")
    parser.add_argument("--out", required=True, help="run folder")
    parser.add_argument("--start", help="run folder or checkpoint whose weights and tokenizer the run starts with")
    parser.add_argument("--compile", action="store_true", help="compile the layers; for a GPU")
    parser.add_argument("--resume", action="store_true", help="continue from the state in the run folder, if it exists")
    parser.add_argument("--minutes", type=float, help="budget in wall-clock time instead of the configuration's")
    parser.add_argument("--characters", type=float, help="budget in symbols read instead of the configuration's")
    parser.add_argument("--seed", type=int, help="seed instead of the configuration's")
    parser.add_argument("--workers", type=int, default=1, help="threads that share a batch; use one per core")
    arguments = parser.parse_args()
    exists = (Path(arguments.out) / "state.pt").exists()
    if exists and not arguments.resume:
        parser.error("the run folder already holds a run; --resume continues it")
    try:
        config = recipes.read(arguments.config, arguments.minutes, arguments.characters, arguments.seed)
        if arguments.start and not exists:
            take_tokenizer(Path(arguments.start), Path(arguments.out))
        run = Run(config, arguments.data, arguments.out, device(), arguments.workers)
        if arguments.compile:
            run.compile()
        if arguments.start and not exists:
            run.start_from(arguments.start)
        run.resume()
    except (OSError, ValueError) as error:
        parser.error(str(error))
    train(run)


if __name__ == "__main__":
    main()
