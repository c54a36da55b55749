"""Ends of subwords as labels for the boundary predictor (Dynamic Token Pooling, section 3.1.2).

A SentencePiece unigram model is trained on the corpus's words, so that no piece crosses a space. Each word is then cut once,
whole, which a model that generates could not do: it learns to foresee the cuts. A piece ends with its last character; the
last one of a word with the space behind it.
"""

import os
from collections import Counter
from pathlib import Path

import numpy
import sentencepiece

MARK = "\u2581"  # what SentencePiece puts before a word


def tokenizer(text, vocabulary, path):
    """Returns the SentencePiece model at `path`, trained there first if need be."""
    path = Path(path)
    if not path.exists():
        words = path.with_name("words.tsv")
        counts = Counter(word for word in text.split(" ") if word)
        words.write_text("".join(f"{word}\t{count}\n" for word, count in sorted(counts.items())), encoding="utf-8")
        partial = path.with_name(path.name + ".partial")
        sentencepiece.SentencePieceTrainer.train(
            input=str(words), input_format="tsv", model_prefix=str(partial), vocab_size=vocabulary, model_type="unigram",
            character_coverage=1.0, normalization_rule_name="identity", hard_vocab_limit=False, num_threads=1,
            minloglevel=2,
        )  # fmt: skip
        words.unlink()
        partial.with_name(partial.name + ".vocab").unlink()
        os.replace(f"{partial}.model", path)
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


def labels(text, pieces_of):
    """Returns one byte per character of `text`: 1 where a subword ends. `pieces_of` cuts a word into strings."""
    words = text.split(" ")
    known = {word: word_labels(word, pieces_of) for word in set(words)}
    whole = b"".join(map(known.__getitem__, words))[: len(text)]
    return numpy.frombuffer(whole, dtype=numpy.uint8)


def word_labels(word, pieces_of):
    """Returns labels of a word and the space after it."""
    result = bytearray(len(word) + 1)
    end = 0
    for piece in pieces_of(word) if word else ():
        end += len(piece) - piece.startswith(MARK)
        if 0 < end < len(word):
            result[end - 1] = 1
    result[-1] = 1
    return bytes(result)
