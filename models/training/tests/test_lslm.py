"""Compares LSLM's forward pass with the reference on every fixture: boundaries, pooling, layout, logits, bits per character."""

import itertools
import math
import unittest

import torch

from training import generate, segments
from training.families import build
from training.layers import elbo
from training.layers.pooling import Segments
from training.tests import golden
from training.tests.test_training import tiny

HIDDEN, LOGITS, BITS = 1e-4, 3e-4, 1e-4
STACKS = {"token_encoder": "token", "context_encoder": "context", "decoder": "decoder"}
ATTENTION = {"q": "query", "k": "key", "v": "value", "o": "output"}
MARKS = {
    "start": "bos_token_id", "end": "eos_token_id", "segment_start": "segment_bos_token_id",
    "segment_end": "next_token_id", "unknown": "unk_token_id",
}  # fmt: skip


def weir_config(official):
    specials = {mark: official[key] for mark, key in MARKS.items()}
    vocabulary = {"symbols": official.get("vocab"), "specials": specials}
    if official["vocab_type"] == "byte":
        vocabulary = {"bytes": True, "first_byte": official["byte_offset"], "specials": specials}
    pooling, widths = official["pooling"], official["width_matching"]
    architecture = {name: stack(official[key]) for key, name in STACKS.items()}
    return {
        "family": "lslm",
        "vocabulary": vocabulary,
        "architecture": {
            **architecture,
            "norm_eps": official["layer_norm_epsilon"],
            "pooling": "mean" if pooling["type"] == "dp" else {"hops": pooling["n_hops"]},
            "boundaries": {"kind": "learned", "hidden": official["boundary_predictor"]["d_ff"], "threshold": 0.5},
            "widths": {"none": "equal", "projection": "projection", "first_layer": "first-layer"}[widths],
            "shared_embedding": official["share_embeddings"],
            "tied_head": official["tie_word_embeddings"],
            "driver": official["generation_boundary_source"],
        },
    }


def stack(official):
    return {
        "layers": official["num_layers"], "dim": official["d_model"], "heads": official["num_heads"],
        "head_dim": official["d_kv"], "feed_forward": official["d_ff"],
        "buckets": official["relative_attention_num_buckets"], "max_distance": official["relative_attention_max_distance"],
        "bidirectional_buckets": official["relative_attention_bidirectional"],
    }  # fmt: skip


def weir_name(name):
    """Returns weir's name of an official tensor."""
    name = name.replace("shared.weight", "embedding.weight").replace(".embed_tokens.", ".embedding.")
    name = name.replace("boundary_predictor.wi", "boundary.hidden").replace("boundary_predictor.wo", "boundary.output")
    name = name.replace("lm_head.", "head.").replace("input_projection", "projection").replace("final_layer_norm", "norm")
    pieces = name.split(".")
    pieces[0] = STACKS.get(pieces[0], pieces[0])
    if "relative_attention_bias" in pieces:
        return f"{pieces[0]}.distance_bias.weight"
    if "block" not in pieces:
        return ".".join(pieces)
    layer, sublayer, last = pieces[2], int(pieces[4]), pieces[5:]
    kinds = ["attention", "memory", "feed_forward"] if pieces[0] == "decoder" else ["attention", "feed_forward"]
    part = {"wi": "up", "wo": "down", **ATTENTION}.get(last[-2], "norm") if last[0] != "layer_norm" else "norm"
    return f"{pieces[0]}.{layer}.{kinds[sublayer]}.{part}.weight"


