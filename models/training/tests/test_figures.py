"""Tests the figures of the pages."""

import shutil
import tempfile
import unittest
from pathlib import Path

from training import figures

PAGES = ("README.md", "docs/benchmarks.md", "docs/models.md", "models/training/README.md")
PICTURES = ("docs/pooling-light.svg", "docs/pooling-dark.svg", "models/pareto.svg")


class Figures(unittest.TestCase):
    def test_the_pages_have_the_figures_of_their_data(self):
        with tempfile.TemporaryDirectory() as scratch:
            for name in (*PAGES, *PICTURES):
                (Path(scratch) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(figures.REPOSITORY / name, Path(scratch) / name)
            figures.write(Path(scratch))
            for name in (*PAGES, *PICTURES):
                made = (Path(scratch) / name).read_text(encoding="utf-8")
                self.assertEqual(made, (figures.REPOSITORY / name).read_text(encoding="utf-8"), f"{name}: run python -m training.figures")

    def test_a_block_that_a_page_lacks(self):
        page = "a\n<!-- x -->\nold\n<!-- /x -->\nb\n"
        self.assertEqual(figures.filled(page, {"x": "new"}, "p"), "a\n<!-- x -->\n\nnew\n\n<!-- /x -->\nb\n")
        self.assertRaises(ValueError, figures.filled, page, {"y": "new"}, "p")


if __name__ == "__main__":
    unittest.main()
