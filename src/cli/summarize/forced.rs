//! Teacher forcing: logits after each token of a fixed summary.

use super::{args::Args, input::InputDocument, process::no_summaries};
use crate::{
    cli::output,
    decode::{
        contract::Model,
        evaluate::{forced_target, read_document, target_logits},
    },
    error::Result,
};
use std::path::Path;

/// Encodes the document, feeds `target` to the decoder and writes the logits (target ids, vocabulary) to `out`.
pub(super) fn run(args: &Args, model: &dyn Model, target: &[u32], out: &Path) -> Result<()> {
    let encoder = model.document_encoder().ok_or_else(|| no_summaries(model))?;
    let document = InputDocument::read(&args.document.document()?, model, encoder.limits(), args.cuts())?;
    let fed = forced_target(model, encoder.limits(), target)?;
    let encoding = if args.generation.hard_topk { encoder.open_hard()? } else { encoder.open() };
    let mut scratch = model.scratch();
    let document = read_document(encoder, encoding, &document.ids, &mut scratch)?;
    let logits = target_logits(model, encoder.begin(&*document)?, &fed, &mut scratch)?;
    output::logits(out, &logits, [fed.len(), model.card().vocabulary.len()], None)
}
