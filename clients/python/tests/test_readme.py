"""Runs every example of the README with the address of a real server instead of the default address."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import List

import local
import pytest
from test_access import folder, guarded
from test_summarize import DOCUMENT, reader

__all__ = ["folder", "guarded", "reader"]
README = Path(__file__).resolve().parent.parent / "README.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
# The expected output of each example, in the README's order.
PRINTED = [
    r"[a-z ]{80}",
    r"[a-z ]{80}",
    r"\[\('.', -\d.*(True|False|None)\)\]",
    r"\d\.\d+ \[None, -\d.*\]",
    r".+ \[\d+, \d+\] \w+",
    r"22 \['y', '.*'\]",
    r"1\d\d a weir pools a stream and lets it flow on",
    r"[a-z ]{80}",
    r"StatusCode.INVALID_ARGUMENT BAD_OPTION \(FieldViolation\(field='sampling.top_p', .*\),\) None [0-9a-f]{16}",
    r"[a-z ]{80}",
]


def run(example: str, folder: Path) -> str:
    """Runs an example and returns its output. `folder` is empty, so that Python imports the installed package."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("WEIR_", "PYTHON"))}
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=folder, env=environment, capture_output=True, text=True, timeout=local.TIMEOUT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.removesuffix("\n")


def test_examples_are_short() -> None:
    assert len(EXAMPLES) == len(PRINTED)
    lines: List[List[str]] = [example.splitlines() for example in EXAMPLES]
    assert all(len(example) <= 4 for example in lines)
    assert sum(len(example) == 3 for example in lines) >= len(lines) - 2


@pytest.mark.parametrize(("example", "printed"), list(zip(EXAMPLES, PRINTED)))
def test_example(
    server: local.Server,
    guarded: local.Server,
    reader: local.Server,
    folder: Path,
    example: str,
    printed: str,
) -> None:
    if "https://" in example:
        port = guarded.address.rsplit(":", 1)[1]
        example = example.replace("https://localhost:50051", f"https://localhost:{port}")
    else:
        example = example.replace('"127.0.0.1:50051"', "")
        (folder / "document.txt").write_text(DOCUMENT, encoding="utf-8")
        address = (reader if "summarize" in example else server).address
        example = re.sub(r"Client\((?:, )?", f'Client("{address}", ', example)
    out = run(example, folder)
    assert re.fullmatch(printed, out.strip("\n"), re.DOTALL), out
