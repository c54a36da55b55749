"""The Muon optimiser: orthogonalises the momentum of each matrix before the update (Jordan et al., 2024).

An update then changes all directions of a weight equally; a few directions dominate plain gradients. Muon is for weights between
hidden vectors. AdamW trains all other weights.
"""

import torch

# Coefficients (a, b, c). Iterating x ← a·x + (b·xxᵀ + c·(xxᵀ)²)·x moves all singular values from (0, 1] into about [0.7, 1.2].
QUINTIC = (3.4445, -4.7750, 2.0315)


def orthogonalise(batch, steps, dtype=torch.float32):
    """Sets the singular values of each matrix in (count, rows, columns), rows ≤ columns, to about one."""
    a, b, c = QUINTIC
    batch = (batch / (batch.norm(dim=(1, 2), keepdim=True) + 1e-7)).to(dtype)
    for _ in range(steps):
        gram = torch.bmm(batch, batch.transpose(1, 2))  # (count, rows, rows)
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        batch = torch.baddbmm(batch, polynomial, batch, beta=a)
    return batch


class Muon(torch.optim.Optimizer):
    """Applies orthogonalised Nesterov momentum with decoupled weight decay.

    Query, key and value of a fused weight are orthogonalised separately: a matrix with three times as many rows as columns counts
    as three matrices.
    """

    def __init__(self, matrices, lr, momentum=0.95, weight_decay=0.0, steps=5, dtype=torch.float32, workers=None):
        self.dtype = dtype  # bfloat16 suffices, because the iteration corrects its errors
        self.workers = workers
        super().__init__(matrices, dict(lr=lr, momentum=momentum, weight_decay=weight_decay, steps=steps))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            by_shape = {}  # equal shapes are orthogonalised in one batch
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["velocity"] = torch.zeros_like(weight)
                velocity = state["velocity"].mul_(group["momentum"]).add_(weight.grad)
                update = weight.grad.add(velocity, alpha=group["momentum"])
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                for target, part in _square_parts(weight, update):
                    by_shape.setdefault(part.shape, []).append((target, part))
            self._apply([pair for targets in by_shape.values() for pair in self._share(targets)], group)

    def _share(self, targets):
        """Stacks updates of equal shape into one part per worker; returns [(targets, (count, rows, columns))]."""
        size = -(-len(targets) // (self.workers.count if self.workers else 1))
        parts = [targets[start : start + size] for start in range(0, len(targets), size)]
        return [([target for target, _ in part], torch.stack([update for _, update in part])) for part in parts]

    def _apply(self, parts, group):
        def direction(part):
            update = part[1]
            tall = update.shape[1] > update.shape[2]
            result = orthogonalise(update.transpose(1, 2) if tall else update, group["steps"], self.dtype)
            return result.transpose(1, 2) if tall else result

        directions = self.workers.map(direction, parts) if self.workers else map(direction, parts)
        for (targets, _), changes in zip(parts, directions):
            rows, columns = changes.shape[1:]
            scale = max(1, rows / columns) ** 0.5  # so that outputs change equally for every shape
            for target, change in zip(targets, changes):
                target.add_(change.float(), alpha=-group["lr"] * scale)


def _square_parts(weight, update):
    rows, columns = weight.shape
    if rows == 3 * columns:
        return list(zip(weight.split(columns), update.split(columns)))
    return [(weight, update)]
