"""Continues a text with a checkpoint: `python -m training.generate --model FOLDER --prompt TEXT`.

The command serves for samples: it computes the whole prefix again for each character. The server is fast.
"""

import argparse

import torch

from . import checkpoint, data, segments
from .command_line import one_line_errors


@torch.no_grad()
def continuation(model, config, prompt, count, choose, ignore_eos=False):
    """Returns the prompt and `count` symbols, or fewer if the model ends its text. `choose` picks an id from logits."""
    vocabulary, limit = config["vocabulary"], config["training_length"]
    ids = data.encode(prompt, vocabulary).tolist()
    if config["family"] == "lslm":
        picks, _ = segments.write(model, ids, count, choose, ignore_eos)
        marks = (model.marks["segment_end"], model.marks["end"])
        return prompt + data.decode([pick for pick in picks if pick not in marks], vocabulary)
    written, end = [], vocabulary.get("end")
    for _ in range(count):
        logits = model(torch.tensor([(ids + written)[-limit:]]))[0, -1]
        if ignore_eos and end is not None:
            logits[end] = -torch.inf
        symbol = choose(logits)
        if symbol == end:
            break
        written.append(symbol)
    return prompt + data.decode(written, vocabulary)


def greedy(logits):
    return int(logits.argmax())


def sampler(temperature, seed):
    """Returns a `choose` function for `continuation`; at temperature 0 it picks the most likely symbol."""
    if not temperature:
        return greedy
    generator = torch.Generator().manual_seed(seed)
    return lambda logits: int(torch.multinomial(torch.softmax(logits / temperature, 0), 1, generator=generator))


@one_line_errors
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--characters", type=int, default=200, help="number of characters, or of bytes for models over bytes")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ignore-eos", action="store_true", help="never generate the mark or byte that ends a text")
    arguments = parser.parse_args()
    model, config = checkpoint.load(arguments.model)
    if config["family"] == "pyramidion":
        parser.error("this command continues texts; use training.summarize for summaries")
    choose = sampler(arguments.temperature, arguments.seed)
    print(continuation(model, config, arguments.prompt, arguments.characters, choose, arguments.ignore_eos))


if __name__ == "__main__":
    main()
