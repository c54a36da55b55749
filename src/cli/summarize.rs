//! `weir summarize`: a document's summary, by the same engine that serves; or a table over many of them.

mod forced;
mod input;
mod show;
mod table;

use super::{
    model::{ModelArgs, count},
    output,
};
use crate::{
    decode::{
        contract::Model,
        document::DocumentLimits,
        options::Sampling,
        summary::{EncodedDocument, Summarize, SummaryResult},
    },
    engine::{DocumentEvent, DocumentSource, Event, Events, Handle, Limits},
    error::{Error, Result},
    report::rouge::rouge,
    text::StreamDetokenizer,
};
use input::Document;
use std::{path::PathBuf, sync::Arc};

/// Summarizes a document, from a file, standard input, or as ids.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    given: Given,
    #[command(flatten)]
    writing: Writing,
    /// Summarize the beginning of a document that is longer than the model reads, instead of refusing it.
    #[arg(long, env = "WEIR_CUT", value_parser = clap::builder::BoolishValueParser::new())]
    cut: bool,
    /// Show what each pooling of the model has kept of the document, before the summary.
    #[arg(long, env = "WEIR_HIGHLIGHTS", value_parser = clap::builder::BoolishValueParser::new(), conflicts_with = "table")]
    highlights: bool,
    /// A file with a summary to compare with: ROUGE-1, -2 and -L are told.
    #[arg(long, value_name = "FILE", env = "WEIR_REFERENCE", conflicts_with = "table")]
    reference: Option<PathBuf>,
    /// A file for the logits after each of --target-ids, as safetensors; nothing is written freely then.
    #[arg(long, value_name = "FILE", env = "WEIR_LOGITS", requires = "target_ids", conflicts_with = "table")]
    logits: Option<PathBuf>,
    /// A summary's ids, separated by commas, as the decoder is to be fed them; the mark that it begins with is put before them if
    /// it is not there.
    #[arg(long, value_name = "IDS", value_delimiter = ',', requires = "logits")]
    target_ids: Option<Vec<u32>>,
    /// Print JSON, at the end.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,
}

/// What is summarized.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Given {
    /// The document, a file of UTF-8 text; - for standard input.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The document's ids, separated by commas, exactly as the encoder is to read them: the end mark included.
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    ids: Option<Vec<u32>>,
    /// Many documents, a file with a JSON object in each line: `document`, its `summary` to compare with, and `source`, what it
    /// belongs to. A line of figures for each source, and one for all, are told.
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
}

/// How it is written; what is not given is what the checkpoint says.
#[derive(Debug, Clone, clap::Args)]
struct Writing {
    /// Hypotheses that are followed; 1 is greedy search.
    #[arg(long, value_name = "N", env = "WEIR_BEAM", value_parser = count(1..=64))]
    beam: Option<usize>,
    /// Hypotheses to tell, at most as many as are followed.
    #[arg(long, value_name = "N", env = "WEIR_HYPOTHESES", value_parser = count(1..=64))]
    hypotheses: Option<usize>,
    /// Tokens before the end mark, at least.
    #[arg(long, value_name = "N", env = "WEIR_MIN_LEN")]
    min_len: Option<usize>,
    /// And at most.
    #[arg(long, value_name = "N", env = "WEIR_MAX_LEN")]
    max_len: Option<usize>,
    /// The power of the length that hypotheses' log-probabilities are divided by.
    #[arg(long, value_name = "X", env = "WEIR_LENGTH_PENALTY", allow_negative_numbers = true)]
    length_penalty: Option<f32>,
    /// No run of so many tokens is written twice; 0: no such rule.
    #[arg(long, value_name = "N", env = "WEIR_NO_REPEAT_NGRAM")]
    no_repeat_ngram: Option<usize>,
    /// Draw tokens at this temperature, instead of searching for the best.
    #[arg(long, value_name = "T", env = "WEIR_TEMPERATURE")]
    temperature: Option<f32>,
    /// Seeds the draws.
    #[arg(long, value_name = "N", default_value_t = 0, env = "WEIR_SEED")]
    seed: u64,
    /// Keep the vectors that a pooling chooses as they are, where the model was trained to mix others into them.
    #[arg(long, env = "WEIR_HARD_TOPK", value_parser = clap::builder::BoolishValueParser::new())]
    hard_topk: bool,
}

impl Writing {
    fn request(&self) -> Summarize {
        let drawn = |temperature| Sampling { temperature, seed: self.seed, ..Sampling::default() };
        Summarize {
            beam: self.beam,
            length_penalty: self.length_penalty,
            min_tokens: self.min_len,
            max_tokens: self.max_len,
            no_repeat_ngram: self.no_repeat_ngram,
            sampling: self.temperature.map(drawn),
            hypotheses: self.hypotheses,
            hard: Some(self.hard_topk),
        }
    }
}

