//! Latent segment models: golden data, generated text, replayed traces, and the command line.

mod checkpoints;
mod cli;
mod generation;
mod golden;
mod gpt2;
mod replay;
pub(super) mod shapes;

use super::{golden::Golden, support::*};
use std::sync::Arc;
use weir::{
    decode::contract::{Model, SymbolBoundary},
    kernels::Dtype,
    text::SpecialSymbols,
};

/// FIXTURES.md: h, s, s_ctx, boundary logits; logits and log-probabilities.
const STAGES: f32 = 1e-4;
const LOGITS: f32 = 3e-4;

/// A fixture with its golden data and its model.
struct Case {
    name: &'static str,
    golden: Golden,
    model: Arc<dyn Model>,
}

impl Case {
    fn load(name: &'static str) -> Self {
        Self { name, golden: Golden::open(&lslm_golden(name)), model: lslm_in(name, Dtype::F32) }
    }

    fn all() -> impl Iterator<Item = Self> {
        LSLM_CASES.into_iter().map(Self::load)
    }

    fn specials(&self) -> SpecialSymbols {
        self.model.card().vocabulary.specials().unwrap()
    }

    fn first_logits(&self) -> &[f32] {
        self.model.card().first_logits.as_ref().unwrap()
    }

    /// Returns a text's steps in the order of the golden data.
    fn steps<'a>(&'a self, logits: &'a [f32], marks: &[SymbolBoundary]) -> Vec<Step<'a>> {
        let symbols = self.model.card().vocabulary.len();
        let mut steps = vec![Step::Logits(self.first_logits())];
        for (logits, mark) in logits.chunks(symbols).zip(marks) {
            if mark.boundary {
                steps.push(Step::Ends(mark.end_logprob.expect("all logits were requested")));
            }
            steps.push(Step::Logits(logits));
        }
        steps
    }
}

/// A step of the segment decoder.
enum Step<'a> {
    /// Logits for the next symbol.
    Logits(&'a [f32]),
    /// ln p of the symbol that ends a segment.
    Ends(f32),
}
