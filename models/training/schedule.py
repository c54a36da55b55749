"""Learning rate and window length as functions of the share of the budget that is spent.

The budget may be wall-clock time. The speed of a shared machine is unknown in advance, so the decay has to end with the time limit
and not after a fixed number of steps.
"""

import math


def learning_rate_factor(share, step, recipe):
    """Returns the warm-up factor times the decay factor.

    `linear` decays to zero over the last `decay_share` of the budget; `cosine` is a half wave over the whole budget; `none` is one.
    """
    warm = min(1.0, (step + 1) / max(1, recipe["warmup_steps"]))
    share = max(0.0, min(1.0, share))
    kind = recipe.get("decay", "linear")
    if kind == "cosine":
        return warm * 0.5 * (1 + math.cos(math.pi * share))
    if kind == "linear":
        return warm * min(1.0, (1 - share) / recipe["decay_share"])
    return warm


def window_length(share, stages):
    """Returns the window length. `stages` is an ordered list of {"until": share, "length": characters}; the last stage has no end."""
    for stage in stages:
        if share < stage["until"]:
            return stage["length"]
    return stages[-1]["length"]
