"""Position schemes of the `decoder` family (LeX, arXiv 2212.10554, and its baselines), and its windows.

A scheme may add to a stack's input (`embed`), rotate queries and keys (`rotate`), or add to scores (`score_bias`). All tables are computed
in f64: at some thousand positions, the f32 rounding error of an angle exceeds the rounding error of the scores.
"""

import math

import torch
from torch import nn

XPOS_GAMMA = 0.4


class Scheme(nn.Module):
    def embed(self, x):
        """Adds positions to a stack's input: (batch, len, dim) to (batch, len, dim)."""
        return x

    def rotate(self, query, key):
        """Rotates query and key, each (batch, heads, len, head_dim)."""
        return query, key

    def score_bias(self, queries, keys):
        """Returns the bias of scores between 1-D positions, (heads, queries, keys), or None."""
        return None


class Rotary(Scheme):
    """RoPE. With a `scale_base` it is xPos, which also scales queries and keys, so that distant keys count less.

    Pairs are adjacent elements. Exponents count from the middle of the text. This does not change products and keeps numbers in range
    (LeX, section 3.2; the fork of torchscale by the paper's first author).
    """

    def __init__(self, head_dim, scale_base=None):
        super().__init__()
        self.head_dim, self.scale_base = head_dim, scale_base

    def rotate(self, query, key):
        length, pairs = query.shape[2], self.head_dim // 2
        position = torch.arange(length, dtype=torch.float64).unsqueeze(1)
        pair = torch.arange(pairs, dtype=torch.float64)
        angle = position * 10000 ** (-pair / pairs)  # (len, pairs)
        growth = torch.zeros_like(angle)
        if self.scale_base:
            zeta = (2 * pair + XPOS_GAMMA * self.head_dim) / ((1 + XPOS_GAMMA) * self.head_dim)
            growth = zeta.log() * (position - length // 2) / self.scale_base
        cosine, sine = angle.cos(), angle.sin()
        return _rotated(query, cosine * growth.exp(), sine * growth.exp()), _rotated(key, cosine / growth.exp(), sine / growth.exp())


def _rotated(x, cosine, sine):
    cosine, sine = cosine.float().to(x.device), sine.float().to(x.device)  # (len, pairs)
    left, right = x[..., 0::2].float(), x[..., 1::2].float()
    rotated = torch.stack([left * cosine - right * sine, right * cosine + left * sine], dim=-1)
    return rotated.flatten(-2).to(x.dtype)


class Alibi(Scheme):
    """ALiBi: scores decrease with the distance, with a separate slope for each head (Press et al. 2022)."""

    def __init__(self, heads):
        super().__init__()
        self.register_buffer("slopes", torch.tensor(alibi_slopes(heads)))  # (heads)

    def score_bias(self, queries, keys):
        return self.slopes.view(-1, 1, 1) * (keys - queries.unsqueeze(1)).clamp(max=0)


def alibi_slopes(heads):
    """Returns the slopes: powers of two if `heads` is a power of two.

    Otherwise returns the slopes of the power below and every second slope of the power above.
    """
    below = 2 ** int(math.log2(heads))
    powers = lambda count: [2 ** (-8 * k / count) for k in range(1, count + 1)]  # noqa: E731
    return (powers(below) + powers(2 * below)[0::2])[:heads]


class Buckets(Scheme):
    """T5's scheme: a learned bias for each bucket of distances and each head, shared by all layers."""

    def __init__(self, heads, count, max_distance):
        super().__init__()
        self.count, self.max_distance = count, max_distance
        self.bias = nn.Parameter(torch.zeros(count, heads))

    def score_bias(self, queries, keys):
        distance = (queries.unsqueeze(1) - keys).clamp(min=0)
        return self.bias[bucket(distance, self.count, self.max_distance)].permute(2, 0, 1)


def bucket(distance, count, max_distance):
    """Returns the bucket of each distance.

    The first half of the buckets has one distance each. Later buckets are increasingly wide; the last has all from `max_distance` on.
    """
    exact = count // 2
    far = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact) * (count - exact)
    return torch.where(distance < exact, distance, (exact + far.long()).clamp(max=count - 1))


class Sinusoidal(Scheme):
    """fairseq's sinusoidal positions: sines, then cosines, of positions from 2 on."""

    def __init__(self, dim):
        super().__init__()
        step = math.log(10000) / max(1, dim // 2 - 1)
        self.register_buffer("frequency", torch.exp(torch.arange(dim // 2, dtype=torch.float32) * -step))  # (dim / 2)

    def embed(self, x):
        position = torch.arange(2, 2 + x.shape[1], dtype=torch.float32, device=x.device)
        angle = torch.outer(position, self.frequency)
        return x + torch.cat([angle.sin(), angle.cos()], dim=1)


class Learned(Scheme):
    """One learned vector per position."""

    def __init__(self, dim, positions):
        super().__init__()
        self.table = nn.Parameter(0.02 * torch.randn(positions, dim))

    def embed(self, x):
        return x + self.table[: x.shape[1]]


def scheme(settings, architecture):
    """Returns the module for `architecture.position` of a checkpoint's config.json."""
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
    """Returns the first key that a position attends to. `window` is a checkpoint's: full, blockwise or sliding."""
    if window == "full":
        return torch.zeros_like(position)
    if "blockwise" in window:
        half = window["blockwise"]["length"] // 2
        return ((position // half - 1) * half).clamp(min=0)
    return (position + 1 - window["sliding"]["keys"]).clamp(min=0)
