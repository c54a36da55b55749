"""Reads and checks a configuration: `model`, the checkpoint's config.json, and `training`, the recipe.

A mistake in a configuration may surface only after hours of training. So this module checks it before the first step: a missing key
and an unknown key are errors. The keys of a recipe:

- `corpus`: first part of the text files' names. `seed`: seed of weights, data order and noise.
- `budget`: `{"minutes": m}` of training steps, or `{"characters": n}`, symbols read.
- `stages`: window length by share of the budget.
- `batch_characters`, `batch_pairs`: symbols or pairs per update.
- `precision`: `f32`, or `bf16` for the matrix products. Weights, sums, norms, boundaries and pooling scores stay f32.
- `warmup_steps`, `decay`, `decay_share`: learning rate. After the warm-up, `linear` decay to zero over the last share of the budget,
  `cosine` over the whole budget, or `none`.
- `average`: `{"every": n, "keep": k}`: average of the weights, which moves by 1 − k after every n-th update. Validation and export use it.
- `muon`, `adamw`: Muon for matrices between hidden vectors, AdamW for the rest; without `muon`, AdamW for all.
- `dropout`: of hidden vectors, and of LSLM's and the decoder's attention weights. `clip`: limit of the gradient's norm.
- `boundaries`: training of learned boundaries: `{"method": "unigram", "vocabulary": n}`, `{"method": "entropy", "window": k}`, or
  `{"method": "gumbel", "prior": α, "temperature": τ}`.
- `elbo`: LSLM. `prior`, probability of a boundary; `beta`, weight of the divergence in nats per position; `divergence`, of `each`
  boundary's probability or of their mean (`rate`); `costs`, whether the predictor gets the gradients of a boundary's immediate cost;
  `after`, update before which the prior draws the boundaries and the predictor learns nothing.
- `interleave`, `posterior_lr`: LSLM: k updates of the model, then one of the predictor; the predictor's learning rate.
- `keep_best`: keep and export the weights with the lowest validation loss, and restore them when the loss more than doubles.
- `valid_every_characters`, `valid_every_seconds`: interval of validation. `valid_characters`, `valid_pairs`: its size.
- `log_every_steps`, `save_every_seconds`: interval of lines in `log.jsonl`, and of writing `state.pt`.
"""

import json
from pathlib import Path

from .data import SPAN

MODEL = set("architecture family format normaliser training_length vocabulary".split())
# Keys of a recipe. EVERY is required, NEEDED is required for its family, OTHER is optional.
EVERY = set("adamw budget clip corpus log_every_steps precision save_every_seconds seed warmup_steps".split())
TEXT, PAIRS = set("batch_characters stages valid_characters".split()), set("batch_pairs valid_pairs".split())
NEEDED = {"hourglass": TEXT, "decoder": TEXT, "lslm": TEXT | {"elbo", "interleave", "posterior_lr"}, "pyramidion": PAIRS}
OTHER = set("average decay decay_share dropout keep_best muon valid_every_characters valid_every_seconds".split())
POSITIVE = TEXT - {"stages"} | PAIRS | set("clip log_every_steps posterior_lr save_every_seconds".split())
POSITIVE |= {"valid_every_characters", "valid_every_seconds"}
PARTS = {
    "average": {"every", "keep"},
    "adamw": {"betas", "eps", "lr", "weight_decay"},
    "muon": {"lr", "momentum", "steps", "weight_decay"},
    "elbo": {"beta", "costs", "divergence", "prior"},
}
WORDS = {"precision": ("bf16", "f32"), "decay": ("linear", "cosine", "none")}


def read(path, minutes=None, characters=None, seed=None):
    """Reads a configuration and applies the command line's overrides."""
    try:
        config = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    for part in ("model", "training"):
        if not isinstance(config, dict) or not isinstance(config.get(part), dict):
            raise ValueError(f"{path} has no object {part!r}")
    for unit, value in (("minutes", minutes), ("characters", characters)):
        if value is not None:
            config["training"]["budget"] = {unit: value}
    if seed is not None:
        config["training"]["seed"] = seed
    return config


def checked(config):
    """Checks a configuration and returns its recipe. Raises ValueError with the first mistake found."""
    model, recipe = config["model"], config["training"]
    family = model.get("family")
    if family not in NEEDED:
        raise ValueError(f"model.family is {family!r}, expected one of {', '.join(NEEDED)}")
    keys("model", model, MODEL | ({"generation"} if family == "pyramidion" else set()))
    needed = EVERY | NEEDED[family]
    if recipe.get("decay", "linear") == "linear":
        needed |= {"decay_share"}
    if "valid_every_characters" not in recipe:
        needed |= {"valid_every_seconds"}
    keys("training", recipe, needed, OTHER | ({"boundaries"} if family == "hourglass" else set()))
    for key, known in WORDS.items():
        if recipe.get(key, known[0]) not in known:
            raise ValueError(f"unknown {key} {recipe[key]!r}, expected {', '.join(known[:-1])} or {known[-1]}")
    if type(recipe["seed"]) is not int:
        raise ValueError(f"training.seed must be a whole number, not {recipe['seed']!r}")
    for key in POSITIVE & set(recipe):
        positive(f"training.{key}", recipe[key])
    for key, parts in PARTS.items():
        if key in recipe:
            keys(f"training.{key}", recipe[key], parts, {"after"} if key == "elbo" else frozenset())
    if "average" in recipe:
        positive("training.average", *recipe["average"].values())
        if recipe.get("keep_best") or type(recipe["average"]["every"]) is not int or recipe["average"]["keep"] >= 1:
            raise ValueError("training.average must have a whole `every` and `keep` below one, and excludes `keep_best`")
    if len(recipe["budget"] if isinstance(recipe["budget"], dict) else ()) != 1:
        raise ValueError(f'training.budget must be {{"minutes": m}} or {{"characters": n}}, not {recipe["budget"]!r}')
    keys("training.budget", recipe["budget"], set(), {"minutes", "characters"})
    positive("training.budget", *recipe["budget"].values())
    if not isinstance(recipe.get("stages", [{}]), list) or not recipe.get("stages", [{}]):
        raise ValueError("training.stages must be a list of at least one window length")
    before = 0
    for stage in recipe.get("stages", []):
        keys("a stage of training.stages", stage, {"until", "length"})
        positive("a stage's until", stage["until"])
        if stage["until"] <= before:
            raise ValueError(f"a stage's `until` must be greater than the previous stage's ({before}), not {stage['until']!r}")
        length, before = stage["length"], stage["until"]
        if type(length) is not int or length < 1 or (length % SPAN and SPAN % length):
            raise ValueError(f"a stage's length must divide {SPAN} or be a multiple of it, not {length!r}")
    return recipe


def positive(name, *values):
    for value in values:
        if type(value) not in (int, float) or not value > 0:
            raise ValueError(f"{name} must be a number above zero, not {value!r}")


def keys(part, found, needed, other=frozenset()):
    if not isinstance(found, dict):
        raise ValueError(f"{part} must be an object, not {found!r}")
    if missing := sorted(needed - set(found)):
        raise ValueError(f"{part} lacks keys: {', '.join(missing)}")
    if unknown := sorted(set(found) - needed - other):
        raise ValueError(f"{part} has unknown keys: {', '.join(unknown)}")
