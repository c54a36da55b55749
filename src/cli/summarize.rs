//! `weir summarize`: summarizes a document, or prints a table of scores over many documents. A server does it, which runs in this
//! process unless `--server` names another.

use crate::{
    cli::{
        document::{
            DASH, Document, TextReader, WAITING_PARTS, check_standard_input, json_lines, note_file_name, read_on_thread,
        },
        flag_names::{message, with_flag},
        generate::ConstraintArgs,
        model::{self, ModelSource, ModelSourceArgs, ServedModel, check_readable, named, own_limits, whole},
        output::{self, ColorChoice},
    },
    report::rouge::{RougeScore, RougeScores, rouge as score},
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fmt::Write,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::{mpsc, oneshot};
use weir_client::calls::Upload;
use weir_engine::{
    extract::first_sentences,
    summary::{LongDocuments, SummaryMode},
};
use weir_kernels::error::{Error, Result, printable};
use weir_measure::format;
use weir_models::contract::EarlyStopping;
use weir_proto::v1::{
    DocumentChunk, LongDocuments as WireLongDocuments, Sampling, Selected, Span, SummarizeOptions, SummaryFinishReason,
    SummaryFinished, SummaryMode as WireSummaryMode, SummaryPart, SummaryUsage,
    summarize_response::Event as SummarizeEvent,
};

/// Runs the command. Fails if the checkpoint, the document or an option is invalid, if the server rejects the call, or if stdout
/// cannot be written.
pub fn run(args: Args, color: ColorChoice) -> Result<()> {
    for (flag, file) in [("--file", &args.document.file), ("--table", &args.document.table)] {
        file.as_ref().map_or(Ok(()), |file| check_readable(flag, file))?;
    }
    args.document.check_standard_input()?;
    note_file_name((DOCUMENT, args.document.positional.as_deref()));
    let extracts = args.generation.mode == Some(SummaryMode::Extract);
    if extracts && args.document.ids.is_some() {
        return Err(Error::Setting(
            "--mode: expected abstract with --ids, which have no sentences, found extract".into(),
        ));
    }
    let source = args.model.open()?;
    let mut limits = own_limits();
    if let ModelSource::Process(model) = &source {
        let usual = || model.document_encoder().map_or(1, |encoder| encoder.limits().generation.beam);
        limits.rows = args.generation.beam.map_or_else(usual, |beam| beam as usize);
    }
    let model = source.served(limits)?;
    let summarizer = Summarizer::new(&model, &args)?;
    match &args.document.table {
        Some(file) => summarize_table(&summarizer, file, args.json),
        None => {
            let document = args.document.document();
            let summary = print(&args, color, |on_event| summarizer.summarize(&document, on_event));
            summary.map_err(|error| {
                let error = with_flag(error, "chunk.ids", "--ids");
                let is_argument = args.document.positional.is_some();
                with_long_documents(if is_argument { with_flag(error, "chunk.text", DOCUMENT) } else { error })
            })
        }
    }
}

/// Names the flag that lifts the limit of a document, instead of the option.
fn with_long_documents(error: Error) -> Error {
    match error {
        Error::Answer { field, why } => Error::Answer { field, why: why.replace("long_documents", "--long-documents") },
        Error::Refused { server, error } => Error::Refused { server, error: with_long_documents(*error).into() },
        error => error,
    }
}

fn print(args: &Args, color: ColorChoice, summarize: impl FnOnce(&mut OnEvent<'_>) -> Result<Summary>) -> Result<()> {
    // Read first, so that an unreadable file does not cost a summary.
    let read = |file: &PathBuf| model::read_text("--reference", file);
    let reference = args.reference.as_ref().map(read).transpose()?;
    // The number of the document's tokens, which highlights state, comes with the last event.
    let mut held = String::new();
    let summary = summarize(&mut |event| match event {
        _ if args.json => Ok(()),
        Progress::Part(part) => {
            let SummaryPart { round, part, byte_end, round_bytes, .. } = part;
            let read = format!("{byte_end} of {round_bytes} bytes read");
            output::note(&format!("--long-documents: summarized part {part} of round {round} ({read})"));
            Ok(())
        }
        Progress::Text(text) if args.highlights => {
            held += text;
            Ok(())
        }
        Progress::Text(text) => output::write(text),
    })?;
    let scores = reference.map(|reference| score(&reference, summary.text()));
    if args.json {
        return output::json(&json(&summary, scores));
    }
    if args.highlights {
        output::write(&highlights(&summary, color.is_on(&std::io::stdout())))?;
        output::write(&held)?;
    }
    output::write("\n")?;
    let usage = summary.usage();
    if usage.cut {
        let tokens = usage.document_tokens;
        output::note(&format!("--cut: only the first {tokens} tokens of the document were summarized"));
    }
    scores.map_or(Ok(()), |rouge| output::write(&self::rouge(&rouge)))
}

/// Name of the positional argument that holds the document.
const DOCUMENT: &str = "DOCUMENT";

/// Summarizes a document: a text, a file, standard input, or ids.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    document: DocumentArgs,
    #[command(flatten)]
    generation: GenerationArgs,
    #[command(flatten)]
    constraint: ConstraintArgs,
    /// Summarize the beginning of a document that is longer than the model's limit, instead of rejecting it.
    #[arg(long, env = "WEIR_CUT", value_parser = clap::builder::BoolishValueParser::new())]
    cut: bool,
    /// What to do with a document that is longer than the model's limit: refuse it (the default), cut it as --cut does, or `chunk`:
    /// summarize its parts, then their summaries, until one is left.
    #[arg(long, value_name = "MODE", env = "WEIR_LONG_DOCUMENTS",
        value_parser = named(LongDocuments::ALL.map(LongDocuments::name), LongDocuments::parse),
        conflicts_with_all = ["cut", "highlights", "ids"])]
    long_documents: Option<LongDocuments>,
    /// Before the summary, print the document with the tokens that each pooling layer kept highlighted.
    #[arg(long, env = "WEIR_HIGHLIGHTS", value_parser = clap::builder::BoolishValueParser::new(), conflicts_with = "table")]
    highlights: bool,
    /// File with a reference summary: also print ROUGE-1, ROUGE-2 and ROUGE-L.
    #[arg(long, value_name = "FILE", env = "WEIR_REFERENCE", conflicts_with = "table")]
    reference: Option<PathBuf>,
    /// Print JSON when the summary is complete.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,
    #[command(flatten)]
    model: ModelSourceArgs,
}

