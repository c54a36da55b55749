"""Compares the decoder's forward pass with torchscale's on every fixture."""

import torch

from training.families import build
from training.layers.schemes import Rotary
from training.tests import golden

TOLERANCE = 5e-5
NAMES = {
    "self_attn.out_proj": "attention.output",
    "self_attn_layer_norm": "attention.norm",
    "self_attn.inner_attn_ln": "attention.inner_norm",
    "ffn.fc1": "feed_forward.up",
    "ffn.fc2": "feed_forward.down",
    "ffn.ffn_layernorm": "feed_forward.inner_norm",
    "final_layer_norm": "feed_forward.norm",
}


def weir_config(official):
    position = {
        "xpos": {"xpos": {"scale_base": official.get("xpos_scale_base")}},
        "rope": "rotary",
        "bucket": {"buckets": {"count": official.get("rel_pos_buckets", 2) // 2, "max_distance": official.get("max_rel_pos")}},
    }.get(official["position"], official["position"])
    window = "full"
    if "window" in official:
        window = {"sliding": {"keys": official["window"]}}
    elif official["mask"].startswith("sliding"):
        window = {"sliding": {"keys": official["block_size"] + 1}}
    elif official["block_size"] > 0:
        window = {"blockwise": {"length": official["block_size"]}}
    dim, heads = official["d_model"], official["heads"]
    return {
        "family": "decoder",
        "vocabulary": {"symbols": [chr(0xF0000 + index) for index in range(official["vocab_size"])]},
        "architecture": {
            "layers": official["layers"], "dim": dim, "heads": heads, "head_dim": dim // heads,
            "feed_forward": official["ffn_dim"], "activation": official["activation"],
            "layer_norm_eps": official["layer_norm_eps"], "position": position, "window": window,
            "sub_norms": official["subln"], "scale_embedding": official["scale_embedding"], "tied": official["tied"],
        },
    }  # fmt: skip


def weir_tensors(official, config):
    tensors = {
        "embedding.weight": official["embed_tokens.weight"],
        "norm.weight": official["layer_norm.weight"],
        "norm.bias": official["layer_norm.bias"],
    }
    if not config["architecture"]["tied"]:
        tensors["head.weight"] = official["output_projection.weight"]
    buckets = official.get("self_attn_relative_position.relative_attention_bias.weight")
    if buckets is not None:
        tensors["position.bias"] = buckets[: len(buckets) // 2]  # the other half is for keys after the query
    for index in range(config["architecture"]["layers"]):
        for kind in ("weight", "bias"):
            parts = [official[f"layers.{index}.self_attn.{letter}_proj.{kind}"] for letter in "qkv"]
            tensors[f"layers.{index}.attention.qkv.{kind}"] = torch.cat(parts)
            for official_name, name in NAMES.items():
                if f"layers.{index}.{official_name}.{kind}" in official:
                    tensors[f"layers.{index}.{name}.{kind}"] = official[f"layers.{index}.{official_name}.{kind}"]
    return tensors


class Lex(golden.GoldenTest):
    def check(self, case):
        official, weights, expected = golden.read(case)
        if not weights:
            return self.check_operator(official, expected)
        config = weir_config(official)
        model = build(config).eval()
        buffers = {name: tensor for name, tensor in model.state_dict().items() if name in ("position.slopes", "position.frequency")}
        model.load_state_dict({**weir_tensors(weights, config), **buffers})
        with torch.no_grad():
            steps = model.trace(expected["tokens"].long())
        self.assert_near(steps.logits, expected["logits"], TOLERANCE, "logits")
        for name, actual in (("attn_concat", steps.mixed[0]), ("self_attn_out", steps.attention[0])):
            if f"layer.0.{name}" in expected:
                self.assert_near(actual, expected[f"layer.0.{name}"], TOLERANCE, name)
        for index, actual in enumerate(steps.layers):
            if f"layer.{index}.out" in expected:
                self.assert_near(actual, expected[f"layer.{index}.out"], TOLERANCE, f"layer {index}")

    def check_operator(self, official, expected):
        """Checks xPos alone, over distances that are too long for a test model."""
        for case in official["cases"]:
            prefix = f"{case['id']}."
            values = {name[len(prefix) :]: value for name, value in expected.items() if name.startswith(prefix)}
            with self.subTest(case=case["id"]):
                self.compare_rotated(Rotary(case["head_dim"], case["scale_base"]), case, values)

    def compare_rotated(self, scheme, case, values):
        length = case["key_len"]
        rows = values["q_rows"].long(), values["k_rows"].long()
        inputs = [torch.zeros(2, 1, length, case["head_dim"]) for _ in rows]
        for tensor, positions, part in zip(inputs, rows, (values["q"], values["k"])):
            tensor[:, 0, positions] = part
        query, key = (tensor[:, 0, positions].double() for tensor, positions in zip(scheme.rotate(*inputs), rows))
        scores = query @ key.transpose(1, 2)
        # Relative to the size of the summands: scores of distant keys are sums of large numbers that cancel.
        size = query.norm(dim=2).unsqueeze(2) * key.norm(dim=2).unsqueeze(1)
        error = ((scores - values["scores"]).abs() / size).max()
        # The reference rounds an angle of n to f32, with an error of n · 6e-8.
        self.assertLess(float(error), 2e-7 * max(10, length))
        if case["centre_min_pos"] == -(length // 2):
            close = (query - values["q_out"]).abs() / values["q_out"].norm(dim=2, keepdim=True)
            self.assertLess(float(close.max()), 2e-7 * max(10, length))


golden.add_cases(Lex, golden.cases("lex", "torchscale"))
