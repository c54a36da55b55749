"""A summarizer: an encoder-decoder whose encoder pools its document (Trainable Representation Pooling, arXiv 2009.05169).

The encoder attends within blocks. Between layers it keeps the best of its vectors by trained scores (`layers/halving.py`), and the
decoder attends to the kept vectors. With `block` only, it is the paper's Blockwise model; without `block` and pooling, the vanilla
model. Documents are padded to the model's constant length. With blocks or pooling, padding is part of the model, as in the published
code: it is processed like tokens. Tensors have the names of the published code.
"""

import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

from ..layers.halving import EPSILON, halve
from ..layers.noise import Dropout
from ..layers.transformer import ACTIVATIONS
from .base import Family

BOS, PAD, EOS, UNK = 0, 1, 2, 3


class Pyramidion(Family):
    def __init__(self, config):
        super().__init__()
        architecture = config["architecture"]
        dim = architecture["dim"]
        self.encoder = Encoder(architecture, config["vocabulary"]["size"])
        self.decoder = Decoder(architecture)
        self.positions = architecture["decoder_positions"]
        self.scale = math.sqrt(dim)

    def forward(self, source, previous):
        """Maps tokens (batch, ≤ source_length) and the previous target tokens (batch, len) to logits (batch, len, symbols)."""
        return self.decode(self.encoder(source).out, previous)[-1]

    def decode(self, memory, previous):
        """Returns the decoder's states, then logits."""
        table = self.encoder.embed_tokens.weight
        x = self.scale * F.embedding(previous, table)
        if self.positions:
            x = x + sinusoid(previous, table.shape[1])
        states = self.decoder(x, memory)
        return [*states, F.linear(self.decoder.finish(states[-1]), table)]

    def loss(self, source, previous, targets, share):
        """Returns the mean loss per token. `share` (batch) is a row's weight in this mean, times the number of rows."""
        logits = self(source, previous).float()
        nats = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD, reduction="none")
        loss = (nats.view(targets.shape).sum(1) * share).mean()
        return loss, {"nats": float(loss.detach())}

    def matrices(self):
        stacks = (self.encoder.layers, self.decoder.layers)
        return [weight for stack in stacks for weight in stack.parameters() if weight.dim() == 2]


class Encoder(nn.Module):
    def __init__(self, architecture, symbols):
        super().__init__()
        dim = architecture["dim"]
        self.length, self.block = architecture["source_length"], architecture["block"]
        self.plan = {int(layer): kept for layer, kept in architecture["pooling"].get("lengths", {}).items()}
        self.halving = {key: architecture["pooling"][key] for key in ("flip_right", "sort_back") if self.plan}
        self.masks_padding = self.block is None and not self.plan
        last = architecture["encoder_layers"] - 1
        left = self.plan[max(self.plan)] if self.plan else self.length
        if self.block and last not in self.plan and left % min(self.block, left):
            raise ValueError(f"blocks of {self.block} do not fit the last layer's {left} vectors")
        self.scale = math.sqrt(dim)
        self.embed_tokens = nn.Embedding(symbols, dim, padding_idx=PAD)
        nn.init.normal_(self.embed_tokens.weight, std=dim**-0.5)
        nn.init.zeros_(self.embed_tokens.weight[PAD])
        self.dropout = Dropout()
        self.layers = nn.ModuleList(EncoderLayer(architecture) for _ in range(architecture["encoder_layers"]))
        # Padding is zero. A norm of zeros multiplies gradients by 300, and a stack of norms lets them overflow.
        nn.init.normal_(self.layers[0].self_attn.out_proj.bias, std=0.1)
        if self.plan:
            self.pooler = nn.Module()
            self.pooler.scorer = nn.ModuleDict({str(layer): nn.Linear(dim, 1) for layer in self.plan})
        if architecture["pre_norm"]:
            self.layer_norm = nn.LayerNorm(dim, eps=architecture["layer_norm_eps"])

    def forward(self, source):
        steps = SimpleNamespace()
        source = F.pad(source, (0, self.length - source.shape[1]), value=PAD)
        padding = source == PAD  # (batch, len)
        x = self.scale * self.embed_tokens(source) + sinusoid(source, self.embed_tokens.embedding_dim)
        x = self.dropout(x.masked_fill(padding.unsqueeze(2), 0))
        steps.states = [x]
        for index, layer in enumerate(self.layers):
            length = x.shape[1]
            x = self._blocks(x, layer, padding)
            if index in self.plan:
                x = self._pool(index, x, length)
            else:
                x = F.pad(x, (0, 0, 0, length - x.shape[1]))  # replaces the dropped vectors
            steps.states.append(x)
        steps.out = self.layer_norm(x) if hasattr(self, "layer_norm") else x
        return steps

    def _blocks(self, x, layer, padding):
        """Runs a layer on each block separately. Drops the remainder after the last whole block, as in the published code."""
        if self.block is None:
            hidden = padding[:, None, None, :] if self.masks_padding else None
            return layer(x, hidden)
        batch, length, dim = x.shape
        size = min(self.block, length)
        count = length // size
        blocks = x[:, : count * size].reshape(batch * count, size, dim)
        return layer(blocks, None).view(batch, count * size, dim)

    def _pool(self, index, x, length):
        # Always in f32: in bf16 thousands of scores would be equal.
        with torch.autocast(device_type=x.device.type, enabled=False):
            scores = torch.sigmoid(self.pooler.scorer[str(index)](x.float()).squeeze(2)) + EPSILON
            return halve(x, scores, length, self.plan[index], **self.halving)[0]


