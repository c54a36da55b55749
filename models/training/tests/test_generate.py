"""Tests where generated samples end."""

import unittest

import torch

from training import generate

BYTES = {"family": "hourglass", "vocabulary": {"bytes": True, "end": 3}, "training_length": 8}


class Samples(unittest.TestCase):
    def test_an_end_byte_ends_a_sample(self):
        def model(ids):
            """Prefers A after x, then the end, then B."""
            logits = torch.zeros(1, ids.shape[1], 256)
            logits[0, -1, [65, 66] if ids[0, -1] == ord("x") else [3, 66]] = torch.tensor([2.0, 1.0])
            return logits

        sample = lambda ignore_eos: generate.continuation(model, BYTES, "x", 3, generate.greedy, ignore_eos)  # noqa: E731
        self.assertEqual([sample(False), sample(True)], ["xA", "xABB"])


if __name__ == "__main__":
    unittest.main()
