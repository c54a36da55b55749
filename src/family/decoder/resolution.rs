//! The attention resolution of a decoder on a text (LeX §3.1, §4.3): the text flows through the model as ever, and the scores
//! that its attention takes are noted on the way.

use super::step::Work;
use crate::{
    decode::contract::{BoundaryOptions, Model, SequenceRow, Want, advance},
    error::{Error, Result},
    nn::resolution::{self, ScoresByDistance},
};

/// Symbols a step.
const CHUNK: usize = 256;

/// What was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolution {
    /// Of the scores averaged over all layers.
    pub all: f64,
    /// Of each layer's.
    pub layers: Vec<f64>,
    /// Distances that were met.
    pub distances: usize,
}

/// Feeds the symbols and measures.
///
/// # Errors
/// [`Error::WrongKind`] for a model that is no decoder; what its steps say.
pub fn measure(model: &dyn Model, symbols: &[u32]) -> Result<Resolution> {
    let (mut scratch, card) = (model.scratch(), model.card());
    match Work::of(&mut scratch) {
        Ok(work) => work.stack.scores = Some(ScoresByDistance::default()),
        Err(_) => {
            let (call, wanted) = ("attention resolution", "is of the family decoder");
            return Err(Error::WrongKind { call, model: card.name.clone(), wanted, found: card.shape.clone() });
        }
    }
    let mut rows = [SequenceRow::new(model.begin(BoundaryOptions::default())?)];
    for chunk in symbols.chunks(CHUNK) {
        rows[0].set(chunk, Want::Nothing);
        advance(model, &mut rows, &[0], &mut scratch)?;
    }
    let scores = Work::of(&mut scratch)?.stack.scores.take().unwrap_or_default();
    let mean = scores.mean();
    let layers = scores.of_layers().iter().map(|scores| resolution::resolution(scores)).collect();
    Ok(Resolution { all: resolution::resolution(&mean), layers, distances: mean.len() })
}
