"""Learning rate and window length as functions of the share of the budget that is spent.

The budget may be wall-clock time: on a shared machine the speed is not known beforehand, and a run whose decay ends when
the time is up is worth more than one that was to make a given number of steps.
"""

import math


def learning_rate_factor(share, step, recipe):
    """Warm-up by steps, times the decay: `linear`, to zero over the last `decay_share` of the budget; `cosine`, a half wave
    over all of it; `none`."""
    warm = min(1.0, (step + 1) / max(1, recipe["warmup_steps"]))
    share = max(0.0, min(1.0, share))
    kind = recipe.get("decay", "linear")
    if kind == "cosine":
        return warm * 0.5 * (1 + math.cos(math.pi * share))
    if kind == "linear":
        return warm * min(1.0, (1 - share) / recipe["decay_share"])
    return warm


def window_length(share, stages):
    """`stages` is a list of {"until": share, "length": characters}, in order; the last one holds to the end."""
    for stage in stages:
        if share < stage["until"]:
            return stage["length"]
    return stages[-1]["length"]
