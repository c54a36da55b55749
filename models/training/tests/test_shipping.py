"""Tests shipping: from a run to a model with its card, and from figures to the tables of all models."""

import contextlib
import copy
import io
import json
import sys
import unittest
from argparse import Namespace
from pathlib import Path
from unittest import mock

import numpy
import torch

from training import campaign, card, card_text, checkpoint, data, evaluate, evaluation, export, figures, generate, report, results, summarize
from training import table, unseen
from training.families import build
from training.tests.test_training import CONFIGS, OnText, tiny


class Shipping(OnText):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for name in ("english.txt", "summaries.jsonl"):
            stem, kind = name.split(".")
            (cls.root / f"{stem}.test.{kind}").write_text((cls.root / f"{stem}.valid.{kind}").read_text())
        for name in ("compare-whitespace", "lex-xpos", "lslm-dp", "summaries-pyramidion"):
            config = tiny(name)
            config["training"]["budget"] = {"characters": 20_000}
            path = cls.root / f"{name}.json"
            path.write_text(json.dumps(config))
            campaign.main(["--data", str(cls.root), "--out", str(cls.root / "runs"), "--characters", "4096", str(path)])

    def shipped(self, name, about, again=False):
        """Ships a run as `training.card` does; returns the folder and the card."""
        folder = self.root / "models" / name
        arguments = Namespace(runs=[] if again else [self.root / "runs"], data=self.root, characters=4096, weir=None, again=again)
        return folder, card.make({"run": f"{name}-seed1", "shows": "a test", "scope": "tests", **about}, folder, arguments)

    def test_card_has_the_figures_of_the_exported_weights(self):
        for name in ("compare-whitespace", "lex-xpos"):
            folder, made = self.shipped(name, {"scores": [[64, 32]], "prompt": "to sea ", "temperatures": [0.5, 1.0]})
            model, config = checkpoint.load(folder)
            self.assertEqual(made["sha256"], checkpoint.sha256(folder / "model.safetensors"))
            self.assertEqual(made["bytes"], (folder / "model.safetensors").stat().st_size)
            text = (card.REPOSITORY / card.TEXT).read_text()
            ids = data.encode(text, config["vocabulary"])
            expected = evaluation.bits_per_character(model, ids, 32, 64, rows=1)["bpc"]
            self.assertEqual(made["served"], [{"text": card.TEXT, "length": 64, "stride": 32, "bpc": expected}])
            self.assertEqual([(row["split"], row["stride"]) for row in made["bpc"]], [("test", 16), ("test", 64), ("valid", 64)])
            page = card_text.markdown({"description": "A.", "limits": "B."}, made, config)
            self.assertEqual([drawn["temperature"] for drawn in made["samples"]["drawn"]], [0.5, 1.0])
            self.assertTrue(all(text.startswith("to sea ") for text in written(made)))
            self.assertIn(f"> {made['samples']['drawn'][0]['text']}", page)
            # The server's Score computes this figure for the same text with the same windows.
            test = data.encode(data.read_text(self.root, "english", "test")[:4096], config["vocabulary"])
            self.assertAlmostEqual(made["bpc"][0]["bpc"], evaluation.as_served(model, test, 16, 64), places=6)
            (folder / "card.json").write_text(json.dumps(made))
            self.assertEqual(self.shipped(name, {"scores": [[64, 32]], "prompt": "to sea ", "temperatures": [0.5, 1.0]}, again=True)[1], made)
            for expected in (made["sha256"], f"**{made['bpc'][0]['bpc']:.3f}**", "CC BY-SA 4.0", f"training/configs/{name}.json@1"):
                self.assertIn(expected, page)

    def test_an_export_removes_what_described_the_old_weights(self):
        folder = self.root / "replaced"
        folder.mkdir()
        run = self.root / "runs/compare-whitespace-seed1"
        (folder / "README.md").write_text("of a folder without weights")
        export.export(run, folder)
        self.assertEqual((folder / "README.md").read_text(), "of a folder without weights")
        for name in ("card.json", "README.md", "ngrams.bin", "tokenizer.json"):
            (folder / name).write_text("old")
        export.export(run, folder)
        with self.assertRaisesRegex(ValueError, "its own folder"):
            export.export(run, run)
        self.assertEqual({path.name for path in folder.iterdir()}, {"config.json", "model.safetensors", "learning-curve.svg"})

    def test_wrong_folders_change_no_shipped_model(self):
        folder = self.root / "models" / "kept"
        folder.mkdir(parents=True)
        (folder / "card.json").write_text("{}")
        for runs, texts in (("/none", self.root), (self.root / "runs", Path("/none"))):
            arguments = Namespace(runs=[runs], data=texts, characters=4096, weir=None, again=False)
            with self.assertRaises((SystemExit, FileNotFoundError)):
                card.make({"run": "compare-whitespace-seed1", "shows": "a test", "scope": "tests"}, folder, arguments)
        self.assertEqual([path.name for path in folder.iterdir()], ["card.json"])

    def test_a_card_lists_the_runs_before_the_last(self):
        folder, made = self.shipped("compare-whitespace", {"scores": []})
        (folder / "card.json").write_text(json.dumps(made))
        earlier = [{"name": "compare-whitespace-seed7", "budget": 4000, "step": 2, "characters": 4096, "elapsed": 600.0}]
        _, chained = self.shipped("compare-whitespace", {"scores": [], "earlier": earlier}, again=True)
        self.assertEqual(chained["run"], {**made["run"], "earlier": earlier})
        config = json.loads((folder / "config.json").read_text())
        page = card_text.markdown({"description": "A.", "limits": "B."}, chained, config)
        self.assertIn("seeds 7 and 1", page)
        self.assertIn(f"; {(600 + made['run']['elapsed']) / 60:.0f} minutes of training steps.", page)

    def test_every_configuration_has_a_shape(self):
        for path in sorted(CONFIGS.glob("*.json")):
            model = json.loads(path.read_text())["model"]
            rows = list(card_text.SHAPES[model["family"]](model["architecture"]))
            self.assertTrue(rows and all(isinstance(cell, str) for row in rows for cell in row), path.stem)

    def test_a_card_of_latent_segments(self):
        folder, made = self.shipped("lslm-dp", {"scores": [[64, 64]], "prompt": "to sea "})
        _, config = checkpoint.load(folder)
        self.assertEqual([row["split"] for row in made["bpc"]], ["test", "valid"])
        page = card_text.markdown({"description": "A.", "limits": "B."}, made, config)
        first = made["bpc"][0]
        self.assertIn(f"**{first['bpc']:.3f}**", page)
        self.assertIn(f"without marks: {first['as_scored']:.3f}.", page)
        self.assertTrue(first["bpc_paper"] / 1.5 < first["as_scored"] < first["bpc_paper"] * 1.5, first)
        self.assertTrue(all(len(text) == len("to sea ") + 200 for text in written(made)))
        self.assertIn(f"> {made['samples']['drawn'][0]['text']}", page)

    def test_a_card_of_a_summarizer(self):
        folder, made = self.shipped("summaries-pyramidion", {})
        _, config = checkpoint.load(folder)
        self.assertEqual(set(made["rouge"]), {"s"})
        self.assertEqual(made["served"][0]["ids"][-1], 2)  # the end mark
        first = json.loads((self.root / "summaries.test.jsonl").read_text().splitlines()[0])
        self.assertEqual(made["samples"][0]["summary"], first["summary"])
        page = card_text.markdown({"description": "A.", "limits": "B."}, made, config)
        self.assertIn(f"{made['rouge']['s']['lead']['rouge1']:.1f}", page)

    def test_training_pairs_are_omitted_from_the_test(self):
        words = [f"w{index}" for index in range(200)]
        pair = lambda start, source="s": {"source": source, "document": " ".join(words[start : start + 40]), "summary": "x"}  # noqa: E731
        training = [pair(0), pair(40, "t")]
        met, known = summarize.held_out([pair(0), pair(20), pair(5, "t"), pair(100), {**pair(0), "document": "w0 w1"}], training)
        self.assertEqual(known, {"s": 1})
        # Of 29 runs of twelve words: the runs within words 20 to 39 or 40 to 59; all but five; none.
        self.assertEqual([row["met"] for row in met], [round(18 / 29, 3), round(24 / 29, 3), 0.0, 0.0])
        _, made = self.shipped("summaries-pyramidion", {})
        row = made["rouge"]["s"]
        self.assertEqual((row["left_out"], row["new"]["pairs"] <= row["pairs"]), (0, True))

    def test_mistakes_are_reported_in_one_line(self):
        run, folder = str(self.root / "runs/lslm-dp-seed1"), str(self.root / "runs/lslm-dp-seed1/checkpoint")
        pairs, letters = (
            str(self.root / f"runs/{name}-seed1/checkpoint") for name in ("summaries-pyramidion", "compare-whitespace")
        )
        there, here = ["--data", str(self.root)], (self.root / "runs/lslm-dp-seed1/checkpoint/model.safetensors").read_bytes()
        for command, arguments, message in (
            (export, ["--run", run, "--out", folder], "already holds a checkpoint; --replace"),
            (export, ["--run", "/none", "--out", "/none"], "/none: not a run folder, state.pt is missing"),
            (evaluate, ["--model", "/none", *there], "/none: not a checkpoint, config.json is missing"),
            (evaluate, ["--model", folder, "--data", "/none"], "neither /none/english.valid.txt nor /none/english.valid.txt.xz exists"),
            (evaluate, ["--model", pairs, *there], "training.summarize"),
            (summarize, ["--model", folder, *there, "--out", "/none"], "expected a summarizer (family pyramidion), found family lslm"),
            (evaluate, ["--model", letters, *there, "--characters", "10"], "rows: 10 symbols do not fill 16 rows of at least 2"),
            (evaluate, ["--model", letters, *there, "--total", "64", "--stride", "65"], "stride: expected 1 to 64"),
            (generate, ["--model", letters, "--prompt", "1999"], "character '1' is not in the vocabulary"),
            (report, ["--runs", "/none", *there], "no such folder: /none"),
        ):
            with self.subTest(message), mock.patch.object(sys, "argv", ["command", *arguments]):
                with contextlib.redirect_stderr(io.StringIO()) as printed, self.assertRaises(SystemExit) as raised:
                    command.main()
                self.assertIn(message, f"{printed.getvalue()} {raised.exception}")
        self.assertEqual((Path(folder) / "model.safetensors").read_bytes(), here)

    def test_shipped_run_has_the_figures_of_its_card(self):
        _, made = self.shipped("compare-whitespace", {"scores": []})
        found = results.read(self.root / "none.json")
        facts = json.loads((self.root / "runs/compare-whitespace-seed1/result.json").read_text())
        runs = {"compare-whitespace-seed1": self.root / "runs/compare-whitespace-seed1"}
        with mock.patch.object(results, "complete", lambda _: runs):
            results.gather(found, [], self.root, {"compare-whitespace": made}, lambda _: None)
        row = found["comparison"]["compare-whitespace-seed1"]
        self.assertEqual((row["bpc"], row["characters"]), (made["bpc"][0]["bpc"], facts["characters"]))

    def test_runs_are_measured_once(self):
        found, saved = results.read(self.root / "none.json"), []
        keep = lambda state: saved.append(copy.deepcopy(state))  # noqa: E731
        with mock.patch.object(results, "LENGTHS", [32, 64]):
            results.gather(found, [self.root / "runs"], self.root, {}, keep)
        self.assertEqual(set(found["comparison"]), {"compare-whitespace-seed1", "lslm-dp-seed1"})
        windows = {(row["window"], row["length"]) for row in found["lengths"]["lex-xpos"]}
        self.assertEqual(windows, {("blockwise:64", 32), ("blockwise:64", 64), ("full", 32), ("full", 64)})
        self.assertIn("chunks_bpc", found["comparison"]["compare-whitespace-seed1"])
        self.assertIn("bpc_joint", found["comparison"]["lslm-dp-seed1"])
        count = len(saved)
        results.gather(found, [self.root / "runs"], self.root, {}, keep)
        self.assertEqual(len(saved), count)


