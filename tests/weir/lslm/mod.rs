//! Latent segment models against their golden data, generated text, replayed traces, and the command line.

mod checkpoints;
mod cli;
mod generation;
mod golden;
mod gpt2;
pub(super) mod naive;
mod replay;

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

/// A case: its golden data and its model.
struct Case {
    name: &'static str,
    golden: Golden,
    model: Arc<dyn Model>,
}

impl Case {
    fn of(name: &'static str) -> Self {
        Self { name, golden: Golden::of(&lslm_golden(name)), model: lslm_in(name, Dtype::F32) }
    }

    fn all() -> impl Iterator<Item = Self> {
        LSLM_CASES.into_iter().map(Self::of)
    }

    fn specials(&self) -> SpecialSymbols {
        self.model.card().vocabulary.specials().unwrap()
    }

    fn first_logits(&self) -> &[f32] {
        self.model.card().first_logits.as_ref().unwrap()
    }

    /// What the golden data calls steps, in their order, made of a text's logits and marks: logits, or ln p of the mark that ends a
    /// segment.
    fn steps<'a>(&'a self, logits: &'a [f32], marks: &[SymbolBoundary]) -> Vec<Step<'a>> {
        let symbols = self.model.card().vocabulary.len();
        let mut steps = vec![Step::Logits(self.first_logits())];
        for (logits, mark) in logits.chunks(symbols).zip(marks) {
            if mark.boundary {
                steps.push(Step::Ends(mark.end_logprob.expect("all logits were wanted")));
            }
            steps.push(Step::Logits(logits));
        }
        steps
    }
}

/// A step of the decoder.
enum Step<'a> {
    /// Before a symbol, or the end.
    Logits(&'a [f32]),
    /// Before the end of a segment.
    Ends(f32),
}
