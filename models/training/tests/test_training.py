"""Tests runs on tiny models: resume after a kill, export, campaigns, windows, evaluation and schedule."""

import argparse
import contextlib
import copy
import io
import json
import random
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import numpy
import torch

from training import campaign, checkpoint, data, evaluation, schedule, table
from training.evaluate import by_length, parse_window
from training.export import export
from training.families import build
from training.safetensors_file import read
from training.tests.test_golden import GOLDEN, weir_config, weir_tensors
from training.run import Run
from training.train import train

CONFIGS = Path(__file__).parents[1] / "configs"


def tiny(name="english-whitespace"):
    """Returns a configuration of the same kind that trains in a second: the same parts and recipe with small numbers."""
    config = json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))
    architecture, recipe = config["model"]["architecture"], config["training"]
    {"hourglass": tiny_hourglass, "decoder": tiny_decoder, "lslm": tiny_lslm, "pyramidion": tiny_pyramidion}[
        config["model"]["family"]
    ](config["model"], architecture)
    recipe.update(
        budget={"characters": 40_000}, precision="f32", warmup_steps=4, log_every_steps=1, dropout=0.1, clip=1.0,
        save_every_seconds=1e9, adamw={"lr": 0.01, "betas": [0.9, 0.98], "eps": 1e-8, "weight_decay": 0.0},
    )  # fmt: skip
    sizes = {"valid_characters": 4096, "batch_characters": 2048, "batch_pairs": 16, "valid_pairs": 16}
    recipe.update({key: size for key, size in sizes.items() if key in recipe})
    recipe.pop("valid_every_characters", None)
    recipe["valid_every_seconds"] = 1e9
    if "posterior_lr" in recipe:
        recipe["posterior_lr"] = 1e-3  # the predictor is narrower, too
        if "after" in recipe["elbo"]:
            recipe["elbo"]["after"] = 6
    if "stages" in recipe:
        recipe["stages"] = [{"until": 1.0, "length": 64}]
    if recipe.get("boundaries", {}).get("method") == "unigram":
        recipe["boundaries"]["vocabulary"] = 40
    return config


def tiny_hourglass(model, architecture):
    architecture.update(dim=16, heads=2, head_dim=6, feed_forward=24, layers={k: 1 for k in architecture["layers"]})
    model["training_length"] = 64


def tiny_decoder(model, architecture):
    architecture.update(dim=16, heads=2, head_dim=6, feed_forward=24, layers=1)
    model["training_length"] = 64


def tiny_lslm(model, architecture):
    for stack in ("token", "context", "decoder"):
        architecture[stack].update(layers=1, dim=16, heads=2, head_dim=8, feed_forward=24)
    architecture["boundaries"]["hidden"] = 24
    model["training_length"] = 64


def tiny_pyramidion(model, architecture):
    architecture.update(encoder_layers=2, decoder_layers=1, dim=16, heads=2, feed_forward=24, source_length=32,
                        target_length=12, block=16)  # fmt: skip
    if "lengths" in architecture["pooling"]:
        architecture["pooling"]["lengths"] = {"0": 16, "1": 8}
    model["vocabulary"]["size"] = 80