impl Args {
    /// Returns how the command treats a document that is too long.
    fn long_documents(&self) -> LongDocuments {
        let default = if self.cut { LongDocuments::Cut } else { LongDocuments::Refuse };
        self.long_documents.unwrap_or(default)
    }
}

/// Document to summarize.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
struct DocumentArgs {
    /// Text of the document; - for standard input. Without a text, a file, ids and a table, the document comes from standard input,
    /// unless that is a terminal.
    #[arg(value_name = DOCUMENT)]
    positional: Option<String>,
    /// File with the document in UTF-8; - for standard input.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Encoder input ids, separated by commas, including the end-of-text id.
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    ids: Option<Vec<u32>>,
    /// Summarize many documents: a file with one JSON object per line, with `document`, the reference `summary`, and optionally
    /// `source`. Prints one line of mean scores per source and one for all; of extracts, next to as many first sentences.
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
}

/// Generation flags. The checkpoint's generation settings are the defaults.
#[derive(Debug, Clone, clap::Args)]
struct GenerationArgs {
    /// What the summary consists of. abstract: text that the model writes (the default). extract: sentences of the document, those that the
    /// model attends to most.
    #[arg(long, id = "summary_mode", value_name = "MODE", env = "WEIR_MODE",
        value_parser = named(SummaryMode::ALL.map(SummaryMode::name), SummaryMode::parse))]
    mode: Option<SummaryMode>,
    /// With --mode extract: maximum sentences [default: 3, or any number with --max-len].
    #[arg(long, value_name = "N", env = "WEIR_SENTENCES")]
    sentences: Option<u32>,
    /// Beam size; 1 is greedy search.
    #[arg(long, value_name = "N", env = "WEIR_BEAM", value_parser = whole(1..=64u32))]
    beam: Option<u32>,
    /// Hypotheses to return, at most the beam size.
    #[arg(long, value_name = "N", env = "WEIR_HYPOTHESES", value_parser = whole(1..=64u32))]
    hypotheses: Option<u32>,
    /// Minimum tokens before the end-of-text token. In models of the T5 family the end-of-text token counts, too.
    #[arg(long, value_name = "N", env = "WEIR_MIN_LEN", visible_alias = "min-new-tokens")]
    min_len: Option<u32>,
    /// Maximum tokens before the end-of-text token. In models of the T5 family the end-of-text token counts, too. With --mode extract:
    /// maximum tokens of all sentences together.
    #[arg(long, value_name = "N", env = "WEIR_MAX_LEN", visible_aliases = ["max-tokens", "max-new-tokens"])]
    max_len: Option<u32>,
    /// A hypothesis' log-probability is divided by its length to this power.
    #[arg(long, value_name = "X", env = "WEIR_LENGTH_PENALTY", allow_negative_numbers = true)]
    length_penalty: Option<f32>,
    /// Never repeat a run of N tokens; 0 allows all repeats.
    #[arg(long, value_name = "N", env = "WEIR_NO_REPEAT_NGRAM", visible_alias = "no-repeat-ngram-size")]
    no_repeat_ngram: Option<u32>,
    /// When a beam search by the rules of transformers stops, once --beam hypotheses have finished. true: at once. false: when no
    /// unfinished hypothesis has a better score. never: when no unfinished hypothesis can reach a better score.
    #[arg(long, value_name = "WHEN", env = "WEIR_EARLY_STOPPING",
        value_parser = named(EarlyStopping::ALL.map(EarlyStopping::name), EarlyStopping::parse))]
    early_stopping: Option<EarlyStopping>,
    /// Penalty on tokens that the summary already contains, by the rules of transformers or in sampling; 1 is none.
    #[arg(long, value_name = "X", env = "WEIR_REPETITION_PENALTY")]
    repetition_penalty: Option<f32>,
    /// Penalize tokens that the summary already contains by this number, -2 to 2, in a greedy or sampled text. Default: 0.
    #[arg(long, value_name = "X", env = "WEIR_PRESENCE_PENALTY", allow_negative_numbers = true)]
    presence_penalty: Option<f32>,
    /// Penalize a token by this number, -2 to 2, for each time that the summary contains it, in a greedy or sampled text. Default: 0.
    #[arg(long, value_name = "X", env = "WEIR_FREQUENCY_PENALTY", allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,
    /// Sample tokens at this temperature instead of beam search; 0 takes the most probable one each time.
    #[arg(long, value_name = "T", env = "WEIR_TEMPERATURE")]
    temperature: Option<f32>,
    /// Seed of the sampled tokens.
    #[arg(long, value_name = "N", default_value_t = 0, env = "WEIR_SEED")]
    seed: u64,
    /// Keep the selected vectors unchanged in models trained with soft top-k, which mixes other vectors into them.
    #[arg(long, env = "WEIR_HARD_TOPK", value_parser = clap::builder::BoolishValueParser::new())]
    hard_topk: bool,
}

