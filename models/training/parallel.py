"""Trains on the cores of one processor with threads that each take a part of the batch.

PyTorch's own threads share every single operation and meet at its end; on a machine with other work, all then wait for
whichever was put aside, thousands of times a step. Here a thread runs forward and backward of its rows alone, and they meet
once a step. Replicas share the weights' storage and have gradients of their own.
"""

import copy
from concurrent.futures import ThreadPoolExecutor

import torch


class Workers:
    """`count` threads over `model`; with one, everything runs in the caller's thread with PyTorch's own threading."""

    def __init__(self, model, count, precision):
        if count < 1:
            raise ValueError(f"{count} workers: at least one is needed")
        self.count, self.precision = count, precision
        self.replicas = [model] + [_replica(model) for _ in range(count - 1)]
        self.pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) if count > 1 else None

    def map(self, function, items):
        """Returns results in the items' order."""
        return list(self.pool.map(function, items) if self.pool else map(function, items))

    def gradients(self, batch, place):
        """Add the batch's gradients to the model's; returns the mean loss and the mean of what was logged.

        `batch` is tensors with rows as their first axis; `place` is where the run is, its seed and its step.
        """
        chunks = list(zip(*(part.chunk(self.count) for part in batch)))
        parts = [(index, *part) for index, part in enumerate(zip(self.replicas, chunks))]
        results = self.map(lambda part: self._one(*part, total=len(batch[0]), place=place), parts)
        for replica in self.replicas[1:]:
            for weight, twin in zip(self.replicas[0].parameters(), replica.parameters()):
                if twin.grad is not None:
                    weight.grad = twin.grad if weight.grad is None else weight.grad.add_(twin.grad)
                    twin.grad = None
        loss = sum(loss for loss, _, _ in results)
        names = results[0][1]
        return loss, {name: sum(extra[name] * share for _, extra, share in results) for name in names}

    def _one(self, index, model, batch, total, place):
        share = len(batch[0]) / total
        model.at(*place, index)
        # bf16 is for the matrix products, where the processor has instructions for it; sums and norms stay f32.
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