/// Runs the command.
///
/// # Errors
/// What is wrong with the checkpoint, the document, an option, or stdout.
pub fn run(args: Args) -> Result<()> {
    let model = args.model.load()?;
    let Some(reader) = model.document_encoder() else {
        let (name, found) = (model.card().name.clone(), model.card().shape.clone());
        return Err(Error::WrongKind { call: "summarize", model: name, wanted: "reads documents", found });
    };
    let limits = reader.limits().clone();
    if let (Some(out), Some(target)) = (&args.logits, &args.target_ids) {
        let document = args.given.document(&*model, &limits, args.cut)?;
        return forced::run(&*model, reader, &document.ids, (target, args.writing.hard_topk), out);
    }
    let writer = Writer::new(model.clone(), limits, args.writing.request())?;
    if let Some(file) = &args.given.table {
        return table::run(&writer, file, (args.cut, args.json));
    }
    let document = args.given.document(&*model, &writer.limits, args.cut)?;
    // before the work that it is compared with
    let read = |file: &PathBuf| std::fs::read_to_string(file).map_err(Error::io(file));
    let reference = args.reference.as_ref().map(read).transpose()?;
    let mut stream = StreamDetokenizer::new(model.card().vocabulary.clone());
    // what is shown before the summary is not known before the document is read
    let mut told = |event: Told<'_>| match event {
        _ if args.json => Ok(()),
        Told::Encoded(encoded) if args.highlights => output::write(&show::highlights(&document.text, encoded)),
        Told::Encoded(_) => Ok(()),
        Told::Text(ids) => output::write(&ids.iter().map(|&id| stream.push(id).to_owned()).collect::<String>()),
    };
    let (encoded, summary) = writer.write(&document, &mut told)?;
    let text = writer.text(&summary);
    let compared = reference.map(|reference| rouge(&reference, &text));
    if args.json {
        return output::json(&show::json(&*model, &encoded, &summary, compared));
    }
    output::write(&format!("{}\n", stream.finish()))?;
    if encoded.cut {
        eprintln!("weir: --cut: the beginning of the document was summarized, {} tokens", encoded.tokens);
    }
    compared.map_or(Ok(()), |rouge| output::write(&show::rouge(&rouge)))
}

impl Given {
    fn document(&self, model: &dyn Model, limits: &DocumentLimits, cut: bool) -> Result<Document> {
        match (&self.ids, &self.file) {
            (Some(ids), _) => Document::of_ids(ids, model),
            (None, Some(file)) => input::read(file, model, limits, cut),
            (None, None) => Err(Error::Setting("--logits needs --file or --ids".into())),
        }
    }
}

/// What is told while a summary is written.
enum Told<'a> {
    Encoded(&'a EncodedDocument),
    /// Tokens that are final.
    Text(&'a [u32]),
}

/// A model that summarizes, behind an engine.
struct Writer {
    model: Arc<dyn Model>,
    engine: Handle,
    limits: DocumentLimits,
    request: Summarize,
}

impl Writer {
    fn new(model: Arc<dyn Model>, limits: DocumentLimits, request: Summarize) -> Result<Self> {
        let rows = request.beam.unwrap_or(limits.generation.beam).max(1);
        let engine = Handle::start(Arc::clone(&model), Limits { rows, queue: 1, ..Limits::default() })?;
        Ok(Self { model, engine, limits, request })
    }

    /// A document's summary, with what became of the document.
    fn write(
        &self,
        document: &Document,
        told: &mut dyn FnMut(Told<'_>) -> Result<()>,
    ) -> Result<(Arc<EncodedDocument>, Box<SummaryResult>)> {
        let (upload, arriving) = self.engine.upload();
        let mut events: Events = self.engine.summarize(&self.request, DocumentSource::Uploading(arriving), None)?;
        upload.push(&document.ids, &document.places);
        upload.close(document.cut);
        let mut read = None;
        while let Some(event) = events.blocking_recv() {
            match event? {
                Event::Started { .. }
                | Event::Finished { .. }
                | Event::Document(DocumentEvent::Reading(_) | DocumentEvent::Chosen(_)) => {}
                Event::Document(DocumentEvent::Encoded(encoded)) => {
                    told(Told::Encoded(&encoded))?;
                    read = Some(encoded);
                }
                Event::Characters(tokens) => {
                    let ids: Vec<u32> = tokens.iter().map(|token| token.symbol).collect();
                    told(Told::Text(&ids))?;
                }
                Event::Document(DocumentEvent::Summarized(summary)) => {
                    let broken = || Error::Internal("a summary of a document that was not read".into());
                    return Ok((read.ok_or_else(broken)?, summary));
                }
            }
        }
        Err(Error::Internal("the engine ended without an answer".into()))
    }

    /// The best hypothesis' text.
    fn text(&self, summary: &SummaryResult) -> String {
        let best = summary.hypotheses.first().and_then(|best| best.tokens.split_last());
        best.map_or_else(String::new, |(_, text)| self.engine.card().vocabulary.decode(text))
    }
}
