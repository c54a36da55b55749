"""Ships a complete run: `python -m training.card NAME --runs RUNS --data DATA` writes the model's folder.

The folder is `../NAME` for the default model, and otherwise `../compared/NAME`.

`cards/NAME.json` has the facts that no file of the run has: the run's name, the purpose of the model, its limits, and the runs
before it (`earlier`) if it continued from their weights. The folder receives
the checkpoint (with bf16 matrices, unless `matrices` in `cards/NAME.json` names another format), the learning curve, `card.json` with
all figures of the exported weights, and the model card, `README.md`. `--text` rewrites only `README.md`, from `card.json`. `--again`
measures the shipped weights again, without the run. `hourglass-whitespace-english` has a hand-written card (its `cards/NAME.json` has
no `run`), so the command writes only its `card.json`.

`card.json` also holds the results that `tests/weir/wire/other_calls.rs` expects from the server: for language models the bits per
character of a short text, for summarizers a summary.
"""

import argparse
import json
import math
import subprocess
import tempfile
from pathlib import Path

import torch

from . import card_text, checkpoint, data, evaluation, files, generate, unseen
from .command_line import one_line_errors
from .export import export

ABOUT = Path(__file__).parent / "cards"
MODELS = Path(__file__).parents[1]
COMPARED = MODELS / "compared"  # separate from the default model, which the server serves if no model is named
DEFAULT = card_text.DEFAULT
REPOSITORY = MODELS.parent
TEXT, DOCUMENT = "tests/golden/shipped/english.txt", "tests/golden/shipped/document.txt"
ROWS = 1  # rows into which a measured text is cut; figures for several rows are not comparable


@one_line_errors
def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = sorted(path.stem for path in ABOUT.glob("*.json"))
    parser.add_argument("name", choices=known, metavar="name", help="name of a file in training/cards and of the model's folder")
    parser.add_argument("--runs", nargs="+", help="folders of campaigns that may contain the run")
    parser.add_argument("--data", help="folder of the corpora's files")
    parser.add_argument("--out", type=Path, help="folder that receives the model's folder, instead of the default")
    parser.add_argument("--characters", type=int, help="characters of each split to read, from its beginning; default: all")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--again", action="store_true", help="measure the weights in the folder again; keeps the facts about the run")
    parser.add_argument("--weir", help="program that scores texts and writes the summaries of the test pairs; PyTorch takes an hour")
    parser.add_argument("--text", action="store_true", help="only rewrite README.md")
    arguments = parser.parse_args(argv)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    about = json.loads((ABOUT / f"{arguments.name}.json").read_text(encoding="utf-8"))
    folder = (arguments.out or (MODELS if arguments.name == DEFAULT else COMPARED)) / arguments.name
    if not arguments.text:
        if not arguments.data or ("run" in about and not arguments.runs and not arguments.again):
            parser.error("--data is required; a run also requires --runs or --again")
        card = make(about, folder, arguments)
        text = json.dumps(card, indent=2, ensure_ascii=False) + "\n"
        files.replace(folder / "card.json", text)
    if "run" in about:
        card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (folder / "README.md").write_text(card_text.markdown(about, card, config), encoding="utf-8")


def make(about, folder, arguments):
    """Returns all figures of a model. Exports the run into the model's folder first, if the model comes from a run."""
    card = {"name": folder.name, "shows": about["shows"], "scope": about["scope"]}
    if "run" in about:
        if arguments.again:
            card["run"] = json.loads((folder / "card.json").read_text(encoding="utf-8"))["run"]
        else:
            run = find(about["run"], arguments.runs)
            card["run"] = facts(run, arguments.data)
            if "start" in about:
                card["run"]["start"] = facts(find(about["start"], arguments.runs), arguments.data)
            exported = export(run, folder, about.get("matrices", "bf16"))
            if "best_step" in exported:
                card["run"]["best_step"] = exported["best_step"]
        if "earlier" in about:
            card["run"]["earlier"] = about["earlier"]
    model, config = checkpoint.load(folder)
    weights = folder / "model.safetensors"
    card.update(family=config["family"], bytes=weights.stat().st_size, sha256=checkpoint.sha256(weights))
    card["parameters"] = sum(tensor.numel() for tensor in model.parameters())
    if config["family"] == "pyramidion":
        return {**card, **summaries(model, config, folder, card["run"]["recipe"]["corpus"], arguments)}
    corpus = card["run"]["recipe"]["corpus"] if "run" in card else "english"
    card["bpc"] = measured(model, config, folder, corpus, arguments)
    if corpus == "cased":
        card["unseen"] = other_kinds(model, config, folder, arguments)
    text = (REPOSITORY / TEXT).read_text(encoding="utf-8")
    ids = data.encode(text, config["vocabulary"])
    served = lambda length, stride: evaluation.as_served(model, ids, stride, length)  # noqa: E731
    before = folder / "card.json"
    if arguments.again and "typing_errors" in (known := json.loads(before.read_text(encoding="utf-8"))):
        # measured with a server, by clients/python/tools/typing_errors.py
        card["typing_errors"] = known["typing_errors"]
    card["served"] = [
        {"text": TEXT, "length": length, "stride": stride, "bpc": served(length, stride)} for length, stride in about["scores"]
    ]
    if "prompt" in about:
        card["samples"] = samples(model, config, about["prompt"], about.get("temperatures", [0.8]))
    return card


