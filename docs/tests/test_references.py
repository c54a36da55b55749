"""Generates `docs/flags.md` from the help texts of both programs and compares it. WEIR_WRITE_DOCS=1 writes the page."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import List, Tuple

import local
import pytest

PAGE = local.ROOT / "docs/flags.md"
HEAD = """\
# Flags

Every flag of `weir` and `weir-loadtest`, with its environment variable and default. This page is generated from `--help`. A flag
wins over its variable. `weir serve` also reads a [settings file](deploy.md#settings), whose keys are the flags' names. All commands
have `--help`, those of `weir` also `--color auto|always|never` (`WEIR_COLOR`).
"""
# Flags of every command, which the head of the page describes.
COMMON = ("--color", "-h", "-V")


def help_text(program: Path, command: Tuple[str, ...]) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("WEIR_")}
    run = [str(program), *command, "--help"]
    done = subprocess.run(run, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=local.TIMEOUT)
    return done.stdout


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def row(spec: str, lines: List[str]) -> str:
    """Returns the row of a flag from the lines of its description."""
    # A short default may follow the description on its line; longer ones are part of it.
    text = re.sub(r" (\[default: (?:[\w.:]+|\"[^\"]*\")\])(?=\n\n|$)", r"\n\1", "\n".join(lines).strip())
    text = re.sub(r" (\[env: \w+=?\])$", r"\n\1", text, flags=re.MULTILINE)
    notes = dict(re.findall(r"^\[(env|default|alias|aliases): (.*?)=?\]$", text, re.MULTILINE))
    values = re.findall(r"^- ([\w-]+)(?::.*)?$", text, re.MULTILINE)
    left_out = r"^(Possible values:|- .*(\n  .*)*|\[(env|default|alias|aliases|possible values): [^]]*\])$"
    text = re.sub(left_out, "", text, flags=re.MULTILINE).strip()
    if values:
        text += ". One of " + ", ".join(f"`{value}`" for value in values) + "."
    if alias := notes.get("alias") or notes.get("aliases"):
        text = f"{text.rstrip('.')}. Also `{alias}`."
    variable, default = (f"`{notes[key]}`" if key in notes else "" for key in ("env", "default"))
    return f"| `{cell(spec)}` | {variable} | {cell(default)} | {cell(text)} |"


def section(program: Path, command: Tuple[str, ...]) -> str:
    """Returns the flags of a command, then those of its subcommands."""
    text = help_text(program, command)
    about, _, rest = text.partition("\nUsage: ")
    names: List[str] = []
    rows: List[str] = []
    blocks = re.findall(r"^(\w[^\n]*):\n((?:\n| [^\n]*\n)+)", rest.partition("\n")[2] + "\n", re.MULTILINE)
    for title, block in blocks:
        if title == "Commands":
            names = [name for name in re.findall(r"^  ([a-z-]+)", block, re.MULTILINE) if name != "help"]
            continue
        # Descriptions are indented further than flags.
        for entry in re.split(r"\n(?= {2,6}[-<\[])", "\n" + block):
            spec, *lines = entry.strip("\n").split("\n")
            # Descriptions of one line each stand beside their flags.
            spec, _, beside = spec.strip().partition("  ")
            name = re.split(r"[ ,=\[]", spec)[0]
            if spec and name not in COMMON:
                described = [" ".join(" ".join((beside, *lines)).split())] if beside else [line[10:] for line in lines]
                rows.append(row(spec, described))
    result = ""
    if rows:
        heading = f"\n## `{' '.join((program.name, *command))}`\n\n{cell(about)}."
        result = "\n".join((heading, "", "| flag | variable | default | |", "|---|---|---|---|", *rows, ""))
    return result + "".join(section(program, (*command, name)) for name in names)


def test_flags() -> None:
    program = local.weir_program()
    if program is None or not program.with_name("weir-loadtest").is_file():
        pytest.skip("weir and weir-loadtest not found in one folder: set WEIR_BIN or run `cargo build --workspace`")
    made = HEAD + section(program, ()) + section(program.with_name("weir-loadtest"), ())
    if os.environ.get("WEIR_WRITE_DOCS") == "1":
        PAGE.write_text(made)
    kept = PAGE.read_text()
    differs = next(((old, new) for old, new in zip(kept.splitlines(), made.splitlines()) if old != new), None)
    assert kept == made, f"docs/flags.md is stale, first in {differs}: set WEIR_WRITE_DOCS=1 to write it"
