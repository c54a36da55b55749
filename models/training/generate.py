"""Continue a text with a checkpoint: `python -m training.generate --model FOLDER --prompt TEXT`.

For a look at what a model has learnt; it computes everything again for each character. The server is for everything else.
"""

import argparse

import torch

from . import checkpoint, data, segments
from .plainly import plainly


@torch.no_grad()
def continuation(model, config, prompt, count, choose, ignore_eos=False):
    """Returns the prompt and `count` symbols, or fewer where the model ends its text. `choose` picks an id by logits."""
    vocabulary, limit = config["vocabulary"], config["training_length"]
    ids = data.encode(prompt, vocabulary).tolist()
    if config["family"] == "lslm":
        picks, _ = segments.write(model, ids, count, choose, ignore_eos)
        marks = (model.marks["segment_end"], model.marks["end"])
        return prompt + data.decode([pick for pick in picks if pick not in marks], vocabulary)
    written = []
    for _ in range(count):
        written.append(choose(model(torch.tensor([(ids + written)[-limit:]]))[0, -1]))
    return prompt + data.decode(written, vocabulary)


def greedy(logits):
    return int(logits.argmax())


def sampler(temperature, seed):
    """Returns a `choose` function for `continuation`; at temperature 0 it picks the most likely symbol."""
    if not temperature:
        return greedy
    generator = torch.Generator().manual_seed(seed)
    return lambda logits: int(torch.multinomial(torch.softmax(logits / temperature, 0), 1, generator=generator))


@plainly
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--characters", type=int, default=200, help="or bytes, where the model's symbols are bytes")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ignore-eos", action="store_true", help="go on where a latent segment model would end its text")
    arguments = parser.parse_args()
    model, config = checkpoint.load(arguments.model)
    if config["family"] == "pyramidion":
        parser.error("this continues texts; summaries are training.summarize's")
    choose = sampler(arguments.temperature, arguments.seed)
    print(continuation(model, config, arguments.prompt, arguments.characters, choose, arguments.ignore_eos))


if __name__ == "__main__":
    main()
