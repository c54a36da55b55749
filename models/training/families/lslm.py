"""Latent Segment Language Model (LSLM): learns its segments without labels and generates them with a segment decoder.

token encoder over symbols → boundary → pool each closed segment → context encoder over segments → decoder, which generates a
segment from the segments before it and ends it with a mark. Training (section 2.4) maximises the likelihood of symbols and marks
given sampled boundaries, minus β times a divergence of their probabilities from the prior (layers/elbo.py).
"""

import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

from .. import data
from ..layers import elbo
from ..layers.pooling import Segments
from ..layers.t5 import Stack
from .base import Family

EVALUATION_ROWS = 64


class Lslm(Family):
    def __init__(self, config):
        super().__init__()
        architecture, self.marks = config["architecture"], config["vocabulary"]["specials"]
        symbols, eps = data.size(config["vocabulary"]), architecture["norm_eps"]
        token, context, decoder = (architecture[name] for name in ("token", "context", "decoder"))
        self.driver, self.threshold = architecture["driver"], architecture["boundaries"]["threshold"]
        self.pooling = architecture["pooling"]
        self.token = Stack(token, eps)
        first = architecture["widths"] == "first-layer"
        self.context = Stack(context, eps, taken=token["dim"] if first else None)
        self.decoder = Stack(decoder, eps, memory=context["dim"])
        self.shared = architecture["shared_embedding"]
        if self.shared:
            self.embedding = nn.Embedding(symbols, token["dim"])
        else:
            self.token.embedding = nn.Embedding(symbols, token["dim"])
            self.decoder.embedding = nn.Embedding(symbols, decoder["dim"])
        if architecture["widths"] == "projection":
            self.context.projection = nn.Linear(token["dim"], context["dim"], bias=False)
        self.boundary = Predictor(token["dim"], architecture["boundaries"]["hidden"])
        self.tied = architecture["tied_head"]
        self.head = Head(symbols, decoder["dim"], self.tied)
        self.elbo = None
        self._initialise()

    def prepare(self, recipe):
        super().prepare(recipe)
        self.elbo = recipe["elbo"]
        if self.elbo.get("after"):  # all probabilities start at one half, so that costs decide instead of chance
            nn.init.zeros_(self.boundary.output.weight)

    def posterior(self):
        """Returns the parameters of equation 2, which is also the inference model."""
        return list(self.boundary.parameters())

    def matrices(self):
        stacks = (self.token, self.context, self.decoder)
        named = [(name, weight) for stack in stacks for name, weight in stack.named_parameters()]
        return [weight for name, weight in named if weight.dim() == 2 and not name.startswith(("embedding", "distance_bias"))]

    def trace(self, ids, boundaries=None, noise=None, ended=True):
        """Returns the intermediate values of the forward pass over ids (batch, n) of text without marks.

        `boundaries` (batch, n + 1), the start mark's first, overrides the predictor. `noise` samples boundaries. With `ended`, the text
        ends after the ids.
        """
        steps = SimpleNamespace()
        start = ids.new_full((len(ids), 1), self.marks["start"])
        tokens = (self.embedding if self.shared else self.token.embedding)(torch.cat([start, ids], dim=1))
        steps.hidden = self.token(tokens)  # (batch, n + 1, dim)
        steps.boundary_logits = self.boundary(steps.hidden)  # (batch, n + 1)
        steps.boundaries, steps.shift = self._cut(steps.boundary_logits, boundaries, noise)
        segments = Segments(steps.boundaries)
        steps.counts = segments.counts
        steps.pooled = self._pool(segments, steps.hidden, steps.shift)  # (batch, segments, dim)
        projection = getattr(self.context, "projection", None)
        steps.context = self.context(steps.pooled if projection is None else projection(steps.pooled))
        self._lay_out(steps, segments, ids, ended)
        inputs = (self.embedding if self.shared else self.decoder.embedding)(steps.inputs)
        same = steps.segment.unsqueeze(2) == steps.segment.unsqueeze(1)  # (batch, positions, positions)
        known = torch.arange(segments.longest, device=ids.device) < steps.segment.clamp(min=1).unsqueeze(2)
        written = self.decoder(inputs, same, steps.context, known)  # (batch, positions, dim)
        steps.logits = self.head(written, (self.embedding if self.shared else self.decoder.embedding).weight)
        return steps

    def forward(self, ids):
        """Returns logits of the decoder's positions, (batch, positions, symbols); `trace` also returns the segment of each position."""
        return self.trace(ids).logits

    def _cut(self, logits, boundaries, noise):
        """Returns boundaries (batch, n + 1) and, if they are sampled, the zero that carries their gradients (equations 5 and 6)."""
        shift = None
        if boundaries is None and noise is None:
            boundaries = torch.sigmoid(logits) >= self.threshold
        elif boundaries is None:
            soft = torch.sigmoid(logits + noise)
            boundaries, shift = soft >= 0.5, soft - soft.detach()
            shift = torch.cat([torch.zeros_like(shift[:, :1]), shift[:, 1:]], dim=1)
        boundaries = boundaries.clone()
        boundaries[:, 0] = True  # the start mark is a segment of its own
        return boundaries, shift

    def _pool(self, segments, hidden, shift):
        if self.pooling == "mean":
            return segments.pool_mean(hidden, shift)
        return segments.pool_hops(hidden, 0 if self.pooling == "last" else self.pooling["hops"], shift)

    def _lay_out(self, steps, segments, ids, ended):
        """Concatenates the decoder's rows, one per segment: inputs, targets, segment, each (batch, positions).

        Position t of the text (0: the start mark) has up to two positions in the decoder. If t is a symbol, it has a first one, whose
        input is the symbol. If t ends a segment, it has a second one, whose input is the mark that begins the next segment. The target
        of a first one is the mark that ends a segment if t ends one. The other targets are the next symbol; after the last symbol, the
        end mark if the text has `ended`, else −1.
        """
        batch, length = ids.shape
        marks, ends, device = self.marks, steps.boundaries, ids.device
        position = torch.arange(length + 1, device=device).expand(batch, -1)
        behind = torch.full((batch, 1), marks["end"] if ended else -1, device=device)
        following = torch.cat([ids, behind], dim=1)  # (batch, n + 1)
        positions = length + segments.longest
        read = position[:, 1:] - 1 + segments.owner[:, 1:]  # (batch, n): where symbols are read
        begin = torch.where(ends, position + segments.owner, positions)  # (batch, n + 1); the index `positions` is cut off below
        blank = torch.full((batch, positions + 1), -1, device=device)
        target = torch.where(ends[:, 1:], marks["segment_end"], following[:, 1:])
        steps.targets = blank.scatter(1, read, target).scatter(1, begin, following)[:, :positions]
        steps.segment = blank.scatter(1, read, segments.owner[:, 1:]).scatter(1, begin, segments.owner + 1)[:, :positions]
        steps.read, steps.begin, steps.following = read, begin, following
        first = torch.full_like(begin, marks["segment_start"])
        steps.inputs = blank.clamp(min=0).scatter(1, read, ids).scatter(1, begin, first)[:, :positions]

    def loss(self, ids, targets):
        """Returns nats per symbol of text, end and segment marks and, once the predictor learns, β times the divergence per position.

        Each window is an independent chunk: the symbols after it are not used as targets.
        """
        noise = self.noise.logistic(ids.new_empty(len(ids), ids.shape[1] + 1))
        prior, learning = self.elbo["prior"], self.step >= self.elbo.get("after", 0)
        # Before update `after` the prior draws boundaries: costs mean nothing until the decoder has learnt something.
        drawn = None if learning else noise > math.log(1 / prior - 1)
        steps = self.trace(ids, drawn, noise)
        nats = F.cross_entropy(steps.logits.float().flatten(0, 1), steps.targets.flatten(), ignore_index=-1, reduction="sum")
        nats = nats / ids.numel()
        logits = steps.boundary_logits[:, 1:].float()
        divergence = elbo.DIVERGENCES[self.elbo["divergence"]](logits, prior)
        extra = {"divergence": float(divergence.detach()), "boundary_rate": float(steps.boundaries[:, 1:].float().mean())}
        extra["mean_probability"] = float(torch.sigmoid(logits.detach()).mean())
        loss = nats
        if learning:
            loss = loss + self.elbo["beta"] * divergence
            if self.elbo["costs"]:
                loss = loss + elbo.costs(steps, self.marks["segment_end"]) / ids.numel()
        return loss, {"nats": float(nats.detach()), **extra}

    @torch.no_grad()
    def measure(self, ids, total, progress=None):
        """Measures bits per character of chunks of `total` symbols, each with start and end marks, with the predictor's boundaries.

        Three figures are divided by the length with both marks, as in the paper (SPEC, section 9): `bpc_paper` without the cost of
        segment marks, `bpc_joint` with it, and `bpc_renormalised` without probability for marks that do not occur in text. `bpc` is the
        figure for the checkpoint's driver, which the server reports. Other families have no marks; to compare with them, use
        `bits_per_char_no_eos`, which counts symbols only. `nxt_bits_per_char` is the additional cost of segment marks.
        """
        training, device = self.training, next(self.parameters()).device
        self.eval()
        chunks = torch.from_numpy(ids[: len(ids) // total * total].astype("int64")).view(-1, total)
        sums, ends = torch.zeros(4, dtype=torch.float64), 0
        for start in range(0, len(chunks), EVALUATION_ROWS):
            steps = self.trace(chunks[start : start + EVALUATION_ROWS].to(device))
            sums += torch.tensor(self.bits(steps), dtype=torch.float64)
            ends += int(steps.boundaries[:, 1:].sum())
            if progress:
                progress(min(start + EVALUATION_ROWS, len(chunks)), len(chunks))
        self.train(training)
        paper, joint, renormalised, _ = (float(value) / (len(chunks) * (total + 2)) for value in sums)
        result = {"bpc_paper": paper, "bpc_joint": joint, "bpc_renormalised": renormalised}
        text, marks = float(sums[3]) / chunks.numel(), float(sums[1] - sums[0]) / chunks.numel()
        result.update(bits_per_char_no_eos=text, nxt_bits_per_char=marks)
        result.update(bpc=joint if self.driver == "nxt" else renormalised)
        return {**result, "scored": chunks.numel(), "boundary_rate": ends / chunks.numel()}

    @torch.no_grad()
    def text_nats(self, ids, count):
        """Returns the nats of the last `count` symbols of `ids` (n), without marks. Each symbol depends on the symbols before it."""
        steps = self.trace(ids.unsqueeze(0).to(self.head.bias.device), ended=False)
        text = (steps.targets >= 0) & (steps.targets != self.marks["segment_end"])
        logits, targets = steps.logits[text].float(), steps.targets[text]  # (n, symbols), (n)
        return float(F.cross_entropy(logits[-count:], targets[-count:], reduction="sum"))

    def bits(self, steps):
        """Returns four sums of bits over all rows.

        The sums cover text and end; text, end and segment marks; text and end, renormalised over the symbols that can occur; text only.
        """
        marks, targets = self.marks, steps.targets
        logits = steps.logits.float()
        own = torch.gather(logits.log_softmax(-1), 2, targets.clamp(min=0).unsqueeze(2)).squeeze(2)
        impossible = [marks["start"], marks["segment_start"], marks["segment_end"]]
        possible = logits.index_fill(2, torch.tensor(impossible, device=logits.device), float("-inf")).log_softmax(-1)
        possible = torch.gather(possible, 2, targets.clamp(min=0).unsqueeze(2)).squeeze(2)
        text = (targets >= 0) & (targets != marks["segment_end"])
        symbols = text & (targets != marks["end"])
        sums = (own[text].sum(), own[targets >= 0].sum(), possible[text].sum(), own[symbols].sum())
        return [-float(value.double()) / math.log(2) for value in sums]

    def _initialise(self):
        for name, weight in self.named_parameters():
            if name.endswith("embedding.weight"):
                nn.init.normal_(weight)


class Predictor(nn.Module):
    """The boundary predictor, b = Σ W₂·relu(W₁·h) (equation 2)."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.hidden = nn.Linear(dim, hidden, bias=False)
        self.output = nn.Linear(hidden, dim, bias=False)
        # The sum of all outputs starts with a deviation below one, so that initial weights decide no boundary.
        nn.init.normal_(self.hidden.weight, std=dim**-0.5)
        nn.init.normal_(self.output.weight, std=(dim * hidden) ** -0.5)

    def forward(self, hidden):
        # Always in f32: a boundary is a decision.
        with torch.autocast(device_type=hidden.device.type, enabled=False):
            return self.output(F.relu(self.hidden(hidden.float()))).sum(-1)  # (batch, len)


class Head(nn.Module):
    """Computes logits. A tied head uses the decoder's embedding with T5's scale."""

    def __init__(self, symbols, dim, tied):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(symbols))
        if not tied:
            self.weight = nn.Parameter(torch.randn(symbols, dim) * dim**-0.5)
        self.tied = tied

    def forward(self, x, embedding):
        if self.tied:
            return F.linear(x * x.shape[-1] ** -0.5, embedding, self.bias)
        return F.linear(x, self.weight, self.bias)
