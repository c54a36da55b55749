"""Position schemes of the `decoder` family (LeX, arXiv 2212.10554, and its baselines), and its windows.

A scheme may add to a stack's input (`embed`), turn queries and keys (`turn`), or add to scores (`added`). All tables are made in
f64: at some thousand positions an angle rounded to f32 is off by more than the scores' own rounding.
"""

import math

import torch
from torch import nn

XPOS_GAMMA = 0.4


class Scheme(nn.Module):
    def embed(self, x):
        """(batch, len, dim) to the same."""
        return x

    def turn(self, query, key):
        """(batch, heads, len, head_dim) each, to the same."""
        return query, key

    def added(self, queries, keys):
        """Returns the bias of scores between 1-D positions, (heads, queries, keys), or None."""
        return None


class Rotary(Scheme):
    """RoPE; with a `scale_base` xPos, whose queries and keys also grow and shrink, so that far keys count less.

    Pairs are adjacent elements. Exponents count from the middle of the text, which leaves products as they are and numbers
    in range (LeX, section 3.2; the fork of torchscale by the paper's first author).
    """

    def __init__(self, head_dim, scale_base=None):
        super().__init__()
        self.head_dim, self.scale_base = head_dim, scale_base

    def turn(self, query, key):
        length, pairs = query.shape[2], self.head_dim // 2
        position = torch.arange(length, dtype=torch.float64).unsqueeze(1)
        pair = torch.arange(pairs, dtype=torch.float64)
        angle = position * 10000 ** (-pair / pairs)  # (len, pairs)
        growth = torch.zeros_like(angle)
        if self.scale_base:
            zeta = (2 * pair + XPOS_GAMMA * self.head_dim) / ((1 + XPOS_GAMMA) * self.head_dim)
            growth = zeta.log() * (position - length // 2) / self.scale_base
        cosine, sine = angle.cos(), angle.sin()
        return _turned(query, cosine * growth.exp(), sine * growth.exp()), _turned(key, cosine / growth.exp(), sine / growth.exp())


def _turned(x, cosine, sine):
    cosine, sine = cosine.float().to(x.device), sine.float().to(x.device)  # (len, pairs)
    left, right = x[..., 0::2].float(), x[..., 1::2].float()
    turned = torch.stack([left * cosine - right * sine, right * cosine + left * sine], dim=-1)
    return turned.flatten(-2).to(x.dtype)


class Alibi(Scheme):
    """Scores fall with the distance, each head's at its own slope (Press et al. 2022)."""

    def __init__(self, heads):
        super().__init__()
        self.register_buffer("slopes", torch.tensor(alibi_slopes(heads)))  # (heads)

    def added(self, queries, keys):
        return self.slopes.view(-1, 1, 1) * (keys - queries.unsqueeze(1)).clamp(max=0)


def alibi_slopes(heads):
    """Powers of two for a power of two; else those of the power below and every other one of the power above."""
    below = 2 ** int(math.log2(heads))
    powers = lambda count: [2 ** (-8 * k / count) for k in range(1, count + 1)]  # noqa: E731
    return (powers(below) + powers(2 * below)[0::2])[:heads]


class Buckets(Scheme):
    """T5's: a learned number for each bucket of distances and head, the same for all layers."""

    def __init__(self, heads, count, max_distance):
        super().__init__()
        self.count, self.max_distance = count, max_distance
        self.bias = nn.Parameter(torch.zeros(count, heads))

    def added(self, queries, keys):
        distance = (queries.unsqueeze(1) - keys).clamp(min=0)
        return self.bias[bucket(distance, self.count, self.max_distance)].permute(2, 0, 1)


def bucket(distance, count, max_distance):
    """One bucket each for the first half of them, then ever wider ones; all from `max_distance` on are in the last."""
    exact = count // 2
    far = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact) * (count - exact)
    return torch.where(distance < exact, distance, (exact + far.long()).clamp(max=count - 1))


class Sinusoidal(Scheme):
    """Sines, then cosines, of positions from 2 on: fairseq's form."""

    def __init__(self, dim):
        super().__init__()
        step = math.log(10000) / max(1, dim // 2 - 1)
        self.register_buffer("frequency", torch.exp(torch.arange(dim // 2, dtype=torch.float32) * -step))  # (dim / 2)

    def embed(self, x):
        position = torch.arange(2, 2 + x.shape[1], dtype=torch.float32, device=x.device)
        angle = torch.outer(position, self.frequency)
        return x + torch.cat([angle.sin(), angle.cos()], dim=1)


class Learned(Scheme):
    """A vector a position."""

    def __init__(self, dim, positions):
        super().__init__()
        self.table = nn.Parameter(0.02 * torch.randn(positions, dim))

    def embed(self, x):
        return x + self.table[: x.shape[1]]


def scheme(settings, architecture):
    """The module for `architecture.position` of a checkpoint's config.json."""
    name, options = next(iter(settings.items())) if isinstance(settings, dict) else (settings, {})
    dim, heads, head_dim = (architecture[key] for key in ("dim", "heads", "head_dim"))
    makers = {
        "rotary": lambda: Rotary(head_dim),
        "xpos": lambda: Rotary(head_dim, **options),
        "alibi": lambda: Alibi(heads),
        "buckets": lambda: Buckets(heads, **options),
        "sinusoidal": lambda: Sinusoidal(dim),
        "learned": lambda: Learned(dim, **options),
        "none": Scheme,
    }
    if name not in makers:
        raise ValueError(f"unknown position scheme {name!r}, expected one of {', '.join(makers)}")
    return makers[name]()


def lowest_key(window, position):
    """The first key that a position attends to; `window` is a checkpoint's: full, blockwise or sliding."""
    if window == "full":
        return torch.zeros_like(position)
    if "blockwise" in window:
        half = window["blockwise"]["length"] // 2
        return ((position // half - 1) * half).clamp(min=0)
    return (position + 1 - window["sliding"]["keys"]).clamp(min=0)
