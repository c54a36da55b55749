"""Runs fairseq's beam search (SPEC of the pooled summarizer, section 7) on one document at a time.

The search computes the whole prefix again for each token. It serves for samples and for ROUGE; the server is fast.
"""

import torch

from .families.pyramidion import EOS, PAD


@torch.no_grad()
def search(model, source, settings):
    """Returns the hypotheses of a document (length) as [(tokens with the end mark, score)], best first.

    `settings` has beam, length_penalty, min_tokens and max_tokens (both without the end mark), and optionally no_repeat_ngram.
    """
    beam, memory = settings["beam"], model.encoder(source.unsqueeze(0)).out
    prefixes, sums = torch.full((1, 1), EOS), torch.zeros(1)
    finished = []
    for step in range(settings["max_tokens"] + 1):
        logits = model.decode(memory.expand(len(prefixes), -1, -1), prefixes)[-1][:, -1].float()
        chances = logits.log_softmax(-1)
        chances[:, PAD] = float("-inf")
        if step < settings["min_tokens"]:
            chances[:, EOS] = float("-inf")
        if step == settings["max_tokens"]:
            chances[:, :EOS] = chances[:, EOS + 1 :] = float("-inf")
        for row, prefix in enumerate(prefixes[:, 1:].tolist()):
            chances[row, repeats(prefix, settings.get("no_repeat_ngram", 0))] = float("-inf")
        symbols = chances.shape[1]
        total = (sums.unsqueeze(1) + chances).flatten()
        best, index = total.topk(min(2 * beam, len(total)))
        rows, tokens = index // symbols, index % symbols
        ends = (tokens == EOS) & (best > float("-inf"))
        for rank in range(min(beam, len(ends))):
            if ends[rank] and len(finished) < beam:
                ids = [*prefixes[rows[rank], 1:].tolist(), EOS]
                finished.append((ids, float(best[rank]) / len(ids) ** settings["length_penalty"]))
        if len(finished) >= beam:
            break
        open_rows = (tokens != EOS).nonzero().flatten()[:beam]
        prefixes = torch.cat([prefixes[rows[open_rows]], tokens[open_rows].unsqueeze(1)], dim=1)
        sums = best[open_rows]
    return sorted(finished, key=lambda pair: -pair[1])


def repeats(prefix, length):
    """Returns the tokens that would repeat a run of `length` tokens; empty if `length` is below 2."""
    if length < 2 or len(prefix) < length:
        return []
    last = prefix[len(prefix) - length + 1 :]
    starts = range(len(prefix) - length + 1)
    return [prefix[start + length - 1] for start in starts if prefix[start : start + length - 1] == last]
