"""Trains on the cores of one processor. Each thread computes a part of the batch.

PyTorch's own threads share every single operation and synchronise at its end. On a machine with other work, all threads then wait for
the slowest one thousands of times a step. Here a thread runs forward and backward of its rows alone, and threads synchronise once a
step. Replicas share the weights' storage and have separate gradients.
"""

import copy
from concurrent.futures import ThreadPoolExecutor

import torch

PIECE = 4096  # symbols that a processor reads in one pass: their hidden vectors fit its caches


class Workers:
    """Runs `count` threads over replicas of `model`. With one, the caller's thread computes, with PyTorch's own threading."""

    def __init__(self, model, count, precision):
        if count < 1:
            raise ValueError(f"workers: expected at least 1, found {count}")
        self.count, self.precision = count, precision
        self.replicas = [model] + [_replica(model) for _ in range(count - 1)]
        self.pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) if count > 1 else None

    def map(self, function, items):
        """Returns the results in the order of the items."""
        return list(self.pool.map(function, items) if self.pool else map(function, items))

    def gradients(self, batch, position):
        """Adds the batch's gradients to the model's; returns the mean loss and the means of the logged figures.

        `batch` is a list of tensors whose first axis is rows. `position` is the seed and the step of the run.
        """
        chunks = list(zip(*(part.chunk(self.count) for part in batch)))
        parts = [(index, *part) for index, part in enumerate(zip(self.replicas, chunks))]
        results = self.map(lambda part: self._gradients_of_part(*part, total=len(batch[0]), position=position), parts)
        for replica in self.replicas[1:]:
            for weight, other in zip(self.replicas[0].parameters(), replica.parameters()):
                if other.grad is not None:
                    weight.grad = other.grad if weight.grad is None else weight.grad.add_(other.grad)
                    other.grad = None
        loss = sum(loss for loss, _, _ in results)
        names = results[0][1]
        return loss, {name: sum(extra[name] * share for _, extra, share in results) for name in names}

    def _gradients_of_part(self, index, model, batch, total, position):
        """Adds gradients of a worker's rows; returns their share of the loss, the means of the logged figures, and their share of rows."""
        model.set_step(*position, index)
        device, rows = batch[0].device.type, len(batch[0])
        count = max(1, PIECE // batch[0].shape[1]) if device == "cpu" else rows
        loss, means = 0.0, {}
        for piece in zip(*(part.split(count) for part in batch)):
            # Only matrix products use bf16, for which processors have instructions; sums and norms stay f32.
            with torch.autocast(device_type=device, dtype=torch.bfloat16, enabled=self.precision == "bf16"):
                piece_loss, extra = model.loss(*piece)
            piece_loss = piece_loss * (len(piece[0]) / total)
            piece_loss.backward()
            loss += float(piece_loss.detach())
            for name, value in extra.items():
                means[name] = means.get(name, 0.0) + value * (len(piece[0]) / rows)
        return loss, means, rows / total


def _replica(model):
    replica = copy.deepcopy(model)
    for weight, other in zip(model.parameters(), replica.parameters()):
        other.data = weight.data
    return replica