class Bytes(OnText):
    def test_runs_on_bytes_are_not_in_the_comparison(self):
        (self.root / "chinese.test.txt").write_text((self.root / "chinese.valid.txt").read_text())
        for name in ("chinese-lslm-dp", "chinese-vanilla"):
            config = tiny(name)
            config["training"]["budget"] = {"characters": 8192}
            path = self.root / f"{name}.json"
            path.write_text(json.dumps(config))
            campaign.main(["--data", str(self.root), "--out", str(self.root / "runs"), "--characters", "4096", str(path)])
        found = results.read(self.root / "none.json")
        results.gather(found, [self.root / "runs"], self.root, {}, lambda _: None)
        self.assertEqual(figures.by_method(found)[0], {})
        rows = found["comparison"]
        self.assertEqual(rows["chinese-lslm-dp-seed1"]["symbols_of_split"], 3 * rows["chinese-lslm-dp-seed1"]["characters_of_split"])
        self.assertIn("chunks_bpc", rows["chinese-vanilla-seed1"])


class Served(unittest.TestCase):
    """Checks the server's windows for latent segments symbol by symbol: no later symbol affects a score."""

    def test_latent_segments_are_scored_from_what_came_before(self):
        torch.manual_seed(2)
        model = build(tiny("lslm-hops3")["model"]).eval()
        ids = numpy.random.RandomState(3).randint(5, 31, 40).astype(numpy.uint16)
        text = torch.from_numpy(ids.astype("int64"))
        nats = 0.0
        for end in range(2, len(ids) + 1):
            first = max(0, (end - 2) // 8 * 8 - 8)  # windows of 16 that score the last 8
            nats += model.text_nats(text[first:end], 1)
        actual = evaluation.as_served(model, ids, 8, 16)
        self.assertAlmostEqual(actual, nats / (len(ids) - 1) / numpy.log(2), places=4)


def by_method(rows):
    return figures.by_method({"comparison": {row["name"]: row for row in rows}, "speed": {}})[0]


class Tables(unittest.TestCase):
    def row(self, name, bpc, rate=1.0):
        facts = {"name": name, "seed": int(name[-1]), "parameters": 10, "characters": 6e6, "split": "test"}
        return {**facts, "bpc": bpc, "boundary_rate": rate}

    def test_seeds_without_all_configurations_have_separate_columns(self):
        rows = [self.row("compare-vanilla-seed1", 1.9), self.row("compare-vanilla-seed2", 1.7), self.row("compare-gumbel-seed1", 1.8)]
        methods = by_method(rows)
        lines = table.markdown(methods).splitlines()
        self.assertTrue(lines[0].startswith("| configuration | BPC, seed 1 | seed 2 | SF |"), lines[0])
        self.assertTrue(lines[2].startswith("| gumbel | 1.800 | – |") and lines[3].startswith("| vanilla | 1.900 | 1.700 |"), lines)
        del methods["gumbel"]
        self.assertIn("| BPC, mean of seeds 1, 2 | SF |", table.markdown(methods))

    def test_configurations_without_a_common_seed_have_no_common_figure(self):
        rows = [self.row("compare-vanilla-seed1", 1.9), self.row("compare-whitespace-seed2", 1.7, 0.2)]
        methods = by_method(rows)
        lines = table.markdown(methods).splitlines()
        self.assertTrue(lines[0].startswith("| configuration | BPC, seed 1 | BPC, seed 2 | SF |"), lines[0])
        self.assertTrue(lines[2].startswith("| whitespace | – | 1.700 | 5.0x |"), lines)

    def test_measured_speed_is_a_column(self):
        methods = {"vanilla": [self.row("compare-vanilla-seed1", 1.9)], "gumbel": [self.row("compare-gumbel-seed1", 1.8, 0.2)]}
        self.assertNotIn("second", table.markdown(methods, {}))
        lines = table.markdown(methods, {"vanilla": {"chars_per_second": 1234.5}}).splitlines()
        self.assertIn("characters a second", lines[0])
        self.assertTrue(lines[2].endswith("| not measured |") and lines[3].endswith("| 1,234 |"), lines)

    def test_shipped_models_match_their_cards(self):
        for name, made in results.cards().items():
            about = json.loads((card.ABOUT / f"{name}.json").read_text())
            self.assertEqual(about.get("run"), made.get("run", {}).get("name"), name)
            self.assertEqual(made["sha256"], checkpoint.sha256(results.folders()[name] / "model.safetensors"), name)
            if "run" in about:
                page = card_text.markdown(about, made, json.loads((results.folders()[name] / "config.json").read_text()))
                self.assertEqual((results.folders()[name] / "README.md").read_text(), page, name)
            else:  # a hand-written card
                page = (results.folders()[name] / "README.md").read_text()
                for expected in (made["samples"]["drawn"][0]["text"], made["sha256"]):
                    self.assertIn(expected, page, name)


def written(made):
    """Returns the samples of a card."""
    return [made["samples"]["greedy"], *(drawn["text"] for drawn in made["samples"]["drawn"])]


class Unseen(unittest.TestCase):
    def test_shared_stretches_are_counted(self):
        text = "".join(numpy.random.RandomState(1).choice(list("abc "), 1000))
        self.assertEqual(unseen.shared(text, text), 1.0)
        self.assertEqual(unseen.shared(text, text[::-1]), 0.0)

    def test_readers(self):
        answers = json.dumps([{"extract": "short"}, {"a": {"extract": "a lead\n== H ==\nbody"}}])
        self.assertEqual(unseen.city(lambda _: answers), "\n== H ==\nbody")
        page = repr({"a": {"extract": "x" * 3000}, "b": {"extract": "x" * 2500}, "c": {"extract": "short"}})
        self.assertEqual(unseen.articles(lambda _: f"data = {page}\n"), "x" * 3000)


if __name__ == "__main__":
    unittest.main()
