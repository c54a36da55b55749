//! Encoder-decoders that pool their document: golden data, documents in pieces, rows in company, the operator by itself.

mod conversion;
mod documents;
mod golden;
mod naive;
mod naive_attention;
mod shapes;
pub(super) mod single_document;
mod topk_operator;

use super::{golden::Golden, support::*};
use std::sync::Arc;
use weir::decode::{
    contract::{Model, Scratch, SequenceRow, Want, advance},
    document::{Document, DocumentEncoder},
};

/// FIXTURES.md: states and pooled vectors; logits.
const STATES: f32 = 1e-4;
const LOGITS: f32 = 5e-5;

fn reader(model: &dyn Model) -> &dyn DocumentEncoder {
    model.document_encoder().expect("a model that reads documents")
}

/// A document, pushed and worked on as a whole.
fn read(model: &dyn Model, tokens: &[u32], scratch: &mut Scratch) -> Arc<dyn Document> {
    let mut encoding = reader(model).open();
    encoding.push(tokens).unwrap();
    encoding.close().unwrap();
    reader(model).advance(&mut *encoding, usize::MAX, scratch).unwrap();
    encoding.document().expect("all of it can run")
}

/// The logits after each symbol of a row that is fed at once: (symbols, V).
fn forced(model: &dyn Model, document: &dyn Document, symbols: &[u32], scratch: &mut Scratch) -> Vec<f32> {
    let mut rows = [SequenceRow::new(reader(model).begin(document).unwrap())];
    rows[0].set(symbols, Want::All);
    advance(model, &mut rows, &[0], scratch).unwrap();
    rows[0].logits.clone()
}

/// What fairseq writes with one hypothesis: `min` symbols before the end mark at least, `max` at most. The end mark included.
fn greedy(model: &dyn Model, document: &dyn Document, (min, max): (usize, usize), scratch: &mut Scratch) -> Vec<u32> {
    let marks = reader(model).limits().marks;
    let mut rows = [SequenceRow::new(reader(model).begin(document).unwrap())];
    let (mut written, mut next) = (Vec::new(), marks.start);
    while written.last() != Some(&marks.end) {
        rows[0].set(&[next], Want::Last);
        advance(model, &mut rows, &[0], scratch).unwrap();
        let allowed = |id: u32| match id {
            id if id == marks.end => written.len() >= min,
            id => id != marks.pad && written.len() < max,
        };
        let logits = rows[0].logits.iter().zip(0..).filter(|(_, id)| allowed(*id));
        next = logits.max_by(|a, b| a.0.total_cmp(b.0)).unwrap().1;
        written.push(next);
    }
    written
}

/// A fixture with its model.
struct Case {
    name: &'static str,
    golden: Golden,
    model: Arc<dyn Model>,
    config: serde_json::Value,
}

impl Case {
    fn of(name: &'static str) -> Self {
        let config = std::fs::read(pyramidion_golden(name).join("config.json")).unwrap();
        let golden = Golden::open(&pyramidion_golden(name));
        let model = pyramidion_in(name, weir::kernels::Dtype::F32);
        Self { name, golden, model, config: serde_json::from_slice(&config).unwrap() }
    }

    fn all() -> impl Iterator<Item = Self> {
        PYRAMIDION_CASES.into_iter().chain(["left_padded_batch"]).map(Self::of)
    }

    fn count(&self) -> usize {
        self.golden.shape("src_tokens")[0]
    }

    /// A document's tokens, without padding on the right.
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
