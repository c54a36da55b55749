"""A causal decoder with a position scheme and a window (LeX, arXiv 2212.10554, and its baselines RoPE, ALiBi, sinusoidal).

The layers are pre-norm. `sub_norms` adds two norms, before attention's output and before the feed-forward's second matrix. Training
attends to its whole window of `training_length`. A blockwise or sliding window is for evaluation and serving (section 3.3); it changes
nothing for a text that fits into the window.
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

QUERY_BLOCK = 256  # queries of one step, so that scores of long texts fit into memory


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
        """Maps ids (batch, len) to logits (batch, len, symbols)."""
        return self.trace(ids).logits

    def trace(self, ids, offset=0):
        """Returns the intermediate values of the forward pass. `offset` has no effect: positions count from the window's start."""
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
                residual = name.endswith(("output.weight", "down.weight"))  # keeps the residual stream's size constant over depth
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
    """Norm, attention and residual: (batch, len, dim) to (batch, len, dim)."""

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
        query, key = position.rotate(query / math.sqrt(self.head_dim), key)
        mixed = self._mix(query, key, value, position, window).transpose(1, 2).reshape(batch, length, -1)
        out = self.output(self.inner_norm(mixed))
        steps.mixed.append(mixed)
        steps.attention.append(out)
        return x + self.dropout(out)

    def _mix(self, query, key, value, position, window):
        """Returns softmax(scores) · values. Processes QUERY_BLOCK queries at a time, with only the keys that they attend to."""
        length = query.shape[2]
        positions = torch.arange(length, device=query.device)
        lowest = lowest_key(window, positions)
        parts = []
        for start in range(0, length, QUERY_BLOCK):
            end = min(start + QUERY_BLOCK, length)
            low = int(lowest[start])
            queries, keys = positions[start:end], positions[low:end]
            scores = (query[:, :, start:end] @ key[:, :, low:end].transpose(2, 3)).float()  # (batch, heads, queries, keys)
            bias = position.score_bias(queries, keys)
            if bias is not None:
                scores = scores + bias
            hidden = (keys > queries.unsqueeze(1)) | (keys < lowest[start:end].unsqueeze(1))  # (queries, keys)
            weights = self.weight_dropout(scores.masked_fill(hidden, float("-inf")).softmax(-1))
            parts.append(weights.to(value.dtype) @ value[:, :, low:end])
        return torch.cat(parts, dim=2)


class FeedForward(nn.Module):
    """Norm, two linear maps around an activation, and residual."""

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
