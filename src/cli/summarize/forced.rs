//! Teacher forcing: logits after each token of a fixed summary.

use crate::{
    cli::output,
    decode::{
        contract::Model,
        document::DocumentEncoder,
        evaluate::{forced_target, read_document, target_logits},
    },
    error::Result,
};
use std::path::Path;

/// Encodes a document, feeds `target` to the decoder and writes the logits (target ids, vocabulary) to `out`. `hard` selects
/// hard top-k.
pub(super) fn run(
    model: &dyn Model,
    encoder: &dyn DocumentEncoder,
    document: &[u32],
    target: &[u32],
    hard: bool,
    out: &Path,
) -> Result<()> {
    let fed = forced_target(model, encoder.limits(), target)?;
    let encoding = if hard { encoder.open_hard()? } else { encoder.open() };
    let mut scratch = model.scratch();
    let document = read_document(encoder, encoding, document, &mut scratch)?;
    let logits = target_logits(model, encoder.begin(&*document)?, &fed, &mut scratch)?;
    output::logits(out, &logits, [fed.len(), model.card().vocabulary.len()], None)
}
