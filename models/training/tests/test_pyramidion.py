"""Compares the summarizer with the published code on every fixture: encoder, pooling, decoder; tests successive halving alone."""

import ast
import unittest
from types import SimpleNamespace

import torch

from training import beam
from training.families import build
from training.layers.halving import halve, halves_down
from training.tests import golden

STATES, LOGITS = 1e-4, 5e-5
DROPPED = ("encoder.version", "decoder.version", "encoder.embed_positions._float_tensor",
           "decoder.embed_positions._float_tensor", "decoder.embed_tokens.weight", "decoder.output_projection.weight")  # fmt: skip


def weir_config(official):
    pools = official["encoder_pooling"] == "topk"
    length, lengths = official["max_source_positions"], {}
    current = length
    for layer, kept in sorted(ast.literal_eval(official["enc_layers_and_token_width"]).items()):
        if kept != current:
            lengths[str(layer)] = current = kept
    pooling = {"kind": "none"}
    if pools and lengths:
        pooling = {"kind": "successive-halving", "lengths": lengths,
                   "flip_right": bool(official["flip_right"]), "sort_back": bool(official["sort_back"])}  # fmt: skip
    blocks = pools and official["use_sparse_attn"] != "pooler_no_block"
    return {
        "family": "pyramidion",
        "vocabulary": {"size": official["vocab_size"]},
        "architecture": {
            "encoder_layers": official["encoder_layers"], "decoder_layers": official["decoder_layers"],
            "dim": official["d_model"], "heads": official["heads"], "feed_forward": official["ffn_dim"],
            "activation": "relu", "layer_norm_eps": official["layer_norm_eps"],
            "pre_norm": official.get("normalize_before", False), "source_length": length,
            "target_length": official["max_target_positions"], "block": official["chunk_size"] if blocks else None,
            "pooling": pooling, "decoder_positions": official["decoder_positional_embeddings"],
        },
    }  # fmt: skip


class Pyramidion(golden.GoldenTest):
    def check(self, case):
        official, weights, expected = golden.read(case)
        if not weights:
            return self.check_operator(official, expected)
        config = weir_config(official)
        model = build(config).eval()
        plan = config["architecture"]["pooling"].get("lengths", {})
        scorers = lambda name: name.startswith("encoder.pooler.scorer.")  # noqa: E731
        used = {name: tensor for name, tensor in weights.items() if not scorers(name) or name.split(".")[3] in plan}
        model.load_state_dict({name: tensor for name, tensor in used.items() if name not in DROPPED})
        with torch.no_grad():
            steps = model.encoder(expected["src_tokens"])
            for index, state in enumerate(steps.states):
                self.assert_near(state, expected[f"encoder.state.{index}"], STATES, f"encoder state {index}")
            self.assert_near(steps.out, expected["encoder.out"], STATES, "encoder")
            *states, logits = model.decode(steps.out, expected["prev_output_tokens"])
        for index, state in enumerate(states):
            self.assert_near(state, expected[f"decoder.state.{index}"], STATES, f"decoder state {index}")
        self.assert_near(logits, expected["decoder.logits"], LOGITS, "logits")
        for name, settings in official.get("generation", {}).items():
            self.check_generation(model, expected, name, settings)

    def check_generation(self, model, expected, name, settings):
        options = {"beam": settings["beam"], "length_penalty": settings["lenpen"], "min_tokens": settings["min_len"],
                 "max_tokens": settings["max_len_b"]}  # fmt: skip
        for row, source in enumerate(expected["src_tokens"]):
            results = beam.search(model, source, options)
            self.assertEqual(len(results), settings["beam"])
            for rank, (ids, score) in enumerate(results):
                length = int(expected[f"{name}.lengths"][row, rank])
                self.assertEqual(ids, expected[f"{name}.tokens"][row, rank, :length].tolist())
                self.assertAlmostEqual(score, float(expected[f"{name}.scores"][row, rank]), places=4)

    def check_operator(self, official, expected):
        for case in official["cases"]:
            name = case["id"]
            arguments = (expected[f"{name}.E"], expected[f"{name}.v"], case["input_len"], case["pooled_len"])
            with self.subTest(case=name):
                if case["status"] != "ok" or case["returned_len"] != case["pooled_len"]:
                    self.assertRaises(ValueError, halve, *arguments)
                    continue
                vectors, scores = halve(*arguments, case["flip_right"], case["sort_back"])
                self.assert_near(vectors, expected[f"{name}.out"], STATES, "vectors")
                self.assert_near(scores, expected[f"{name}.scores_out"], STATES, "scores")


class Repeats(unittest.TestCase):
    def test_tokens_that_would_repeat_a_sequence(self):
        self.assertEqual(beam.repeats([5, 6, 7, 5, 6], 3), [7])
        self.assertEqual(beam.repeats([5, 5, 5], 3), [5])
        self.assertEqual(beam.repeats([5, 6, 5, 7, 5], 2), [6, 7])
        self.assertEqual(beam.repeats([5, 6], 3), [])
        self.assertEqual(beam.repeats([5, 5, 5], 0), [])

    def test_search_excludes_repeats(self):
        """Searches with a model that always prefers the same token."""
        model = SimpleNamespace(encoder=lambda source: SimpleNamespace(out=torch.zeros(1, 1, 1)), decode=constant)
        options = {"beam": 2, "length_penalty": 1.0, "min_tokens": 6, "max_tokens": 6}
        free, ruled = (beam.search(model, torch.zeros(1), {**options, "no_repeat_ngram": n})[0][0] for n in (0, 2))
        self.assertEqual(free, [5] * 6 + [beam.EOS])
        runs = list(zip(ruled, ruled[1:]))
        self.assertEqual(len(set(runs)), len(runs))


def constant(memory, prefixes):
    logits = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, 3.0, 2.0])
    return [logits.expand(*prefixes.shape, -1)]


class Halving(golden.GoldenTest):
    def test_scores_get_gradients(self):
        torch.manual_seed(1)
        scores = torch.rand(2, 16, requires_grad=True)
        vectors, _ = halve(torch.randn(2, 16, 3), scores, 16, 4)
        vectors.sum().backward()
        self.assertGreater(float(scores.grad.abs().min()), 0)

    def test_lengths(self):
        self.assertTrue(halves_down(12, 3) and halves_down(5, 5))
        self.assertFalse(halves_down(10, 3) or halves_down(10, 4) or halves_down(3, 10))


golden.add_cases(Pyramidion, golden.cases("pyramidion"))
