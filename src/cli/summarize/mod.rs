//! `weir summarize`: summarizes a document, or prints a table of scores over many documents, by an engine in this process or by a
//! server.

mod args;
mod forced;
mod input;
mod long;
mod process;
mod server;
mod show;
mod summary;
mod table;
mod text_reader;

pub use args::Args;

use super::{color::ColorChoice, input_files, model_source::ModelSource, notes, output};
use crate::{decode::long_documents::LongDocuments, error::Result, report::rouge::rouge};
use process::ProcessSummarizer;
use server::ServerSummarizer;
use std::path::PathBuf;
use summary::{Summarizer, SummaryEvent};

/// Runs the command. Fails if the checkpoint, the document or an option is invalid, if the server rejects the call, or if stdout
/// cannot be written.
pub fn run(args: Args, color: ColorChoice) -> Result<()> {
    args.document.check_files()?;
    match args.model.open()? {
        ModelSource::Process(model) => {
            if let (Some(out), Some(target)) = (&args.logits, &args.target_ids) {
                return forced::run(&args, &*model, target, out);
            }
            let summarizer = ProcessSummarizer::new(model, &args)?;
            if args.long_documents() == LongDocuments::Chunk {
                return print(&args, color, &mut |document, on_event| long::summarize(&summarizer, document, on_event));
            }
            print(&args, color, &mut |document, on_event| summarizer.summarize(document, on_event))
        }
        ModelSource::Server(model) => {
            let summarizer = ServerSummarizer::new(&model, &args)?;
            print(&args, color, &mut |document, on_event| summarizer.summarize(document, on_event))
        }
    }
}

/// Prints the summary of the document, or the table of many documents.
fn print(args: &Args, color: ColorChoice, summarize: &mut Summarizer<'_>) -> Result<()> {
    if let Some(file) = &args.document.table {
        return table::run(summarize, file, args.json);
    }
    // Read first, so that an unreadable file does not cost a summary.
    let read = |file: &PathBuf| input_files::read_text("--reference", file);
    let reference = args.reference.as_ref().map(read).transpose()?;
    let color = color.is_on(&std::io::stdout());
    let mut on_event = |event: SummaryEvent<'_>| match event {
        _ if args.json => Ok(()),
        SummaryEvent::Encoded(encoded) if args.highlights => output::write(&show::highlights(encoded, color)),
        SummaryEvent::Encoded(_) => Ok(()),
        SummaryEvent::Part(progress) => {
            notes::part_summarized(progress.round, progress.part, progress.read, progress.bytes);
            Ok(())
        }
        SummaryEvent::Text(text) => output::write(text),
    };
    let summary = summarize(&args.document.document()?, &mut on_event)?;
    let scores = reference.map(|reference| rouge(&reference, summary.text()));
    if args.json {
        return output::json(&show::json(&summary, scores));
    }
    output::write("\n")?;
    if summary.document.cut {
        notes::document_cut(summary.document.tokens);
    }
    scores.map_or(Ok(()), |rouge| output::write(&show::rouge(&rouge)))
}
