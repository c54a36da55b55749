"""Runs every command on every documentation page as `commands.py` lists it.

`commands.py` gives the reason for each command that is not run.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Dict, Iterator, List, Set, Tuple

import commands
import local
import pytest
import summarizer
import trustme
from commands import PAGES, TOKEN, Elsewhere, Serves
from pages import blocks, text

DOCUMENT = "the river is pooling, the rest is going on and on, and so it is with the stone bridge. "
# The listeners, and the flag of each, by the address that the pages use.
LISTENERS = {
    "127.0.0.1:50051": ("gRPC", "--listen"),
    "127.0.0.1:8000": ("playground", "--http-listen"),
    "127.0.0.1:9090": ("metrics", "--admin-listen"),
}


def installed(name: str) -> str:
    """Returns the path of this Python if it has the package `name`, else of the program `name`, else ""."""
    return sys.executable if importlib.util.find_spec(name) else shutil.which(name) or ""


def named(page: str) -> List[Tuple[str, str]]:
    """Returns (name in the table, text on the page) of each command; a program lists its commands in its docstring."""
    if page.endswith(".py"):
        description = ast.get_docstring(ast.parse(text(page))) or ""
        return [(command, command) for command in re.findall(r"^    (\S.*)$", description, re.MULTILINE)]
    result = []
    for language, block in blocks(page, "sh|console|python"):
        if language == "python":
            result.append((block.splitlines()[0], block))
            continue
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            command = re.sub(r"\s+# .*|\s+#$", "", line)
            if command and not command.startswith("#") and (language == "sh" or command.startswith("$ ")):
                result.append((re.sub(r"(?<=\S) {2,}(?=\S)", " ", command).strip(), command))
    return result


def test_every_page_is_listed() -> None:
    pages = {
        str(path.relative_to(local.ROOT)) for folder in ("docs", "deploy") for path in (local.ROOT / folder).rglob("*.md")
    }
    pages |= {"README.md", "CONTRIBUTING.md", "clients/python/README.md"}
    pages |= {str(path.relative_to(local.ROOT)) for path in (local.ROOT / "models").rglob("README.md")}
    pages |= {str(path.relative_to(local.ROOT)) for path in (local.ROOT / "examples").glob("*.py")}
    # The client's own tests run the commands in its README.
    assert {page for page in pages if named(page)} == set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_listed(page: str) -> None:
    listed = [step.command for step in PAGES[page] if not (isinstance(step, Serves) and step.granted)]
    found = [name for name, _ in named(page)]
    if page == "clients/python/README.md":
        found = [name for name in found if not name.startswith(("import ", "from ", "with "))]
    assert found[: len(listed)] == listed
    # The table omits the training commands that follow, which are all alike.
    assert found[len(listed) :] == [] or page == commands.TRAINING
    assert all(name.startswith("python -m training.") or "unittest" in name for name in found[len(listed) :])


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Creates a folder with the files that pages assume: programs, models, documents, certificates and a token."""
    program = local.weir_program()
    if program is None or not program.with_name("weir-loadtest").is_file():
        pytest.skip("weir and weir-loadtest not found in one folder: set WEIR_BIN or run `cargo build --workspace`")
    if shutil.which("curl") is None or shutil.which("bash") is None:
        pytest.skip("curl or bash is not installed")
    folder = tmp_path_factory.mktemp("stage")
    (folder / "bin").mkdir()
    for built in (program, program.with_name("weir-loadtest")):
        (folder / "bin" / built.name).symlink_to(built.resolve())
    for name in ("models", "examples"):
        (folder / name).symlink_to(local.ROOT / name)
    for name in ("POOLED", "VANILLA"):
        (folder / name).symlink_to(local.DEFAULT)
    summarizer.make(folder).rename(folder / "SUMMARIZER")
    (folder / "golden").symlink_to(local.ROOT / "tests/golden")
    (folder / "small").mkdir()
    for name in ("hourglass-41m", "vanilla-41m"):
        shape = json.loads((local.ROOT / f"models/shapes/{name}.json").read_text())
        small = {"dim": 64, "heads": 2, "head_dim": 32, "feed_forward": 128}
        shape["architecture"].update({key: value for key, value in small.items() if key in shape["architecture"]})
        (folder / f"small/{name}.json").write_text(json.dumps(shape))
    (folder / "article.txt").write_text(DOCUMENT)
    (folder / "abstract.txt").write_text("a river and a bridge")
    paper = {"source": "a river", "document": DOCUMENT, "summary": "a river and a bridge"}
    (folder / "papers.jsonl").write_text(json.dumps(paper) + "\n")
    (folder / "token").write_text(TOKEN)
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    certificate.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    certificate.private_key_pem.write_to_path(folder / "server.key")
    authority.cert_pem.write_to_path(folder / "clients.pem")
    return folder


