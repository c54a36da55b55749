"""Trains on the cores of one processor. Each thread computes a part of the batch.

PyTorch's own threads share every single operation and synchronise at its end. On a machine with other work, all threads then wait for
the slowest one thousands of times a step. Here a thread runs forward and backward of its rows alone, and threads synchronise once a
step. Replicas share the weights' storage and have separate gradients.
"""

import copy
from concurrent.futures import ThreadPoolExecutor

import torch


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
            for weight, twin in zip(self.replicas[0].parameters(), replica.parameters()):
                if twin.grad is not None:
                    weight.grad = twin.grad if weight.grad is None else weight.grad.add_(twin.grad)
                    twin.grad = None
        loss = sum(loss for loss, _, _ in results)
        names = results[0][1]
        return loss, {name: sum(extra[name] * share for _, extra, share in results) for name in names}

    def _gradients_of_part(self, index, model, batch, total, position):
        share = len(batch[0]) / total
        model.set_step(*position, index)
        # Only matrix products use bf16, for which processors have instructions; sums and norms stay f32.
        with torch.autocast(device_type=batch[0].device.type, dtype=torch.bfloat16, enabled=self.precision == "bf16"):
            loss, extra = model.loss(*batch)
        loss = loss * share
        loss.backward()
        return float(loss.detach()), extra, share


def _replica(model):
    replica = copy.deepcopy(model)
    for weight, twin in zip(model.parameters(), replica.parameters()):
        twin.data = weight.data
    return replica
