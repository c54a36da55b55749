//! Teacher forcing: logits after each token of a fixed summary.

use crate::{
    cli::output,
    decode::{
        contract::{Model, SequenceRow, Want, advance},
        document::DocumentEncoder,
    },
    error::{Error, Result},
};
use std::path::Path;

/// Encoder blocks per step.
const BLOCKS: usize = 64;

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
    let limits = encoder.limits();
    model.card().vocabulary.check_ids("--target-ids", target)?;
    let start = (target.first() != Some(&limits.marks.start)).then_some(limits.marks.start);
    let fed: Vec<u32> = start.into_iter().chain(target.iter().copied()).collect();
    if fed.len() > limits.targets {
        let length = fed.len();
        let limit = limits.targets;
        return Err(Error::TooLong { field: "--target-ids", length, limit, unit: "tokens", why: None });
    }
    let mut encoding = if hard { encoder.open_hard()? } else { encoder.open() };
    let mut scratch = model.scratch();
    encoding.push(document)?;
    encoding.close()?;
    let document = loop {
        if let Some(document) = encoding.document() {
            break document;
        }
        if encoder.advance(&mut *encoding, BLOCKS, &mut scratch)? == 0 && encoding.document().is_none() {
            return Err(Error::Internal("encoding of a complete document made no progress".into()));
        }
    };
    let mut row = SequenceRow::new(encoder.begin(&*document)?);
    row.set(&fed, Want::All);
    advance(model, std::slice::from_mut(&mut row), &[0], &mut scratch)?;
    output::logits(out, &row.logits, [fed.len(), model.card().vocabulary.len()], None)
}
