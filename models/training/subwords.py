"""Labels the ends of subwords for the boundary predictor (Dynamic Token Pooling, section 3.1.2).

A SentencePiece unigram model is trained on the corpus's words, so that no piece crosses a space. It then cuts each word with all of its
characters known. A model that generates text does not know them, so its predictor learns to anticipate the cuts. A piece ends with its
last character; the last piece of a word ends with the following space.
"""

import os
from collections import Counter
from pathlib import Path

import numpy
import sentencepiece

MARK = "\u2581"  # SentencePiece's mark before a word


def tokenizer(text, vocabulary, path):
    """Returns the SentencePiece model at `path`. Trains it first if the file is missing."""
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
    encoded = b"".join(map(known.__getitem__, words))[: len(text)]
    return numpy.frombuffer(encoded, dtype=numpy.uint8)


def word_labels(word, pieces_of):
    """Returns the labels of a word and of the space after it."""
    result = bytearray(len(word) + 1)
    end = 0
    for piece in pieces_of(word) if word else ():
        end += len(piece) - piece.startswith(MARK)
        if 0 < end < len(word):
            result[end - 1] = 1
    result[-1] = 1
    return bytes(result)
