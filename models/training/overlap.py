"""Measures the overlap of documents with the training text: the share of runs of twelve words that occur in a training document."""

RUN = 12  # words


def runs(text):
    words = text.split()
    return [hash(tuple(words[start : start + RUN])) for start in range(max(1, len(words) - RUN + 1))]


def shares(documents, training):
    """Returns the share of each document. A document shorter than a run counts as one run."""
    wanted = [runs(document) for document in documents]
    sought = {run for own in wanted for run in own}
    found = set()
    for document in training:
        found.update(sought.intersection(runs(document)))
    return [sum(run in found for run in own) / len(own) for own in wanted]
