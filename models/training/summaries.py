"""The summarization task. Reads `CORPUS.SPLIT.jsonl(.xz)`: one JSON object per line with source, document, summary.

A run trains the subword tokenizer on the training pairs when it starts, stores it in the run folder, and exports it with the model in
the format of Hugging Face's tokenizers. Its first four pieces are fairseq's: beginning, padding, end, unknown.
"""

import json
import lzma
import math
import os
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from . import data
from .families.pyramidion import EOS, PAD

MARKS = ["<s>", "<pad>", "</s>", "<unk>"]


def read_pairs(folder, corpus, split):
    path = Path(folder) / f"{corpus}.{split}.jsonl"
    if path.exists():
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if not path.with_name(path.name + ".xz").exists():
        raise FileNotFoundError(f"neither {path} nor {path}.xz exists: create the corpus with python -m training.corpus")
    with lzma.open(path.with_name(path.name + ".xz"), "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def tokenizer(pairs, size, path):
    """Returns the tokenizer at `path`. Trains it first if the file is missing, on summaries and the beginnings of documents."""
    if not path.exists():
        trained = Tokenizer(models.Unigram())
        trained.normalizer = normalizers.NFKC()
        trained.pre_tokenizer = pre_tokenizers.Metaspace()
        trained.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=size, special_tokens=MARKS, unk_token="<unk>", show_progress=False)
        trained.train_from_iterator((pair[key][:2000] for pair in pairs for key in ("document", "summary")), trainer)
        partial = path.with_name(path.name + ".partial")
        trained.save(str(partial))
        os.replace(partial, path)
    result = Tokenizer.from_file(str(path))
    if result.get_vocab_size() > size:
        raise ValueError(f"{path}: the tokenizer has {result.get_vocab_size()} pieces, the model's vocabulary {size}")
    return result


def encode(tokens, texts, length):
    """Returns the ids of each text, cut to `length` with the end mark."""
    return [
        numpy.asarray(encoding.ids[: length - 1] + [EOS], dtype=numpy.uint16)
        for encoding in tokens.encode_batch(texts, add_special_tokens=False)
    ]


class Summaries:
    unit = "bpt"

    def __init__(self, config, folder, out):
        self.recipe, architecture = config["training"], config["model"]["architecture"]
        self.lengths = architecture["source_length"], architecture["target_length"]
        train = read_pairs(folder, self.recipe["corpus"], "train")
        self.tokens = tokenizer(train, config["model"]["vocabulary"]["size"], out / "tokenizer.json")
        self.train = self._encode(train)
        valid = read_pairs(folder, self.recipe["corpus"], "valid")
        step = max(1, len(valid) // self.recipe["valid_pairs"])
        self.valid = self._encode(valid[::step])
        self.order = data.Order(len(self.train), self.recipe["seed"])

    def _encode(self, pairs):
        sides = ([pair[key] for pair in pairs] for key in ("document", "summary"))
        return list(zip(*(encode(self.tokens, side, length) for side, length in zip(sides, self.lengths))))

    def batch(self, length):
        """Returns the arguments of the model's loss (source, previous, targets, share) and the number of tokens without padding."""
        pairs = [self.train[self.order.next()] for _ in range(self.recipe["batch_pairs"])]
        return collate(pairs), sum(len(source) + len(target) for source, target in pairs)

    @torch.no_grad()
    def validate(self, model):
        training, device = model.training, next(model.parameters()).device
        model.eval()
        nats, tokens, size = 0.0, 0, self.recipe["batch_pairs"]
        for start in range(0, len(self.valid), size):
            source, previous, targets, _ = (part.to(device) for part in collate(self.valid[start : start + size]))
            logits = model(source, previous).float().flatten(0, 1)
            nats += float(F.cross_entropy(logits, targets.flatten(), ignore_index=PAD, reduction="sum"))
            tokens += int((targets != PAD).sum())
        model.train(training)
        return {"bpt": nats / tokens / math.log(2)}

    @property
    def place(self):
        return self.order.consumed

    @place.setter
    def place(self, consumed):
        self.order.consumed = consumed


def collate(pairs):
    """Returns a batch padded on the right. The decoder starts from the end mark. `share` turns the mean over rows into one over tokens."""
    sources, targets = zip(*pairs)
    previous = padded([numpy.roll(target, 1) for target in targets])  # the end mark comes first
    share = torch.full((len(pairs),), len(pairs) / sum(map(len, targets)))
    return padded(sources), previous, padded(targets), share


def padded(rows):
    result = numpy.full((len(rows), max(map(len, rows))), PAD, dtype=numpy.int64)
    for target, row in zip(result, rows):
        target[: len(row)] = row
    return torch.from_numpy(result)
