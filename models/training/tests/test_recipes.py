"""Tests the checks of configurations, and parts of the recipes: labels, spikes and priors."""

import copy
import json
import math
import tempfile
import unittest
from pathlib import Path

import torch

from training import recipes, subwords
from training.families import build
from training.families.hourglass import binomial_loss, spikes
from training.layers import elbo


CONFIGS = [json.loads(path.read_text()) for path in sorted((Path(__file__).parents[1] / "configs").glob("*.json"))]


class Configurations(unittest.TestCase):
    def assert_rejected(self, config, message):
        with self.assertRaisesRegex(ValueError, message):
            recipes.checked(config)

    def test_configurations_of_the_repository_are_valid_and_minimal(self):
        for config in CONFIGS:
            self.assertIs(recipes.checked(config), config["training"])
            for part in ("model", "training"):
                for key in set(config[part]) - recipes.OTHER - {"boundaries"}:
                    short = copy.deepcopy(config)
                    del short[part][key]
                    self.assert_rejected(short, key)

    def test_unknown_keys_are_rejected(self):
        for config in CONFIGS:
            for part in ("model", "training"):
                more = copy.deepcopy(config)
                more[part]["stges"] = 1
                self.assert_rejected(more, f"{part} has unknown keys: stges")

    def test_values(self):
        wrong = {
            "precision": ["fp8"], "decay": ["cubic"], "seed": ["1", 1.5, None, True], "stages": [[], 1, [{"until": 1}], [{"until": 1, "length": 0}], [{"until": 1, "length": 384}],
                [{"until": 1, "length": 256.0}], [{"until": "1", "length": 256}], [{"until": 1, "length": 256}, {"until": 1, "length": 512}]],
            "adamw": [3, {"lr": 1}, {"lr": 1, "betas": [0, 1], "eps": 1, "weight_decay": 0, "ls": 1}], "muon": [3, {}],
            "average": [3, {}, {"every": 0, "keep": 0.9}, {"every": 1, "keep": 1}, {"every": 1.5, "keep": 0.9}], "valid_characters": [0, "1"], "valid_every_characters": [0], "log_every_steps": [0], "clip": [-1.0, None],
            "budget": [{}, 7, {"minutes": 0}, {"characters": -1}, {"hours": 1}, {"minutes": 1, "characters": 1}, {"minutes": "1"}],
        }  # fmt: skip
        for key, values in wrong.items():
            for value in values:
                config = copy.deepcopy(next(config for config in CONFIGS if "stages" in config["training"]))
                config["training"][key] = value
                self.assert_rejected(config, key if key != "stages" else "stage")

    def test_a_model_that_cannot_be_built(self):
        for config in CONFIGS:
            short = copy.deepcopy(config["model"])
            del short["architecture"]["heads" if "heads" in short["architecture"] else "token"]
            self.assertRaisesRegex(ValueError, "configuration key '(heads|token)' is missing", build, short)
        wrong = copy.deepcopy(CONFIGS[0]["model"])
        wrong["architecture"]["heads"] = "six"
        self.assertRaisesRegex(ValueError, "a configuration value has the wrong type", build, wrong)
        self.assertRaisesRegex(ValueError, "unknown family 'rnn', expected one of hourglass", build, {"family": "rnn"})

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.json"
            for text in ("", "{", "[]", '{"model": {}}', '{"model": [], "training": {}}'):
                path.write_text(text)
                self.assertRaisesRegex(ValueError, "config.json", recipes.read, path)
            path.write_text('{"model": {}, "training": {"budget": {"minutes": 3}, "seed": 1}}')
            self.assertEqual(recipes.read(path, characters=0, seed=0)["training"], {"budget": {"characters": 0}, "seed": 0})


class Labels(unittest.TestCase):
    def test_pieces_end_with_a_character_and_words_with_the_space(self):
        pieces = {"unable": ["\u2581un", "able"], "cat": ["\u2581cat"], "dogs": ["\u2581", "dog", "s"]}
        text = "unable cat  dogs "
        labels = subwords.labels(text, pieces.__getitem__)
        expected = "01" + "00001" + "0001" + "1" + "001" + "01"
        self.assertEqual("".join(map(str, labels)), expected)

    def test_the_tokenizer_is_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "subwords.model"
            text = "reading writing reader writer read write walking walker walk talk talked talking " * 20
            first = subwords.tokenizer(text, 30, path).encode("reading", out_type=str)
            self.assertEqual("".join(first).lstrip(subwords.MARK), "reading")
            self.assertEqual([path.name], [entry.name for entry in path.parent.iterdir()])
            self.assertEqual(subwords.tokenizer("", 30, path).encode("reading", out_type=str), first)


class Spikes(unittest.TestCase):
    def test_above_the_two_before(self):
        # probabilities (p, 1 − p): entropy is higher the closer p is to one half
        p = torch.tensor([[0.9, 0.8, 0.85, 0.7, 0.75, 0.6, 0.6]])
        logits = torch.stack([p.log(), (1 - p).log()], dim=-1)
        self.assertEqual(spikes(logits, 2).int().tolist(), [[1, 1, 0, 1, 0, 1, 0]])
        self.assertEqual(spikes(logits, 1).int().tolist(), [[1, 1, 0, 1, 0, 1, 0]])
        self.assertEqual(spikes(logits[:, [0, 3, 5, 3, 4, 3]], 2).int().tolist(), [[1, 1, 1, 0, 0, 0]])


class Priors(unittest.TestCase):
    def test_binomial(self):
        rows = torch.tensor([[1.0, 0, 0, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0, 0, 0]])
        chances = [math.comb(8, k) * 0.2**k * 0.8 ** (8 - k) for k in (2, 3)]
        expected = -sum(map(math.log, chances)) / 2 / 8
        self.assertAlmostEqual(float(binomial_loss(rows, 0.2)), expected, places=5)

    def test_divergence(self):
        logits = torch.tensor([[0.0, 2.0]])
        p = torch.sigmoid(logits)
        expected = (p * (p / 0.7).log() + (1 - p) * ((1 - p) / 0.3).log()).mean()
        self.assertAlmostEqual(float(elbo.each(logits, 0.7)), float(expected), places=5)
        mean = float(p.mean())
        expected = mean * math.log(mean / 0.7) + (1 - mean) * math.log((1 - mean) / 0.3)
        self.assertAlmostEqual(float(elbo.rate(logits, 0.7)), expected, places=5)

    def test_rate_of_zero_has_a_gradient(self):
        """A predictor that is certain of no boundaries still has a gradient towards the prior."""
        logits = torch.full((4,), -40.0, requires_grad=True)
        elbo.rate(logits, 0.2).backward()
        self.assertTrue(bool((logits.grad < 0).all()))


if __name__ == "__main__":
    unittest.main()
