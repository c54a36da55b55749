"""Finds the outputs of the reference implementations and compares tensors with them.

The fixtures are in `tests/golden/NAME` of the repository, otherwise in `$WEIR_FIXTURES/FAMILY/fixtures`. Without both folders, the tests
that need them are skipped with a message.
"""

import json
import os
import sys
import unittest
from pathlib import Path

from training import safetensors_file

REPOSITORY = Path(__file__).parents[3] / "tests/golden"


def folder(family, *names):
    """Returns the fixtures' folder, or None. `names` are other names of the folder in the repository."""
    candidates = [REPOSITORY / name for name in (*names, family)]
    if "WEIR_FIXTURES" in os.environ:
        candidates.append(Path(os.environ["WEIR_FIXTURES"]) / family / "fixtures")
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    print(f"\nSKIPPED: no outputs of the reference implementation for {family}; "
          "set WEIR_FIXTURES to their folder", file=sys.stderr)  # fmt: skip
    return None


def cases(family, *names):
    """Returns {name: folder} of all cases with weights."""
    found = folder(family, *names)
    return {path.name: path for path in sorted(found.iterdir()) if (path / "config.json").exists()} if found else {}


def read(case):
    """Returns the official arguments, the official weights and the golden outputs."""
    config = json.loads((case / "config.json").read_text(encoding="utf-8"))
    weights = safetensors_file.read(case / "model.safetensors") if (case / "model.safetensors").exists() else {}
    return config, weights, safetensors_file.read(case / "golden.safetensors")


class GoldenTest(unittest.TestCase):
    def assert_near(self, actual, expected, tolerance, what):
        self.assertEqual(actual.shape, expected.shape, what)
        self.assertLessEqual(float((actual - expected).abs().max()), tolerance, what)


def add_cases(test_class, found, method="check"):
    """Adds one test per case, or one skipped test if there are no cases."""
    for name, path in found.items():
        setattr(test_class, f"test_{name}", lambda self, path=path: getattr(self, method)(path))
    if not found:
        test_class.test_nothing = unittest.skip("no fixtures found")(lambda self: None)
