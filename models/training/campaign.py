"""Trains many runs within a time limit: `python -m training.campaign --data DIR --out RUNS --seconds N CONFIG[@SEED] …`.

A campaign trains runs one after the other; each has a folder RUNS/NAME-seedS. The campaign skips complete runs and resumes an
incomplete run. After the time limit or a kill, the next call continues at the same point. When the budget of a run is spent, the
campaign exports the run to RUNS/NAME-seedS/checkpoint, measures it, and writes the figures for the tables to
RUNS/NAME-seedS/result.json. `--status` only prints the progress of each run.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch

from . import checkpoint, data, evaluation, recipes
from .export import export
from .run import Run
from .train import device, train


def parse_run(text):
    """Parses CONFIG[@SEED] into (configuration's path, seed or None)."""
    path, _, seed = text.partition("@")
    if not Path(path).is_file():
        raise ValueError(f"{path}: no such configuration")
    if seed and not seed.isdecimal():
        raise ValueError(f"{text}: the seed must be a whole number")
    return path, int(seed) if seed else None


def name_of(path, config):
    return f"{Path(path).stem}-seed{config['training']['seed']}"


def status(folder):
    """Returns a description of a run's progress; needs no corpus."""
    if (folder / "result.json").exists():
        return "complete"
    log = folder / "log.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True) if log.exists() else []
    complete = [line for line in lines if line.endswith("\n")]  # a kill may have cut the last line short
    return f"started: {json.loads(complete[-1])['characters'] / 1e6:.2f}M symbols" if complete else "not started"


def short_of(config, folder):
    """Returns an error message if the run is complete with a smaller budget, otherwise None."""
    budget = config["training"]["budget"].get("characters", 0)
    if not (folder / "result.json").exists():
        return None
    done = json.loads((folder / "result.json").read_text(encoding="utf-8"))["characters"]
    return f"{folder}: the run is complete with {done:,} symbols, expected {budget:,.0f}; use another --out" if done < budget else None


def conduct(run, config, folder, arguments, deadline):
    """Trains until the deadline, then exports and measures a complete run. Returns whether the run is complete."""
    if not train(run, deadline):
        return False
    facts = export(folder, folder / "checkpoint")
    about = {"seed": config["training"]["seed"], "workers": arguments.workers}
    result = {"name": folder.name, **facts, **about, **measured(folder, config, arguments, run)}
    partial = folder / "result.json.partial"
    partial.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, folder / "result.json")
    return True


def measured(folder, config, arguments, run):
    """Measures a complete run.

    A language model gets bits per character of the whole file; each window is scored in its last quarter (arXiv 2211.09761's
    proportion). A summarizer gets the validation loss; `training.summarize` measures ROUGE.
    """
    model, model_config = checkpoint.load(folder / "checkpoint")
    model.to(device())
    if run.task.unit != "bpc":
        return {f"valid_{name}": value for name, value in run.task.validate(model).items()}
    text = data.read_text(arguments.data, config["training"]["corpus"], arguments.split)[: arguments.characters]
    total = model_config["training_length"]
    result = evaluation.measure(model, data.encode(text, model_config["vocabulary"]), max(1, total // 4), total)
    return {"split": arguments.split, "characters_of_split": len(text), **result}


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", metavar="CONFIG[@SEED]")
    parser.add_argument("--data", required=True, help="folder of the corpora's files")
    parser.add_argument("--out", required=True, help="folder of the runs' folders")
    parser.add_argument("--seconds", type=float, help="time limit; the campaign may stop in the middle of a run")
    parser.add_argument("--budget", type=float, help="symbols read by each run, instead of the configurations'")
    parser.add_argument("--workers", type=int, default=1, help="threads that share a batch")
    parser.add_argument("--threads", type=int, help="PyTorch's own threads")
    parser.add_argument("--split", choices=("valid", "test"), default="valid", help="split on which complete runs are measured")
    parser.add_argument("--characters", type=int, help="characters of the split to read, from its beginning; default: all")
    parser.add_argument("--status", action="store_true", help="print the progress of each run and exit")
    arguments = parser.parse_args(argv)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    deadline = time.monotonic() + arguments.seconds if arguments.seconds else None
    try:
        runs = [parse_run(text) for text in arguments.runs]
        configs = [recipes.read(path, characters=arguments.budget, seed=seed) for path, seed in runs]
        for config in configs:
            recipes.checked(config)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    for (path, _), config in zip(runs, configs):
        folder = Path(arguments.out) / name_of(path, config)
        if not arguments.status and (lacking := short_of(config, folder)):
            parser.error(lacking)
        if not arguments.status and not (folder / "result.json").exists():
            if deadline is not None and time.monotonic() >= deadline:
                break
            try:
                run = Run(config, arguments.data, folder, device(), arguments.workers)
                run.resume()
            except (OSError, ValueError) as error:
                parser.error(str(error))
            conduct(run, config, folder, arguments, deadline)
        print(f"{folder.name}: {status(folder)}", flush=True)


if __name__ == "__main__":
    main()
