"""Tests the figures of README.md and docs/benchmarks.md."""

import shutil
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from training import figures


class Figures(unittest.TestCase):
    def test_the_pages_have_the_figures_of_their_data(self):
        with tempfile.TemporaryDirectory() as scratch:
            (Path(scratch) / "docs").mkdir()
            for page in figures.PAGES:
                shutil.copy(figures.REPOSITORY / page, Path(scratch) / page)
            with mock.patch.object(sys, "argv", ["figures", "--out", scratch]):
                figures.main()
            for name in (*figures.PAGES, "docs/pooling-light.svg", "docs/pooling-dark.svg"):
                made = (Path(scratch) / name).read_text(encoding="utf-8")
                self.assertEqual(made, (figures.REPOSITORY / name).read_text(encoding="utf-8"), f"{name}: run python -m training.figures")


if __name__ == "__main__":
    unittest.main()
