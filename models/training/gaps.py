"""Builds the data of the summarizer of long documents: `python -m training.gaps --data DATA --prepared DIR`, after the cased corpus.

`gaps.{train,valid}.jsonl` are for pre-training (gap sentences: PEGASUS, arXiv 1912.08777, section 3.1). A document is a passage of the cased
corpus, and its summary consists of the sentences that share most words with the rest. Every second passage keeps these sentences, so that a
model learns to select and to copy them; the others lose them, so that it learns to write them.

`long.{train,valid,test}.jsonl` are the prepared pairs. A training pair is left out if its document or summary shares text with a pair of
validation or test, or with the cased validation or test text. A passage is left out if it shares text with such a pair. Two texts share
text if a tenth of the runs of twelve words of the shorter one occurs in the other. Runs that many training documents have do not count:
licences and navigation of manuals. `gaps.figures.json` has the figures.
"""

import argparse
import json
import random
import re
from collections import Counter, defaultdict
from pathlib import Path

from . import cased, data
from .command_line import one_line_errors
from .summaries import read_pairs

SHORTEST, LONGEST = 1000, 16000  # characters of a passage; most have at most 4,096 tokens
SENTENCES, WORDS = 3, 100  # at most, in a summary
SHORT = 6  # words; shorter sentences are in no summary
SHARED = 0.1
COMMON = 5  # documents; a run that more training documents have is boilerplate
SENTENCE_END = re.compile(r"(?<=[.!?])[\"'”’)\]]*\s+(?=[\"'“‘(\[]?[A-Z])|\n\s*\n")


def sentences(text):
    """Splits prose at its sentences; line ends within a sentence become spaces."""
    ends = [match.end() for match in SENTENCE_END.finditer(text)] + [len(text)]
    starts = [0, *ends[:-1]]
    parts = (" ".join(text[start:end].split()) for start, end in zip(starts, ends))
    return [part for part in parts if part]


def passages(texts, chance):
    """Cuts documents at sentences into passages of random lengths. Yields lists of sentences."""
    for text in texts:
        passage, length, limit = [], 0, wanted(chance)
        for sentence in sentences(text):
            if length + len(sentence) > limit and length >= SHORTEST:
                yield passage
                passage, length, limit = [], 0, wanted(chance)
            passage.append(sentence)
            length += len(sentence) + 1
        if length >= SHORTEST:
            yield passage


def wanted(chance):
    """Returns a passage's length: lengths of all magnitudes are equally frequent."""
    return SHORTEST * (LONGEST / SHORTEST) ** chance.random()


def gap_sentences(passage):
    """Returns the indices of the best sentences in their order: those with the highest ROUGE-1 (F) against the rest."""
    words = [Counter(cased.WORD.findall(sentence.lower())) for sentence in passage]
    total = sum(words, Counter())
    size = sum(total.values())
    scored = []
    for index, own in enumerate(words):
        count = sum(own.values())
        if SHORT <= count <= WORDS:
            common = sum(min(times, total[word] - times) for word, times in own.items())
            scored.append((-2 * common / size, index))  # own words + words of the rest = size
    chosen, length = [], 0
    for _, index in sorted(scored):
        count = sum(words[index].values())
        if len(chosen) < SENTENCES and length + count <= WORDS:
            chosen.append(index)
            length += count
    return sorted(chosen)


def pairs_of(texts, source, seed):
    """Yields pairs of passage and gap sentences. Passages without any are left out."""
    chance = random.Random(seed)
    for passage in passages(texts, chance):
        chosen = gap_sentences(passage)
        keep = chance.random() < 0.5
        if chosen:
            document = " ".join(sentence for index, sentence in enumerate(passage) if keep or index not in chosen)
            yield {"source": f"{source}-{'copy' if keep else 'gap'}", "document": document, "summary": " ".join(passage[n] for n in chosen)}


class Held:
    """Texts that are held out, by their runs of words. Runs in `common` do not count."""

    def __init__(self, texts, common=frozenset()):
        self.sizes, self.owners, self.common = [], defaultdict(list), common
        for number, text in enumerate(texts):
            own = set(cased.runs(text)) - common
            self.sizes.append(len(own))
            for run in own:
                self.owners[run].append(number)

    def shares(self, text):
        """Returns true if `text` shares text with one of the held texts. A text of fewer words than a run shares none."""
        own = set(cased.runs(text)) - self.common
        counts = Counter(number for run in own for number in self.owners.get(run, ()))
        return any(count >= SHARED * min(len(own), self.sizes[number]) for number, count in counts.items())

    def share_pair(self, pair):
        return self.shares(pair["document"]) or self.shares(pair["summary"])


def boilerplate(texts):
    """Returns the runs that more than `COMMON` of the texts have."""
    counts = Counter(run for text in texts for run in set(cased.runs(text)))
    return {run for run, count in counts.items() if count > COMMON}


def documents(folder, split):
    return data.read_text(folder, "cased", split).split(cased.MARK)[:-1]


def build(folder, prepared):
    """Writes the pairs of both kinds and the figures; returns the figures."""
    splits = {name: read_pairs(prepared, "summaries", name) for name in ("train", "valid", "test")}
    common = boilerplate(pair["document"] for pair in splits["train"])
    of_pairs = Held((text for name in ("valid", "test") for pair in splits[name] for text in (pair["document"], pair["summary"])), common)
    of_text = Held((text for name in ("valid", "test") for text in documents(folder, name)), common)
    figures = {"shared": SHARED, "run_words": cased.RUN}
    kept = [pair for pair in splits["train"] if not of_pairs.share_pair(pair) and not of_text.share_pair(pair)]
    figures["long"] = by_source(splits["train"], kept)
    for name, pairs in {**splits, "train": kept}.items():
        write(folder / f"long.{name}.jsonl", pairs)
    for name in ("train", "valid"):
        drawn = list(pairs_of(documents(folder, name), "cased", seed=1))
        kept = [pair for pair in drawn if not of_pairs.share_pair(pair)]
        figures[f"gaps_{name}"] = by_source(drawn, kept)
        write(folder / f"gaps.{name}.jsonl", kept)
    (folder / "gaps.figures.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return figures


def by_source(pairs, kept):
    """Returns {source: {pairs, kept}}."""
    before, after = (Counter(pair["source"] for pair in some) for some in (pairs, kept))
    return {source: {"pairs": count, "kept": after[source]} for source, count in sorted(before.items())}


def write(path, pairs):
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs)


@one_line_errors
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, type=Path, help="folder of the cased corpus; receives the pairs")
    parser.add_argument("--prepared", required=True, type=Path, help="folder of the prepared pairs, summaries.*.jsonl")
    arguments = parser.parse_args()
    print(json.dumps(build(arguments.data, arguments.prepared), indent=2))


if __name__ == "__main__":
    main()
