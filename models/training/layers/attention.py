"""Causal self-attention over relative distances (Transformer-XL, arXiv 1901.02860, section 3.3).

The score of query i and key j is ((q_i + content_bias)·k_j + (q_i + distance_bias)·R_{i-j}) / sqrt(head_dim), where R is a
learned projection of a sinusoid of the distance. Both biases belong to the model, not to a layer.

Training spends half of its time here. Without windows, the core is a separate autograd function. It processes queries in blocks; a block
never reads keys after its last query, which saves nearly half of the square. A strided view of the products with the distances replaces a
shifted copy. The backward pass works in place. With windows, all blocks are one batch of plain operations, which `torch.compile` can fuse.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .noise import Dropout

QUERY_BLOCK = 128


class Position(nn.Module):
    """Parameters shared by all layers of all stacks: the sinusoid's frequencies and the two query biases."""

    def __init__(self, dim, heads, head_dim):
        super().__init__()
        exponents = torch.arange(0.0, dim, 2.0) / dim
        self.register_buffer("inverse_frequency", 1 / (10000**exponents))  # (dim / 2)
        self.content_bias = nn.Parameter(torch.zeros(heads, head_dim))
        self.distance_bias = nn.Parameter(torch.zeros(heads, head_dim))

    def distances(self, length):
        """Returns encodings of the distances length-1 … 0, in this order: (length, dim)."""
        distance = torch.arange(length - 1, -1, -1, device=self.inverse_frequency.device, dtype=torch.float32)
        angle = torch.outer(distance, self.inverse_frequency)  # (length, dim / 2), rounded to f32 as the reference does
        return torch.cat([angle.sin(), angle.cos()], dim=1)


class RelativeAttention(nn.Module):
    """One attention block with residual and post-norm: (batch, len, dim) to (batch, len, dim).

    With blocks of `block` positions, a position attends to its own block up to itself and to the whole block before (LeX, arXiv
    2212.10554, section 3.3). Without, to all positions up to itself.
    """

    def __init__(self, dim, heads, head_dim, layer_norm_eps, block=None):
        super().__init__()
        self.heads, self.head_dim, self.block = heads, head_dim, block
        inner = heads * head_dim
        self.qkv = nn.Linear(dim, 3 * inner)
        self.distance = nn.Linear(dim, inner, bias=False)  # a bias would shift all scores of a query equally, without effect
        self.output = nn.Linear(inner, dim)
        self.norm = nn.LayerNorm(dim, eps=layer_norm_eps)
        self.dropout = Dropout()

    def forward(self, x, position, distances):
        """`distances` are `Position.distances` of the length, with blocks of two blocks. The length is a multiple of the block."""
        batch, length, _ = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, self.head_dim)
        query, key, value = qkv.permute(2, 3, 0, 1, 4).contiguous().unbind(0)  # (heads, batch, len, head_dim) each
        scale = 1 / math.sqrt(self.head_dim)
        # Under autocast the projections are bfloat16 and the biases are not; the core needs one type.
        content = ((query + position.content_bias[:, None, None, :]) * scale).to(query.dtype)
        distant = ((query + position.distance_bias[:, None, None, :]) * scale).to(query.dtype)
        # (heads, distances, head_dim), farthest distance first
        relative = self.distance(distances).view(-1, self.heads, self.head_dim).transpose(0, 1).contiguous()
        if self.block:
            mixed = windowed(content, distant, key, value, relative, self.block)
        else:
            mixed = _RelativeAttention.apply(content, distant, key, value, relative)
        mixed = mixed.permute(1, 2, 0, 3).reshape(batch, length, -1)  # (batch, len, heads * head_dim)
        return self.norm(x + self.dropout(self.output(mixed)))


def windowed(content, distant, key, value, relative, block):
    """Computes the attention of all blocks at once: (heads, batch, len, head_dim), where `block` divides the length.

    `relative` is (heads, 2 · block, head_dim). The keys of a block are those of the block before, then its own.
    """
    heads, batch, length, head_dim = content.shape
    count, keys = length // block, 2 * block
    pairs = lambda t: torch.cat([_blocks(F.pad(t, (0, 0, block, -block)), block), _blocks(t, block)], dim=2)  # noqa: E731
    by_key = _blocks(content, block) @ pairs(key).transpose(2, 3)  # (heads, batch * count, block, keys)
    by_distance = distant.reshape(heads, -1, head_dim) @ relative.transpose(1, 2)  # (heads, batch * len, keys)
    # Query n has key j in column block-1-n+j. With one more column in a row, this is a constant step from row to row.
    shifted = F.pad(by_distance.view(heads, batch * count, block, keys), (0, 1)).flatten(2)
    scores = by_key + shifted[:, :, block - 1 : block - 1 + block * keys].view(by_key.shape)
    query, own = torch.arange(block, device=key.device).unsqueeze(1), torch.arange(keys, device=key.device) - block
    seen = (own <= query) & ((own >= 0) | (torch.arange(count, device=key.device) > 0)[:, None, None])  # (count, block, keys)
    scores = scores.view(heads, batch, count, block, keys).masked_fill(~seen, float("-inf"))
    weights = scores.softmax(-1).to(value.dtype).view(by_key.shape)
    return (weights @ pairs(value)).view(heads, batch, length, head_dim)