class Lslm(golden.GoldenTest):
    def check(self, case):
        official, weights, expected = golden.read(case)
        self.model = build(weir_config(official)).eval()
        self.model.load_state_dict({weir_name(name): tensor for name, tensor in weights.items()})
        with torch.no_grad():
            self.check_text(expected, official["golden_info"]["score"])
            self.check_long(expected)
            for name in ("forced_ones", "forced_zeros"):
                self.check_forced({key: expected[f"{name}.{key}"] for key in ("ids", "z", "logits", "s")})
            for prompt in ("open", "closed", "empty"):
                if f"gen.{prompt}.nxt.z" in expected:
                    self.check_replay(expected, f"gen.{prompt}.nxt.")

    def check_text(self, expected, score):
        ids = expected["ids"].long().unsqueeze(0)
        steps = self.model.trace(ids[:, 1:-1])
        self.assertTrue(torch.equal(steps.boundaries[0].int(), expected["z"]))
        self.assert_near(steps.boundary_logits[0], expected["boundary_logits"], HIDDEN, "boundary logits")
        self.assert_near(steps.hidden[0], expected["h"], HIDDEN, "token encoder")
        self.assert_near(steps.pooled[0], expected["s"], HIDDEN, "pooled")
        self.assert_near(steps.context[0], expected["s_ctx"], HIDDEN, "context encoder")
        for name, key in (("inputs", "input_ids"), ("targets", "target_ids"), ("segment", "segment")):
            self.assertTrue(torch.equal(getattr(steps, name)[0].int(), expected[f"dec.{key}"]), name)
        self.assert_near(steps.logits[0], expected["dec.logits"], LOGITS, "logits")
        *actual, text = self.model.bits(steps)
        for bits, name in zip(actual, ("bpc_paper", "bpc_joint", "bpc_renormalised"), strict=True):
            self.assertAlmostEqual(bits / score["T"], score[name], delta=BITS)
        self.assertAlmostEqual(text / (score["T"] - 2), score["bits_per_char_no_eos"], delta=BITS)

    def check_long(self, expected):
        """Checks a text that has not ended: its last place has no target."""
        ids = expected["long.ids"].long().unsqueeze(0)
        steps = self.model.trace(ids[:, 1:], ended=False)
        self.assertTrue(torch.equal(steps.boundaries[0].int(), expected["long.z"]))
        self.assert_near(steps.logits[0, expected["long.rows"].long()], expected["long.logits"], LOGITS, "long logits")
        targets = steps.targets[0, :-1]
        actual = steps.logits[0, :-1].log_softmax(-1).gather(1, targets.unsqueeze(1)).squeeze(1)
        self.assert_near(actual, expected["long.target_logprobs"][: len(actual)], LOGITS, "long log-probabilities")

    def check_forced(self, expected):
        ids, z = expected["ids"].long().unsqueeze(0), expected["z"].bool().unsqueeze(0)
        steps = self.model.trace(ids[:, 1:], boundaries=z, ended=False)
        self.assert_near(steps.logits[0], expected["logits"], LOGITS, "forced logits")
        self.assert_near(steps.pooled[0], expected["s"], HIDDEN, "forced pooling")

    def check_replay(self, expected, prefix):
        """Checks that scoring a generated text with its boundaries gives the logits it was sampled from."""
        prompt, text = expected[f"{prefix}prompt_ids"].long(), expected[f"{prefix}text_ids"].long()
        z, first = expected[f"{prefix}z"].bool(), expected[f"{prefix}first_logits"]
        ids = torch.cat([prompt, text])[: len(z)]
        steps = self.model.trace(ids[1:].unsqueeze(0), boundaries=z.unsqueeze(0), ended=False)
        start = len(prompt) - 1 + int(z[: len(prompt)].sum()) - 1  # the place from which the first symbol was sampled
        self.assert_near(steps.logits[0, start : start + len(first)], first, LOGITS, f"{prefix} logits")


class Generation(golden.GoldenTest):
    """Compares greedy text with the reference, pick by pick, in both modes."""

    def check(self, case):
        official, weights, expected = golden.read(case)
        model = build(weir_config(official)).eval()
        model.load_state_dict({weir_name(name): tensor for name, tensor in weights.items()})
        names = sorted({name.rsplit(".", 1)[0] for name in expected if name.startswith("gen.")})
        self.assertGreaterEqual(len(names), 6)
        for name in names:
            with self.subTest(name):
                prompt, events, z = (expected[f"{name}.{key}"].tolist() for key in ("prompt_ids", "events", "z"))
                model.driver = name.rsplit(".", 1)[1]
                count = 60 if ".open." in name else 24
                picks, cuts = segments.write(model, prompt[1:], count, generate.greedy)
                self.assertEqual(picks, events)
                self.assertEqual(cuts, [bool(end) for end in z])


class Replay(unittest.TestCase):
    """Checks, with an untrained model, that greedy picks are the most probable symbols of the forward pass at each place."""

    def test_greedy_picks_are_likeliest(self):
        torch.manual_seed(5)
        for driver in ("nxt", "predictor"):
            config = tiny("lslm-hops3")["model"]
            config["architecture"]["driver"] = driver
            model = build(config).eval()
            torch.nn.init.normal_(model.head.bias)
            for prompt in ([], [9, 7, 5, 6]):
                self.compare(model, prompt)

    @torch.no_grad()
    def compare(self, model, prompt):
        picks, cuts = segments.write(model, prompt, 40, generate.greedy, ignore_eos=True)
        text = [pick for pick in picks if pick != model.marks["segment_end"]]
        ids, ends = torch.tensor([prompt + text]), torch.tensor([cuts])
        steps = model.trace(ids, boundaries=ends, ended=False)
        never = [model.marks[name] for name in ("start", "segment_start", "unknown", "end")]
        by_predictor = model.driver == "predictor"
        if by_predictor:
            self.assertEqual(model.trace(ids, ended=False).boundaries[0].tolist(), cuts)
        first = len(prompt) + sum(cuts[: len(prompt) + 1]) - 1  # the position of the first pick
        positions = [position for position in range(first, steps.logits.shape[1]) if steps.targets[0, position] >= 0]
        if by_predictor:  # marks are never picked, so their positions have no pick
            positions = [position for position in positions if steps.targets[0, position] != model.marks["segment_end"]]
        self.assertEqual(len(positions), len(picks))
        for position, pick in zip(positions, picks):
            begins = steps.inputs[0, position] == model.marks["segment_start"]
            banned = never + [model.marks["segment_end"]] * bool(by_predictor or begins)
            logits = steps.logits[0, position].index_fill(0, torch.tensor(banned), float("-inf"))
            self.assertLess(float(logits.max() - logits[pick]), 1e-5)


