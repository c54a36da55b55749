"""Makes the Python environment of the clients in `clients-requirements.txt`.

It is kept in the folder of builds, and is made again when the requirements or this Python's version change. One process makes it; others
wait for its lock.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import local
import pytest

REQUIREMENTS = Path(__file__).with_name("clients-requirements.txt")
# Seconds for the installation, which takes one to two minutes on two busy cores.
INSTALLING = 600.0


def make(folder: Path) -> None:
    """Makes the environment in a folder, if it is not there for these requirements."""
    made = folder / "made-for.txt"
    wanted = f"{sys.version}\n{REQUIREMENTS.read_text()}"
    if not made.is_file() or made.read_text() != wanted:
        # The first run of a program compiles the modules that it imports: a small part of all.
        install = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
        for command in ([sys.executable, "-m", "venv", "--clear", str(folder)], [*install, "-r", str(REQUIREMENTS)]):
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALLING)
            if done.returncode != 0:
                message = f"the clients' packages cannot be installed: {done.stderr}"
                (pytest.fail if os.environ.get("WEIR_REQUIRE_PYTHON") == "1" else pytest.skip)(message)
        made.write_text(wanted)


def programs() -> Path:
    """Returns the folder of the environment's programs. Skips the test if the packages cannot be installed.

    Fails in place of skipping if WEIR_REQUIRE_PYTHON is 1, as .ci/python does.
    """
    if sys.version_info < (3, 10):
        pytest.skip("the clients need Python 3.10")
    folder = Path(os.environ.get("CARGO_TARGET_DIR", local.ROOT / "target")) / "ci-clients"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        make(folder)
    return folder / "bin"