def _blocks(t, block):
    """Views (heads, batch, len, head_dim) as (heads, batch · count, block, head_dim)."""
    return t.reshape(t.shape[0], -1, block, t.shape[3])


class _RelativeAttention(torch.autograd.Function):
    """Computes softmax(content·keyᵀ + shift(distant·relativeᵀ))·value with a causal mask; all (heads, batch, len, head_dim)."""

    @staticmethod
    def forward(ctx, content, distant, key, value, relative):
        heads, batch, length, head_dim = content.shape
        rows = heads * batch
        flat_content, flat_key, flat_value = (t.reshape(rows, length, head_dim) for t in (content, key, value))
        output = torch.empty_like(flat_value)
        probabilities = []
        for first, start, end in _spans(length):
            count, keys = end - start, end - first
            query = distant[:, :, start:end].reshape(heads, batch * count, head_dim)
            by_distance = torch.bmm(query, relative[:, length - keys :].transpose(1, 2))  # (heads, batch * count, keys)
            by_key = _align(by_distance, rows, count, keys)
            scores = torch.baddbmm(by_key, flat_content[:, start:end], flat_key[:, first:end].transpose(1, 2))
            future = torch.ones(count, count, dtype=torch.bool, device=scores.device).triu_(1)
            scores[:, :, start - first :].masked_fill_(future, float("-inf"))
            weights = torch.softmax(scores, dim=-1)  # (rows, count, keys)
            output[:, start:end] = torch.bmm(weights, flat_value[:, first:end])
            probabilities.append(weights)
        ctx.save_for_backward(content, distant, key, value, relative, output, *probabilities)
        return output.view(heads, batch, length, head_dim)

    @staticmethod
    def backward(ctx, grad_output):
        content, distant, key, value, relative, output, *probabilities = ctx.saved_tensors
        heads, batch, length, head_dim = content.shape
        rows = heads * batch
        flat_content, flat_key, flat_value = (t.reshape(rows, length, head_dim) for t in (content, key, value))
        grad_output = grad_output.reshape(rows, length, head_dim)
        centre = (grad_output * output).sum(-1, keepdim=True)  # (rows, len, 1): the softmax's inner product, via its output
        grad_content, grad_distant = torch.empty_like(flat_content), torch.empty_like(distant)
        grad_key, grad_value = torch.zeros_like(flat_key), torch.zeros_like(flat_value)
        grad_relative = torch.zeros_like(relative)
        for weights, (first, start, end) in zip(probabilities, _spans(length)):
            count, keys = end - start, end - first
            upstream = grad_output[:, start:end]
            grad_value[:, first:end].baddbmm_(weights.transpose(1, 2), upstream)
            grad_scores = torch.bmm(upstream, flat_value[:, first:end].transpose(1, 2))
            grad_scores.sub_(centre[:, start:end]).mul_(weights)  # (rows, count, keys)
            grad_content[:, start:end] = torch.bmm(grad_scores, flat_key[:, first:end])
            grad_key[:, first:end].baddbmm_(grad_scores.transpose(1, 2), flat_content[:, start:end])
            by_distance = _unalign(grad_scores, count, keys).view(heads, batch * count, keys)
            reach = relative[:, length - keys :]  # (heads, keys, head_dim)
            query = distant[:, :, start:end].reshape(heads, batch * count, head_dim)
            grad_distant[:, :, start:end] = torch.bmm(by_distance, reach).view(heads, batch, count, head_dim)
            grad_relative[:, length - keys :] += torch.bmm(by_distance.transpose(1, 2), query)
        shape = (heads, batch, length, head_dim)
        return grad_content.view(shape), grad_distant, grad_key.view(shape), grad_value.view(shape), grad_relative


def _spans(length):
    """Returns [(first key, first query, end)] of the queries that are processed together."""
    return [(0, start, min(start + QUERY_BLOCK, length)) for start in range(0, length, QUERY_BLOCK)]


def _align(by_distance, rows, count, keys):
    """Views columns of distances keys-1 … 0 as columns of keys 0 … keys-1: (rows, count, keys), without a copy.

    Query n of the block has key j in column count-1-n+j, so a row of the view starts one element earlier than a row of the storage.
    Keys after the query are in the next row; the causal mask covers them.
    """
    return by_distance.as_strided((rows, count, keys), (count * keys, keys - 1, 1), count - 1)


def _unalign(by_key, count, keys):
    """Transposes `_align`: returns gradients by key (zero after the query) as gradients by distance."""
    rows = by_key.shape[0]
    by_distance = by_key.new_zeros(rows, count * keys)
    # Strided rows overlap in one element: a row's last key, which only the block's last query may read, and the next row's
    # first. So this copy omits the last key's column, which is set for the last query only.
    shifted = by_distance[:, count - 1 : count - 1 + count * (keys - 1)].view(rows, count, keys - 1) if keys > 1 else None
    if shifted is not None:
        shifted.copy_(by_key[:, :, : keys - 1])
    by_distance[:, -1] = by_key[:, -1, -1]
    return by_distance
