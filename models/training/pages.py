"""Fills blocks of pages with generated text."""

import re


def filled(page, texts):
    """Returns the page with the text between `<!-- NAME -->` and `<!-- /NAME -->` replaced. Raises ValueError if a block is missing."""
    for name, text in texts.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if not pattern.search(page):
            raise ValueError(f"the page has no block {name}")
        page = pattern.sub(lambda match: match.group(1) + (f"\n{text}\n\n" if text else "") + match.group(2), page)
    return page
