"""What latent boundaries are learnt from, besides what flows through pooling (Latent Segment Language Models, section 2.4).

`each` and `rate` are divergences from the prior probability of a boundary, in nats a position. `costs` is the gradient of the
likelihood in the boundaries themselves, which straight-through pooling leaves out: whether a mark has to be written, and what
is known when the next symbol is.
"""

import math

import torch
import torch.nn.functional as F

LEAST = 0.05  # a boundary less likely than this counts as if it were as likely: bounds the weight of a rare sample


def each(logits, prior):
    """KL(Bernoulli(sigmoid(logits)) ‖ Bernoulli(prior)), mean: every position is to be as uncertain as the prior."""
    p = torch.sigmoid(logits)
    return (p * (F.logsigmoid(logits) - math.log(prior)) + (1 - p) * (F.logsigmoid(-logits) - math.log1p(-prior))).mean()


def rate(logits, prior):
    """KL(Bernoulli(mean of sigmoid(logits)) ‖ Bernoulli(prior)): so many boundaries, wherever they are, and however sure."""
    p = torch.sigmoid(logits).mean().clamp(1e-6, 1 - 1e-6)
    return p * (p.log() - math.log(prior)) + (1 - p) * (torch.log1p(-p) - math.log1p(-prior))


DIVERGENCES = {"each": each, "rate": rate}


def costs(steps, segment_end):
    """Zero, with gradients: the sum over positions of what a boundary there costs more than none, in nats.

    `steps` is a trace of sampled boundaries, `segment_end` the mark's id. Behind a symbol the decoder writes either the mark,
    and then what follows as the first of a new row, or what follows at once. Scores of the mark and of what follows at once
    are known wherever a symbol is read; those of a new row only where there is one, which is with the boundary's probability
    p, so they count there 1/p times. What boundaries change further on is left to the gradients through pooling.
    """
    p = torch.sigmoid(steps.boundary_logits[:, 1:].float())  # (batch, n)
    with torch.no_grad():
        scores = steps.logits.float().log_softmax(-1)  # (batch, places, symbols)
        symbols, following = scores.shape[2], steps.following[:, 1:]
        read = torch.gather(scores, 1, steps.read.unsqueeze(2).expand(-1, -1, symbols))  # (batch, n, symbols)
        mark = read[:, :, segment_end]
        no_mark = torch.log1p(-mark.exp().clamp(max=1 - 1e-6))
        at_once = torch.gather(read, 2, following.unsqueeze(2)).squeeze(2) - no_mark  # given that it is no mark
        begin = steps.begin[:, 1:].clamp(max=scores.shape[1] - 1)  # where there is none, any place: not used
        anew = torch.gather(scores.flatten(1), 1, begin * symbols + following)
        paid = no_mark - mark + torch.where(steps.boundaries[:, 1:], (at_once - anew) / p.clamp(min=LEAST), 0.0)
    return ((p - p.detach()) * paid).sum()