class OnText(unittest.TestCase):
    """Creates a folder of synthetic text and pairs."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = Path(cls.folder.name)
        chance = random.Random(7)
        words = ["".join(chance.choices("etaoins", k=chance.randint(1, 8))) for _ in range(50)]
        for split, count in (("train", 12_000), ("valid", 2_000)):
            (cls.root / f"english.{split}.txt").write_text(" ".join(chance.choices(words, k=count)))
            (cls.root / f"cased.{split}.txt").write_text(" ".join(chance.choices(words, k=count)))
            characters = [chr(0x4E00 + ord(letter)) for letter in "".join(chance.choices(words, k=count // 2))]
            (cls.root / f"chinese.{split}.txt").write_text("".join(characters))
            documents = [chance.choices(words, k=12) for _ in range(count // 20)]
            pairs = [{"source": "s", "document": " ".join(d), "summary": " ".join(d[:3])} for d in documents]
            for corpus in ("summaries", "gaps", "long"):
                (cls.root / f"{corpus}.{split}.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_for(self, name, config=None, workers=1):
        return Run(config or tiny(), self.root, self.root / name, "cpu", workers)


class Training(OnText):
    def test_every_configuration_learns(self):
        for path in sorted(CONFIGS.glob("*.json")):
            with self.subTest(config=path.stem):
                run = self.run_for(f"learns-{path.stem}", tiny(path.stem))
                unit = run.task.unit
                first = run.task.validate(run.model)[unit]
                if path.stem.startswith("paper-"):  # the same parts with another size
                    run.train_step()
                    continue
                self.assertTrue(train(run))
                self.assertLess(run.task.validate(run.model)[unit], first - 0.5)
                self.assertTrue((run.out / "learning-curve.svg").read_text().startswith("<svg"))

    def test_a_kill_changes_nothing(self):
        """Compares a resumed run with an uninterrupted one, with all noise, two threads and alternating updates."""
        latent = ("lslm-hops3", "lslm-dp-after")
        for name in ("english-whitespace", "hourglass-english", "compare-gumbel", "compare-unigram", "lex-xpos", *latent, "summaries-pyramidion"):
            with self.subTest(config=name):
                self.compare_killed(name)

    def compare_killed(self, name):
        uninterrupted = self.run_for(f"uninterrupted-{name}", tiny(name), workers=2)
        key = f"train_{uninterrupted.task.unit}"
        expected = [uninterrupted.train_step()[key] for _ in range(9)]
        first = self.run_for(f"killed-{name}", tiny(name), workers=2)
        actual = [first.train_step()[key] for _ in range(5)]
        first.save()
        second = self.run_for(f"killed-{name}", tiny(name), workers=2)
        second.resume()
        actual += [second.train_step()[key] for _ in range(4)]
        self.assertEqual(actual, expected)
        for resumed, expected in zip(second.model.parameters(), uninterrupted.model.parameters()):
            self.assertTrue(torch.equal(resumed, expected))

    def test_a_run_starts_from_a_checkpoint_or_another_run(self):
        first = self.run_for("first", tiny("hourglass-english"))
        first.train_step()
        first.save()
        checkpoint.save(self.root / "checkpoint", first.config["model"], first.model.state_dict())
        for name in ("first", "checkpoint"):
            second = self.run_for(f"from-{name}", tiny("hourglass-english"))
            second.start_from(first.out if name == "first" else self.root / "checkpoint")
            for weight, expected in zip(second.model.parameters(), first.model.parameters()):
                self.assertTrue(torch.equal(weight, expected))
        other = self.run_for("other", tiny("english-whitespace"))
        for folder in (first.out, self.root / "checkpoint"):
            with self.assertRaisesRegex(ValueError, "a different model"):
                other.start_from(folder)

    def test_steps_of_an_unsaved_run_are_not_logged_twice(self):
        log = self.root / "unsaved" / "log.jsonl"
        log.parent.mkdir()
        log.write_text('{"step": 10}\n{"step": 20}\n{"st')
        self.run_for("unsaved").resume()
        self.assertEqual(log.read_text(), "")

    def test_runs_depend_only_on_their_seed(self):
        def losses(name, seed):
            config = tiny("compare-gumbel")
            config["training"]["seed"] = seed
            run = self.run_for(f"seed-{name}", config)
            return [run.train_step()["train_bpc"] for _ in range(3)]

        self.assertEqual(losses("a", 1), losses("b", 1))
        self.assertNotEqual(losses("c", 2), losses("d", 1))

    def test_workers_share_a_batch(self):
        for name in ("english-whitespace", "summaries-blockwise"):
            config = tiny(name)
            config["training"]["dropout"] = 0.0  # each worker has separate noise
            alone, shared = self.run_for(f"alone-{name}", config), self.run_for(f"shared-{name}", config, workers=2)
            key = f"train_{alone.task.unit}"
            for _ in range(4):
                expected = alone.train_step()[key]
                with mock.patch("training.parallel.PIECE", 256):  # several passes for each worker
                    self.assertAlmostEqual(shared.train_step()[key], expected, places=4)

    def test_interleaved_updates(self):
        """Three updates change only the generative model, then one update changes only the predictor."""
        run = self.run_for("turns", tiny("lslm-dp"))
        predictor = lambda: [weight.clone() for weight in run.model.posterior()]  # noqa: E731
        others = lambda: [w.clone() for n, w in run.model.named_parameters() if not n.startswith("boundary.")]  # noqa: E731
        same = lambda a, b: all(torch.equal(x, y) for x, y in zip(a, b))  # noqa: E731
        moved = []
        for _ in range(8):
            before = predictor(), others()
            run.train_step()
            moved.append((not same(before[0], predictor()), not same(before[1], others())))
        self.assertEqual(moved, 2 * ([(False, True)] * 3 + [(True, False)]))

    def test_doubled_loss_restores_the_best_weights(self):
        run = self.run_for("diverged", tiny("lslm-dp"))
        self.assertNotIn("restored", run.validate())
        best = [weight.clone() for weight in run.model.parameters()]
        with torch.no_grad():
            for weight in run.model.parameters():
                weight.mul_(30)
        self.assertEqual(run.validate()["restored"], 1)
        for weight, kept in zip(run.model.parameters(), best):
            self.assertTrue(torch.equal(weight, kept))

    def test_boundary_probability_reaches_the_prior(self):
        """The divergence moves the boundaries' probability from its initial value to the prior."""
        for name, kind, prior, key in (
            ("compare-gumbel", "boundaries", 0.2, "boundary_rate"),
            ("lslm-dp", "elbo", 0.8, "mean_probability"),
            ("lslm-dp-p07", "elbo", 0.8, "mean_probability"),
        ):
            config = tiny(name)
            config["training"].update(budget={"characters": 150_000}, **({"interleave": 0} if kind == "elbo" else {}))
            config["training"][kind]["prior"] = prior
            run = self.run_for(f"prior-{name}", config)
            rates = [run.train_step()[key] for _ in range(40)]
            self.assertGreater(abs(rates[0] - prior), 0.2)
            self.assertAlmostEqual(sum(rates[-10:]) / 10, prior, delta=0.1, msg=name)

    def test_average_of_the_weights(self):
        """The first updates count equally, every later one by 1 − keep. Validation and export use the average, and training does not."""
        config = tiny()
        config["training"]["average"] = {"every": 2, "keep": 0.5}
        run, plain = self.run_for("averaged", config), self.run_for("plain")
        weights = []
        for _ in range(6):
            self.assertEqual(run.train_step()["train_bpc"], plain.train_step()["train_bpc"])
            weights.append({name: weight.detach().clone() for name, weight in run.model.named_parameters()})
        expected = {name: (weights[1][name] + weights[3][name]) / 4 + weights[5][name] / 2 for name in weights[0]}
        measured = run.validate()["bpc"]
        run.save()
        export(run.out, self.root / "averaged-model")
        for name, weight in run.model.named_parameters():
            self.assertTrue(torch.equal(weight, weights[5][name]))
        exported, _ = checkpoint.load(self.root / "averaged-model")
        for name, weight in exported.named_parameters():
            self.assertLess(float((weight - expected[name]).detach().abs().max()), 1e-6)
        self.assertAlmostEqual(run.task.validate(exported)["bpc"], measured, places=6)
        self.assertNotAlmostEqual(plain.validate()["bpc"], measured, places=4)

    def test_another_model_is_not_resumed(self):
        self.run_for("other").save()
        config = copy.deepcopy(tiny())
        config["model"]["architecture"]["heads"] = 3
        with self.assertRaises(ValueError):
            self.run_for("other", config).resume()

    def test_another_seed_is_not_resumed(self):
        self.run_for("seeded").save()
        config = tiny()
        config["training"]["seed"] += 1
        with self.assertRaisesRegex(ValueError, "seed"):
            self.run_for("seeded", config).resume()

    def test_mistake_is_reported_before_any_file_is_written(self):
        config = tiny()
        config["training"]["stges"] = []
        with self.assertRaisesRegex(ValueError, "stges"):
            self.run_for("refused", config)
        self.assertFalse((self.root / "refused").exists())

    def test_export_gives_the_same_model(self):
        run = self.run_for("exported")
        run.train_step()
        run.save()
        run.model.eval()
        facts = export(run.out, self.root / "model")
        model, config = checkpoint.load(self.root / "model")
        self.assertEqual(config, run.config["model"])
        self.assertEqual(facts["sha256"], checkpoint.sha256(self.root / "model" / "model.safetensors"))
        ids = torch.randint(0, 27, (2, 50))
        self.assertTrue(torch.equal(model(ids), run.model(ids)))

    def test_bf16_rounds_only_matrices(self):
        run = self.run_for("rounded")
        run.save()
        export(run.out, self.root / "rounded-model", "bf16")
        tensors = read(self.root / "rounded-model" / "model.safetensors")
        for name, tensor in run.model.state_dict().items():
            expected = tensor.bfloat16().float() if tensor.dim() >= 2 else tensor
            self.assertTrue(torch.equal(tensors[name], expected), name)

    def test_keep_best_exports_the_best_weights(self):
        run = self.run_for("best", tiny("summaries-pyramidion"))
        run.train_step()
        run.validate()
        best = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
        run.best = 0.0  # any later loss is worse
        run.train_step()
        run.save()
        export(run.out, self.root / "best-model")
        model, _ = checkpoint.load(self.root / "best-model")
        for name, tensor in model.state_dict().items():
            self.assertTrue(torch.equal(tensor, best[name]), name)
        self.assertTrue((self.root / "best-model" / "tokenizer.json").exists())

    def test_exported_frequencies_match_the_reference(self):
        run = self.run_for("frequencies")
        dim = run.config["model"]["architecture"]["dim"]
        expected = 1 / (10000 ** (torch.arange(0.0, dim, 2.0) / dim))
        self.assertTrue(torch.equal(run.model.position.inverse_frequency, expected))


