"""Averages weights over training: the average is better than the last weights as long as the learning rate is high.

With `{"every": n, "keep": k}`, the average moves by 1 − k towards the weights after every n-th update. So it spans about n / (1 − k)
updates; the first updates are averaged equally. The exported checkpoint and the validation figures use the average.
"""

import contextlib

import torch


class Average:
    def __init__(self, model, settings):
        self.model, self.every, self.keep = model, settings["every"], settings["keep"]
        self.weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        self.count = 0

    @torch.no_grad()
    def update(self, step):
        """Adds the weights after update number `step`, if it is the turn of this update."""
        if step % self.every:
            return
        move = max(1 - self.keep, 1 / (self.count + 1))
        for name, weight in self.model.named_parameters():
            self.weights[name].lerp_(weight, move)
        self.count += 1

    @contextlib.contextmanager
    def in_place(self):
        """Gives the model the average for the time of a `with` block."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self):
        for name, weight in self.model.named_parameters():
            own = weight.clone()
            weight.copy_(self.weights[name])
            self.weights[name].copy_(own)

    def state(self):
        return {"count": self.count, "weights": self.weights}

    def load(self, state):
        self.count = state["count"]
        for name, weight in state["weights"].items():
            self.weights[name].copy_(weight)
