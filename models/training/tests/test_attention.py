"""Compares values and gradients of the blocked attention with a direct implementation of the formula."""

import unittest

import torch

from training.layers import attention


def plain(content, distant, key, value, relative, block=None):
    """Computes the attention without blocks of queries and without a strided view."""
    length = key.shape[2]
    by_key = content @ key.transpose(-1, -2)  # (heads, batch, len, len)
    by_distance = distant @ relative.flip(1).transpose(-1, -2).unsqueeze(1)  # (heads, batch, len, distance)
    query, key_index = torch.meshgrid(torch.arange(length), torch.arange(length), indexing="ij")
    distance = (query - key_index).clamp(0, relative.shape[1] - 1).expand(by_key.shape)
    scores = by_key + by_distance.gather(3, distance)
    hidden = key_index > query
    if block:
        hidden |= key_index < (query // block - 1) * block
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ value


class Attention(unittest.TestCase):
    def test_agrees_with_the_formula(self):
        for length in (1, 2, 5, 8, 13):
            with self.subTest(length=length):
                self.compare(length)

    def test_windows_agree_with_the_formula(self):
        for length, block in ((4, 4), (8, 4), (12, 4), (24, 8), (10, 2), (3, 1)):
            with self.subTest(length=length, block=block):
                self.compare(length, block)

    def compare(self, length, block=None):
        torch.manual_seed(length)
        distances = 2 * block if block else length
        shapes = [(2, 3, length, 4)] * 4 + [(2, distances, 4)]
        inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
        weight = torch.randn(shapes[0], dtype=torch.float64)
        size, attention.QUERY_BLOCK = attention.QUERY_BLOCK, 4
        try:
            fast = attention.windowed(*inputs, block) if block else attention._RelativeAttention.apply(*inputs)
            fast_gradients = torch.autograd.grad((fast * weight).sum(), inputs)
        finally:
            attention.QUERY_BLOCK = size
        slow = plain(*inputs, block)
        slow_gradients = torch.autograd.grad((slow * weight).sum(), inputs)
        self.assertLess(float((fast - slow).detach().abs().max()), 1e-12)
        for fast_gradient, slow_gradient in zip(fast_gradients, slow_gradients):
            self.assertLess(float((fast_gradient - slow_gradient).abs().max()), 1e-12)


if __name__ == "__main__":
    unittest.main()
