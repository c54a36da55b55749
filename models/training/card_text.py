"""Renders the model card as Markdown from `card.json` and the texts in `cards/`."""

LICENCE = (
    "The weights are published under CC BY-SA 4.0, because part of the training text (Wikipedia) has this licence. Name weir and "
    "Wikipedia's authors."
)
KINDS = {
    "novel": "novel: *Alice's Adventures in Wonderland*",
    "encyclopedia": "encyclopedia: three Wikipedia articles",
    "code": "code: a C file of Brotli",
    "mail": "mail: a thread of a mailing list, with headers",
}
TRAINED_BY = {
    "unigram": "a subword tokenizer of {vocabulary} pieces",
    "entropy": "spikes of the model's own entropy within {window} characters",
    "gumbel": "relaxed samples at temperature {temperature}, with a prior of {prior} boundaries per character",
}


def markdown(about, card, config, folder):
    """Returns the model card. `folder` holds the tables of sources."""
    corpus = card["run"]["recipe"]["corpus"]
    parts = [f"# {card['name']}", about["description"], shape(about, card, config)]
    parts += rouge(card) if "rouge" in card else bits(about, card, unit(config))
    sources = (folder / f"{corpus}.md").read_text(encoding="utf-8").strip()
    hardware = about.get("hardware") or (folder / "hardware.md").read_text(encoding="utf-8").strip()
    parts += other_kinds(card) if "unseen" in card else []
    parts += ["![learning curve](learning-curve.svg)", curve(card["run"], config), "## Training", text_read(card, config), sources]
    parts += [recipe(card, config), f"{hardware} Training steps took {sum(part['elapsed'] for part in chain(card['run'])) / 60:,.0f} minutes."]
    parts += ["## Use and limits", about["limits"], *written(card, unit(config), config["vocabulary"].get("end")), "## Licence", LICENCE]
    return "\n\n".join(parts) + "\n"


