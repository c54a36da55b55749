"""A training run: a model, its optimisers, its position in the data and in the budget. Steps, saves and resumes."""

import json
import math
import os
import time
from pathlib import Path

import torch

from . import checkpoint, recipes, schedule, tasks
from .average import Average
from .families import build
from .families.pyramidion import DecoderLayer, EncoderLayer
from .layers.transformer import Layer
from .muon import Muon
from .parallel import Workers

LAYERS = (Layer, EncoderLayer, DecoderLayer)


class Run:
    def __init__(self, config, data_folder, out, device="cpu", workers=1):
        self.config, self.recipe = config, recipes.checked(config)
        self.out, self.device = Path(out), device
        self.out.mkdir(parents=True, exist_ok=True)
        self.task = tasks.build(config, data_folder, self.out)
        torch.manual_seed(self.recipe["seed"])
        self.model = build(config["model"]).to(device)
        self.model.prepare(self.recipe)
        self.workers = Workers(self.model, workers, self.recipe["precision"])
        self.optimisers = optimisers(self.model, self.recipe, self.workers)
        self.average = Average(self.model, self.recipe["average"]) if "average" in self.recipe else None
        self.step = self.characters = self.restored = 0
        self.elapsed = 0.0  # seconds of training, over all resumptions
        self.best = None  # lowest validation loss, if the recipe has `keep_best`

    def share_spent(self):
        """Returns the spent share of the recipe's budget, in time or in symbols read."""
        budget = self.recipe["budget"]
        if "minutes" in budget:
            return self.elapsed / (60 * budget["minutes"])
        return self.characters / budget["characters"]

    def train_step(self):
        """Runs one update; returns the figures for the log."""
        share, started = self.share_spent(), time.monotonic()
        length = schedule.window_length(share, self.recipe["stages"]) if "stages" in self.recipe else None
        factor = schedule.learning_rate_factor(share, self.step, self.recipe)
        batch, symbols = self.task.batch(length)
        batch = [part.to(self.device) for part in batch]
        _, extra = self.workers.gradients(batch, (self.recipe["seed"], self.step))
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe["clip"])
        for optimiser, weights in self.optimisers:
            if weights in ("all", self.next_weights()):
                for group in optimiser.param_groups:
                    group["lr"] = group["peak"] * factor
                optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.step += 1
        if self.average:
            self.average.update(self.step)
        self.characters += symbols
        self.elapsed += time.monotonic() - started
        bits = extra.pop("nats") / math.log(2)
        entry = {f"train_{self.task.unit}": bits, "gradient_norm": float(norm), "lr": factor, **extra}
        return {**entry, "length": length} if length else entry

    def next_weights(self):
        """Returns which weights an interleaved recipe updates: after k updates of the generative model, one of the posterior."""
        every = self.recipe.get("interleave", 0) + 1
        return "posterior" if self.step % every == every - 1 else "generative"

    def validate(self):
        """Measures the model, or its average. With `keep_best`, saves the best weights and restores them once the loss more than doubles."""
        with torch.compiler.set_stance("force_eager"):  # compiling the layers again for a few batches takes longer
            return self._validate()

    def _validate(self):
        if self.average:
            with self.average.in_place():
                return self.task.validate(self.model)
        result = self.task.validate(self.model)
        if not self.recipe.get("keep_best"):
            return result
        loss = result[self.task.unit]
        if self.best is None or loss < self.best:
            self.best = loss
            self._write("best.pt")
        elif not loss <= 2 * self.best:  # also true for NaN
            self._restore_best()
            result["restored"] = 1
        self.save()  # so that best.pt is never newer than state.pt
        return result

    def save(self):
        self._write("state.pt")

    def _write(self, name):
        """Saves the state atomically, so that a kill during the save loses nothing."""
        state = {
            "config": self.config,
            "model": self.model.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser, _ in self.optimisers],
            "progress": {key: getattr(self, key) for key in ("step", "characters", "elapsed", "restored", "best")},
            "place": self.task.place,
        }
        if self.average:
            state["average"] = self.average.state()
        torch.save(state, self.out / f"{name}.partial")
        os.replace(self.out / f"{name}.partial", self.out / name)

    def resume(self):
        """Continues from the state in the folder, if it exists. Drops log lines of later steps."""
        if not (self.out / "state.pt").exists():
            return self._forget_log_after(0)
        state = torch.load(self.out / "state.pt", map_location="cpu")
        if state["config"]["model"] != self.config["model"]:
            raise ValueError(f"{self.out}: the run in this folder has a different model")
        seed = state["config"]["training"]["seed"]
        if seed != self.recipe["seed"]:
            raise ValueError(f"{self.out}: the run in this folder has seed {seed}, expected {self.recipe['seed']}")
        self._load(state)
        for name, value in state["progress"].items():
            setattr(self, name, value)
        self.task.place = state["place"]
        self._forget_log_after(self.step)

    def start_from(self, folder):
        """Takes the weights of a checkpoint, or of another run: its best ones, or its last. The model must be the same."""
        folder = Path(folder)
        if (folder / "model.safetensors").exists():
            model, config = checkpoint.load(folder)
            weights = model.state_dict()
        else:
            state = torch.load(folder / ("best.pt" if (folder / "best.pt").exists() else "state.pt"), map_location="cpu")
            weights, config = state["model"], state["config"]["model"]
        if config != self.config["model"]:
            raise ValueError(f"{folder}: the folder has a different model")
        self.model.load_state_dict(weights)

    def compile(self):
        """Compiles the layers when they first run, which takes about a minute."""
        for layer in LAYERS:
            layer.forward = torch.compile(layer.forward, dynamic=True)

    def _load(self, state):
        self.model.load_state_dict(state["model"])
        for (optimiser, _), saved in zip(self.optimisers, state["optimisers"]):
            optimiser.load_state_dict(saved)
        if self.average:
            self.average.load(state["average"])

    def _restore_best(self):
        """Restores weights and optimisers. Data, schedule and noise continue, because otherwise the same failure would repeat."""
        self._load(torch.load(self.out / "best.pt", map_location="cpu"))
        self.restored += 1

    def _forget_log_after(self, step):
        """Drops log lines after the last save, because those steps run again. A kill may have cut the last line short."""
        log = self.out / "log.jsonl"
        lines = log.read_text(encoding="utf-8").splitlines(keepends=True) if log.exists() else []
        complete = [line for line in lines if line.endswith("\n")]
        log.write_text("".join(line for line in complete if json.loads(line)["step"] <= step), encoding="utf-8")


