//! `weir summarize`: summarizes a document, or prints a table of scores over many documents, with the engine that the server uses.

mod forced;
mod input;
mod show;
mod summarizer;
mod table;

use super::{model::ModelArgs, output};
use crate::{
    decode::{contract::Model, document::DocumentLimits},
    error::{Error, Result},
    report::rouge::rouge,
    text::StreamDetokenizer,
};
use input::InputDocument;
use std::path::PathBuf;
use summarizer::{GenerationArgs, Summarizer, SummaryEvent};

/// Summarizes a document, from a file, standard input, or as ids.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    document: DocumentArgs,
    #[command(flatten)]
    generation: GenerationArgs,
    /// Summarize the beginning of a document that is longer than the model's limit, instead of rejecting it.
    #[arg(long, env = "WEIR_CUT", value_parser = clap::builder::BoolishValueParser::new())]
    cut: bool,
    /// Before the summary, print the document with the tokens that each pooling layer kept highlighted.
    #[arg(long, env = "WEIR_HIGHLIGHTS", value_parser = clap::builder::BoolishValueParser::new(), conflicts_with = "table")]
    highlights: bool,
    /// File with a reference summary: also print ROUGE-1, ROUGE-2 and ROUGE-L.
    #[arg(long, value_name = "FILE", env = "WEIR_REFERENCE", conflicts_with = "table")]
    reference: Option<PathBuf>,
    /// Feed --target-ids to the decoder and write the logits after each to this safetensors file. Generates no summary.
    #[arg(long, value_name = "FILE", env = "WEIR_LOGITS", requires = "target_ids", conflicts_with = "table")]
    logits: Option<PathBuf>,
    /// Decoder input ids, separated by commas. The start-of-text id is added at the front if missing.
    #[arg(long, value_name = "IDS", value_delimiter = ',', requires = "logits")]
    target_ids: Option<Vec<u32>>,
    /// Print JSON when the summary is complete.
    #[arg(long, env = "WEIR_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,
}

/// Document to summarize.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct DocumentArgs {
    /// File with the document in UTF-8; - for standard input.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Encoder input ids, separated by commas, including the end-of-text id.
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    ids: Option<Vec<u32>>,
    /// Summarize many documents: a file with one JSON object per line, with `document`, the reference `summary`, and optionally
    /// `source`. Prints one line of mean scores per source and one for all.
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
}

/// Runs the command. Fails if the checkpoint, the document or an option is invalid, or if stdout cannot be written.
pub fn run(args: Args) -> Result<()> {
    let model = args.model.load()?;
    let Some(encoder) = model.document_encoder() else {
        let found = model.card().shape.clone();
        let model = model.card().name.clone();
        return Err(Error::WrongKind { call: "summarize", model, wanted: "reads documents", found });
    };
    let limits = encoder.limits().clone();
    if let (Some(out), Some(target)) = (&args.logits, &args.target_ids) {
        let document = args.document.read(&*model, &limits, args.cut)?;
        return forced::run(&*model, encoder, &document.ids, target, args.generation.hard_topk, out);
    }
    let summarizer = Summarizer::new(model.clone(), limits, &args.generation)?;
    if let Some(file) = &args.document.table {
        return table::run(&summarizer, file, args.cut, args.json);
    }
    let document = args.document.read(&*model, &summarizer.limits, args.cut)?;
    // Read first, so that an unreadable file does not cost a summary.
    let read = |file: &PathBuf| std::fs::read_to_string(file).map_err(Error::io(file));
    let reference = args.reference.as_ref().map(read).transpose()?;
    let mut stream = StreamDetokenizer::new(model.card().vocabulary.clone());
    let mut print = |event: SummaryEvent<'_>| match event {
        _ if args.json => Ok(()),
        SummaryEvent::Encoded(encoded) if args.highlights => output::write(&show::highlights(&document.text, encoded)),
        SummaryEvent::Encoded(_) => Ok(()),
        SummaryEvent::Tokens(ids) => {
            output::write(&ids.iter().map(|&id| stream.push(id).to_owned()).collect::<String>())
        }
    };
    let (encoded, summary) = summarizer.summarize(&document, &mut print)?;
    let text = summarizer.text(&summary);
    let scores = reference.map(|reference| rouge(&reference, &text));
    if args.json {
        return output::json(&show::json(&*model, &encoded, &summary, scores));
    }
    output::write(&format!("{}\n", stream.finish()))?;
    if encoded.cut {
        eprintln!("weir: --cut: only the first {} tokens of the document were summarized", encoded.tokens);
    }
    scores.map_or(Ok(()), |rouge| output::write(&show::rouge(&rouge)))
}

impl DocumentArgs {
    fn read(&self, model: &dyn Model, limits: &DocumentLimits, cut: bool) -> Result<InputDocument> {
        match (&self.ids, &self.file) {
            (Some(ids), _) => InputDocument::from_ids(ids, model),
            (None, Some(file)) => input::read(file, model, limits, cut),
            (None, None) => Err(Error::Setting("--logits needs --file or --ids".into())),
        }
    }
}
