"""Continues a text with a latent segment model, as the server does (SPEC of the family, section 8).

The predictor cuts the prompt, including its last symbol. The model's own mark cuts the generated text, or the predictor does if it is
the checkpoint's driver. Cuts of generated text are final. Unlike other families with their windows, the model reads the whole text:
all distances beyond the longest bucket are equal.
"""

import torch


@torch.no_grad()
def write(model, prompt, count, choose, ignore_eos=False):
    """Generates up to `count` symbols after `prompt`, a list of ids. `choose` picks an id from logits (symbols); −∞ excludes an id.

    Returns all picks, marks included, and the cuts of the start mark, the prompt and the text: true where a segment ends.
    """
    marks, by_predictor = model.marks, model.driver == "predictor"
    never = [marks["start"], marks["segment_start"], marks["unknown"]]
    never += [marks["segment_end"]] * by_predictor + [marks["end"]] * ignore_eos
    ids, picks = list(prompt), []
    cuts = predicted(model, ids)
    while len(ids) < len(prompt) + count:
        steps = model.trace(torch.tensor([ids], dtype=torch.long), boundaries=torch.tensor([cuts]), ended=False)
        empty = [marks["segment_end"]] * cuts[-1]  # a segment has at least one symbol
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
