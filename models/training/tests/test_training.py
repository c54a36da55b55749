"""A run on a tiny model: a kill changes nothing, an export gives back the same model, windows cover the text once."""

import copy
import json
import random
import tempfile
import unittest
from pathlib import Path

import numpy
import torch

from training import checkpoint, data, evaluation, schedule
from training.export import export
from training.families import build
from training.safetensors_file import read
from training.tests.test_golden import GOLDEN, weir_config, weir_tensors
from training.run import Run
from training.train import train

CONFIGS = Path(__file__).parents[1] / "configs"


def tiny(name="english-whitespace"):
    config = json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))
    architecture = config["model"]["architecture"]
    architecture.update(dim=16, heads=2, head_dim=6, feed_forward=24, layers={k: 1 for k in architecture["layers"]})
    config["training"].update(
        budget={"characters": 40_000}, batch_characters=2048, precision="f32", warmup_steps=4, log_every_steps=1,
        valid_every_seconds=1e9, save_every_seconds=1e9, valid_characters=4096,
    )  # fmt: skip
    return config


class Training(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = Path(cls.folder.name)
        chance = random.Random(7)
        words = ["".join(chance.choices("etaoins", k=chance.randint(1, 8))) for _ in range(50)]
        for split, count in (("train", 12_000), ("valid", 2_000)):
            (cls.root / f"english.{split}.txt").write_text(" ".join(chance.choices(words, k=count)))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_for(self, name, config=None):
        return Run(config or tiny(), self.root, self.root / name, "cpu")

    def test_every_configuration_learns(self):
        for path in sorted(CONFIGS.glob("*.json")):
            with self.subTest(config=path.stem):
                run = self.run_for(f"learns-{path.stem}", tiny(path.stem))
                unit = run.task.unit
                first = run.task.validate(run.model)[unit]
                self.assertTrue(train(run))
                self.assertLess(run.task.validate(run.model)[unit], first - 0.5)
                self.assertTrue((run.out / "learning-curve.svg").read_text().startswith("<svg"))

    def test_a_kill_changes_nothing(self):
        whole = self.run_for("whole")
        expected = [whole.train_step()["train_bpc"] for _ in range(12)]
        first = self.run_for("killed")
        actual = [first.train_step()["train_bpc"] for _ in range(5)]
        first.save()
        second = self.run_for("killed")
        second.resume()
        actual += [second.train_step()["train_bpc"] for _ in range(7)]
        self.assertEqual(actual, expected)

    def test_workers_share_a_batch(self):
        alone, shared = self.run_for("alone"), Run(tiny(), self.root, self.root / "shared", "cpu", workers=2)
        for _ in range(4):
            self.assertAlmostEqual(alone.train_step()["train_bpc"], shared.train_step()["train_bpc"], places=4)

    def test_another_model_is_not_resumed(self):
        self.run_for("other").save()
        config = copy.deepcopy(tiny())
        config["model"]["architecture"]["heads"] = 3
        with self.assertRaises(ValueError):
            self.run_for("other", config).resume()

    def test_export_gives_the_same_model(self):
        run = self.run_for("exported")
        run.train_step()
        run.save()
        facts = export(run.out, self.root / "model")
        model, config = checkpoint.load(self.root / "model")
        self.assertEqual(config, run.config["model"])
        self.assertEqual(facts["sha256"], checkpoint.sha256(self.root / "model" / "model.safetensors"))
        ids = torch.randint(0, 27, (2, 50))
        self.assertTrue(torch.equal(model(ids), run.model(ids)))

    def test_exported_frequencies_are_the_reference_s(self):
        run = self.run_for("frequencies")
        dim = run.config["model"]["architecture"]["dim"]
        expected = 1 / (10000 ** (torch.arange(0.0, dim, 2.0) / dim))
        self.assertTrue(torch.equal(run.model.position.inverse_frequency, expected))


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

    def test_unknown_characters_are_refused(self):
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
