"""Compares the forward pass with outputs of the reference implementation on every fixture.

Run from `models/`: `python -m unittest discover -t . -s training/tests`. `WEIR_GOLDEN` names the fixtures' folder if it is not the
repository's own.
"""

import json
import os
import unittest
from pathlib import Path

import torch

from training import safetensors_file
from training.families import build

GOLDEN = Path(os.environ.get("WEIR_GOLDEN", Path(__file__).parents[3] / "tests/golden/dynamic-pooling"))
SHORT, LONG, BETWEEN = 2e-5, 1e-4, 5e-5  # tolerances: logits, logits of the 2,048 characters, intermediate values
PREDICTORS = ("unigram", "entropy", "gumbel")
STACKS = ("pre", "middle", "post")
RENAMED = {
    "dec_attn.qkv_net": "attention.qkv",
    "dec_attn.r_net": "attention.distance",
    "dec_attn.o_net": "attention.output",
    "dec_attn.layer_norm": "attention.norm",
    "pos_ff.CoreNet.0": "feed_forward.up",
    "pos_ff.CoreNet.3": "feed_forward.down",
    "pos_ff.layer_norm": "feed_forward.norm",
    "word_emb.": "embedding.",
    "final_cast.": "head.",
    "down_ln.": "pool_norm.",
    "pos_emb.inv_freq": "position.inverse_frequency",
    "r_w_bias": "position.content_bias",
    "r_r_bias": "position.distance_bias",
    "boundary_predictor.boundary_predictor.0": "boundary.hidden",
    "boundary_predictor.boundary_predictor.2": "boundary.output",
}


def weir_config(official):
    """Converts a fixture's constructor arguments into a checkpoint's config.json."""
    kind, symbols = official["boundaries_type"], official["vocab"]
    boundaries = {"kind": "none"}
    if kind == "whitespaces":
        boundaries = {"kind": "whitespace", "symbol": symbols[official["whitespace_id"]]}
    elif kind == "fixed":
        boundaries = {"kind": "fixed", "every": official["fixed_sf"]}
    elif kind in PREDICTORS:
        boundaries = {"kind": "learned", "hidden": official["d_inner"], "threshold": official["boundary_threshold"]}
    counts = [count for count in official["layers"] if count]
    return {
        "family": "hourglass",
        "vocabulary": {"symbols": symbols},
        "architecture": {
            "layers": dict(zip(STACKS, counts if kind != "none" else counts[:1])),
            "dim": official["d_model"],
            "heads": official["n_head"],
            "head_dim": official["d_head"],
            "feed_forward": official["d_inner"],
            "activation": official["activation_function"],
            "layer_norm_eps": official["layer_norm_eps"],
            "position": "transformer-xl",
            "pooling": "mean",
            "boundaries": boundaries,
        },
    }


def weir_tensors(official):
    """Returns a fixture's weights under weir's names, without the distance projection's bias, which has no effect."""
    tensors = {}
    for name, tensor in official.items():
        if name.endswith("r_net.bias"):
            continue
        for old, new in RENAMED.items():
            name = name.replace(old, new)
        for index, stack in enumerate(STACKS):
            name = name.replace(f"layers.{index}.", f"{stack}.", 1) if name.startswith(f"layers.{index}.") else name
        tensors[name] = tensor.reshape(-1) if name == "null_group" else tensor
    return tensors


class Golden(unittest.TestCase):
    def assert_near(self, actual, expected, tolerance, what):
        difference = float((actual - expected).abs().max())
        self.assertEqual(actual.shape, expected.shape, what)
        self.assertLessEqual(difference, tolerance, what)

    def check(self, case):
        folder = GOLDEN / case
        config = weir_config(json.loads((folder / "config.json").read_text()))
        model = build(config).eval()
        model.load_state_dict(weir_tensors(safetensors_file.read(folder / "model.safetensors")))
        golden = safetensors_file.read(folder / "golden.safetensors")
        with torch.no_grad():
            self.check_window(model, golden, "", SHORT)
            for edge in range(5):
                self.check_window(model, golden, f"edge{edge}.", SHORT)
            self.check_between(model, golden)
            self.check_long(model, golden)
            if "sampled.u" in golden:
                self.check_sampled(model, golden)

    def check_window(self, model, golden, prefix, tolerance):
        ids = golden[f"{prefix}ids"].long()
        steps = model.trace(ids.view(-1, ids.shape[-1]))
        expected = golden[f"{prefix}logits"]
        self.assert_near(steps.logits.view(expected.shape), expected, tolerance, f"{prefix}logits")
        if f"{prefix}boundaries" in golden:
            self.assertTrue(torch.equal(steps.boundaries.view(ids.shape).byte(), golden[f"{prefix}boundaries"]))

    def check_between(self, model, golden):
        steps = model.trace(golden["ids"].long())
        for row in range(2):
            self.assert_near(steps.pre[row], golden[f"row{row}.stack0_out"], BETWEEN, "pre stack")
            if steps.boundaries is None:
                continue
            pooled = golden[f"row{row}.pooled_raw"]
            self.assert_near(steps.pooled[row, : len(pooled)], pooled, BETWEEN, "pooled")
            self.assert_near(steps.middle[row, : len(pooled)], golden[f"row{row}.stack1_out"], BETWEEN, "middle stack")
            self.assert_near(steps.top[row], golden[f"row{row}.stack2_out"], BETWEEN, "post stack")

    def check_long(self, model, golden):
        steps = model.trace(golden["long.ids"].long().unsqueeze(0))
        positions = golden["long.positions"].long()
        self.assert_near(steps.logits[0, positions], golden["long.logits"], LONG, "long logits")
        if "long.boundaries" in golden:
            self.assertTrue(torch.equal(steps.boundaries[0].byte(), golden["long.boundaries"]))

    def check_sampled(self, model, golden):
        ids = golden["ids"].long()
        boundaries = model.boundary.sample(model.trace(ids).pre, golden["sampled.u"])
        self.assertTrue(torch.equal(boundaries.byte(), golden["sampled.boundaries"]))
        self.assert_near(model(ids, boundaries), golden["sampled.logits"], SHORT, "sampled logits")


for _case in sorted(path.name for path in GOLDEN.glob("*") if (path / "golden.safetensors").exists()):
    setattr(Golden, f"test_{_case}", lambda self, case=_case: self.check(case))


if __name__ == "__main__":
    unittest.main()