class Decoder(nn.Module):
    def __init__(self, architecture):
        super().__init__()
        self.dropout = Dropout()
        self.layers = nn.ModuleList(DecoderLayer(architecture) for _ in range(architecture["decoder_layers"]))
        if architecture["pre_norm"]:
            self.layer_norm = nn.LayerNorm(architecture["dim"], eps=architecture["layer_norm_eps"])

    def forward(self, x, memory):
        x = self.dropout(x)
        states, length = [x], x.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        for layer in self.layers:
            states.append(layer(states[-1], memory, future))
        return states

    def finish(self, x):
        return self.layer_norm(x) if hasattr(self, "layer_norm") else x


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            linear = nn.Linear(dim, dim)
            nn.init.xavier_uniform_(linear.weight, gain=1 if name == "out_proj" else 2**-0.5)
            nn.init.zeros_(linear.bias)
            setattr(self, name, linear)

    def forward(self, x, source, hidden):
        query, key, value = (self._split(part) for part in (self.q_proj(x), self.k_proj(source), self.v_proj(source)))
        mixed = F.scaled_dot_product_attention(query, key, value, None if hidden is None else ~hidden)  # (batch, heads, len, head_dim)
        return self.out_proj(mixed.transpose(1, 2).flatten(2))

    def _split(self, x):
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


class EncoderLayer(nn.Module):
    """An encoder layer. The norm follows the residual or, with `pre_norm`, precedes the sub-layer."""

    def __init__(self, architecture):
        super().__init__()
        dim, wide, eps = architecture["dim"], architecture["feed_forward"], architecture["layer_norm_eps"]
        self.pre_norm = architecture["pre_norm"]
        self.self_attn = Attention(dim, architecture["heads"])
        self.self_attn_layer_norm = nn.LayerNorm(dim, eps=eps)
        self.fc1, self.fc2 = nn.Linear(dim, wide), nn.Linear(wide, dim)
        for linear in (self.fc1, self.fc2):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)
        self.final_layer_norm = nn.LayerNorm(dim, eps=eps)
        self.activation = ACTIVATIONS[architecture["activation"]]
        self.dropout = Dropout()

    def forward(self, x, hidden):
        x = self._around(x, self.self_attn_layer_norm, lambda x: self.self_attn(x, x, hidden))
        return self._around(x, self.final_layer_norm, self._feed_forward)

    def _feed_forward(self, x):
        return self.fc2(self.activation(self.fc1(x)))

    def _around(self, x, norm, sublayer):
        if self.pre_norm:
            return x + self.dropout(sublayer(norm(x)))
        return norm(x + self.dropout(sublayer(x)))


class DecoderLayer(EncoderLayer):
    """An encoder layer with cross-attention between self-attention and feed-forward."""

    def __init__(self, architecture):
        super().__init__(architecture)
        dim = architecture["dim"]
        self.encoder_attn = Attention(dim, architecture["heads"])
        self.encoder_attn_layer_norm = nn.LayerNorm(dim, eps=architecture["layer_norm_eps"])

    def forward(self, x, memory, future):
        x = self._around(x, self.self_attn_layer_norm, lambda x: self.self_attn(x, x, future))
        x = self._around(x, self.encoder_attn_layer_norm, lambda x: self.encoder_attn(x, memory, None))
        return self._around(x, self.final_layer_norm, self._feed_forward)


def sinusoid(tokens, dim):
    """Returns fairseq's positions (batch, len, dim): sines, then cosines. The n-th token without padding has position 2 + n."""
    step = math.log(10000) / (dim // 2 - 1)
    frequency = torch.exp(torch.arange(dim // 2, dtype=torch.float32, device=tokens.device) * -step)
    real = (tokens != PAD).long()
    position = (real.cumsum(1) * real + PAD).float()  # the first is PAD + 1
    angle = position.unsqueeze(2) * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=2)
