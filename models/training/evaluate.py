"""Bits per character of a checkpoint: `python -m training.evaluate --model FOLDER --data DIR --split valid`.

`--stride` characters are scored per window of up to `--total` characters; both default to the training length. Choose on the
validation split, report the test split once. The whole file is read, but for the rest that does not fill the rows.
"""

import argparse
import json
import sys
import time

import torch

from . import checkpoint, data, evaluation


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="folder of a weir checkpoint")
    parser.add_argument("--data", required=True, help="folder of CORPUS.SPLIT.txt")
    parser.add_argument("--corpus", default="english")
    parser.add_argument("--split", choices=("valid", "test"), default="valid")
    parser.add_argument("--stride", type=int, help="characters scored per window")
    parser.add_argument("--total", type=int, help="longest window")
    parser.add_argument("--rows", type=int, default=16, help="rows the text is cut into, run side by side")
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    model, config = checkpoint.load(arguments.model)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    ids = data.encode(data.read_text(arguments.data, arguments.corpus, arguments.split), config["vocabulary"])
    total = arguments.total or config["training_length"]
    stride = arguments.stride or total
    began = time.monotonic()
    result = evaluation.measure(model, ids, stride, total, arguments.rows, _show)
    result.update(split=arguments.split, characters=len(ids), stride=stride, total=total, rows=arguments.rows)
    result.update(shortening_factor=1 / result["boundary_rate"], seconds=round(time.monotonic() - began, 1))
    print(json.dumps(result, indent=2))


def _show(done, of):
    if sys.stderr.isatty() or done >= of:
        print(f"\r{100 * done // of} %", end="\n" if done >= of else "", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
