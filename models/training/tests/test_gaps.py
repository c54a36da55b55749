"""Tests the pairs of the summarizer of long documents: sentences, passages, their choice, and what held-out text removes."""

import json
import random
import tempfile
import unittest
from pathlib import Path

from training import cased, gaps


class Gaps(unittest.TestCase):
    def setUp(self):
        self.chance = random.Random(6)

    def words(self, count):
        return ["".join(self.chance.choices("abcdefgh", k=8)) for _ in range(count)]

    def sentence(self, count=15):
        return " ".join(self.words(count)).capitalize() + "."

    def test_sentences(self):
        text = 'He came\nat 3.5 km. "Why?" She asked (so). (No) reply\n\nChapter 2\n\nEnd'
        expected = ["He came at 3.5 km.", '"Why?"', "She asked (so).", "(No) reply", "Chapter 2", "End"]
        self.assertEqual(gaps.sentences(text), expected)

    def test_passages_lose_no_sentence_and_keep_to_their_lengths(self):
        texts = [" ".join(self.sentence() for _ in range(400)), "Too short."]
        cut = list(gaps.passages(texts, random.Random(1)))
        self.assertGreater(len(cut), 3)
        read = [sentence for passage in cut for sentence in passage]
        self.assertEqual(read, gaps.sentences(texts[0])[: len(read)])
        self.assertGreater(len(read), 390)
        lengths = [len(" ".join(passage)) for passage in cut]
        self.assertTrue(all(gaps.SHORTEST - 1 <= length <= gaps.LONGEST for length in lengths))
        self.assertGreater(max(lengths), 2 * min(lengths))

    def test_gap_sentences_share_most_words_with_the_rest(self):
        topic = self.words(12)
        passage = [self.sentence() for _ in range(20)]
        for index in (3, 9, 14):
            passage[index] = " ".join(self.chance.sample(topic, 8)).capitalize() + "."
        passage[5] = "To be."  # too short, though nothing is more frequent
        self.assertEqual(gaps.gap_sentences(passage), [3, 9, 14])
        self.assertEqual(gaps.gap_sentences(["To be.", "To be."]), [])

    def test_a_summary_has_at_most_a_hundred_words(self):
        words = self.words(10)
        passage = [" ".join(words * 4) + "." for _ in range(9)]
        self.assertEqual(len(gaps.gap_sentences(passage)), 2)
        self.assertEqual(gaps.gap_sentences([" ".join(words * 11) for _ in range(9)]), [])

    def test_half_of_the_passages_keep_their_summary(self):
        texts = [" ".join(self.sentence() for _ in range(12)) for _ in range(60)]
        pairs = list(gaps.pairs_of(texts, "s", seed=1))
        self.assertEqual(pairs, list(gaps.pairs_of(texts, "s", seed=1)))
        kept = [pair for pair in pairs if pair["source"] == "s-copy"]
        self.assertTrue(15 < len(kept) < 45)
        for pair in pairs:
            inside = [sentence in pair["document"] for sentence in gaps.sentences(pair["summary"])]
            self.assertEqual(set(inside), {pair["source"] == "s-copy"})

    def test_a_tenth_of_the_shorter_text_is_shared_text(self):
        common = self.words(30)  # 19 runs
        held = gaps.Held([" ".join(self.words(100) + common + self.words(70))])
        near = lambda count: " ".join(self.words(count) + common)  # noqa: E731
        self.assertTrue(held.shares(near(100)))
        self.assertFalse(held.shares(" ".join(self.words(300) + common[:24])))  # 13 of 189 runs
        self.assertTrue(held.shares(near(3000)))  # the held text is the shorter one
        self.assertTrue(held.shares(", ".join(common).upper()))
        self.assertFalse(held.shares(" ".join(common[:11])))

    def test_boilerplate_is_not_shared_text(self):
        footer, own = self.words(30), self.words(30)
        pages = [" ".join(self.words(40) + footer) for _ in range(gaps.COMMON + 1)] + [" ".join(own)] * gaps.COMMON
        held = gaps.Held([" ".join(own + footer)], gaps.boilerplate(pages))
        self.assertEqual([held.shares(page) for page in pages], [False] * (gaps.COMMON + 1) + [True] * gaps.COMMON)

    def test_files(self):
        texts = [" ".join(self.sentence() for _ in range(12)) for _ in range(30)]
        pair = lambda document, summary="x": {"source": "s", "document": document, "summary": summary}  # noqa: E731
        splits = {
            "test": [pair(texts[0], "five words")],
            "valid": [pair("short", texts[1])],
            "train": [pair(texts[0]), pair("a", texts[1]), pair(texts[-1]), pair(texts[5], "five words")],
        }
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for name, part in (("train", texts[:20]), ("valid", texts[20:25]), ("test", texts[25:])):
                (root / f"cased.{name}.txt").write_text("".join(text + cased.MARK for text in part))
                (root / f"summaries.{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in splits[name]))
            figures = gaps.build(root, root)
            read = lambda name: [json.loads(line) for line in (root / f"{name}.jsonl").read_text().splitlines()]  # noqa: E731
            self.assertEqual(read("long.train"), splits["train"][3:])
            self.assertEqual((read("long.test"), read("long.valid")), (splits["test"], splits["valid"]))
            self.assertEqual((len(read("gaps.train")), len(read("gaps.valid"))), (18, 5))
        self.assertEqual(figures["long"], {"s": {"pairs": 4, "kept": 1}})
        self.assertEqual(sum(row["pairs"] - row["kept"] for row in figures["gaps_train"].values()), 2)


if __name__ == "__main__":
    unittest.main()
