"""Training signals of latent boundaries, in addition to the gradient through pooling (Latent Segment Language Models, section 2.4).

`each` and `rate` are divergences from the prior probability of a boundary, in nats a position. `costs` is the gradient of the
likelihood in the boundaries themselves, of which straight-through pooling of means has none: whether a mark has to be written,
and what is known when the next symbol is. All of them move the predictor, and the token encoder that it reads.
"""

import math

import torch
import torch.nn.functional as F

# What comes after a boundary less likely than this is weighed as if it were as likely: a rare sample weighs no more than twenty
# others, and the rest of what rare boundaries cost is understated.
LEAST = 0.05


def each(logits, prior):
    """KL(Bernoulli(sigmoid(logits)) ‖ Bernoulli(prior)), mean: every position is to be as uncertain as the prior."""
    p = torch.sigmoid(logits)
    return (p * (F.logsigmoid(logits) - math.log(prior)) + (1 - p) * (F.logsigmoid(-logits) - math.log1p(-prior))).mean()


def rate(logits, prior):
    """KL(Bernoulli(mean of sigmoid(logits)) ‖ Bernoulli(prior)): so many boundaries, wherever they are, and however sure.

    The mean is over the rows at hand: those of one worker, where several share a batch.
    """
    mean = lambda values: values.flatten().logsumexp(0) - math.log(values.numel())  # noqa: E731 — of exponentials, as a logarithm
    log_p, log_q = mean(F.logsigmoid(logits)), mean(F.logsigmoid(-logits))
    return log_p.exp() * (log_p - math.log(prior)) + log_q.exp() * (log_q - math.log1p(-prior))


DIVERGENCES = {"each": each, "rate": rate}


def costs(steps, segment_end):
    """Zero, with gradients: the sum over positions of what a boundary there costs more than none, in nats.

    `steps` is a trace of sampled boundaries over a text that ended, `segment_end` the mark's id. Behind a symbol the decoder
    writes either the mark, and then what follows as the first of a new row, or what follows at once. What the mark costs, and what
    follows at once, is known wherever a symbol is read; the new row only where there is one, which is with the boundary's
    probability p, so it counts there 1/p times. What boundaries change further on is left to the gradients through pooling
    (which, of hops, have a part of what follows at once as well: it counts more than once there).
    """
    p = torch.sigmoid(steps.boundary_logits[:, 1:].float())  # (batch, n)
    with torch.no_grad():
        logits, following = steps.logits.float(), steps.following[:, 1:].unsqueeze(2)  # (batch, places, symbols), (batch, n, 1)
        read = torch.gather(logits, 1, steps.read.unsqueeze(2).expand(-1, -1, logits.shape[2]))  # (batch, n, symbols)
        unmarked = read.index_fill(2, torch.tensor([segment_end], device=read.device), float("-inf")).log_softmax(-1)
        read = read.log_softmax(-1)
        at_once = torch.gather(unmarked, 2, following).squeeze(2)  # given that there is no mark
        no_mark = torch.gather(read, 2, following).squeeze(2) - at_once
        begin = steps.begin[:, 1:].clamp(max=logits.shape[1] - 1)  # where there is none, any place: not used
        rows = torch.gather(logits, 1, begin.unsqueeze(2).expand(-1, -1, logits.shape[2])).log_softmax(-1)
        anew = torch.gather(rows, 2, following).squeeze(2)
        after = torch.where(steps.boundaries[:, 1:], (at_once - anew) / p.clamp(min=LEAST), 0.0)
        paid = no_mark - read[:, :, segment_end] + after  # (batch, n)
    return ((p - p.detach()) * paid).sum()
