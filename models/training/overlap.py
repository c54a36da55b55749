"""Measures overlap with the training text: the share of its runs of twelve words that stand in a training document."""

RUN = 12  # words


def runs(text):
    words = text.split()
    return [hash(tuple(words[start : start + RUN])) for start in range(max(1, len(words) - RUN + 1))]


def shares(documents, training):
    """Returns the share for each document. A document that is shorter than a run counts as one run."""
    wanted = [runs(document) for document in documents]
    sought, found = {run for own in wanted for run in own}, set()
    for document in training:
        found.update(sought.intersection(runs(document)))
    return [sum(run in found for run in own) / len(own) for own in wanted]
