"""A configuration: `model`, as the checkpoint's config.json will say it, and `training`, the recipe.

Hours may pass between a mistake in it and the moment when something stumbles over it, so it is looked through before the
first step: what is needed must be there, and what nothing reads is refused.
"""

import json
from pathlib import Path

MODEL = set("architecture family format normaliser training_length vocabulary".split())
# Keys of a recipe; README.md tells what each means. Needed by all, and by these families; and what may be left out.
EVERY = set("adamw budget clip corpus log_every_steps precision save_every_seconds seed warmup_steps".split())
TEXT, PAIRS = set("batch_characters stages valid_characters".split()), set("batch_pairs valid_pairs".split())
NEEDED = {"hourglass": TEXT, "decoder": TEXT, "lslm": TEXT | {"elbo", "interleave", "posterior_lr"}, "pyramidion": PAIRS}
OTHER = set("decay decay_share dropout keep_best muon valid_every_characters valid_every_seconds".split())
WORDS = {"precision": ("bf16", "f32"), "decay": ("linear", "cosine", "none")}


def read(path, minutes=None, characters=None, seed=None):
    """A configuration with what the command line overrides."""
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
    """The recipe of a configuration without obvious mistakes; ValueError names the first one of another."""
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
    if not isinstance(recipe["adamw"], dict):
        raise ValueError(f"training.adamw must be an object, not {recipe['adamw']!r}")
    if not amount(recipe["budget"]) > 0:
        budget = '{"minutes": m} or {"characters": n}, above zero'
        raise ValueError(f"training.budget must be {budget}, not {recipe['budget']!r}")
    if "stages" in recipe and not recipe["stages"]:
        raise ValueError("training.stages is empty: at least one window length is needed")
    return recipe


def amount(budget):
    """Of minutes or characters; zero of what is no budget."""
    if isinstance(budget, dict) and list(budget) in (["minutes"], ["characters"]):
        (value,) = budget.values()
        return value if type(value) in (int, float) else 0
    return 0


def keys(part, found, needed, other=frozenset()):
    if missing := sorted(needed - set(found)):
        raise ValueError(f"{part} lacks keys: {', '.join(missing)}")
    if unknown := sorted(set(found) - needed - other):
        raise ValueError(f"{part} has unknown keys: {', '.join(unknown)}")