def optimisers(model, recipe, workers):
    """Returns [(optimiser, role of its weights)].

    Muon trains matrices between hidden vectors and AdamW the rest; without `muon` in the recipe, AdamW trains all weights. The
    posterior's weights, if any, have an AdamW with a separate learning rate. With `interleave`, the two roles alternate.
    """
    posterior = model.posterior()
    taken = {id(weight) for weight in posterior}
    matrices = [weight for weight in model.matrices() if id(weight) not in taken] if "muon" in recipe else []
    taken |= {id(weight) for weight in matrices}
    rest = [weight for weight in model.parameters() if id(weight) not in taken]
    interleaved = recipe.get("interleave", 0) > 0
    role = "generative" if interleaved else "all"
    result = [(adamw(rest, recipe), role)]
    if matrices:
        dtype = torch.bfloat16 if recipe["precision"] == "bf16" else torch.float32
        result.append((Muon(matrices, **recipe["muon"], dtype=dtype, workers=workers), role))
    if posterior:
        own = {**recipe, "adamw": {**recipe["adamw"], "lr": recipe["posterior_lr"]}}
        result.append((adamw(posterior, own), "posterior" if interleaved else "all"))
    for optimiser, _ in result:
        for group in optimiser.param_groups:
            group["peak"] = group["lr"]  # the schedule scales from here
    return result


def adamw(weights, recipe):
    """Returns an AdamW optimiser with weight decay for matrices, not for norms and biases."""
    settings = dict(recipe["adamw"])
    decay = settings.pop("weight_decay")
    groups = [
        {"params": [weight for weight in weights if weight.dim() >= 2], "weight_decay": decay},
        {"params": [weight for weight in weights if weight.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=settings.pop("lr"), betas=tuple(settings.pop("betas")), **settings)
