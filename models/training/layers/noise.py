"""Random numbers of the forward pass: dropout, and noise that samples boundaries.

The generator is seeded again for every step, from the run's seed, the step and the worker. So a resumed run gets the same noise as an
uninterrupted one, and the order of threads that share a batch does not matter.
"""

import numpy
import torch
from torch import nn


class Noise:
    """The random number generators of one model, one per device."""

    def __init__(self):
        self.seed, self.generators = 0, {}

    def reseed(self, *position):
        """Seeds the generators from integers ≥ 0."""
        self.seed = int(numpy.random.SeedSequence(position).generate_state(1, numpy.uint64)[0])
        for generator in self.generators.values():
            generator.manual_seed(self.seed)

    def generator(self, device):
        if device not in self.generators:
            self.generators[device] = torch.Generator(device)
            self.generators[device].manual_seed(self.seed)
        return self.generators[device]

    def logistic(self, like):
        """Returns standard logistic noise in f32: log u − log(1 − u), the difference of two Gumbel variables."""
        uniform = torch.rand(like.shape, generator=self.generator(like.device), device=like.device)
        return torch.logit(uniform, eps=torch.finfo(torch.float32).eps)

    def __deepcopy__(self, memo):
        return Noise()  # a replica of a model has its own generators


class Dropout(nn.Module):
    """A dropout layer, inactive until `Family.prepare` sets its rate and noise."""

    def __init__(self):
        super().__init__()
        self.rate, self.noise = 0.0, None

    def forward(self, x):
        if not self.training or self.rate == 0:
            return x
        keep = 1 - self.rate
        mask = torch.empty_like(x).bernoulli_(keep, generator=self.noise.generator(x.device))
        return x * mask.div_(keep)
