"""Learning rate and window length as functions of the share of the budget that is spent.

The budget may be wall-clock time: on a shared machine the speed is not known beforehand, and a run whose decay ends when
the time is up is worth more than one that was to make a given number of steps.
"""


def learning_rate_factor(share, step, warmup_steps, decay_share):
    """Warm-up by steps, then constant, then linear to zero over the last `decay_share` of the budget."""
    warm = min(1.0, (step + 1) / max(1, warmup_steps))
    cool = max(0.0, min(1.0, (1 - share) / decay_share)) if decay_share else 1.0
    return warm * cool


def window_length(share, stages):
    """`stages` is a list of {"until": share, "length": characters}, in order; the last one holds to the end."""
    for stage in stages:
        if share < stage["until"]:
            return stage["length"]
    return stages[-1]["length"]