class After(unittest.TestCase):
    def test_prior_draws_boundaries_before_update_after(self):
        """The prior draws boundaries before update `after`, and the predictor learns nothing. Then the predictor decides."""
        recipe = {"elbo": {"prior": 0.2, "beta": 2.0, "divergence": "rate", "costs": True, "after": 3}}
        model, ids = build(tiny("lslm-dp")["model"]), torch.randint(5, 30, (64, 64))
        model.prepare(recipe)
        for step in range(5):
            model.set_step(1, step, 0)
            model.zero_grad()
            loss, logged = model.loss(ids, ids)
            loss.backward()
            learns = model.boundary.output.weight.grad is not None
            self.assertEqual(learns, step >= 3)
            self.assertAlmostEqual(logged["boundary_rate"], 0.5 if learns else 0.2, delta=0.03)
            if not learns:
                self.assertAlmostEqual(float(loss.detach()), logged["nats"], places=6)


class Costs(unittest.TestCase):
    """The cost of a boundary equals the difference of forward passes with and without it."""

    def setUp(self):
        torch.manual_seed(6)
        self.model = build(tiny("lslm-dp")["model"]).eval()
        torch.nn.init.normal_(self.model.head.bias)
        self.mark = self.model.marks["segment_end"]

    def slopes(self, ids, z, logits):
        """Returns the derivative of the costs by each of `logits` (n), for the sampled boundaries z (n)."""
        leaf = torch.cat([torch.zeros(1), logits]).unsqueeze(0).requires_grad_()
        with torch.no_grad():
            steps = self.model.trace(ids.unsqueeze(0), boundaries=torch.cat([z.new_ones(1), z]).unsqueeze(0))
        steps.boundary_logits = leaf
        zero = elbo.costs(steps, self.mark)
        self.assertEqual(float(zero.detach()), 0.0)
        zero.backward()
        self.assertEqual(float(leaf.grad[0, 0]), 0.0)  # the start mark is always a segment
        return leaf.grad[0, 1:]

    def test_gradients_are_the_cost_of_each_boundary(self):
        for ends in (True, False):  # the end mark follows a last segment that ended
            ids, z, logits = torch.randint(5, 30, (9,)), torch.rand(9) < 0.4, torch.randn(9) - 1
            z[3], logits[3], z[8] = True, -6.0, ends  # a boundary with a very low probability
            slopes = self.slopes(ids, z, logits)
            for t in range(9):
                with_it, marked = self.nats_behind(ids, z, t, True)
                without, unmarked = self.nats_behind(ids, z, t, False)
                p = float(torch.sigmoid(logits[t]))
                expected = marked - unmarked + float(z[t]) / max(p, elbo.MIN_PROBABILITY) * (with_it - without)
                self.assertAlmostEqual(float(slopes[t]), p * (1 - p) * expected, places=4, msg=(ends, t))

    def test_expected_gradient_of_the_last_boundary(self):
        """Over all 2⁵ samples, the last boundary has the gradient of the expected likelihood, because it has no later effects."""
        ids, logits = torch.randint(5, 30, (5,)), torch.randn(5).requires_grad_()
        p, nats, slopes = torch.sigmoid(logits), 0.0, 0.0
        self.assertGreater(float(p.detach().min()), elbo.MIN_PROBABILITY)
        for ends in itertools.product((False, True), repeat=5):
            z = torch.tensor(ends)
            chance = torch.where(z, p, 1 - p).prod()
            with torch.no_grad():
                steps = self.model.trace(ids.unsqueeze(0), boundaries=torch.cat([z.new_ones(1), z]).unsqueeze(0))
                scores = steps.logits[0].log_softmax(-1)
                scored = steps.targets[0] >= 0
                spent = -scores[scored].gather(1, steps.targets[0, scored].unsqueeze(1)).sum()
            nats = nats + chance * spent
            slopes = slopes + chance.detach() * self.slopes(ids, z, logits.detach())
        nats.backward()
        self.assertAlmostEqual(float(slopes[4]), float(logits.grad[4]), places=4)
        self.assertNotAlmostEqual(float(slopes[0]), float(logits.grad[0]), places=2)  # the first boundary has later effects

    def test_the_loss_has_them_by_the_symbol(self):
        recipe, ids = {"elbo": {"prior": 0.3, "beta": 2.0, "divergence": "rate"}}, torch.randint(5, 30, (3, 12))
        gradients = []
        for costs in (True, False):
            recipe["elbo"]["costs"] = costs
            self.model.prepare(recipe)
            self.model.noise.reseed(1)
            self.model.zero_grad()
            self.model.loss(ids, ids)[0].backward()
            gradients.append(self.model.boundary.hidden.weight.grad.clone())
        self.model.noise.reseed(1)
        self.model.zero_grad()
        steps = self.model.trace(ids, noise=self.model.noise.logistic(torch.empty(3, 13)))
        (elbo.costs(steps, self.mark) / 36).backward()
        own = self.model.boundary.hidden.weight.grad
        self.assertGreater(float(own.abs().max()), 1e-3)
        self.assertLess(float((gradients[0] - gradients[1] - own).abs().max()), 1e-5)

    @torch.no_grad()
    def nats_behind(self, ids, z, t, boundary):
        """Returns the nats of the symbol after symbol t, with or without a mark before it, and those of the mark's presence."""
        z = torch.cat([z.new_ones(1), z])
        z[t + 1] = boundary
        steps = self.model.trace(ids.unsqueeze(0), boundaries=z.unsqueeze(0))
        scores = steps.logits[0].log_softmax(-1)
        place = t + int(z[: t + 1].sum())  # symbols before, and one place for each row that has begun
        following = int(ids[t + 1]) if t + 1 < len(ids) else self.model.marks["end"]
        mark = float(scores[place, self.mark])
        if boundary:
            self.assertEqual(int(steps.inputs[0, place + 1]), self.model.marks["segment_start"])
            return -float(scores[place + 1, following]), -mark
        rest = math.log1p(-math.exp(mark))
        return -(float(scores[place, following]) - rest), -rest


