"""Training data and validation of a run: text for language models, pairs of document and summary for summarizers.

A task has four members. `batch(length)` returns a tuple of tensors whose first axis is rows, and the number of symbols.
`validate(model)` returns a dictionary of figures. `place` is the position in the data, for a resumed run. `unit` is the unit of the
log: bits per character or per token.
"""

import numpy

from . import data, evaluation


def build(config, folder, out):
    """Returns the task of a configuration. The run folder `out` keeps tokenizers that the task trains."""
    if config["model"]["family"] == "pyramidion":
        from .summaries import Summaries  # needs packages that language models do not need

        return Summaries(config, folder, out)
    return Text(config, folder, out)


class Text:
    """The language modelling task over windows of characters or bytes."""

    unit = "bpc"

    def __init__(self, config, folder, out):
        self.recipe, self.model_config = config["training"], config["model"]
        corpus, vocabulary = self.recipe["corpus"], self.model_config["vocabulary"]
        text = data.read_text(folder, corpus, "train")
        self.windows = data.Windows(data.encode(text, vocabulary), self.recipe["seed"], self._labels(text, out))
        self.windows.check(max(stage["length"] for stage in self.recipe["stages"]))
        valid = data.encode(data.read_text(folder, corpus, "valid"), vocabulary)
        self.valid = sample(valid, self.recipe["valid_characters"])

    def batch(self, length):
        batch = self.windows.batch(self.recipe["batch_characters"], length)
        return batch, batch[0].numel()

    def validate(self, model):
        length = min(self.model_config["training_length"], len(self.valid) // 32)
        return evaluation.measure(model, self.valid, stride=length, total=length)

    @property
    def place(self):
        return self.windows.order.consumed

    @place.setter
    def place(self, consumed):
        self.windows.order.consumed = consumed

    def _labels(self, text, out):
        teaching = self.recipe.get("boundaries", {})
        if teaching.get("method") != "unigram":
            return None
        from . import subwords  # needs SentencePiece

        tokenizer = subwords.tokenizer(text, teaching["vocabulary"], out / "subwords.model")
        return subwords.labels(text, lambda word: tokenizer.encode(word, out_type=str))


def sample(ids, characters, pieces=32):
    """Returns evenly spaced pieces of a text, so that the sample represents every source."""
    if characters >= len(ids):
        return ids
    size = characters // pieces
    return numpy.concatenate([ids[start : start + size] for start in range(0, len(ids) - size, len(ids) // pieces)][:pieces])
