"""Reads the packages of the cased corpus as documents: raw text with capitals, punctuation, digits and newlines.

Each reader takes the folder of an unpacked package and yields its documents in the package's order. A document is an article, a message, a
chapter, a page of a manual, or an entry of a dictionary. `tidy` removes only spaces that no reader would miss.
"""

import html
import re
from html.parser import HTMLParser

from . import sources

BREAKS = set("address article blockquote br dd div dl dt figure h1 h2 h3 h4 h5 h6 hr li ol p pre section table td th tr ul".split())
SKIPPED = set("button head nav script style svg".split())
VOID = set("br hr img input link meta".split())
SYNSETS = 100  # glosses in one document


def tidy(text):
    """Removes control characters, spaces at the ends of lines, runs of spaces within a line, and more than one empty line."""
    text = re.sub("[^\n\t -~\u00a1-\U0010ffff]|[\u00ad\u200b-\u200f\u2028-\u202f\ufeff\ufffd]", " ", text.replace("\r\n", "\n"))
    text = re.sub(r"(?<=\S)[ \t]{2,}", " ", text.replace("\u3000", " ")).expandtabs(4)
    text = re.sub(r" +$", "", text, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def wikipedia_leads(folder):
    return (entry["extract"] for entry in sources.lead_entries(folder))


def wikipedia_articles(folder):
    """Reads articles without the lines that removed tables and lists leave behind."""
    for text in sources.wikipedia_articles(folder):
        text = html.unescape(html.unescape(text))
        lines = [re.sub(r"\s+([,.;:)])", r"\1", " ".join(line.split())) for line in text.splitlines()]
        yield "\n".join(line for line in lines if not line or re.search(r"\w.*\w", line))


def chapters(folder):
    """Reads novels chapter by chapter."""
    for novel in sources.novels(folder):
        yield from re.split(r"\n\n+(?=chapter [0-9ivxlc]+\n)", novel, flags=re.IGNORECASE)


def sword(folder):
    """Reads a SWORD module chapter by chapter: a line for each title and paragraph, without notes."""
    for block in sources.sword_blocks(folder):
        for chapter in re.split(r"(?=<chapter [^>]*sID=)", block):
            yield osis(chapter)


def osis(markup):
    text = " ".join(re.sub(r"<note\b.*?</note>", " ", markup, flags=re.DOTALL).split())
    text = re.sub(r'<title\b|</title>|<div\b[^>]*type="(?:x-p|paragraph)"[^>]*>|<(?:lb|l|lg|row|item|p)\b', r"\n\g<0>", text)
    text = html.unescape(sources.MARKUP.sub("", text))
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(re.sub(r" ([,.;:?!])(?!\S)", r"\1", line) for line in lines if line)


def glosses(folder):
    """Reads WordNet's glosses, one a line."""
    lines = [gloss.strip() for gloss in sources.glosses(folder)]
    return ("\n".join(lines[start : start + SYNSETS]) for start in range(0, len(lines), SYNSETS))


def dictionary(folder):
    """Reads a dictd dictionary entry by entry: an entry's later lines are indented."""
    for text in sources.dictionary(folder):
        for entry in re.split(r"\n(?=\S)", text):
            yield "\n".join(line.strip() for line in entry.splitlines())


def headwords(folder):
    """Reads a dictd dictionary whose entries begin with a word in capitals and a comma after an empty line."""
    for text in sources.dictionary(folder):
        yield from re.split(r"\n\n+(?=[A-Z][A-Z' -]+, )", text)


def manual_pages(patterns, body, end):
    """Returns a reader of HTML pages at `patterns`. A page's text stands between the first match of `body` and the first of `end` after it."""

    def read(folder):
        for path in (path for pattern in patterns for path in sorted(folder.glob(pattern))):
            page = path.read_text(encoding="utf-8", errors="replace")
            begin = re.search(body, page)
            if begin and not re.match(r"(all\.|gen|py-mod|search|contents|index|sitemap|quickreference|directives|license|copyright|print)", path.name):
                rest = page[begin.end() :]
                stop = re.search(end, rest)
                yield html_text(rest[: stop.start()] if stop else rest)

    return read


def html_text(page):
    """Returns the text of HTML: a line for each block, and preformatted text as it stands."""
    parser = TextParser()
    parser.feed(page)
    parser.close()
    return "".join(parser.parts)


class TextParser(HTMLParser):
    def __init__(self):
        super().__init__()
        self.parts, self.preformatted = [], 0
        self.hidden, self.depth = None, 0  # name of an element that is skipped, and how many of this name are open inside

    def handle_starttag(self, tag, attributes):
        if self.hidden:
            self.depth += tag == self.hidden
            return
        marks = " ".join(value or "" for name, value in attributes if name in ("class", "id"))
        if tag in SKIPPED or (tag not in VOID and ("headerlink" in marks or "toc" in marks)):
            self.hidden, self.depth = tag, 1
            return
        if tag in BREAKS:
            self.end_line()
        self.preformatted += tag == "pre"

    def handle_endtag(self, tag):
        if self.hidden:
            self.depth -= tag == self.hidden
            self.hidden = self.hidden if self.depth else None
            return
        if tag in BREAKS:
            self.end_line()
        self.preformatted -= tag == "pre" and self.preformatted > 0

    def handle_data(self, data):
        if self.hidden:
            return
        if not self.preformatted:
            data = re.sub(r"\s+", " ", data)
            at_start = not self.parts or self.parts[-1].endswith("\n")
            data = data.lstrip() if at_start else data
        if data:
            self.parts.append(data)

    def end_line(self):
        if self.parts and not self.parts[-1].endswith("\n"):
            self.parts.append("\n")


def perl(folder):
    """Reads Perl's pods page by page: paragraphs without formatting codes, code as it stands."""
    for path in sorted(folder.rglob("*.pod")):
        text = path.read_text(encoding="utf-8", errors="replace")
        text = re.sub(r"^=(begin|for)\b.*?(?=^=(?!begin|for))", "", text, flags=re.MULTILINE | re.DOTALL)
        before = None
        while before != text:  # formatting codes nest
            before = text
            text = re.sub(r"\b[BCFILSXZ]<([^<>]*)>|\b[BCFILSXZ]<< +(.*?) +>>", lambda m: (m[1] or m[2] or "").split("|")[0], text)
        text = re.sub(r"\bE<(\w+)>", lambda m: {"lt": "<", "gt": ">", "sol": "/", "verbar": "|"}.get(m[1], html.unescape(f"&{m[1]};")), text)
        yield re.sub(r"^=(?:head\d|item|over|back|cut|encoding|pod)\b *(?:utf-?8|\d+$|\*$)?", "", text, flags=re.MULTILINE | re.IGNORECASE)