class Run:
    """Runs the commands of one page in order."""

    def __init__(self, stage: Path, folder: Path) -> None:
        self.folder = folder
        for file in stage.iterdir():
            (folder / file.name).symlink_to(file)
        self._environment = {key: value for key, value in os.environ.items() if not key.startswith(("WEIR_", "PYTHON"))}
        self._environment["PATH"] = f"{folder}/bin:{self._environment['PATH']}:{Path(sys.executable).parent}"
        self._environment["WEIR_ADMIN_TOKEN"] = TOKEN
        self._environment["WEIR_DATA"] = f"{folder}/data"
        self._addresses: Dict[str, str] = {}
        self._servers: List[local.Program] = []

    def serve(self, command: str) -> None:
        """Stops the previous server and starts this one on free ports."""
        self.stop()
        line = re.sub(r"(?<=\s)[\d.]+:\d+", "127.0.0.1:0", command.removesuffix("&"))
        flags = {flag for _, flag in LISTENERS.values()}
        given = flags.intersection(line.split())
        # Without any of them the server opens all its ports.
        for flag in sorted({"--listen"} - given if given else flags):
            line += f" {flag} 127.0.0.1:0"
        if "--calibration-milliseconds" not in line:
            line += " --calibration-milliseconds 0"
        server = local.Program([str(self.folder / "bin/weir"), *shlex.split(line)[1:]], folder=self.folder)
        self._servers = [server]
        for named, (name, flag) in LISTENERS.items():
            if flag in line.split():
                self._addresses[named] = server.listener(name)

    def run(self, command: str, is_python: bool, package: str) -> str:
        """Runs a command and returns its output. If `package` is not empty, uses the Python that has this package."""
        for documented, actual in self._addresses.items():
            command = command.replace(documented, actual)
        python = str(Path(installed(package)).with_name("python")) if package else sys.executable
        shell = [python, "-c"] if is_python else ["bash", "-euo", "pipefail", "-c"]
        done = subprocess.run(
            [*shell, command],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=4 * local.TIMEOUT,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def stop(self) -> None:
        for server in self._servers:
            server.stop()


@pytest.fixture()
def run(stage: Path, tmp_path: Path) -> Iterator[Run]:
    started = Run(stage, tmp_path)
    yield started
    started.stop()


@pytest.mark.parametrize(
    "page", [page for page, steps in PAGES.items() if not all(isinstance(step, Elsewhere) for step in steps)]
)
def test_every_command_is_run(page: str, run: Run) -> None:
    texts = dict(named(page))
    for step in PAGES[page]:
        if isinstance(step, Elsewhere):
            continue
        page_text = texts.get(step.command, step.command)
        is_python = "\n" in page_text
        command = page_text if is_python else step.command.removeprefix("$ ")
        command = command.replace("cargo run --release --", "weir").replace("target/release/", "")
        for old, new in step.swaps:
            assert old in command, f"{old!r} is not in {command!r}"
            command = command.replace(old, new)
        if isinstance(step, Serves):
            run.serve(command)
        elif step.needs and not installed(step.needs):
            warnings.warn(f"{step.needs} is not installed, so this command is not run: {step.command}")
        else:
            output = run.run(command, is_python, step.needs)
            assert re.fullmatch(step.printed, output, re.DOTALL), f"{command}\n{output}"
            file, content = step.writes
            assert not file or re.fullmatch(content, (run.folder / file).read_text(), re.DOTALL), file


# Flags of other programs.
OTHERS = {"--health-cmd", "--release", "--stop-timeout", "--streaming-mode", "--use-server-token-count", "--workspace"}


def flags(program: Path, *command: str) -> Set[str]:
    """Returns the flags of a program and of all its subcommands."""
    done = subprocess.run(
        [str(program), *command, "--help"], stdout=subprocess.PIPE, text=True, check=True, timeout=local.TIMEOUT
    )
    result = set(re.findall(r"^ +(?:-\w, )?(--[a-z][a-z0-9-]*)", done.stdout, re.MULTILINE))
    for aliases in re.findall(r"\[alias(?:es)?: ([^]]*)\]", done.stdout):
        result |= set(re.findall(r"--[a-z][a-z0-9-]*", aliases))
    _, _, listed = done.stdout.partition("Commands:\n")
    for name in re.findall(r"^  ([a-z-]+)", listed.partition("\n\n")[0], re.MULTILINE):
        if name != "help":
            result |= flags(program, *command, name)
    return result


def test_flags_within_text() -> None:
    """Every flag that a page mentions exists."""
    program = local.weir_program()
    if program is None:
        pytest.skip("no weir program found: set WEIR_BIN or run `cargo build`")
    existing = flags(program) | flags(program.with_name("weir-loadtest")) | OTHERS
    # Includes subfolders, but skips pytest's cache.
    for page in (path for path in (local.ROOT / "docs").rglob("*.md") if ".pytest_cache" not in path.parts):
        prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for span in re.findall(r"`([^`\n]+)`", prose):
            for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", span):
                assert flag in existing, f"{page.name}: {span}"