impl DocumentArgs {
    /// Fails if the document would come from a terminal.
    fn check_standard_input(&self) -> Result<()> {
        let Self { positional, file, ids, table } = self;
        let is_given = positional.is_some() || file.is_some() || ids.is_some() || table.is_some();
        if is_given { Ok(()) } else { check_standard_input(DOCUMENT) }
    }

    /// Returns the document of the command: the one that is given, else standard input.
    fn document(&self) -> Document {
        match self {
            Self { ids: Some(ids), .. } => Document::Ids(ids.clone()),
            Self { file: Some(file), .. } => Document::File(file.clone()),
            Self { positional: Some(text), .. } if text != DASH => Document::Text(text.clone()),
            _ => Document::File(DASH.into()),
        }
    }
}

/// A served summarization model.
struct Summarizer<'a> {
    model: &'a ServedModel,
    options: SummarizeOptions,
    /// True if the document is printed with the tokens that poolings kept.
    keeps_text: bool,
}

/// The text that was read, if it is printed.
type KeptText = Option<Arc<Mutex<String>>>;

impl<'a> Summarizer<'a> {
    fn new(model: &'a ServedModel, args: &Args) -> Result<Self> {
        let options = SummarizeOptions {
            model: model.name.clone(),
            cut: Some(args.long_documents() == LongDocuments::Cut),
            // A server of an older version reads only `cut`.
            long_documents: (args.long_documents() == LongDocuments::Chunk).then_some(WireLongDocuments::Chunk.into()),
            kept_tokens: Some(args.json && args.document.table.is_none()),
            constraint: args.constraint.message()?,
            ..args.generation.options()
        };
        Ok(Self { model, options, keeps_text: args.highlights && !args.json })
    }

