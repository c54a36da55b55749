"""The interface of every family.

`forward(…)` for logits · `loss(*batch)` for training · `prepare(recipe)` before training · `at(…)` before each step ·
`matrices()` for the optimiser · `posterior()`, weights that an interleaved recipe updates in steps of their own · `measure(…)`
for evaluation, where the family has a way of its own. Parameters bear the names of the checkpoint, so `state_dict` is what gets
exported.
"""

from torch import nn

from ..layers.noise import Dropout, Noise


class Family(nn.Module):
    def prepare(self, recipe):
        """Takes the training settings from the recipe, which may also set initial weights."""
        self.noise, self.step = Noise(), 0
        for module in self.modules():
            if isinstance(module, Dropout):
                module.rate, module.noise = recipe.get("dropout", 0.0), self.noise

    def at(self, seed, step, worker):
        """Sets the place of a run: noise and scheduled changes of the recipe depend on it."""
        self.step = step
        self.noise.reseed(seed, step, worker)

    def loss(self, *batch):
        """Returns the mean loss of a batch's rows and figures for the log. `nats` is per symbol, without other terms."""
        raise NotImplementedError

    def matrices(self):
        """Weights between hidden vectors; embeddings, head, biases, norms and predictors learn better with AdamW."""
        raise NotImplementedError

    def posterior(self):
        """Returns the parameters of the inference model; empty for families without one."""
        return []
