//! One sequence: its memory, and the tokens that the memory does not cover yet.
//!
//! Tokens wait for the end of their block if no logits are wanted, so that a prompt's blocks are computed as a whole, however the
//! scheduler split the prompt. After a rollback of a recurrent memory, the tokens since its snapshot are computed again.

use super::memory::{BLOCK, Memory};
use crate::{
    decode::contract::{PageUse, State},
    error::Result,
    family::parts::check_rollback,
};

/// One sequence of a Hugging Face model.
pub struct TokenState {
    pub(super) memory: Memory,
    /// Tokens since the earliest position to which a rollback is possible, or since the memory's end.
    pub(super) history: Vec<u32>,
    /// Position of the first of them.
    pub(super) start: usize,
    /// Tokens in flight: fed, and not yet computed by their finish step.
    pub(super) flight: usize,
    /// Length of the prefix that was computed in whole blocks.
    pub(super) blockwise: usize,
}

impl TokenState {
    pub(super) fn new(memory: Memory) -> Self {
        Self { memory, history: Vec::new(), start: 0, flight: 0, blockwise: 0 }
    }

    /// True if no token is in flight.
    pub(super) fn is_ready(&self) -> bool {
        self.flight == 0
    }

    /// The tokens at positions `from..to`, which the history holds.
    pub(super) fn tokens(&self, from: usize, to: usize) -> &[u32] {
        self.history.get(from - self.start..to - self.start).unwrap_or_default()
    }

    /// Records that the memory covers the tokens in flight, up to those that wait for their block.
    pub(super) fn land(&mut self) {
        self.flight = 0;
        let start =
            if self.memory.is_rewindable() { self.memory.len() } else { self.memory.earliest().max(self.start) };
        self.history.drain(..start.saturating_sub(self.start).min(self.history.len()));
        self.start = start;
    }

    fn truncate(&mut self, len: usize) {
        self.memory.truncate(len);
        match len.checked_sub(self.start) {
            Some(kept) => self.history.truncate(kept),
            None => {
                self.history.clear();
                self.start = len;
            }
        }
        self.flight = 0;
        self.blockwise = self.blockwise.min(len / BLOCK * BLOCK);
    }
}

impl State for TokenState {
    fn len(&self) -> usize {
        self.start + self.history.len()
    }

    fn segments(&self) -> usize {
        0
    }

    fn fork(&self) -> Box<dyn State> {
        let mut fork = Self { memory: self.memory.clone(), history: self.history.clone(), ..*self };
        fork.truncate(self.len() - self.flight);
        Box::new(fork)
    }

    fn rollback(&mut self, len: usize) -> Result<()> {
        check_rollback(self, self.is_ready(), len)?;
        self.truncate(len);
        Ok(())
    }

    fn earliest(&self) -> usize {
        if self.memory.is_rewindable() { 0 } else { self.start }
    }

    fn restart(&mut self, _: usize) {
        self.truncate(0);
    }

    /// Whole blocks only: the numbers of a token depend slightly on the tokens that were computed with it.
    fn boundary_before(&self, len: usize) -> usize {
        let end = len.min(self.blockwise) / BLOCK * BLOCK;
        if end < self.earliest() { 0 } else { end }
    }

    fn bytes(&self) -> usize {
        let mut bytes = 0;
        self.pages(&mut |page| bytes += page.bytes);
        bytes
    }

    fn pages(&self, each: &mut dyn FnMut(PageUse)) {
        self.memory.pages(each);
    }

    fn own_bytes(&self) -> usize {
        size_of::<Self>() + self.history.capacity() * size_of::<u32>() + self.memory.own_bytes()
    }
}