    /// Sends a document and waits for its summary.
    fn summarize(&self, document: &Document, on_event: &mut OnEvent<'_>) -> Result<Summary> {
        let kept = self.keeps_text.then(Arc::<Mutex<String>>::default);
        let parts = send(document, &kept)?;
        let options = self.options.clone();
        let mut events = self.model.call(async |client| client.summarize(options, parts).await)?;
        let mut summary = Summary::default();
        loop {
            let event = self.model.call(async |_| events.next().await)?;
            let event = event.ok_or_else(|| self.model.client.incomplete("a summary"))?;
            let Some(event) = event.event else { continue };
            let is_last = matches!(event, SummarizeEvent::Finished(_));
            collect(&mut summary, event, on_event)?;
            if is_last {
                break;
            }
        }
        if let Some(text) = kept {
            summary.document.clone_from(&text.lock().unwrap_or_else(PoisonError::into_inner));
        }
        Ok(summary)
    }
}

impl GenerationArgs {
    fn options(&self) -> SummarizeOptions {
        let penalizes = [self.presence_penalty, self.frequency_penalty].into_iter().flatten().any(|by| by != 0.0);
        let sampling = Sampling {
            temperature: self.temperature.or(Some(0.0)),
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: Some(self.seed),
            ..Sampling::default()
        };
        let mode = |mode| match mode {
            SummaryMode::Abstract => WireSummaryMode::Abstract.into(),
            SummaryMode::Extract => WireSummaryMode::Extract.into(),
        };
        SummarizeOptions {
            mode: self.mode.map(mode),
            sentences: self.sentences,
            beam_size: self.beam,
            length_penalty: self.length_penalty,
            min_tokens: self.min_len,
            max_tokens: self.max_len,
            no_repeat_ngram: self.no_repeat_ngram,
            hypotheses: self.hypotheses,
            sampling: (self.temperature.is_some() || penalizes).then_some(sampling),
            hard_topk: Some(self.hard_topk),
            early_stopping: self.early_stopping.map(|when| when.name().to_owned()),
            repetition_penalty: self.repetition_penalty,
            ..SummarizeOptions::default()
        }
    }
}

/// Reads a document on another thread, up to its end or until the call ends.
fn send(document: &Document, kept: &KeptText) -> Result<Upload<DocumentChunk>> {
    let (sender, parts) = mpsc::channel(WAITING_PARTS);
    let (failed, failure) = oneshot::channel();
    match document {
        Document::File(file) => {
            let reader = TextReader::open(file)?;
            let kept = kept.clone();
            read_on_thread(move || read(reader, &sender, failed, &kept))?;
        }
        Document::Text(text) => {
            let text = text.clone();
            let kept = kept.clone();
            read_on_thread(move || read(TextReader::text(&text), &sender, failed, &kept))?;
        }
        Document::Ids(ids) => {
            // Never fails: the channel is empty.
            let _ = sender.try_send(DocumentChunk { ids: ids.clone(), ..DocumentChunk::default() });
        }
    }
    Ok(Upload { parts, failure })
}

/// Sends the parts of a document, or the error of reading it.
fn read(
    mut reader: TextReader<'_>,
    parts: &mpsc::Sender<DocumentChunk>,
    failed: oneshot::Sender<Error>,
    kept: &KeptText,
) {
    loop {
        match reader.next() {
            Ok(Some(part)) => {
                if let Some(kept) = kept {
                    kept.lock().unwrap_or_else(PoisonError::into_inner).push_str(&part);
                }
                // Fails when the call has ended.
                if parts.blocking_send(DocumentChunk { text: part, ..DocumentChunk::default() }).is_err() {
                    return;
                }
            }
            Ok(None) => return,
            Err(error) => {
                // Before the parts end, so that their end is not taken for the document's.
                let _ = failed.send(error);
                return;
            }
        }
    }
}

