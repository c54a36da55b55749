"""Compares the rows of n-grams with a plain loop, and hourglasses with n-grams with their golden data."""

import unittest

import torch

from training import checkpoint, safetensors_file
from training.layers.ngrams import Ngrams, ngram_rows
from training.tests import golden


def plain_row(ids, position, size, rows):
    """Returns the row of the n-gram that ends at a position; `ids` is a list."""
    key = 0
    for back in range(size):
        symbol = ids[position - back] if position >= back else 0
        key = (key * 1000003 + symbol + 1) % 2147483647
    return key % rows


class Rows(unittest.TestCase):
    def test_agree_with_a_plain_loop(self):
        torch.manual_seed(1)
        for length in (1, 2, 40):
            ids = torch.randint(0, 256, (3, length))
            for size, rows in ((2, 7), (3, 3840), (5, 101), (16, 2**24)):
                expected = [[plain_row(text, position, size, rows) for position in range(length)] for text in ids.tolist()]
                self.assertEqual(ngram_rows(ids, size, rows).tolist(), expected, (length, size, rows))

    def test_large_ids_do_not_overflow(self):
        ids = torch.full((1, 20), 1114111)
        self.assertEqual(ngram_rows(ids, 16, 2**24).tolist()[0][19], plain_row([1114111] * 20, 19, 16, 2**24))

    def test_a_position_gets_the_sum_of_its_rows(self):
        torch.manual_seed(2)
        sizes, rows, ids = [2, 4], 11, torch.randint(0, 5, (2, 9))
        ngrams = Ngrams({"sizes": sizes, "rows": rows}, 6)
        self.assertEqual(list(ngrams.state_dict()), ["2.weight", "4.weight"])
        actual = ngrams(ids)
        for text, vectors in zip(ids.tolist(), actual):
            for position, vector in enumerate(vectors):
                parts = [ngrams[str(size)].weight[plain_row(text, position, size, rows)] for size in sizes]
                self.assertTrue(torch.equal(vector, parts[0] + parts[1]))


class NgramsGolden(golden.GoldenTest):
    def check(self, case):
        model, _ = checkpoint.load(case)
        expected = safetensors_file.read(case / "golden.safetensors")
        with torch.no_grad():
            logits = model(expected["ids"].long().unsqueeze(0))[0, expected["positions"].long()]
        self.assert_near(logits, expected["logits"], 2e-5, "logits")


golden.add_cases(NgramsGolden, golden.cases("ngrams"))

if __name__ == "__main__":
    unittest.main()
