"""Tests the card of a model that several runs trained, and of one whose typing errors are measured."""

import unittest

from training import card_text

BYTES = {"vocabulary": {"bytes": True}}


class TypingErrors(unittest.TestCase):
    def test_a_row_has_a_threshold(self):
        row = {"threshold": 11.5, "precision": 0.955, "recall": 0.7574}
        measured = {"passages": 40, "passage_bytes": 2000, "seed": 1, "words": 12854, "errors": 643, "thresholds": [row]}
        title, text, table = card_text.typing_errors(measured)
        self.assertEqual(title, "## Typing errors")
        self.assertIn("inserted 643 errors into their 12,854 words", text)
        self.assertEqual(table.splitlines()[2], "| 11.5 | 0.955 | 0.757 |")


class Chains(unittest.TestCase):
    def test_a_card_adds_up_the_runs_that_follow_one_another(self):
        recipe = {
            "batch_characters": 100, "adamw": {"lr": 0.1}, "precision": "f32", "warmup_steps": 1, "decay": "cosine", "clip": 1,
        }  # fmt: skip
        part = lambda seed, read: {  # noqa: E731
            "name": f"model-seed{seed}", "characters": read, "step": read // 100, "elapsed": 6.0 * read, "restored": 0, "of": 1000,
            "recipe": {**recipe, "budget": {"characters": read}},
        }  # fmt: skip
        alone, second = part(1, 500), {**part(2, 1500), "earlier": [{**part(1, 500), "budget": 490}]}
        read = lambda run: card_text.text_read({"run": run}, BYTES)  # noqa: E731
        self.assertEqual(read(alone), "Read 500 of 0.0M bytes.")
        self.assertEqual(read(second), "Read 500 + 1,500 = 2,000 of 0.0M bytes in 2 runs, each from the weights of the one before.")
        text = card_text.recipe({"run": second}, BYTES, "..")
        self.assertIn("5 and 15 updates of 100 bytes, seeds 1 and 2", text)
        self.assertIn("with budgets of 490 and 1500;", text)
        self.assertIn("@1`", card_text.recipe({"run": alone}, BYTES, ".."))


if __name__ == "__main__":
    unittest.main()