/// Shows the tokens that each pooling layer kept, and the sentences of an extract: in reverse video with `color`, otherwise in brackets.
fn highlights(summary: &Summary, color: bool) -> String {
    if color { marked(summary, "\u{1b}[7m", "\u{1b}[0m") } else { marked(summary, "[", "]") }
}

fn marked(summary: &Summary, on: &str, off: &str) -> String {
    let text = &summary.document;
    let tokens = summary.usage().document_tokens;
    let layers = summary.selected.iter().map(|Selected { layer, tokens: kept, spans, .. }| {
        (format!("layer {layer}: {kept} of {tokens} tokens kept"), spans)
    });
    let sentences = Some(&summary.finished.sentences).filter(|sentences| !sentences.is_empty());
    let extract = sentences.map(|sentences| (format!("{} sentences extracted", sentences.len()), sentences));
    let mut shown = String::new();
    for (title, spans) in layers.chain(extract) {
        // Never fails: the writer is a `String`.
        let _ = writeln!(shown, "-- {title}");
        let mut shown_to = 0;
        for Span { byte_start, byte_end, .. } in spans {
            let start = (*byte_start as usize).max(shown_to);
            let end = *byte_end as usize;
            let (Some(before), Some(span)) = (text.get(shown_to..start), text.get(start..end)) else { continue };
            let _ = write!(shown, "{}{on}{}{off}", without_controls(before), without_controls(span));
            shown_to = end;
        }
        let _ = writeln!(shown, "{}\n", without_controls(text.get(shown_to..).unwrap_or_default()).trim_end());
    }
    shown
}

/// Replaces control characters, which could change the terminal, in every line.
fn without_controls(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// Formats ROUGE scores, one per line.
fn rouge(RougeScores { rouge1, rouge2, rouge_l }: &RougeScores) -> String {
    let line = |name, RougeScore { precision, recall, f1 }: &RougeScore| {
        let [f1, precision, recall] = [f1, precision, recall].map(|part| 100.0 * part);
        format!("{name} {f1:.2} (precision {precision:.2}, recall {recall:.2})\n")
    };
    [line("ROUGE-1", rouge1), line("ROUGE-2", rouge2), line("ROUGE-L", rouge_l)].concat()
}

/// Formats a summary and its document as JSON.
fn json(summary: &Summary, scores: Option<RougeScores>) -> Value {
    let finished = &summary.finished;
    let best = finished.hypotheses.first();
    let poolings = summary.selected.iter().map(pooling);
    let mut object = json!({
        "ids": best.map(|best| &best.ids),
        "score": best.map(|best| best.score),
        "text": best.map(|best| &best.text),
        "reason": if finished.reason() == SummaryFinishReason::EndOfText { "end_of_text" } else { "max_tokens" },
        "hypotheses": finished.hypotheses,
        "poolings": poolings.collect::<Vec<_>>(),
        "usage": summary.usage(),
        "timing": finished.timing.clone().unwrap_or_default(),
    });
    if !summary.parts.is_empty() {
        object["parts"] = summary.parts.iter().map(part).collect();
    }
    if !finished.sentences.is_empty() {
        object["sentences"] = json!(finished.sentences);
    }
    if let Some(rouge) = scores {
        object["rouge"] = json!(rouge);
    }
    object
}

/// Formats a part of a long document.
fn part(part: &SummaryPart) -> Value {
    let mut fields = json!(part);
    fields["poolings"] = part.selected.iter().map(pooling).collect();
    fields
}

/// Formats the tokens that one pooling layer kept: in the order of the next layer, if the server sends it, and as spans of the text.
fn pooling(Selected { layer, spans, kept, .. }: &Selected) -> Value {
    if kept.is_empty() {
        return json!({ "layer": layer, "spans": spans });
    }
    let kept = kept.iter().map(|kept| json!({ "position": kept.position, "score": kept.score }));
    json!({ "layer": layer, "kept": kept.collect::<Vec<_>>(), "spans": spans })
}

#[derive(Default)]
struct Summary {
    finished: SummaryFinished,
    /// The tokens that each pooling layer kept, as spans of the text.
    selected: Vec<Selected>,
    /// The parts of a document that was summarized in parts.
    parts: Vec<SummaryPart>,
    /// Text that was read, if highlights are printed.
    document: String,
}

impl Summary {
    /// Text of the best hypothesis.
    fn text(&self) -> &str {
        self.finished.hypotheses.first().map_or("", |best| &best.text)
    }

    fn usage(&self) -> SummaryUsage {
        self.finished.usage.unwrap_or_default()
    }
}

/// Receives the parts of a long document, and the text of a summary as it grows.
type OnEvent<'a> = dyn FnMut(Progress<'_>) -> Result<()> + 'a;

