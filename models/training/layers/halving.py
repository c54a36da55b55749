"""Successive halving top-k (Trainable Representation Pooling, arXiv 2009.05169, section 3; SPEC, section 5).

Each round sorts vectors by their scores and pairs the best half with the worst half. Each pair becomes one vector and one score by a
weighted mean, whose weights are sharper the larger the difference of the two scores. So k vectors remain of n = k·2^m. All steps are
differentiable and give gradients for the scores.
"""

import torch

BASE = 20.0
EPSILON = 1e-5  # addend of scores, and the score of padding


def halve(vectors, scores, length, kept, flip_right=True, sort_back=True):
    """Pools (batch, n, dim), (batch, n) to (batch, kept, dim), (batch, kept), in f32. Pads n to `length` with zeros."""
    vectors, scores = vectors.float(), scores.float()
    batch, count, dim = vectors.shape
    if count > length or kept < 1 or not halves_down(length, kept):
        raise ValueError(f"{count} vectors cannot be halved from {length} to {kept}")
    vectors = torch.cat([vectors, vectors.new_zeros(batch, length - count, dim)], dim=1)
    scores = torch.cat([scores, scores.new_full((batch, length - count), EPSILON)], dim=1)
    while scores.shape[1] > kept:
        vectors, scores = _round(vectors, scores, flip_right, sort_back)
    return vectors, scores


def halves_down(length, kept):
    while length > kept and length % 2 == 0:
        length //= 2
    return length == kept


def _round(vectors, scores, flip_right, sort_back):
    half = scores.shape[1] // 2
    order = torch.sort(scores, dim=1, descending=True, stable=True).indices  # for equal scores, the earlier vector first
    left, right = order[:, :half], order[:, half:]
    if flip_right:
        right = right.flip(1)  # pairs the best with the worst
    pair = torch.stack([scores.gather(1, left), scores.gather(1, right)])  # (2, batch, half)
    weights = torch.softmax(BASE**pair, dim=0)
    width = vectors.shape[2]
    pick = lambda index: vectors.gather(1, index.unsqueeze(2).expand(-1, -1, width))  # noqa: E731
    vectors = weights[0].unsqueeze(2) * pick(left) + weights[1].unsqueeze(2) * pick(right)
    scores = (weights * pair).sum(0)
    if sort_back:  # restores the document's order, by the better vector of each pair
        back = left.argsort(1)
        scores, vectors = scores.gather(1, back), vectors.gather(1, back.unsqueeze(2).expand(-1, -1, width))
    return vectors, scores