def table(head, rows):
    lines = [f"| {' | '.join(map(str, row))} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def shape(about, card, config):
    table_too = ", including the position scheme's table of frequencies" if config["family"] == "hourglass" else ""  # weir does not count this table
    rows = [*SHAPES[config["family"]](config["architecture"]), ("parameters", f"{card['parameters']:,}{table_too}")]
    rows.append(("`model.safetensors`", f"{card['bytes']:,} bytes; matrices {about.get('matrices', 'bf16')}, vectors f32"))
    if "tokenizer" in config["vocabulary"]:
        rows.append(("vocabulary", f"{config['vocabulary']['size']:,} subwords, `tokenizer.json`"))
    else:
        of_bytes = config["vocabulary"].get("bytes")
        letters = f"26 letters and the space; normaliser `{config['normaliser']}`"
        rows.append(("vocabulary", "256 bytes: any text, as UTF-8" if of_bytes else letters))
        rows.append(("trained on windows of", f"{lengths(card['run']['recipe'])} {'bytes' if of_bytes else 'characters'}"))
    rows.append(("sha256 of `model.safetensors`", f"`{card['sha256']}`"))
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
        yield "embeddings of hashed n-grams", f"n = {sizes}, {a['ngrams']['rows']:,} rows each (arXiv 2412.09871, section 3.2.1)"
    if "window" in a:
        segments = f" and {block(a['middle_window'])} segments" if "middle_window" in a else ""
        yield "attention's windows", f"two blocks of {block(a['window'])} symbols{segments} (arXiv 2212.10554, section 3.3)"


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
        window = f"{row['stride']} of windows of {row['total']}"
        rows.append((row["split"], f"{row['characters_of_split']:,} ({row['scored']:,} scored)", window, f"**{row['bpc']:.3f}**"))
    first = card["bpc"][0]
    text = "Measured with the weights in this folder, in f32. Each window is a fresh forward pass, no longer than the training windows."
    if "bpc_paper" in first:
        text += (
            f" The figures include the marks of segments, which cost {first['bpc_joint'] - first['bpc_paper']:.3f} bits. The paper counts "
            f"only the text: {first['bpc_paper']:.3f}. `weir score --windowed {first['total']},{first['stride']}` gives each chunk the symbol "
            f"before it and counts neither marks nor ends: {first['as_scored']:.3f}."
        )
    else:
        text += " `weir score --windowed L,S` gives the same figure for the same text: L is the window, S the scored characters of each window."
    if not first["boundary_rate"]:
        text += " No segment ended on the test text."
    elif first["boundary_rate"] < 1:
        text += f" Shortening factor on the test text: {1 / first['boundary_rate']:.2f} {symbol}s per segment."
    text += " Only the weights of complete runs were measured on the test file."
    text += f" {about['bits']}" if "bits" in about else ""
    head = ("split", f"{symbol}s, from its beginning", "scored per window", "BPC" if symbol == "character" else f"bits per {symbol}")
    return [f"## Bits per {symbol}", table(head, rows), text]


def other_kinds(card):
    rows = [(KINDS[row["text"]], f"{row['bytes']:,}", f"**{row['bpc']:.3f}**", f"{row['shared']:.1%}") for row in card["unseen"]]
    text = "Text of other kinds, from packages outside the corpus (`training/unseen.py`), in windows as above. The last column is the share of "
    head = ("text", "bytes", "bits per byte", "in the training text")
    return [text + "300 random stretches of 80 characters that occur in the training text.", table(head, rows)]


def rouge(card):
    rows, new = [], []
    for source, row in card["rouge"].items():
        numbers = lambda figures: [f"{figures['model'][kind]:.1f} · {figures['lead'][kind]:.1f}" for kind in ("rouge1", "rouge2", "rougeL")]  # noqa: E731
        rows.append((f"`{source}`", row["pairs"], *numbers(row), row["lead_words"]))
        if row["new"]:
            new.append((f"`{source}`", row["new"]["pairs"], *numbers(row["new"])))
    head = ("source", "test pairs", "ROUGE-1: model · lead", "ROUGE-2", "ROUGE-L", "words of the lead")
    settings = card["generation"]
    ngram = settings.get("no_repeat_ngram", 0)
    ruled = f", no repeated sequence of {ngram} tokens" if ngram else ""
    text = (
        "F × 100, computed by `rouge_score` with its stemmer. The lead is the document's first words, as many as the median summary of "
        f"the source's training pairs has. Beam of {settings['beam']}, at most {settings['max_tokens']} tokens{ruled}; weights of this "
        "folder, in f32. Of this recipe's runs, only these weights were measured on the test pairs. "
        "`weir summarize --cut --table` counts without a stemmer and gives slightly different figures."
    )
    return ["## ROUGE", table(head, rows), text, overlap(card["rouge"]), table(head[:-1], new)]


def overlap(rouge):
    """Describes the overlap of the test pairs with the training text."""
    left = ", ".join(f"{row['left_out']} of `{source}`" for source, row in rouge.items() if row["left_out"])
    omitted = f"The table omits pairs whose document is exactly a training document: {left}. " if left else ""
    known = sum(row["pairs"] - (row["new"]["pairs"] if row["new"] else 0) for row in rouge.values())
    return (
        f"{omitted}{known} of the other documents have a quarter or more of their runs of twelve words in a training document with another "
        "summary. The next table has only the pairs with mostly new text."
    )


def curve(run, config):
    recipe = run["recipe"]
    if "valid_pairs" in recipe:
        return f"The curve's validation points are measured on a sample of {recipe['valid_pairs']} pairs, in bits per token."
    sample = f"{recipe['valid_characters']:,} {unit(config)}s"
    points = f"The curve's validation points are measured on a sample of {sample}, in windows of the training length."
    return f"The curve shows the last run. {points}" if run.get("earlier") else points


def text_read(card, config):
    run = card["run"]
    if "drawn" in run:
        times = f"Each pair was drawn {run['drawn'] / run['of']:.1f} times on average"
        text = f"Training drew {run['drawn']:,} times from {run['of']:,} pairs. {times}. The run read {run['characters']:,} tokens."
        if start := run.get("start"):
            drawn = f"drawn {start['drawn'] / start['of']:.1f} times on average"
            text += (
                f" It started with weights that had learnt to write the main sentences of {start['of']:,} passages (gap sentences, arXiv "
                f"1912.08777), {drawn}: {start['characters']:,} tokens."
            )
        return text
    read = [part["characters"] for part in chain(run)]
    share = sum(read) / run["of"]
    times = "each once" if share <= 1 else f"each {share:.1f} times on average"
    symbols = "tokens" if "tokenizer" in config["vocabulary"] else f"{unit(config)}s"
    text = f"Text: {run['of'] / 1e6:.1f}M {symbols} of English."
    if len(read) == 1:
        return f"{text} The run read {read[0]:,} {symbols} ({share:.0%}), {times}."
    counts = " + ".join(f"{characters:,}" for characters in read)
    return (
        f"{text} The model was trained in {len(read)} runs. Each run after the first continued from the weights of the previous one. They "
        f"read {counts} = {sum(read):,} {symbols} ({share:.0%}), {times}."
    )


def chain(run):
    """Returns the runs with this recipe that led to the weights, from the first one to the last."""
    return [*run.get("earlier", []), run]


def listed(items):
    return " and ".join(filter(None, [", ".join(items[:-1]), items[-1]]))


def recipe(card, config):
    run, r = card["run"], card["run"]["recipe"]
    name, seed = run["name"].rsplit("-seed", 1)
    batch = f"{r['batch_characters']:,} {unit(config)}s" if "batch_characters" in r else f"{r['batch_pairs']} pairs"
    steps = listed([f"{part['step']:,}" for part in chain(run)])
    seeds = listed([part["name"].rsplit("-seed", 1)[1] for part in chain(run)])
    parts = [f"{steps} updates of {batch}, seed{'s' if len(chain(run)) > 1 else ''} {seeds}"]
    muon = f"Muon ({r['muon']['lr']}) for the matrices, " if "muon" in r else ""
    parts.append(f"{muon}AdamW ({r['adamw']['lr']}) for {'the rest' if muon else 'all weights'}")
    parts.append("bf16 matrix products with f32 weights" if r["precision"] == "bf16" else "f32")
    parts.append(f"learning rate warm-up over {r['warmup_steps']} updates" + decay(r))
    parts.append(f"gradient clipped at {r['clip']}")
    parts.append(f"dropout {r['dropout']}" if r.get("dropout") else "no dropout")
    if "boundaries" in r:
        parts.append("boundaries trained with " + TRAINED_BY[r["boundaries"]["method"]].format(**r["boundaries"]))
    if "elbo" in r:
        first = r["elbo"].get("after")
        drawn = f" (it draws the boundaries of the first {first} updates, and the predictor's last layer starts at zero)" if first else ""
        turns = f"{r['interleave']} updates of the model for each update of the predictor ({r['posterior_lr']})"
        held = {"each": "each boundary's", "rate": "the mean probability's"}[r["elbo"]["divergence"]]
        cost = ", gradients of a boundary's immediate cost for the predictor" if r["elbo"]["costs"] else ""
        parts.append(f"{held} prior {r['elbo']['prior']}{drawn}, β {r['elbo']['beta']}{cost}, {turns}")
    if "best_step" in run:
        parts.append(f"weights of update {run['best_step']:,}, which has the lowest validation loss")
    if run["restored"]:
        parts.append(f"restorations of the best weights after the loss more than doubled: {run['restored']}")
    return f"Recipe: `training/configs/{name}.json`: {'; '.join(parts)}. {again(run, name, seed)}"


def again(run, name, seed):
    """Says how to train the run again."""
    recipe = run["recipe"]
    if run.get("earlier"):
        budgets = listed([f"{part['budget']:.0f}" for part in [*run["earlier"], {"budget": recipe["budget"]["characters"]}]])
        return (
            f"To train it again, run `python -m training.train --config training/configs/{name}.json --data DATA --out RUN --characters "
            f"BUDGET --seed SEED` in `models/` for each run, with budgets of {budgets}. Each run after the first also has `--start` with "
            "the previous run's checkpoint, which `python -m training.export` writes with the matrices of the shipped weights."
        )
    if start := run.get("start"):
        before = start["name"].rsplit("-seed", 1)[0]
        return (
            f"To train it again, run `python -m training.train --config training/configs/{before}.json --data DATA --out START` and then "
            f"`python -m training.train --config training/configs/{name}.json --data DATA --out RUN --start START` in `models/`, with "
            "`--compile` on a GPU. The budgets are times, so another machine reads more or less."
        )
    if "minutes" in recipe["budget"]:
        command = f"`python -m training.train --config training/configs/{name}.json --data DATA --out RUN`"
        return f"To train it again, run {command} in `models/`. The budget is a time, so another machine reads more or less."
    budget = int(recipe["budget"]["characters"])
    shared = f" --workers {run['workers']}" if run.get("workers", 1) > 1 else ""  # each worker has its own noise
    command = f"`python -m training.campaign --data DATA --out RUNS --budget {budget}{shared} training/configs/{name}.json@{seed}`"
    return f"To train it again, run {command} in `models/`."


def decay(r):
    linear = f", constant, and linear to zero over the last {r.get('decay_share', 0):.0%}"
    return {"linear": linear, "cosine": ", then a cosine to zero"}.get(r["decay"], "")


def written(card, symbol, end_byte):
    of_bytes = symbol == "byte"
    if "rouge" in card:
        yield "The first test pair of each source, unselected:"
        for line in card["samples"]:
            yield f"`{line['source']}`: {quoted(line['document'][:300])} …"
            yield f"> reference: {quoted(line['summary'][:300])}\n>\n> generated: {quoted(line['written'])}"
    elif "samples" in card:
        s = card["samples"]
        if of_bytes:
            ends = " A sample ends early if the model generates its end byte." if end_byte else ""
            yield f"The training code drew these samples. The server draws others from the same seed.{ends}"
        yield f"After the prompt `{s['prompt']}`, with the most likely {symbol} at each step:"
        yield sample(s["greedy"], of_bytes)
        for drawn in s["drawn"]:
            yield f"At temperature {drawn['temperature']} (seed {drawn['seed']}):"
            yield sample(drawn["text"], of_bytes)
        if card["family"] == "lslm":
            yield "These samples exclude the mark that ends a text (`ignore_eos`): in training it ended every chunk."


def sample(text, of_bytes):
    """Returns a generated text for the card: raw text in a code block."""
    return f"```text\n{text}\n```" if of_bytes else f"> {text}"


def quoted(text):
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
