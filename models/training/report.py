"""Measures new complete runs and stores the figures: `python -m training.report --runs RUNS … --data DATA`.

The figures are in `models/results.json` (`training/results.py`). Then the command fills the pages, as `python -m training.figures` does.
`--speeds FOLDER` reads the output of `weir bench decode --json` from FOLDER/CONFIGURATION.json.
"""

import argparse
import os

import torch

from . import figures, results
from .command_line import one_line_errors


@one_line_errors
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", nargs="+", default=[], help="folders of campaigns")
    parser.add_argument("--data", help="folder of the corpora's files")
    parser.add_argument("--speeds", help="folder of CONFIGURATION.json files from `weir bench decode --json`")
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    found = results.read()
    if arguments.runs:
        if not arguments.data:
            parser.error("--runs needs --data")
        if absent := [folder for folder in arguments.runs if not os.path.isdir(folder)]:
            parser.error(f"no such folder: {', '.join(absent)}")
        results.gather(found, arguments.runs, arguments.data, results.cards(), results.write)
    if arguments.speeds:
        results.speeds(found, arguments.speeds)
    results.write(found)
    figures.write()


if __name__ == "__main__":
    main()
