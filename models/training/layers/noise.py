"""Randomness in the forward pass: dropout, and noise that decides boundaries.

All of it comes from a generator that is set anew for every step, from the run's seed, the step and the worker. So a resumed
run meets the noise that it would have met, and so does one whose batch is shared by threads, whatever order they run in.
"""

import numpy
import torch
from torch import nn


class Noise:
    """The generators of one model, one a device."""

    def __init__(self):
        self.seed, self.generators = 0, {}

    def reseed(self, *place):
        """Begin anew at a place, a few whole numbers ≥ 0."""
        self.seed = int(numpy.random.SeedSequence(place).generate_state(1, numpy.uint64)[0])
        for generator in self.generators.values():
            generator.manual_seed(self.seed)

    def generator(self, device):
        if device not in self.generators:
            self.generators[device] = torch.Generator(device)
            self.generators[device].manual_seed(self.seed)
        return self.generators[device]

    def logistic(self, like):
        """Standard logistic noise in f32: log u − log(1 − u), the difference of two Gumbel variables."""
        uniform = torch.rand(like.shape, generator=self.generator(like.device), device=like.device)
        return torch.logit(uniform, eps=torch.finfo(torch.float32).eps)

    def __deepcopy__(self, memo):
        return Noise()  # a replica of a model draws its own


class Dropout(nn.Module):
    """Inactive until `Family.prepare` gives it a rate and noise."""

    def __init__(self):
        super().__init__()
        self.rate, self.noise = 0.0, None

    def forward(self, x):
        if not self.training or self.rate == 0:
            return x
        keep = 1 - self.rate
        mask = torch.empty_like(x).bernoulli_(keep, generator=self.noise.generator(x.device))
        return x * mask.div_(keep)
