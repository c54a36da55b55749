"""Measures bits per character of a checkpoint: `python -m training.evaluate --model FOLDER --data DIR --split valid`.

Each window of up to `--total` characters scores `--stride` characters; both default to the training length. Choose settings on the
validation split, and report the test split once. The command reads the whole file except a remainder that does not fill the rows.

For extrapolation (LeX, tables 2 and 5), `--lengths 256,512,1024` measures adjacent windows of each length without overlap.
`--windows full,blockwise:256,sliding:256` replaces the checkpoint's own attention window.
"""

import argparse
import json
import sys
import time

import torch

from . import checkpoint, data, evaluation
from .command_line import one_line_errors

BATCH = 8192  # characters of a batch when lengths are compared


def parse_window(text):
    """Converts `full`, `blockwise:LENGTH` or `sliding:KEYS` into the form of a checkpoint."""
    kind, _, size = text.partition(":")
    if kind == "full" and not size:
        return "full"
    keys = {"blockwise": "length", "sliding": "keys"}
    if kind not in keys or not size.isdigit() or int(size) < 2:
        raise argparse.ArgumentTypeError(f"{text!r}: expected full, blockwise:LENGTH or sliding:KEYS")
    return {kind: {keys[kind]: int(size)}}


def by_length(model, ids, lengths, windows):
    """Measures a decoder by window and length; returns [{window, length, bpc, …}]. `windows` is [(name, window)]."""
    results = []
    for name, window in windows:
        model.window = window
        for length in lengths:
            rows = max(1, min(BATCH // length, len(ids) // length))
            results.append({"window": name, "length": length, **evaluation.measure(model, ids, length, length, rows)})
            print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    return results


@one_line_errors
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="folder of a weir checkpoint")
    parser.add_argument("--data", required=True, help="folder of CORPUS.SPLIT.txt")
    parser.add_argument("--corpus", default="english")
    parser.add_argument("--split", choices=("valid", "test"), default="valid")
    parser.add_argument("--stride", type=int, help="characters scored per window")
    parser.add_argument("--total", type=int, help="longest window")
    parser.add_argument("--rows", type=int, default=16, help="rows into which the text is cut; they run in one batch")
    parser.add_argument("--characters", type=int, help="characters of the split to read, from its beginning; default: all")
    parser.add_argument("--lengths", type=lambda text: [int(part) for part in text.split(",")], help="window lengths to compare (decoders only)")
    parser.add_argument("--windows", default="", help="with --lengths: attention windows to compare; default: the checkpoint's")
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    model, config = checkpoint.load(arguments.model)
    if config["family"] == "pyramidion":
        parser.error("this command measures language models; use training.summarize for summarizers")
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    text = data.read_text(arguments.data, arguments.corpus, arguments.split)[: arguments.characters]
    ids = data.encode(text, config["vocabulary"])
    started = time.monotonic()
    if arguments.lengths:
        if config["family"] != "decoder":
            parser.error(f"--lengths is for the decoder family, not {config['family']}")
        names = [name for name in arguments.windows.split(",") if name]
        windows = [(name, parse_window(name)) for name in names] or [("own", config["architecture"]["window"])]
        print(json.dumps(by_length(model, ids, arguments.lengths, windows), indent=2))
        return
    total = arguments.total or config["training_length"]
    stride = arguments.stride or total
    result = evaluation.measure(model, ids, stride, total, arguments.rows, _show)
    result.update(split=arguments.split, characters=len(ids), stride=stride, total=total, rows=arguments.rows)
    rate = result["boundary_rate"]  # 0: no segment ended
    result.update(shortening_factor=1 / rate if rate else None, seconds=round(time.monotonic() - started, 1))
    print(json.dumps(result, indent=2))


def _show(done, total):
    if sys.stderr.isatty() or done >= total:
        print(f"\r{100 * done // total} %", end="\n" if done >= total else "", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
