//! Symbols that are given: a prompt, or a text to score. They are fed in chunks and, if asked for, told. Behind them stand
//! the symbols that were sampled since: together they are what the model has seen or is to see, in order.
//!
//! What the logits after a chunk's last symbol say of the next chunk's first one is carried over, so logits are never held
//! beyond the chunk that made them.

use super::{
    contract::{Row, Want},
    logprobs::{Telling, Told},
    options::Character,
};
use crate::error::{Error, Result};

/// Symbols on their way into the model.
#[derive(Debug, Clone)]
pub(super) struct Known {
    /// The given symbols, then those sampled.
    symbols: Vec<u32>,
    /// How many were given.
    given: usize,
    /// Given symbols that the model has seen.
    fed: usize,
    tell: Tell,
    /// What is told of the symbol at `fed`. Nothing is known of the first.
    next: Told,
}

/// What is told of given symbols.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tell {
    /// Whether they are told at all.
    pub(super) symbols: bool,
    /// With which log-probabilities.
    pub(super) logprobs: Telling,
    /// With or without their marks.
    pub(super) marks: bool,
    /// Whether the logits after the last symbol are needed, because a generated one follows.
    pub(super) last_logits: bool,
}

impl Known {
    pub(super) fn new(symbols: Vec<u32>, tell: Tell) -> Self {
        Self { given: symbols.len(), symbols, fed: 0, tell, next: Told::default() }
    }

    /// How many were given.
    pub(super) fn len(&self) -> usize {
        self.given
    }

    /// All symbols, sampled ones included.
    pub(super) fn symbols(&self) -> &[u32] {
        &self.symbols
    }

    /// Given symbols that the model has seen.
    pub(super) fn fed(&self) -> usize {
        self.fed
    }

    pub(super) fn is_done(&self) -> bool {
        self.fed >= self.given
    }

    /// Notes a sampled symbol.
    pub(super) fn push(&mut self, symbol: u32) {
        self.symbols.push(symbol);
    }

    /// How many symbols may pass unfed, their state being known from elsewhere: all but the last if nothing that a step
    /// makes of them is told, for after the last there are logits to look at; otherwise those that were fed once.
    pub(super) fn skippable(&self) -> usize {
        let untold = !self.tell.symbols || !(self.tell.marks || self.tell.logprobs.any());
        if untold { self.fed.max(self.given.saturating_sub(1)) } else { self.fed }
    }

    /// Counts the first `len` symbols as fed, which are skippable, and tells those that are told.
    pub(super) fn skip(&mut self, len: usize, told: &mut Vec<Character>) {
        let skipped = self.fed..len.max(self.fed);
        self.fed = skipped.end;
        if self.tell.symbols {
            let character = |&symbol| Character { symbol, logprob: None, mark: None, top: Vec::new() };
            told.extend(self.symbols[skipped].iter().map(character));
        }
    }

    /// Lays the next chunk into the row.
    pub(super) fn feed(&self, row: &mut Row, chunk: usize) {
        let end = self.given.min(self.fed + chunk.max(1));
        let want = if self.tell.symbols && self.tell.logprobs.any() {
            Want::All
        } else if self.tell.last_logits && end == self.given {
            Want::Last
        } else {
            Want::Nothing
        };
        row.set(&self.symbols[self.fed..end], want);
    }

    /// Takes what the step made of the chunk; adds to `told` what is told of it. The row's shapes were checked.
    pub(super) fn absorb(&mut self, row: &Row, told: &mut Vec<Character>) -> Result<()> {
        let chunk = self.fed..self.fed + row.feed.len();
        let Some(symbols) = self.symbols.get(chunk.clone()).filter(|symbols| **symbols == row.feed) else {
            return Err(Error::Internal(format!("symbols {chunk:?} were to be fed, others were")));
        };
        self.fed = chunk.end;
        if !self.tell.symbols {
            return Ok(());
        }
        let vocabulary = row.logits.len().checked_div(symbols.len()).filter(|_| row.want == Want::All);
        for (index, (&symbol, &mark)) in symbols.iter().zip(&row.marks).enumerate() {
            let Told { logprob, top } = std::mem::take(&mut self.next);
            told.push(Character { symbol, logprob, mark: self.tell.marks.then_some(mark), top });
            let following = self.symbols.get(chunk.start + index + 1);
            if let (Some(vocabulary), Some(&following)) = (vocabulary, following) {
                let logits = &row.logits[index * vocabulary..(index + 1) * vocabulary];
                self.next = self.tell.logprobs.of(following, logits)?;
            }
        }
        Ok(())
    }
}
