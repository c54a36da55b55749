//! `weir summarize`: summarizes a document, or prints a table of scores over many documents. A server does it, which runs in this
//! process unless `--server` names another. A model in this process summarizes directly if ids, logits or the positions that pooling
//! layers kept are asked for.

mod args;
mod served;
mod show;
mod summary;
mod table;

pub use args::Args;

use super::{
    color::ColorChoice,
    direct::{self, Tokens},
    input_files,
    model_source::{ModelSource, own_limits},
    notes, output,
    wire::size,
};
use crate::{decode::long_documents::LongDocuments, error::Result, report::rouge::rouge};
use std::path::PathBuf;
use summary::{OnEvent, Progress, Summary, collect};

/// Runs the command. Fails if the checkpoint, the document or an option is invalid, if the server rejects the call, or if stdout
/// cannot be written.
pub fn run(args: Args, color: ColorChoice) -> Result<()> {
    args.document.check_files()?;
    let source = args.model.open()?;
    let mut limits = own_limits();
    if let ModelSource::Process(model) = &source {
        limits.rows = args
            .generation
            .beam
            .unwrap_or_else(|| model.document_encoder().map_or(1, |encoder| encoder.limits().generation.beam));
        let is_single = args.document.table.is_none() && args.long_documents() != LongDocuments::Chunk;
        if is_single && (args.json || args.document.ids.is_some() || args.logits.is_some()) {
            let document = Tokens::read(&**model, &args.document.document()?, args.cuts())?;
            if let (Some(out), Some(target)) = (&args.logits, &args.target_ids) {
                return direct::forced_summary(&**model, &document, target, args.generation.hard_topk, out);
            }
            return print(&args, color, |on_event| {
                let mut summary = Summary::default();
                let request = args.generation.request();
                let visit = &mut |event| collect(&mut summary, event, on_event);
                summary.choices = direct::summarize(model.clone(), limits.clone(), &request, &document, visit)?;
                Ok(summary)
            });
        }
    }
    let model = source.served(limits)?;
    let summarizer = served::Summarizer::new(&model, &args)?;
    match &args.document.table {
        Some(file) => table::run(&summarizer, file, args.json),
        None => {
            let document = args.document.document()?;
            print(&args, color, |on_event| summarizer.summarize(&document, on_event))
        }
    }
}

/// Prints the summary of one document.
fn print(args: &Args, color: ColorChoice, summarize: impl FnOnce(&mut OnEvent<'_>) -> Result<Summary>) -> Result<()> {
    // Read first, so that an unreadable file does not cost a summary.
    let read = |file: &PathBuf| input_files::read_text("--reference", file);
    let reference = args.reference.as_ref().map(read).transpose()?;
    // The number of the document's tokens, which highlights state, comes with the last event.
    let mut held = String::new();
    let summary = summarize(&mut |event| match event {
        _ if args.json => Ok(()),
        Progress::Part(part) => {
            let [round, number] = [part.round, part.part].map(|number| size(number.into()));
            notes::part_summarized(round, number, part.byte_end, part.round_bytes);
            Ok(())
        }
        Progress::Text(text) if args.highlights => {
            held += text;
            Ok(())
        }
        Progress::Text(text) => output::write(text),
    })?;
    let scores = reference.map(|reference| rouge(&reference, summary.text()));
    if args.json {
        return output::json(&show::json(&summary, scores));
    }
    if args.highlights {
        output::write(&show::highlights(&summary, color.is_on(&std::io::stdout())))?;
        output::write(&held)?;
    }
    output::write("\n")?;
    let usage = summary.usage();
    if usage.cut {
        notes::document_cut(size(usage.document_tokens));
    }
    scores.map_or(Ok(()), |rouge| output::write(&show::rouge(&rouge)))
}
