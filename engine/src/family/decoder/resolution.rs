//! Attention resolution of a decoder on a text (LeX §3.1, §4.3): feeds the text and records the scores that its attention
//! computes.

use super::work::Work;
use crate::{
    decode::contract::{BoundaryOptions, Model, SequenceRow, Want, advance},
    error::{Error, Result},
    family::parts::step::work_mut,
    nn::resolution::{self, ScoresByDistance},
};

/// Symbols fed in one step.
const CHUNK: usize = 256;

/// Measured resolutions.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolution {
    /// Resolution of the scores averaged over all layers.
    pub all: f64,
    /// Resolution of each layer's scores.
    pub layers: Vec<f64>,
    /// Number of distances between a query and a key.
    pub distances: usize,
}

/// Feeds the symbols and measures the resolution. Fails with [`Error::WrongKind`] for a model of another family, and if
/// a step fails.
pub fn measure(model: &dyn Model, symbols: &[u32]) -> Result<Resolution> {
    let mut scratch = model.scratch();
    match work_mut::<Work>(&mut scratch) {
        Ok(work) => work.stack.scores = Some(ScoresByDistance::default()),
        Err(_) => {
            let card = model.card();
            return Err(Error::WrongKind {
                call: "attention resolution",
                model: card.name.clone(),
                wanted: "is of the family decoder",
                found: card.shape.clone(),
            });
        }
    }
    let mut rows = [SequenceRow::new(model.begin(BoundaryOptions::default())?)];
    for chunk in symbols.chunks(CHUNK) {
        rows[0].set(chunk, Want::Nothing);
        advance(model, &mut rows, &[0], &mut scratch)?;
    }
    let scores = work_mut::<Work>(&mut scratch)?.stack.scores.take().unwrap_or_default();
    let mean = scores.mean();
    let layers = scores.by_layer().iter().map(|scores| resolution::resolution(scores)).collect();
    Ok(Resolution { all: resolution::resolution(&mean), layers, distances: mean.len() })
}
