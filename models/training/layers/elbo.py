"""Training signals of latent boundaries, in addition to the gradient through pooling (Latent Segment Language Models, section 2.4).

`each` and `rate` are divergences from the prior probability of a boundary, in nats per position. `costs` has the gradient of the
likelihood with respect to the boundaries themselves: the cost of the mark, and the effect on the next symbol. Straight-through pooling
of means has no such gradient. All three train the predictor and its input, the token encoder.
"""

import math

import torch
import torch.nn.functional as F

# Lower limit of a boundary's probability in importance weights. A rare sample weighs at most as much as twenty others, which
# underestimates the cost of rare boundaries.
MIN_PROBABILITY = 0.05


def each(logits, prior):
    """Returns the mean KL(Bernoulli(sigmoid(logits)) ‖ Bernoulli(prior)), which makes every position as uncertain as the prior."""
    p = torch.sigmoid(logits)
    return (p * (F.logsigmoid(logits) - math.log(prior)) + (1 - p) * (F.logsigmoid(-logits) - math.log1p(-prior))).mean()


def rate(logits, prior):
    """Returns KL(Bernoulli(mean of sigmoid(logits)) ‖ Bernoulli(prior)), which fixes the number of boundaries but not their positions.

    The mean covers the rows of `logits`: the rows of one worker, if several share a batch.
    """
    mean = lambda values: values.flatten().logsumexp(0) - math.log(values.numel())  # noqa: E731 — log of the mean of exponentials
    log_p, log_q = mean(F.logsigmoid(logits)), mean(F.logsigmoid(-logits))
    return log_p.exp() * (log_p - math.log(prior)) + log_q.exp() * (log_q - math.log1p(-prior))


DIVERGENCES = {"each": each, "rate": rate}


def costs(steps, segment_end):
    """Returns zero with gradients: the sum over positions of the additional cost of a boundary, in nats.

    `steps` is a trace of sampled boundaries over a text that ended, and `segment_end` is the mark's id. After a symbol, the decoder
    generates either the mark and then the next symbol as the first of a new row, or the next symbol directly. The costs of the mark and
    of the direct symbol are known after every symbol. The cost in a new row is known only where a boundary was sampled, which has
    probability p, so it is weighted by 1/p. The gradients through pooling cover later effects of boundaries. With hops, they also cover
    a part of the direct symbol's cost, which is then counted more than once.
    """
    p = torch.sigmoid(steps.boundary_logits[:, 1:].float())  # (batch, n)
    with torch.no_grad():
        logits, following = steps.logits.float(), steps.following[:, 1:].unsqueeze(2)  # (batch, positions, symbols), (batch, n, 1)
        read = torch.gather(logits, 1, steps.read.unsqueeze(2).expand(-1, -1, logits.shape[2]))  # (batch, n, symbols)
        unmarked = read.index_fill(2, torch.tensor([segment_end], device=read.device), float("-inf")).log_softmax(-1)
        read = read.log_softmax(-1)
        at_once = torch.gather(unmarked, 2, following).squeeze(2)  # on condition that no mark follows
        no_mark = torch.gather(read, 2, following).squeeze(2) - at_once
        begin = steps.begin[:, 1:].clamp(max=logits.shape[1] - 1)  # an arbitrary position without a boundary: not used
        rows = torch.gather(logits, 1, begin.unsqueeze(2).expand(-1, -1, logits.shape[2])).log_softmax(-1)
        in_new_row = torch.gather(rows, 2, following).squeeze(2)
        after = torch.where(steps.boundaries[:, 1:], (at_once - in_new_row) / p.clamp(min=MIN_PROBABILITY), 0.0)
        paid = no_mark - read[:, :, segment_end] + after  # (batch, n)
    return ((p - p.detach()) * paid).sum()
