"""The interface of every family.

`forward(…)` for logits · `loss(*batch)` for training · `prepare(recipe)` before training · `set_step(…)` before each step ·
`matrices()` for the optimiser · `posterior()`, weights that an interleaved recipe updates in separate steps · `measure(…)` for
families with their own evaluation. Parameters have the names of the checkpoint, so the export is the `state_dict`.
"""

from torch import nn

from ..layers.noise import Dropout, Noise


class Family(nn.Module):
    def prepare(self, recipe):
        """Applies the training settings of the recipe, which may also change initial weights."""
        self.noise, self.step = Noise(), 0
        for module in self.modules():
            if isinstance(module, Dropout):
                module.rate, module.noise = recipe.get("dropout", 0.0), self.noise

    def set_step(self, seed, step, worker):
        """Sets the position of the run, which determines noise and scheduled changes of the recipe."""
        self.step = step
        self.noise.reseed(seed, step, worker)

    def loss(self, *batch):
        """Returns the mean loss of a batch's rows and figures for the log. `nats` is per symbol, without other terms of the loss."""
        raise NotImplementedError

    def matrices(self):
        """Returns weights between hidden vectors. Embeddings, head, biases, norms and predictors learn better with AdamW."""
        raise NotImplementedError

    def posterior(self):
        """Returns the parameters of the inference model; empty for families without one."""
        return []
