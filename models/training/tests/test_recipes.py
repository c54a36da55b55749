"""The parts of the recipes by themselves: labels, spikes, the priors."""

import math
import tempfile
import unittest
from pathlib import Path

import torch

from training import subwords
from training.families.hourglass import binomial_loss, spikes
from training.layers import elbo


class Labels(unittest.TestCase):
    def test_a_piece_ends_with_its_last_character_the_last_with_the_space(self):
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
        # probabilities (p, 1 − p): the nearer to one half, the more entropy
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

    def test_a_rate_of_none_is_left_again(self):
        """However sure the predictor is that nothing ends, there is a gradient towards the prior."""
        logits = torch.full((4,), -40.0, requires_grad=True)
        elbo.rate(logits, 0.2).backward()
        self.assertTrue(bool((logits.grad < 0).all()))


if __name__ == "__main__":
    unittest.main()
