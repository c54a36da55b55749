"""Tests of the learning curve's drawing. Needs no package."""

import json
import re
import tempfile
import unittest
from pathlib import Path

from training import curve


class Curve(unittest.TestCase):
    def drawn(self, entries):
        with tempfile.TemporaryDirectory() as folder:
            log, target = Path(folder) / "log", Path(folder) / "curve.svg"
            log.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
            curve.draw(log, target, "bpc", "3.9M parameters, seed 1")
            return target.read_text() if target.exists() else None

    def test_the_axes_have_round_ticks(self):
        entries = [{"characters": 6_037_000 * n // 10, "train_bpc": 4 - n / 5, "valid_bpc": 4.1 - n / 5} for n in range(1, 11)]
        drawn = self.drawn(entries)
        ticks = re.findall(r">(\d[\d.]*M?)</text>", drawn)
        self.assertEqual([tick for tick in ticks if tick.endswith("M")], ["0M", "2M", "4M", "6M"])
        for part in ("prefers-color-scheme: dark", "3.9M parameters, seed 1.", "does not begin at 0"):
            self.assertIn(part, drawn)

    def test_steps_are_round(self):
        steps = [curve.round_step(span, 3) for span in (36_200_000, 6_002_688, 10_003_316, 3_004_416)]
        self.assertEqual(steps, [1e7, 2e6, 2e6, 1e6])

    def test_repeated_updates_count_once(self):
        entries = [{"characters": count} for count in (1, 2, 3, 2, 3, 4)]
        self.assertEqual([entry["characters"] for entry in curve.effective(entries)], [1, 2, 3, 4])

    def test_a_log_without_validation_draws_nothing(self):
        self.assertIsNone(self.drawn([{"characters": 5, "train_bpc": 2.0}]))
