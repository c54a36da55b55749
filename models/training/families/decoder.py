"""A causal decoder with a position scheme and a window (LeX, arXiv 2212.10554, and its baselines RoPE, ALiBi, sinusoidal).

Pre-norm; with `sub_norms` there are two more norms inside, before attention's output and before the feed-forward's second
matrix. Training attends to all of its window, which is as long as `training_length`; a blockwise or sliding window is for
evaluation and serving (section 3.3), and alike as long as a text fits into one.
"""

import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

from .. import data
from ..layers.noise import Dropout
from ..layers.schemes import lowest_key, scheme
from ..layers.transformer import ACTIVATIONS
from .base import Family

QUERY_BLOCK = 256  # queries at a time, so that scores of long texts fit into memory


class Decoder(Family):
    def __init__(self, config):
        super().__init__()
        architecture, symbols = config["architecture"], data.size(config["vocabulary"])
        dim = architecture["dim"]
        self.window = architecture["window"]
        self.scale = math.sqrt(dim) if architecture["scale_embedding"] else 1.0
        self.embedding = nn.Embedding(symbols, dim)
        self.dropout = Dropout()
        self.position = scheme(architecture["position"], architecture)
        self.layers = nn.ModuleList(Layer(architecture) for _ in range(architecture["layers"]))
        self.norm = nn.LayerNorm(dim, eps=architecture["layer_norm_eps"])
        self.head = None if architecture["tied"] else nn.Linear(dim, symbols, bias=False)
        self._initialise(architecture["layers"])

    def forward(self, ids):
        """ids (batch, len) to logits (batch, len, symbols)."""
        return self.trace(ids).logits

    def trace(self, ids, offset=0):
        """Runs the forward pass and returns its intermediate values. `offset` changes nothing: positions count from the start of the window."""
        steps = SimpleNamespace(boundaries=None, mixed=[], attention=[], layers=[])
        x = self.dropout(self.position.embed(self.scale * self.embedding(ids)))  # (batch, len, dim)
        for layer in self.layers:
            x = layer(x, self.position, self.window, steps)
            steps.layers.append(x)
        steps.top = self.norm(x)
        steps.logits = F.linear(steps.top, self.embedding.weight if self.head is None else self.head.weight)
        return steps

    def loss(self, ids, targets):
        loss = F.cross_entropy(self(ids).float().flatten(0, 1), targets.flatten())
        return loss, {"nats": float(loss.detach())}

    def matrices(self):
        return [weight for weight in self.layers.parameters() if weight.dim() == 2]

    def _initialise(self, layers):
        for name, weight in self.named_parameters():
            if weight.dim() == 2 and not name.startswith("position."):
                residual = name.endswith(("output.weight", "down.weight"))  # so that the stream's size does not grow with depth
                nn.init.normal_(weight, std=0.02 / (math.sqrt(2 * layers) if residual else 1))
            elif name.endswith(".bias") and not name.startswith("position."):
                nn.init.zeros_(weight)


class Layer(nn.Module):
    def __init__(self, architecture):
        super().__init__()
        self.attention = Attention(architecture)
        self.feed_forward = FeedForward(architecture)

    def forward(self, x, position, window, steps):
        return self.feed_forward(self.attention(x, position, window, steps))


class Attention(nn.Module):
    """Norm, attention, residual: (batch, len, dim) to the same."""

    def __init__(self, architecture):
        super().__init__()
        dim, eps = architecture["dim"], architecture["layer_norm_eps"]
        self.heads, self.head_dim = architecture["heads"], architecture["head_dim"]
        inner = self.heads * self.head_dim
        self.norm = nn.LayerNorm(dim, eps=eps)
        self.qkv = nn.Linear(dim, 3 * inner)
        self.output = nn.Linear(inner, dim)
        self.inner_norm = nn.LayerNorm(inner, eps=eps) if architecture["sub_norms"] else nn.Identity()
        self.dropout, self.weight_dropout = Dropout(), Dropout()

    def forward(self, x, position, window, steps):
        batch, length, _ = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, self.head_dim)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # (batch, heads, len, head_dim) each
        query, key = position.turn(query / math.sqrt(self.head_dim), key)
        mixed = self._mix(query, key, value, position, window).transpose(1, 2).reshape(batch, length, -1)
        out = self.output(self.inner_norm(mixed))
        steps.mixed.append(mixed)
        steps.attention.append(out)
        return x + self.dropout(out)

    def _mix(self, query, key, value, position, window):
        """Softmax of scores, times values; some queries at a time, with only those keys that one of them attends to."""
        length = query.shape[2]
        place = torch.arange(length, device=query.device)
        lowest = lowest_key(window, place)
        parts = []
        for start in range(0, length, QUERY_BLOCK):
            end = min(start + QUERY_BLOCK, length)
            low = int(lowest[start])
            queries, keys = place[start:end], place[low:end]
            scores = (query[:, :, start:end] @ key[:, :, low:end].transpose(2, 3)).float()  # (batch, heads, queries, keys)
            added = position.added(queries, keys)
            if added is not None:
                scores = scores + added
            hidden = (keys > queries.unsqueeze(1)) | (keys < lowest[start:end].unsqueeze(1))  # (queries, keys)
            weights = self.weight_dropout(scores.masked_fill(hidden, float("-inf")).softmax(-1))
            parts.append(weights.to(value.dtype) @ value[:, :, low:end])
        return torch.cat(parts, dim=2)


class FeedForward(nn.Module):
    """Norm, two linear maps around an activation, residual."""

    def __init__(self, architecture):
        super().__init__()
        dim, wide, eps = architecture["dim"], architecture["feed_forward"], architecture["layer_norm_eps"]
        self.norm = nn.LayerNorm(dim, eps=eps)
        self.up = nn.Linear(dim, wide)
        self.down = nn.Linear(wide, dim)
        self.inner_norm = nn.LayerNorm(wide, eps=eps) if architecture["sub_norms"] else nn.Identity()
        self.activation = ACTIVATIONS[architecture["activation"]]
        self.dropout = Dropout()

    def forward(self, x):
        return x + self.dropout(self.down(self.inner_norm(self.activation(self.up(self.norm(x))))))
