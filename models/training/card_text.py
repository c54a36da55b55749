"""Renders the model card as Markdown from `card.json` and the texts in `cards/`."""

# The default model, whose folder is next to `training`; the others are in `compared`.
DEFAULT = "hourglass-english"
LICENCE = "Licence: CC BY-SA 4.0, because part of the text is from Wikipedia. Name weir and Wikipedia's authors."
# Most characters of a text that a card quotes.
QUOTED = 120
KINDS = {
    "novel": "novel: *Alice's Adventures in Wonderland*",
    "encyclopedia": "encyclopedia: three Wikipedia articles",
    "code": "code: a C file of Brotli",
    "mail": "mail: a thread of a mailing list, with headers",
}
TRAINED_BY = {
    "unigram": "a subword tokenizer of {vocabulary} pieces",
    "entropy": "spikes of the model's own entropy within {window} characters",
    "gumbel": "relaxed samples at temperature {temperature}, prior {prior}",
}


def markdown(about, card, config):
    """Returns the model card."""
    corpus = card["run"]["recipe"]["corpus"]
    training = "../training" if card["name"] == DEFAULT else "../../training"
    parts = [f"# {card['name']}", about["description"], shape(about, card, config)]
    parts += rouge(card) if "rouge" in card else bits(about, card, unit(config))
    parts += other_kinds(card) if "unseen" in card else []
    parts += typing_errors(card["typing_errors"]) if "typing_errors" in card else []
    sources = f"[Sources and licences of the text]({training}/cards/{corpus}.md)."
    parts += ["## Training", f"{text_read(card, config)} {sources}", recipe(card, config, training), "![learning curve](learning-curve.svg)"]
    parts += ["## Use and limits", about["limits"], *written(card, unit(config)), LICENCE]
    return "\n\n".join(parts) + "\n"