enum Progress<'a> {
    /// A part of a long document is summarized.
    Part(&'a SummaryPart),
    /// Next part of the summary.
    Text(&'a str),
}

/// Collects the events of one summary. Returns an error if it cannot be printed.
fn collect(summary: &mut Summary, event: SummarizeEvent, on_event: &mut OnEvent<'_>) -> Result<()> {
    match event {
        SummarizeEvent::Started(_) | SummarizeEvent::Progress(_) => {}
        SummarizeEvent::Selected(selected) => summary.selected.push(selected),
        SummarizeEvent::Part(part) => {
            on_event(Progress::Part(&part))?;
            summary.parts.push(part);
        }
        SummarizeEvent::Piece(piece) => on_event(Progress::Text(&piece.text))?,
        SummarizeEvent::Finished(finished) => summary.finished = finished,
    }
    Ok(())
}

/// The flag that names the file.
const FLAG: &str = "--table";

/// Name of the group of documents without a source, if other documents have one.
const NO_SOURCE: &str = "(no source)";

/// One line of the file.
#[derive(Deserialize)]
struct Example {
    #[serde(default)]
    source: String,
    document: String,
    summary: String,
}

/// Sums over documents.
#[derive(Default)]
struct Sums {
    documents: usize,
    cut: usize,
    tokens: u64,
    summary_tokens: u64,
    total_ns: u64,
    rouge: RougeScores,
    /// Sentences of extracts.
    sentences: usize,
    /// Scores of as many sentences from the beginning of each document.
    first: RougeScores,
}

/// Summarizes every document of the file, and prints the means of each source and of all documents.
fn summarize_table(summarizer: &Summarizer<'_>, file: &Path, as_json: bool) -> Result<()> {
    let mut sources: BTreeMap<String, Sums> = BTreeMap::new();
    let mut all = Sums::default();
    let object = "an object with `document`, `summary` and optionally `source`";
    let examples: Vec<(u64, Example)> = json_lines(FLAG, file, object)?;
    let mut progress = output::Progress::measurements();
    let total = examples.len() as u64;
    for (done, (number, Example { source, document, summary: reference })) in examples.into_iter().enumerate() {
        let with_line = |error: Error| {
            let why = message(with_flag(error, "chunk.text", "document"));
            Error::Setting(format!("{FLAG}: {}: line {number}: {why}", file.display()))
        };
        let document = Document::Text(document);
        let summary = summarizer.summarize(&document, &mut |_| Ok(())).map_err(with_line)?;
        let usage = summary.usage();
        let scores = score(&reference, summary.text());
        let sentences = summary.finished.sentences.len();
        let first = match &document {
            Document::Text(document) if sentences > 0 => score(&reference, &first_sentences(document, sentences)),
            _ => RougeScores::default(),
        };
        for sums in [sources.entry(printable(&source)).or_default(), &mut all] {
            sums.documents += 1;
            sums.cut += usize::from(usage.cut);
            sums.tokens += usage.document_tokens;
            sums.summary_tokens += usage.summary_tokens;
            sums.total_ns += summary.finished.timing.as_ref().map_or(0, |timing| timing.total_ns);
            sums.rouge += scores;
            sums.first += first;
            sums.sentences += sentences;
        }
        progress.update(done as u64 + 1, total);
    }
    drop(progress);
    // If no line names its source, only the line for all documents is printed.
    sources.retain(|source, sums| !source.is_empty() || sums.documents < all.documents);
    let name = |source: &'_ str| if source.is_empty() { NO_SOURCE } else { source }.to_owned();
    let mut rows: Vec<(String, &Sums)> = sources.iter().map(|(source, sums)| (name(source), sums)).collect();
    rows.push(("all".to_owned(), &all));
    if as_json {
        return output::json(&rows.iter().map(|(source, sums)| sums.json(source)).collect::<Vec<_>>().into());
    }
    output::write(&table(&rows))
}

impl Sums {
    /// Mean over documents.
    fn mean(&self, sum: u64) -> f64 {
        sum as f64 / self.documents.max(1) as f64
    }

    fn mean_rouge(&self, sum: RougeScores) -> RougeScores {
        sum / self.documents.max(1) as f64
    }

    fn json(&self, source: &str) -> Value {
        let mut means = json!({
            "source": source,
            "documents": self.documents,
            "cut": self.cut,
            "document_tokens": self.mean(self.tokens),
            "summary_tokens": self.mean(self.summary_tokens),
            "ns": self.total_ns / self.documents.max(1) as u64,
            "rouge": self.mean_rouge(self.rouge),
        });
        if self.sentences > 0 {
            means["first_sentences_rouge"] = json!(self.mean_rouge(self.first));
        }
        means
    }
}

/// Formats a table of means: F1 in percent, tokens, seconds.
fn table(rows: &[(String, &Sums)]) -> String {
    let is_extract = rows.iter().any(|(_, sums)| sums.sentences > 0);
    let counts = ["source", "documents", "cut"];
    let scores = ["ROUGE-1", "ROUGE-2", "ROUGE-L"];
    let of_first = ["first sentences: ROUGE-1", "ROUGE-2", "ROUGE-L"].into_iter().filter(|_| is_extract);
    let means = ["document tokens", "summary tokens", "seconds"];
    let titles = counts.into_iter().chain(scores).chain(of_first).chain(means);
    let mut lines = vec![titles.map(str::to_owned).collect::<Vec<_>>()];
    let shown = |RougeScores { rouge1, rouge2, rouge_l }| {
        [rouge1, rouge2, rouge_l].map(|score| format!("{:.2}", 100.0 * score.f1))
    };
    for (source, sums) in rows {
        let mut line = vec![source.clone(), sums.documents.to_string(), sums.cut.to_string()];
        line.extend(shown(sums.mean_rouge(sums.rouge)));
        line.extend(shown(sums.mean_rouge(sums.first)).into_iter().filter(|_| is_extract));
        line.extend([sums.tokens, sums.summary_tokens].map(|tokens| format!("{:.1}", sums.mean(tokens))));
        line.push(format!("{:.2}", sums.mean(sums.total_ns) / 1e9));
        lines.push(line);
    }
    format::table(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_proto::v1::{SummaryFinished, SummaryUsage};

    #[test]
    fn kept_tokens_are_marked_in_the_text() {
        let kept = |layer, tokens, ranges: &[(u64, u64)]| Selected {
            layer,
            tokens,
            spans: ranges.iter().map(|&(byte_start, byte_end)| Span { byte_start, byte_end, score: 0.5 }).collect(),
            kept: Vec::new(),
        };
        let usage = SummaryUsage { document_tokens: 4, ..SummaryUsage::default() };
        let summary = Summary {
            finished: SummaryFinished { usage: Some(usage), ..SummaryFinished::default() },
            selected: vec![kept(0, 3, &[(0, 10)]), kept(2, 1, &[(10, 13)])],
            document: "the\u{1b}größ en".into(),
            ..Summary::default()
        };
        let expected = "-- layer 0: 3 of 4 tokens kept\n[the\u{fffd}größ] en\n\n\
            -- layer 2: 1 of 4 tokens kept\nthe\u{fffd}größ[ en]\n\n";
        assert_eq!(marked(&summary, "[", "]"), expected);
        assert!(highlights(&summary, true).contains("\u{1b}[7m en\u{1b}[0m"));
    }
}
