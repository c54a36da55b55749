"""Makes the golden data of hourglasses with n-grams: `python -m training.tests.ngrams_golden FOLDER`, from `models/`.

Each case is a checkpoint with random weights, and `golden.safetensors`: ids, and the logits at some positions. The first positions have
n-grams that begin before the text.
"""

import argparse
from pathlib import Path

import torch

from training import checkpoint, safetensors_file
from training.families import build

LENGTH = 96
POSITIONS = [0, 1, 2, 3, 4, 15, 16, 47, 63, 64, 95]
LETTERS = [" ", *"abcdefghijklmnop"]
SHAPE = {"dim": 16, "heads": 2, "head_dim": 8, "feed_forward": 32, "activation": "gelu", "layer_norm_eps": 1e-5}
BLOCKS = {"blockwise": {"length": 32}}
CASES = {
    "pooled": {
        "vocabulary": {"bytes": True},
        "architecture": {
            "layers": {"pre": 1, "middle": 1, "post": 1},
            "ngrams": {"sizes": [3, 4, 5], "rows": 40},
            "pooling": "mean",
            "boundaries": {"kind": "whitespace", "symbol": " \n"},
        },
    },
    "vanilla": {
        "vocabulary": {"symbols": LETTERS},
        "architecture": {"layers": {"pre": 2}, "ngrams": {"sizes": [2, 7], "rows": 29}, "boundaries": {"kind": "none"}},
    },
}


def config(case):
    pooled = "pooling" in CASES[case]["architecture"]
    windows = {"window": BLOCKS, **({"middle_window": {"blockwise": {"length": 8}}} if pooled else {})}
    architecture = {**SHAPE, "position": "transformer-xl", **windows, **CASES[case]["architecture"]}
    return {"format": "weir/1", "family": "hourglass", "normaliser": "none", "training_length": 64, **CASES[case], "architecture": architecture}


def ids(settings, generator):
    """Returns ids (LENGTH), about one in five a space."""
    alphabet = torch.arange(256) if "bytes" in settings["vocabulary"] else torch.arange(len(LETTERS))
    space = ord(" ") if len(alphabet) == 256 else 0
    drawn = alphabet[torch.randint(len(alphabet), (LENGTH,), generator=generator)]
    return torch.where(torch.rand(LENGTH, generator=generator) < 0.2, space, drawn)


def make(folder, case, seed):
    settings = config(case)
    generator = torch.Generator().manual_seed(seed)
    model = build(settings).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # Large weights, so that every part shows in the logits.
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.3 + (1.0 if name.endswith("norm.weight") else 0.0))
        text = ids(settings, generator)
        logits = model(text.unsqueeze(0))[0, POSITIONS]  # (positions, V)
    checkpoint.save(Path(folder) / case, settings, model.state_dict())
    golden = {"ids": text, "positions": torch.tensor(POSITIONS), "logits": logits}
    safetensors_file.write(Path(folder) / case / "golden.safetensors", golden)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    folder = parser.parse_args().folder
    for seed, case in enumerate(CASES):
        make(folder, case, seed)


if __name__ == "__main__":
    main()
