"""Measures bits per character of a text in fresh windows (arXiv 2211.09761's evaluation).

The text is cut into rows. With one row, the result equals the server's Score with windows. For each stretch of `stride` targets, the
model runs a window that starts up to `total - stride` characters before the stretch, and only the stretch is scored. With
total = stride no character is read twice, but the first characters of each window have hardly any context, which makes the result
worse. Fixed boundaries count from the start of the row, as in the reference. Do not measure a model beyond its training length.
"""

import math

import torch
import torch.nn.functional as F


def measure(model, ids, stride, total, rows=32, progress=None):
    """Measures a model with the `measure` method of its family if it has one, otherwise in windows."""
    if hasattr(model, "measure"):
        return model.measure(ids, total, progress)
    return bits_per_character(model, ids, stride, total, rows, progress)


@torch.no_grad()
def bits_per_character(model, ids, stride, total, rows=32, progress=None):
    """Returns BPC, the number of scored characters and the boundary rate. `ids` is a 1-D uint8 array."""
    if not 1 <= stride <= total:
        raise ValueError(f"stride: expected 1 to {total} (the length of a window), found {stride}")
    row_length = len(ids) // rows
    if row_length < 2:
        raise ValueError(f"rows: {len(ids)} symbols do not fill {rows} rows of at least 2")
    training, device = model.training, next(model.parameters()).device
    model.eval()
    text = torch.from_numpy(ids[: rows * row_length].astype("int64")).view(rows, row_length)
    nats, scored, ends, read = 0.0, 0, 0.0, 0
    for start in range(0, row_length - 1, stride):
        count = min(stride, row_length - 1 - start)
        first = max(0, start - (total - stride))
        window = text[:, first : start + count].to(device)  # (rows, ≤ total)
        targets = text[:, start + 1 : start + 1 + count].to(device)  # (rows, count)
        steps = model.trace(window, offset=first)
        logits = steps.logits[:, -count:].float()
        nats += float(F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum"))
        scored += targets.numel()
        if steps.boundaries is not None:
            ends += float(steps.boundaries[:, -count:].sum())
            read += targets.numel()
        if progress:
            progress(start + count, row_length - 1)
    model.train(training)
    return {"bpc": nats / scored / math.log(2), "scored": scored, "boundary_rate": ends / read if read else 1.0}


@torch.no_grad()
def as_served(model, ids, stride, total):
    """Returns bits per character as the server's Score with windows computes them.

    The text is one row, its first symbol is not scored, and marks of the model are not counted.
    """
    if not hasattr(model, "text_nats"):
        return bits_per_character(model, ids, stride, total, rows=1)["bpc"]
    text, nats, last = torch.from_numpy(ids.astype("int64")), 0.0, len(ids) - 1
    for start in range(0, last, stride):
        count = min(stride, last - start)
        first = max(0, start - (total - stride))
        nats += model.text_nats(text[first : start + count + 1], count)
    return nats / last / math.log(2)
