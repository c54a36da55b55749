"""Where the reference implementations' outputs are, and how closely they must be met.

`tests/golden/NAME` of the repository where it is there; else `$WEIR_FIXTURES/FAMILY/fixtures`. Where there is neither, the tests
that need them are skipped, and say so.
"""

import json
import os
import sys
import unittest
from pathlib import Path

from training import safetensors_file

REPOSITORY = Path(__file__).parents[3] / "tests/golden"


def folder(family, *names):
    """The fixtures' folder, or None; `names` are what the repository may call it."""
    candidates = [REPOSITORY / name for name in (*names, family)]
    if "WEIR_FIXTURES" in os.environ:
        candidates.append(Path(os.environ["WEIR_FIXTURES"]) / family / "fixtures")
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    print(f"\nSKIPPED: no outputs of the reference implementation for {family}; "
          "name their folder in WEIR_FIXTURES", file=sys.stderr)  # fmt: skip
    return None


def cases(family, *names):
    """{name: folder} of all cases that have weights."""
    found = folder(family, *names)
    return {path.name: path for path in sorted(found.iterdir()) if (path / "config.json").exists()} if found else {}


def read(case):
    """(official arguments, official weights, golden outputs)."""
    config = json.loads((case / "config.json").read_text(encoding="utf-8"))
    weights = safetensors_file.read(case / "model.safetensors") if (case / "model.safetensors").exists() else {}
    return config, weights, safetensors_file.read(case / "golden.safetensors")


class GoldenTest(unittest.TestCase):
    def assert_near(self, actual, expected, tolerance, what):
        self.assertEqual(actual.shape, expected.shape, what)
        self.assertLessEqual(float((actual - expected).abs().max()), tolerance, what)


def add_cases(test_class, found, method="check"):
    """One test a case; one that is skipped if there are none."""
    for name, path in found.items():
        setattr(test_class, f"test_{name}", lambda self, path=path: getattr(self, method)(path))
    if not found:
        test_class.test_nothing = unittest.skip("the fixtures are not here")(lambda self: None)
