"""Checks all pages: their links resolve, the pages that sources name exist, and together they are short enough to read."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Dict, List, Set

import local
import pytest

# Maximum words of all pages together without the generated ones, and of README.md.
MAX_WORDS = 32_000
MAX_README_WORDS = 1_000
GENERATED = {"docs/api.md", "docs/flags.md", "docs/latency-report.md", "docs/metrics.md"}


def tracked(*patterns: str) -> List[str]:
    if shutil.which("git") is None or not (local.ROOT / ".git").exists():
        pytest.skip("this is no git checkout")
    listed = ["git", "-C", str(local.ROOT), "ls-files", *patterns]
    names = subprocess.run(listed, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    return [name for name in names if (local.ROOT / name).is_file()]


def without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> Set[str]:
    """Returns the anchors that GitHub gives to the headings of a page."""
    seen: Dict[str, int] = {}
    result = set(re.findall(r'<a (?:id|name)="([^"]+)"', page.read_text()))
    for heading in re.findall(r"^#+ (.*)$", without_code(page.read_text()), re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")
        seen[name] = seen.get(name, -1) + 1
        result.add(f"{name}-{seen[name]}" if seen[name] else name)
    return result


def test_links_resolve() -> None:
    broken = []
    for name in tracked("*.md"):
        page = local.ROOT / name
        text = re.sub(r"`[^`\n]*`", "", without_code(page.read_text()))
        for target in re.findall(r"\]\(\s*<?([^)\s>]+)|(?:src|srcset|href)=\"([^\"\s]+)|^\[[^]]+\]: (\S+)", text, re.MULTILINE):
            link = "".join(target)
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
                broken.append(f"{name}: {link}")
    assert not broken, "\n".join(broken)


def test_pages_that_sources_name_exist() -> None:
    missing = []
    for name in tracked():
        file = local.ROOT / name
        if file.suffix in (".rs", ".py", ".proto", ".toml", ".yaml", ".yml", ".txt", ".sh", ".conf", ".cfg", ".md", ""):
            text = file.read_text(errors="ignore")
            pages = set(re.findall(r"(?<![\w/.])(?:docs|models|deploy)/[\w/-]*\.md", text))
            missing += [f"{name}: {page}" for page in pages if not (local.ROOT / page).is_file()]
    assert not missing, "\n".join(missing)


def test_pages_are_short() -> None:
    words = {}
    for name in tracked("*.md"):
        # A test writes the lists between these marks.
        text = re.sub(r"<!-- [\w-]+: written by .*?<!-- end -->", "", (local.ROOT / name).read_text(), flags=re.DOTALL)
        words[name] = len(text.split())
    own = {name: count for name, count in words.items() if name not in GENERATED}
    longest_first = sorted(own, key=lambda name: -own[name])
    assert sum(own.values()) <= MAX_WORDS, "\n".join(f"{own[name]:6} {name}" for name in longest_first)
    assert own["README.md"] <= MAX_README_WORDS
