"""Every command of `docs/getting-started.md`, run in its order."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import List, Tuple

import local
import pytest

PAGE = (local.ROOT / "docs/getting-started.md").read_text()
# What has been done by whoever runs this test: it needs the program, and the client's package.
DONE = ["cargo build --release\n" 'export PATH="$PWD/target/release:$PATH"\n', "pip install ./clients/python\n"]
# What the others print, by their order.
PRINTED = [
    r"checkpoint .*family +hourglass\n.*head\.bias .*",
    re.escape("a │weir │pools │a │stream…\n21 symbols, 4 closed segments, shortening factor 5.250\n"),
    r"60 symbols, \d\.\d+ bits per character, shortening factor \d\.\d+\n",
    r"[a-z ]{200}\n.*",
    r"",
    r"[a-z ]{200}",
    r"weir:generation_tokens_total\{model_name=\"hourglass-whitespace-english\"\} 200\n",
]


def commands() -> List[Tuple[str, str]]:
    """The page's blocks with their languages."""
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert all(done in [block for _, block in blocks] for done in DONE)
    return [(language, block) for language, block in blocks if block not in DONE]


def test_every_command(tmp_path: Path) -> None:
    program = local.weir_program()
    if program is None:
        pytest.skip("no weir to test with: set WEIR_BIN, or run `cargo build`")
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/weir").symlink_to(program.resolve())
    (tmp_path / "models").symlink_to(local.ROOT / "models")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("WEIR_", "PYTHON"))}
    environment["PATH"] = f"{tmp_path}/bin:{environment['PATH']}"
    printed, addresses, server = list(PRINTED), {}, None
    try:
        for language, block in commands():
            for named, ours in addresses.items():
                block = block.replace(named, ours)
            if block.startswith("weir serve "):
                line = block.strip().replace("127.0.0.1:9090", "127.0.0.1:0").split()
                line = [str(program), *line[1:], "--listen", "127.0.0.1:0"]
                server = local.Program(line, folder=tmp_path)
                addresses["127.0.0.1:9090"] = server.says(r"admin port on (\S+)")
                addresses["127.0.0.1:50051"] = server.says(r"listening on (\S+)")
                continue
            shell = [sys.executable, "-c"] if language == "python" else ["bash", "-euo", "pipefail", "-c"]
            done = subprocess.run(
                [*shell, block],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                timeout=local.SOON,
            )
            assert done.returncode == 0, f"{block}{done.stderr}"
            assert re.fullmatch(printed.pop(0), done.stdout, re.DOTALL), f"{block}{done.stdout}"
    finally:
        if server is not None:
            server.stop()
    assert printed == []
