"""Reads code blocks from the documentation's pages."""

from __future__ import annotations

import re
from typing import List, Tuple

import local


def text(page: str) -> str:
    return (local.ROOT / page).read_text()


def blocks(page: str, languages: str) -> List[Tuple[str, str]]:
    """Returns the page's code blocks in these languages, as (language, code)."""
    return re.findall(rf"^```({languages})\n(.*?)^```$", text(page), re.MULTILINE | re.DOTALL)


def code(page: str, language: str, part: str) -> str:
    """Returns the page's only block in `language` that contains `part`."""
    (found,) = [block for _, block in blocks(page, language) if part in block]
    return found


def example(page: str, language: str, part: str, url: str) -> str:
    """Returns the same as `code`, but with `url` in place of the address that pages use for HTTP, and the model of the tests."""
    found = code(page, language, part)
    assert "http://127.0.0.1:8000" in found, f"the example does not name the address: {found}"
    return found.replace("http://127.0.0.1:8000", url).replace(local.DEFAULT.name, local.MODEL.name)