def table(head, rows):
    lines = [f"| {' | '.join(map(str, row))} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def shape(about, card, config):
    rows = [*SHAPES[config["family"]](config["architecture"]), ("parameters", f"{card['parameters']:,}")]
    rows.append(("weights", f"{card['bytes']:,} bytes; matrices {about.get('matrices', 'bf16')}, vectors f32"))
    if "tokenizer" in config["vocabulary"]:
        rows.append(("vocabulary", f"{config['vocabulary']['size']:,} subwords, `tokenizer.json`"))
    else:
        of_bytes = config["vocabulary"].get("bytes")
        letters = f"26 letters and the space; normaliser `{config['normaliser']}`"
        rows.append(("vocabulary", "256 bytes: any text, as UTF-8" if of_bytes else letters))
        rows.append(("trained on windows of", f"{lengths(card['run']['recipe'])} {'bytes' if of_bytes else 'characters'}"))
    rows.append(("sha256", f"`{card['sha256']}`"))
    return table(("", ""), rows)


def hourglass(a):
    layers = " + ".join(str(a["layers"][part]) for part in ("pre", "middle", "post") if part in a["layers"])
    symbols = a["boundaries"].get("symbol", " ")
    spaces = "after spaces and newlines" if "\n" in symbols else "after spaces"
    decided = {"whitespace": spaces, "learned": "by a small network with a threshold of 0.5", "fixed": "at a fixed rate"}
    kind = a["boundaries"]["kind"]
    where = "none: all layers run for each symbol" if kind == "none" else decided.get(kind, kind)
    yield "layers", f"{layers}, {widths(a)}"
    yield "boundaries", where
    if "ngrams" in a:
        sizes = ", ".join(map(str, a["ngrams"]["sizes"]))
        yield "hashed n-grams", f"n = {sizes}, {a['ngrams']['rows']:,} rows each"
    if "window" in a:
        segments = f" and {block(a['middle_window'])} segments" if "middle_window" in a else ""
        yield "attention's windows", f"two blocks of {block(a['window'])} symbols{segments}"


def block(window):
    """Returns the length of one block. A blockwise window spans two blocks."""
    return window["blockwise"]["length"] // 2


def decoder(a):
    position = a["position"] if isinstance(a["position"], str) else next(iter(a["position"]))
    yield "layers", f"{a['layers']}, {widths(a)}"
    window = "all keys"
    if a["window"] != "full":
        ((kind, sizes),) = a["window"].items()
        window = f"{kind} {next(iter(sizes.values()))}"
    yield "position, attention's window", f"{position}, {window}"


def lslm(a):
    for stack in ("token", "context", "decoder"):
        name = stack if stack == "decoder" else f"{stack} encoder"
        yield f"layers of the {name}", f"{a[stack]['layers']}, {widths(a[stack])}"
    yield "pooling", "mean" if a["pooling"] == "mean" else f"{a['pooling']['hops']} hops"


def pyramidion(a):
    kept = a["pooling"].get("lengths", {})
    steps = ", ".join(f"{count} after layer {int(layer) + 1}" for layer, count in sorted(kept.items()))
    layers = f"{a['encoder_layers']} + {a['decoder_layers']}"
    yield "layers", f"{layers}, width {a['dim']}, {a['heads']} heads, feed-forward {a['feed_forward']}"
    yield "document", f"{a['source_length']} tokens in blocks of {a['block']}"
    yield "pooling", steps or "none"


SHAPES = {"hourglass": hourglass, "decoder": decoder, "lslm": lslm, "pyramidion": pyramidion}


def widths(a):
    return f"width {a['dim']}, {a['heads']} heads × {a['head_dim']}, feed-forward {a['feed_forward']}"


def lengths(recipe):
    return ", then ".join(str(stage["length"]) for stage in recipe["stages"])


def unit(config):
    """Returns the name of a language model's symbols."""
    return "byte" if config["vocabulary"].get("bytes") else "character"


def bits(about, card, symbol):
    rows = []
    for row in card["bpc"]:
        rows.append((row["split"], f"{row['scored']:,}", f"last {row['stride']} of {row['total']}", f"**{row['bpc']:.3f}**"))
    first = card["bpc"][0]
    if "bpc_paper" in first:
        text = (
            f"In f32, marks of segments included. Without marks, as `weir score --windowed {first['total']},{first['stride']}` counts: "
            f"{first['as_scored']:.3f}."
        )
    else:
        text = f"In f32, as `weir score --windowed {first['total']},{first['stride']}` counts."
    if first["boundary_rate"] and first["boundary_rate"] < 1:
        text += f" A segment of the test text has {1 / first['boundary_rate']:.2f} {symbol}s on average."
    text += f" {about['bits']}" if "bits" in about else ""
    head = ("split", f"{symbol}s scored", "scored of each window", f"bits per {symbol}")
    return [f"## Bits per {symbol}", table(head, rows), text]


def other_kinds(card):
    rows = [(KINDS[row["text"]], f"{row['bytes']:,}", f"**{row['bpc']:.3f}**") for row in card["unseen"]]
    shared = max(row["shared"] for row in card["unseen"])
    text = f"Text from outside the corpus. The training text has at most {shared:.1%} of its stretches of 80 characters (300 drawn from each):"
    return [text, table(("text", "bytes", "bits per byte"), rows)]


def typing_errors(measured):
    """Returns what `weir check` finds, as `clients/python/tools/typing_errors.py` measures it."""
    rows = [(row["threshold"], f"{row['precision']:.3f}", f"{row['recall']:.3f}") for row in measured["thresholds"]]
    text = (
        f"`weir check`, on {measured['passages']} passages of the test text of {measured['passage_bytes']:,} bytes. A script "
        f"(`clients/python/tools/typing_errors.py`, seed {measured['seed']}) inserted {measured['errors']:,} errors into their "
        f"{measured['words']:,} words: transpositions, deletions, doublings, and neighbours on the keyboard."
    )
    return ["## Typing errors", text, table(("threshold", "precision", "recall"), rows)]


def rouge(card):
    rows = []
    for source, row in card["rouge"].items():
        numbers = [f"{row['model'][kind]:.1f} · {row['lead'][kind]:.1f}" for kind in ("rouge1", "rouge2", "rougeL")]
        new = row["new"]
        fresh = f"{new['model']['rougeL']:.1f} · {new['lead']['rougeL']:.1f} of {new['pairs']}" if new else "–"
        rows.append((f"`{source}`", row["pairs"], *numbers, fresh))
    head = ("source", "test pairs", "ROUGE-1", "ROUGE-2", "ROUGE-L", "ROUGE-L of pairs with new text")
    settings = card["generation"]
    ngram = settings.get("no_repeat_ngram", 0)
    ruled = f", no sequence of {ngram} tokens twice" if ngram else ""
    text = (
        "F × 100 of the model · of the document's first words, as many as a median summary has. Beam of "
        f"{settings['beam']}, at most {settings['max_tokens']} tokens{ruled}, f32. The last column leaves out documents that share a quarter "
        "of their runs of twelve words with a training document."
    )
    return ["## ROUGE", table(head, rows), text]


def text_read(card, config):
    """Says how much of the text the runs read."""
    run = card["run"]
    if "drawn" in run:
        start = run.get("start")
        before = f"{start['drawn']:,} draws from {start['of']:,} passages (gap sentences, arXiv 1912.08777), then " if start else ""
        return f"{before}{run['drawn']:,} draws from {run['of']:,} pairs."
    read = [part["characters"] for part in chain(run)]
    symbols = "tokens" if "tokenizer" in config["vocabulary"] else f"{unit(config)}s"
    counts = " + ".join(f"{characters:,}" for characters in read)
    total = f" = {sum(read):,}" if len(read) > 1 else ""
    runs = f" in {len(read)} runs, each from the weights of the one before" if len(read) > 1 else ""
    return f"Read {counts}{total} of {run['of'] / 1e6:.1f}M {symbols}{runs}."


def chain(run):
    """Returns the runs with this recipe that led to the weights, from the first one to the last."""
    return [*run.get("earlier", []), run]


def listed(items):
    return " and ".join(filter(None, [", ".join(items[:-1]), items[-1]]))


def recipe(card, config, training):
    """Describes the recipe, the time, and how to train the run again."""
    run, r = card["run"], card["run"]["recipe"]
    name, seed = run["name"].rsplit("-seed", 1)
    batch = f"{r['batch_characters']:,} {unit(config)}s" if "batch_characters" in r else f"{r['batch_pairs']} pairs"
    steps = listed([f"{part['step']:,}" for part in chain(run)])
    seeds = listed([part["name"].rsplit("-seed", 1)[1] for part in chain(run)])
    parts = [f"{steps} updates of {batch}, seed{'s' if len(chain(run)) > 1 else ''} {seeds}"]
    if "boundaries" in r:
        parts.append("boundaries trained with " + TRAINED_BY[r["boundaries"]["method"]].format(**r["boundaries"]))
    if "elbo" in r:
        parts.append(f"prior {r['elbo']['prior']} of {'each boundary' if r['elbo']['divergence'] == 'each' else 'the mean boundary'}, β {r['elbo']['beta']}")
    minutes = sum(part["elapsed"] for part in chain(run)) / 60
    return f"[Recipe]({training}/configs/{name}.json): {'; '.join(parts)}; {minutes:,.0f} minutes of training steps. {again(run, name, seed)}"


def again(run, name, seed):
    """Says how to train the run again."""
    recipe = run["recipe"]
    if run.get("earlier"):
        budgets = listed([f"{part['budget']:.0f}" for part in [*run["earlier"], {"budget": recipe["budget"]["characters"]}]])
        return (
            f"To repeat: `python -m training.train --config training/configs/{name}.json --data DATA --out RUN --characters BUDGET --seed SEED`, "
            f"with budgets of {budgets}; later runs `--start` with the exported checkpoint before."
        )
    if start := run.get("start"):
        before = start["name"].rsplit("-seed", 1)[0]
        return f"To repeat: `training.train` with `training/configs/{before}.json`, then this configuration with `--start` and its run."
    if "minutes" in recipe["budget"]:
        return f"To repeat: `python -m training.train --config training/configs/{name}.json --data DATA --out RUN`."
    budget = int(recipe["budget"]["characters"])
    shared = f" --workers {run['workers']}" if run.get("workers", 1) > 1 else ""  # each worker has its own noise
    return f"To repeat: `python -m training.campaign --data DATA --out RUNS --budget {budget}{shared} training/configs/{name}.json@{seed}`."


def written(card, symbol):
    """Returns a text that the model wrote."""
    if "rouge" in card:
        line = card["samples"][0]
        yield f"The first test pair of `{line['source']}`, unselected: {quoted(line['document'])}"
        yield f"> reference: {quoted(line['summary'])}\n>\n> generated: {quoted(line['written'])}"
    elif "samples" in card:
        drawn = next((drawn for drawn in card["samples"]["drawn"] if drawn["temperature"] == 0.8), card["samples"]["drawn"][0])
        yield f"At temperature {drawn['temperature']}, after `{card['samples']['prompt']}`:"
        yield sample(beginning(drawn["text"]), symbol == "byte")


def sample(text, of_bytes):
    """Returns a generated text for the card: raw text in a code block."""
    return f"```text\n{text}\n```" if of_bytes else f"> {text}"


def quoted(text):
    return beginning(" ".join(text.split())).replace("|", "\\|").replace("<", "&lt;")


def beginning(text):
    """Returns the words of `text` that a card quotes."""
    return text if len(text) <= QUOTED else text[:QUOTED].rsplit(" ", 1)[0] + " …"