class Hops(unittest.TestCase):
    def test_recursion_is_the_mean_of_the_last(self):
        torch.manual_seed(1)
        z = torch.rand(3, 40) < 0.3
        z[:, 0] = True
        hidden = torch.randn(3, 40, 2)
        for hops in (0, 1, 2, 3, 7):
            actual = Segments(z).pool_hops(hidden, hops)
            for row in range(3):
                start, segment = 0, 0
                for end in z[row].nonzero().flatten().tolist():
                    expected = hidden[row, max(start, end - hops) : end + 1].mean(0)
                    self.assertLess(float((actual[row, segment] - expected).abs().max()), 1e-5)
                    start, segment = end + 1, segment + 1

    def test_gradients_reach_the_boundaries_as_through_the_matrix(self):
        """Mean pooling's weights against the published form: 1 − (segment − boundaries before), where that is 1."""
        torch.manual_seed(2)
        soft = torch.rand(2, 12, dtype=torch.float64, requires_grad=True)
        hard = (soft > 0.6).double()
        through = hard - soft.detach() + soft
        hidden, weight = torch.randn(2, 12, 3, dtype=torch.float64), torch.randn(2, 12, 3, dtype=torch.float64)
        owner = through.cumsum(1) - through
        distance = torch.arange(12.0) - owner.unsqueeze(2)
        matrix = torch.where(distance.detach().round() == 0, 1 - distance, torch.zeros_like(distance))
        means = (matrix / (matrix.sum(1, keepdim=True) + 1e-9)).transpose(1, 2) @ hidden  # (batch, segments, dim)
        segments = Segments(hard.bool())
        expected = sum((means[row, :n] * weight[row, :n]).sum() for row, n in enumerate(segments.counts))
        (slow,) = torch.autograd.grad(expected, soft)
        pooled = segments.pool_mean(hidden, soft - soft.detach())
        actual = sum((pooled[row, :n] * weight[row, :n]).sum() for row, n in enumerate(segments.counts))
        (fast,) = torch.autograd.grad(actual, soft)
        self.assertLess(float((fast - slow).abs().max()), 1e-7)
        self.assertGreater(float(fast.abs().max()), 1e-3)


golden.add_cases(Generation, {name: path for name, path in golden.cases("lslm").items() if name != "gpt2"})
golden.add_cases(Lslm, {name: path for name, path in golden.cases("lslm").items() if name != "gpt2"})
