"""Measures ROUGE of a summarizer: `python -m training.summarize --model FOLDER --data DIR --split valid --out FILE`.

The command writes every summary to FILE as a JSON line, so that samples need no selection. It prints ROUGE-1, -2 and -L (F, times 100)
for each source of pairs. The baseline is the document's first n words, where n is the median length of the source's training summaries.

The command omits pairs whose document is a training document. Other documents may have much of their text in a training document with
another summary, such as the rest of an article's lead. So the command also prints the figures of the pairs with mostly new text.

With `--weir PROGRAM`, `weir summarize` writes the summaries, which is much faster than PyTorch.
"""

import argparse
import json
import subprocess
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import torch
from rouge_score import rouge_scorer
from tokenizers import Tokenizer

from . import beam, checkpoint, overlap
from .command_line import one_line_errors
from .progress import Progress
from .summaries import encode, read_pairs

KINDS = ("rouge1", "rouge2", "rougeL")
NEW = 0.25  # maximum share of a new document in training documents; articles' leads have a share of zero, or of half and more


def leads(pairs):
    """Returns {source: median words of a summary}."""
    lengths = defaultdict(list)
    for pair in pairs:
        lengths[pair["source"]].append(len(pair["summary"].split()))
    return {source: sorted(counts)[len(counts) // 2] for source, counts in lengths.items()}


def table(rows):
    """Returns {source: {pairs, model, lead}}: the mean scores of the rows of each source."""
    result = {}
    for source in sorted({row["source"] for row in rows}):
        own = [row["scores"] for row in rows if row["source"] == source]
        mean = lambda who: {kind: round(100 * sum(s[who][kind] for s in own) / len(own), 2) for kind in KINDS}  # noqa: B023, E731
        result[source] = {"pairs": len(own), "model": mean("model"), "lead": mean("lead")}
    return result


def evaluate(folder, data, split, corpus="summaries", limit=None, beam_size=None, program=None):
    """Returns ROUGE by source, every pair with the model's summary, and the settings of a checkpoint."""
    model, config = checkpoint.load(folder)
    if config["family"] != "pyramidion":
        raise ValueError(f"{folder}: expected a summarizer (family pyramidion), found family {config['family']}")
    tokens = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    settings = {**config["generation"], **({"beam": beam_size} if beam_size else {})}
    training = read_pairs(data, corpus, "train")
    first, pairs = leads(training), read_pairs(data, corpus, split)
    pairs, known = held_out(pairs, training)
    pairs = pairs[:: max(1, len(pairs) // limit)] if limit else pairs
    scorer = rouge_scorer.RougeScorer(KINDS, use_stemmer=True)
    score = lambda pair, text: {k: s.fmeasure for k, s in scorer.score(pair["summary"], text).items()}  # noqa: E731
    progress, rows, lines = Progress(len(pairs), 0, "pairs"), [], []
    for index, pair in enumerate(pairs):
        if program:
            text = written_by(program, folder, pair["document"], settings)
        else:
            text = tokens.decode(written(model, config, tokens, pair["document"], settings), skip_special_tokens=True)
        lead = " ".join(pair["document"].split()[: first.get(pair["source"], 20)])
        scores = {"model": score(pair, text), "lead": score(pair, lead)}
        rows.append({"source": pair["source"], "scores": scores, "new": pair["met"] < NEW})
        lines.append({**pair, "document": pair["document"][:400], "written": text})
        progress.to(index + 1, pair["source"])
    progress.close()
    result, new = table(rows), table([row for row in rows if row["new"]])
    for source, row in result.items():
        row.update(lead_words=first.get(source, 20), left_out=known[source], new=new.get(source))
    return result, lines, settings


def held_out(pairs, training):
    """Returns the pairs whose document is not a training document, and the number of omitted pairs by source.

    `met` of a pair is the share of its document that occurs in training documents.
    """
    documents = [pair["document"] for pair in training]
    known = set(documents)
    left = [pair for pair in pairs if pair["document"] not in known]
    met = overlap.shares([pair["document"] for pair in left], documents)
    counts = Counter(pair["source"] for pair in pairs if pair["document"] in known)
    return [{**pair, "met": round(share, 3)} for pair, share in zip(left, met)], counts


def written(model, config, tokens, document, settings):
    """Returns the ids of the best summary, end mark included."""
    (ids,) = encode(tokens, [document], config["architecture"]["source_length"])
    return beam.search(model, torch.from_numpy(ids.astype("int64")), settings)[0][0]


def written_by(program, folder, document, settings):
    """Returns the best summary of the program `weir`."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as file:
        file.write(document)
        file.flush()
        command = [program, "summarize", "--model", folder, "--file", file.name, "--cut", "--json", "--beam", str(settings["beam"])]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(answer)["hypotheses"][0]["text"]


@one_line_errors
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="folder of a weir checkpoint")
    parser.add_argument("--data", required=True, help="folder of CORPUS.SPLIT.jsonl")
    parser.add_argument("--corpus", default="summaries")
    parser.add_argument("--split", choices=("valid", "test"), default="valid")
    parser.add_argument("--out", required=True, help="file of summaries, one JSON object per line")
    parser.add_argument("--limit", type=int, help="number of pairs, evenly spaced")
    parser.add_argument("--beam", type=int, help="beam size instead of the checkpoint's")
    parser.add_argument("--weir", help="program that writes the summaries")
    arguments = parser.parse_args()
    result, lines, settings = evaluate(
        arguments.model, arguments.data, arguments.split, arguments.corpus, arguments.limit, arguments.beam, arguments.weir
    )
    with open(arguments.out, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    print(json.dumps({"split": arguments.split, "generation": settings, "rouge": result}, indent=2))


if __name__ == "__main__":
    main()