def find(name, folders):
    for folder in folders:
        run = Path(folder) / name
        if (run / "state.pt").exists() and is_complete(torch.load(run / "state.pt", map_location="cpu")):
            return run
    raise SystemExit(f"no complete run {name} in the folders {' '.join(map(str, folders))}")


def is_complete(state):
    """Returns true if a run has spent its budget."""
    (unit, budget), done = next(iter(state["config"]["training"]["budget"].items())), state["progress"]
    return done["elapsed"] >= 60 * budget if unit == "minutes" else done["characters"] >= budget


def facts(run, texts):
    """Returns the facts about a run's training. A campaign also stores its number of workers."""
    state = torch.load(run / "state.pt", map_location="cpu")
    recipe, result = state["config"]["training"], run / "result.json"
    known = {"name": run.name, **{key: state["progress"][key] for key in ("step", "characters", "elapsed", "restored")}, "recipe": recipe}
    if result.exists():
        known["workers"] = json.loads(result.read_text(encoding="utf-8"))["workers"]
    if state["config"]["model"]["family"] == "pyramidion":
        from .summaries import read_pairs

        return {**known, "of": len(read_pairs(texts, recipe["corpus"], "train")), "drawn": state["place"]}
    vocabulary = state["config"]["model"]["vocabulary"]
    return {**known, "of": len(data.encode(data.read_text(texts, recipe["corpus"], "train"), vocabulary))}


def measured(model, config, folder, corpus, arguments):
    """Measures bits per character in one row, in windows of the training length, as `weir score --windowed` does.

    Each window is scored completely. There is also a figure with context for each scored symbol: of the last quarter of each window
    on the text of 27 symbols (arXiv 2211.09761's proportion; not for families with a `measure` method), and of the last half on raw text.
    """
    total, rows = config["training_length"], []
    with_context = {"english": [] if hasattr(model, "measure") else [("test", total // 4)], "cased": [("test", total // 2)]}
    for split, stride in [*with_context.get(corpus, []), ("test", total), ("valid", total)]:
        text = data.read_text(arguments.data, corpus, split)[: arguments.characters]
        ids = data.encode(text, config["vocabulary"])
        result = in_one_row(model, folder, text, ids, stride, total, arguments.weir)
        if hasattr(model, "text_nats"):
            result["as_scored"] = evaluation.as_served(model, ids, stride, total)
        rows.append({"split": split, "characters_of_split": len(ids), "stride": stride, "total": total, **result})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def in_one_row(model, folder, text, ids, stride, total, program):
    """Returns bits per symbol, as `weir score` computes them if `program` is given. Both ways give the same figure."""
    if program is None or hasattr(model, "measure"):
        return evaluation.measure(model, ids, stride, total, rows=ROWS)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "text.txt"
        file.write_text(text, encoding="utf-8")
        command = [program, "score", "--model", str(folder), "--file", str(file), "--windowed", f"{total},{stride}", "--json"]
        scored = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    bits = -sum(scored["logprobs"]) / scored["scored"] / math.log(2)
    # a model that does not pool has no shortening factor
    return {"bpc": bits, "scored": scored["scored"], "boundary_rate": 1 / (scored["shortening_factor"] or 1)}


def other_kinds(model, config, folder, arguments):
    """Measures text of other kinds (`training.unseen --corpus cased`) in one row, in windows of the training length."""
    total, rows, training = config["training_length"], [], data.read_text(arguments.data, "cased", "train")
    for name in unseen.NAMES["cased"]:
        text = data.read_text(arguments.data, f"cased-{name}", "test")[: arguments.characters]
        ids, shared = data.encode(text, config["vocabulary"]), unseen.shared(text, training)
        result = in_one_row(model, folder, text, ids, total, total, arguments.weir)
        rows.append({"text": name, "bytes": len(ids), "shared": shared, **result})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def samples(model, config, prompt, temperatures, characters=200):
    """Returns unselected samples. The end mark of latent segment models is disabled: in training it ends each chunk."""
    ignore_eos = config["family"] == "lslm"
    write = lambda choose: generate.continuation(model, config, prompt, characters, choose, ignore_eos)  # noqa: E731
    drawn = [{"temperature": value, "seed": 1, "text": write(generate.sampler(value, 1))} for value in temperatures]
    return {"prompt": prompt, "greedy": write(generate.greedy), "drawn": drawn}


def summaries(model, config, folder, corpus, arguments):
    """Measures ROUGE on the test pairs. Adds the first pair of each source with its summary, and the summary that the server must return."""
    from tokenizers import Tokenizer

    from . import summarize

    rouge, lines, settings = summarize.evaluate(folder, arguments.data, "test", corpus, program=arguments.weir)
    shown = {line["source"]: line for line in reversed(lines)}  # the first pair of each source
    tokens = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = summarize.written(model, config, tokens, (REPOSITORY / DOCUMENT).read_text(encoding="utf-8"), settings)
    served = [{"document": DOCUMENT, "ids": ids, "text": tokens.decode(ids, skip_special_tokens=True)}]
    return {"rouge": rouge, "generation": settings, "samples": [shown[source] for source in rouge], "served": served}


if __name__ == "__main__":
    main()
