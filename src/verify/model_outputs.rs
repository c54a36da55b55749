//! weir's own outputs for an input, in the form that [`report`](super::report) compares.

use super::{Input, Outputs};
use crate::{
    decode::{
        contract::{BoundaryOptions, Model, Want},
        document::DocumentEncoder,
        evaluate::{StepSize, read_document, run, target_logits},
    },
    error::Result,
};

/// Symbols of one step.
const CHUNK: usize = 512;

/// Runs the model on an input. `boundaries` selects how its boundaries are decided. Fails if a step fails.
pub fn model_outputs(model: &dyn Model, input: &Input, boundaries: BoundaryOptions) -> Result<Outputs> {
    if let Some(encoder) = model.document_encoder() {
        return document_outputs(model, encoder, input);
    }
    let mut outputs = Outputs { smallest_gap: f64::INFINITY, ..Outputs::default() };
    let card = model.card();
    let mut push = |logits: &[f32]| outputs.logits.extend(logits.iter().map(|&logit| f64::from(logit)));
    card.first_logits.iter().for_each(|logits| push(logits));
    let mut decisions = Vec::with_capacity(input.symbols.len());
    run(model, &input.symbols, StepSize::Chunked(CHUNK), boundaries, Want::All, &mut |_, logits, decision| {
        push(logits);
        decisions.push(decision);
        Ok(())
    })?;
    if card.pooled {
        outputs.boundaries = decisions;
    }
    Ok(outputs)
}

fn document_outputs(model: &dyn Model, encoder: &dyn DocumentEncoder, input: &Input) -> Result<Outputs> {
    let mut scratch = model.scratch();
    let document = read_document(encoder, encoder.open(), &input.document, &mut scratch)?;
    let logits = target_logits(model, encoder.begin(&*document)?, &input.symbols, &mut scratch)?;
    Ok(Outputs {
        logits: logits.into_iter().map(f64::from).collect(),
        choices: document.choices().to_vec(),
        smallest_gap: f64::INFINITY,
        ..Outputs::default()
    })
}
