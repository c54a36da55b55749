"""Train a model: `python -m training.train --config training/configs/NAME.json --data DIR --out RUN [--resume]`.

The run folder receives `log.jsonl` (a line every few steps), `state.pt` (everything needed to go on after a kill) and
`learning-curve.svg`. `--minutes` and `--characters` override the budget of the configuration.
"""

import argparse
import json
import math
import os
import time
from pathlib import Path

import numpy
import torch

from . import curve, data, evaluation, schedule
from .families import build
from .muon import Muon
from .parallel import Workers
from .progress import Progress


class Run:
    """A model, its optimisers and its place in the data and in the budget."""

    def __init__(self, config, corpus_folder, out, device, workers=1):
        self.config, self.recipe = config, config["training"]
        self.out, self.device = Path(out), device
        self.out.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(self.recipe["seed"])
        self.model = build(config["model"]).to(device)
        self.workers = Workers(self.model, workers, self.recipe["precision"])
        self.optimisers = optimisers(self.model, self.recipe, self.workers)
        symbols, corpus = config["model"]["vocabulary"]["symbols"], self.recipe["corpus"]
        self.windows = data.Windows(data.encode(data.read_text(corpus_folder, corpus, "train"), symbols), self.recipe["seed"])
        valid = data.encode(data.read_text(corpus_folder, corpus, "valid"), symbols)
        self.valid = sample(valid, self.recipe["valid_characters"])
        self.step = self.characters = 0
        self.elapsed = 0.0  # seconds of training, over all resumptions

    def share_spent(self):
        """How much of the budget is gone: by time or by characters, whichever the recipe counts."""
        budget = self.recipe["budget"]
        if "minutes" in budget:
            return self.elapsed / (60 * budget["minutes"])
        return self.characters / budget["characters"]

    def train_step(self):
        """One update; returns what the log wants to know."""
        share, began = self.share_spent(), time.monotonic()
        length = schedule.window_length(share, self.recipe["stages"])
        factor = schedule.learning_rate_factor(share, self.step, self.recipe["warmup_steps"], self.recipe["decay_share"])
        inputs, targets = self.windows.batch(self.recipe["batch_characters"], length)
        loss, extra = self.workers.gradients(inputs.to(self.device), targets.to(self.device))
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe["clip"])
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["peak"] * factor
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.step += 1
        self.characters += inputs.numel()
        self.elapsed += time.monotonic() - began
        bits = loss / math.log(2)
        return {"train_bpc": bits, "gradient_norm": float(norm), "lr": factor, "length": length, **extra}

    def validate(self):
        length = min(self.config["model"]["training_length"], len(self.valid) // 32)
        return evaluation.bits_per_character(self.model, self.valid, stride=length, total=length)["bpc"]

    def save(self):
        """Atomically, so that a kill during the save costs nothing."""
        state = {
            "config": self.config,
            "model": self.model.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            "progress": {"step": self.step, "characters": self.characters, "elapsed": self.elapsed},
            "spans_consumed": self.windows.spans_consumed,
            "random": torch.get_rng_state(),
        }
        torch.save(state, self.out / "state.pt.partial")
        os.replace(self.out / "state.pt.partial", self.out / "state.pt")

    def resume(self):
        state = torch.load(self.out / "state.pt", map_location="cpu")
        if state["config"]["model"] != self.config["model"]:
            raise ValueError("the run folder holds a different model")
        self.model.load_state_dict(state["model"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"]):
            optimiser.load_state_dict(saved)
        self.step, self.characters, self.elapsed = (state["progress"][k] for k in ("step", "characters", "elapsed"))
        self.windows.spans_consumed = state["spans_consumed"]
        torch.set_rng_state(state["random"])
        self._forget_log_after(self.step)

    def _forget_log_after(self, step):
        """Steps made after the last save are made again, and logged again."""
        log = self.out / "log.jsonl"
        lines = log.read_text(encoding="utf-8").splitlines(keepends=True) if log.exists() else []
        log.write_text("".join(line for line in lines if json.loads(line)["step"] <= step), encoding="utf-8")


def optimisers(model, recipe, workers):
    """Muon for matrices between hidden vectors, AdamW for the rest; with `muon` absent, AdamW for all."""
    matrices = model.matrices() if "muon" in recipe else []
    chosen = {id(weight) for weight in matrices}
    rest = [weight for weight in model.parameters() if id(weight) not in chosen]
    adam = dict(recipe["adamw"])
    result = [torch.optim.AdamW(rest, lr=adam.pop("lr"), betas=tuple(adam.pop("betas")), **adam)]
    if matrices:
        dtype = torch.bfloat16 if recipe["precision"] == "bf16" else torch.float32
        result.append(Muon(matrices, **recipe["muon"], dtype=dtype, workers=workers))
    for optimiser in result:
        for group in optimiser.param_groups:
            group["peak"] = group["lr"]  # the schedule scales from here
    return result


def sample(ids, characters, pieces=32):
    """Evenly spaced pieces of a text, so that every source in it has its part."""
    if characters >= len(ids):
        return ids
    size = characters // pieces
    return numpy.concatenate([ids[start : start + size] for start in range(0, len(ids) - size, len(ids) // pieces)][:pieces])


def train(run):
    """Until the budget is spent. Steps, validations and saves happen at the recipe's intervals."""
    recipe, log = run.recipe, run.out / "log.jsonl"
    progress = Progress(1000, int(1000 * run.share_spent()), "‰")
    validated = saved = time.monotonic()
    while run.share_spent() < 1:
        entry = run.train_step()
        now, done = time.monotonic(), run.share_spent() >= 1
        if done or now - validated >= recipe["valid_every_seconds"]:
            entry["valid_bpc"] = run.validate()
            validated = time.monotonic()
        if done or now - saved >= recipe["save_every_seconds"]:
            run.save()
            saved = time.monotonic()
        if "valid_bpc" in entry or run.step % recipe["log_every_steps"] == 0:
            write_entry(log, run, entry)
            progress.to(1000 * run.share_spent(), note(run, entry))
        if "valid_bpc" in entry:
            curve.draw(log, run.out / "learning-curve.svg")
    progress.close()


def write_entry(log, run, entry):
    head = {"step": run.step, "characters": run.characters, "elapsed": round(run.elapsed, 2)}
    rounded = {name: round(value, 5) if isinstance(value, float) else value for name, value in entry.items()}
    with open(log, "a", encoding="utf-8") as file:
        file.write(json.dumps({**head, **rounded}) + "\n")


def note(run, entry):
    shown = [f"{run.characters / 1e6:.2f}M chars", f"train {entry['train_bpc']:.3f}"]
    if "valid_bpc" in entry:
        shown.append(f"valid {entry['valid_bpc']:.3f}")
    return " ".join(shown)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True)
    parser.add_argument("--data", required=True, help="folder of CORPUS.train.txt(.xz), CORPUS.valid.txt")
    parser.add_argument("--out", required=True, help="run folder")
    parser.add_argument("--resume", action="store_true", help="go on from the run folder's state, if there is one")
    parser.add_argument("--minutes", type=float, help="budget in wall-clock time instead of the configuration's")
    parser.add_argument("--characters", type=float, help="budget in characters instead of the configuration's")
    parser.add_argument("--workers", type=int, default=1, help="threads that share a batch; one a core on a processor")
    arguments = parser.parse_args()
    config = json.loads(Path(arguments.config).read_text(encoding="utf-8"))
    for unit in ("minutes", "characters"):
        if getattr(arguments, unit):
            config["training"]["budget"] = {unit: getattr(arguments, unit)}
    run = Run(config, arguments.data, arguments.out, "cuda" if torch.cuda.is_available() else "cpu", arguments.workers)
    if (run.out / "state.pt").exists():
        if not arguments.resume:
            parser.error("the run folder holds a run already; --resume goes on with it")
        run.resume()
    train(run)


if __name__ == "__main__":
    main()
