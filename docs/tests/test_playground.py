"""Checks the accessibility of the playground's panels with axe, in headless Chromium.

Skipped if chromedriver is missing, or if npm cannot install axe.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Dict, Iterator, List

import local
import pictures
import pytest

# One process installs the packages.
pytestmark = pytest.mark.xdist_group("npm")
# What each panel shows once it has its answer: the tab, a script that starts it, and one that returns whether it is done.
PANELS = (
    ("edit", "0", pictures.READY),
    ("compress", "at('compress-go').click()", "at('compress-status').textContent == 'Done.'"),
    ("race", "at('max').value = 60, at('go').click()", "at('status').textContent == 'Done.'"),
    ("summarize", "at('summary-go').click()", "at('summary-status').textContent == 'Done.'"),
)
SERIOUS = ("serious", "critical")
SIZES = (pictures.SIZE, (420, 800))
MODELS = (local.DEFAULT, local.ROOT / "models/compared/summarizer-pyramidion")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    if shutil.which("chromedriver") is None:
        pytest.skip("chromedriver is not installed")
    if local.weir_program() is None:
        pytest.skip("no weir program found: set WEIR_BIN or run `cargo build`")
    with local.Server("--model", str(MODELS[1]), "--http-listen", "127.0.0.1:0", model=MODELS[0]) as server:
        yield server.listener("playground")


@pytest.mark.parametrize("theme", ("light", "dark"))
def test_the_panels_have_no_serious_finding(theme: str, address: str, npm_packages: Path) -> None:
    axe = (npm_packages / "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")
    browser = pictures.Browser(theme)
    try:
        browser.open(f"http://{address}/")
        browser.wait_for(pictures.READY)
        browser.run(axe)
        for tab, start, done in PANELS:
            browser.run(f"at('tab-{tab}').click(); {start}")
            browser.wait_for(done)
            browser.run("document.querySelectorAll('details').forEach((details) => (details.open = true))")
            for width, height in SIZES:
                browser.resize(width, height)
                browser.run("window.found = null; axe.run().then(({ violations }) => (window.found = violations))")
                browser.wait_for("window.found !== null")
                found: List[Dict[str, Any]] = browser.run("return window.found")
                serious = [(finding["id"], finding["nodes"]) for finding in found if finding["impact"] in SERIOUS]
                assert not serious, f"{tab}, {width} pixels wide: {json.dumps(serious)}"
    finally:
        browser.close()