class Campaign(OnText):
    """A campaign that stops at its time limit and resumes has the same runs as an uninterrupted one."""

    def conduct(self, out, *arguments):
        """Runs a campaign and returns the printed lines."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            campaign.main(["--data", str(self.root), "--out", str(self.root / out), *arguments])
        return printed.getvalue().splitlines()

    def test_campaign_resumes(self):
        configs = []
        for name in ("compare-whitespace", "summaries-pyramidion"):
            path = self.root / f"{name}.json"
            path.write_text(json.dumps(tiny(name)))
            configs.append(str(path))
        runs = [f"{configs[0]}@2", configs[1]]
        names = ["compare-whitespace-seed2", "summaries-pyramidion-seed1"]
        self.assertEqual(self.conduct("uninterrupted", *runs), [f"{name}: complete" for name in names])
        self.conduct("parts", "--seconds", "0.2", *runs)
        log = self.root / "parts" / names[0] / "log.jsonl"
        log.write_text((log.read_text() if log.exists() else "") + '{"step": 1, "char')  # the log after a kill
        self.assertFalse((self.root / "parts" / names[1] / "result.json").exists())
        self.assertEqual(self.conduct("parts", *runs), [f"{name}: complete" for name in names])
        self.assertEqual(self.conduct("parts", "--status", *runs), [f"{name}: complete" for name in names])
        for name in names:
            paths = [self.root / out / name / "result.json" for out in ("uninterrupted", "parts")]
            expected, resumed = (json.loads(path.read_text()) for path in paths)
            self.assertEqual((resumed["sha256"], resumed["characters"]), (expected["sha256"], expected["characters"]))
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()) as printed:
            self.conduct("uninterrupted", "--budget", "1e9", *runs)
        self.assertIn("use another --out", printed.getvalue())
        self.check_table(table.collect(self.root / "uninterrupted"))

    def check_table(self, found):
        self.assertEqual(list(found), ["compare-whitespace"])  # the other run has bits per token
        (result,) = found["compare-whitespace"]
        row = table.markdown(found).splitlines()[-1]
        self.assertIn(f"| {result['bpc']:.3f} | {1 / result['boundary_rate']:.1f}x | valid |", row)
        self.assertTrue(table.markdown(found).startswith("| configuration | BPC, seed 2 | SF |"))
        self.assertIn("compare-whitespace</text>", table.plot(found))
        self.assertIn(f"characters read, seed 2, {result['split']} text</text>", table.plot(found))
        endless = {"endless": [{**result, "boundary_rate": 0.0}]}
        self.assertIn("| no segment ended |", table.markdown({**found, **endless}))
        self.assertEqual(table.plot({**found, **endless}), table.plot(found))
        self.assertRaisesRegex(ValueError, "no run ended a segment", table.plot, endless)


class Plot(unittest.TestCase):
    def test_ticks_are_round_and_labels_do_not_overlap(self):
        self.assertEqual(table.ticks(1.825, 1.855, 6), [1.825, 1.83, 1.835, 1.84, 1.845, 1.85, 1.855])
        self.assertEqual(table.ticks(1, 6.2, 6), [1, 2, 3, 4, 5, 6, 7])
        # two points next to each other at the right end, and one on a line
        labels = table.place_labels({"unigram": (492, 293), "whitespace": (528, 286), "vanilla": (72, 233)}, ["vanilla"])
        self.assertEqual({name: anchor for name, (_, _, anchor) in labels.items()}, {"unigram": "end", "whitespace": "start", "vanilla": "start"})
        self.assertLess(labels["vanilla"][1], 233)


class Windows(unittest.TestCase):
    def test_an_epoch_visits_every_character_once(self):
        ids = numpy.arange(8 * data.SPAN + 1) % 251
        for length in (128, data.SPAN):
            windows = data.Windows(ids.astype(numpy.uint8), seed=1)
            inputs, targets = windows.batch(8 * data.SPAN, length)
            self.assertEqual(inputs.shape, (8 * data.SPAN // length, length))
            self.assertEqual(sorted(inputs.flatten().tolist()), sorted(ids[:-1].tolist()))
            self.assertTrue(torch.equal(inputs[:, 1:], targets[:, :-1]))

    def test_windows_longer_than_a_span(self):
        windows = data.Windows(numpy.zeros(9 * data.SPAN, dtype=numpy.uint8), seed=1)
        inputs, _ = windows.batch(4 * data.SPAN, 2 * data.SPAN)
        self.assertEqual(inputs.shape, (2, 2 * data.SPAN))
        self.assertEqual(windows.order.consumed, 4)
        with self.assertRaisesRegex(ValueError, "4608 symbols, too few for windows of 8192"):
            windows.check(8192)

    def test_unknown_characters_are_rejected(self):
        self.assertEqual(data.encode("ba a", {"symbols": [" ", "a", "b"]}).tolist(), [2, 1, 0, 1])
        with self.assertRaises(ValueError):
            data.encode("é", {"symbols": [" ", "a", "b"]})


class Evaluation(unittest.TestCase):
    def test_windows_agree_with_the_reference(self):
        for case in ("whitespaces", "vanilla", "unigram", "fixed_sf2", "fixed_sf3", "fixed_sf4"):
            with self.subTest(case=case):
                config = weir_config(json.loads((GOLDEN / case / "config.json").read_text()))
                expected = json.loads((GOLDEN / case / "eval.json").read_text())
                model = build(config)
                model.load_state_dict(weir_tensors(read(GOLDEN / case / "model.safetensors")))
                ids = data.encode(expected["text"], config["vocabulary"])
                stride, total = expected["eval_tgt_len"], expected["eval_total_len"]
                result = evaluation.bits_per_character(model, ids, stride, total, rows=expected["bsz"])
                self.assertAlmostEqual(result["bpc"], expected["bpc"], places=5)


class Lengths(unittest.TestCase):
    """A blockwise window changes nothing up to the training length and limits attention beyond it."""

    def test_by_length(self):
        torch.manual_seed(5)
        model = build(tiny("lex-xpos")["model"]).eval()
        for weight in model.parameters():
            torch.nn.init.normal_(weight, std=1.0)
        ids = numpy.random.RandomState(1).randint(0, 27, 512).astype(numpy.uint16)
        windows = [(name, parse_window(name)) for name in ("full", "blockwise:64", "sliding:64")]
        bits = {(r["window"], r["length"]): r["bpc"] for r in by_length(model, ids, [32, 64, 256], windows)}
        for length in (32, 64):
            self.assertAlmostEqual(bits["full", length], bits["blockwise:64", length], places=5)
            self.assertAlmostEqual(bits["full", length], bits["sliding:64", length], places=5)
        self.assertEqual(len({round(bits[name, 256], 4) for name, _ in windows}), 3)

    def test_invalid_windows(self):
        for text in ("wide", "blockwise", "sliding:0", "full:3"):
            self.assertRaises(argparse.ArgumentTypeError, parse_window, text)


class Schedule(unittest.TestCase):
    def test_warm_up_plateau_decay(self):
        def factor(share, step):
            return schedule.learning_rate_factor(share, step, {"warmup_steps": 10, "decay_share": 0.5})

        self.assertAlmostEqual(factor(0.0, 0), 0.1)
        self.assertEqual(factor(0.4, 100), 1.0)
        self.assertAlmostEqual(factor(0.75, 100), 0.5)
        self.assertEqual(factor(1.01, 100), 0.0)

    def test_stages(self):
        stages = [{"until": 0.5, "length": 128}, {"until": 1.0, "length": 512}]
        self.assertEqual([schedule.window_length(s, stages) for s in (0.0, 0.5, 1.0)], [128, 512, 512])


if __name__ == "__main__":
    unittest.main()
