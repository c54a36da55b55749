"""T5's stack with causal attention, which Latent Segment Language Models use three times (SPEC of the family, section 2).

Layers have RMS pre-norm, no biases, and ReLU; scores are not divided by √head_dim. Each stack has one table of distance biases. A stack
with a memory also attends to the memory, without distances.
"""

import torch
import torch.nn.functional as F
from torch import nn

from .noise import Dropout
from .schemes import bucket


class RmsNorm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x):
        wide = x.float()
        return self.weight * wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)


class Attention(nn.Module):
    """Norm and attention. Returns the vectors to add to the residual stream."""

    def __init__(self, shape, eps, taken, memory=None):
        super().__init__()
        self.heads, self.head_dim = shape["heads"], shape["head_dim"]
        inner, source = self.heads * self.head_dim, memory or taken
        self.norm = RmsNorm(taken, eps)
        self.query = nn.Linear(taken, inner, bias=False)
        self.key = nn.Linear(source, inner, bias=False)
        self.value = nn.Linear(source, inner, bias=False)
        self.output = nn.Linear(inner, shape["dim"], bias=False)
        self.dropout = Dropout()

    def forward(self, x, bias, memory=None):
        """Adds `bias` (…, heads or 1, len, keys) to the scores: distance biases, and −∞ for masked keys."""
        normed = self.norm(x)
        source = normed if memory is None else memory
        query, key, value = (self._split(part) for part in (self.query(normed), self.key(source), self.value(source)))
        scores = (query @ key.transpose(2, 3)).float() + bias  # (batch, heads, len, keys)
        mixed = self.dropout(scores.softmax(-1)).to(value.dtype) @ value
        return self.output(mixed.transpose(1, 2).flatten(2))

    def _split(self, x):
        return x.view(*x.shape[:2], self.heads, self.head_dim).transpose(1, 2)  # (batch, heads, len, head_dim)


class FeedForward(nn.Module):
    def __init__(self, shape, eps):
        super().__init__()
        self.norm = RmsNorm(shape["dim"], eps)
        self.up = nn.Linear(shape["dim"], shape["feed_forward"], bias=False)
        self.down = nn.Linear(shape["feed_forward"], shape["dim"], bias=False)
        self.dropout = Dropout()

    def forward(self, x):
        return self.down(self.dropout(F.relu(self.up(self.norm(x)))))


class Layer(nn.Module):
    def __init__(self, shape, eps, taken, memory):
        super().__init__()
        self.attention = Attention(shape, eps, taken)
        self.memory = Attention(shape, eps, shape["dim"], memory) if memory else None
        self.feed_forward = FeedForward(shape, eps)
        self.residual = taken == shape["dim"]  # unequal widths have no residual
        self.dropout = Dropout()

    def forward(self, x, bias, memory, hidden):
        mixed = self.dropout(self.attention(x, bias))
        x = x + mixed if self.residual else mixed
        if self.memory is not None:
            x = x + self.dropout(self.memory(x, hidden, memory))
        return x + self.dropout(self.feed_forward(x))


class Stack(nn.Module):
    """Layers named by their index, a table of distance biases, and a final norm. `taken` is the input's width."""

    def __init__(self, shape, eps, taken=None, memory=None):
        super().__init__()
        self.shape = shape
        for index in range(shape["layers"]):
            first = taken if index == 0 and taken else shape["dim"]
            self.add_module(str(index), Layer(shape, eps, first, memory))
        self.distance_bias = nn.Embedding(shape["buckets"], shape["heads"])
        self.norm = RmsNorm(shape["dim"], eps)
        self.dropout = Dropout()
        self._initialise()

    def forward(self, x, visible=None, memory=None, memory_visible=None):
        """Maps (batch, len, taken) to (batch, len, dim).

        Attention reads earlier positions where `visible` (batch, len, len) is true, and memory where `memory_visible`
        (batch, len, memory) is true.
        """
        length = x.shape[1]
        position = torch.arange(length, device=x.device)
        distance = position.unsqueeze(1) - position
        bias = self.distance_bias(self._bucket(distance.clamp(min=0))).permute(2, 0, 1).float()  # (heads, len, len)
        seen = distance >= 0 if visible is None else (distance >= 0) & visible.unsqueeze(1)
        bias = bias.masked_fill(~seen, float("-inf"))
        hidden = None
        if memory is not None:
            hidden = torch.zeros(memory_visible.shape, device=x.device).masked_fill(~memory_visible, float("-inf")).unsqueeze(1)
        x = self.dropout(x)
        for index in range(self.shape["layers"]):
            x = getattr(self, str(index))(x, bias, memory, hidden)
        return self.dropout(self.norm(x))

    def _bucket(self, distance):
        count = self.shape["buckets"] // (2 if self.shape["bidirectional_buckets"] else 1)
        return bucket(distance, count, self.shape["max_distance"])

    def _initialise(self):
        """Initialises weights as T5: deviations keep the size of sums; queries are smaller because scores are not divided."""
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                std = weight.shape[1] ** -0.5
                if name.endswith("query.weight"):
                    std *= self.shape["head_dim"] ** -0.5
                nn.init.normal_(weight, std=self.shape["dim"] ** -0.5 if name.startswith("distance_bias") else std)
