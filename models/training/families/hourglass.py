"""The hourglass with fixed or predicted boundaries (Dynamic Token Pooling, arXiv 2211.09761), and its vanilla baseline.

pre stack over characters → mean of each closed segment → LayerNorm → middle stack over segments → each character reads
the newest closed segment and adds its own pre-stack vector → post stack → logits of the next character.

Learned boundaries are trained in one of three ways (`training.boundaries` of a configuration, section 3.1): by Gumbel noise
and a binomial prior, by a subword segmentation as labels, or by the spikes of the model's own entropy as labels.
"""

import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

from .. import data
from ..layers.attention import Position
from ..layers.boundaries import Learned, boundary_source
from ..layers.ngrams import Ngrams
from ..layers.noise import Dropout
from ..layers.pooling import Segments
from ..layers.transformer import Stack
from .base import Family

METHODS = ("gumbel", "unigram", "entropy")


class Hourglass(Family):
    def __init__(self, config):
        super().__init__()
        architecture, symbols = config["architecture"], data.size(config["vocabulary"])
        dim, layers = architecture["dim"], architecture["layers"]
        if architecture["position"] != "transformer-xl":
            raise ValueError(f"unknown position scheme {architecture['position']!r}")
        self.embedding = nn.Embedding(symbols, dim)
        self.ngrams = Ngrams(architecture["ngrams"], dim) if "ngrams" in architecture else None
        self.dropout = Dropout()
        self.teaching = None  # training of learned boundaries; set by `prepare`
        self.position = Position(dim, architecture["heads"], architecture["head_dim"])
        window, middle_window = architecture.get("window", "full"), architecture.get("middle_window", "full")
        self.pre = Stack(layers["pre"], architecture, window)
        self.boundary = boundary_source(architecture["boundaries"], architecture, config["vocabulary"])
        if self.boundary is not None:
            self.null_group = nn.Parameter(torch.zeros(dim))
            self.pool_norm = nn.LayerNorm(dim, eps=architecture["layer_norm_eps"])
            self.pooling = {"mean": Segments.pool_mean, "last": Segments.pool_last}[architecture["pooling"]]
            self.middle = Stack(layers["middle"], architecture, middle_window)
            self.post = Stack(layers["post"], architecture, window)
        self.head = nn.Linear(dim, symbols)
        self._initialise()

    def forward(self, ids, boundaries=None):
        """Maps ids (batch, len) to logits (batch, len, symbols). `boundaries` overrides the model's own source."""
        return self.trace(ids, boundaries).logits

    def prepare(self, recipe):
        super().prepare(recipe)
        self.teaching = recipe.get("boundaries")
        method = self.teaching["method"] if self.teaching else None
        if isinstance(self.boundary, Learned) != (method in METHODS):
            raise ValueError(f"training.boundaries.method: learned boundaries require one of {METHODS}, other boundaries must not have it")

    def trace(self, ids, boundaries=None, offset=0, noise=None):
        """Returns the intermediate values of the forward pass, for tests and statistics. The window starts at `offset` of its text.

        `noise` (batch, len) from a logistic distribution samples learned boundaries. Gradients then reach the predictor through the
        sample (Gumbel-sigmoid, straight through).
        """
        steps = SimpleNamespace(boundaries=None, boundary_logits=None, shift=None)
        embedded = self.embedding(ids) if self.ngrams is None else self.embedding(ids) + self.ngrams(ids)
        steps.pre = self.pre(self.dropout(embedded), self.position)  # (batch, len, dim)
        top = steps.pre
        if self.boundary is not None:
            self._cut(steps, ids, boundaries, offset, noise)
            segments = Segments(steps.boundaries)
            null = self.null_group.expand(len(ids), 1, -1)
            steps.pooled = torch.cat([null, self.pooling(segments, steps.pre, steps.shift)], dim=1)  # (batch, 1 + segments, dim)
            steps.middle = self.middle(self.pool_norm(steps.pooled), self.position)
            steps.joined = segments.upsample(steps.middle) + steps.pre  # (batch, len, dim)
            top = self.post(steps.joined, self.position)
        steps.top = top
        steps.logits = self.head(top)  # (batch, len, symbols)
        return steps

    def _cut(self, steps, ids, boundaries, offset, noise):
        """Sets where segments end, (batch, len), and, for sampled boundaries, the zero that carries their gradients."""
        if isinstance(self.boundary, Learned) and self.training:
            steps.boundary_logits = self.boundary.logits(steps.pre)
        if boundaries is not None:
            steps.boundaries = boundaries
        elif noise is not None:
            soft = torch.sigmoid((steps.boundary_logits + noise) / self.teaching["temperature"])
            steps.boundaries = soft > 0.5
            steps.shift = soft - soft.detach()
        elif steps.boundary_logits is not None:
            steps.boundaries = self.boundary.decide(steps.boundary_logits)
        else:
            steps.boundaries = self.boundary(ids, steps.pre, offset)

    def loss(self, ids, targets, labels=None):
        """Returns mean nats per character plus the predictor's own loss. `labels` (batch, len) are ends of subwords."""
        method = self.teaching["method"] if self.teaching else None
        steps = self.trace(ids, noise=self.noise.logistic(ids) if method == "gumbel" else None)
        nats = F.cross_entropy(steps.logits.float().flatten(0, 1), targets.flatten())
        rate = 1.0 if steps.boundaries is None else float(steps.boundaries.float().mean())
        extra = {"nats": float(nats.detach()), "boundary_rate": rate}
        if method is None:
            return nats, extra
        if method == "gumbel":
            own = binomial_loss(steps.boundaries + steps.shift, self.teaching["prior"])
        else:
            ends = labels.float() if method == "unigram" else spikes(steps.logits.detach(), self.teaching["window"]).float()
            own = F.binary_cross_entropy_with_logits(steps.boundary_logits, ends)
            extra["label_rate"] = float(ends.mean())
        return nats + own, {**extra, "boundary_loss": float(own.detach())}

    def matrices(self):
        stacks = [getattr(self, name) for name in ("pre", "middle", "post") if hasattr(self, name)]
        return [weight for stack in stacks for weight in stack.parameters() if weight.dim() == 2]

    def _initialise(self):
        for name, weight in self.named_parameters():
            if name == "null_group":
                nn.init.normal_(weight)
            elif weight.dim() == 2 and not name.startswith("position."):
                nn.init.normal_(weight, std=0.01 if name.startswith("ngrams.") else 0.02)
            elif name.endswith(".bias"):
                nn.init.zeros_(weight)


def binomial_loss(boundaries, prior):
    """Returns the mean over rows of −log Binomial(k; len, prior) / len, where k counts a row's boundaries (batch, len); equation 7.

    The loss is differentiable in k: gamma functions express the binomial coefficient.
    """
    length = boundaries.shape[1]
    count = boundaries.sum(1)
    ways = math.lgamma(length + 1) - torch.lgamma(count + 1) - torch.lgamma(length - count + 1)
    return -(ways + count * math.log(prior) + (length - count) * math.log1p(-prior)).mean() / length


def spikes(logits, window):
    """Returns where the entropy of the next symbol exceeds that of all `window` positions before (equation 6): booleans (batch, len).

    Positions with fewer predecessors compare with those that exist, so the first position is always a spike.
    """
    log_probabilities = logits.float().log_softmax(-1)
    entropy = -(log_probabilities.exp() * log_probabilities).sum(-1)
    result = torch.ones_like(entropy, dtype=torch.bool)
    for back in range(1, window + 1):
        result[:, back:] &= entropy[:, back:] > entropy[:, :-back]
    return result
