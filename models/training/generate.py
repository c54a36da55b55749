"""Continue a text with a checkpoint: `python -m training.generate --model FOLDER --prompt TEXT`.

For a look at what a model has learnt; it recomputes the window for each character. The server is for everything else.
"""

import argparse

import torch

from . import checkpoint


@torch.no_grad()
def continuation(model, config, prompt, characters, temperature, seed):
    """Temperature 0 takes the most likely character each time."""
    symbols, limit = config["vocabulary"]["symbols"], config["training_length"]
    generator = torch.Generator().manual_seed(seed)
    ids = [symbols.index(symbol) for symbol in prompt]
    for _ in range(characters):
        logits = model(torch.tensor([ids[-limit:]]))[0, -1]  # (symbols)
        if temperature:
            choice = torch.multinomial(torch.softmax(logits / temperature, 0), 1, generator=generator)
        else:
            choice = logits.argmax()
        ids.append(int(choice))
    return "".join(symbols[index] for index in ids)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--characters", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    model, config = checkpoint.load(arguments.model)
    if config["family"] not in ("hourglass", "decoder"):
        parser.error(f"this continues texts of the hourglass and decoder families; {config['family']} is the server's")
    print(continuation(model, config, arguments.prompt, arguments.characters, arguments.temperature, arguments.seed))


if __name__ == "__main__":
    main()
