"""A text continued by a latent segment model, as the server does it (SPEC of the family, section 8).

The given text is cut by the predictor, its last symbol too. What the model writes is cut by its own mark, or, where the
checkpoint's driver is the predictor, by that. The cuts of what was written stay: the predictor is not asked about them again.
Unlike the window of other families, the text read is all of it: distances beyond the longest bucket are alike.
"""

import torch


@torch.no_grad()
def write(model, prompt, count, choose, ignore_eos=False):
    """Up to `count` symbols behind `prompt`, a list of ids. `choose` picks an id by logits (symbols), −∞ where none can be.

    Returns all picks, marks among them, and the cuts of prompt and text, the start mark's first: true where a segment ends.
    """
    marks, by_predictor = model.marks, model.driver == "predictor"
    never = [marks["start"], marks["segment_start"], marks["unknown"]]
    never += [marks["segment_end"]] * by_predictor + [marks["end"]] * ignore_eos
    ids, picks = list(prompt), []
    cuts = predicted(model, ids)
    while len(ids) < len(prompt) + count:
        steps = model.trace(torch.tensor([ids], dtype=torch.long), boundaries=torch.tensor([cuts]), ended=False)
        empty = [marks["segment_end"]] * cuts[-1]  # no segment is without symbols
        picks.append(choose(steps.logits[0, -1].index_fill(0, torch.tensor(never + empty), float("-inf"))))
        if picks[-1] == marks["end"]:
            break
        if picks[-1] == marks["segment_end"]:
            cuts[-1] = True
            continue
        ids.append(picks[-1])
        cuts.append(by_predictor and predicted(model, ids)[-1])
    return picks, cuts


def predicted(model, ids):
    return model.trace(torch.tensor([ids], dtype=torch.long), ended=False).boundaries[0].tolist()
