//! Encoder-decoders with a pooled document: golden data, chunked documents, batched rows, and the top-k operator alone.

mod conversion;
mod documents;
mod golden;
pub(super) mod shapes;
pub(super) mod single_document;
mod topk_operator;
#[cfg(feature = "candle")]
mod unpadded;

use super::{golden::Golden, support::*};
use std::sync::Arc;
use weir::decode::{
    contract::{Model, Scratch, SequenceRow, Want, advance},
    document::{Document, DocumentEncoder},
};

/// FIXTURES.md: states and pooled vectors; logits.
const STATES: f32 = 1e-4;
const LOGITS: f32 = 5e-5;

fn encoder(model: &dyn Model) -> &dyn DocumentEncoder {
    model.document_encoder().expect("a model with a document encoder")
}

/// Encodes a document in one call.
fn encode(model: &dyn Model, tokens: &[u32], scratch: &mut Scratch) -> Arc<dyn Document> {
    let mut encoding = encoder(model).open();
    encoding.push(tokens).unwrap();
    encoding.close().unwrap();
    encoder(model).advance(&mut *encoding, usize::MAX, scratch).unwrap();
    encoding.document().expect("the document is complete")
}

/// Returns the logits after each symbol of a row that is fed in one chunk: `(symbols, V)`.
fn forced(model: &dyn Model, document: &dyn Document, symbols: &[u32], scratch: &mut Scratch) -> Vec<f32> {
    let mut rows = [SequenceRow::new(encoder(model).begin(document).unwrap())];
    rows[0].set(symbols, Want::All);
    advance(model, &mut rows, &[0], scratch).unwrap();
    rows[0].logits.clone()
}

/// Returns fairseq's greedy output: `min` to `max` symbols, then the end symbol.
fn greedy(model: &dyn Model, document: &dyn Document, min: usize, max: usize, scratch: &mut Scratch) -> Vec<u32> {
    let specials = encoder(model).limits().marks;
    let mut rows = [SequenceRow::new(encoder(model).begin(document).unwrap())];
    let mut written = Vec::new();
    let mut next = specials.start;
    while written.last() != Some(&specials.end) {
        rows[0].set(&[next], Want::Last);
        advance(model, &mut rows, &[0], scratch).unwrap();
        let allowed = |id: u32| match id {
            id if id == specials.end => written.len() >= min,
            id => id != specials.pad && written.len() < max,
        };
        let logits = rows[0].logits.iter().zip(0..).filter(|(_, id)| allowed(*id));
        next = logits.max_by(|a, b| a.0.total_cmp(b.0)).unwrap().1;
        written.push(next);
    }
    written
}

/// A fixture with its golden data and its model.
struct Case {
    name: &'static str,
    golden: Golden,
    model: Arc<dyn Model>,
    config: serde_json::Value,
}

impl Case {
    fn load(name: &'static str) -> Self {
        let config = std::fs::read(pyramidion_golden(name).join("config.json")).unwrap();
        let golden = Golden::open(&pyramidion_golden(name));
        let model = pyramidion_in(name, weir::kernels::Dtype::F32);
        Self { name, golden, model, config: serde_json::from_slice(&config).unwrap() }
    }

    fn all() -> impl Iterator<Item = Self> {
        PYRAMIDION_CASES.into_iter().chain(["left_padded_batch"]).map(Self::load)
    }

    fn count(&self) -> usize {
        self.golden.shape("src_tokens")[0]
    }

    /// Returns the tokens of a document without padding on the right.
    fn source(&self, item: usize) -> Vec<u32> {
        let mut tokens = self.ids("src_tokens", item);
        let end = tokens.iter().rposition(|&token| token != 1).unwrap() + 1;
        tokens.truncate(end);
        tokens
    }

    fn ids(&self, name: &str, item: usize) -> Vec<u32> {
        self.golden.row(name, item).iter().map(|&id| id as u32).collect()
    }
}
